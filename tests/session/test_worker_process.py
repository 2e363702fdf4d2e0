"""Pool of workers: real workers that die while the driver works, and endings of points.

The module also compares the memory that the driver reports for a point with known sizes.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from paradnn.config.identity import limits_id, point_request
from paradnn.config.outcome import Ending, classify
from paradnn.config.reading import read_point
from paradnn.core.errors import WorkerError
from paradnn.core.messages import NoProfile
from paradnn.core.scratch import Scratch
from paradnn.platform import environment
from paradnn.session.record import profile_tags
from paradnn.session.workers import (
    Limits,
    PointProcesses,
    ProcessMonitor,
    Worker,
    WorkerKey,
    WorkerPool,
)
from paradnn.store.runs import ResumePolicy
from tests.conftest import ROOT
from tests.processes import PATIENCE, started, wait_for

MEASURE = {"min_seconds": 0.02, "min_blocks": 2, "block_seconds": 0.002, "warmup_seconds": 0.1}
POINT = read_point(
    {"model": {"name": "fc", "layers": 1, "nodes": 8}, "batch_size": 4, "measure": MEASURE}
)


def workers() -> set[psutil.Process]:
    """Return the workers of this process, including those of other tests."""
    worker_processes = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # just exited
            if "paradnn.worker" in command_line(child):
                worker_processes.add(child)
    return worker_processes


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line of a process, which is empty for a moment after its start."""
    while process.status() != psutil.STATUS_ZOMBIE:
        words = process.cmdline()
        if words:
            return words
        time.sleep(0.001)
    return []


@pytest.mark.framework
def test_a_worker_that_dies_between_points_is_replaced(pool: WorkerPool) -> None:
    key = WorkerKey.of(POINT)
    limits = Limits(60, None)
    phases = []
    files = set(Path(tempfile.gettempdir()).glob("__autograph_generated_file*"))
    first = pool.measure(key, point_request(POINT), limits, phases.append)
    assert (first.outcome, phases) == ("ok", ["build", "compile", "warmup", "measure"])
    # TensorFlow's AutoGraph writes one file per function that it converts.
    assert set(Path(tempfile.gettempdir()).glob("__autograph_generated_file*")) <= files
    worker = psutil.Process(pool._workers[key]._process.pid)
    workers_before = workers()
    assert worker in workers_before
    worker.kill()
    assert wait_for(lambda: worker.status() == psutil.STATUS_ZOMBIE)
    assert pool.measure(key, point_request(POINT), limits, phases.append).outcome == "ok"
    assert worker not in workers()
    assert len(workers()) == len(workers_before)


def test_folders_of_killed_drivers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove the folders of drivers that do not hold a lock on them.

    A process id cannot identify a driver, since several containers may share /tmp.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from paradnn.core.scratch import Scratch; one = Scratch(); print(one.path, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with started([sys.executable, "-c", code], cwd=ROOT, env=environ, text=True, **pipes) as driver:
        other = Path(driver.stdout.readline().strip())
        own_scratch = Scratch()
        (tmp_path / "another").mkdir()
        os.mkfifo(tmp_path / "paradnn-scratch-pipe")  # opening it would block until a writer exists
        WorkerPool()
        os.unlink(tmp_path / "paradnn-scratch-pipe")
        assert set(tmp_path.iterdir()) == {other, own_scratch.path, tmp_path / "another"}
    WorkerPool()
    assert set(tmp_path.iterdir()) == {own_scratch.path, tmp_path / "another"}
    own_scratch.remove()
    assert set(tmp_path.iterdir()) == {tmp_path / "another"}


def test_a_worker_whose_driver_has_already_ended_does_not_start() -> None:
    """Emulate a driver that was killed while the worker's interpreter was starting."""
    with started([sys.executable, "-c", ""]) as driver:
        pass
    command = [sys.executable, "-m", "paradnn.worker", "--driver", str(driver.pid)]
    completed = subprocess.run(
        command, stdin=subprocess.PIPE, capture_output=True, timeout=PATIENCE, check=False
    )
    assert completed.returncode == 1
    assert completed.stdout == b""  # neither Ready nor Refused: the framework was not imported


def killed(number: int, phase: str, stopped: str | None = None, **changes: bool) -> Ending:
    """Return the ending of a process that a signal ended."""
    return Ending(exit_code=None, signal=number, stopped=stopped, phase=phase, **changes)


def exited(code: int | None, phase: str, stopped: str | None = None) -> Ending:
    """Return the ending of a process that exited; `code` is None if its exit code is unknown."""
    return Ending(exit_code=code, signal=None, stopped=stopped, phase=phase)


@pytest.mark.parametrize(
    ("ending", "stderr", "outcome", "reason"),
    [
        pytest.param(
            killed(9, "compile", "timeout", has_eager=True),
            "",
            "timeout",
            "took longer than 60 s, in phase compile: raise measure.timeout, or set compile=eager",
            id="time limit, could run eagerly",
        ),
        pytest.param(
            killed(9, "compile", "timeout"),
            "",
            "timeout",
            "took longer than 60 s, in phase compile: raise measure.timeout",
            id="time limit, compiled only",
        ),
        pytest.param(
            killed(9, "measure", "timeout", has_eager=True),
            "",
            "timeout",
            "took longer than 60 s, in phase measure: raise measure.timeout",
            id="time limit after compilation",
        ),
        pytest.param(
            killed(9, "build", "memory"),
            "",
            "oom_host",
            "used 3.00 GiB in phase build; the limit is 2.00 GiB",
            id="memory limit",
        ),
        pytest.param(
            killed(6, "warmup"),
            "std::bad_alloc",
            "oom_host",
            "an allocation failed in phase warmup",
            id="failed allocation",
        ),
        pytest.param(
            killed(9, "measure"),
            "",
            "oom_host",
            "killed by the system in phase measure",
            id="killed by the system",
        ),
        pytest.param(
            killed(11, "measure"),
            "x\nlast words\n",
            "crash",
            "SIGSEGV in phase measure: last words",
            id="segmentation fault",
        ),
        pytest.param(
            exited(3, "build"),
            "",
            "crash",
            "exit code 3 in phase build: nothing on standard error",
            id="exit code",
        ),
        pytest.param(
            exited(None, "start", "worker"),
            "",
            "crash",
            "the worker died in phase start",
            id="worker died",
        ),
    ],
)
def test_the_ending_of_a_process_determines_outcome_and_reason(
    ending: Ending, stderr: str, outcome: str, reason: str
) -> None:
    limits = {"timeout": 60, "memory_limit": 2 * 2**30, "peak": 3 * 2**30}

    found_outcome, found_reason = classify(ending, None, stderr, **limits)

    assert found_outcome == outcome
    assert found_reason.startswith(reason)
    assert found_reason == reason or outcome != "timeout"


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        pytest.param(killed(9, "build"), "oom_host", id="process of the point"),
        pytest.param(exited(None, "build", "worker"), "oom_host", id="worker"),
        pytest.param(killed(11, "build"), "crash", id="another signal"),
        pytest.param(exited(1, "build"), "crash", id="exit code"),
    ],
)
def test_a_kill_by_the_kernel_is_out_of_memory_even_below_the_limit(
    ending: Ending, outcome: str
) -> None:
    found_outcome, reason = classify(
        ending,
        None,
        "",
        timeout=60,
        memory_limit=2**40,
        peak=2**30,
        was_oom_killed=True,
    )

    assert found_outcome == outcome
    assert ("killed by the kernel for lack of memory" in reason) == (outcome == "oom_host")


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerKey:
    """Return the key of a worker whose points fail in their profile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name('profile_worker.py')}\n"
    )
    python.chmod(0o755)
    return WorkerKey(str(python), "tensorflow", None, "cpu", ())


@pytest.mark.parametrize(
    ("profile", "limits", "reason", "limited"),
    [
        pytest.param(
            "grows",
            Limits(60, 300 * 2**20),
            r"oom_host: used .* GiB in phase profile; the limit is 0\.29 GiB",
            True,
            id="exceeds the memory limit",
        ),
        pytest.param(
            "hangs",
            Limits(300, None),
            "timeout: took longer than 300 s, in phase profile: raise measure.timeout",
            True,
            id="exceeds the time limit",
        ),
        pytest.param(
            "crashes",
            Limits(60, None),
            "crash: SIGSEGV in phase profile: the profiler's last words",
            False,
            id="crashes",
        ),
    ],
)
def test_a_failing_profile_does_not_lose_a_measured_point(
    key: WorkerKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    limits: Limits,
    reason: str,
    limited: bool,
) -> None:
    phases: list[str] = []
    worker = Worker(key)
    enforce = Worker._enforce

    def enforce_early(worker: Worker, monitor: ProcessMonitor, limits: Limits, sent: float) -> None:
        """Let the time limit expire as soon as the profile has begun."""
        if monitor.phase == "profile":
            sent -= limits.timeout
        enforce(worker, monitor, limits, sent)

    try:
        with monkeypatch.context() as patch:
            if profile == "hangs":
                patch.setattr(Worker, "_enforce", enforce_early)
            result = worker.measure(
                {"profile": profile, "peak": 100 * 2**20}, limits, phases.append
            )
        leftovers = list(tmp_path.glob("paradnn-scratch-*/trace-*"))
        later_result = worker.measure(
            {"profile": "ends", "peak": 100 * 2**20}, limits, phases.append
        )
    finally:
        worker.close()
    assert phases == ["measure", "profile"] * 2
    assert (result.outcome, result.reason) == ("ok", None)
    assert result.answer.measurement.timing.blocks == [1.0, 1.0]
    assert isinstance(result.answer.profile, NoProfile)
    assert re.fullmatch(reason, result.answer.profile.unavailable)
    assert result.answer.profile.limited is limited
    assert set(result.phases) == {"start", "measure", "profile"}
    assert leftovers == []
    assert later_result.answer.profile == NoProfile("none: 0")


def test_a_point_that_was_too_large_before_its_profile_is_out_of_memory(key: WorkerKey) -> None:
    limit = 300 * 2**20
    with WorkerPool() as pool:
        result = pool.measure(
            key, {"profile": "grows", "peak": limit + 1}, Limits(60, limit), lambda _: None
        )
    assert result.outcome == "oom_host"


def test_a_profile_ended_by_a_limit_is_repeated_under_another_limit() -> None:
    with_profile = replace(POINT, measure=replace(POINT.measure, profile=True))
    longer_limit = replace(POINT, measure=replace(with_profile.measure, timeout=1e4))
    policy = ResumePolicy(True, ())
    for limited, counts in ((True, [True, True, False]), (False, [True, True, True])):
        tags = profile_tags(NoProfile("timeout: took longer than 3 s", limited))
        tags |= {"outcome": "ok", "limits_id": limits_id(with_profile.measure)}
        assert tags["profile"] == "unavailable: timeout: took longer than 3 s"
        assert [
            policy.accepts(point, tags) for point in (POINT, with_profile, longer_limit)
        ] == counts


def test_a_worker_on_the_processor_hides_all_gpus() -> None:
    cpu = WorkerKey(sys.executable, "jax", 3, "cpu", ()).environ()

    assert (cpu["JAX_PLATFORMS"], cpu["KERAS_TORCH_DEVICE"], cpu["CUDA_VISIBLE_DEVICES"]) == (
        "cpu",
        "cpu",
        "-1",
    )


def test_the_environment_of_a_worker_sets_its_threads() -> None:
    cpu = WorkerKey(sys.executable, "jax", 3, "cpu", (("NPROC", "2"),)).environ()

    assert (cpu["OMP_NUM_THREADS"], cpu["NPROC"]) == (
        "3",
        "2",
    )  # the user's settings override the defaults


def test_a_worker_on_a_gpu_allocates_memory_when_it_needs_it() -> None:
    gpu = WorkerKey(sys.executable, "jax", None, "gpu", ()).environ()

    assert gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert gpu.get("JAX_PLATFORMS") != "cpu"


@pytest.mark.parametrize("kills", [1, 3])
def test_an_interpreter_killed_while_describing_itself_is_started_again(
    tmp_path: Path, kills: int
) -> None:
    """Kill the interpreter at its first starts; its additional output must be ignored."""
    python = tmp_path / "python"
    starts = tmp_path / "starts"
    python.write_text(
        f"#!/bin/sh\necho >> {starts}\n[ $(wc -l < {starts}) -gt {kills} ] || kill -9 $$\n"
        f'echo hello\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    if kills < 3:
        assert "keras" in environment.software_versions(str(python), "tensorflow")
    else:
        with pytest.raises(WorkerError, match="cannot report its packages"):
            environment.software_versions(str(python), "tensorflow")


SIZE = 64 << 20
CHILDREN = 6
#: A process whose children share its memory until an input line makes them write to it.
SHARING = """
import os, sys
size, children = map(int, sys.argv[1:])
memory = bytearray(size)
memory[::4096] = b"1" * len(memory[::4096])
ends = [os.pipe() for _ in range(2 * children)]
for number in range(children):
    if os.fork() == 0:
        os.read(ends[2 * number][0], 1)
        memory[::4096] = b"2" * len(memory[::4096])
        os.write(ends[2 * number + 1][1], b"!")
        sys.stdin.read()
        os._exit(0)
print("ready", flush=True)
sys.stdin.readline()
for number in range(children):
    os.write(ends[2 * number][1], b"!")
    os.read(ends[2 * number + 1][0], 1)
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sharing() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SHARING, str(SIZE), str(CHILDREN)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(command, **pipes, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the children would outlive the process


def test_shared_pages_count_once_until_they_are_copied(
    sharing: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paradnn.session.workers._PAUSE_FACTOR", 0)
    of_point = PointProcesses(sharing.pid)
    for limit in (None, 1 << 40):  # far from the limit, the cheap sum is sufficient
        assert of_point.resident_bytes(sharing.pid, limit) > (CHILDREN + 1) * SIZE
    assert SIZE < of_point.resident_bytes(sharing.pid, 3 * SIZE) < 2 * SIZE
    sharing.stdin.write("write\n")
    sharing.stdin.flush()
    assert sharing.stdout.readline() == "written\n"
    assert of_point.resident_bytes(sharing.pid, 3 * SIZE) > (CHILDREN + 1) * SIZE


def test_the_memory_of_one_process_includes_shared_pages(sharing: subprocess.Popen[str]) -> None:
    alone = PointProcesses(sharing.pid)
    child = next(iter(alone._resident_by_process(sharing.pid).keys() - {sharing.pid}))
    assert alone.resident_bytes(child, 1) > SIZE
    sharing.kill()
    sharing.wait()
    assert alone.resident_bytes(sharing.pid, 1) == 0
