"""Analyses, one module each."""
