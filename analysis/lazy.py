"""Packages that cost half a second and more, imported by the first use of one of their names.

Help, completion and a wrong argument need no numbers: a module takes `np`, `pd` and the like from
here, and starts at once. What is used at a module's top level would be imported with it, so tables
of constants hold plain numbers.
"""

from typing import TYPE_CHECKING

from paradnn.statistics.lazy import LazyModule, np, optimize, pd, special, stats

__all__ = ["drawing", "np", "optimize", "past", "pd", "special", "stats", "stored"]

if TYPE_CHECKING:
    from analysis import drawing
    from analysis.store import past
    from paradnn.store import columns as stored
else:
    drawing = LazyModule("analysis.drawing")
    past = LazyModule("analysis.store.past")
    stored = LazyModule("paradnn.store.columns")
