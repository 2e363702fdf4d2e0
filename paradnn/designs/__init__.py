"""Designs of sweeps: the next points to measure, and those that exceed the memory."""
