"""Tracking store of driver and analysis: addresses, metrics, runs and errors."""
