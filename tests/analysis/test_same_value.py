"""All analyses that show a quantity report the same value for the same runs."""

import numpy as np
import pandas as pd
import pytest

from analysis import FrontierOptions, frontier
from analysis.analyses.boxplot import BoxplotOptions, boxplot
from analysis.analyses.compare import CompareOptions, compare
from analysis.analyses.heatmap import HeatmapOptions, heatmap
from analysis.analyses.roofline import RooflineOptions, roofline
from analysis.analyses.speedup import SpeedupOptions, speedup
from analysis.sweep_page.figures import sweep_points
from analysis.sweep_page.page import points_table
from tests.analysis.planted import grid, runs

#: Three models, each at two batch sizes.
POINTS = grid(nodes=(64, 256, 1024), layers=(4,), batches=(64, 256))
RATES = 123.456789 * np.array([40.0, 64.0, 9.0, 16.0, 1.0, 2.0])


@pytest.fixture
def frame() -> pd.DataFrame:
    """Return one run per point, with its rate and its position under the roofline."""
    flops = 1e6 * POINTS["model.nodes"].to_numpy(dtype=float)
    return runs(
        POINTS,
        sweep_id="sweep",
        start_time=pd.to_datetime(np.arange(6), unit="m", utc=True),
        mode="inference",
        examples_per_second=RATES,
        examples_per_second_low=0.98 * RATES,
        examples_per_second_high=1.02 * RATES,
        latency_p50_ms=1e3 / RATES,
        latency_p50_low_ms=0.99e3 / RATES,
        latency_p50_high_ms=1.01e3 / RATES,
        flops_per_second=flops * RATES,
        arithmetic_intensity=50.0,
        peak_flops_per_second=4e11,
        peak_bytes_per_second=1e11,
        roofline_fraction=flops * RATES / 4e11,
        flops_utilization=flops * RATES / 4e11,
    )


def test_all_analyses_report_the_same_rate_of_a_point(frame: pd.DataFrame) -> None:
    runs_by_batch = {size: frame.loc[frame["batch_size"] == size] for size in (64, 256)}
    points = POINTS[["model.nodes", "batch_size"]].astype("str").itertuples(index=False, name=None)
    expected = dict(zip(points, RATES.tolist(), strict=True))

    heat_map = heatmap(frame, HeatmapOptions(y="model.nodes", metric="examples_per_second")).table
    pairs = compare(frame, CompareOptions(a="batch_size=64", b="batch_size=256")).table
    speedups = speedup(frame, SpeedupOptions(a=("batch_size=64",), b=("batch_size=256",))).table
    choices = frontier(frame, FrontierOptions()).table
    page = points_table(sweep_points(frame))
    boxes = boxplot(frame, BoxplotOptions(metric="examples_per_second")).table

    cells = heat_map.set_index(["model.nodes", "batch_size"])["examples_per_second"]

    assert cells.to_dict() == expected

    for table in (pairs, speedups):
        sides = table.set_index("model.nodes")
        assert sides["a"].tolist() == runs_by_batch[64]["examples_per_second"].tolist()
        assert sides["b"].tolist() == runs_by_batch[256]["examples_per_second"].tolist()
    assert sorted(choices["examples_per_second"]) == pytest.approx(sorted(RATES), rel=1e-12)

    column = page["columns"].index("examples_per_second")
    assert [row[column] for row in page["data"]] == sorted(RATES, reverse=True)
    assert boxes["p50"].tolist() == [np.median(RATES)]


def test_compare_and_speedup_report_the_same_ratio(frame: pd.DataFrame) -> None:
    ratio = float(np.exp(np.log(RATES[0::2] / RATES[1::2]).mean()))

    answers = [
        compare(frame, CompareOptions(a="batch_size=64", b="batch_size=256")).answer,
        speedup(frame, SpeedupOptions(a=("batch_size=64",), b=("batch_size=256",))).answer,
    ]

    for answer in answers:
        assert answer is not None
        assert answer.ratio == pytest.approx(ratio)
        assert (answer.low, answer.high) == (answers[0].low, answers[0].high)


def test_heat_map_and_roofline_report_the_same_share_of_the_roof(frame: pd.DataFrame) -> None:
    heat_map = heatmap(frame, HeatmapOptions(y="model.nodes", metric="roofline_fraction")).table
    roofline_table = roofline(frame, RooflineOptions()).table

    assert sorted(roofline_table["share"]) == pytest.approx(sorted(heat_map["roofline_fraction"]))
