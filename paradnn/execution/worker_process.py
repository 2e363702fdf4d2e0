"""Driver side of the pipe: starts workers, hands them points, watches time and memory, classifies how a point ended.

The driver sleeps in `select` until the worker speaks; ten times a second it wakes to read the child's memory, which
costs some twenty microseconds and so no core of the measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from paradnn.config.outcome import Ending, classify
from paradnn.config.paths import PACKAGE
from paradnn.config.point import Point
from paradnn.execution.scratch import Scratch
from paradnn.software.stack import interpreter_of

__all__ = ["Answer", "Limits", "Worker", "WorkerKey"]

#: Seconds between two looks at the child's memory.
_LOOK = 0.1
#: Seconds that a killed child or worker is given to be gone.
_GRACE = 10.0
#: Seconds in which the framework must be imported.
_START_TIMEOUT = 300.0
_STDERR_LINES = 60
#: Variables that bound the threads of an operation, in one framework or another; NPROC is that of XLA's CPU client.
_THREADS = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NPROC",
)


@dataclass(frozen=True)
class WorkerKey:
    """What is read when a framework is imported: points that differ in it need different workers."""

    python: str
    framework: str
    threads: int | None
    platform: str
    env: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, point: Point) -> WorkerKey:
        """The key of the worker that can measure `point`."""
        return cls(
            python=interpreter_of(point.software),
            framework=point.framework.name,
            threads=point.platform.threads,
            platform=point.platform.name,
            env=tuple(sorted(point.framework.env.items())),
        )

    def environ(self) -> dict[str, str]:
        """The worker's environment: the driver's own, with what the key says, without what opens the store."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        environ = dict(own, KERAS_BACKEND=self.framework, PYTHONUNBUFFERED="1")
        environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if self.platform == "cpu":
            environ["CUDA_VISIBLE_DEVICES"] = "-1"
            environ |= {"JAX_PLATFORMS": "cpu", "KERAS_TORCH_DEVICE": "cpu"}
        else:
            # Without it JAX takes most of a device's memory at once, and no peak can be told.
            environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if self.threads:
            environ |= dict.fromkeys(_THREADS, str(self.threads))
        environ.update(self.env)
        return environ


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes that a point may take; None: no limit."""

    timeout: float
    memory_bytes: int | None


@dataclass(frozen=True)
class Answer:
    """What came back for a point: the outcome, the child's result, and what was seen from outside."""

    outcome: str
    reason: str | None
    result: Mapping[str, Any]
    phases: Mapping[str, float]
    stderr: str = ""
    peak_memory_bytes: int | None = None


@dataclass
class _Watch:
    """What the driver has seen of the child so far."""

    begin: float
    pid: int | None = None
    phase: str = "start"
    entered: float = 0.0  # when the phase began
    started: float | None = None
    peak: int = 0
    stopped: str | None = None  # why the driver killed it: "timeout" or "memory"
    killed_at: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)  # the answer as it stood when the profile began


class Worker:
    """One `python -m paradnn.worker` and the pipe to it."""

    def __init__(self, key: WorkerKey) -> None:
        self._folder = Scratch()
        self._log = self._folder.path / "worker.log"
        self._points = 0
        self._ready = False
        self.alive = True
        self.reached_point = True  # whether the latest point had a child, or the import itself failed
        environ = key.environ()
        # A folder that holds this package alone: beside it, in site-packages, are frameworks that are not under test.
        (self._folder.path / PACKAGE.name).symlink_to(PACKAGE)
        path = [str(self._folder.path), environ.get("PYTHONPATH")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        command = [key.python, "-m", "paradnn.worker", "--framework", key.framework, "--driver", str(os.getpid())]
        with self._log.open("wb") as log:
            try:
                # A session of its own: Ctrl-C in the terminal reaches the driver alone, which then ends the worker.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environ,
                    start_new_session=True,
                    cwd=self._folder.path,
                )
            except OSError:
                self._folder.remove()
                raise
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._buffer = b""

    def measure(self, point: Mapping[str, Any], limits: Limits, on_phase: Callable[[str], None]) -> Answer:
        """Measure one point; `alive` says whether another can follow."""
        watch = _Watch(begin=time.perf_counter())
        problem = self._wait_ready()
        if problem:
            return Answer(
                "unavailable", problem, {}, {"start": time.perf_counter() - watch.begin}, self._tail(self._log)
            )
        self._points += 1
        self.reached_point = False
        stderr = self._folder.path / f"point-{self._points}.log"
        self._send({"id": self._points, "point": point, "stderr": str(stderr)})
        ending = self._follow(watch, limits, time.perf_counter(), on_phase)
        return self._answer(watch, ending, limits, stderr)

    def resident_bytes(self) -> int:
        """What the sleeping worker holds."""
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def close(self) -> None:
        """Kill worker and child; remove their files."""
        self.alive = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._folder.remove()

    def _wait_ready(self) -> str | None:
        """Wait for the framework's import; the reason when it failed."""
        deadline = time.perf_counter() + _START_TIMEOUT
        while not self._ready:
            for event in self._events(deadline - time.perf_counter()):
                if event["event"] == "ready":
                    self._ready = True
                elif event["event"] == "failed":
                    self.alive = False
                    return f"the framework cannot be imported: {event['reason']}"
            if not self.alive:
                return f"the worker ended while importing: {self._last_line(self._log)}"
            if not self._ready and time.perf_counter() >= deadline:
                self.alive = False
                return f"the framework's import took over {_START_TIMEOUT:.0f} s"
        return None

    def _follow(self, watch: _Watch, limits: Limits, sent: float, on_phase: Callable[[str], None]) -> Ending:
        """Read events until the child is gone, ending it at its limits."""
        while True:
            for event in self._events(_LOOK):
                name = event["event"]
                if name == "started":
                    watch.pid, watch.started = event["pid"], time.perf_counter()
                    self.reached_point = True
                elif name == "phase":
                    watch.phase, watch.entered = event["phase"], time.perf_counter()
                    watch.measured = event.get("measured", watch.measured)
                    on_phase(watch.phase)
                elif name == "result":
                    watch.result = event
                elif name == "exited":
                    watch.peak = max(watch.peak, event["max_resident_bytes"])
                    return Ending(event["exit_code"], event["signal"], watch.stopped, watch.phase)
            if not self.alive:
                return Ending(None, None, watch.stopped or "worker", watch.phase)
            self._enforce(watch, limits, sent)

    def _enforce(self, watch: _Watch, limits: Limits, sent: float) -> None:
        """Kill the child when it is over a limit; the worker, when that did not help."""
        now = time.perf_counter()
        if watch.stopped:
            if now - watch.killed_at > _GRACE:
                self._kill_worker()
            return
        if watch.pid is not None:
            watch.peak = max(watch.peak, _held(watch.pid))
        if limits.memory_bytes is not None and watch.peak > limits.memory_bytes:
            watch.stopped = "memory"
        elif now - sent > limits.timeout:
            watch.stopped = "timeout"
        if watch.stopped:
            watch.killed_at = now
            if watch.pid is None:
                self._kill_worker()
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watch.pid, signal.SIGKILL)

    def _kill_worker(self) -> None:
        self.alive = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _answer(self, watch: _Watch, ending: Ending, limits: Limits, stderr: Path) -> Answer:
        now = time.perf_counter()
        result = {key: value for key, value in watch.result.items() if key not in ("event", "id")}
        phases = dict((result or watch.measured).get("phases", {}))
        phases["start"] = (watch.started or now) - watch.begin
        tail = self._tail(stderr)
        outcome, reason = classify(ending, result, tail, limits.timeout, limits.memory_bytes, watch.peak)
        stderr.unlink(missing_ok=True)
        for folder in self._folder.path.glob("trace-*"):  # of a child that did not live to remove it
            shutil.rmtree(folder, ignore_errors=True)
        words = tail if outcome != "ok" else ""
        if not result and watch.measured and not _too_large(watch.measured, limits):
            # Only the profile was lost, which comes after all that is timed.
            profile = {"unavailable": f"{outcome}: {reason}", "limited": ending.stopped in ("timeout", "memory")}
            result, outcome, reason = {**watch.measured, "profile": profile}, "ok", None
            phases["profile"] = now - watch.entered
        result.pop("phases", None)
        return Answer(outcome, reason, result, phases, words, watch.peak or None)

    def _events(self, timeout: float) -> list[dict[str, Any]]:
        """Whole lines that came within `timeout` seconds; at the pipe's end the worker counts as gone."""
        assert self._process.stdout
        if not self._selector.select(max(timeout, 0.0)):
            return []
        data = os.read(self._process.stdout.fileno(), 1 << 20)
        if not data:
            self.alive = False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        events = []
        for line in filter(None, lines):
            with contextlib.suppress(ValueError):  # what a child was killed in the middle of writing
                events.append(json.loads(line))
        return events

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # seen at once in `_follow`, as the end of the pipe
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    @staticmethod
    def _tail(path: Path) -> str:
        try:
            return "\n".join(path.read_text(errors="replace").splitlines()[-_STDERR_LINES:])
        except OSError:
            return ""

    def _last_line(self, path: Path) -> str:
        return (self._tail(path).strip().splitlines() or ["no message"])[-1]


def _too_large(measured: Mapping[str, Any], limits: Limits) -> bool:
    """Whether the point was over the memory limit before its profile began, between two looks."""
    return limits.memory_bytes is not None and (measured.get("peak_memory_bytes") or 0) > limits.memory_bytes


def _held(pid: int) -> int:
    """Resident bytes of a child and of the processes that it started itself; what they share counts for each."""
    try:
        members = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:  # gone, or a system without this file
        members = [pid]
    held = 0
    for member in members:
        with contextlib.suppress(psutil.Error):
            held += psutil.Process(member).memory_info().rss
    return held
