"""Which points to measure next, when enough is measured, and what is too large to be tried."""
