"""Ceilings that are too low: answers report them, and later measurements replace them."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.ceilings import has_low_ceilings, with_best_ceilings
from analysis.result import Result
from analysis.roofs import find_roofs
from analysis.store.load import load
from tests.analysis.conftest import Writer, fc
from tests.analysis.planted import POINTS, runs

PEAK = 8e12
BANDWIDTH = 4e11


def measured(**columns: object) -> pd.DataFrame:
    """Return runs of the planted factorial at a tenth of the peak arithmetic rate."""
    count = len(POINTS)
    frame = runs(
        POINTS,
        arithmetic_intensity=np.geomspace(10, 100, count),
        flops_per_second=PEAK / 10,
        flops_utilization=0.1 * np.linspace(0.5, 1.5, count),
        peak_flops_per_second=PEAK,
        peak_bytes_per_second=BANDWIDTH,
        infeed_fraction=0.2,
        flops_per_step=np.geomspace(1e9, 1e12, count),
    )
    return frame.assign(run_id=[f"run-{number}" for number in range(count)], **columns)


def contended(**columns: object) -> pd.DataFrame:
    return measured(ceilings_contended="the ceilings are too low: other processes", **columns)


def no_data_sheet(device: str) -> None:
    return None


def test_a_run_well_above_its_peak_shows_that_the_peak_is_too_low() -> None:
    rates = np.where(np.arange(len(POINTS)) < 3, 1.06 * PEAK, 1.04 * PEAK)
    frame = measured(flops_per_second=rates)

    assert has_low_ceilings(frame).sum() == 3
    assert not has_low_ceilings(frame, "peak_bytes_per_second").any()


def test_valid_ceilings_replace_those_of_a_busy_machine() -> None:
    low = contended(peak_flops_per_second=PEAK / 4)
    frame = pd.concat([low, measured().head(1)], ignore_index=True)
    (roof,) = find_roofs(frame, no_data_sheet)

    assert (roof.peak, roof.is_low) == (PEAK, False)
    assert roof.source == "measured"


def test_the_highest_of_several_low_peaks_is_used_and_called_too_low() -> None:
    peaks = np.linspace(PEAK / 4, PEAK / 2, len(POINTS))
    (roof,) = find_roofs(contended(peak_flops_per_second=peaks), no_data_sheet)

    assert (roof.peak, roof.is_low) == (PEAK / 2, True)
    assert roof.source == "measured, too low"


ANALYSES: dict[str, Callable[[pd.DataFrame], Result]] = {
    "roofline": lambda frame: analysis.roofline(frame),
    "heatmap": lambda frame: analysis.heatmap(frame, analysis.HeatmapOptions(y="nodes")),
    "boxplot": lambda frame: analysis.boxplot(frame),
    "infeed": lambda frame: analysis.infeed(frame),
    "sensitivity": lambda frame: analysis.sensitivity(frame),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_text_and_figure_state_that_the_ceilings_are_too_low(name: str) -> None:
    result = ANALYSES[name](contended())
    assert "too low" in result.text()
    assert "python -m paradnn.ceilings" in result.text()

    figure = result.figure()
    titles = [axes.get_title(loc="left") for axes in figure.axes]

    assert "too low" in " ".join(" ".join([figure.get_suptitle(), *titles]).split())
    assert "too low" not in ANALYSES[name](measured()).text()


def test_a_metric_without_ceilings_has_no_caveat() -> None:
    options = analysis.HeatmapOptions(y="nodes", metric="flops_per_second")
    assert "too low" not in analysis.heatmap(contended(), options).text()


def test_remeasured_ceilings_replace_the_low_ceilings_of_earlier_runs(writer: Writer) -> None:
    ceilings = {"peak_flops_per_second.float32": 1e12, "peak_bytes_per_second": 1e11}
    remeasured = {name: 2 * value for name, value in ceilings.items()}
    other_platform = {name: 9 * value for name, value in ceilings.items()}
    tags = {"kind": "ceilings", "outcome": "", "ceilings_outcome": "ok", "point_id": "cpu"}
    first = writer.run({}, ceilings, contended="true", contended_reason="busy", **tags)
    metrics = {"peak_flops_per_second": 4e12, "peak_bytes_per_second": 1e11}
    low = {"ceilings_run": first, "ceilings_contended": "the ceilings are too low: busy"}
    writer.run(fc(1, 16), metrics, **low)
    frame = load(writer.uri)
    unchanged = with_best_ceilings(frame, [writer.uri])

    assert unchanged["peak_flops_per_second"].tolist() == [4e12]
    assert has_low_ceilings(unchanged).all()

    writer.run({}, remeasured, contended="false", **tags)
    writer.run({}, other_platform, contended="false", **{**tags, "point_id": "another platform"})
    improved = with_best_ceilings(frame, [writer.uri])

    assert improved["peak_flops_per_second"].tolist() == [8e12]
    assert improved["peak_bytes_per_second"].tolist() == [2e11]
    assert not has_low_ceilings(improved).any()
