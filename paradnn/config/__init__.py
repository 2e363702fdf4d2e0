"""Conversion of Hydra's overrides to checked points; identities, outcomes and prices of points."""
