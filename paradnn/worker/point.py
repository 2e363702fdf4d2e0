"""One request, in a forked child: a point is built, compiled, warmed up, measured and profiled; ceilings are measured.

Every way this can end within Python is an outcome with a one-line reason; what ends the process itself is classified
by the driver, which watches from outside.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from paradnn.worker.breakdown import profile_steps
from paradnn.worker.ceilings import measure_ceilings
from paradnn.worker.data import synthetic_batch
from paradnn.worker.energy import open_meter
from paradnn.worker.forking import Report
from paradnn.worker.frameworks import Framework, Unavailable
from paradnn.worker.input import open_feed
from paradnn.worker.measure import NotFinite, Protocol, measure_steps
from paradnn.worker.models import build

__all__ = ["answer"]

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


#: Synchronised steps for the latency quantiles: at least so many (p99 needs a hundred), at most so long.
_LATENCY_STEPS = 200
_LATENCY_SECONDS = 10.0


def answer(request: Mapping[str, Any], framework: Framework, report: Report) -> dict[str, Any]:
    """Do what `request` asks for; `report` is called with the name of each phase as it begins.

    The phase `profile` is reported with the answer so far: no limit that it exceeds costs what was measured before.
    Returns outcome, reason, phases (name -> seconds), and what was measured before the request ended.
    """
    phases = _Phases(report)
    found: dict[str, Any] = {"outcome": "ok", "reason": None, "phases": phases.seconds}
    found["baseline_memory_bytes"] = _resident("VmRSS")
    try:
        with phases("build"):
            found.update(framework.open_device(request["platform"]))
        if request.get("task") == "ceilings":
            found.update(measure_ceilings(request, framework, phases))
        else:
            _measure(request, framework, phases, found)
    except Unavailable as error:
        found.update(outcome="unavailable", reason=str(error))
    except NotFinite as error:
        found.update(outcome="nan", reason=str(error))
    except MemoryError as error:
        found.update(outcome="oom_host", reason=f"{phases.current}: {_line(error)}")
    except Exception as error:
        traceback.print_exc()
        outcome = framework.classify(error, phases.current) or "crash"
        found.update(outcome=outcome, reason=f"{phases.current}: {_line(error)}")
    found.setdefault("peak_memory_bytes", _resident("VmHWM"))
    return found


def _measure(point: Mapping[str, Any], framework: Framework, phases: _Phases, found: dict[str, Any]) -> None:
    settings = point["measure"]
    with phases("build"):
        keras.utils.set_random_seed(point["seed"])
        keras.config.set_dtype_policy(POLICIES[point["precision"]])
        workload = build(point["model"])
        found["compile_note"] = framework.compile_note(point["compile"])
        found["parameters"] = sum(math.prod(v.shape) for v in workload.model.trainable_variables)
        batch = synthetic_batch(workload, point["batch_size"], point["seed"])
        step = framework.make_step(workload, batch, point)
        del batch
    with phases("input") if point["data"]["name"] != "synthetic" else contextlib.nullcontext():
        fed = open_feed(point, workload, framework, step)
    with phases("compile"):
        found["first_loss"] = step.run(1)
    run = fed.run if fed else step.run
    meter = open_meter(point["platform"]["name"], int(point["platform"]["index"]))
    measured = measure_steps(run, Protocol.of(settings), phases, before=meter.start)
    found.update(measured)
    found.update(energy_joules=meter.joules(), energy_source=meter.source)
    if point["mode"] == "inference":
        with phases("latency"):
            found["latencies"] = _latencies(run)
    if fed:
        with phases("balance"):
            found["input"] = fed.measure(measured)
    # Before the profiler, whose buffers are none of the model's memory.
    found["peak_memory_bytes"] = _resident("VmHWM")
    found["peak_device_memory_bytes"] = framework.peak_device_memory()
    if settings["profile"] or settings["keep_trace"]:
        with phases("profile", found):
            times = [seconds / measured["steps_per_block"] for seconds in measured["blocks"]]
            left = settings["timeout"] - sum(phases.seconds.values())
            found["profile"] = profile_steps(framework, step, statistics.median(times), settings["keep_trace"], left)


def _latencies(run: Callable[[int], float | None]) -> list[float]:
    """Seconds of single synchronised steps."""
    found: list[float] = []
    begin = now = time.perf_counter()
    while len(found) < _LATENCY_STEPS and now - begin < _LATENCY_SECONDS:
        run(1)
        end = time.perf_counter()
        found.append(end - now)
        now = end
    return found


class _Phases:
    """Says which phase the point is in, and how long each took."""

    def __init__(self, report: Report) -> None:
        self.current = "start"
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextlib.contextmanager
    def __call__(self, name: str, measured: Mapping[str, Any] | None = None) -> Iterator[None]:
        if name != self.current:
            self.current = name
            if measured is None:
                self._report(name)
            else:
                self._report(name, measured)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


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
