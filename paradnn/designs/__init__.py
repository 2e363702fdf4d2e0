"""Designs of sweeps: they choose the points to measure, and find those that exceed the memory."""
