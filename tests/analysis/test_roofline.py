"""Rooflines of models and operations, with planted ceilings and shares."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.roofline import RooflineOptions
from analysis.analyses.roofline import roofline as analyse
from analysis.operations import make_result, place_operations
from analysis.result import Result
from analysis.roofs import Roof, find_roofs, find_verdict, place_models, summarize_families
from analysis.store.load import load
from paradnn.core.errors import ConfigError
from paradnn.statistics.dependence import shared_levels
from tests.analysis.conftest import Writer, fc
from tests.analysis.rejected import assert_rejected

# The ridge of these ceilings is at 20 FLOP/byte.
PEAK = 8e12
BANDWIDTH = 4e11

#: Specifications by device: one with both ceilings, and one without a bandwidth.
SHEETS = {
    "Spec": SimpleNamespace(peak_flops={"bfloat16": 180e12, "float32": 3e12}, bandwidth=2400e9),
    "Half": SimpleNamespace(peak_flops={"float32": 1e12}, bandwidth=None),
}


def planted(
    device: str = "Made", precision: str = "float32", ceilings: bool = True, **columns: Any
) -> pd.DataFrame:
    """Return runs at intensities from 1 to 1,000 FLOP/byte that reach a planted share of the roof.

    The column `planted` contains the share. Without `ceilings`, the runs do not record the roof.
    """
    rng = np.random.default_rng(7)
    intensity = np.geomspace(1, 1000, 31)
    share = rng.uniform(0.05, 0.95, intensity.size)
    step = rng.uniform(1, 9, intensity.size)
    identity = {
        "device": device,
        "precision": precision,
        "family": "fc",
        "outcome": "ok",
        "batch_size": 64,
    }
    rates = {
        "arithmetic_intensity": intensity,
        "flops_per_second": share * np.minimum(PEAK, intensity * BANDWIDTH),
    }
    times = {
        "step_time_ms": step,
        "step_time_low_ms": step * 0.9,
        "step_time_high_ms": step * 1.25,
        "planted": share,
    }
    if ceilings:
        measured = {"peak_flops_per_second": PEAK, "peak_bytes_per_second": BANDWIDTH}
    else:
        measured = {}
    run_ids = [f"{device}-{precision}-{i}" for i in range(31)]
    return pd.DataFrame({"run_id": run_ids, **identity, **rates, **times, **measured, **columns})


def test_planted_ridge_shares_and_verdicts_are_recovered() -> None:
    frame = planted()
    found = place_models(frame, SHEETS.get)
    (roof,) = found.roofs

    assert (roof.ridge, roof.source) == (PEAK / BANDWIDTH, "measured")

    points = found.points.merge(frame[["run_id", "planted"]], on="run_id")
    np.testing.assert_allclose(points["share"], points["planted"])
    np.testing.assert_allclose(points["share_low"], points["planted"] / 1.25)
    np.testing.assert_allclose(points["share_high"], points["planted"] / 0.9)

    expected = np.where(points["arithmetic_intensity"] < 20, "memory-bound", "compute-bound")
    assert list(points["verdict"]) == list(expected)

    table = summarize_families(found.points).loc[0]
    assert (table["memory_bound"], table["compute_bound"]) == tuple(
        np.unique(expected, return_counts=True)[1][::-1]
    )
    np.testing.assert_allclose(
        table[["share_q25", "share_median", "share_q75"]].astype(float),
        np.percentile(frame["planted"], [25, 50, 75]),
    )


def test_ceilings_are_medians_over_the_runs_of_a_precision() -> None:
    peaks = np.linspace(1e12, 5e12, 31)
    slow = planted(peak_flops_per_second=peaks, flops_per_second=1e11)
    frame = pd.concat([slow, planted(precision="float16")])
    half, single = find_roofs(frame, SHEETS.get)

    assert (half.precision, half.peak, half.ridge_low, half.ridge_high) == ("float16", PEAK, 20, 20)
    assert (single.precision, single.peak) == ("float32", np.median(peaks))
    assert (single.ridge_low, single.ridge_high) == (2.5, 12.5)
    assert list(find_verdict([2.4, 2.5, 12.4, 12.5], single)) == [
        "memory-bound",
        *["at the ridge"] * 2,
        "compute-bound",
    ]


@pytest.mark.parametrize(
    ("device", "precision", "peak", "bandwidth", "source"),
    [
        pytest.param("Spec", "float32", 3e12, 2.4e12, "specification", id="peak and bandwidth"),
        pytest.param(
            "Half", "float32", 1e12, None, "peak: specification; bandwidth: unknown", id="peak only"
        ),
        pytest.param(
            "Spec",
            "float16",
            None,
            2.4e12,
            "peak: unknown; bandwidth: specification",
            id="bandwidth only",
        ),
        pytest.param("Nobody's", "float32", None, None, "unknown", id="neither"),
    ],
)
def test_specifications_replace_ceilings_that_were_not_measured(
    device: str, precision: str, peak: float | None, bandwidth: float | None, source: str
) -> None:
    found = place_models(planted(device, precision, ceilings=False), SHEETS.get)
    (roof,) = found.roofs

    assert (roof.peak, roof.bandwidth, roof.source) == (peak, bandwidth, source)

    has_roof = peak is not None and bandwidth is not None
    assert found.points["share"].notna().all() == has_roof
    assert (found.points["verdict"] == "unknown").all() != has_roof
    assert len(found.points) == 31


def test_runs_that_cannot_be_placed_are_counted_by_reason() -> None:
    published = planted("Spec", "bfloat16", ceilings=False, published_intensity=5.0).drop(
        columns="arithmetic_intensity"
    )
    published["trace_arithmetic_intensity"] = [60.0, *[np.nan] * 30]
    published["trace_flops_utilization"] = [0.25, *[np.nan] * 30]
    failed = planted(outcome="oom_host", run_id="x").head(3)
    without_rate = planted(run_id="y", flops_per_second=np.nan).head(2)
    found = place_models(
        pd.concat([published, failed, without_rate], ignore_index=True), SHEETS.get
    )

    assert found.omitted == {
        "without a measurement (for example, because they ran out of memory)": 3,
        "published without counted traffic": 30,
        "without a FLOP rate": 2,
    }

    (point,) = found.points.to_dict("records")
    assert (point["traffic"], point["flops_per_second"]) == ("trace", 45e12)
    assert point["verdict"] == "memory-bound"  # the ridge is at 75 FLOP/byte
    assert point["share"] == pytest.approx(45 / (60 * 2.4))
    assert next(roof.ridge for roof in found.roofs if roof.precision == "bfloat16") == 75


def operations() -> pd.DataFrame:
    """Return an operation table with planted positions under the roof."""
    rows = [
        ("MatMul.1", "MatMul", 0.5, 4e9, 4e7, 6e12, 100.0),
        ("MatMul.2", "MatMul", 0.2, 1e9, 2e8, 1e12, 5.0),
        ("add", "AddV2", 0.15, 1e7, 8e7, 4e10, 0.125),
        ("tiny", "Mul", 0.005, 1e6, 8e6, 4e10, 0.125),
        ("copy", "Copy", 0.08, 0.0, 8e7, 0.0, 0.0),
        ("while", "While", 0.02, 5e9, 5e8, None, 10.0),
    ]
    names = [
        "operation",
        "type",
        "share",
        "flops",
        "bytes",
        "flops_per_second",
        "arithmetic_intensity",
    ]
    return pd.DataFrame(rows, columns=names)


def roof_of(peak: float | None, bandwidth: float | None, source: str) -> Roof:
    return Roof("Made", "float32", peak, bandwidth, source, source)


def operations_of_one_run() -> pd.DataFrame:
    return operations().assign(run_id="r", device="Made", precision="float32")


def test_operations_are_placed_under_the_roof() -> None:
    roof = roof_of(PEAK, BANDWIDTH, "measured")

    found, _ = place_operations(operations_of_one_run(), [roof])

    assert list(found["name"]) == ["MatMul.1", "MatMul.2", "add", "tiny"]
    assert list(found["drawn"]) == [True, True, True, False]
    np.testing.assert_allclose(found["roof_share"], [6 / 8, 0.5, 0.8, 0.8])


def test_times_of_operations_add_up_per_verdict() -> None:
    roof = roof_of(PEAK, BANDWIDTH, "measured")

    _, models = place_operations(operations_of_one_run(), [roof])

    (time,) = models.drop(columns=["run_id", "device", "precision"]).to_dict("records")
    assert (time["compute-bound"], time["memory-bound"]) == (
        pytest.approx(0.5),
        pytest.approx(0.355),
    )
    assert (time["without_flops"], time["unplaced"]) == (pytest.approx(0.08), pytest.approx(0.02))
    assert sum(time.values()) == pytest.approx(2 * time["covered"])


def test_types_are_placed_if_operations_have_no_names() -> None:
    table = operations_of_one_run().drop(columns="operation").iloc[[0, 2]]

    by_type, _ = place_operations(table, [roof_of(PEAK, BANDWIDTH, "measured")])

    assert list(by_type["name"]) == ["MatMul", "AddV2"]


def test_operations_without_a_roof_have_an_unknown_limit() -> None:
    roof = roof_of(None, None, "unknown")

    _, without_roof = place_operations(operations_of_one_run(), [roof])

    assert without_roof["unknown"].tolist() == [pytest.approx(0.855)]


def test_the_text_states_times_per_verdict_and_possible_savings() -> None:
    roof = roof_of(PEAK, BANDWIDTH, "measured")
    found, models = place_operations(operations_of_one_run(), [roof])

    text = make_result(
        [roof], found, models, levels=shared_levels(models), single_run="fc", sources=()
    ).text()

    assert "Of the profiled time: 35.5% memory-bound, 50% compute-bound, 8% without FLOPs, " in text
    assert "2% with FLOPs but without a rate, 4.5% in no row of the table." in text
    # The three types save 0.5 (1 - 6/8) + 0.2 (1 - 1/2) + 0.155 (1 - 0.8) of the time.
    largest = "MatMul.1 (compute-bound, at 75% of its roof) 12.5%"
    assert f"25.6% of the time would be saved, most of it by {largest}" in text


def run_roofline(frame: pd.DataFrame, **options: Any) -> Result:
    return analyse(frame, RooflineOptions(**options))


def test_the_command_reports_and_draws_the_limit_of_each_family(tmp_path: Path) -> None:
    frame = pd.concat(
        [
            planted(),
            planted(family="resnet50", precision="float16"),
            planted("Nobody's", ceilings=False),
        ]
    )
    frame = frame.assign(point_id=frame["run_id"], environment_id=frame["device"]).reset_index(
        drop=True
    )

    result = run_roofline(frame)

    text = result.text().replace("\n", " ")
    assert "Made in float32: 8 TFLOP/s, 400 GB/s, ridge 20 FLOP/B (measured)." in text
    assert "fc on Made in float32: 31 points, 14 memory-bound, 17 compute-bound." in text
    assert "Nobody's in float32: no ceiling known. Measure the ceilings" in text
    assert (
        "fc on Nobody's in float32: 31 points between 1 and 1e+03 FLOP/B, verdict unknown." in text
    )
    assert "exact work over compulsory traffic" in text
    assert len(result.table) == 93
    result.figure().savefig(tmp_path / "roof.png")


def test_more_roofs_than_fit_one_figure_are_rejected() -> None:
    seven_roofs = pd.concat(
        [planted(precision=f"p{number}") for number in range(7)], ignore_index=True
    )

    with pytest.raises(
        ConfigError,
        match=r"--device=\(all\): 7 roofs, .* do not fit one figure, .*; choose fewer with",
    ):
        run_roofline(seven_roofs.assign(point_id=seven_roofs["run_id"])).figure()


def test_a_roofline_without_points_is_reported() -> None:
    frame = planted().drop(columns="arithmetic_intensity").assign(point_id=range(31))
    result = run_roofline(frame)

    assert result.text().startswith("No run can be placed under a roof")
    assert result.text().endswith("Not placed: 31 without an arithmetic intensity.")
    assert not result.drawable

    nameless = planted(ceilings=False).assign(device=None, environment_id="e", point_id=range(31))
    assert "device not recorded in float32: no ceiling known" in run_roofline(nameless).text()


def test_a_frame_of_more_than_a_hundred_columns_raises_no_warning() -> None:
    """pandas warns about frames of more than a hundred blocks, and warnings are errors here."""
    runs = planted()
    wide = pd.DataFrame(
        {**runs, **{f"metric_{number}": np.ones(len(runs)) for number in range(120)}}, copy=False
    )

    pd.testing.assert_frame_equal(
        place_models(wide, SHEETS.get).points[["share"]],
        place_models(runs, SHEETS.get).points[["share"]],
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--color hue",
            "--color=hue: these runs have no such hyperparameter",
            id="--color hue",
        ),
        pytest.param(
            "--operations abc --color nodes",
            "--color=nodes: cannot be combined with --operations",
            id="--operations abc --color nodes",
        ),
        pytest.param("--operations all", "no chosen run was profiled", id="--operations all"),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = planted().assign(point_id=range(31), artifact_uri="")
    assert_rejected(f"roofline {options}", frame, message)


def test_an_empty_frame_is_rejected() -> None:
    assert_rejected("roofline", planted().head(0), "no run matches")


def test_replicates_of_operations_count_as_their_median(writer: Writer) -> None:
    shares = ([0.5, 0.3], [0.7, 0.1], [0.6])
    metrics = {"peak_flops_per_second": PEAK, "peak_bytes_per_second": BANDWIDTH}
    for replicate, values in enumerate(shares):
        table = [
            [name, share, 1e9, 1e7, 1e11, 100.0]
            for name, share in zip(("MatMul", "Add"), values, strict=False)
        ]
        profiled = {**metrics, "op_share.MatMul": values[0]}
        run_id = writer.run(fc(1, 16), profiled, replicate=str(replicate))
        columns = ["type", "share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]
        text = json.dumps({"columns": columns, "data": table})
        writer.client.log_text(run_id, text, "operation_types.json")
    result = run_roofline(load(writer.uri), operations="all", store=(writer.uri,))
    found = result.table.set_index("type")["share"]

    assert found["MatMul"] == pytest.approx(0.6)
    # The shares of Add are 0.3, 0.1 and, where it is absent, 0.
    assert found["Add"] == pytest.approx(0.1)
