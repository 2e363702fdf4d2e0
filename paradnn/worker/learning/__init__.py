"""Training to an accuracy on held-out examples: a set in memory, the step fed from it, epoch after epoch."""
