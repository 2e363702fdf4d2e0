"""Measurements that others published, as runs next to the user's own."""
