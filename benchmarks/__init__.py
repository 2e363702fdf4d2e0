"""Timed comparisons, on which no test depends."""
