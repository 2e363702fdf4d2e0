"""The three frameworks against each other: the same weights and batch give the same loss and
gradients, also on two devices. Each computes in a process of its own; `make test-frameworks`
installs all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.worker.families import MODELS, run_module

#: Largest difference of a gradient, as a share of that variable's largest gradient; and of a loss,
#: as a share of it. float32 has 24 bits, and a sum of some thousand terms in another order keeps
#: about 17 of them.
GRADIENT_TOLERANCE = 2e-5
LOSS_TOLERANCE = 2e-6
#: After updates, which sum up what differs. Keras under TensorFlow also squares an embedding's
#: gradient before it sums what falls to one row, where the others square the sum: some 4e-4 of a
#: loss with Adam.
LATER_LOSS_TOLERANCE = 5e-3
#: Of a logit of some ten, with a cache and without.
GENERATION_TOLERANCE = 1e-4
#: A rectifier or a maximum that is this near to its kink may fall to either side of it by rounding
#: alone.
NUDGE = 1e-5
#: Smooth gradients move by some 2e-4 of themselves when nudged so, those across a kink by a
#: hundredth.
KINK = 1e-3

#: Families whose steps run over two devices; a share of a loss after two updates, and of what three
#: have changed in a variable; and the seed of a batch that is not near a kink.
DISTRIBUTED_SEED = 5
DISTRIBUTED_FAMILIES = ("fc", "residual")
DISTRIBUTED_LOSS_TOLERANCE = 1e-4
DISTRIBUTED_TOLERANCE = 1e-3

#: torch.compile calls a C++ compiler for every kernel, some fifty for a GRU: on a busy machine that
#: is many minutes.
pytestmark = pytest.mark.timeout(1800)

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Reference:
    """What TensorFlow computes for the batch drawn from `seed`, where no kink is near."""

    seed: int
    values: Values


def steps(
    framework: str,
    compile_mode: str,
    folder: Path,
    families: Sequence[str],
    seed: int,
    how: object = 0.0,
    module: str = "one_step",
) -> Values:
    """What a module of these tests writes, as a process of its own: steps on a batch that is
    nudged, or on devices.
    """
    target = folder / f"{framework}-{compile_mode}-{seed}-{how}.npz"
    run_module(
        module,
        framework,
        [framework, compile_mode, str(target), str(seed), str(how), *families],
        folder,
    )
    with np.load(target) as values:
        return dict(values)


def on_devices(framework: str, compile_mode: str, devices: str, folder: Path) -> Values:
    return steps(
        framework,
        compile_mode,
        folder,
        DISTRIBUTED_FAMILIES,
        DISTRIBUTED_SEED,
        devices,
        "distributed_steps",
    )


def gradient_difference(first: Values, second: Values) -> float:
    """The largest over all variables of both, each as a share of the variable's largest gradient."""
    shared = [name for name in first if "/gradient/" in name and name in second]
    assert shared
    return max(
        np.abs(first[name] - second[name]).max() / np.abs(first[name]).max() for name in shared
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The first batch whose gradients stay as they are when it is nudged."""
    folder = tmp_path_factory.mktemp("reference")
    with_kinks = ["fc", "residual", "bottleneck"]
    for seed in range(4, 14):
        values = steps("tensorflow", "eager", folder, with_kinks, seed)
        nudged = steps("tensorflow", "eager", folder, with_kinks, seed, NUDGE)
        if gradient_difference(values, nudged) < KINK:
            return Reference(seed, steps("tensorflow", "graph", folder, list(MODELS), seed))
    raise AssertionError("ten batches in a row have a kink")


@pytest.mark.parametrize(
    ("framework", "compile_mode", "families"),
    [
        ("jax", "graph", list(MODELS)),
        ("torch", "eager", list(MODELS)),
        ("torch", "graph", ["fc", "gru"]),
        ("tensorflow", "xla", ["fc", "residual"]),
    ],
)
def test_equal_weights_and_batches_give_equal_losses_and_gradients(
    reference: Reference, framework: str, compile_mode: str, families: list[str], tmp_path: Path
) -> None:
    found = steps(framework, compile_mode, tmp_path, families, reference.seed)
    assert {name.split("/")[0] for name in found} == set(families)
    for name, values in found.items():
        if "/weight/" in name:
            np.testing.assert_array_equal(values, reference.values[name], err_msg=name)
        elif "/loss" in name:
            if "/losses/" in name:
                tolerance = LATER_LOSS_TOLERANCE
            else:
                tolerance = LOSS_TOLERANCE
            np.testing.assert_allclose(values, reference.values[name], rtol=tolerance, err_msg=name)
    assert gradient_difference(reference.values, found) <= GRADIENT_TOLERANCE


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Values]:
    """What each framework's two devices should come to.

    A replica of TensorFlow normalises by the statistics of its own examples, so there it is one
    device that calls the model for each half of the batch; JAX's program means the same over any
    number of devices.
    """
    folder = tmp_path_factory.mktemp("one")
    shards = on_devices("tensorflow", "eager", "shards of 2", folder)
    return {"tensorflow": shards, "jax": on_devices("jax", "graph", "1", folder)}


@pytest.mark.parametrize(
    ("framework", "compile_mode"),
    [("tensorflow", "graph"), ("tensorflow", "eager"), ("jax", "graph"), ("jax", "eager")],
)
def test_two_devices_are_one(
    one_device: dict[str, Values], framework: str, compile_mode: str, tmp_path: Path
) -> None:
    found = on_devices(framework, compile_mode, "2", tmp_path)
    expected = one_device[framework]
    assert set(found) == set(expected)
    for name, values in found.items():
        if "/start/" in name:
            np.testing.assert_array_equal(values, expected[name], err_msg=name)
            # Of what three steps changed, not of the weights.
            after = name.replace("/start/", "/weight/")
            moved = np.abs(expected[after] - values).max()
            assert np.abs(found[after] - expected[after]).max() <= DISTRIBUTED_TOLERANCE * moved, (
                after
            )
        elif "/losses" in name:
            np.testing.assert_allclose(
                values, expected[name], rtol=DISTRIBUTED_LOSS_TOLERANCE, err_msg=name
            )


@pytest.mark.parametrize(
    ("framework", "compile_mode"),
    [("jax", "graph"), ("jax", "eager"), ("torch", "eager"), ("torch", "graph")],
)
def test_tokens_from_a_cache_are_those_of_the_whole_model(
    framework: str, compile_mode: str, tmp_path: Path
) -> None:
    run_module(
        "generated_tokens",
        framework,
        [framework, compile_mode, str(tmp_path / "found.npz")],
        tmp_path,
    )
    with np.load(tmp_path / "found.npz") as found:
        np.testing.assert_array_equal(found["cached/tokens"], found["whole/tokens"])
        np.testing.assert_allclose(
            found["cached/logits"], found["whole/logits"], atol=GENERATION_TOLERANCE
        )
        assert len(set(found["cached/tokens"].ravel().tolist())) > 3
