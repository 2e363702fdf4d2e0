"""Medians of profiled shares, their populations, and settings that must not be pooled."""

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.breakdown import BreakdownOptions, breakdown, draw_breakdown
from analysis.columns import split_by_settings
from tests.analysis.planted import grid, runs


def profiled(shares: np.ndarray, **columns: object) -> pd.DataFrame:
    """Return runs of 2 models at 4 batch sizes, with planted shares of matrix products."""
    points = grid(nodes=(64, 256), layers=(4,), batches=(1, 2, 3, 4))
    planted = {"category_share.matmul": shares, "op_share.MatMul": shares / 2}
    return runs(points, **planted, **columns)


def legend_labels(frame: pd.DataFrame, options: BreakdownOptions) -> list[str]:
    (legend,) = breakdown(frame, options).picture().legends
    return [text.get_text().replace("\n", " ") for text in legend.get_texts()]


SHARES = np.linspace(0.2, 0.9, 8)


def test_shares_are_medians_over_points() -> None:
    frame = profiled(SHARES, **{"category_share.control": [0.1] + [np.nan] * 7})
    result = breakdown(frame, BreakdownOptions(unit="point"))
    row = result.table.iloc[0]
    types = result.table[result.table["level"] == "type"]

    assert (row["name"], row["points"], row["models"]) == ("matmul", 8, 2)
    assert row["median"] == pytest.approx(np.median(SHARES))
    # Order statistics 1 and 8 of 8 cover the median with probability 1 - 2 / 2^8.
    assert (row["low"], row["high"]) == (pytest.approx(0.2), pytest.approx(0.9))
    assert result.table.set_index("name").loc["control", "median"] == 0
    assert types["median"].tolist() == pytest.approx([np.median(SHARES) / 2])


def test_sentences_state_points_models_and_the_remainder_of_the_step() -> None:
    # Two models give no interval.
    text = breakdown(profiled(SHARES)).text()
    assert "fc, 8 profiled points of 2 models: matmul 55% (middle half 38% to 72%)" in text
    assert "matmul 55% (middle half 38% to 72%), everything else 45%." in text
    assert "Leading types: MatMul 28% (middle half 19% to 36%), everything else 72%." in text


def test_the_legend_names_the_interval_of_the_bars() -> None:
    by_point = BreakdownOptions(unit="point")
    by_model = BreakdownOptions(unit="crossed")

    assert legend_labels(profiled(SHARES), by_point) == ["fc: 8 points of 2 models, 95% interval"]
    assert legend_labels(profiled(SHARES), by_model) == [
        "fc: 8 points of 2 models, middle half of the points"
    ]


def test_a_missing_interval_does_not_remove_the_other_error_bars() -> None:
    frame = profiled(SHARES, **{"category_share.control": 0.05})
    table = breakdown(frame, BreakdownOptions(unit="point")).table.query("level == 'category'")
    table.loc[table["name"] == "control", ["low", "high"]] = np.nan
    figure = draw_breakdown(table)
    segments = [line for bar in figure.axes[0].collections for line in bar.get_segments()]
    lengths = sorted(float(line[1][0] - line[0][0]) for line in segments)

    assert lengths == pytest.approx([0.0, 0.7])

    (legend,) = figure.legends
    assert legend.get_texts()[0].get_text().endswith("95% interval where known")


def test_runs_are_grouped_by_settings_that_change_the_operations() -> None:
    modes = [
        profiled(SHARES, compile=mode, **{"platform.name": mode})
        for mode in ("eager", "graph", "xla")
    ]
    frame = pd.concat(modes, ignore_index=True)
    result = breakdown(frame)
    categories = result.table[result.table["level"] == "category"]

    assert categories["settings"].tolist() == ["eager", "graph", "xla"]
    assert categories["points"].tolist() == [8, 8, 8]
    assert "fc, xla, 8 profiled points of 2 models" in result.text()


def test_ignored_settings_do_not_split_runs() -> None:
    frame = pd.DataFrame({"compile": ["eager", "graph"] * 2, "precision": ["float32"] * 3 + ["x"]})

    parts = split_by_settings(frame, ignore=["precision"])

    assert [(text, len(rows)) for text, rows in parts] == [("eager", 2), ("graph", 2)]


def test_further_settings_that_vary_are_named() -> None:
    frame = profiled(SHARES, **{"optimizer.learning_rate": [0.1, 0.2] * 4})
    assert "may also differ in optimizer.learning_rate (2)" in breakdown(frame).text()
