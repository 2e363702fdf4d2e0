"""How long a sweep will take: from what the store knows of its like, and from the cost model where it knows nothing."""

from __future__ import annotations
