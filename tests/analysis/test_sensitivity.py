"""Weights against plain NumPy least squares, planted truth, and their intervals against their stated rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.sensitivity import SensitivityOptions, SensitivityResult, encode, sensitivity
from analysis.cli import main
from analysis.statistics.regression import regress
from analysis.store.frame import units
from paradnn.errors import ConfigError, NotEnoughData, ParadnnError, SchemaError


def sweep(draw: np.random.Generator, points: int = 200, **columns: Any) -> pd.DataFrame:
    """Measured points of fc on one device; utilisation = 0.2 + 0.1 layers score + 0.05 batch score + noise."""
    frame = pd.DataFrame(
        {
            "run_id": [f"run{i}" for i in range(points)],
            "point_id": [f"point{i}" for i in range(points)],
            "family": "fc",
            "model.name": "fc",
            "device": "Test CPU",
            "outcome": "ok",
            "environment_id": "e",
            "protocol_id": "p",
            "schema_version": "1",
            "model.layers": draw.integers(1, 9, points),
            "model.nodes": draw.choice([32, 64, 128], points),
            "batch_size": draw.choice([16, 32, 64, 128], points),
            "model.input_size": 2000,
            "precision": "float32",
        }
        | columns
    )
    score = frame[["model.layers", "batch_size"]].apply(lambda column: (column - column.mean()) / column.std())
    frame["flops_utilization"] = (
        0.2 + 0.1 * score["model.layers"] + 0.05 * score["batch_size"] + draw.normal(0, 0.01, points)
    )
    frame.attrs["units"] = units(frame.columns)
    return frame


def fit(frame: pd.DataFrame, **options: Any) -> SensitivityResult:
    return sensitivity(frame, SensitivityOptions(**options))


def test_planted_weights_are_recovered_with_sign_and_order() -> None:
    frame = sweep(np.random.default_rng(1))
    result = fit(frame)
    spread = frame["flops_utilization"].std()
    weights = result.fits[0].weights
    for term, planted in (("model.layers", 0.1), ("batch_size", 0.05), ("model.nodes", 0.0)):
        assert weights.loc[term, "low"] < planted / spread < weights.loc[term, "high"], term
    assert weights.loc["model.layers", "p"] < 1e-9
    assert weights.loc["model.nodes", "p"] > 0.01
    assert list(result.table["term"]) == ["model.layers", "batch_size", "model.nodes"]
    assert "without a weight: model.input_size = 2000, precision = float32." in result.text()
    assert "On a value that the fit never saw it is off by: model.layers " in result.text()
    assert "percentage points between others, " in result.text()


def test_replicates_become_their_median_or_share_a_cluster() -> None:
    frame = sweep(np.random.default_rng(6), 60)
    again = [
        frame.assign(run_id=frame["run_id"] + f"-{i}", flops_utilization=frame["flops_utilization"] + shift)
        for i, shift in enumerate((-0.02, 0.0, 0.5))
    ]
    three = pd.concat(again, ignore_index=True)
    single, merged = (fit(runs).fits[0].regression for runs in (frame, three))
    pd.testing.assert_frame_equal(merged.weights, single.weights)
    for options, rows, covariance in (
        ({}, 60, "crossed"),
        ({"unit": "point"}, 60, "HC3"),
        ({"keep_replicates": True}, 180, "crossed"),
        ({"keep_replicates": True, "unit": "point"}, 180, "cluster"),
    ):
        found = fit(three, **options).fits[0].regression
        assert (found.rows, found.clusters, found.covariance) == (rows, 60, covariance)
        np.testing.assert_allclose(found.weights["slope"], single.weights["slope"], atol=1e-12)
    assert len(fit(three).sources) == 180


def test_collinear_columns_are_named_and_nearly_collinear_ones_have_a_large_vif() -> None:
    frame = sweep(np.random.default_rng(7))
    frame["model.output_size"] = 3 * frame["model.nodes"] - 2 * frame["model.layers"] + 7
    result = fit(frame)
    assert "model.output_size has no weight of its own: over these points it is a combination of" in result.text()
    assert "model.output_size" not in result.fits[0].weights.index
    frame["model.output_size"] = frame["model.nodes"] + np.random.default_rng(8).normal(0, 1, len(frame))
    near = fit(frame)
    assert near.fits[0].weights.loc[["model.nodes", "model.output_size"], "vif"].min() > 100
    assert "Hard to separate, their columns nearly agree (VIF): model.nodes (" in near.text()


def test_interactions_and_logarithms_recover_what_was_planted() -> None:
    frame = sweep(np.random.default_rng(9))
    layers, nodes = frame["model.layers"].astype(float), frame["model.nodes"].astype(float)
    frame["flops_utilization"] = 1e-3 * layers**0.5 * nodes**-1.5
    log = fit(frame, log_scale="both").fits[0].regression
    np.testing.assert_allclose(log.weights["slope"], [0.5, -1.5, 0.0], atol=1e-9)
    assert log.r2_held_out == pytest.approx(1)
    a, b = ((column - column.mean()) / column.std() for column in (layers, nodes))
    frame["flops_utilization"] = 5 + a - b + 2 * a * b
    crossed = fit(frame, interactions=True).fits[0].regression
    assert crossed.weights.loc["model.layers x model.nodes", "slope"] == pytest.approx(2)
    assert crossed.weights.loc["model.nodes x batch_size", "weight"] == pytest.approx(0, abs=1e-9)


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
    assert list(encode(frame.assign(compile=None), ["compile", "precision"])[0]) == list(terms)[1:3], (
        "no value, no term"
    )
    draw = np.random.default_rng(10)
    fast = sweep(draw, precision=draw.choice(["float32", "bfloat16"], 200))
    fast["flops_utilization"] += 0.3 * (fast["precision"] == "bfloat16")
    result = fit(fast, on=("layers", "precision", "batch_size"))
    assert result.fits[0].weights.loc["precision=bfloat16", "slope"] == pytest.approx(0.3, abs=0.01)
    assert "These vary too but have no term: model.nodes; fix them with --where" in result.text()
    assert "precision is against float32." in result.text()


def test_each_family_and_device_has_its_own_fit_and_failures_are_counted() -> None:
    draw = np.random.default_rng(11)
    other = sweep(draw, device="Test GPU", environment_id="f", outcome=["ok"] * 150 + ["oom_device"] * 50)
    result = fit(pd.concat([sweep(draw), other, sweep(draw, 5, family="lstm")], ignore_index=True))
    assert "fc on Test CPU: flops_utilization over 200 points." in result.text()
    assert "fc on Test GPU: flops_utilization over 150 points; runs without a measurement are left out (50 oom_" in (
        result.text()
    )
    assert "lstm on Test CPU: 5 points for 3 terms, at least 12 are needed: no fit." in result.text()
    with pytest.raises(SchemaError, match=r"environment_id = e .*, f "):
        fit(pd.concat([sweep(draw), other.assign(device="Test CPU")], ignore_index=True))


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"metric": "flops_utilisation"}, "is no metric of these runs; did you mean flops_utilization"),
        ({}, {"metric": "step_time_ms"}, "none of these runs has a value of it; they have flops_utilization"),
        ({}, {"on": ("node",)}, "--on=node: these runs have no such hyperparameter; did you mean nodes"),
        ({}, {"on": ("input_size",)}, "fc on Test CPU: no hyperparameter varies; measure more points"),
        ({"flops_utilization": 0.5}, {}, "the metric is the same in all 200 rows"),
        ({"outcome": "timeout"}, {}, "no measured run has flops_utilization, flops_per_second"),
        (
            {"batch_size": 0},
            {"on": ("batch_size", "layers"), "log_scale": "metric"},
            "--log-scale=flops_utilization: holds -",
        ),
        (
            {"model.nodes": np.arange(200)},
            {"log_scale": "hyperparameters"},
            "--log-scale=model.nodes: holds 0, which has no logarithm",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(change: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    frame = sweep(np.random.default_rng(13)).assign(**change)
    with pytest.raises(ParadnnError, match=message):
        fit(frame, **arguments)


def test_runs_none_of_which_has_every_setting_are_named() -> None:
    frame = sweep(np.random.default_rng(1))
    half = np.arange(len(frame)) % 2 == 0
    apart = frame.assign(**{"generate.prompt": np.where(half, 8.0, np.nan), "devices": np.where(half, np.nan, 2.0)})
    with pytest.raises(NotEnoughData, match=r"no measured run has all of .*devices.*; choose some with --on"):
        fit(apart)


def test_too_few_rows_name_how_many_are_needed() -> None:
    with pytest.raises(NotEnoughData, match="5 points for 2 terms, at least 9 are needed"):
        regress(pd.DataFrame({"a": range(5), "b": [1, 0, 2, 0, 1]}), np.arange(5.0))
    with pytest.raises(ConfigError, match="no measured run has"):
        fit(sweep(np.random.default_rng(14)).iloc[:0])


def test_the_command_says_and_draws_what_it_found(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png = tmp_path / "weights.png"
    arguments = ["sensitivity", "--store", store, "--family", "fc", "--log-scale", "both", "--figure", str(png)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "fc on Test CPU, 2 cores: examples_per_second over 25 points; runs without" in out
    assert "(5 oom_device)" in out
    assert "doubling it multiplies by 2.00" in out, "batch size"
    assert "doubling it multiplies by 0.50" in out, "layers"
    assert "Constant in these runs, so without a weight: precision = float32." in out
    assert png.read_bytes().startswith(b"\x89PNG")
    assert main(["sensitivity", "--store", store, "--family", "lstm"]) == 2
    error = capsys.readouterr().err
    assert "lstm on Test GPU: the metric is the same in all 2 rows; measure more points" in error
    assert error.count("\n") == 1


def test_the_figure_has_a_row_for_each_term_and_says_what_is_constant() -> None:
    draw = np.random.default_rng(15)
    other = sweep(draw, device="Test GPU", environment_id="f", **{"model.nodes": 64})
    figure = fit(pd.concat([sweep(draw), other], ignore_index=True)).figure()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layers", "batch size", "nodes"]
    assert [text.get_text() for text in axes.texts if text.get_text()] == [" constant: 64"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Test CPU", "Test GPU"]


def test_only_a_logarithm_has_a_doubling() -> None:
    """A truth value stays 0 or 1 on a log scale; doubling it means nothing."""
    frame = sweep(np.random.default_rng(5))
    frame["model.bias"] = pd.array(np.arange(len(frame)) % 2 == 0, dtype="boolean")
    frame["flops_utilization"] = np.exp(frame["flops_utilization"] + 0.1 * frame["model.bias"].astype(float))
    result = fit(frame, log_scale="both", metric="flops_utilization")
    weights = result.fits[0].weights
    assert np.isnan(weights.loc["model.bias", "doubling"])
    assert weights.loc["model.layers", "doubling"] == pytest.approx(2 ** weights.loc["model.layers", "slope"])
    headline = result.headline()
    assert headline is not None
    assert "depends most on layers, weight +0." in headline.words
