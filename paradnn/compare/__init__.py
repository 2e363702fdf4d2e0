"""Which of two is faster: settings, commands, commits or functions by turns, until the interval is enough.

`from paradnn import compare` gives this module, which can be called: see `paradnn.compare.api.compare`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that compares when it is called."""

    def __call__(self, first: Any, second: Any, **how: Any) -> Any:
        """As `paradnn.compare.api.compare`."""
        from paradnn.compare.api import compare

        return compare(first, second, **how)


sys.modules[__name__].__class__ = _Callable
