"""Lazy import of `analysis.store.step_inputs`, which loads pandas.

It is not part of `analysis.lazy`, since `step_inputs` itself depends on that module.
"""

from typing import TYPE_CHECKING

from analysis.lazy import LazyModule

if TYPE_CHECKING:
    from analysis.store import step_inputs
else:
    step_inputs = LazyModule("analysis.store.step_inputs")

__all__ = ["step_inputs"]
