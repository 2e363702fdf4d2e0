"""Analyses of tracked runs: numbers, sentences, tables, figures and the report.

    from analysis import SensitivityOptions, load, sensitivity

    frame = load(family="fc")
    weights = sensitivity(frame, SensitivityOptions(log_scale="both"))
    weights.table, weights.figure()

Every analysis is a function of a frame (one row per run) and a dataclass of options, and returns a
typed result. The command `python -m analysis` calls the same functions. Names are imported on first
use: importing `load` imports no analysis, and importing options imports neither pandas nor
Matplotlib.
"""

from importlib import import_module
from typing import Any
from warnings import warn

import_module("paradnn")  # exits quietly on an early Ctrl-C of `python -m analysis`

#: The module of every public name, apart from the analyses and their options.
_MODULES = {
    "Options": "analysis.options",
    "Selection": "analysis.options",
    "load": "analysis.store.load",
    "load_table": "analysis.store.load",
    "load_tables": "analysis.store.load",
    "make_report": "analysis.report",
}


#: Deprecated public name -> present name.
_RENAMED = {"beside": "compare_published", "BesideOptions": "ComparePublishedOptions"}


def _registered_names() -> dict[str, Any]:
    """Return every registered analysis and its class of options, by name.

    They include analyses of other packages, which register through entry points.
    """
    from analysis.registry import ANALYSES

    names: dict[str, Any] = {}
    for entry in ANALYSES.values():
        names[entry.function.__name__] = entry
        names.setdefault(entry.options.__name__, entry.options)
    return names


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name == "__all__":
        return [*_MODULES, *(entry for entry in _registered_names() if entry not in _MODULES)]
    if not name.startswith("_"):
        names = _registered_names()
        if name in _RENAMED:
            present = _RENAMED[name]
            warn(f"analysis.{name} is now analysis.{present}", DeprecationWarning, stacklevel=2)
            name = present
        if name in names:
            return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
