"""Worker processes and their lifetime: the driver's side of the pipe."""
