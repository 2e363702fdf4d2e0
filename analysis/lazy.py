"""Lazy imports of packages whose import takes half a second or more.

Help, completion and the rejection of an argument need no numbers and no figures. Modules import
`np`, `pd` and others from here; each package is loaded when one of its names is first used. Using
a name at the top level of a module would load its package on import, so tables of constants contain
plain numbers.

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
