"""How long a sweep will take: from past runs like it, and from the cost model where there are none."""

from __future__ import annotations
