"""How a point ended that raised something: its outcome, and why in one line."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from paradnn.core.workload import Ended, Unavailable

if TYPE_CHECKING:
    from paradnn.worker.frameworks import Framework

__all__ = ["Ended", "Unavailable", "ending_of"]


def ending_of(error: Exception, framework: Framework, phase: str) -> tuple[str, str]:
    """Outcome and one-line reason of what was raised in `phase`."""
    if isinstance(error, Ended):
        return error.outcome, str(error)
    # The exception's type and the first line of its message, which names the operation.
    lines = str(error).strip().splitlines()
    reason = f"{phase}: {type(error).__name__}: {lines[0][:300] if lines else ''}".rstrip(": ")
    if isinstance(error, MemoryError):
        return "oom_host", reason
    traceback.print_exc()
    return framework.classify(error, phase) or "crash", reason
