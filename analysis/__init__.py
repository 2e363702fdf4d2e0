"""From thousands of tracked runs to statements a person can act on.

    from analysis import SensitivityOptions, load, sensitivity

    frame = load(family="fc")
    weights = sensitivity(frame, SensitivityOptions(log_scale="both"))
    weights.table, weights.figure()

Every analysis is a function of a frame and a dataclass of options, and answers with a typed result;
the command `python -m analysis` calls the same functions. A name is imported when it is first used:
each part costs only itself.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import_module("paradnn")  # ends `python -m analysis` quietly at an early Ctrl-C

#: What each module brings, beside the analyses.
_HOMES = {
    "options": ("Options", "Selection"),
    "report": ("make_report",),
    "store.load": ("load", "load_table", "load_tables"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
#: How a file says that a function is an analysis, with which options.
_REGISTERED = re.compile(r"^@analysis\(\s+(\w+),.*?^def (\w+)", re.MULTILINE | re.DOTALL)
for _file in sorted(Path(__file__).with_name("analyses").glob("*.py")):
    _own = [
        name for found in _REGISTERED.findall(_file.read_text(encoding="utf-8")) for name in found
    ]
    _HOME_OF |= {name: f"analyses.{_file.stem}" for name in _own if name not in _HOME_OF}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
