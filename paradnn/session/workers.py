"""Worker processes: which points can share one, what it is started with, and how a point is
measured in it.
"""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self

with contextlib.suppress(ModuleNotFoundError):  # as in `paradnn.platform.environment`
    import psutil

from paradnn.config.outcome import OUTCOMES, Ending, PointResult, classify, signal_name
from paradnn.config.paths import PACKAGE
from paradnn.config.point import Point
from paradnn.core import messages
from paradnn.core.channel import BrokenLine, MessageError, encode, read_event
from paradnn.core.messages import Answer, Event, WorkloadMessage
from paradnn.core.scratch import Scratch, remove_leftovers
from paradnn.core.versions import FRAMEWORKS
from paradnn.platform.environment import available_memory
from paradnn.platform.stack import interpreter_of

#: Variables that bound the threads of an operation, in one framework or another; NPROC is that of
#: XLA's CPU client.
_THREADS = (
    *("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
    *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"),
)


@dataclass(frozen=True)
class WorkerKey:
    """What is read when a framework is imported. side: which of two points that are measured at
    once it is for.
    """

    python: str
    framework: str
    threads: int | None
    platform: str
    env: tuple[tuple[str, str], ...]
    side: int = 0

    @classmethod
    def of(cls, point: Point, side: int = 0) -> Self:
        """The key of the worker that can measure `point`."""
        platform = point.platform
        framework = point.framework
        variables = tuple(sorted(framework.env.items()))
        python = interpreter_of(point.software)
        return cls(python, framework.name, platform.threads, platform.name, variables, side)

    def environ(self) -> dict[str, str]:
        """The worker's environment: the driver's own, with what the key says, without what opens
        the store.
        """
        own = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        return {"TF_CPP_MIN_LOG_LEVEL": "2", **own, **self.variables()}

    def variables(self) -> dict[str, str]:
        """What the key says, on any host."""
        # JAX would take most of a device's memory at once, and no peak could be measured.
        device = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if self.platform == "cpu":
            device = {
                "CUDA_VISIBLE_DEVICES": "-1",
                "JAX_PLATFORMS": "cpu",
                "KERAS_TORCH_DEVICE": "cpu",
            }
        if self.threads:
            threads = dict.fromkeys(_THREADS, str(self.threads))
        else:
            threads = {}
        return {
            "KERAS_BACKEND": self.framework,
            "PYTHONUNBUFFERED": "1",
            **device,
            **threads,
            **dict(self.env),
        }


_LOOK = 0.1  # seconds between two looks at the child's memory
_GRACE = 10.0  # seconds that a killed child or worker is given to be gone
_START_TIMEOUT = 300.0  # seconds in which the framework must be imported
#: Of what a child wrote: lines that are shown, and bytes of the end in which they are looked for.
_STDERR_LINES = 60
_STDERR_BYTES = 2**16
#: Bytes of a message, and of all that a worker says of one point: a trace that is kept and a
#: million queries are less.
_MOST_IN_LINE = 128 * 2**20
_MOST_IN_ALL = 256 * 2**20


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes that a point may take; None: no limit."""

    timeout: float
    memory_bytes: int | None


_PAUSE = 10  # what is shared is asked for again after so many times the seconds that it took


class PointProcesses:
    """The processes of one point, children of `worker`."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._known = 0
        self._next = 0.0

    def held(self, pid: int, limit: int | None) -> int:
        """Bytes of a child and the processes that it started; above `limit` what they share counts
        once. Each counts with as much of files as the worker holds: so much would a process of its
        own (`paradnn.worker.memory`).
        """
        each = self._each(pid)
        total = sum(each.values())
        if limit is None or total <= limit or len(each) < 2:
            return total
        begun = time.monotonic()
        if begun >= self._next:
            # The first counts with all that it holds, and the others with what they alone hold.
            self._known = sum(
                held if member == pid else _private(member, held) for member, held in each.items()
            )
            self._next = time.monotonic() + _PAUSE * (time.monotonic() - begun)
        return self._known

    def _each(self, pid: int) -> dict[int, int]:
        try:
            members = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        except OSError:  # gone, or a system without this file
            members = [pid]
        held = {}
        with contextlib.suppress(psutil.Error):
            loaded = getattr(psutil.Process(self._worker).memory_info(), "shared", 0)
            for member in members:
                with contextlib.suppress(psutil.Error):
                    memory = psutil.Process(member).memory_info()
                    held[member] = memory.rss + max(0, loaded - getattr(memory, "shared", loaded))
        return held


def _private(pid: int, resident: int) -> int:
    """Bytes that no other process has: 0 of one that is gone, all `resident` ones where the system
    does not tell.
    """
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0
    except (psutil.Error, AttributeError):
        return resident


@dataclass
class ProcessMonitor:
    """What the driver has seen of the child so far."""

    begin: float
    resident: PointProcesses
    has_eager: bool  # whether what it compiles could run without that
    pid: int | None = None
    phase: str = "start"
    entered: float = 0.0  # when the phase began
    started: float | None = None
    peak: int = 0
    stopped: str | None = None  # why the driver killed it: "timeout" or "memory"
    killed_at: float = 0.0
    answer: Answer | None = None
    measured: Answer | None = None  # the answer as it was when the profile began
    news: list[WorkloadMessage] = field(default_factory=list)
    fault: str | None = None  # a message that is not what the protocol says


class Worker:
    """One `python -m paradnn.worker` and the pipe to it."""

    def __init__(self, key: WorkerKey) -> None:
        self._folder = Scratch()
        self._log = self._folder.path / "worker.log"
        self._points = 0
        self._ready = False
        self._broken: str | None = None  # the latest line that is no JSON
        self._python = key.python
        self._is_engine = FRAMEWORKS[key.framework].is_engine
        self.alive = True
        self.reached_point = (
            True  # whether the latest point had a child, or the import itself failed
        )
        environ = key.environ()
        # A folder that holds this package alone: beside it, in site-packages, are frameworks that
        # are not under test.
        (self._folder.path / PACKAGE.name).symlink_to(PACKAGE)
        path = [str(self._folder.path), environ.get("PYTHONPATH")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        command = [
            key.python,
            "-m",
            "paradnn.worker",
            "--framework",
            key.framework,
            "--driver",
            str(os.getpid()),
        ]
        # A session of its own: Ctrl-C in the terminal reaches the driver alone, which then kills
        # the worker.
        own: dict[str, Any] = {"env": environ, "cwd": self._folder.path, "start_new_session": True}
        with self._log.open("wb") as log:
            try:
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=log, **own
                )
            except OSError:
                self._folder.remove()
                raise
        self.pid = self._process.pid
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout.fileno()
        os.set_blocking(self._from, False)
        self._buffer = bytearray()
        self._received = 0  # bytes that it has said of the latest point

    def measure(
        self,
        point: Mapping[str, Any],
        limits: Limits,
        on_news: Callable[[str | WorkloadMessage], None],
    ) -> PointResult:
        """Measure one point; `alive` says whether another can follow. `on_news` takes phases, and
        parts.
        """
        has_eager = not self._is_engine and point.get("compile", "eager") != "eager"
        watch = ProcessMonitor(time.perf_counter(), PointProcesses(self.pid), has_eager)
        try:
            problem = self._wait_ready()
        except MessageError as error:
            problem = "unavailable", f"the worker in {self._python} cannot be understood: {error}"
            self._kill_worker()
        if problem:
            phases = {"start": time.perf_counter() - watch.begin}
            return PointResult(*problem, phases=phases, stderr=self._tail(self._log))
        self._points += 1
        self._received = 0
        self.reached_point = False
        self._broken = None
        stderr = self._folder.path / f"point-{self._points}.log"
        request = messages.Request(
            messages.PROTOCOL_VERSION, self._points, dict(point), str(stderr)
        )
        with contextlib.suppress(
            BrokenPipeError
        ):  # seen at once in `_follow`, as the end of the pipe
            self._to.write(encode(request))
            self._to.flush()
        try:
            ending = self._follow(watch, limits, time.perf_counter(), on_news)
        except MessageError as error:
            # Nothing else that such a worker says can be relied upon.
            watch.fault = str(error)
            self.reached_point = True
            ending = Ending(None, None, "worker", watch.phase)
            self._kill_worker()
        return self._result(watch, ending, limits, stderr)

    def close(self) -> None:
        """Kill worker and child; remove their files."""
        self._kill_worker()
        with contextlib.suppress(OSError), self._process:  # waits, and closes the pipes
            pass
        self._folder.remove()

    def _wait_ready(self) -> tuple[str, str] | None:
        """Wait for the framework's import; outcome and reason when it failed. Raises MessageError."""
        deadline = time.perf_counter() + _START_TIMEOUT
        while not self._ready:
            for event in self._events(deadline - time.perf_counter()):
                if isinstance(event, messages.Refused):
                    self.alive = False
                    return "unavailable", f"the framework cannot be imported: {event.reason}"
                self._ready = isinstance(event, messages.Ready)
            if not self.alive:
                last = (self._tail(self._log).strip().splitlines() or ["no message"])[-1]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = self._process.wait(_GRACE)
                    if code < 0:  # says nothing of the software: another is started
                        self.reached_point = False
                        return (
                            "crash",
                            f"the worker was ended by {signal_name(-code)} while importing: {last}",
                        )
                return "unavailable", f"the worker exited while importing: {last}"
            if not self._ready and time.perf_counter() >= deadline:
                self.alive = False
                return "crash", f"the framework's import took over {_START_TIMEOUT:.0f} s"
        return None

    def _follow(
        self,
        watch: ProcessMonitor,
        limits: Limits,
        sent: float,
        on_news: Callable[[str | WorkloadMessage], None],
    ) -> Ending:
        """Read events until the child is gone, ending it at its limits. Raises MessageError."""
        while True:
            for event in self._events(_LOOK):
                if isinstance(event, messages.Refused):
                    raise MessageError(f"it refuses the request: {event.reason}")
                if (
                    isinstance(event, messages.Started | messages.PointAnswered | messages.Exited)
                    and event.id != self._points
                ):
                    raise MessageError(
                        f"{type(event).__name__.lower()}.id={event.id}: the request is {self._points}"
                    )
                if isinstance(event, messages.Started):
                    watch.pid = event.pid
                    watch.started = time.perf_counter()
                    self.reached_point = True
                elif isinstance(event, messages.PhaseBegun):
                    watch.phase = event.phase
                    watch.entered = time.perf_counter()
                    watch.measured = event.answer or watch.measured
                    on_news(watch.phase)
                elif isinstance(event, messages.News):
                    watch.news.append(event.part)
                    on_news(event.part)
                elif isinstance(event, messages.PointAnswered):
                    if event.answer.outcome not in OUTCOMES:
                        raise MessageError(
                            f"result.answer.outcome={event.answer.outcome!r} is no outcome"
                        )
                    watch.answer = event.answer
                elif isinstance(event, messages.Exited):
                    watch.peak = max(watch.peak, event.max_resident_bytes)
                    if watch.answer is None and event.exit_code == 0 and self._broken:
                        watch.fault = self._broken
                    return Ending(
                        event.exit_code, event.signal, watch.stopped, watch.phase, watch.has_eager
                    )
            if not self.alive:
                return Ending(None, None, watch.stopped or "worker", watch.phase, watch.has_eager)
            self._enforce(watch, limits, sent)

    def _enforce(self, watch: ProcessMonitor, limits: Limits, sent: float) -> None:
        """Kill the child when it is over a limit; the worker, when that did not help."""
        now = time.perf_counter()
        if watch.stopped:
            if now - watch.killed_at > _GRACE:
                self._kill_worker()
            return
        if watch.pid is not None and limits.memory_bytes is not None:
            watch.peak = max(watch.peak, watch.resident.held(watch.pid, limits.memory_bytes))
        if limits.memory_bytes is not None and watch.peak > limits.memory_bytes:
            watch.stopped = "memory"
        elif now - sent > limits.timeout:
            watch.stopped = "timeout"
        else:
            return
        watch.killed_at = now
        if watch.pid is None:
            self._kill_worker()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watch.pid, signal.SIGKILL)

    def _kill_worker(self) -> None:
        self.alive = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _result(
        self, watch: ProcessMonitor, ending: Ending, limits: Limits, stderr: Path
    ) -> PointResult:
        now = time.perf_counter()
        tail = self._tail(stderr)
        stderr.unlink(missing_ok=True)
        for folder in self._folder.path.glob(
            "trace-*"
        ):  # of a child that did not live to remove it
            shutil.rmtree(folder, ignore_errors=True)
        answer = None if watch.fault else watch.answer
        outcome, reason = classify(
            ending,
            answer,
            tail,
            timeout=limits.timeout,
            memory_limit=limits.memory_bytes,
            peak=watch.peak,
        )
        shown = tail if outcome != "ok" else ""
        if limits.memory_bytes is None:
            most = math.inf
        else:
            most = limits.memory_bytes
        phases = {"start": (watch.started or now) - watch.begin}
        if watch.fault:
            outcome = "crash"
            reason = f"a message of the worker cannot be understood: {watch.fault}"
        elif not answer and watch.measured and (watch.measured.peak_memory_bytes or 0) <= most:
            # Only the profile was lost, which comes after all that is timed.
            lost = messages.NoProfile(
                f"{outcome}: {reason}", limited=ending.stopped in ("timeout", "memory")
            )
            answer = replace(watch.measured, profile=lost)
            outcome = "ok"
            reason = None
            phases["profile"] = now - watch.entered
        known = answer or watch.measured
        if known:
            phases = {**known.phases, **phases}
        news = [] if watch.fault else watch.news
        return PointResult(outcome, reason, answer, phases, shown, watch.peak or None, news=news)

    def _events(self, timeout: float) -> list[Event]:
        """Events that came within `timeout` seconds; at the pipe's end the worker is gone. Raises
        MessageError.
        """
        if not wait([self._from], max(timeout, 0.0)):
            return []
        data = os.read(self._from, 1 << 20)
        self.alive = self.alive and bool(data)
        self._received += len(data)
        self._buffer += data
        for held, most in ((self._received, _MOST_IN_ALL), (len(self._buffer), _MOST_IN_LINE)):
            if held > most:
                raise MessageError(f"it says over {most // 2**20} MiB")
        if b"\n" not in data:
            return []
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        events = []
        for line in map(bytes, filter(None, lines)):
            try:
                events.append(read_event(line))
            except BrokenLine as error:  # a child may have been killed in the middle of writing it
                self._broken = str(error)
        return events

    @staticmethod
    def _tail(path: Path) -> str:
        with contextlib.suppress(OSError), path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _STDERR_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_STDERR_LINES:])
        return ""


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """Live workers by key, so that interleaved software stacks do not pay the import again. `limit`
    bounds how many are kept, `share` the part of memory that they may hold together; the least
    recently used goes first.
    """

    def __init__(self, limit: int = 16, share: float = 0.25) -> None:
        remove_leftovers()
        self._limit = limit
        self._share = share
        self._workers: OrderedDict[WorkerKey, Worker] = OrderedDict()
        self._busy: set[WorkerKey] = set()
        self._closed = False
        self._lock = threading.RLock()  # two points that take turns are measured at once

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, key: WorkerKey) -> None:
        """Start the worker of `key` without waiting: its import runs while the driver does
        something else.
        """
        self._get(key)

    def measure(
        self,
        key: WorkerKey,
        point: Mapping[str, Any],
        limits: Limits,
        on_news: Callable[[str | WorkloadMessage], None],
    ) -> PointResult:
        """Measure one point; whatever happens to child or worker, a result with an outcome comes
        back.
        """
        try:
            worker = self._get(key)
        except OSError as error:  # the interpreter went away
            return PointResult("unavailable", f"{key.python} does not start: {error.strerror}")
        self._busy.add(key)
        try:
            result = worker.measure(point, limits, on_news)
        except BaseException:
            self._drop(key)
            raise
        finally:
            self._busy.discard(key)
        if worker.alive:
            return result
        self._drop(key)
        # A worker that was killed while it slept says nothing of this point: a new one measures it.
        if worker.reached_point:
            return result
        return self._get(key).measure(point, limits, on_news)

    def close(self) -> None:
        """Kill every worker and its child; none is started any more."""
        with self._lock:
            self._closed = True
            for key in list(self._workers):
                self._drop(key)

    def _get(self, key: WorkerKey) -> Worker:
        with self._lock:
            if self._closed:
                raise OSError(0, "the session has ended")
            if key not in self._workers:
                idle = [other for other in self._workers if other not in self._busy]
                while idle and (len(self._workers) >= self._limit or self._too_heavy()):
                    self._drop(idle.pop(0))
                self._workers[key] = Worker(key)
            self._workers.move_to_end(key)
            return self._workers[key]

    def _too_heavy(self) -> bool:
        """Whether another worker like these would leave points too little memory."""
        held = [
            PointProcesses(worker.pid).held(worker.pid, None) for worker in self._workers.values()
        ]
        return sum(held) + max(held) > self._share * (available_memory() + sum(held))

    def _drop(self, key: WorkerKey) -> None:
        with self._lock:
            worker = self._workers.pop(key, None)
        if worker:
            worker.close()
