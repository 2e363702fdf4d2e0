"""The untimed stretch of steps under the profiler, after everything that is timed."""

from __future__ import annotations

import base64
import math
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paradnn.worker.frameworks import Framework, Step, Unavailable
from paradnn.worker.messages import NoProfile, Profile
from paradnn.worker.profile.hlo import HloCosts
from paradnn.worker.profile.table import make_profile

__all__ = ["count_command_buffers", "profile_steps"]

#: The stretch lasts about this long, within these counts of steps: after some 80 TensorFlow traces no cheap operation.
_SECONDS = 0.25
_FEWEST, _MOST = 3, 60
#: A step as long as this is profiled once: its shares will not change.
_LONG_STEP = 5.0
#: Steps under the profiler may take so much longer, and reading the trace takes time too.
_SLOWDOWN = 2.0


def profile_steps(
    framework: Framework, step: Step, step_seconds: float, keep_trace: bool, seconds_left: float = math.inf
) -> Profile | NoProfile:
    """The profile of a step that takes `step_seconds` unprofiled; with `keep_trace` it holds the trace.

    Where the framework cannot be profiled, its trace cannot be read, or it would take longer than the `seconds_left` of
    the point, NoProfile says why: a point that was measured is not lost to its profile.
    """
    fewest = _FEWEST if step_seconds < _LONG_STEP else 1
    steps = min(_MOST, max(fewest, math.ceil(_SECONDS / step_seconds)))
    expected = _SLOWDOWN * (steps + 1) * step_seconds
    if expected > seconds_left:
        reason = f"the profile may take {expected:.0f} s, measure.timeout leaves {seconds_left:.0f} s"
        return NoProfile(reason, limited=True)
    try:
        return _profile(framework, step, steps, step_seconds, keep_trace)
    except Unavailable as error:
        return NoProfile(str(error))
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:300]
        return NoProfile(f"{type(error).__name__}: {message}".rstrip(": "))


def _profile(framework: Framework, step: Step, steps: int, step_seconds: float, keep_trace: bool) -> Profile:
    with tempfile.TemporaryDirectory(prefix="trace-", dir=".") as name:
        folder = Path(name)
        with framework.trace(folder) as marked:
            # The first step under the profiler pays for its start.
            step.run(1)
            with marked():
                begin = time.perf_counter()
                step.run(steps)
                seconds = time.perf_counter() - begin
        trace = framework.read_trace(folder)
        slowdown = seconds / steps / step_seconds
        profile = make_profile(trace, steps, slowdown, step.kernel_cost, HloCosts(trace.modules).cost)
        profile = replace(profile, command_buffers=count_command_buffers(trace.modules))
        if keep_trace and trace.file:
            content = base64.b64encode(trace.file.read_bytes()).decode()
            profile = replace(profile, trace={str(trace.file.relative_to(folder)): content})
    return profile


def count_command_buffers(modules: Sequence[Any]) -> int:
    """Parts of compiled programs that XLA has a GPU run as one graph: a trace names none of the operations in them.

    XLA puts each into a computation of that name (openxla/xprof issues 2544 and 3070).
    """
    return sum(part.name.startswith("command_buffer") for module in modules for part in module.computations)
