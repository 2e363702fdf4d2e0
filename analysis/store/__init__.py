"""Readers and writers of MLflow tracking stores for analyses, and the quality checks of runs."""
