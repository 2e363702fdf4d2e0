"""Lazy import of `analysis.store.past`, which loads pandas.

It is not part of `analysis.lazy`, since `past` itself depends on that module.
"""

from typing import TYPE_CHECKING

from analysis.lazy import LazyModule

if TYPE_CHECKING:
    from analysis.store import past
else:
    past = LazyModule("analysis.store.past")

__all__ = ["past"]
