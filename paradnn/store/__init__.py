"""The tracking store as driver and analysis share it: addresses, metrics, errors."""
