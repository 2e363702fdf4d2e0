"""From Hydra's overrides to the points of a sweep, and those in tasks."""
