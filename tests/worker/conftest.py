"""The three frameworks meet where all are installed: `make test-frameworks` installs the extras jax and torch."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if all(map(importlib.util.find_spec, ("jax", "torch"))) else ["test_frameworks.py"]
