"""Races of settings: find the one that is best for a model on this machine."""
