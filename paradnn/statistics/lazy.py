"""Numerical packages that are imported when one of their names is first used.

Importing NumPy, pandas and SciPy takes half a second or more. Help, completion and the rejection of
arguments do not need these packages. If a module imports `np`, `pd` or `stats` from here, the
package is not imported until a function uses it. Do not use these names at the top level of a
module.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["LazyModule", "np", "optimize", "pd", "special", "stats"]


class LazyModule:
    """Proxy of a module that is imported when an attribute is first read.

    Args:
        name: Full name of the module, such as "scipy.stats".
    """

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
