"""Steps from one's own kernels, asked of `ask`: CANDLE's worked example, planted platforms, and
what is refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.atlas.ask import main as ask
from analysis.atlas.own import own_atlas
from paradnn.families import model_of
from tests.analysis.planted import runs
from tests.families.test_operations import p1b3

P1B3 = p1b3()
LARGE = {"layers": 3, "nodes": 700, "input_size": 900, "output_size": 50}
CALL = 1e-4
STEP = 5e-6
PEAK = 5e10
BANDWIDTH = 1e10


def kernels(
    shapes: list[tuple[int, int, int, str]], milliseconds: list[float], **columns: Any
) -> pd.DataFrame:
    m, n, k, letters = zip(*shapes, strict=True)
    points = pd.DataFrame({"model.m": m, "model.n": n, "model.k": k})
    flips = {
        f"model.transpose_{side}": [letter[place] == "t" for letter in letters]
        for place, side in enumerate("ab")
    }
    given = {"family": "gemm", "batch_size": 1, "mode": "inference", "step_time_ms": milliseconds}
    return runs(points, **{**flips, **given, **columns})


def planted(noise: float = 0.0, start: float = 0.0) -> pd.DataFrame:
    """A platform whose products and elementwise operations follow a roofline with a call; a product
    takes `start` seconds more, and all vary by `noise`.
    """
    random = np.random.default_rng(0)
    shapes = [
        (*map(int, size), variant)
        for variant in ("nn", "tn", "nt")
        for size in np.exp(random.uniform(np.log(10), np.log(2000), (25, 3)))
    ]
    products = kernels(shapes, [1e3 * (CALL + start + seconds(gemm(*shape))) for shape in shapes])
    sizes = [
        (elements, chain) for elements in (10, 10**3, 10**4, 10**5, 10**6) for chain in (1, 30)
    ]
    chains = [
        model_of({"name": "elementwise", "elements": e, "operations": o}).as_operation(1, "float32")
        for e, o in sizes
    ]
    times = [1e3 * (CALL + one.calls * STEP + one.bytes / BANDWIDTH) for one in chains]
    columns = pd.DataFrame(sizes, columns=["model.elements", "model.operations"])
    given = {"family": "elementwise", "batch_size": 1, "mode": "inference", "step_time_ms": times}
    both = pd.concat([products, runs(columns, **given)], ignore_index=True)
    return both.assign(
        step_time_ms=both["step_time_ms"] * np.exp(noise * random.standard_normal(len(both)))
    )


def gemm(m: int, n: int, k: int, variant: str) -> Any:
    flips = {f"transpose_{side}": letter == "t" for side, letter in zip("ab", variant, strict=True)}
    return model_of({"name": "gemm", "m": m, "n": n, "k": k, **flips}).as_operation(1, "float32")


def seconds(operation: Any) -> float:
    return max(operation.flops / PEAK, operation.bytes / BANDWIDTH)


def whole(model: dict[str, Any], batch_size: int, start: float = 0.0) -> float:
    """What the planted platform takes for the products of a step and the traffic beside them, each
    in an operation.
    """
    built = model_of({**model, "name": "fc"})
    products = built.product_list(batch_size=batch_size, precision="float32", mode="train")
    costs = built.costs(
        batch_size=batch_size, precision="float32", mode="train", optimizer="rmsprop"
    )
    moved = costs.bytes_per_step - sum(each.operation.bytes for each in products)
    each = sum(seconds(each.operation) + start + 2 * STEP for each in products)
    return CALL + each + moved / BANDWIDTH


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `ask` answers of a device from these kernels, with a word for each key of the model."""

    def answer(
        frame: pd.DataFrame, model: dict[str, Any], *words: str, device: str = "Test CPU"
    ) -> dict[str, Any]:
        monkeypatch.setattr("analysis.store.load.load", lambda *_, **given: frame)
        keys = [f"model.{key}={value}".replace(" ", "") for key, value in model.items()]
        ask(
            ["--device", device, "--json", str(tmp_path / "answer.json"), "model=fc", *keys, *words]
        )
        return json.loads((tmp_path / "answer.json").read_text())

    return answer


def test_candles_products_add_up(asked: Any) -> None:
    """13 sets of operands, 115.53 ms together."""
    assert round(sum(P1B3.values()), 2) == 115.53
    model = {"layers": 4, "nodes": [1000, 500, 100, 50], "input_size": 29532, "output_size": 1}
    found = asked(
        kernels(list(P1B3), list(P1B3.values()), device="x86"),
        model,
        "batch_size=100",
        device="x86",
    )
    assert 1e3 * found["seconds"] * found["parts"]["products"] == pytest.approx(115.53, rel=0.03)
    assert any("moved as fast as a product's operands" in note for note in found["extrapolated"])


@pytest.mark.parametrize("batch_size", [8, 64, 512])
def test_a_planted_step_lies_within_its_interval(asked: Any, batch_size: int) -> None:
    found = asked(planted(), LARGE, f"batch_size={batch_size}")
    truth = whole(LARGE, batch_size)
    assert found["device"] == "Test CPU"
    assert found["seconds"] == pytest.approx(truth, rel=0.15)
    assert found["low"] < truth < found["high"]
    assert sum(found["parts"].values()) == pytest.approx(1, abs=0.1)
    source = next(one for one in found["sources"] if "gemm" in one)
    assert source.startswith("the store: gemm in float32 on Test CPU")
    assert "median error" in source


def test_small_operations_do_not_add_up_the_noise_of_calls(asked: Any) -> None:
    """Some hundred products of a few bytes: each kernel's call varies by as much as such an
    operation takes.
    """
    small = {"layers": 100, "nodes": 8, "input_size": 8, "output_size": 8}
    found = asked(planted(noise=0.04), small, "batch_size=1")
    assert found["seconds"] == pytest.approx(whole(small, 1), rel=0.3)


def test_what_a_product_takes_to_begin_is_no_part_of_the_call(asked: Any) -> None:
    """A library's own preparations happen in every product of a step, the call once."""
    start = 1e-4
    small = {"layers": 8, "nodes": 16, "input_size": 16, "output_size": 16}
    found = asked(planted(start=start), small, "batch_size=4")
    assert found["seconds"] == pytest.approx(whole(small, 4, start), rel=0.3)


def test_what_is_larger_than_every_kernel_is_extrapolated(asked: Any) -> None:
    found = asked(planted(), {**LARGE, "nodes": 8000}, "batch_size=64")
    assert any(note.startswith("products: n is ") for note in found["extrapolated"])
    assert found["high"] / found["low"] > 1.5


def test_a_similar_device_narrows_what_a_few_products_say(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From eight products alone, and beside a device of the atlas whose hundred are twice as slow."""
    monkeypatch.setattr(
        "analysis.atlas.own.load", lambda: own_atlas(slow, "Old CPU", {"precision": "float32"})
    )
    slow = planted(noise=0.01).assign(device="Old CPU").eval("step_time_ms = 2 * step_time_ms")
    few = planted(noise=0.01).drop(index=range(8, 75))
    widths = []
    for words in ([], ["--from", "Old CPU"]):
        found = asked(few, LARGE, "batch_size=64", *words)
        truth = whole(LARGE, 64)
        assert found["low"] < truth < found["high"]
        widths.append(found["high"] / found["low"])
    assert widths[1] < widths[0]
    assert any(
        "beside the store: gemm in float32 on Old CPU" in source for source in found["sources"]
    )


@pytest.mark.parametrize(
    ("frame", "words", "why"),
    [
        (
            kernels(list(P1B3)[:3], list(P1B3.values())[:3]),
            [],
            "too few kernels ran there (3 gemm); 5 of a kind",
        ),
        (planted(), ["precision=bfloat16"], "no kernel ran there with precision=bfloat16"),
        (planted(), ["model=sparse_gemm"], "sparse_gemm is no part of a step that was timed"),
        (planted(), ["devices=2"], "ask for devices=1"),
    ],
)
def test_what_is_not_known_is_told(
    asked: Any, frame: pd.DataFrame, words: list[str], why: str
) -> None:
    found = asked(frame, {} if "model=sparse_gemm" in words else LARGE, *words)
    assert found["seconds"] is None
    assert why in found["why"]
