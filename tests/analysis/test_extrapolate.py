"""Steps from kernels: CANDLE's worked example, planted platforms, coverage, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.extrapolate import ExtrapolateOptions, extrapolate, fit_kernels, step_of
from paradnn.core.errors import NotEnoughData, ParadnnError
from paradnn.families import model_of
from tests.analysis.planted import runs

#: Milliseconds of P1B3's products in one pass on x86 (m, n, k, transposes); two of the same operands took 0.549
#: together. Stevens, "Performance and benchmarking of deep learning" (lecture), "P1B3 Matrix Sizes and Times".
P1B3 = {
    (100, 50, 100, "nn"): 0.549 / 2,
    (100, 50, 100, "tn"): 0.549 / 2,
    (29532, 1000, 100, "tn"): 42.27,
    (100, 1000, 29532, "nn"): 65.31,
    (100, 50, 1, "nt"): 0.042,
    (100, 500, 100, "nt"): 0.609,
    (100, 500, 1000, "nn"): 1.21,
    (1000, 500, 100, "tn"): 1.98,
    (50, 1, 100, "tn"): 0.026,
    (100, 100, 50, "nt"): 0.293,
    (100, 1, 50, "nn"): 0.022,
    (100, 1000, 500, "nt"): 2.11,
    (500, 100, 100, "tn"): 0.592,
    (100, 100, 500, "nn"): 0.515,
}
#: The same lecture's operation profile of the pass, shares in percent.
PROFILE = {"MatMul": 40.21, "Assign": 25.64, "Mul": 21.39, "Add": 7.77, "Sub": 0.77, "RandomUniform": 0.61}
MODEL = {"model.layers": 4, "model.nodes": "[1000, 500, 100, 50]", "model.input_size": 29532, "model.output_size": 1}
LARGE = {"model.layers": 3, "model.nodes": "700", "model.input_size": 900, "model.output_size": 50}
CALL, STEP, PEAK, BANDWIDTH = 1e-4, 5e-6, 5e10, 1e10


def kernels(shapes: list[tuple[int, int, int, str]], milliseconds: list[float], **columns: Any) -> pd.DataFrame:
    m, n, k, letters = zip(*shapes, strict=True)
    points = pd.DataFrame({"model.m": m, "model.n": n, "model.k": k})
    flips = {f"model.transpose_{side}": [letter[place] == "t" for letter in letters] for place, side in enumerate("ab")}
    given = {"family": "gemm", "batch_size": 1, "mode": "inference", "step_time_ms": milliseconds}
    return runs(points, **{**flips, **given, **columns})


def point(model: dict[str, Any], batch_size: int = 100, **columns: Any) -> dict[str, Any]:
    return {"family": "fc", "batch_size": batch_size, "precision": "float32", "mode": "train", **model, **columns}


def planted(noise: float = 0.0, start: float = 0.0) -> pd.DataFrame:
    """A platform whose products and elementwise operations follow a roofline with a call; a product takes `start`
    seconds more, and all vary by `noise`."""
    random = np.random.default_rng(0)
    shapes = [
        (*map(int, size), variant)
        for variant in ("nn", "tn", "nt")
        for size in np.exp(random.uniform(np.log(10), np.log(2000), (25, 3)))
    ]
    products = kernels(shapes, [1e3 * (CALL + start + seconds(gemm(*shape))) for shape in shapes])
    sizes = [(elements, chain) for elements in (10, 10**3, 10**4, 10**5, 10**6) for chain in (1, 30)]
    chains = [
        model_of({"name": "elementwise", "elements": e, "operations": o}).as_operation(1, "float32") for e, o in sizes
    ]
    times = [1e3 * (CALL + one.calls * STEP + one.bytes / BANDWIDTH) for one in chains]
    columns = pd.DataFrame(sizes, columns=["model.elements", "model.operations"])
    given = {"family": "elementwise", "batch_size": 1, "mode": "inference", "step_time_ms": times}
    both = pd.concat([products, runs(columns, **given)], ignore_index=True)
    return both.assign(step_time_ms=both["step_time_ms"] * np.exp(noise * random.standard_normal(len(both))))


def gemm(m: int, n: int, k: int, variant: str) -> Any:
    flips = {f"transpose_{side}": letter == "t" for side, letter in zip("ab", variant, strict=True)}
    return model_of({"name": "gemm", "m": m, "n": n, "k": k, **flips}).as_operation(1, "float32")


def seconds(operation: Any) -> float:
    return max(operation.flops / PEAK, operation.bytes / BANDWIDTH)


def whole(model: dict[str, Any], batch_size: int) -> float:
    """What the planted platform takes for the products of a step and the traffic beside them."""
    plain = {key.removeprefix("model."): int(value) for key, value in model.items()} | {"name": "fc"}
    products = model_of(plain).product_list(batch_size=batch_size, precision="float32", mode="train")
    costs = model_of(plain).costs(batch_size=batch_size, precision="float32", mode="train", optimizer="rmsprop")
    moved = costs.bytes_per_step - sum(each.operation.bytes for each in products)
    return CALL + sum(seconds(each.operation) for each in products) + moved / BANDWIDTH


def test_candles_products_add_up() -> None:
    """13 sets of operands, 115.53 ms together, which is 40.21% of the pass."""
    assert round(sum(P1B3.values()), 2) == 115.53
    found = fit_kernels(kernels(list(P1B3), list(P1B3.values()), device="x86"), "x86", {"precision": "float32"})
    table = pd.DataFrame({"type": list(PROFILE), "share": np.array(list(PROFILE.values())) / 100, "bytes": 1e6})
    step = step_of(point(MODEL), found, table)
    assert 1e3 * step.seconds == pytest.approx(115.53, rel=0.03)
    assert step.low < 0.11553 < step.high
    assert step.covered == pytest.approx(0.4021)
    assert step.operations.loc[0, ["layer", "shape"]].tolist() == ["dense_0 forward", "100x1000x29532 nn"]
    assert 1e3 * step.operations.loc[0, "seconds"] == pytest.approx(65.31, rel=0.1)


@pytest.mark.parametrize("batch_size", [8, 64, 512])
def test_a_planted_step_lies_within_its_interval(batch_size: int) -> None:
    found = fit_kernels(planted(), "Test CPU", {"precision": "float32"})
    step = step_of(point(LARGE, batch_size), found, None)
    truth = whole(LARGE, batch_size)
    assert step.seconds == pytest.approx(truth, rel=0.15)
    assert step.low < truth < step.high
    assert step.operations["share"].sum() == pytest.approx(1, abs=0.05)
    assert np.isnan(step.covered)


def test_a_profile_says_what_else_runs_and_what_is_covered() -> None:
    """A hundred small operations that move 1 MB each, and one whose bytes are unknown."""
    found = fit_kernels(planted(), "Test CPU", {"precision": "float32"})
    rows = [
        ("MatMul", "matmul", 9, 1e6, 0.5),
        ("Mul", "elementwise", 100, 1e8, 0.3),
        ("Odd", "other", 5, None, 0.15),
        ("(no operation)", "(no operation)", 0, None, 0.05),
    ]
    table = pd.DataFrame(rows, columns=["type", "category", "count", "bytes", "share"])
    step = step_of(point(LARGE), found, table)
    other = step.operations[step.operations["layer"] == "Mul"].iloc[0]
    assert other["count"] == 100
    assert other["seconds"] == pytest.approx(100 * (STEP + 1e6 / BANDWIDTH), rel=0.3)
    between = CALL / step.seconds  # the call is time in which no operation runs
    assert step.covered == pytest.approx(0.8 + between, rel=1e-3)


def test_small_operations_do_not_add_up_the_noise_of_calls() -> None:
    """A thousand of a hundred bytes: each kernel's call varies by as much as such an operation takes."""
    found = fit_kernels(planted(noise=0.04), "Test CPU", {"precision": "float32"})
    table = pd.DataFrame(
        {"type": ["Mul"], "category": ["elementwise"], "count": [1000], "bytes": [1e5], "share": [1.0]}
    )
    step = step_of(point(LARGE), found, table)
    other = step.operations[step.operations["layer"] == "Mul"].iloc[0]
    assert other["seconds"] == pytest.approx(1000 * STEP, rel=0.3)


def test_what_a_product_takes_to_begin_is_no_part_of_the_call() -> None:
    """A library's own preparations happen in every product of a step, the call once."""
    start, small = 1e-4, {"model.layers": 8, "model.nodes": "16", "model.input_size": 16, "model.output_size": 16}
    found = fit_kernels(planted(start=start), "Test CPU", {"precision": "float32"})
    products = model_of(
        {key.removeprefix("model."): int(value) for key, value in small.items()} | {"name": "fc"}
    ).product_list(batch_size=4, precision="float32", mode="train")
    table = pd.DataFrame({"type": ["Mul"], "category": ["elementwise"], "count": [1], "bytes": [1e2], "share": [1.0]})
    step = step_of(point(small, 4), found, table)
    assert step.seconds == pytest.approx(CALL + len(products) * (start + STEP), rel=0.3)


def test_predicted_stands_beside_measured_where_the_run_is_of_the_device() -> None:
    sizes = [8, 16, 64, 512]
    models = pd.DataFrame({**{key: [value] * 4 for key, value in LARGE.items()}, "batch_size": sizes})
    measured = runs(models, step_time_ms=[1e3 * whole(LARGE, size) for size in sizes])
    found = extrapolate(pd.concat([planted(), measured], ignore_index=True), ExtrapolateOptions(to="Test CPU"))
    assert found.table["ratio"].between(0.85, 1.15).all()
    assert "4 measured steps" in found.text()
    assert "elementwise: 10 kernels" in found.text()
    axes = found.figure().axes[0]
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "predicted step (ms)")


def test_a_point_needs_no_run() -> None:
    options = ExtrapolateOptions(to="Test CPU", model="model=fc model.nodes=64 model.layers=2 batch_size=32")
    found = extrapolate(planted(), options)
    assert len(found.table) == 9 + 1 - 1  # three layers, no input gradient of the first, and the other traffic
    assert "Without a profile" in found.text()
    assert not found.drawable


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "V100"}, "--to=V100: no chosen run is of this device; choose of Test CPU"),
        ({"to": "Test CPU"}, "--run=(none given): no model was measured; name points with --model"),
        ({"to": "Test CPU", "run": "a", "model": "model=fc"}, "--model=model=fc: is given beside --run"),
        ({"to": "Test CPU", "model": "model=fc model.nodes=zero"}, "--model: model.nodes=zero: expects a whole number"),
        ({"to": "Test CPU", "model": "model=gemm"}, "--model=gemm: is no model on one device; name other points"),
        ({"to": "Test CPU", "model": "model=fc devices=2"}, "--model=fc: is no model on one device"),
        ({"to": "Test CPU", "model": "model=gpt mode=generate"}, "--model=mode=generate: has no list of operations"),
    ],
)
def test_bad_input_is_told(options: dict[str, Any], words: str) -> None:
    given = {"model": "model=fc batch_size=8"} if options["to"] == "V100" else {}
    with pytest.raises(ParadnnError) as told:
        extrapolate(planted(), ExtrapolateOptions(**{**given, **options}))
    assert words in str(told.value)


def test_too_few_kernels_are_no_model() -> None:
    few = kernels(list(P1B3)[:3], list(P1B3.values())[:3])
    with pytest.raises(NotEnoughData, match=r"Test CPU ran too few kernels \(3 gemm\)"):
        fit_kernels(few, "Test CPU", {"precision": "float32"})
    with pytest.raises(NotEnoughData, match="no kernel ran on Test CPU with precision=bfloat16"):
        fit_kernels(few, "Test CPU", {"precision": "bfloat16"})
