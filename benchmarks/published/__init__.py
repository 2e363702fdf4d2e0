"""Readers of the files that others published, from which the data that come with the package are
made.
"""
