"""Checks of a GPU machine: `make test-gpu`, or `python3 -m tests.gpu` without make."""
