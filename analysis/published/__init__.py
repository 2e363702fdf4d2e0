"""Reading what others published, and logging it as runs beside one's own; a file for each source."""
