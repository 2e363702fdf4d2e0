import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.speedup import SpeedupOptions, pair_points, summarise
from analysis.analyses.speedup import speedup as command
from analysis.result import Result
from paradnn.core.errors import ConfigError
from tests.analysis.planted import sandwich
from tests.analysis.test_pairing import SHAPE, plain_pairs, published, published_folder, side


def grid(law: tuple[float, float], noise: float, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two sides over layers 4..64 and batch 64..1024, the speedup layers^law[0] x (batch / 256)^law[1] x scatter."""
    layers, batch = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(2, 7), 2.0 ** np.arange(6, 11)))
    random = np.random.default_rng(seed)
    base = random.lognormal(5, 1, layers.size)
    ratio = layers ** law[0] * (batch / 256) ** law[1] * random.lognormal(0, noise, layers.size)
    columns = {"model.layers": layers.astype(int), "batch_size": batch.astype(int)}
    count = len(layers)
    return tuple(
        side(rate.reshape(-1, 1), device, **columns, parameters=np.arange(1.0, count + 1))
        for device, rate in (("A", base * ratio), ("B", base))
    )  # type: ignore[return-value]


def test_the_published_share_of_wins_and_weights_are_those_of_the_files(tmp_path: Path) -> None:
    folder = published_folder(tmp_path)
    plain = plain_pairs(folder)
    found = pair_points(*published(folder))
    row = found.families.iloc[0]
    assert (row["points"], row["wins"]) == (len(plain), (plain["speedup"] > 1).sum())
    assert row["geometric_mean"] == pytest.approx(np.exp(np.log(plain["speedup"]).mean()))
    np.testing.assert_allclose(
        row[["q25", "median", "q75"]].astype(float), plain["speedup"].quantile([0.25, 0.5, 0.75])
    )
    if len(plain) == 2:  # the small files: too few for a regression, and that is said
        assert found.lacking
        return
    assert (row["points"], row["wins"], round(row["share"], 3)) == (176, 136, 0.773)
    weights = pair_points(*published(folder)).fits[0].regression.weights["weight"]
    x, y = np.log2(plain[list(weights.index)].astype(float)), np.log2(plain["speedup"])
    standard = (x - x.mean()) / x.std()
    oracle = np.linalg.lstsq(standard.to_numpy(), ((y - y.mean()) / y.std()).to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(weights, oracle, rtol=1e-8)
    assert set(SHAPE) - set(weights.index) == {"model.input_size", "model.output_size"}, "constant over the pairs"


def test_a_planted_law_is_recovered() -> None:
    fit = pair_points(*grid((0.5, -0.25), 0.01)).fits[0]
    assert fit.logarithms == ("model.layers", "batch_size")
    np.testing.assert_allclose(fit.regression.weights["slope"], [0.5, -0.25], atol=0.01)
    assert fit.regression.r2 > 0.99


def test_intervals_cover_at_their_rate() -> None:
    """4,000 sweeps of 25 points by the closed form of the weight's interval, in units of its slope, which the method
    agrees with in the first 20 of them."""
    sweeps = [grid((0.3, 0.0), 0.3, seed) for seed in range(20)]
    layers, batch = (np.log2(sweeps[0][0][name].to_numpy()) for name in ("model.layers", "batch_size"))
    noise = np.random.default_rng(1).normal(0, 0.3, (4000, 25))
    ratio = [np.log2(a["examples_per_second"] / b["examples_per_second"]) for a, b in sweeps]
    y = np.concatenate([ratio, 0.3 * layers + noise[20:] / np.log(2)])
    low, high = (ends[:, 0] for ends in sandwich(np.column_stack([layers, batch]), y)[:2])
    for place, sides in enumerate(sweeps):
        row = pair_points(*sides, unit="point").fits[0].regression.weights.loc["model.layers"]
        scale = row["slope"] / row["weight"]
        np.testing.assert_allclose([row["low"] * scale, row["high"] * scale], [low[place], high[place]], rtol=1e-6)
    assert 0.94 <= np.mean((low <= 0.3) & (high >= 0.3)) <= 0.975


def test_what_a_summary_holds() -> None:
    a, b = side([[2.0], [8], [0.5], [1]]), side([[1.0], [1], [1], [1]], "B")
    pairs = pair_points(a, b).pairs
    row = summarise(pairs).iloc[0]
    assert (row["points"], row["wins"], row["share"], row["geometric_mean"]) == (4, 2, 0.5, pytest.approx(8**0.25))
    assert (row["minimum"], row["q25"], row["median"], row["q75"], row["maximum"]) == (0.5, 0.875, 1.5, 3.5, 8.0)
    both = pd.concat([pairs, pairs.assign(family="lstm", speedup=2.0)])
    table = summarise(both).set_index("family")
    assert table["wins"].to_dict() == {"fc": 2, "lstm": 4, "all": 6}


def test_parameters_go_with_their_point() -> None:
    a, b = grid((0.0, 0.0), 0.0)
    pairs = pair_points(a, b.drop(columns="parameters")).pairs
    merged = pairs.merge(a, on=["model.layers", "batch_size"])
    np.testing.assert_array_equal(merged["parameters_x"], merged["parameters_y"])


def test_terms_are_chosen_by_short_names_() -> None:
    a, b = grid((0.5, 0.0), 0.01)
    assert list(pair_points(a, b, terms=["layers"]).fits[0].regression.weights.index) == ["model.layers"]


def test_no_pairs_is_an_empty_result() -> None:
    a, b = grid((0.5, 0.0), 0.01)
    nothing = pair_points(a, b.assign(outcome="oom_device"))
    assert (len(nothing.pairs), len(nothing.families), nothing.fits) == (0, 0, ())


def ask(frame: pd.DataFrame, **options: Any) -> Result:
    """What the sub-command says of two devices A and B."""
    return command(frame, SpeedupOptions(**({"a": ("device=A",), "b": ("device=B",)} | options)))


def test_the_command_says_the_share_the_mean_and_what_doubling_does() -> None:
    a, b = grid((0.5, 0.0), 0.0)
    exact = {"examples_per_second_low": 0.999, "examples_per_second_high": 1.001}
    frame = pd.concat([a, b], ignore_index=True)
    for name, factor in exact.items():
        frame[name] = frame["examples_per_second"] * factor
    result = ask(frame)
    assert "fc: A is faster in 25 of 25 points, 100.0% (47.8% to 100.0%); geometric mean 4 (" in result.text()
    assert "over 5 models: what others of their kind would give" in result.text()
    assert "doubling it multiplies the speedup by 1.41" in result.text()
    assert "Intervals of single ratios: 25 from blocks within one process" in result.text()
    assert len(result.table) == 25
    assert "precision" not in result.table, "says the same in every row"


def test_points_are_told_by_short_names_too() -> None:
    frame = pd.concat(grid((0.5, 0.0), 0.0), ignore_index=True)
    pd.testing.assert_frame_equal(
        ask(frame, on=("layers", "batch_size")).table, ask(frame, on=("model.layers", "batch_size")).table
    )


def test_the_picture_has_scatter_and_weights_by_family() -> None:
    frame = pd.concat(grid((0.5, -0.2), 0.1), ignore_index=True)
    figure = ask(frame, colour="batch_size", x="layers").figure()
    scatter, weights = figure.axes
    assert (scatter.get_xlabel(), scatter.get_yscale()) == ("layers", "log")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["64", "128", "256", "512", "1,024"]
    assert not weights.patches, "a mark and its interval need no bar"
    assert {label.get_text() for label in weights.get_yticklabels()} == {"layers", "batch size"}
    with pytest.raises(ConfigError, match="--x=layer"):
        ask(frame, x="layer").figure()


def test_no_pair_is_said_and_nothing_is_drawn() -> None:
    a, b = grid((0.5, 0.0), 0.0)
    result = ask(pd.concat([a, b.assign(outcome="oom_device")], ignore_index=True))
    assert not result.drawable
    assert result.text().startswith("No point was measured on both sides, of 25 runs of A and 25 of B.")


def test_operations_of_profiled_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 6 on planted tables, read from the runs' folders: twice the bandwidth."""
    monkeypatch.setenv("PARADNN_ARTIFACTS", str(tmp_path))
    a, b = grid((0.0, 0.0), 0.0)
    frame = pd.concat([a, b], ignore_index=True)
    frame["artifact_uri"], frame["op_share.Mul"] = [str(tmp_path / run_id) for run_id in frame["run_id"]], 0.6
    for run_id, device in zip(frame["run_id"], frame["device"], strict=True):
        rate = 1e12 if device == "A" else 5e11
        rows = [["Mul", 0.6, 1e9, 4e9, rate / 4, 0.25], ["MatMul", 0.4, 1e9, 1e7, rate * 20, 100.0]]
        columns = ["type", "share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]
        table = {"columns": columns, "data": rows}
        (tmp_path / run_id).mkdir()
        (tmp_path / run_id / "operation_types.json").write_text(json.dumps(table))
    result = ask(frame, operations=True, ridge=(60.0,))
    assert (
        "Memory bandwidth gain of A over B, from the level 'memory-bound, other': 2 (2 to 2); ridge at 60"
        in result.text()
    )
    assert "compute-bound: 2 (2 to 2) over 25 operations in 25 points." in result.text()
    assert len(result.table) == 50
    assert result.figure().axes[0].get_xlabel() == "arithmetic intensity in FLOP/B (ridge 60 dashed)"
