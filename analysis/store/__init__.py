"""Readers and writers of tracking stores for analyses, and the quality checks of runs."""
