"""Training over two hosts, whose link has a planted rate."""

import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

import pytest

from tests.cluster.namespaces import Namespace, serving, two_hosts
from tests.conftest import ROOT, SHORT, Store, environment, processes_of_points

#: 2,000 x 512, 512 x 512 and 512 x 1,000 weights, and biases.
MODEL = ["model=fc", "model.layers=2", "model.nodes=512", "batch_size=64", "hosts=2"]
GRADIENT_BYTES = 4 * (2001 * 512 + 513 * 512 + 513 * 1000)


def train(
    host: Namespace, store: Store, variables: Mapping[str, str], words: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    command = host.command([sys.executable, "-m", "paradnn.train", *MODEL, *SHORT, *words])
    environ = {**environment(store), **variables}
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False
    )


def test_the_rate_of_the_link_decides_the_communication(store: Store) -> None:
    """Each of two processes sends and receives its gradients once: 2 (n - 1) / n times."""
    found = {}
    with two_hosts() as (one, two), serving(two) as variables:
        for megabits in (50, 200):
            one.limit(megabits)
            two.limit(megabits)
            done = train(one, store, variables, [f"seed={megabits}"])
            assert done.returncode == 0, done.stdout + done.stderr
        for run in store.runs():
            assert run["outcome"] == "ok", run
            seed = int(store.values("params", run["run_id"])["seed"])
            found[seed] = store.values("latest_metrics", run["run_id"])

    for megabits, metrics in found.items():
        assert metrics["gradient_bytes"] == GRADIENT_BYTES
        transfer_ms = 1e3 * 8 * GRADIENT_BYTES / (megabits * 1e6)
        # Headers and acknowledgments take a few percent; a busy machine takes more.
        assert 0.95 * transfer_ms < metrics["communication_ms"] < 1.5 * transfer_ms
        assert metrics["communication_share"] == pytest.approx(
            metrics["communication_ms"] / metrics["step_time_ms"], rel=0.2
        )
    saved_ms = found[50]["step_time_ms"] - found[200]["step_time_ms"]
    assert saved_ms == pytest.approx(1e3 * 8 * GRADIENT_BYTES * (1 / 50e6 - 1 / 200e6), rel=0.25)


@pytest.mark.parametrize("fault", ["the server is killed", "the link is cut"])
def test_a_host_that_is_gone_ends_the_point(fault: str, store: Store) -> None:
    words = ["measure.min_seconds=1000", "measure.max_seconds=1000", "measure.timeout=900"]
    with two_hosts() as (one, two), serving(two) as variables:

        def fail() -> None:
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline and not is_measuring(store):
                time.sleep(0.2)
            if fault == "the link is cut":
                two.cut()
            else:
                for pid in pids_of(two):
                    subprocess.run(["kill", "-9", str(pid)], check=False)

        failing = threading.Thread(target=fail)
        failing.start()
        begin = time.monotonic()
        done = train(one, store, variables, words)
        failing.join()
        seconds = time.monotonic() - begin

    assert seconds < 400
    [run] = store.runs()
    assert run["outcome"] in ("crash", "unavailable"), done.stdout
    assert run["reason"]
    assert not processes_of_points()


def is_measuring(store: Store) -> bool:
    """Return whether a point has been open for long enough to be measured."""
    return any(run["status"] == "RUNNING" for run in store.runs())


def pids_of(host: Namespace) -> list[int]:
    """Return the processes of a host."""
    command = ["ip", "netns", "pids", host.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]
