"""Partly measured spaces: predictions of unmeasured points, and conclusions about all points."""

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.predict import (
    PredictOptions,
    Space,
    complete,
    is_sparse,
    predict,
    predicted_maps,
    space_of,
)
from analysis.columns import family_groups
from analysis.report.sections import outline
from tests.analysis.planted import POINTS, runs
from tests.analysis.rejected import assert_rejected

LOGS = {name: np.log(POINTS[name].to_numpy(dtype=float)) for name in POINTS}
KEYS = list(LOGS)
INPUT_AND_OUTPUT_SIZE = {"model.input_size": 64, "model.output_size": 8}


def milliseconds(noise: float = 0.02, seed: int = 0) -> np.ndarray:
    """Return a step time per point: arithmetic plus dispatch per layer, with noise."""
    random = np.random.default_rng(seed)
    work = 1e-9 * np.exp(LOGS["model.nodes"] * 2 + LOGS["model.layers"] + LOGS["batch_size"])
    return np.asarray(
        (work + 0.05 * np.exp(LOGS["model.layers"]))
        * np.exp(noise * random.standard_normal(len(POINTS)))
    )


def factorial_runs(seed: int = 0) -> pd.DataFrame:
    """Return a run of each of the 64 points of the factorial."""
    step = milliseconds(seed=seed)
    speed = 1e3 * POINTS["batch_size"].to_numpy(dtype=float) / step
    return runs(
        POINTS, **{"step_time_ms": step, "examples_per_second": speed, **INPUT_AND_OUTPUT_SIZE}
    )


def sample_runs(frame: pd.DataFrame, count: int, seed: int = 0) -> pd.DataFrame:
    """Return `count` of the runs, with the first and the last, so that they span the grid."""
    inner = frame.iloc[1:-1].sample(count - 2, random_state=seed)
    return pd.concat([frame.iloc[[0, -1]], inner]).reset_index(drop=True)


def space(frame: pd.DataFrame) -> Space:
    return space_of(family_groups(frame)[0])


def test_intervals_cover_unmeasured_points_and_measured_points_are_kept() -> None:
    frame = factorial_runs()
    covered = []
    errors = []
    for seed in range(4):
        found = predict(sample_runs(frame, 20, seed), PredictOptions(metric="step_time_ms")).table
        assert len(found) == 64
        merged = found.merge(frame, on=KEYS, suffixes=("", "_true"))
        measured = merged[merged["status"] == "measured"]
        assert (measured["step_time_ms"] == measured["step_time_ms_true"]).all()
        assert measured["low"].isna().all()
        assert len(measured) == 20
        predicted = merged[merged["status"] == "predicted"]
        errors += list(np.abs(predicted["step_time_ms"] / predicted["step_time_ms_true"] - 1))
        covered += list(predicted["step_time_ms_true"].between(predicted["low"], predicted["high"]))

    assert np.median(errors) < 0.1
    assert np.mean(covered) > 0.88


def test_the_space_is_the_grid_of_sizes_per_combination_of_settings() -> None:
    frame = factorial_runs()
    two_precisions = pd.concat(
        [sample_runs(frame, 20), sample_runs(frame.assign(precision="bfloat16"), 12)],
        ignore_index=True,
    )
    two_precisions["point_id"] = two_precisions["point_id"] + two_precisions["precision"]
    found = space(two_precisions)
    points_per_precision = [
        two_precisions[two_precisions["precision"] == precision][KEYS].nunique().prod()
        for precision in ("float32", "bfloat16")
    ]

    assert found.total == sum(points_per_precision)
    assert found.measured == 32
    assert set(found.keys) == {*KEYS, "precision"}


def test_axes_that_vary_together_count_as_one_axis() -> None:
    frame = factorial_runs()
    # Each number of nodes occurs with a single number of layers.
    layers_of_nodes = {64: 4, 256: 8, 1024: 16, 4096: 32}
    has_zipped_sizes = frame["model.nodes"].map(layers_of_nodes) == frame["model.layers"]
    zipped = frame[has_zipped_sizes].reset_index(drop=True)
    three_batch_sizes = zipped[zipped["batch_size"] != 64].reset_index(drop=True)

    # 4 pairs of nodes and layers, times the number of batch sizes.
    assert space(zipped).total == 4 * 4
    assert space(three_batch_sizes).total == 4 * 3


def test_a_space_with_unmeasured_points_is_sparse() -> None:
    frame = factorial_runs()
    assert not is_sparse(frame)
    assert is_sparse(sample_runs(frame, 20))


def test_nothing_is_predicted_if_all_points_are_measured() -> None:
    assert "nothing is predicted" in predict(factorial_runs()).text()


def test_points_that_do_not_fit_the_memory_have_no_predicted_time() -> None:
    frame = factorial_runs()
    memory = POINTS["model.nodes"].astype(float) * POINTS["batch_size"].astype(float)
    failed = (memory > 2e6).to_numpy()
    frame.loc[failed, ["outcome", "step_time_ms"]] = ["oom_device", np.nan]
    found = space(sample_runs(frame, 30))
    unmeasured = found.others.merge(POINTS.assign(failed=failed), on=KEYS)

    assert (unmeasured["outcome"].eq("oom_predicted") == unmeasured["failed"]).mean() > 0.8

    # `chance` is the probability of running out of memory. Other runs prove a chance of 0 or 1.
    proved = unmeasured[unmeasured["chance"].isin([0.0, 1.0])]
    assert ((proved["chance"] == 1) == proved["failed"]).all()

    table = predict(sample_runs(frame, 30), PredictOptions(metric="step_time_ms")).table
    assert (
        table.loc[table["status"].isin(["oom_device", "oom_predicted"]), ["step_time_ms", "low"]]
        .isna()
        .all()
        .all()
    )


def test_a_predicted_map_counts_measured_points() -> None:
    sample = sample_runs(factorial_runs(), 20)
    cells = predicted_maps(complete(sample, "step_time_ms"), "batch_size", "nodes").cells

    assert len(cells) == 16

    counts = sample.groupby(["batch_size", "model.nodes"]).size()
    for row in cells.to_dict("records"):
        assert row["measured"] == counts.get((int(row["x"]), int(row["y"])), 0)
        assert row["points"] == 4
    figure = predict(sample, PredictOptions(y="nodes", metric="step_time_ms")).figure()
    (text,) = figure.legends[0].get_texts()

    assert text.get_text() == "all points of the cell measured, else predicted"


def test_a_metric_without_values_is_rejected() -> None:
    assert_rejected(
        "predict --metric peak_memory_bytes",
        factorial_runs(),
        "--metric=peak_memory_bytes: has no value in the chosen runs",
    )


@pytest.mark.parametrize(
    ("options", "frame", "message"),
    [
        pytest.param(
            "",
            factorial_runs().iloc[[0]].reset_index(drop=True),
            "fc on Test CPU: all runs measure the same point, so there is nothing to predict",
            id="one point",
        ),
        pytest.param(
            "",
            factorial_runs().iloc[[0, 1]].reset_index(drop=True),
            "fc on Test CPU: the hyperparameters of these runs span 2 points",
            id="two points",
        ),
        pytest.param(
            "",
            factorial_runs().iloc[[0, 5, 63]].reset_index(drop=True),
            "fc on Test CPU: a prediction needs 5 measured points, but these runs have 3",
            id="three points",
        ),
        pytest.param(
            "",
            factorial_runs().assign(
                outcome="oom_device", step_time_ms=np.nan, examples_per_second=np.nan
            ),
            "fc on Test CPU: no point was measured (64 oom_device)",
            id="all out of memory",
        ),
        pytest.param(
            "--metric peak_memory_bytes",
            factorial_runs().assign(peak_memory_bytes=1.0),
            "cannot be computed from the step time",
            id="memory",
        ),
    ],
)
def test_spaces_that_cannot_be_predicted_are_rejected(
    options: str, frame: pd.DataFrame, message: str
) -> None:
    assert_rejected(f"predict {options}", frame, message)


def test_the_report_of_a_sample_adds_a_predicted_map_of_the_whole_space() -> None:
    titles_of_all, titles_of_sample = (
        [section.title for _, section in outline("system", rows) if "map" in section.title]
        for rows in (factorial_runs(), sample_runs(factorial_runs(), 20))
    )
    assert titles_of_all == ["Heat map: fc"]
    assert titles_of_sample == ["Heat map: fc", "Predicted map: fc"]
