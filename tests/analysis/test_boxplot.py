"""Boxes of metrics and speedups, compared with NumPy percentiles."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.boxplot import PERCENTILES, BoxplotOptions, boxplot
from analysis.result import Result
from paradnn.core.errors import ConfigError
from tests.analysis.rejected import assert_rejected


def skewed(seed: int = 3) -> pd.DataFrame:
    """Return lognormal speeds of two families, and a family without a speed.

    Seven of the 400 lstm speeds are not finite.
    """
    rng = np.random.default_rng(seed)
    values = {
        "lstm": rng.lognormal(0, 2, 400),
        "fc": rng.lognormal(1, 1, 33),
        "rnn": np.full(3, np.nan),
    }
    frame = pd.concat(
        pd.DataFrame({"family": name, "speed": value}) for name, value in values.items()
    )
    first_seven = frame["family"].eq("lstm") & (np.arange(len(frame)) < 7)
    frame.loc[first_seven, "speed"] = [np.nan] * 6 + [np.inf]
    return frame.assign(
        device="D", batch_size=pd.array([16] * len(frame), dtype="Int64")
    ).reset_index(drop=True)


def run_boxplot(frame: pd.DataFrame, **options: Any) -> Result:
    return boxplot(frame, BoxplotOptions(**options))


def runs() -> pd.DataFrame:
    """Return two replicates per point of `skewed`, whose median is the point's speed."""
    frame = (
        skewed()
        .rename(columns={"speed": "examples_per_second"})
        .assign(environment_id="e", outcome="ok")
    )
    frame["point_id"] = frame.index.astype("str")
    replicates = [
        frame.assign(examples_per_second=frame["examples_per_second"] * factor)
        for factor in (0.5, 1.5)
    ]
    return pd.concat(replicates, ignore_index=True).assign(
        run_id=lambda table: table.index.astype("str")
    )


@pytest.fixture(scope="module")
def boxes() -> Result:
    return run_boxplot(runs(), metric="examples_per_second")


def values_of(family: object) -> np.ndarray:
    """Return the finite speeds of a family."""
    frame = skewed()
    values = frame.loc[frame["family"] == family, "speed"]
    return values[np.isfinite(values)].to_numpy()


def test_boxes_are_sorted_by_family_and_count_missing_values(boxes: Result) -> None:
    frame = skewed()

    assert list(boxes.table["label"]) == ["fc", "rnn", "lstm"]
    for row in boxes.table.to_dict("records"):
        all_values = frame.loc[frame["family"] == row["family"], "speed"]
        values = values_of(row["family"])
        assert (row["count"], row["missing"]) == (len(values), len(all_values) - len(values))


def test_percentiles_of_points_equal_numpy(boxes: Result) -> None:
    for row in boxes.table.to_dict("records"):
        values = values_of(row["family"])
        if len(values):
            expected = np.percentile(values, PERCENTILES)
            if len(values) > 50:
                shown = expected
            else:
                shown = np.array([np.nan, *expected[1:4], np.nan])
            np.testing.assert_allclose([row[f"p{level}"] for level in PERCENTILES], shown)
    assert boxes.table["p50"].isna().tolist() == [False, True, False]


def test_outliers_are_outside_the_outer_percentiles(boxes: Result) -> None:
    for row in boxes.table.to_dict("records"):
        values = values_of(row["family"])
        if len(values):
            expected = np.percentile(values, PERCENTILES)
            assert row["outliers"] == sum(
                not expected[0] <= value <= expected[-1] for value in values
            )
            assert (row["minimum"], row["maximum"]) == pytest.approx((min(values), max(values)))


def test_each_box_has_a_sentence(boxes: Result) -> None:
    text = boxes.text()

    assert "rnn: no point has throughput; 3 points without a value omitted." in text
    assert "over 393 points); 393 points; 7 points without a value omitted. 82% lie between" in text


def test_a_family_without_values_is_drawn(boxes: Result, tmp_path: Path) -> None:
    boxes.figure().savefig(tmp_path / "boxes.png")


@pytest.fixture
def runs_of_ten_batch_sizes() -> pd.DataFrame:
    return (
        runs()
        .dropna(subset="examples_per_second")
        .assign(batch_size=lambda table: table.index % 10)
    )


def test_ten_boxes_fit_one_figure(runs_of_ten_batch_sizes: pd.DataFrame, tmp_path: Path) -> None:
    is_finite = np.isfinite(runs_of_ten_batch_sizes["examples_per_second"])

    result = run_boxplot(runs_of_ten_batch_sizes[is_finite], by=("batch_size",))

    assert len(result.table) == 10
    result.figure().savefig(tmp_path / "boxes.svg")


def test_few_runs_have_no_percentiles(runs_of_ten_batch_sizes: pd.DataFrame) -> None:
    assert "too few for percentiles" in run_boxplot(runs_of_ten_batch_sizes.head(8)).text()


def test_more_boxes_than_fit_one_figure_are_rejected(
    runs_of_ten_batch_sizes: pd.DataFrame,
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"--by=point_id: .* boxes do not fit one figure, .*; select fewer runs with --where",
    ):
        run_boxplot(runs_of_ten_batch_sizes, by=("point_id",)).figure()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--metric example_per_second",
            "--metric=example_per_second: ",
            id="--metric example_per_second",
        ),
        pytest.param(
            "--by color", "--by=color: these runs have no such hyperparameter", id="--by color"
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = runs()
    assert_rejected(f"boxplot {options}", frame, message)


@pytest.mark.parametrize(
    ("options", "frame", "message"),
    [
        pytest.param("", runs().head(0), "no run matches", id="no runs"),
        pytest.param(
            "",
            runs().assign(checks="failed: rates"),
            "no run is left to analyze (excluded: ",
            id="failed checks",
        ),
        pytest.param(
            "--steady-only",
            runs().assign(steady="false"),
            "without a steady state",
            id="none steady",
        ),
        pytest.param("--a device=D", runs(), "--b=(none): both sides are needed", id="one side"),
    ],
)
def test_runs_without_boxes_are_rejected(options: str, frame: pd.DataFrame, message: str) -> None:
    assert_rejected(f"boxplot {options}", frame, message)


def test_speedup_boxes_contain_only_paired_points(tmp_path: Path) -> None:
    number = np.arange(60)
    sides = [
        pd.DataFrame(
            {
                "device": device,
                "examples_per_second": rate,
                "run_id": [f"{device}{i}" for i in number],
            }
        )
        for device, rate in (("A", 100.0 * (1 + number % 5)), ("B", np.full(60, 100.0)))
    ]
    common = {
        "family": "fc",
        "outcome": "ok",
        "batch_size": np.tile(16 * (1 + number), 2),
        "environment_id": "e",
    }
    # The last ten points ran only on A.
    frame = pd.concat(sides, ignore_index=True).assign(**common).iloc[:-10]
    result = run_boxplot(frame, a=("device=A",), b=("device=B",))
    expected = np.percentile(1 + number[:50] % 5, PERCENTILES[1:4])

    np.testing.assert_allclose(result.table.loc[0, ["p9", "p50", "p91"]].astype(float), expected)
    # The 2nd percentile of 50 points would lie between the two lowest points, so it is omitted.
    assert result.table.loc[0, ["p2", "p9", "p98"]].isna().tolist() == [True, False, True]

    sentence = "The median speedup of A over B of fc is 3x (95% CI 2x to 4x, 50 points)."
    assert result.text().startswith(sentence)
    assert (result.answer.points, result.answer.basis) == (50, "50 batch sizes")
    assert "Without a counterpart: 10 points of A, 0 of B." in result.text()

    result.figure().savefig(tmp_path / "speedups.png")


def test_sentences_name_the_columns_of_numeric_groups() -> None:
    result = run_boxplot(runs(), metric="examples_per_second", by=("family", "batch_size"))

    assert "highest for fc, batch size 16, " in result.text()
    assert "rnn, batch size 16: no point has throughput" in result.text()
    assert list(result.table["label"]) == ["fc, 16", "rnn, 16", "lstm, 16"]
