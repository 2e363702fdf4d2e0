"""Every outcome of a point, caused by real faults among good points of one sweep.

The module also covers drivers that are stopped or killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psutil
import pytest

from paradnn.config.point import Measure, Point
from paradnn.families.fc import FullyConnected
from paradnn.session.signals import interruptible
from paradnn.store.runs import ResumePolicy
from tests.conftest import ROOT, SHORT, TINY, Store, environment, run
from tests.processes import PATIENCE, children_of, started, wait_for, with_default_signal_handlers

pytestmark = pytest.mark.framework

PLAIN = "model: fc, model.layers: 1, model.input_size: 16, model.output_size: 4, batch_size: 4"
#: Maps settings that cause a fault to the expected outcomes by number of nodes.
FAULTS = {
    "measure.min_seconds: 0.02": {8: "ok", 9: "ok", 10: "ok", 11: "ok"},
    "model.layers: 2, measure.memory_limit: 2GiB": {40000: "oom_predicted"},
    "model.layers: 3, measure.memory_limit: 1GiB, measure.predict_oom: false": {12000: "oom_host"},
    "measure.min_seconds: 1000, measure.timeout: 2": {12: "timeout"},
    "optimizer: sgd, optimizer.learning_rate: 1e30": {13: "nan"},
    "measure.min_seconds: 1000": {14: "crash"},
    "platform: gpu": {15: "unavailable"},
}
GRIDS = ",".join(
    f"{{{PLAIN}, model.nodes: '{','.join(map(str, ends))}', {fault}}}"
    for fault, ends in FAULTS.items()
)
EXPECTED = {nodes: outcome for ends in FAULTS.values() for nodes, outcome in ends.items()}


@contextmanager
def driver(
    store: Store, *arguments: str, until: str | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a driver, and kill it with all its processes at the end of the test.

    Args:
        store: Store of the driver.
        arguments: Command-line arguments of the driver.
        until: Event of tests/session/stopping.py at which the driver stops or is killed.
    """
    if until:
        program = ["tests.session.stopping", until]
    else:
        program = ["paradnn.train"]
    command = with_default_signal_handlers([sys.executable, "-m", *program, *arguments])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, cwd=ROOT, env=environment(store), text=True, **pipes) as process:
        yield process


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Run `act` in a thread while the body measures in this process.

    A failure of `act` fails the test.
    """
    with ThreadPoolExecutor(1) as threads:
        acting = threads.submit(act)
        yield
        acting.result()


def measuring_child(process: subprocess.Popen[str] | psutil.Process) -> int | None:
    """Return the process id of the point that a driver measures, or None between points.

    The driver may be this process. It also has short-lived children (`git`, `lscpu`), which may
    exit between two calls.
    """
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if "paradnn.worker" in child.cmdline():
                points = child.children()
                if points:
                    return points[0].pid
    return None


def is_running(store: Store, name: str) -> bool:
    """Return whether a run whose name begins with `name` is running."""
    return any(
        run["mlflow.runName"].startswith(name) and run["status"] == "RUNNING"
        for run in store.runs()
    )


def is_stopped(process: subprocess.Popen[str]) -> bool:
    """Return whether a driver has stopped itself."""
    assert process.poll() is None, process.communicate()
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


def all_gone(pids: list[int]) -> bool:
    """Return whether all of these processes end soon after their parent."""
    return wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def crash_the_point() -> None:
    """Crash the point that this process measures."""
    assert wait_for(lambda: measuring_child(psutil.Process()))
    os.kill(measuring_child(psutil.Process()), signal.SIGSEGV)


def test_every_fault_has_its_outcome_and_spares_good_points(store: Store) -> None:
    def crash() -> None:
        assert wait_for(lambda: is_running(store, "fc 1x14 "))
        crash_the_point()

    with meanwhile(crash):
        completed = run(["paradnn.train", "-m", f"sweep.grids=[{GRIDS}]", *SHORT[1:]], store)

    assert completed.returncode == 0, completed.stderr
    run_by_nodes = {}
    for entry in store.runs():
        nodes = int(store.values("params", entry["run_id"])["model.nodes"])
        run_by_nodes[nodes] = entry
    assert {nodes: entry["outcome"] for nodes, entry in run_by_nodes.items()} == EXPECTED
    assert {entry["status"] for entry in run_by_nodes.values()} == {"FINISHED", "FAILED"}
    for entry in run_by_nodes.values():
        assert (entry["status"] == "FINISHED") == (entry["outcome"] == "ok")
    assert run_by_nodes[12]["reason"].startswith("took longer than 2 s, in phase ")
    assert run_by_nodes[14]["reason"].startswith("SIGSEGV in phase ")
    assert "the limit is 1.00 GiB" in run_by_nodes[12000]["reason"]
    assert "needs at least" in run_by_nodes[40000]["reason"]
    assert "this machine has no GPU" in run_by_nodes[15]["reason"]
    assert (
        store.values("latest_metrics", run_by_nodes[12000]["run_id"])["peak_memory_bytes"] > 2**30
    )
    assert all("\n" not in entry.get("reason", "") for entry in run_by_nodes.values())
    for outcome, count in Counter(EXPECTED.values()).items():
        assert f"{count} {outcome}" in completed.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_of_schedulers_interrupt_like_ctrl_c(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


class InterruptedFinalizer:
    """Object that receives SIGTERM in its finalizer, where Python ignores KeyboardInterrupt."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def finalize_and_wait() -> None:
    InterruptedFinalizer()  # finalized at once, since no variable refers to it
    time.sleep(PATIENCE)


def test_an_interrupt_that_python_ignores_is_repeated() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        finalize_and_wait()


def test_an_interrupted_sweep_ends_cleanly_and_can_be_resumed(store: Store) -> None:
    axes = [
        "-m",
        "model.nodes=8,9",
        "sweep.order=given",
        *(entry for entry in TINY if "nodes" not in entry),
    ]
    with driver(store, *axes, "measure.min_seconds=1000") as process:
        assert wait_for(lambda: measuring_child(process))
        started = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "2 not measured" in output
    assert "the same command measures the missing points" in errors
    assert all_gone(started)
    assert [run["status"] for run in store.runs()] == ["KILLED"]
    assert [run["status"] for run in store.runs("sweep")] == ["KILLED"]
    assert "outcome" not in store.runs()[0]


def test_a_driver_killed_in_a_point_of_several_processes_leaves_no_process(
    store: Store,
) -> None:
    messages = [
        "model=channel",
        "measure=quick",
        "measure.min_seconds=1000",
        "measure.max_seconds=1000",
    ]
    with driver(store, *messages) as process:
        assert wait_for(lambda: (child := measuring_child(process)) and children_of(child))
        started = children_of(process.pid)
        assert len(started) >= 3, "the worker, the point, its second process"
        process.kill()
        process.wait(PATIENCE)
        assert all_gone(started)


def test_changed_limits_and_retried_outcomes_are_measured_again(store: Store) -> None:
    rest = [
        "-m",
        *(entry for entry in TINY if "min_seconds" not in entry and "block_seconds" not in entry),
    ]
    former = "measure.min_seconds=1 measure.block_seconds=0.1"
    point = [*rest, *former.split()]
    assert "1 timeout" in run(["paradnn.train", *point, "measure.timeout=0.2"], store).stdout
    assert (
        "1 timeout"
        in run(["paradnn.train", *point, "measure.timeout=0.2", "resume=retry"], store).stdout
    )
    assert "1 ok" in run(["paradnn.train", *point], store).stdout
    assert "1 skipped" in run(["paradnn.train", *point, "measure.timeout=0.2"], store).stdout
    *stopped, whole = sorted(store.runs(), key=lambda run: run["outcome"] == "ok")
    short = Point(FullyConnected(), measure=Measure(timeout=0.2))
    long = Point(FullyConnected(), measure=Measure(timeout=600.0))
    resume = ResumePolicy(True, ("timeout",))
    retry = ResumePolicy("retry", ("timeout",))
    for entry in stopped:
        assert resume.accepts(short, entry)
        assert not resume.accepts(long, entry)
        assert not retry.accepts(short, entry)
        assert not retry.accepts(long, entry)
    assert len(stopped) == 2
    for policy in (resume, retry):
        assert policy.accepts(short, whole)
        assert policy.accepts(long, whole)

    errors = run(["paradnn.train", *rest, "measure.timeout=0.2"], store).stderr
    assert (
        "the store holds 1 point of this sweep, measured under the former protocol of "
        f"measure=standard; to skip them, add {former}"
    ) in errors
