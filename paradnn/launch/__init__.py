"""A sweep in the hands of a launcher: submitting its tasks, and what its scheduler says."""
