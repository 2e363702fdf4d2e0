"""Launch drivers in jobs, and follow the sweep that they share until it ends.

A driver is a process of `python -m paradnn.train`, which measures points (configurations). A
launcher of Hydra starts the jobs, and each job runs one driver with the same command line. The
drivers share the points through claims in the store. The launching process opens and closes the
parent run of the sweep. It reads results only from the store, because launchers lose the results of
killed jobs. Some launchers even wait for a killed job forever.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig

from paradnn.config.identity import Identity, point_id
from paradnn.config.paths import HOME
from paradnn.config.point import Point
from paradnn.config.scheduler import (
    DRIVER_VARIABLE,
    START_VARIABLE,
    SWEEP_VARIABLE,
    DriverStart,
    process_start,
)
from paradnn.config.settings import Settings
from paradnn.config.tasks import Launch, SweepInfo
from paradnn.core.errors import ParadnnError, StoreError
from paradnn.core.words import counted
from paradnn.session.design import DesignResult, Summary
from paradnn.session.progress import Reporter
from paradnn.session.signals import interruptible
from paradnn.session.sweep_page import SweepPage
from paradnn.session.sweep_run import end_parent, open_parent, shared_row, shared_summary
from paradnn.store.address import address_of
from paradnn.store.journal import Journal
from paradnn.store.leases import LAUNCH, Heartbeat, Lease, Owner, no_point_is_left, planned_points
from paradnn.store.tracker import open_tracker

#: Minimum pause between two polls of the store, in seconds and as a multiple of the duration of a
#: poll.
_POLL_SECONDS = 2.0
_POLL_FACTOR = 20.0
#: Seconds within which a launcher must return once its drivers have ended.
_RETURN_SECONDS = 30.0
#: Seconds within which drivers must release their points after an interruption.
_STOP_SECONDS = 60.0
#: Seconds without a running driver after which the user is warned.
_SILENT_SECONDS = 180.0
#: Variable that makes Hydra raise instead of printing an error; drivers do not inherit it.
_FULL_ERROR = "HYDRA_FULL_ERROR"


@dataclass(frozen=True)
class DriverResult:
    """How a driver, a process of `python -m paradnn.train`, ended.

    Attributes:
        number: Number of the driver in the sweep, from 0.
        code: Its exit code. It is the negative signal number if a signal ended the driver.
        error: Last error message in its log, or else the last line of text. Empty if the log has
            no text or is unavailable.
    """

    number: int
    code: int
    error: str


@dataclass(frozen=True)
class DriverTask:
    """A callable that runs a driver in a job until it ends; launchers send it to other hosts.

    A driver is a process of `python -m paradnn.train`.

    Attributes:
        arguments: Command line of `python -m paradnn.train`.
        folder: Working directory of the driver.
        logs: Folder for the output of drivers.
        variables: Environment variables of the driver.
        launched: Unix time in seconds at which the jobs were launched.
        launcher: The launching process. A driver on the same host and in the same scheduler job
            ends when the launching process ends.
        job_id: Id of the launching process's scheduler job; empty without one.
        name: Name of the Hydra launcher, as in `hydra/launcher`.
    """

    arguments: tuple[str, ...]
    folder: str
    logs: str
    variables: Mapping[str, str]
    launched: float
    launcher: Owner
    job_id: str
    name: str

    def __call__(self, _: DictConfig) -> DriverResult:
        """Run the driver with the number of this Hydra job; Hydra calls this in the job."""
        from hydra.core.hydra_config import HydraConfig

        return self.run(int(HydraConfig.get().job.num))

    def run(self, number: int) -> DriverResult:
        """Run a driver until it ends.

        Args:
            number: Number of the driver in the sweep, from 0.

        Returns:
            How the driver ended.
        """
        start = DriverStart(
            launched=self.launched,
            started=_job_start(),
            called=time.time(),
            pids=[os.getpid()],
            job_id=_ray_job(),
            launcher=self.name,
        )
        if self.launcher.is_on_this_boot and os.environ.get("SLURM_JOB_ID", "") == self.job_id:
            start.pids.append(self.launcher.pid)
        environ = {
            **os.environ,
            **self.variables,
            DRIVER_VARIABLE: str(number),
            START_VARIABLE: start.text,
        }
        environ.pop(_FULL_ERROR, None)
        command = [sys.executable, "-m", "paradnn.train", *self.arguments]
        with self._log(number) as log:
            begin = 0
            streams: dict[str, Any] = {}
            if log:
                begin = log.tell()
                streams = {"stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, **streams
            )
            try:
                code = process.wait()
            finally:  # a signal handler of the launcher may raise
                _terminate(process)
            if self.launcher.pid in start.pids and self.launcher.is_gone(0.0):
                os._exit(0)  # a process pool would wait for further tasks forever
            error = ""
            if log:
                error = _last_error(log, begin)
            return DriverResult(number, code, error)

    @contextlib.contextmanager
    def _log(self, number: int) -> Iterator[IO[bytes] | None]:
        """Yield a driver's log, open for appending; None if its folder is not writable here."""
        with contextlib.ExitStack() as stack:
            log = None
            with contextlib.suppress(OSError):
                folder = Path(self.logs)
                folder.mkdir(parents=True, exist_ok=True)
                log = stack.enter_context((folder / f"driver-{number}.log").open("a+b"))
            yield log


def _job_start() -> float:
    """Return the Unix time in seconds at which this job began."""
    with contextlib.suppress(KeyError, ValueError):
        return float(os.environ["SLURM_JOB_START_TIME"])
    return process_start()


def _ray_job() -> str:
    """Return the id of the Ray job in which this process runs; empty without one."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().get_job_id())


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a driver that is still running; kill it if it does not end within `_STOP_SECONDS`."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_error(log: IO[bytes], begin: int) -> str:
    """Return the last error in a driver's log, or else the last line of text.

    Only text after byte `begin` counts. Empty if there is no such text.
    """
    log.seek(begin)
    lines = log.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    texts = errors or [line for line in lines if line.strip()]
    return texts[-1].removeprefix("error: ") if texts else ""


def launch_sweep(points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> Summary:
    """Launch a sweep's drivers (measuring processes) in jobs, and wait for the results.

    Args:
        points: The configurations to measure.
        settings: Settings of the command, with the number of drivers.
        sweep: Name, id and command of the sweep, and its launcher.

    Returns:
        A summary of the whole sweep.

    Raises:
        ParadnnError: If the launcher started no driver.
    """
    assert sweep.launch is not None
    reporter = Reporter(len(points), sweep.name)
    started = time.time()
    with interruptible(), contextlib.ExitStack() as stack:
        stack.callback(reporter.close)
        tracker = open_tracker(settings.tracking, reporter.say)
        tracker.close_abandoned()
        open_parent(tracker, sweep, own_tags=settings.tracking.tags)
        lease = Lease(owner=Owner.current(), expires=0.0)
        tracker.register(LAUNCH, lease)
        heartbeat = Heartbeat(tracker.renew_lease, reporter.say)
        stack.callback(heartbeat.close)
        follower = _Follower(tracker, sweep, points, reporter, settings.sweep.drivers)
        jobs = _Jobs(sweep.launch, _task(settings, sweep), sweep.sweep_id, settings.sweep.drivers)
        reporter.start(0, 0)
        is_interrupted = False
        try:
            jobs.start()
            follower.follow(jobs)
        except KeyboardInterrupt:
            is_interrupted = True
            follower.stop_drivers(lease)
        heartbeat.close()
        summary = _retry_read(
            lambda: shared_summary(tracker, sweep, points), settings.tracking.patience
        )
        summary.interrupted = is_interrupted
        summary.seconds = time.time() - started
        has_drivers = any(key != LAUNCH for key in tracker.leases_of_sweep())
        if not has_drivers:
            summary.total = max(summary.total, len(points))
        _add_reports(summary, jobs, len(points))
        tracker.unregister(is_complete=True)
        page = SweepPage(settings.tracking, sweep, reporter.say)
        end_parent(tracker, sweep, summary, DesignResult(summary.conclusion), page)
        summary.where = tracker.where
    if jobs.failure and not has_drivers and not is_interrupted:
        raise ParadnnError(
            f"hydra/launcher={sweep.launcher}: no driver started ({jobs.failure}); {jobs.logs_hint}"
        )
    return summary


def _retry_read(read: Callable[[], Summary], seconds: float) -> Summary:
    """Call `read`; retry for at most `seconds` seconds while the store does not answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return read()
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _task(settings: Settings, sweep: SweepInfo) -> DriverTask:
    """Return the task that runs a driver with the command line of this process."""
    variables = {SWEEP_VARIABLE: sweep.sweep_id}
    if settings.tracking.name != "offline":
        address = address_of(settings.tracking.uri)
        if address.uri == address.public:  # a launcher's files must not contain credentials
            variables["MLFLOW_TRACKING_URI"] = address.uri
    if "MLFLOW_EXPERIMENT_NAME" in os.environ:
        variables["MLFLOW_EXPERIMENT_NAME"] = os.environ["MLFLOW_EXPERIMENT_NAME"]
    return DriverTask(
        arguments=tuple(sys.argv[1:]),
        folder=os.getcwd(),
        logs=str(_job_folder(sweep.sweep_id)),
        variables=variables,
        launched=time.time(),
        launcher=Owner.current(),
        job_id=os.environ.get("SLURM_JOB_ID", ""),
        name=sweep.launcher,
    )


def _job_folder(sweep_id: str) -> Path:
    """Return the folder for the files of a launcher and the logs of its drivers."""
    return HOME / "mlruns" / "jobs" / sweep_id


class _Jobs:
    """The jobs of a Hydra launcher; a thread starts them and waits for them.

    Each job runs one driver, a process that measures points of the sweep.

    Attributes:
        results: Results that the launcher has returned, one per driver.
        failure: Latest error of the launcher in one line; empty without one.
    """

    def __init__(self, launch: Launch, task: DriverTask, sweep_id: str, drivers: int) -> None:
        self.results: list[DriverResult] = []
        self.failure = ""
        self._launch = launch
        self._task = task
        self._folder = _job_folder(sweep_id)
        self._drivers = drivers
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)

    @property
    def logs_hint(self) -> str:
        """Location of the drivers' output, as text."""
        return f"logs are in {self._folder}"

    def start(self) -> None:
        """Launch the jobs in a thread, without waiting for them."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the launcher for at most `seconds` seconds; return whether it has returned."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            jobs = self._launch(self._task, self._folder, self._drivers)
            for job in jobs:
                try:
                    result = job.return_value
                except Exception as error:
                    self.failure = _one_line(error)
                    continue
                if isinstance(result, DriverResult):
                    self.results.append(result)
        except BaseException as error:  # a launcher may also exit
            self.failure = _one_line(error)


def _one_line(error: BaseException) -> str:
    """Return an error of a launcher in one line: its type and the last line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    return f"{type(error).__name__}: {text}"[:400]


class _Follower:
    """Polls the store during a sweep that several drivers share, and shows the progress."""

    def __init__(
        self,
        tracker: Journal,
        sweep: SweepInfo,
        points: Sequence[Point],
        reporter: Reporter,
        drivers: int,
    ) -> None:
        self._tracker = tracker
        self._sweep = sweep
        self._reporter = reporter
        self._drivers = drivers
        self._families: dict[str, str] | None = None
        self._points = points
        self._seen: set[Identity] = set()
        self._latest_alive = time.monotonic()

    def follow(self, jobs: _Jobs) -> None:
        """Show progress until the launcher returns.

        Also return if every driver has ended, no point is missing, and the launcher does not return
        within a further `_RETURN_SECONDS` seconds.

        Args:
            jobs: Jobs of the launcher, already started.
        """
        over_since: float | None = None
        pause = _POLL_SECONDS
        while not jobs.wait(pause):
            begin = time.monotonic()
            is_over = False
            with contextlib.suppress(StoreError):  # the next poll may succeed
                is_over = self._poll()
            now = time.monotonic()
            pause = max(_POLL_SECONDS, _POLL_FACTOR * (now - begin))
            if not is_over:
                over_since = None
            elif over_since is None:
                over_since = now
            elif now - over_since > _RETURN_SECONDS:
                self._reporter.say(
                    "every driver has ended, but the launcher does not return; "
                    "the sweep ends without waiting for it"
                )
                return
        with contextlib.suppress(StoreError):
            self._poll()

    def _poll(self) -> bool:
        """Show new results; return whether every driver has ended and no point is missing."""
        self._show_results()
        leases = self._tracker.leases_of_sweep()
        drivers = {key: lease for key, lease in leases.items() if key != LAUNCH}
        alive = {key: lease for key, lease in drivers.items() if lease.is_alive}
        self._warn_about_shared_cores(alive)
        planned = planned_points(leases)
        missing = None if planned is None else planned - len(self._seen)
        if missing is not None:
            self._reporter.expect(max(0, missing), 1.0)
        if alive:
            self._latest_alive = time.monotonic()
            return False
        has_all = len(drivers) >= self._drivers
        if has_all and all(lease.is_complete for lease in drivers.values()):
            return True
        if no_point_is_left(drivers):
            return True
        if drivers and missing is not None and planned and missing <= 0:
            return True
        if drivers and time.monotonic() - self._latest_alive > _SILENT_SECONDS:
            self._reporter.say(
                "no driver is running, but points are missing: waiting for the scheduler to start "
                "a driver; Ctrl-C ends the sweep, and the same command continues it",
                once=True,
            )
        return False

    def _show_results(self) -> None:
        found = self._tracker.finished((), self._sweep.sweep_id)
        if self._families is None:
            self._families = {point_id(point): point.model.name for point in self._points}
        for identity, runs in found.items():
            of_sweep = [run for run in runs if run.tags.get("sweep_id") == self._sweep.sweep_id]
            if identity in self._seen or not of_sweep or of_sweep[0].tags.get("kind") != "point":
                continue
            self._seen.add(identity)
            family = self._families.get(identity.point_id, "")
            self._reporter.done(shared_row(self._tracker, of_sweep[0], family, has_metrics=True))

    def _warn_about_shared_cores(self, alive: Mapping[str, Lease]) -> None:
        ordered = sorted(alive.items())
        for index, (first, lease) in enumerate(ordered):
            for second, other in ordered[index + 1 :]:
                if lease.shares_cores_with(other):
                    self._reporter.say(
                        f"several drivers, such as {first} and {second}, share cores of "
                        f"{lease.owner.host} and disturb each other's measurements; give each "
                        "driver separate cores or a separate host",
                        once=True,
                    )
                    return

    def stop_drivers(self, lease: Lease) -> None:
        """Make all drivers of the sweep end, and wait until they have released their points.

        Args:
            lease: Registration of this process with the sweep. It is stored again, marked as
                stopped, so that the drivers learn that the user interrupted the sweep.
        """
        self._reporter.begin("interrupted", "waiting for the drivers to end")
        with contextlib.suppress(StoreError, KeyboardInterrupt):
            self._tracker.register(LAUNCH, replace(lease, is_stopped=True))
            deadline = time.monotonic() + _STOP_SECONDS
            signaled: set[int] = set()
            while time.monotonic() < deadline:
                leases = self._tracker.leases_of_sweep()
                alive = [each for key, each in leases.items() if key != LAUNCH and each.is_alive]
                if not alive:
                    return
                for driver_lease in alive:
                    pid = driver_lease.owner.pid
                    if driver_lease.owner.is_on_this_boot and pid not in signaled:
                        signaled.add(pid)
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.kill(pid, signal.SIGTERM)
                time.sleep(0.5)


def _add_reports(summary: Summary, jobs: _Jobs, points: int) -> None:
    """Add the reasons for missing points, or the number of points stored earlier, to a summary.

    Args:
        summary: Summary of the sweep.
        jobs: Jobs of the launcher, with the results of the drivers.
        points: Number of requested points.
    """
    paragraphs = [summary.conclusion]
    if summary.missing > 0 and not summary.interrupted:
        reasons = [
            f"driver {result.number} ended with exit code {result.code}"
            + (f" ({result.error})" if result.error else "")
            for result in sorted(jobs.results, key=lambda result: result.number)
            if result.code
        ]
        if jobs.failure:
            reasons.append(f"the launcher failed ({jobs.failure})")
        if reasons:
            summary.problem = f"{'; '.join(reasons)}; {jobs.logs_hint}"
    elif 0 <= summary.total < points and not summary.conclusion:
        paragraphs.append(f"The store holds the other {counted(points - summary.total, 'point')}.")
    summary.conclusion = "\n\n".join(filter(None, paragraphs))
