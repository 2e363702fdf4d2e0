"""Packages that cost half a second and more, imported by the first use of one of their names.

Help, completion and a wrong argument need no numbers: a module takes `np`, `pd` and the like from
here, and starts at once. What is used at a module's top level would be imported with it, so tables
of constants hold plain numbers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["drawing", "np", "optimize", "past", "pd", "special", "stats", "stored"]


class _Lazy:
    """A module that stands for itself; a name that was used once is looked up at its cost alone."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = getattr(import_module(self._name), name)
        return value


if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from scipy import optimize, special, stats

    from analysis import drawing
    from analysis.store import past
    from paradnn.store import columns as stored
else:
    np = _Lazy("numpy")
    pd = _Lazy("pandas")
    optimize = _Lazy("scipy.optimize")
    special = _Lazy("scipy.special")
    stats = _Lazy("scipy.stats")
    drawing = _Lazy("analysis.drawing")
    past = _Lazy("analysis.store.past")
    stored = _Lazy("paradnn.store.columns")
