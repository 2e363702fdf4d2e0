"""Regression weights compared with plain NumPy least squares and planted truth.

Verdicts must allow for sessions, the order of measurement, and too few values.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.regression_terms import encode
from analysis.result import Result
from tests.analysis.planted import ROW
from tests.analysis.rejected import assert_rejected


def sweep(draw: np.random.Generator, points: int = 200, **columns: Any) -> pd.DataFrame:
    """Return measured fc points on one device.

    Utilization is 0.2 + 0.1 x z(layers) + 0.05 x z(batch size) + noise, where z standardizes a
    column to mean 0 and standard deviation 1. The noise has a standard deviation of 0.01.
    """
    frame = pd.DataFrame(
        ROW
        | {
            "run_id": [f"run{i}" for i in range(points)],
            "point_id": [f"point{i}" for i in range(points)],
            "model.layers": draw.integers(1, 9, points),
            "model.nodes": draw.choice([32, 64, 128], points),
            "batch_size": draw.choice([16, 32, 64, 128], points),
            "model.input_size": 2000,
        }
        | columns
    )
    scores = frame[["model.layers", "batch_size"]].apply(
        lambda column: (column - column.mean()) / column.std()
    )
    frame["flops_utilization"] = (
        0.2
        + 0.1 * scores["model.layers"]
        + 0.05 * scores["batch_size"]
        + draw.normal(0, 0.01, points)
    )
    return frame


def fit(frame: pd.DataFrame, **options: Any) -> Result:
    return sensitivity(frame, SensitivityOptions(**options))


def weights_of(frame: pd.DataFrame, **options: Any) -> pd.DataFrame:
    return fit(frame, **options).table.set_index("term")


def test_planted_weights_are_recovered_with_sign_and_rank() -> None:
    frame = sweep(np.random.default_rng(1))
    result = fit(frame)
    spread = frame["flops_utilization"].std()
    weights = result.table.set_index("term")
    for term, planted in (("model.layers", 0.1), ("batch_size", 0.05), ("model.nodes", 0.0)):
        assert weights.loc[term, "low"] < planted / spread < weights.loc[term, "high"], term

    assert weights.loc["model.layers", "p"] < 1e-6
    assert weights.loc["model.nodes", "p"] > 0.01
    assert weights["verdict"].tolist() == ["depends", "depends", "not shown"]
    assert list(result.table["term"]) == ["model.layers", "batch_size", "model.nodes"]
    assert "without a weight: model.input_size = 2000, " in result.text()


def test_replicates_count_as_their_median() -> None:
    frame = sweep(np.random.default_rng(6), 60)
    replicates = [
        frame.assign(
            run_id=frame["run_id"] + f"-{i}", flops_utilization=frame["flops_utilization"] + shift
        )
        for i, shift in enumerate((-0.02, 0.0, 0.5))
    ]
    three_replicates = pd.concat(replicates, ignore_index=True)

    pd.testing.assert_frame_equal(fit(three_replicates).table, fit(frame).table)
    assert len(fit(three_replicates).sources) == 180


def test_collinear_columns_are_named() -> None:
    frame = sweep(np.random.default_rng(7))
    frame["model.output_size"] = 3 * frame["model.nodes"] - 2 * frame["model.layers"] + 7

    result = fit(frame)

    assert (
        "model.output_size has no separate weight: over these points it is a combination of"
        in result.text()
    )
    assert "model.output_size" not in list(result.table["term"])


def test_nearly_collinear_columns_have_a_large_variance_inflation() -> None:
    frame = sweep(np.random.default_rng(7))
    noise = np.random.default_rng(8).normal(0, 1, len(frame))
    frame["model.output_size"] = frame["model.nodes"] + noise

    assert weights_of(frame).loc[["model.nodes", "model.output_size"], "vif"].min() > 100


def test_logarithms_recover_the_planted_effect() -> None:
    frame = sweep(np.random.default_rng(9))
    layers = frame["model.layers"].astype(float)
    nodes = frame["model.nodes"].astype(float)
    frame["flops_utilization"] = 1e-3 * layers**0.5 * nodes**-1.5
    weights = weights_of(frame, log_scale="both")

    np.testing.assert_allclose(
        weights["slope"][["model.layers", "model.nodes", "batch_size"]], [0.5, -1.5, 0], atol=1e-9
    )
    assert weights["r2_held_out"].tolist() == pytest.approx([1, 1, 1])


@pytest.fixture
def columns_of_text() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model.blocks": ["[1, 1, 2, 2]", "[3, 4, 6, 3]", "[1, 1, 1, 1]"],
            "precision": ["bfloat16", "float32", "float16"],
            "compile": ["xla", "graph", "xla"],
            "model.bias": pd.array([True, False, True], "boolean"),
        }
    )


def test_text_becomes_indicators_and_lists_of_blocks_become_totals(
    columns_of_text: pd.DataFrame,
) -> None:
    terms, baselines = encode(columns_of_text, list(columns_of_text))

    assert terms.to_dict("list") == {
        "model.blocks": [6, 16, 4],
        "precision=bfloat16": [1, 0, 0],
        "precision=float16": [0, 0, 1],
        "compile=graph": [0, 1, 0],
        "model.bias": [1, 0, 1],
    }
    assert baselines == {"precision": "float32", "compile": "xla"}


def test_an_empty_column_has_no_term(columns_of_text: pd.DataFrame) -> None:
    terms, _ = encode(columns_of_text.assign(compile=None), ["compile", "precision"])

    assert list(terms) == ["precision=bfloat16", "precision=float16"]


def test_a_text_column_has_the_planted_effect_over_its_baseline() -> None:
    draw = np.random.default_rng(10)
    mixed = sweep(draw, precision=draw.choice(["float32", "bfloat16"], 200))
    mixed["flops_utilization"] += 0.3 * (mixed["precision"] == "bfloat16")

    result = fit(mixed, on=("layers", "precision", "batch_size"))

    assert result.table.set_index("term").loc["precision=bfloat16", "slope"] == pytest.approx(
        0.3, abs=0.01
    )
    remark = (
        "These columns also vary but have no term: model.nodes; hold them constant with --where"
    )
    assert remark in result.text()
    assert "precision is compared with float32." in result.text()


def test_each_family_and_device_has_its_own_fit_and_failures_are_counted() -> None:
    draw = np.random.default_rng(11)
    gpu_runs = sweep(
        draw, device="Test GPU", environment_id="f", outcome=["ok"] * 150 + ["oom_device"] * 50
    )
    result = fit(
        pd.concat([sweep(draw), gpu_runs, sweep(draw, 5, family="lstm")], ignore_index=True)
    )

    assert "fc on Test CPU: flops_utilization over 200 points." in result.text()

    omission = "runs without a measurement are omitted (50 oom_"
    assert f"fc on Test GPU: flops_utilization over 150 points; {omission}" in result.text()
    assert (
        "lstm on Test CPU: a regression with 3 terms needs at least 8 points, but has only 5: no fit."
        in result.text()
    )


def test_only_logarithmic_terms_have_an_effect_per_doubling() -> None:
    """A Boolean column stays 0 or 1 on a log scale, so doubling it has no meaning."""
    frame = sweep(np.random.default_rng(5))
    frame["model.bias"] = pd.array(np.arange(len(frame)) % 2 == 0, dtype="boolean")
    frame["flops_utilization"] = np.exp(
        frame["flops_utilization"] + 0.1 * frame["model.bias"].astype(float)
    )
    result = fit(frame, log_scale="both", metric="flops_utilization")
    weights = result.table.set_index("term")

    assert np.isnan(weights.loc["model.bias", "doubling"])
    assert weights.loc["model.layers", "doubling"] == pytest.approx(
        2 ** weights.loc["model.layers", "slope"]
    )

    headline = result.headline()
    assert "depends most on layers: " in headline.words


def factorial(**columns: Any) -> pd.DataFrame:
    """Return a full factorial of layers, nodes and batch sizes.

    The utilization is 0.1 x layers^0.2, with 2% noise.
    """
    axes = {
        "model.layers": 2.0 ** np.arange(6),
        "model.nodes": 2.0 ** np.arange(5),
        "batch_size": 2.0 ** np.arange(4),
    }
    points = pd.DataFrame(
        np.array(np.meshgrid(*axes.values())).reshape(3, -1).T, columns=list(axes)
    )
    draw = np.random.default_rng(16)
    speed = 0.1 * points["model.layers"] ** 0.2 * np.exp(draw.normal(0, 0.02, len(points)))
    return sweep(draw, len(points), **{name: points[name] for name in points}, **columns).assign(
        flops_utilization=speed
    )


@pytest.mark.parametrize(
    ("minutes", "verdict"),
    [
        pytest.param(range(36), "undecided (order)", id="in the order of layers"),
        pytest.param(np.random.default_rng(0).permutation(36), "depends", id="random order"),
    ],
)
def test_an_axis_measured_in_order_is_undecided_because_of_drift(
    minutes: Sequence[int], verdict: str
) -> None:
    """Each of six layer counts has six points. The speed falls by 2% per layer count.

    If the layer counts are measured one after another, drift may explain the fall.
    """
    draw = np.random.default_rng(0)
    speed = 100 * np.exp(-0.02 * np.repeat(np.arange(6), 6) + draw.normal(0, 0.005, 36))
    axes = {
        "model.layers": np.repeat(np.arange(1, 7), 6),
        "model.nodes": np.tile(2 ** np.arange(5, 11), 6),
    }
    frame = sweep(draw, 36, **axes, batch_size=32, sweep_id="s", examples_per_second=speed)
    frame = frame.assign(start_time=pd.to_datetime(list(minutes), unit="m"))
    result = fit(frame, metric="examples_per_second")
    row = result.table.set_index("term").loc["model.layers"]

    assert row["verdict"] == verdict
    assert ("measure them in random order" in result.text()) == (verdict != "depends")


@pytest.mark.parametrize(
    ("power", "verdict"),
    [
        pytest.param(0.05, "undecided (sessions)", id="effect within the scatter of sessions"),
        pytest.param(1.0, "depends", id="effect beyond the scatter of sessions"),
    ],
)
def test_an_axis_confounded_with_sessions_has_a_wide_interval(power: float, verdict: str) -> None:
    frame = factorial(sweep_id="s", host="h")
    has_many_layers = frame["model.layers"] > 4
    speed = frame["flops_utilization"] * frame["model.layers"] ** (power - 0.2)
    frame = frame.assign(flops_utilization=speed)
    one_session = weights_of(frame, log_scale="both").loc["model.layers"]

    assert one_session["verdict"] == "depends"

    result = fit(frame.assign(sweep_id=np.where(has_many_layers, "t", "s")), log_scale="both")
    row = result.table.set_index("term").loc["model.layers"]

    assert row["verdict"] == verdict
    assert row["high"] - row["low"] > 2 * (one_session["high"] - one_session["low"])
    assert ("measured in different sessions" in result.text()) == (verdict != "depends")


def test_shifts_between_sessions_with_all_values_are_removed() -> None:
    frame = factorial(sweep_id="s", host="h")
    mixed = frame.assign(sweep_id=np.where(np.arange(len(frame)) % 7 < 3, "t", "s"))
    shifted = mixed.assign(
        flops_utilization=frame["flops_utilization"] * np.where(mixed["sweep_id"] == "t", 1.5, 1)
    )
    row = weights_of(shifted, log_scale="both").loc["model.layers"]

    assert row["verdict"] == "depends"
    assert row["slope"] == pytest.approx(0.2, abs=0.02)


def test_the_largest_weight_is_named_only_if_the_next_is_smaller() -> None:
    frame = factorial()
    for power, words in ((0.2, "depends on"), (0.02, "depends most on layers")):
        # Batch sizes have four values and layers six; this factor makes equal powers equal weights.
        batch_power = np.sqrt(35 / 15) * power
        both_effects = frame.assign(
            flops_utilization=frame["flops_utilization"] * frame["batch_size"] ** batch_power
        )
        headline = fit(both_effects, log_scale="both").headline()
        assert words in headline.words
        assert ("may be as large" in headline.words) == (power == 0.2)
        assert headline.words.count(". ") == 0


def with_exclusive_columns() -> pd.DataFrame:
    """Return runs with a value in either `generate.prompt` or `devices`, never in both."""
    is_even = np.arange(200) % 2 == 0
    prompt = np.where(is_even, 8.0, np.nan)
    devices = np.where(is_even, np.nan, 2.0)
    return sweep(np.random.default_rng(13)).assign(
        **{"generate.prompt": prompt, "devices": devices}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--metric flops_utilisation",
            "is not a metric of these runs; did you mean flops_utilization",
            id="--metric flops_utilisation",
        ),
        pytest.param(
            "--metric step_time_ms",
            "has no value in the chosen runs; choose a metric that they have",
            id="--metric step_time_ms",
        ),
        pytest.param(
            "--on node",
            "--on=node: these runs have no such hyperparameter; did you mean nodes",
            id="--on node",
        ),
        pytest.param(
            "--on input_size",
            "fc on Test CPU: no hyperparameter varies; choose fewer hyperparameters with --on",
            id="--on input_size",
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = sweep(np.random.default_rng(13))
    assert_rejected(f"sensitivity {options}", frame, message)


@pytest.mark.parametrize(
    ("options", "frame", "message"),
    [
        pytest.param(
            "", with_exclusive_columns(), "no measured run has all of ", id="no run has all columns"
        ),
        pytest.param(
            "",
            sweep(np.random.default_rng(13)).assign(flops_utilization=0.5),
            "the metric is the same in all 200 rows",
            id="constant metric",
        ),
        pytest.param(
            "",
            sweep(np.random.default_rng(13)).assign(outcome="timeout"),
            "no measured run has flops_utilization, flops_per_second",
            id="timeouts",
        ),
        pytest.param(
            "", sweep(np.random.default_rng(13)).head(0), "no measured run has", id="no runs"
        ),
        pytest.param(
            "--log-scale both",
            sweep(np.random.default_rng(13)).assign(flops_utilization=-1.0),
            "--log-scale=both: flops_utilization contains -",
            id="logarithm of a negative metric",
        ),
        pytest.param(
            "--log-scale both",
            sweep(np.random.default_rng(13)).assign(batch_size=range(200)),
            "--log-scale=both: batch_size contains 0, which",
            id="logarithm of zero",
        ),
    ],
)
def test_runs_that_cannot_be_fitted_are_rejected(
    options: str, frame: pd.DataFrame, message: str
) -> None:
    assert_rejected(f"sensitivity {options}", frame, message)


@pytest.mark.parametrize(
    ("values", "excess", "log_scale", "sentence"),
    [
        pytest.param(
            3,
            0.5,
            "none",
            "but so few values cannot show a slope: measure at least 5 values of each.",
            id="three values far from a power law",
        ),
        pytest.param(3, 0.05, "none", "The metric depends on", id="three values near a power law"),
        pytest.param(3, 0.05, "both", "The metric depends on", id="three values, all logarithms"),
        pytest.param(5, 0.1, "none", "The metric depends on", id="five values"),
        pytest.param(5, 0.1, "both", "The metric depends on", id="five values, all logarithms"),
    ],
)
def test_too_few_values_are_named_as_the_reason(
    values: int, excess: float, log_scale: str, sentence: str
) -> None:
    steps = np.array(np.meshgrid(*[np.arange(values)] * 3)).reshape(3, -1)
    # The middle value of each axis is faster than a power law predicts.
    middle_axes = (steps == values // 2).sum(axis=0)
    speed = 2.0 ** (0.3 * steps.sum(axis=0)) * np.exp(excess * middle_axes)
    random = np.random.default_rng(2)
    frame = sweep(
        random,
        values**3,
        **{
            "model.layers": 2 ** steps[0],
            "model.nodes": 2 ** steps[1],
            "batch_size": 2 ** steps[2],
        },
    ).assign(flops_utilization=0.01 * speed * np.exp(random.normal(0, 0.02, values**3)))

    result = fit(frame, log_scale=log_scale)

    assert sentence in result.text()
    assert "hides any slope" not in result.text()


@pytest.fixture
def six_points() -> pd.DataFrame:
    """Each doubling of nodes multiplies the throughput by 0.44, with departures of about 20%."""
    levels = np.indices((3, 2)).reshape(2, -1)
    logs = np.log(0.44) * 2 * levels[0] + 0.2 * levels[1] + 0.2 * np.array([-1, 2, -1])[levels[0]]
    return sweep(
        np.random.default_rng(3),
        6,
        **{"model.nodes": 128 * 4 ** levels[0], "model.layers": 4},
        batch_size=64 * 8 ** levels[1],
        examples_per_second=1e4 * np.exp(logs),
    )


def test_six_points_have_an_answer(six_points: pd.DataFrame) -> None:
    decided = fit(six_points, metric="examples_per_second", log_scale="both")

    assert decided.opening().startswith("Throughput of fc depends most on nodes: 0.44")


def test_an_undecided_answer_states_its_interval(six_points: pd.DataFrame) -> None:
    undecided = fit(
        six_points.assign(examples_per_second=1e4 * np.exp(0.3 * np.array([1, -1, 1, -1, -1, 1]))),
        metric="examples_per_second",
        log_scale="both",
    )

    assert re.fullmatch(
        r"No dependence of throughput of fc is shown: .* has the largest weight, [-+][\d.]+ "
        r"\(95% CI -[\d.]+ to \+[\d.]+\) over 6 points\.",
        undecided.opening(),
    )
