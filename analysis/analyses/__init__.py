"""Analyses of measured runs, one per module. Each is a command of `python -m analysis`."""
