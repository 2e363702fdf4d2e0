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
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import keras

from paradnn.worker.data import synthetic_batch
from paradnn.worker.device_layout import Spread, spread_of
from paradnn.worker.energy import EnergyMeter, open_meter
from paradnn.worker.fork_server import Report
from paradnn.worker.frameworks import Framework, Step, Unavailable, over
from paradnn.worker.input.opening import open_feed, reads_files
from paradnn.worker.measure import NotFinite, Protocol, measure_steps
from paradnn.worker.models import Workload, build
from paradnn.worker.peak_rates import measure_ceilings
from paradnn.worker.process_group import PeerFailed, Peers, Together, obey
from paradnn.worker.profile.run import profile_steps

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
    peers: Peers | None = None
    try:
        with phases("build"):
            spread = spread_of(request)
            if spread is not None:
                framework = over(framework, spread)
                if spread.processes > 1:
                    peers = _start_peers(request, framework, spread)
                    found["baseline_memory_bytes"] = _times(found["baseline_memory_bytes"], spread.processes)
            found.update(framework.open_device(request["platform"]))
        if request.get("task") == "ceilings":
            found.update(measure_ceilings(request, framework, phases))
        else:
            _measure(request, framework, phases, found, spread, peers)
    except Exception as error:
        outcome, reason = _ending(error, framework, phases.current)
        # One process that fails takes the others with it: the first to run out of memory says why.
        theirs = peers.failure() if peers and not outcome.startswith("oom") else None
        found.update(outcome=theirs.outcome if theirs else outcome, reason=theirs.reason if theirs else reason)
    found.setdefault("peak_memory_bytes", _resident("VmHWM"))
    if peers:
        peers.end()
    return found


def _ending(error: Exception, framework: Framework, phase: str) -> tuple[str, str]:
    """Outcome and one-line reason of what was raised in `phase`."""
    if isinstance(error, PeerFailed):
        return error.outcome, error.reason
    if isinstance(error, Unavailable):
        return "unavailable", str(error)
    if isinstance(error, NotFinite):
        return "nan", str(error)
    reason = f"{phase}: {_line(error)}"
    if isinstance(error, MemoryError):
        return "oom_host", reason
    traceback.print_exc()
    return framework.classify(error, phase) or "crash", reason


def _start_peers(request: Mapping[str, Any], framework: Framework, spread: Spread) -> Peers:
    """The other processes of a point: each builds the same step over its own devices, and does as it is told."""

    def serve(rank: int, channel: Connection) -> None:
        phases, own = _Phases(lambda *_: None), over(framework, spread.of_rank(rank))
        try:
            with phases("build"):
                own.open_device(request["platform"])
                _, step = _prepare(request, own)
            phases.current = "run"
            obey(channel, step, lambda: _resident("VmHWM"))
        except Exception as error:
            outcome, reason = _ending(error, own, phases.current)
            raise PeerFailed(outcome, f"process {rank + 1} of {spread.processes}: {reason}") from error

    return Peers(spread.processes, serve)


def _prepare(point: Mapping[str, Any], framework: Framework) -> tuple[Workload, Step]:
    """The model from the point's seed, and the step with its batch in place."""
    keras.utils.set_random_seed(point["seed"])
    keras.config.set_dtype_policy(POLICIES[point["precision"]])
    with framework.scope():
        workload = build(point["model"])
    return workload, framework.make_step(workload, synthetic_batch(workload, point["batch_size"], point["seed"]), point)


def _measure(
    point: Mapping[str, Any],
    framework: Framework,
    phases: _Phases,
    found: dict[str, Any],
    spread: Spread | None,
    peers: Peers | None,
) -> None:
    settings = point["measure"]
    with phases("build"):
        found["compile_note"] = framework.compile_note(point["compile"])
        workload, step = _prepare(point, framework)
        found["parameters"] = sum(math.prod(v.shape) for v in workload.model.trainable_variables)
        if peers:
            step = Together(step, peers)
    with phases("input") if reads_files(point) else contextlib.nullcontext():
        fed = open_feed(point, workload, framework, step)
    with phases("compile"):
        found["first_loss"] = step.run(1)
    run = fed.run if fed else step.run
    platform = point["platform"]
    meter = open_meter(platform["name"], int(platform["index"]))
    if spread is not None and platform["name"] != "cpu":
        meter = EnergyMeter("unavailable: the counter is that of one board, the point has several")
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
    found["peak_memory_bytes"] = _summed([_resident("VmHWM"), *(peers.peak_bytes() if peers else [])])
    found["peak_device_memory_bytes"] = framework.peak_device_memory()
    if settings["profile"] or settings["keep_trace"]:
        with phases("profile", found):
            times = [seconds / measured["steps_per_block"] for seconds in measured["blocks"]]
            left = settings["timeout"] - sum(phases.seconds.values())
            found["profile"] = profile_steps(framework, step, statistics.median(times), settings["keep_trace"], left)
            if spread is not None:
                found["profile"]["devices"] = spread.local_devices


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


def _times(count: int | None, times: int) -> int | None:
    return None if count is None else times * count


def _summed(counts: Sequence[int | None]) -> int | None:
    """None where any of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _resident(field: str) -> int | None:
    """Bytes of `VmRSS` (now) or `VmHWM` (peak) of this process; None where /proc is not there."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/status") as status:
        for row in status:
            if row.startswith(field):
                return int(row.split()[1]) * 1024
    return None
