"""The three frameworks compared with each other, on one device and on two.

The same weights and batch give the same loss and gradients. Each framework computes in a separate
process. `make test-frameworks` installs all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.worker.families import MODELS, run_module

#: Largest difference of a gradient relative to the variable's largest gradient, and of a loss
#: relative to itself. float32 has 24 bits. Two sums of the same thousand terms in different orders
#: agree in about 17 bits.
GRADIENT_TOLERANCE = 2e-5
LOSS_TOLERANCE = 2e-6
#: Largest relative difference of a loss after updates, which accumulate differences. In addition,
#: Keras under TensorFlow squares the gradients of an embedding's row before it sums them. The other
#: frameworks square the sum. With Adam, this changes a loss by about 4e-4.
LATER_LOSS_TOLERANCE = 5e-3
#: Largest difference between logits with and without a cache. Logits are of the order of ten.
GENERATION_TOLERANCE = 1e-4
#: Relative change of the inputs. Rounding alone may move an input of a rectifier or a maximum this
#: far, to the other side of its kink.
NUDGE = 1e-5
#: Relative change of gradients that indicates a kink. The nudge changes smooth gradients by about
#: 2e-4, and those across a kink by about 1e-2.
KINK = 1e-3

#: Families whose steps run over two devices.
DISTRIBUTED_FAMILIES = ("fc", "residual")
#: Seed of a batch that is not near a kink.
DISTRIBUTED_SEED = 5
#: Largest relative difference of a loss after two updates.
DISTRIBUTED_LOSS_TOLERANCE = 1e-4
#: Largest difference of a variable relative to its change over three updates.
DISTRIBUTED_TOLERANCE = 1e-3

#: torch.compile calls a C++ compiler for every kernel, about 50 times for a GRU. On a busy machine
#: that takes many minutes.
pytestmark = pytest.mark.timeout(1800)

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Reference:
    """TensorFlow's results for the batch drawn with `seed`, which is not near a kink."""

    seed: int
    values: Values


def run_steps(
    framework: str,
    compile_mode: str,
    folder: Path,
    families: Sequence[str],
    seed: int,
    variation: object = 0.0,
    module: str = "one_step",
) -> Values:
    """Run steps in a separate process and return their results by name.

    Args:
        framework: Framework of the steps.
        compile_mode: Compile mode of the steps.
        folder: Folder for results and caches.
        families: Families of models.
        seed: Seed of the batch.
        variation: Relative change of the inputs (`one_step`) or the devices
            (`distributed_steps`).
        module: Module of these tests that runs the steps.
    """
    target = folder / f"{framework}-{compile_mode}-{seed}-{variation}.npz"
    run_module(
        module,
        framework,
        [framework, compile_mode, str(target), str(seed), str(variation), *families],
        folder,
    )
    with np.load(target) as values:
        return dict(values)


def run_on_devices(framework: str, compile_mode: str, devices: str, folder: Path) -> Values:
    return run_steps(
        framework,
        compile_mode,
        folder,
        DISTRIBUTED_FAMILIES,
        DISTRIBUTED_SEED,
        devices,
        "distributed_steps",
    )


def gradient_difference(first: Values, second: Values) -> float:
    """Return the largest difference of gradients, relative to a variable's largest gradient."""
    shared = [name for name in first if "/gradient/" in name and name in second]
    assert shared
    return max(
        np.abs(first[name] - second[name]).max() / np.abs(first[name]).max() for name in shared
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return results for the first batch whose gradients hardly change if the inputs are nudged."""
    folder = tmp_path_factory.mktemp("reference")
    with_kinks = ["fc", "residual", "bottleneck"]
    for seed in range(4, 14):
        values = run_steps("tensorflow", "eager", folder, with_kinks, seed)
        nudged = run_steps("tensorflow", "eager", folder, with_kinks, seed, NUDGE)
        if gradient_difference(values, nudged) < KINK:
            return Reference(seed, run_steps("tensorflow", "graph", folder, list(MODELS), seed))
    raise AssertionError("ten batches in a row have a kink")


@pytest.mark.parametrize(
    ("framework", "compile_mode", "families"),
    [
        pytest.param("jax", "graph", list(MODELS), id="JAX"),
        pytest.param("torch", "eager", list(MODELS), id="PyTorch"),
        pytest.param("torch", "graph", ["fc", "gru"], id="PyTorch, compiled"),
        pytest.param("tensorflow", "xla", ["fc", "residual"], id="TensorFlow with XLA"),
    ],
)
def test_equal_weights_and_batches_give_equal_losses_and_gradients(
    reference: Reference, framework: str, compile_mode: str, families: list[str], tmp_path: Path
) -> None:
    results = run_steps(framework, compile_mode, tmp_path, families, reference.seed)
    assert {name.split("/")[0] for name in results} == set(families)
    for name, values in results.items():
        if "/weight/" in name:
            np.testing.assert_array_equal(values, reference.values[name], err_msg=name)
        elif "/loss" in name:
            if "/losses/" in name:
                tolerance = LATER_LOSS_TOLERANCE
            else:
                tolerance = LOSS_TOLERANCE
            np.testing.assert_allclose(values, reference.values[name], rtol=tolerance, err_msg=name)
    assert gradient_difference(reference.values, results) <= GRADIENT_TOLERANCE


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Values]:
    """Return the expected results of two devices, by framework.

    A TensorFlow replica normalizes by the statistics of its examples. The reference is therefore
    one device that calls the model for each half of the batch. JAX's program has the same result
    over any number of devices.
    """
    folder = tmp_path_factory.mktemp("one")
    shards = run_on_devices("tensorflow", "eager", "shards of 2", folder)
    return {"tensorflow": shards, "jax": run_on_devices("jax", "graph", "1", folder)}


@pytest.mark.parametrize(
    ("framework", "compile_mode"),
    [("tensorflow", "graph"), ("tensorflow", "eager"), ("jax", "graph"), ("jax", "eager")],
)
def test_two_devices_compute_the_same_as_one(
    one_device: dict[str, Values], framework: str, compile_mode: str, tmp_path: Path
) -> None:
    results = run_on_devices(framework, compile_mode, "2", tmp_path)
    expected = one_device[framework]
    assert set(results) == set(expected)
    for name, values in results.items():
        if "/start/" in name:
            np.testing.assert_array_equal(values, expected[name], err_msg=name)
            # Relative to the change over three steps, not to the weights.
            after = name.replace("/start/", "/weight/")
            change = np.abs(expected[after] - values).max()
            difference = np.abs(results[after] - expected[after]).max()
            assert difference <= DISTRIBUTED_TOLERANCE * change, after
        elif "/losses" in name:
            np.testing.assert_allclose(
                values, expected[name], rtol=DISTRIBUTED_LOSS_TOLERANCE, err_msg=name
            )


def test_two_devices_that_divide_the_weights_compute_the_same_as_one(tmp_path: Path) -> None:
    names = ["fc", "residual", "rnn", "transformer"]
    module = "distributed_steps"
    one = run_steps("jax", "graph", tmp_path, names, DISTRIBUTED_SEED, "1", module)

    shared = run_steps("jax", "graph", tmp_path, names, DISTRIBUTED_SEED, "weights over 2", module)

    assert set(shared) == set(one)
    for name in names:
        np.testing.assert_allclose(
            shared[f"{name}/losses"],
            one[f"{name}/losses"],
            rtol=DISTRIBUTED_LOSS_TOLERANCE,
            err_msg=name,
        )
    for name in (name for name in one if "/start/" in name):
        after = name.replace("/start/", "/weight/")
        np.testing.assert_array_equal(shared[name], one[name], err_msg=name)
        change = np.abs(one[after] - one[name]).max()
        difference = np.abs(shared[after] - one[after]).max()
        assert difference <= DISTRIBUTED_TOLERANCE * change, after


@pytest.mark.parametrize(
    ("framework", "compile_mode"),
    [("jax", "graph"), ("jax", "eager"), ("torch", "eager"), ("torch", "graph")],
)
def test_tokens_from_a_cache_equal_those_of_the_whole_model(
    framework: str, compile_mode: str, tmp_path: Path
) -> None:
    target = tmp_path / "tokens.npz"
    run_module("generated_tokens", framework, [framework, compile_mode, str(target)], tmp_path)
    with np.load(target) as results:
        np.testing.assert_array_equal(results["cached/tokens"], results["whole/tokens"])
        np.testing.assert_allclose(
            results["cached/logits"], results["whole/logits"], atol=GENERATION_TOLERANCE
        )
        assert len(set(results["cached/tokens"].ravel().tolist())) > 3
