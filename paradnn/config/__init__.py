"""From Hydra's overrides to checked points: frozen dataclasses, identities, outcomes, prices."""
