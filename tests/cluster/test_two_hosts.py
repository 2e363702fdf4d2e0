"""Training over two hosts, whose link has a planted rate."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from tests.cluster.namespaces import Namespace, serving, two_hosts
from tests.conftest import ROOT, SHORT, Store, environment

#: 2,000 x 512, 512 x 512 and 512 x 200 weights, and biases.
MODEL = ["model=fc", "model.layers=2", "model.nodes=512", "batch_size=64", "hosts=2"]
GRADIENT_BYTES = 4 * (2001 * 512 + 513 * 512 + 513 * 200)


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
