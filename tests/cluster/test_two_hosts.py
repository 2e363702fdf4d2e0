"""Training over two hosts, whose link has a planted rate or fails."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from tests.cluster.namespaces import Namespace, serving, two_hosts
from tests.conftest import ROOT, SHORT, Store, environment
from tests.processes import PATIENCE, started, wait_for

#: 2,000 x 512, 512 x 512 and 512 x 200 weights, and biases.
FC = ["model=fc", "model.layers=2", "model.nodes=512", "batch_size=64", "hosts=2"]
GRADIENT_BYTES = 4 * (2001 * 512 + 513 * 512 + 513 * 200)
#: Trainable parameters of ResNet-56 for CIFAR-10 with shortcuts that have none: convolutions,
#: scales and shifts of batch normalization, and the classifier.
RESNET56_PARAMETERS = 848_304 + 4_064 + 650
#: Seconds in which the loss of a host must end a point, and seconds of its keep-alive.
NOTICED = 120.0
FRAMEWORKS = [
    pytest.param(
        name,
        id=name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
        ),
    )
    for name in ("tensorflow", "torch", "jax")
]


@contextmanager
def training(
    host: Namespace, store: Store, variables: Mapping[str, str], words: Sequence[str]
) -> Iterator[subprocess.Popen[str]]:
    """Train a point that a host shares with another."""
    command = host.command([sys.executable, "-m", "paradnn.train", *SHORT, *words])
    environ = {**environment(store), **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with started(command, cwd=ROOT, env=environ, text=True, **pipes) as process:
        yield process


def train(
    host: Namespace, store: Store, variables: Mapping[str, str], words: Sequence[str]
) -> None:
    with training(host, store, variables, words) as process:
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 0, out


def test_the_rate_of_the_link_decides_the_communication(store: Store) -> None:
    """Each of two processes sends and receives its gradients once: 2 (n - 1) / n times."""
    found = {}
    with two_hosts() as (one, two), serving(two) as variables:
        for megabits in (50, 200):
            one.limit(megabits)
            two.limit(megabits)
            train(one, store, variables, [*FC, f"seed={megabits}"])
        for run in store.runs():
            assert run["outcome"] == "ok", run
            seed = int(store.values("params", run["run_id"])["seed"])
            found[seed] = store.values("latest_metrics", run["run_id"])

    for megabits, metrics in found.items():
        assert metrics["gradient_bytes"] == GRADIENT_BYTES
        # Only a lower bound: a busy machine adds to it.
        transfer_ms = 1e3 * 8 * GRADIENT_BYTES / (megabits * 1e6)
        assert 0.95 * transfer_ms < metrics["communication_ms"]
        assert metrics["communication_share"] == pytest.approx(
            metrics["communication_ms"] / metrics["step_time_ms"], rel=0.2
        )
    # The transfers differ by a factor of four.
    assert found[200]["communication_ms"] < found[50]["communication_ms"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_hosts_train_resnet_56(framework: str, store: Store) -> None:
    megabits = 20
    words = ["model=resnet56", "batch_size=4", "hosts=2", f"framework={framework}"]
    if framework == "torch":
        words.append("compile=eager")  # torch.compile takes minutes

    with two_hosts() as (one, two), serving(two) as variables:
        one.limit(megabits)
        two.limit(megabits)
        train(one, store, variables, words)

    [run] = store.runs()
    metrics = store.values("latest_metrics", run["run_id"])
    assert run["outcome"] == "ok", run
    assert metrics["gradient_bytes"] == 4 * RESNET56_PARAMETERS
    # Even if the exchange overlaps with all computing, no step is shorter than the exchange.
    transfer_ms = 1e3 * 8 * 4 * RESNET56_PARAMETERS / (megabits * 1e6)
    assert metrics["step_time_ms"] > 0.95 * transfer_ms
    assert 0 < metrics["communication_ms"] < metrics["step_time_ms"]


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(Namespace.kill_all, id="killed"),
        pytest.param(Namespace.cut, id="link cut"),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_lost_host_ends_a_training_with_a_reason(
    framework: str, lose: Callable[[Namespace], None], store: Store
) -> None:
    words = [*FC, f"framework={framework}", "compile=eager", "measure.min_seconds=1000"]
    with (
        two_hosts() as (one, two),
        serving(two) as variables,
        training(one, store, variables, words) as process,
    ):
        assert wait_for(lambda: two.received() > 20 * GRADIENT_BYTES or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        lose(two)
        lost = time.monotonic()
        out, _ = process.communicate(timeout=PATIENCE)
        seconds = time.monotonic() - lost
        left_on_one = one.processes()
        assert wait_for(lambda: len(two.processes()) <= 1, NOTICED)  # its server may continue

    [run] = store.runs()
    assert run["outcome"] == "unavailable", out
    assert (
        "no server answers at 10.77.0.2:5000; start python -m paradnn.worker.host" in run["reason"]
    )
    assert run["status"] == "FAILED"
    assert seconds < NOTICED
    assert left_on_one == []
