"""The untimed stretch of steps under the profiler, after everything that is timed."""

from __future__ import annotations

import base64
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from paradnn.worker.frameworks import Framework, Step, Unavailable
from paradnn.worker.profile.hlo import HloCosts
from paradnn.worker.profile.table import make_tables

__all__ = ["profile_steps"]

#: The stretch lasts about this long, within these counts of steps.
_SECONDS = 0.25
_FEWEST, _MOST = 3, 200


def profile_steps(framework: Framework, step: Step, step_seconds: float, keep_trace: bool) -> dict[str, Any]:
    """The operation tables of a step that takes `step_seconds` unprofiled.

    Returns what `make_tables` returns with steps and slowdown (traced step / `step_seconds`), and with `keep_trace`
    the trace file in base64 under the path where TensorBoard looks for it. Where the framework cannot be profiled,
    or its trace cannot be read, `unavailable` says why: a point that was measured is not lost to its profile.
    """
    steps = min(_MOST, max(_FEWEST, math.ceil(_SECONDS / step_seconds)))
    with tempfile.TemporaryDirectory(prefix="trace-", dir=".") as name:
        folder = Path(name)
        try:
            with framework.trace(folder) as marked:
                # The first step under the profiler pays for its start.
                step.run(1)
                with marked():
                    begin = time.perf_counter()
                    step.run(steps)
                    seconds = time.perf_counter() - begin
            trace = framework.read_trace(folder)
        except (Unavailable, ValueError) as error:
            return {"unavailable": str(error)}
        found = make_tables(trace, steps, step.kernel_cost, HloCosts(trace.modules).cost)
        if keep_trace and trace.file:
            content = base64.b64encode(trace.file.read_bytes()).decode()
            found["trace"] = {str(trace.file.relative_to(folder)): content}
    return {**found, "steps": steps, "slowdown": seconds / steps / step_seconds}
