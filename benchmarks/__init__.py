"""Measurements and simulations behind the validation pages; no test depends on their results."""
