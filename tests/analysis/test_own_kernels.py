"""`ask` with kernels in the user's store: planted platforms and CANDLE's worked example."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.atlas.ask import main as ask
from analysis.atlas.own import own_atlas
from paradnn.families import make_model
from paradnn.families.operations import Operation
from tests.analysis.planted import runs
from tests.families.test_operations import p1b3

#: Sizes m, n, k of a matrix product, and its transposed operands ("nn", "tn" or "nt").
Shape = tuple[int, int, int, str]
#: Function that asks about the step of a fully connected model and returns the answer.
Ask = Callable[..., dict[str, Any]]

P1B3 = p1b3()
LARGE = {"layers": 3, "nodes": 700, "input_size": 900, "output_size": 50}

# Constants of the planted platform: seconds per call from Python, seconds per operation within a
# call, FLOP/s, and bytes/s.
CALL_SECONDS = 1e-4
STEP_SECONDS = 5e-6
PEAK = 5e10
BANDWIDTH = 1e10


def product_runs(shapes: list[Shape], milliseconds: list[float], **columns: Any) -> pd.DataFrame:
    """Return runs of matrix products, one row per shape."""
    m, n, k, variants = zip(*shapes, strict=True)
    return runs(
        pd.DataFrame({"model.m": m, "model.n": n, "model.k": k}),
        **{
            "model.transpose_a": [variant[0] == "t" for variant in variants],
            "model.transpose_b": [variant[1] == "t" for variant in variants],
            "family": "gemm",
            "batch_size": 1,
            "mode": "inference",
            "step_time_ms": milliseconds,
            **columns,
        },
    )


def product(m: int, n: int, k: int, variant: str) -> Operation:
    model = make_model(
        {
            "name": "gemm",
            "m": m,
            "n": n,
            "k": k,
            "transpose_a": variant[0] == "t",
            "transpose_b": variant[1] == "t",
        }
    )
    return model.as_operation(1, "float32")


def work_seconds(operation: Operation) -> float:
    """Return the seconds of an operation under the planted roofline, without the call."""
    return max(operation.flops / PEAK, operation.bytes / BANDWIDTH)


def planted_kernels(noise: float = 0.0, preparation: float = 0.0) -> pd.DataFrame:
    """Return kernels of the planted platform.

    Args:
        noise: Standard deviation of the logarithm of each time.
        preparation: Seconds that each product takes in addition to its work and its call.
    """
    random = np.random.default_rng(0)
    shapes: list[Shape] = []
    for variant in ("nn", "tn", "nt"):
        sizes = np.exp(random.uniform(np.log(10), np.log(2000), (25, 3)))
        shapes += [(int(m), int(n), int(k), variant) for m, n, k in sizes]
    products = product_runs(
        shapes,
        [1e3 * (CALL_SECONDS + preparation + work_seconds(product(*shape))) for shape in shapes],
    )
    kernels = pd.concat([products, _planted_chains()], ignore_index=True)
    errors = np.exp(noise * random.standard_normal(len(kernels)))
    return kernels.assign(step_time_ms=kernels["step_time_ms"] * errors)


def _planted_chains() -> pd.DataFrame:
    """Return runs of elementwise kernels: single operations and chains of thirty operations."""
    sizes = [
        (elements, chain) for elements in (10, 10**3, 10**4, 10**5, 10**6) for chain in (1, 30)
    ]
    milliseconds = []
    for elements, chain in sizes:
        model = make_model({"name": "elementwise", "elements": elements, "operations": chain})
        operation = model.as_operation(1, "float32")
        seconds = CALL_SECONDS + operation.calls * STEP_SECONDS + operation.bytes / BANDWIDTH
        milliseconds.append(1e3 * seconds)
    return runs(
        pd.DataFrame(sizes, columns=["model.elements", "model.operations"]),
        family="elementwise",
        batch_size=1,
        mode="inference",
        step_time_ms=milliseconds,
    )


def planted_step_seconds(model: dict[str, Any], batch_size: int, preparation: float = 0.0) -> float:
    """Return the seconds of a whole training step on the planted platform.

    One elementwise operation follows each product. These operations move all traffic that is not
    of products.
    """
    fc = make_model({**model, "name": "fc"})
    products = fc.product_list(batch_size=batch_size, precision="float32", mode="train")
    costs = fc.costs(batch_size=batch_size, precision="float32", mode="train", optimizer="rmsprop")
    other_bytes = costs.bytes_per_step - sum(entry.operation.bytes for entry in products)
    product_seconds = sum(
        work_seconds(entry.operation) + preparation + 2 * STEP_SECONDS for entry in products
    )
    return CALL_SECONDS + product_seconds + other_bytes / BANDWIDTH


@pytest.fixture
def ask_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that asks about a model on a device whose kernels are in the store."""

    def answer(
        kernels: pd.DataFrame, model: dict[str, Any], *words: str, device: str = "Test CPU"
    ) -> dict[str, Any]:
        monkeypatch.setattr("analysis.store.load.load", lambda *_, **options: kernels)
        file = tmp_path / "answer.json"
        sizes = [f"model.{key}={value}".replace(" ", "") for key, value in model.items()]
        ask(["--device", device, "--json", str(file), "model=fc", *sizes, *words])
        return dict(json.loads(file.read_text()))

    return answer


def test_products_of_candles_example_add_up(ask_about: Ask) -> None:
    """CANDLE's worked example for P1B3 has 13 products, which take 115.53 ms in total."""
    assert round(sum(P1B3.values()), 2) == 115.53

    kernels = product_runs(list(P1B3), list(P1B3.values()), device="x86")
    model = {"layers": 4, "nodes": [1000, 500, 100, 50], "input_size": 29532, "output_size": 1}

    answer = ask_about(kernels, model, "batch_size=100", device="x86")

    product_ms = 1e3 * answer["seconds"] * answer["parts"]["products"]

    assert product_ms == pytest.approx(115.53, rel=0.03)
    assert any("as fast as the operands of a product" in note for note in answer["extrapolated"])


@pytest.mark.parametrize("batch_size", [8, 64, 512])
def test_a_planted_step_lies_within_its_interval(ask_about: Ask, batch_size: int) -> None:
    truth = planted_step_seconds(LARGE, batch_size)

    answer = ask_about(planted_kernels(), LARGE, f"batch_size={batch_size}")

    assert answer["device"] == "Test CPU"
    assert answer["seconds"] == pytest.approx(truth, rel=0.15)
    assert answer["low"] < truth < answer["high"]
    assert sum(answer["parts"].values()) == pytest.approx(1, abs=0.1)

    [source] = [source for source in answer["sources"] if "gemm" in source]
    assert source.startswith("the store: gemm in float32 on Test CPU")
    assert "median error" in source


def test_the_noise_of_calls_does_not_accumulate_over_small_products(ask_about: Ask) -> None:
    """The step has about a hundred small products, each as long as the noise of one call."""
    small = {"layers": 100, "nodes": 8, "input_size": 8, "output_size": 8}

    answer = ask_about(planted_kernels(noise=0.04), small, "batch_size=1")

    assert answer["seconds"] == pytest.approx(planted_step_seconds(small, 1), rel=0.3)


def test_the_preparation_time_is_counted_for_every_product_of_a_step(ask_about: Ask) -> None:
    """Each product of a step is prepared, but the step is called only once."""
    preparation = 1e-4
    small = {"layers": 8, "nodes": 16, "input_size": 16, "output_size": 16}

    answer = ask_about(planted_kernels(preparation=preparation), small, "batch_size=4")

    truth = planted_step_seconds(small, 4, preparation)

    assert answer["seconds"] == pytest.approx(truth, rel=0.3)


def test_sizes_beyond_all_kernels_are_extrapolated_with_a_note(ask_about: Ask) -> None:
    answer = ask_about(planted_kernels(), {**LARGE, "nodes": 8000}, "batch_size=64")

    assert any(note.startswith("products: n is ") for note in answer["extrapolated"])
    assert answer["high"] / answer["low"] > 1.5


def test_kernels_of_a_similar_device_narrow_the_interval(
    ask_about: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predict from eight products, without and with a device that takes twice as long."""
    old_kernels = planted_kernels(noise=0.01).assign(device="Old CPU")
    old_kernels["step_time_ms"] *= 2
    old_atlas = own_atlas(old_kernels, "Old CPU", {"precision": "float32"})
    monkeypatch.setattr("analysis.atlas.own.load", lambda: old_atlas)
    few = planted_kernels(noise=0.01).drop(index=range(8, 75))
    truth = planted_step_seconds(LARGE, 64)

    without_prior = ask_about(few, LARGE, "batch_size=64")
    with_prior = ask_about(few, LARGE, "batch_size=64", "--from", "Old CPU")

    for answer in (without_prior, with_prior):
        assert answer["low"] < truth < answer["high"]

    assert with_prior["high"] / with_prior["low"] < without_prior["high"] / without_prior["low"]

    prior = "with the store: gemm in float32 on Old CPU"
    assert any(prior in source for source in with_prior["sources"])


@pytest.mark.parametrize(
    ("kernels", "overrides", "reason"),
    [
        pytest.param(
            product_runs(list(P1B3)[:3], list(P1B3.values())[:3]),
            [],
            "too few kernels were measured on Test CPU (3 gemm) for an estimate, which needs at least 5",
            id="too-few",
        ),
        pytest.param(
            planted_kernels(),
            ["precision=bfloat16"],
            "no kernel was measured on Test CPU with precision=bfloat16",
            id="precision",
        ),
        pytest.param(
            planted_kernels(),
            ["devices=2"],
            "use devices=1",
            id="devices",
        ),
    ],
)
def test_a_step_without_suitable_kernels_has_a_reason(
    ask_about: Ask, kernels: pd.DataFrame, overrides: list[str], reason: str
) -> None:
    answer = ask_about(kernels, LARGE, *overrides)

    assert answer["seconds"] is None
    assert reason in answer["why"]


def test_a_kernel_that_is_no_part_of_a_step_has_a_reason(ask_about: Ask) -> None:
    answer = ask_about(planted_kernels(), {}, "model=sparse_gemm")

    assert answer["seconds"] is None
    assert "sparse_gemm was not timed as part of a step" in answer["why"]
