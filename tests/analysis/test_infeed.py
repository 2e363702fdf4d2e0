"""Waits for input: planted host rates, groups without data, cores and gains."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.infeed import InfeedOptions, InputBoundSummary, infeed, input_waits
from paradnn.core.errors import InsufficientData
from tests.analysis.planted import BATCH, POINTS, SIZE, runs
from tests.analysis.rejected import assert_rejected


def planted(host: float = 1e6, **columns: object) -> pd.DataFrame:
    """Return runs whose host takes as long per example as the device takes for `host` FLOPs.

    The device waits for the host if its own work per example is shorter.
    """
    work = 6 * SIZE**2
    wait = np.maximum(0, 1 - work / host)
    planted_columns = {
        "flops_per_step": work * BATCH,
        "parameters": SIZE**2,
        "infeed_fraction": wait,
        **columns,
    }
    return runs(POINTS, **planted_columns)


def summary_of(frame: pd.DataFrame, **options: Any) -> InputBoundSummary:
    """Return the summary of a single family."""
    (found,), _ = input_waits(frame, InfeedOptions(**options))
    return found


def test_models_with_less_work_than_the_host_are_input_bound() -> None:
    result = infeed(planted())
    found = summary_of(planted())
    points = result.table
    expected = 6 * SIZE**2 < 0.9e6

    assert points["input_bound"].sum() == expected.sum()
    assert (points["input_bound"] == (points["flops_per_example"] < 0.9e6)).all()
    assert found.share.value == expected.mean()
    np.testing.assert_allclose(
        points["headroom"], np.maximum(1, 1e6 / points["flops_per_example"].astype(float))
    )
    assert points["infeed_fraction"].is_monotonic_decreasing
    assert set(result.sources) == set(planted()["run_id"])

    share_above_1, share_above_70 = (
        summary_of(planted(), threshold=threshold).share.value for threshold in (0.01, 0.7)
    )
    assert share_above_70 < share_above_1


def test_groups_without_infeed_data_are_named() -> None:
    frame = pd.concat([planted(), planted(family="rnn", infeed_fraction=np.nan)], ignore_index=True)
    (found,), omitted = input_waits(frame, InfeedOptions())

    assert found.name == "fc on Test CPU"
    assert [str(group) for group in omitted] == [
        "rnn on Test CPU: no measured run has both infeed_fraction and flops_per_example"
    ]
    with pytest.raises(
        InsufficientData,
        match=(
            "no run recorded how long it waits for its input: fc on Test CPU: "
            "no measured run has both"
        ),
    ):
        infeed(planted().drop(columns="infeed_fraction"))


def measured_balance(**columns: object) -> pd.DataFrame:
    """Return runs whose rate is limited by the device or by the input pipeline.

    The device reaches 1e9 FLOP/s. The pipeline supplies 400 examples per second and takes 2 ms of a
    core per example.
    """
    free = 1e9 / (6 * SIZE**2)
    fed = np.minimum(free, 400.0)
    gain = free / fed - 1
    scatter = (("", 1.0), ("_low", 0.9), ("_high", 1.1))
    metrics = {
        "flops_utilization": fed / free / 2,
        "infeed_fraction": 1 - fed / free,
        "infeed_gain": gain,
    }
    metrics |= {"infeed_gain_low": gain - 0.1, "infeed_gain_high": gain + 0.1}
    for end, factor in scatter:
        metrics |= {
            f"input_free_examples_per_second{end}": free * factor,
            f"input_cpu_ms_per_example{end}": 2 * factor,
        }
    return planted(**metrics, **columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--threshold 1", "--threshold=1.0: must be above 0 and below 1", id="--threshold 1"
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = planted()
    assert_rejected(f"infeed {options}", frame, message)


def test_an_empty_frame_is_rejected() -> None:
    assert_rejected(
        "infeed", planted().head(0), "there are no runs; measure with a real input pipeline"
    )


def test_planted_cores_and_gains_are_recovered() -> None:
    group = summary_of(measured_balance())
    points = group.points
    free = 1e9 / points["size"].astype(float)

    np.testing.assert_allclose(points["cores"], free * 0.002)
    np.testing.assert_allclose(points["cores_low"], free * 0.9 * 0.0018)
    np.testing.assert_allclose(points["cores_high"], free * 1.1 * 0.0022)
    np.testing.assert_allclose(points["gain"], np.maximum(free / 400, 1) - 1)
    assert group.cores.value == pytest.approx(np.median(free) * 0.002)
    assert group.gain.value == pytest.approx(points["gain"].median())
    # The headroom is 1 + gain, whether the device limits the rate (gain 0) or the pipeline does.
    np.testing.assert_allclose(points["gain"] + 1, points["headroom"])
