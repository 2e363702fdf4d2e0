"""Training on two hosts over a link that has a planted rate or fails."""

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

#: Point with 2,000 x 512, 512 x 512 and 512 x 200 weights, and biases.
FC = ["model=fc", "model.layers=2", "model.nodes=512", "batch_size=64", "hosts=2"]
#: Bytes of its gradients in float32.
GRADIENT_BYTES = 4 * (2001 * 512 + 513 * 512 + 513 * 200)
#: Trainable parameters of ResNet-56 for CIFAR-10 with shortcuts without parameters: convolutions,
#: scales and shifts of batch normalization, and the classifier.
RESNET56_PARAMETERS = 848_304 + 4_064 + 650
#: Time limit in seconds for the loss of a host to end a point, and for its processes to end.
LOSS_SECONDS = 120.0
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
    """Start the training of a point from a host; yield the process."""
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


def test_the_time_of_communication_follows_from_the_rate_of_the_link(store: Store) -> None:
    """Each of n = 2 processes sends and receives its gradients 2 (n - 1) / n = 1 time."""
    found = {}
    with two_hosts() as (first, second), serving(second) as variables:
        for megabits in (50, 200):
            first.limit(megabits)
            second.limit(megabits)
            train(first, store, variables, [*FC, f"seed={megabits}"])
        for run in store.runs():
            assert run["outcome"] == "ok", run
            seed = int(store.values("params", run["run_id"])["seed"])
            found[seed] = store.values("latest_metrics", run["run_id"])

    for megabits, metrics in found.items():
        assert metrics["gradient_bytes"] == GRADIENT_BYTES
        # This is only a lower bound, because a busy machine takes longer.
        transfer_ms = 1e3 * 8 * GRADIENT_BYTES / (megabits * 1e6)
        assert 0.95 * transfer_ms < metrics["communication_ms"]
        assert metrics["communication_share"] == pytest.approx(
            metrics["communication_ms"] / metrics["step_time_ms"], rel=0.2
        )

    # The transfer times differ by a factor of four.
    assert found[200]["communication_ms"] < found[50]["communication_ms"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_hosts_train_resnet_56(framework: str, store: Store) -> None:
    megabits = 20
    words = ["model=resnet56", "batch_size=4", "hosts=2", f"framework={framework}"]
    if framework == "torch":
        words.append("compile=eager")  # torch.compile takes minutes

    with two_hosts() as (first, second), serving(second) as variables:
        first.limit(megabits)
        second.limit(megabits)
        train(first, store, variables, words)

    [run] = store.runs()
    metrics = store.values("latest_metrics", run["run_id"])

    assert run["outcome"] == "ok", run
    assert metrics["gradient_bytes"] == 4 * RESNET56_PARAMETERS

    # No step is shorter than the exchange, even if the exchange overlaps with all computation.
    transfer_ms = 1e3 * 8 * 4 * RESNET56_PARAMETERS / (megabits * 1e6)
    assert metrics["step_time_ms"] > 0.95 * transfer_ms
    assert 0 < metrics["communication_ms"] < metrics["step_time_ms"]


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(Namespace.kill_all, id="processes killed"),
        pytest.param(Namespace.cut, id="link cut"),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_loss_of_a_host_ends_a_training_with_a_reason(
    framework: str, lose: Callable[[Namespace], None], store: Store
) -> None:
    words = [*FC, f"framework={framework}", "compile=eager", "measure.min_seconds=1000"]
    with (
        two_hosts() as (first, second),
        serving(second) as variables,
        training(first, store, variables, words) as process,
    ):
        assert wait_for(
            lambda: second.received() > 20 * GRADIENT_BYTES or process.poll() is not None
        )
        assert process.poll() is None, process.communicate()
        lose(second)
        lost_at = time.monotonic()
        out, _ = process.communicate(timeout=PATIENCE)
        seconds = time.monotonic() - lost_at
        remaining_processes = first.processes()
        assert wait_for(
            lambda: len(second.processes()) <= 1, LOSS_SECONDS
        )  # the process server may continue

    [run] = store.runs()

    assert run["outcome"] == "unavailable", out
    assert (
        "no server answers at 10.77.0.2:5000; start python -m paradnn.worker.host" in run["reason"]
    )
    assert run["status"] == "FAILED"
    assert seconds < LOSS_SECONDS
    assert remaining_processes == []
