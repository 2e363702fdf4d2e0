"""Readers of published files, from which the data of the package are made."""
