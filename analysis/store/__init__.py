"""Readers and writers of tracking stores for analyses, and the quality gate of runs."""
