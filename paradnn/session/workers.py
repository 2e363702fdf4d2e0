"""Worker processes: worker keys, process start, and the measurement of points in workers.

A worker imports one framework and forks a child process per point. A point is one configuration to
measure. Points with equal worker keys share a worker.
"""

import contextlib
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
from typing import Any, Self, TypeGuard

# psutil may be absent on a machine with only an engine (`paradnn.session.run_elsewhere`).
with contextlib.suppress(ModuleNotFoundError):
    import psutil

from paradnn.config.outcome import OUTCOMES, Ending, PointResult, classify, signal_name
from paradnn.config.paths import PACKAGE
from paradnn.config.point import Point
from paradnn.core import messages
from paradnn.core.channel import BrokenLine, MessageError, encode, read_event
from paradnn.core.control_groups import oom_kill_count
from paradnn.core.messages import Answer, Event, WorkloadMessage
from paradnn.core.scratch import Scratch, remove_leftovers
from paradnn.core.versions import FRAMEWORKS
from paradnn.platform.environment import available_memory, separate_hosts
from paradnn.platform.stack import interpreter_of

#: Environment variables by which the frameworks limit the threads of an operation. NPROC limits
#: those of XLA's CPU client.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NPROC",
)


@dataclass(frozen=True)
class WorkerKey:
    """Settings that take effect at a framework's import; points with equal keys share a worker.

    Attributes:
        python: Path of the interpreter under test.
        framework: Name of the framework.
        threads: Maximum number of threads of an operation; None leaves the framework's default.
        platform: Name of the platform, such as "cpu".
        env: Additional environment variables, as sorted pairs of name and value.
        side: Index of the point, 0 or 1, in a pair measured in alternating blocks; otherwise 0.
        emulates_hosts: Whether processes of this host emulate the hosts of a point. It is part of
            the key because it changes the environment, and each worker has one environment.
    """

    python: str
    framework: str
    threads: int | None
    platform: str
    env: tuple[tuple[str, str], ...]
    side: int = 0
    emulates_hosts: bool = False

    @classmethod
    def of(cls, point: Point, side: int = 0) -> Self:
        """Return the key of the worker that can measure a point.

        Args:
            point: The configuration to measure.
            side: Index of the point, 0 or 1, in a pair measured in alternating blocks; otherwise 0.
        """
        platform = point.platform
        framework = point.framework
        variables = tuple(sorted(framework.env.items()))
        python = interpreter_of(point.software)
        return cls(
            python=python,
            framework=framework.name,
            threads=platform.threads,
            platform=platform.name,
            env=variables,
            side=side,
            emulates_hosts=separate_hosts(point) < point.hosts,
        )

    def environ(self) -> dict[str, str]:
        """Return the environment variables of the worker.

        They are the environment variables of this process, overridden by those of `variables()`.
        Variables that begin with `MLFLOW_` are omitted, because they give access to the store.
        """
        own = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        return {"TF_CPP_MIN_LOG_LEVEL": "2", **own, **self.variables()}

    def variables(self) -> dict[str, str]:
        """Return the environment variables that follow from this key, for every host of a point."""
        # By default JAX reserves most of a device's memory, which would hide the peak of a point.
        device = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if self.platform == "cpu":
            device = {
                "CUDA_VISIBLE_DEVICES": "-1",
                "JAX_PLATFORMS": "cpu",
                "KERAS_TORCH_DEVICE": "cpu",
            }
        if self.threads:
            threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        else:
            threads = {}
        return {
            "KERAS_BACKEND": self.framework,
            "PYTHONUNBUFFERED": "1",
            **device,
            **threads,
            **dict(self.env),
        }


_CHECK_SECONDS = 0.1  # seconds between two checks of the child's memory
_GRACE_SECONDS = 10.0  # time limit for the exit of a killed child or worker
_START_TIMEOUT = 300.0  # time limit of the framework's import, in seconds
#: Signals with which schedulers end a job, and seconds until every process of the job has received
#: the signal.
_SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
_SIGNAL_SECONDS = 0.5
#: Maximum number of lines and bytes that are reported from the end of a child's standard error.
_STDERR_LINES = 60
_STDERR_BYTES = 2**16
#: Limits in bytes of one message, and of all messages about one point. The trace of a profile and
#: the records of a million queries are below both.
_MAX_LINE_BYTES = 128 * 2**20
_MAX_TOTAL_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Limits:
    """Time and memory limits for the measurement of one point (configuration).

    Attributes:
        timeout: Time limit in seconds.
        memory_bytes: Limit of the resident host memory in bytes; None means no limit.
    """

    timeout: float
    memory_bytes: int | None


#: Pause between two reads of the private memory, as a multiple of the duration of a read.
_PAUSE_FACTOR = 10


class PointProcesses:
    """Memory of the processes of one point: a child of a worker, and processes that it started.

    Args:
        worker: Process id of the worker.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._corrected_bytes = 0
        self._next_read = 0.0  # monotonic seconds

    def resident_bytes(self, pid: int, limit: int | None) -> int:
        """Return the resident memory in bytes of a child process and the processes it started.

        The file-backed pages that the worker has loaded count for each process, even if the process
        has not touched them. The process would need these pages if it ran without the worker
        (`paradnn.worker.memory`). If the total exceeds the limit, pages that several processes
        share count only once. This corrected total is slow to compute. It is reused for ten times
        the duration of its computation (`_PAUSE_FACTOR`).

        Args:
            pid: Process id of the child.
            limit: Memory limit in bytes. If the total does not exceed it, shared pages are not
                corrected for; None never corrects for them.
        """
        resident = self._resident_by_process(pid)
        total = sum(resident.values())
        if limit is None or total <= limit or len(resident) < 2:
            return total
        begin = time.monotonic()
        if begin >= self._next_read:
            # The child counts with its resident memory, the other processes with private memory.
            self._corrected_bytes = sum(
                size if process == pid else _private_bytes(process, size)
                for process, size in resident.items()
            )
            self._next_read = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - begin)
        return self._corrected_bytes

    def _resident_by_process(self, pid: int) -> dict[int, int]:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            processes = [pid, *map(int, children)]
        except OSError:  # the process has exited, or the system lacks this file
            processes = [pid]
        resident = {}
        with contextlib.suppress(psutil.Error):
            loaded = getattr(psutil.Process(self._worker).memory_info(), "shared", 0)
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    memory = psutil.Process(process).memory_info()
                    missing = max(0, loaded - getattr(memory, "shared", loaded))
                    resident[process] = memory.rss + missing
        return resident


def _private_bytes(pid: int, resident: int) -> int:
    """Return the bytes of memory that a process shares with no other process.

    Args:
        pid: Process id.
        resident: Resident bytes of the process.

    Returns:
        The bytes; 0 if the process has exited, and `resident` if the system does not report them.
    """
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0
    except (psutil.Error, AttributeError):
        return resident


@dataclass
class ProcessMonitor:
    """Driver's observations of the child process that measures a point.

    All times are in seconds, on the clock of `time.perf_counter`.

    Attributes:
        begin: Time at which the driver began to handle the request.
        processes: The processes whose memory counts.
        has_eager: Whether the point is compiled by a framework that also has an eager mode.
        pid: Process id of the child; None before it starts.
        phase: Name of the current phase, such as "start".
        entered: Start of the current phase.
        started: Start of the child; None before it starts.
        peak: Maximum resident bytes so far.
        stopped: Why the driver killed the child: "timeout" or "memory"; None if it did not.
        killed_at: Time at which the driver killed the child; 0 if it did not.
        answer: Final answer; None until it arrives.
        measured: Answer that the child sends when it starts the profile; None before that.
        news: Messages about the progress of the workload so far.
        fault: Description of a message that violates the protocol; None if all are valid.
    """

    begin: float
    processes: PointProcesses
    has_eager: bool
    pid: int | None = None
    phase: str = "start"
    entered: float = 0.0
    started: float | None = None
    peak: int = 0
    stopped: str | None = None
    killed_at: float = 0.0
    answer: Answer | None = None
    measured: Answer | None = None
    news: list[WorkloadMessage] = field(default_factory=list)
    fault: str | None = None


class Worker:
    """One `python -m paradnn.worker` process and the pipes to it.

    Args:
        key: Interpreter, framework and other settings of the worker.

    Attributes:
        alive: Whether the worker can measure another point.
        reached_point: Whether the end of the worker counts as a result of the latest point. True
            if the worker started a child for the point, failed to import the framework, or sent an
            invalid message.
        pid: Process id of the worker, which is also its process group.

    Raises:
        OSError: If the interpreter cannot be started.
    """

    def __init__(self, key: WorkerKey) -> None:
        self._folder = Scratch()
        self._log = self._folder.path / "worker.log"
        self._points = 0
        self._ready = False
        self._broken: str | None = None  # description of the latest line that is not valid JSON
        self._python = key.python
        self._is_engine = FRAMEWORKS[key.framework].is_engine
        self.alive = True
        self.reached_point = True
        environ = key.environ()
        # Put only this package on the path. Its parent folder, site-packages, may also hold
        # frameworks that are not under test.
        (self._folder.path / PACKAGE.name).symlink_to(PACKAGE)
        path = [str(self._folder.path), environ.get("PYTHONPATH")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        command = [key.python, "-m", "paradnn.worker", "--framework", key.framework]
        command += ["--driver", str(os.getpid())]
        # A separate session: Ctrl-C in the terminal reaches only the driver, which then kills the
        # worker.
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
        self._to = self._process.stdin
        self._from = self._process.stdout.fileno()
        os.set_blocking(self._from, False)
        self._buffer = bytearray()
        self._received = 0  # bytes received about the latest point

    def measure(
        self,
        point: Mapping[str, Any],
        limits: Limits,
        on_news: Callable[[str | WorkloadMessage], None],
    ) -> PointResult:
        """Measure one point (configuration) in a child process of the worker.

        Sets `alive` to False if the worker cannot measure further points.

        Args:
            point: The configuration as a request, from `paradnn.config.identity.point_request`.
            limits: Time and memory limits of the point.
            on_news: Called with the name of each phase that begins, and with each message about
                the progress of the workload.

        Returns:
            The outcome, and the answer if the child sent one. A failure of the child or the worker
            is an outcome too.
        """
        has_eager = not self._is_engine and point.get("compile", "eager") != "eager"
        monitor = ProcessMonitor(time.perf_counter(), PointProcesses(self.pid), has_eager)
        try:
            problem = self._wait_ready()
        except MessageError as error:
            problem = (
                "unavailable",
                f"the worker in {self._python} sent an invalid message: {error}",
            )
            self._kill_worker()
        if problem:
            phases = {"start": time.perf_counter() - monitor.begin}
            return PointResult(*problem, phases=phases, stderr=self._tail(self._log))
        self._points += 1
        self._received = 0
        self.reached_point = False
        self._broken = None
        stderr = self._folder.path / f"point-{self._points}.log"
        request = messages.Request(
            messages.PROTOCOL_VERSION, self._points, dict(point), str(stderr)
        )
        with contextlib.suppress(BrokenPipeError):  # `_follow` detects the closed pipe at once
            self._to.write(encode(request))
            self._to.flush()
        oom_kills = oom_kill_count()
        try:
            ending = self._follow(monitor, limits, time.perf_counter(), on_news)
        except MessageError as error:
            # After a protocol violation no further message of this worker can be trusted.
            monitor.fault = str(error)
            self.reached_point = True
            ending = Ending(None, None, "worker", monitor.phase)
            self._kill_worker()
        was_oom_killed = oom_kill_count() != oom_kills
        return self._result(monitor, ending, limits, stderr, was_oom_killed=was_oom_killed)

    def close(self) -> None:
        """Kill the worker and its child, and remove their files."""
        self._kill_worker()
        with contextlib.suppress(OSError), self._process:  # waits for the exit and closes the pipes
            pass
        self._folder.remove()

    def _wait_ready(self) -> tuple[str, str] | None:
        """Wait until the framework is imported.

        Returns:
            None if the import succeeded, otherwise a pair of outcome and reason.

        Raises:
            MessageError: If a message violates the protocol.
        """
        deadline = time.perf_counter() + _START_TIMEOUT
        while not self._ready:
            for event in self._events(deadline - time.perf_counter()):
                if isinstance(event, messages.Refused):
                    self.alive = False
                    return "unavailable", f"the framework cannot be imported: {event.reason}"
                self._ready = isinstance(event, messages.Ready)
            if not self.alive:
                lines = self._tail(self._log).strip().splitlines() or ["no message"]
                last = lines[-1]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = self._process.wait(_GRACE_SECONDS)
                    # A signal is not a failure of the software: a new worker may measure the point.
                    if code < 0:
                        self.reached_point = False
                        return (
                            "crash",
                            f"the worker was ended by {signal_name(-code)} while importing: {last}",
                        )
                return "unavailable", f"the worker exited while importing: {last}"
            if not self._ready and time.perf_counter() >= deadline:
                self.alive = False
                return "crash", f"the framework's import exceeded {_START_TIMEOUT:.0f} s"
        return None

    def _follow(
        self,
        monitor: ProcessMonitor,
        limits: Limits,
        sent: float,
        on_news: Callable[[str | WorkloadMessage], None],
    ) -> Ending:
        """Read events until the child has exited, and kill the child if it exceeds a limit.

        Args:
            monitor: Receives the observations of the child.
            limits: Limits of the point.
            sent: Time at which the request was sent, by `time.perf_counter`.
            on_news: Called with the name of each phase and with each workload message.

        Returns:
            How the child ended. Its field `stopped` is "worker" if the worker itself exited first.

        Raises:
            MessageError: If a message violates the protocol or answers another request.
        """
        while True:
            for event in self._events(_CHECK_SECONDS):
                self._require_valid(event)
                if isinstance(event, messages.Exited):
                    monitor.peak = max(monitor.peak, event.max_resident_bytes)
                    if monitor.answer is None and event.exit_code == 0 and self._broken:
                        monitor.fault = self._broken
                    return Ending(
                        event.exit_code,
                        event.signal,
                        monitor.stopped,
                        monitor.phase,
                        monitor.has_eager,
                    )
                self._observe(event, monitor, on_news)
            if not self.alive:
                return Ending(
                    None, None, monitor.stopped or "worker", monitor.phase, monitor.has_eager
                )
            self._enforce(monitor, limits, sent)

    def _require_valid(self, event: Event) -> None:
        """Raise MessageError if an event cannot belong to the latest request."""
        if isinstance(event, messages.Refused):
            raise MessageError(f"it rejects the request: {event.reason}")
        answers_request = messages.Started | messages.PointAnswered | messages.Exited
        if isinstance(event, answers_request) and event.id != self._points:
            name = type(event).__name__.lower()
            raise MessageError(f"{name}.id={event.id}: expected the request's id {self._points}")
        if isinstance(event, messages.PointAnswered) and event.answer.outcome not in OUTCOMES:
            raise MessageError(f"result.answer.outcome={event.answer.outcome!r} is not an outcome")

    def _observe(
        self,
        event: Event,
        monitor: ProcessMonitor,
        on_news: Callable[[str | WorkloadMessage], None],
    ) -> None:
        """Store an event of the worker in `monitor`, and report phases and workload messages.

        Args:
            event: Message of the worker.
            monitor: Observations of the child.
            on_news: Called with the name of each phase and with each workload message.
        """
        if isinstance(event, messages.Started):
            monitor.pid = event.pid
            monitor.started = time.perf_counter()
            self.reached_point = True
        elif isinstance(event, messages.PhaseBegun):
            monitor.phase = event.phase
            monitor.entered = time.perf_counter()
            monitor.measured = event.answer or monitor.measured
            on_news(monitor.phase)
        elif isinstance(event, messages.News):
            monitor.news.append(event.part)
            on_news(event.part)
        elif isinstance(event, messages.PointAnswered):
            monitor.answer = event.answer

    def _enforce(self, monitor: ProcessMonitor, limits: Limits, sent: float) -> None:
        """Kill the child if it exceeds a limit of the point.

        The worker is killed instead if the child has not started yet, or if the killed child does
        not exit within `_GRACE_SECONDS`.

        Args:
            monitor: Observations of the child.
            limits: Limits of the point.
            sent: Time at which the request was sent, by `time.perf_counter`.
        """
        now = time.perf_counter()
        if monitor.stopped:
            if now - monitor.killed_at > _GRACE_SECONDS:
                self._kill_worker()
            return
        if monitor.pid is not None and limits.memory_bytes is not None:
            resident = monitor.processes.resident_bytes(monitor.pid, limits.memory_bytes)
            monitor.peak = max(monitor.peak, resident)
        if limits.memory_bytes is not None and monitor.peak > limits.memory_bytes:
            monitor.stopped = "memory"
        elif now - sent > limits.timeout:
            monitor.stopped = "timeout"
        else:
            return
        monitor.killed_at = now
        if monitor.pid is None:
            self._kill_worker()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(monitor.pid, signal.SIGKILL)

    def _kill_worker(self) -> None:
        self.alive = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _result(
        self,
        monitor: ProcessMonitor,
        ending: Ending,
        limits: Limits,
        stderr: Path,
        *,
        was_oom_killed: bool,
    ) -> PointResult:
        now = time.perf_counter()
        if ending.stopped == "worker" or ending.signal in _SCHEDULER_SIGNALS:
            # A scheduler signals every process of a job. If it killed the worker, the driver
            # receives the same signal, which interrupts this sleep before a crash is recorded.
            time.sleep(_SIGNAL_SECONDS)
        tail = self._tail(stderr)
        stderr.unlink(missing_ok=True)
        for folder in self._folder.path.glob("trace-*"):  # left behind by a child that was killed
            shutil.rmtree(folder, ignore_errors=True)
        if monitor.fault:
            # After a protocol violation the answer cannot be trusted.
            answer = None
            news = []
        else:
            answer = monitor.answer
            news = monitor.news
        outcome, reason = classify(
            ending,
            answer,
            tail,
            timeout=limits.timeout,
            memory_limit=limits.memory_bytes,
            peak=monitor.peak,
            was_oom_killed=was_oom_killed,
        )
        reported_stderr = "" if outcome == "ok" else tail
        phases = {"start": (monitor.started or now) - monitor.begin}
        if monitor.fault:
            outcome = "crash"
            reason = f"the worker sent an invalid message: {monitor.fault}"
        elif not answer and _is_within_memory(monitor.measured, limits):
            # The profile runs after all timed phases, so only the profile is lost.
            lost_profile = messages.NoProfile(
                f"{outcome}: {reason}", limited=ending.stopped in ("timeout", "memory")
            )
            answer = replace(monitor.measured, profile=lost_profile)
            outcome = "ok"
            reason = None
            phases["profile"] = now - monitor.entered
        timed = answer or monitor.measured
        if timed:
            phases = {**timed.phases, **phases}
        return PointResult(
            outcome, reason, answer, phases, reported_stderr, monitor.peak or None, news=news
        )

    def _events(self, timeout: float) -> list[Event]:
        """Wait for data from the worker, and return the events that the data completes.

        Sets `alive` to False if the worker has closed the pipe.

        Args:
            timeout: Maximum wait in seconds.

        Returns:
            The events; empty if no data arrived, or if a message is incomplete.

        Raises:
            MessageError: If a message violates the protocol or exceeds a size limit.
        """
        if not wait([self._from], max(timeout, 0.0)):
            return []
        data = os.read(self._from, 1 << 20)
        self.alive = self.alive and bool(data)
        self._received += len(data)
        self._buffer += data
        if self._received > _MAX_TOTAL_BYTES:
            raise MessageError(f"its messages exceed {_MAX_TOTAL_BYTES // 2**20} MiB in total")
        if len(self._buffer) > _MAX_LINE_BYTES:
            raise MessageError(f"a message exceeds {_MAX_LINE_BYTES // 2**20} MiB")
        if b"\n" not in data:
            return []
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        events = []
        for line in map(bytes, filter(None, lines)):
            try:
                events.append(read_event(line))
            except BrokenLine as error:  # the child may have been killed while it wrote the line
                self._broken = str(error)
        return events

    @staticmethod
    def _tail(path: Path) -> str:
        with contextlib.suppress(OSError), path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _STDERR_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_STDERR_LINES:])
        return ""


def _is_within_memory(measured: Answer | None, limits: Limits) -> TypeGuard[Answer]:
    """Return whether an answer exists and its memory peak is within the limit.

    Args:
        measured: Answer that the child sent after the timed phases; None if it sent none.
        limits: Limits of the point.
    """
    if measured is None:
        return False
    return limits.memory_bytes is None or (measured.peak_memory_bytes or 0) <= limits.memory_bytes


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """Pool of running workers, at most one per worker key.

    Workers stay alive between points, so that points of several software stacks can alternate
    without repeated imports. If a new worker would exceed a limit, idle workers are closed, the
    least recently used first.

    Args:
        limit: Maximum number of workers.
        share: Maximum share of the host's available memory for all workers together, in 0..1.
    """

    def __init__(self, limit: int = 16, share: float = 0.25) -> None:
        remove_leftovers()
        self._limit = limit
        self._share = share
        self._workers: OrderedDict[WorkerKey, Worker] = OrderedDict()
        self._busy: set[WorkerKey] = set()
        self._closed = False
        self._lock = threading.RLock()  # two points that take turns are measured at the same time

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, key: WorkerKey) -> None:
        """Start the worker of a key without waiting for the import of its framework.

        The import then overlaps with the driver's other work. A running worker is kept.

        Args:
            key: Interpreter, framework and other settings of the worker.

        Raises:
            OSError: If the interpreter cannot be started, or the pool is closed.
        """
        self._get(key)

    def measure(
        self,
        key: WorkerKey,
        point: Mapping[str, Any],
        limits: Limits,
        on_news: Callable[[str | WorkloadMessage], None],
    ) -> PointResult:
        """Measure one point in the worker of a key; start the worker if it is not running.

        If the worker was killed before it started the point, a new worker measures the point.

        Args:
            key: Interpreter, framework and other settings of the worker.
            point: The configuration as a request, from `paradnn.config.identity.point_request`.
            limits: Time and memory limits of the point.
            on_news: Called with the name of each phase that begins, and with each message about
                the progress of the workload.

        Returns:
            The outcome, and the answer if the child sent one. The outcome is `unavailable` if the
            interpreter cannot be started.
        """
        try:
            worker = self._get(key)
        except OSError as error:  # the interpreter was removed
            return PointResult("unavailable", f"{key.python} cannot be started: {error.strerror}")
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
        # A worker that was killed before it started the point gave no result: use a new worker.
        if worker.reached_point:
            return result
        return self._get(key).measure(point, limits, on_news)

    def close(self) -> None:
        """Kill every worker and its child.

        After that, `prepare` raises OSError, and `measure` returns the outcome `unavailable`.
        """
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
                while idle and (len(self._workers) >= self._limit or self._would_exceed_share()):
                    self._drop(idle.pop(0))
                self._workers[key] = Worker(key)
            self._workers.move_to_end(key)
            return self._workers[key]

    def _would_exceed_share(self) -> bool:
        """Return whether another worker, as large as the largest, would exceed the memory share."""
        sizes = [
            PointProcesses(worker.pid).resident_bytes(worker.pid, None)
            for worker in self._workers.values()
        ]
        total = sum(sizes)
        return total + max(sizes) > self._share * (available_memory() + total)

    def _drop(self, key: WorkerKey) -> None:
        with self._lock:
            worker = self._workers.pop(key, None)
        if worker:
            worker.close()
