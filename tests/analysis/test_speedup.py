"""Speedups over paired points and operations, with planted laws and gains."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.speedup import SpeedupOptions, pair_points
from analysis.analyses.speedup import speedup as command
from analysis.operation_speedup import Level, operation_speedup
from analysis.result import Result
from paradnn.core.errors import InsufficientData
from tests.analysis.rejected import assert_rejected
from tests.analysis.test_pairing import side
from tests.conftest import depth


def planted_sides(
    law: tuple[float, float], noise: float, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return two sides over layers 4..64 and batch sizes 64..1024.

    The speedup of A over B is layers^law[0] x (batch / 256)^law[1] x noise. `noise` is the standard
    deviation of its logarithm.
    """
    layers, batch = (
        axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(2, 7), 2.0 ** np.arange(6, 11))
    )
    random = np.random.default_rng(seed)
    base = random.lognormal(5, 1, layers.size)
    ratio = layers ** law[0] * (batch / 256) ** law[1] * random.lognormal(0, noise, layers.size)
    columns = {"model.layers": layers.astype(int), "batch_size": batch.astype(int)}
    count = len(layers)
    return tuple(
        side(rate.reshape(-1, 1), device, **columns, parameters=np.arange(1.0, count + 1))
        for device, rate in (("A", base * ratio), ("B", base))
    )  # type: ignore[return-value]


def test_a_planted_law_is_recovered() -> None:
    fit = pair_points(*planted_sides((0.5, -0.25), 0.01)).fits[0]
    assert fit.logarithms == ("model.layers", "batch_size")
    np.testing.assert_allclose(fit.regression.weights["slope"], [0.5, -0.25], atol=0.01)
    assert fit.regression.r2 > 0.99


def run_speedup(frame: pd.DataFrame, **options: Any) -> Result:
    """Return the result of the sub-command, by default for devices A and B."""
    return command(frame, SpeedupOptions(**({"a": ("device=A",), "b": ("device=B",)} | options)))


def test_the_command_reports_share_mean_and_effects_of_doubling() -> None:
    a, b = planted_sides((0.5, 0.0), 0.0)
    exact = {"examples_per_second_low": 0.999, "examples_per_second_high": 1.001}
    frame = pd.concat([a, b], ignore_index=True)
    for name, factor in exact.items():
        frame[name] = frame["examples_per_second"] * factor
    result = run_speedup(frame)

    assert result.text().startswith("A is 4x faster than B (95% CI 3.8")
    assert "A is faster on 25 of 25 points (100%)." in result.text()
    assert "For other models like these: 4x (95% CI " in result.text()
    assert ", with 5 models as a sample." in result.text()
    assert "model.layers: 1.41x per doubling (95% CI 1.41x to 1.41x), weight +1.00" in result.text()
    assert "Intervals of single ratios: 25 from the prior of process scatter" in result.text()
    assert len(result.table) == 25
    assert "precision" not in result.table, "a column with one value in all rows must be omitted"


def test_sides_without_pairs_are_reported_and_not_drawn() -> None:
    a, b = planted_sides((0.5, 0.0), 0.0)
    result = run_speedup(pd.concat([a, b.assign(outcome="oom_device")], ignore_index=True))

    assert not result.drawable
    assert result.text().startswith("A and B have no point in common.")
    assert "No point was measured on both sides: A has 25 runs and B has 25." in result.text()


def test_operations_of_profiled_runs_give_the_gain_of_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted tables are read from the folders of the runs; A has twice the bandwidth of B."""
    monkeypatch.setenv("PARADNN_ARTIFACTS", str(tmp_path))
    a, b = planted_sides((0.0, 0.0), 0.0)
    frame = pd.concat([a, b], ignore_index=True)
    frame["artifact_uri"] = [str(tmp_path / run_id) for run_id in frame["run_id"]]
    frame["op_share.Mul"] = 0.6
    for run_id, device in zip(frame["run_id"], frame["device"], strict=True):
        rate = 1e12 if device == "A" else 5e11
        rows = [["Mul", 0.6, 1e9, 4e9, rate / 4, 0.25], ["MatMul", 0.4, 1e9, 1e7, rate * 20, 100.0]]
        columns = ["type", "share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]
        table = {"columns": columns, "data": rows}
        (tmp_path / run_id).mkdir()
        (tmp_path / run_id / "operation_types.json").write_text(json.dumps(table))
    result = run_speedup(
        frame.assign(peak_flops_per_second=6e12, peak_bytes_per_second=1e11), operations=True
    )
    sentence = "Memory bandwidth gain of A over B, from the level 'memory-bound, other': 2 (2 to 2); ridge at 60"

    assert sentence in result.text()
    assert "compute-bound: 2 (2 to 2) over 25 operations in 25 points." in result.text()
    assert len(result.table) == 50
    assert (
        result.figure().axes[0].get_xlabel() == "arithmetic intensity in FLOP/B (ridge 60 dashed)"
    )


# Ceilings of device B. Device A has 2.3 times the peak and 1.5 times the bandwidth.
PEAK = 100e12
BANDWIDTH = 1e12
#: Ratio of the batch sizes of A and B, and so of the intensities of their matrix products.
BATCH_RATIO = 2.0


def profiled(
    device: str, points: int = 40, noise: float = 0.0, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return runs of a device and their operation tables, as in Figure 6 of the paper.

    Rates follow from the ceilings of the device, so the gains of A over B are known.
    """
    random = np.random.default_rng([seed, ord(device)])
    if device == "A":
        peak = 2.3 * PEAK
        bandwidth = 1.5 * BANDWIDTH
        scale = BATCH_RATIO
    else:
        peak = PEAK
        bandwidth = BANDWIDTH
        scale = 1.0
    runs = side(np.ones((points, 1)), device)
    rows = []
    for run_id in runs["run_id"]:
        for kind, intensity in (
            ("MatMul", 20 * scale),
            ("Conv2D", 500.0),
            ("Mul", 0.25),
            ("Odd", 130.0),
        ):
            rate = min(peak, intensity * bandwidth) * random.lognormal(0, noise)
            rows.append([run_id, kind, 0.2, rate, intensity, 1e9, 1e9 / intensity])
        rows.append([run_id, "AllReduce", 0.1, 0.01 * bandwidth, 0.1, 1e6, 1e7])
        rows.append([run_id, "Small", 0.001, 0.25 * bandwidth, 0.25, 1e6, 4e6])
        rows.append([run_id, "Transpose", 0.1, 0.0, 0.0, 0.0, 1e9])
    columns = [
        "run_id",
        "type",
        "share",
        "flops_per_second",
        "arithmetic_intensity",
        "flops",
        "bytes",
    ]
    return runs, pd.DataFrame(rows, columns=columns)


def test_planted_gains_are_recovered() -> None:
    a, types_a = profiled("A", noise=0.02)
    b, types_b = profiled("B", noise=0.02)
    found = operation_speedup(a, b, pd.concat([types_a, types_b]), ridges=(100.0, 230 / 1.5))
    levels = found.levels.set_index("level")

    assert set(levels.index) == set(Level) - {Level.UNKNOWN}

    expected = {"compute-bound": 2.3, "memory-bound MatMul": 3.0, "memory-bound, other": 1.5}
    for level, speedup in expected.items():
        row = levels.loc[level]
        assert row["geometric_mean"] == pytest.approx(speedup, rel=0.02)
        assert (row["operations"], row["points"]) == (40, 40)

    assert levels.loc["memory-bound MatMul", "bandwidth_gain"] == pytest.approx(1.5, rel=0.02)
    assert found.gain[0] == pytest.approx(1.5, rel=0.02)
    assert found.gain[1] < found.gain[0] < found.gain[2]
    assert (found.gain_from, found.small) == ("memory-bound, other", 40)
    assert set(found.operations["operation_type"]) == {
        "MatMul",
        "Conv2D",
        "Mul",
        "Odd",
        "AllReduce",
    }


@depth(15, 50)
def test_the_interval_of_the_gain_has_its_nominal_coverage(draws: int) -> None:
    covered = 0
    for seed in range(draws):
        a, types_a = profiled("A", 10, 0.1, seed)
        b, types_b = profiled("B", 10, 0.1, seed)
        low, high = operation_speedup(a, b, pd.concat([types_a, types_b]), ridges=(100.0,)).gain[1:]
        covered += low <= 1.5 <= high

    assert covered >= int(0.84 * draws)  # 95%, less three standard deviations


def test_without_a_ridge_no_limit_and_no_gain_are_stated() -> None:
    a, types_a = profiled("A")
    b, types_b = profiled("B")
    found = operation_speedup(a, b, pd.concat([types_a, types_b]))

    assert set(found.levels["level"]) == {"ridge unknown", "between devices"}
    assert np.isnan(found.gain).all()
    assert found.gain_from is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--a device=A --b device=B --terms layer",
            "--terms=layer: ",
            id="--a device=A --b device=B --terms layer",
        ),
        pytest.param(
            "--a device=A --b device=B --on batch_size,layer",
            "--on=layer: ",
            id="--a device=A --b device=B --on batch_size,layer",
        ),
        pytest.param(
            "--a device=A",
            "--b=(none): both sides are needed; name --a device=A --b device=B",
            id="one side",
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = pd.concat(planted_sides((0.5, 0.0), 0.0), ignore_index=True)
    assert_rejected(f"speedup {options}", frame, message)


def test_sides_without_profiles_or_common_operations_are_rejected() -> None:
    a, types_a = profiled("A")
    b, types_b = profiled("B")

    with pytest.raises(InsufficientData, match="no profile was recorded in 40 runs of B"):
        operation_speedup(a, b, types_a)

    renamed = types_b.assign(type=types_b["type"] + " fusion")
    with pytest.raises(
        InsufficientData,
        match="A has AllReduce, Conv2D, MatMul, Mul, Odd, Small; B has AllReduce fusion",
    ):
        operation_speedup(a, b, pd.concat([types_a, renamed]))
