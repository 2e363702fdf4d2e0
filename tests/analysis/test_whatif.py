"""`whatif` on points of a planted device, whose step times follow from known rates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.analyses.whatif import WhatifOptions, describe_worth, whatif
from analysis.point_work import point_work
from analysis.result import Result
from analysis.store.load import load_types
from paradnn.core.errors import ConfigError, InsufficientData
from tests.analysis.published import published_frame

PEAK = 8e12
BANDWIDTH = 4e11
OVERHEAD = 1e-3


def seconds_of(
    flops: np.ndarray, moved: np.ndarray, gains: tuple[float, float, float] = (1, 1, 1)
) -> np.ndarray:
    """Return step times in seconds on the planted device, with its limits faster by `gains`.

    Args:
        flops: Arithmetic per step in FLOP.
        moved: Memory traffic per step in bytes.
        gains: Factors on the peak rate, on the bandwidth, and on the speed of the overhead.
    """
    terms = [flops / PEAK / gains[0], moved / BANDWIDTH / gains[1], OVERHEAD / gains[2] + 0 * flops]
    return np.asarray((np.stack(terms) ** 3).sum(axis=0) ** (1 / 3))


def planted(
    device: str = "Made", gains: tuple[float, float, float] = (1, 1, 1), **columns: Any
) -> pd.DataFrame:
    """Return runs of a family without known layers.

    Memory limits points with few nodes, and arithmetic limits points with many.
    """
    nodes = np.tile(2 ** np.arange(4, 14), 6)
    batch = np.repeat(2 ** np.arange(5, 11), 10)
    moved = 4e4 * nodes * batch
    flops = moved * nodes / 12.8
    return pd.DataFrame(
        {
            "run_id": [f"{device}-{number}" for number in range(60)],
            "point_id": [f"{device}-{number}" for number in range(60)],
            "family": "made",
            "device": device,
            "precision": "float32",
            "outcome": "ok",
            "model.nodes": nodes,
            "batch_size": batch,
            "parameters": nodes.astype(float) ** 2,
            "flops_per_step": flops,
            "bytes_per_step": moved,
            "step_time_ms": 1e3 * seconds_of(flops, moved, gains),
            "peak_flops_per_second": PEAK,
            "peak_bytes_per_second": BANDWIDTH,
            **columns,
        }
    )


def true_speedups(frame: pd.DataFrame, gains: tuple[float, float, float]) -> pd.Series:
    """Return the true speedup of each run, by run id."""
    flops = frame["flops_per_step"].to_numpy()
    moved = frame["bytes_per_step"].to_numpy()
    speedup = seconds_of(flops, moved) / seconds_of(flops, moved, gains)
    return pd.Series(speedup, index=frame["run_id"])


def analyse(frame: pd.DataFrame, **options: Any) -> Result:
    return whatif(frame, WhatifOptions(**options))


@pytest.mark.parametrize(
    ("options", "gains"),
    [
        pytest.param({"bandwidth": 2.0}, (1, 2, 1), id="bandwidth"),
        pytest.param({"peak": 2.0}, (2, 1, 1), id="peak"),
        pytest.param({"overhead": 0.5}, (1, 1, 2), id="overhead"),
        pytest.param({"peak": 0.5}, (0.5, 1, 1), id="slower peak"),
    ],
)
def test_intervals_cover_the_planted_upgrade(
    options: dict[str, float], gains: tuple[float, float, float]
) -> None:
    frame = planted()

    table = analyse(frame, **options).table

    expected = true_speedups(frame, gains).loc[table["run_id"]].to_numpy()

    assert len(table) == 60
    assert np.all(table["speedup_low"].to_numpy() <= expected * 1.02)
    assert np.all(expected <= table["speedup_high"].to_numpy() * 1.02)
    assert np.corrcoef(np.log(table["speedup"]), np.log(expected))[0, 1] > 0.9


def test_limits_before_and_after_follow_the_planted_ridge() -> None:
    table = analyse(planted(), bandwidth=8.0).table.set_index("run_id")

    # The intensity is nodes / 12.8, and the ridge is at 20 FLOP/B: 256 nodes.
    nodes = planted().set_index("run_id")["model.nodes"].loc[table.index]
    is_long = table["step_time_ms"] > 10

    assert set(table.loc[is_long & (nodes < 200), "limit"]) == {"memory"}
    assert set(table.loc[is_long & (nodes > 300), "limit"]) == {"compute"}
    assert set(table.loc[is_long & (nodes == 128), "limit_after"]) == {"compute"}

    shares = table[["compute", "memory", "overhead", "input", "communication", "other"]]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def test_the_answer_names_the_size_below_which_bandwidth_is_worth_more() -> None:
    result = analyse(planted(), bandwidth=2.0)

    assert result.answer is not None
    assert result.answer.ratio is not None
    assert 1 < result.answer.ratio < 2
    threshold = "1% more memory bandwidth is worth more than 1% more arithmetic rate below nodes"
    assert threshold in result.text()


def test_a_threshold_is_named_only_if_the_worth_depends_on_the_size() -> None:
    points = pd.DataFrame({"model.nodes": [1, 2, 4, 8, 16, 32] * 3, "batch_size": [8] * 18})
    memory_bound_below_8 = pd.DataFrame(
        {"memory": points["model.nodes"].lt(8) * 0.9, "compute": 0.5}
    )
    independent_of_size = pd.DataFrame({"memory": [0.9, 0.1, 0.1] * 6, "compute": 0.5})

    assert describe_worth(points, memory_bound_below_8).endswith("below nodes 8 (9 of 18 points).")
    assert describe_worth(points, independent_of_size).endswith("for 6 of them.")


def test_upgrades_do_not_shorten_the_wait_for_input() -> None:
    frame = planted(infeed_fraction=0.5)
    frame["step_time_ms"] *= 2

    table = analyse(frame, bandwidth=1e3, peak=1e3, overhead=1e-3).table

    assert np.all(table["speedup_high"] <= 2 + 1e-9)
    np.testing.assert_allclose(table["input"], 0.5)
    assert set(table["limit_after"]) == {"input"}


def test_a_prediction_for_a_device_is_compared_with_its_measurements() -> None:
    gains = (2.0, 1.5, 1.0)
    newer_device = planted(
        "Newer",
        gains,
        peak_flops_per_second=2 * PEAK,
        peak_bytes_per_second=1.5 * BANDWIDTH,
    )
    frame = pd.concat([planted(), newer_device], ignore_index=True)

    result = analyse(frame, to="Newer", from_="Made")

    table = result.table
    expected = true_speedups(planted(), gains).loc[table["run_id"]].to_numpy()

    np.testing.assert_allclose(table["measured_speedup"], expected)
    assert table["inside"].mean() > 0.9

    text = result.text()
    assert "by measured ceilings: 2x the arithmetic rate, 1.5x the bandwidth" in text
    assert "60 points also measured on Newer" in text


def test_the_better_of_two_upgrades_follows_the_planted_limit() -> None:
    frame = planted()

    result = analyse(frame, to=("bandwidth=4", "peak=4"))

    table = result.table.set_index("run_id")
    by_bandwidth = true_speedups(frame, (1, 4, 1)).loc[table.index]
    by_peak = true_speedups(frame, (4, 1, 1)).loc[table.index]
    is_decided = table["better"].ne("undecided")
    better = np.where(by_bandwidth > by_peak, "4x bandwidth", "4x peak")

    assert 20 < is_decided.sum() < 60
    assert np.all(table["better"][is_decided] == better[is_decided])

    # Undecided points are close to the ridge, where both upgrades have equal effects.
    difference = np.abs(np.log(by_bandwidth / by_peak))
    assert difference[~is_decided].max() < 0.4 < difference[is_decided].median()
    assert result.answer is not None

    counts = table["better"].value_counts()
    assert f"4x bandwidth is better for {counts['4x bandwidth']}" in result.answer.sentence


def test_upgrades_are_undecided_for_points_at_the_ridge() -> None:
    frame = planted()
    at_the_ridge = frame[frame["model.nodes"].eq(256)]

    result = analyse(at_the_ridge, to=("bandwidth=2", "peak=2"))

    assert result.answer is not None
    assert result.answer.sentence.startswith("It is undecided whether ")
    assert result.answer.low is not None
    assert result.answer.high is not None
    assert result.answer.low < 1 < result.answer.high


def test_two_devices_are_compared_with_each_other_and_with_measurements() -> None:
    gains = {"Wide": (1.5, 8.0, 1.0), "Strong": (8.0, 1.5, 1.0)}
    devices = [
        planted(
            name,
            factors,
            peak_flops_per_second=factors[0] * PEAK,
            peak_bytes_per_second=factors[1] * BANDWIDTH,
        )
        for name, factors in gains.items()
    ]
    frame = pd.concat([planted(), *devices], ignore_index=True)

    result = analyse(frame, to=("Wide", "Strong"), from_="Made")

    table = result.table.set_index("run_id")
    expected = true_speedups(planted(), gains["Wide"]) / true_speedups(planted(), gains["Strong"])

    np.testing.assert_allclose(table["measured_ratio"], expected.loc[table.index])

    decided = table[table["better"].ne("undecided")]
    better = np.where(decided["measured_ratio"] > 1, "Wide", "Strong")

    assert len(decided) >= 10
    assert np.all(decided["better"] == better)
    assert f"60 points measured on both: {len(decided)} decided" in result.text()
    assert len(result.figure().axes) == 1


def test_points_that_ran_out_of_memory_may_fit_a_larger_memory() -> None:
    points = planted().head(8).assign(family="fc")
    points["model.layers"] = 4
    points["model.nodes"] = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
    points["outcome"] = ["ok"] * 5 + ["oom_device"] * 3

    result = analyse(points, memory=5.0)

    exhausted = result.table[result.table["fits"].notna()]

    assert list(exhausted["fits"]) == ["yes", "open", "no"]
    assert "Of 3 points that ran out of memory, 1 would fit, 1 may fit with 5x" in result.text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({}, "--bandwidth=1: changes nothing", id="nothing changes"),
        pytest.param(
            {"to": "H200", "peak": 2.0}, "cannot be combined with --peak", id="device and factor"
        ),
        pytest.param({"from_": "Made"}, "--from=Made: has no effect without --to", id="no target"),
        pytest.param({"to": ("A", "B", "C")}, "--to=C: is a third upgrade", id="three upgrades"),
        pytest.param({"to": ("H200", "H200")}, "--to=H200: is given twice", id="equal upgrades"),
        pytest.param({"to": "bandwith=2"}, "did you mean bandwidth", id="unknown factor"),
        pytest.param({"to": "peak=0"}, "--to=peak=0: needs a positive factor", id="factor of zero"),
        pytest.param({"to": "peak=1"}, "--to=peak=1: changes nothing", id="factor of one"),
        pytest.param(
            {"to": "peak=2", "overhead": 0.5},
            "write --to peak=2,overhead=0.5",
            id="factors in two places",
        ),
        pytest.param(
            {"to": ("peak=2", "bandwidth=2"), "memory": 2.0},
            "write --to peak=2",
            id="memory with two upgrades",
        ),
        pytest.param(
            {"to": ("peak=2", "memory=2")},
            "--memory=2: does not change the speed",
            id="upgrade of memory alone",
        ),
        pytest.param({"to": "Nobody's"}, "has neither specifications", id="unknown target"),
        pytest.param({"to": "H200"}, "which has no specifications", id="unknown origin"),
        pytest.param(
            {"to": "H200", "from_": "V9"}, "has no runs in the selection", id="absent origin"
        ),
    ],
)
def test_invalid_upgrades_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        analyse(planted(), **options)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"precision": np.nan}, id="precision"),
        pytest.param({"device": None}, id="device"),
    ],
)
def test_points_with_unrecorded_settings_have_a_prediction(columns: dict[str, Any]) -> None:
    frame = planted().assign(**columns)

    result = analyse(frame, bandwidth=2.0)

    assert len(result.table) == 60
    assert result.answer is not None
    assert result.answer.ratio is not None
    assert 1 < result.answer.ratio < 2


def test_points_without_work_are_rejected() -> None:
    frame = planted().drop(columns=["flops_per_step", "bytes_per_step"])

    with pytest.raises(InsufficientData, match="no point has a step time and known work"):
        analyse(frame, bandwidth=2.0)


def test_published_profiles_become_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARADNN_ARTIFACTS", str(tmp_path))
    frame = published_frame(tmp_path)
    traced = frame[frame.filter(like="op_share.").notna().any(axis=1)].head(6)

    found = point_work(traced, load_types(traced))

    assert found.profiled.all()

    total = np.bincount(found.point, found.work.seconds) + found.fixed.sum(axis=1)
    np.testing.assert_allclose(total, found.points["step_time_ms"] / 1e3, rtol=1e-6)

    table = json.loads((tmp_path / traced["run_id"].iloc[0] / "operation_types.json").read_text())
    shares = dict(zip([row[0] for row in table["data"]], table["data"], strict=True))

    assert "infeed" in shares
    np.testing.assert_allclose(
        found.fixed["input"].iloc[0],
        traced["op_share.infeed"].iloc[0] * traced["step_time_ms"].iloc[0] / 1e3,
        rtol=1e-6,
    )


def test_hardware_elasticities_follow_the_planted_limits() -> None:
    result = sensitivity(planted(), SensitivityOptions(to="hardware"))

    rows = result.table.to_dict("records")
    weights = {(row["metric"], row["term"]): float(row["weight"]) for row in rows}

    assert weights["peak_elasticity", "model.nodes"] > 0.3
    assert weights["bandwidth_elasticity", "model.nodes"] < -0.3
    assert weights["overhead_elasticity", "batch_size"] < 0
    assert result.answer is not None
    assert result.answer.sentence.startswith("Throughput of made on Made depends most on")
    assert result.figure().axes


def test_hardware_and_a_metric_cannot_be_combined() -> None:
    with pytest.raises(ConfigError, match="cannot be combined with --to hardware"):
        sensitivity(planted(), SensitivityOptions(to="hardware", metric="step_time_ms"))


def test_steps_that_no_limit_explains_are_rejected() -> None:
    frame = planted()
    frame["step_time_ms"] = 10 ** np.random.default_rng(3).uniform(-1, 5, 60)

    with pytest.raises(
        InsufficientData, match="neither arithmetic nor memory traffic explains the times"
    ):
        analyse(frame, bandwidth=2.0)


def test_published_steps_that_no_limit_explains_cannot_be_profiled() -> None:
    frame = planted().assign(source="published")
    frame["step_time_ms"] = 10 ** np.random.default_rng(3).uniform(-1, 5, 60)

    with pytest.raises(InsufficientData, match="published measurements have no profiles"):
        analyse(frame, bandwidth=2.0)


def test_the_figure_has_points_and_a_heat_map() -> None:
    figure = analyse(planted(), bandwidth=2.0).figure()

    points, grid = figure.axes[:2]

    assert points.get_xlabel() == "trainable parameters"
    assert grid.get_xlabel() == "factor on the memory bandwidth"
