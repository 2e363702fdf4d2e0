"""Races between settings: find the best settings for a model on this machine."""
