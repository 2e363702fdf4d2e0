"""Lazy imports of packages that take half a second and more.

Help, completion and a rejected argument need no numbers and no figures. Modules import `np`, `pd`
and others from here; each package is loaded when one of its names is first used. A name that is
used at the top level of a module would load the package at once, so tables of constants hold plain
numbers.

The package lazy_loader does not fit: loading `scipy.stats` lazily with it imports SciPy eagerly and
warns about it.
"""

from typing import TYPE_CHECKING

from paradnn.statistics.lazy import LazyModule, np, optimize, pd, special, stats

if TYPE_CHECKING:
    # Not `from analysis import drawing`: the package imports modules that import this one.
    import analysis.drawing as drawing
    from paradnn.store import columns as stored
else:
    drawing = LazyModule("analysis.drawing")
    stored = LazyModule("paradnn.store.columns")

__all__ = ["LazyModule", "drawing", "np", "optimize", "pd", "special", "stats", "stored"]
