"""Designs of sweeps: which points of a space to measure, and which memory excludes."""
