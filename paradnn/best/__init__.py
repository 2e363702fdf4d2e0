"""Races: measure combinations of settings in turn, until the best one for a model is known."""
