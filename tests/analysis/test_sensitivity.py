"""Regression weights compared with plain NumPy least squares and planted truth.

The coverage of their intervals must equal the stated rate.
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

    Utilization is 0.2 + 0.1 x layers score + 0.05 x batch score + noise.
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
    score = frame[["model.layers", "batch_size"]].apply(
        lambda column: (column - column.mean()) / column.std()
    )
    frame["flops_utilization"] = (
        0.2
        + 0.1 * score["model.layers"]
        + 0.05 * score["batch_size"]
        + draw.normal(0, 0.01, points)
    )
    return frame


def fit(frame: pd.DataFrame, **options: Any) -> Result:
    return sensitivity(frame, SensitivityOptions(**options))


def weights_of(frame: pd.DataFrame, **options: Any) -> pd.DataFrame:
    return fit(frame, **options).table.set_index("term")


def test_planted_weights_are_recovered_with_sign_and_order() -> None:
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


def test_replicates_become_their_median() -> None:
    frame = sweep(np.random.default_rng(6), 60)
    again = [
        frame.assign(
            run_id=frame["run_id"] + f"-{i}", flops_utilization=frame["flops_utilization"] + shift
        )
        for i, shift in enumerate((-0.02, 0.0, 0.5))
    ]
    three = pd.concat(again, ignore_index=True)
    pd.testing.assert_frame_equal(fit(three).table, fit(frame).table)
    assert len(fit(three).sources) == 180


def test_collinear_columns_are_named_and_nearly_collinear_ones_have_a_large_vif() -> None:
    frame = sweep(np.random.default_rng(7))
    frame["model.output_size"] = 3 * frame["model.nodes"] - 2 * frame["model.layers"] + 7
    result = fit(frame)
    assert (
        "model.output_size has no separate weight: over these points it is a combination of"
        in result.text()
    )
    assert "model.output_size" not in list(result.table["term"])
    frame["model.output_size"] = frame["model.nodes"] + np.random.default_rng(8).normal(
        0, 1, len(frame)
    )
    assert weights_of(frame).loc[["model.nodes", "model.output_size"], "vif"].min() > 100


def test_logarithms_recover_the_planted_effect() -> None:
    frame = sweep(np.random.default_rng(9))
    layers = frame["model.layers"].astype(float)
    nodes = frame["model.nodes"].astype(float)
    frame["flops_utilization"] = 1e-3 * layers**0.5 * nodes**-1.5
    log = weights_of(frame, log_scale="both")
    np.testing.assert_allclose(
        log["slope"][["model.layers", "model.nodes", "batch_size"]], [0.5, -1.5, 0], atol=1e-9
    )
    assert log["r2_held_out"].tolist() == pytest.approx([1, 1, 1])


def test_words_become_indicators_and_blocks_their_total() -> None:
    frame = pd.DataFrame(
        {
            "model.blocks": ["[1, 1, 2, 2]", "[3, 4, 6, 3]", "[1, 1, 1, 1]"],
            "precision": ["bfloat16", "float32", "float16"],
            "compile": ["xla", "graph", "xla"],
            "model.bias": pd.array([True, False, True], "boolean"),
        }
    )
    terms, baselines = encode(frame, list(frame))
    assert terms.to_dict("list") == {
        "model.blocks": [6, 16, 4],
        "precision=bfloat16": [1, 0, 0],
        "precision=float16": [0, 0, 1],
        "compile=graph": [0, 1, 0],
        "model.bias": [1, 0, 1],
    }
    assert baselines == {"precision": "float32", "compile": "xla"}
    without = encode(frame.assign(compile=None), ["compile", "precision"])[0]
    assert list(without) == list(terms)[1:3], "no value, no term"
    draw = np.random.default_rng(10)
    fast = sweep(draw, precision=draw.choice(["float32", "bfloat16"], 200))
    fast["flops_utilization"] += 0.3 * (fast["precision"] == "bfloat16")
    result = fit(fast, on=("layers", "precision", "batch_size"))
    assert result.table.set_index("term").loc["precision=bfloat16", "slope"] == pytest.approx(
        0.3, abs=0.01
    )
    assert "These vary too but have no term: model.nodes; fix them with --where" in result.text()
    assert "precision is compared with float32." in result.text()


def test_each_family_and_device_has_its_own_fit_and_failures_are_counted() -> None:
    draw = np.random.default_rng(11)
    other = sweep(
        draw, device="Test GPU", environment_id="f", outcome=["ok"] * 150 + ["oom_device"] * 50
    )
    result = fit(pd.concat([sweep(draw), other, sweep(draw, 5, family="lstm")], ignore_index=True))
    assert "fc on Test CPU: flops_utilization over 200 points." in result.text()
    left_out = "runs without a measurement are omitted (50 oom_"
    assert f"fc on Test GPU: flops_utilization over 150 points; {left_out}" in result.text()
    assert "lstm on Test CPU: 5 points for 3 terms, at least 8 are needed: no fit." in result.text()


def test_only_a_logarithm_has_a_doubling() -> None:
    """A truth value stays 0 or 1 on a log scale, where doubling it has no meaning."""
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


def apart(**columns: Any) -> pd.DataFrame:
    """Return a grid of layers, nodes and batch sizes.

    The logarithm of the utilization rises with the layers.
    """
    axes = {
        "model.layers": 2.0 ** np.arange(6),
        "model.nodes": 2.0 ** np.arange(5),
        "batch_size": 2.0 ** np.arange(4),
    }
    grid = pd.DataFrame(np.array(np.meshgrid(*axes.values())).reshape(3, -1).T, columns=list(axes))
    draw = np.random.default_rng(16)
    speed = 0.1 * grid["model.layers"] ** 0.2 * np.exp(draw.normal(0, 0.02, len(grid)))
    return sweep(draw, len(grid), **{name: grid[name] for name in grid}, **columns).assign(
        flops_utilization=speed
    )


@pytest.mark.parametrize(
    ("minutes", "verdict"),
    [
        pytest.param(range(36), "undecided (order)", id="in the order of layers"),
        pytest.param(np.random.default_rng(0).permutation(36), "depends", id="random order"),
    ],
)
def test_an_axis_in_order_of_time_is_undecided_against_drift(
    minutes: Sequence[int], verdict: str
) -> None:
    """Six layers take six minutes each; the speed falls by 2% from one to the next."""
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
    assert ("measure in random order" in result.text()) == (verdict != "depends")


@pytest.mark.parametrize(
    ("power", "verdict"),
    [
        pytest.param(0.05, "undecided (sessions)", id="a session may explain it"),
        pytest.param(1.0, "depends", id="beyond any session"),
    ],
)
def test_an_axis_that_went_along_with_sessions_has_a_wide_interval(
    power: float, verdict: str
) -> None:
    frame = apart(sweep_id="s", host="h")
    larger = frame["model.layers"] > 4
    speed = frame["flops_utilization"] * frame["model.layers"] ** (power - 0.2)
    frame = frame.assign(flops_utilization=speed)
    in_one = weights_of(frame, log_scale="both").loc["model.layers"]
    assert in_one["verdict"] == "depends"
    result = fit(frame.assign(sweep_id=np.where(larger, "t", "s")), log_scale="both")
    row = result.table.set_index("term").loc["model.layers"]
    assert row["verdict"] == verdict
    assert row["high"] - row["low"] > 2 * (in_one["high"] - in_one["low"])
    assert ("in other sessions" in result.text()) == (verdict != "depends")


def test_shifts_of_sessions_that_hold_all_values_are_removed() -> None:
    frame = apart(sweep_id="s", host="h")
    mixed = frame.assign(sweep_id=np.where(np.arange(len(frame)) % 7 < 3, "t", "s"))
    shifted = mixed.assign(
        flops_utilization=frame["flops_utilization"] * np.where(mixed["sweep_id"] == "t", 1.5, 1)
    )
    row = weights_of(shifted, log_scale="both").loc["model.layers"]
    assert row["verdict"] == "depends"
    assert row["slope"] == pytest.approx(0.2, abs=0.02)


def test_the_strongest_is_named_only_if_the_next_is_weaker() -> None:
    frame = apart()
    for power, words in ((0.2, "depends on"), (0.02, "depends most on layers")):
        steps = np.sqrt(35 / 15) * power  # six values and four: equal powers give equal weights
        both = frame.assign(
            flops_utilization=frame["flops_utilization"] * frame["batch_size"] ** steps
        )
        headline = fit(both, log_scale="both").headline()
        assert words in headline.words
        assert ("may weigh as much" in headline.words) == (power == 0.2)
        assert headline.words.count(". ") == 0


def with_exclusive_columns() -> pd.DataFrame:
    """Return runs that each have only one of two columns."""
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
            "no chosen run has a value for it; they have flops_utilization",
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
def test_invalid_options_give_one_line(options: str, message: str) -> None:
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
            "--log-scale=flops_utilization: holds -",
            id="logarithm of a negative metric",
        ),
        pytest.param(
            "--log-scale both",
            sweep(np.random.default_rng(13)).assign(batch_size=range(200)),
            "--log-scale=batch_size: holds 0, which",
            id="logarithm of zero",
        ),
    ],
)
def test_unsuitable_runs_are_reported(options: str, frame: pd.DataFrame, message: str) -> None:
    assert_rejected(f"sensitivity {options}", frame, message)


@pytest.mark.parametrize(
    ("values", "bump", "log_scale", "sentence"),
    [
        pytest.param(
            3,
            0.5,
            "none",
            "differ, but so few values cannot show a slope: measure at least 5 of each.",
            id="three values far from a power law",
        ),
        pytest.param(3, 0.05, "none", "It depends on", id="three values near a power law"),
        pytest.param(3, 0.05, "both", "It depends on", id="three values, all logarithms"),
        pytest.param(5, 0.1, "none", "It depends on", id="five values"),
        pytest.param(5, 0.1, "both", "It depends on", id="five values, all logarithms"),
    ],
)
def test_too_few_values_are_named_as_the_reason(
    values: int, bump: float, log_scale: str, sentence: str
) -> None:
    steps = np.array(np.meshgrid(*[np.arange(values)] * 3)).reshape(3, -1)
    # The middle value of each axis is faster than a power law says.
    bumps = (steps == values // 2).sum(axis=0)
    speed = 2.0 ** (0.3 * steps.sum(axis=0)) * np.exp(bump * bumps)
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
    assert "not along a slope" not in result.text()


def test_six_points_of_the_demo_have_an_answer_and_an_undecided_one_names_its_interval() -> None:
    """Throughput falls by 0.44x per doubling of nodes, with departures of 20% from a power law."""
    index = np.indices((3, 2)).reshape(2, -1)
    logs = np.log(0.44) * 2 * index[0] + 0.2 * index[1] + 0.2 * np.array([-1, 2, -1])[index[0]]
    frame = sweep(
        np.random.default_rng(3),
        6,
        **{"model.nodes": 128 * 4 ** index[0], "model.layers": 4},
        batch_size=64 * 8 ** index[1],
        examples_per_second=1e4 * np.exp(logs),
    )
    decided = fit(frame, metric="examples_per_second", log_scale="both")
    assert decided.opening().startswith("Throughput of fc depends most on nodes: 0.44")
    undecided = fit(
        frame.assign(examples_per_second=1e4 * np.exp(0.3 * np.array([1, -1, 1, -1, -1, 1]))),
        metric="examples_per_second",
        log_scale="both",
    )
    assert re.fullmatch(
        r"Undecided what throughput of fc depends on: .* has the largest weight, [-+][\d.]+ "
        r"\(95% CI -[\d.]+ to \+[\d.]+\) over 6 points\.",
        undecided.opening(),
    )
