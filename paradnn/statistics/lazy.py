"""Numerical packages that are imported when one of their names is first used.

NumPy, pandas and SciPy take half a second and more to import. Help, completion and a rejected
argument does not import them. A module that takes `np`, `pd` or `stats` from here starts at once.
Using a name at the top level of a module would import the package with that module.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["LazyModule", "np", "optimize", "pd", "special", "stats"]


class LazyModule:
    """Proxy of a module, which is imported when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        self.__dict__[name] = value
        return value


if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from scipy import optimize, special, stats
else:
    np = LazyModule("numpy")
    pd = LazyModule("pandas")
    optimize = LazyModule("scipy.optimize")
    special = LazyModule("scipy.special")
    stats = LazyModule("scipy.stats")
