"""Timed comparisons: what is measured here never decides a test."""
