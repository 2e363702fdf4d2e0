"""One point, in a forked child: build, compile, warm up, measure, answer.

Every way this can end within Python is an outcome with a one-line reason; what ends the process itself is classified
by the driver, which watches from outside.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from paradnn.worker.data import synthetic_batch
from paradnn.worker.frameworks import Framework, Unavailable
from paradnn.worker.measure import NotFinite, Protocol, measure_steps
from paradnn.worker.models import build

__all__ = ["measure_point"]

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def measure_point(point: Mapping[str, Any], framework: Framework, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure `point`; `report` is called with the name of each phase as it begins.

    Returns outcome, reason, phases (name -> seconds), and what was measured before the point ended.
    """
    phases = _Phases(report)
    answer: dict[str, Any] = {"outcome": "ok", "reason": None, "phases": phases.seconds}
    answer["baseline_memory_bytes"] = _resident("VmRSS")
    try:
        _measure(point, framework, phases, answer)
    except Unavailable as error:
        answer.update(outcome="unavailable", reason=str(error))
    except NotFinite as error:
        answer.update(outcome="nan", reason=str(error))
    except MemoryError as error:
        answer.update(outcome="oom_host", reason=f"{phases.current}: {_line(error)}")
    except Exception as error:
        traceback.print_exc()
        outcome = framework.classify(error, phases.current) or "crash"
        answer.update(outcome=outcome, reason=f"{phases.current}: {_line(error)}")
    answer["peak_memory_bytes"] = _resident("VmHWM")
    return answer


def _measure(point: Mapping[str, Any], framework: Framework, phases: _Phases, answer: dict[str, Any]) -> None:
    with phases("build"):
        answer.update(framework.open_device(point["platform"]))
        keras.utils.set_random_seed(point["seed"])
        keras.config.set_dtype_policy(POLICIES[point["precision"]])
        workload = build(point["model"])
        answer["parameters"] = sum(math.prod(v.shape) for v in workload.model.trainable_variables)
        batch = synthetic_batch(workload, point["batch_size"], point["seed"])
        step = framework.make_step(workload, batch, point)
        del batch
    with phases("compile"):
        answer["first_loss"] = step.run(1)
    protocol = Protocol.of(point["measure"])
    measured = measure_steps(step.run, protocol, phases)
    answer.update(measured)
    answer["peak_device_memory_bytes"] = framework.peak_device_memory()


class _Phases:
    """Says which phase the point is in, and how long each took."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.current = "start"
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.current = name
        self._report(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start


def _line(error: BaseException) -> str:
    """The exception's type and the first line of its message, which names the operation."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}".rstrip(": ")


def _resident(field: str) -> int | None:
    """Bytes of `VmRSS` (now) or `VmHWM` (peak) of this process; None where /proc is not there."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/status") as status:
        for row in status:
            if row.startswith(field):
                return int(row.split()[1]) * 1024
    return None
