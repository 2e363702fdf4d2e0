"""Predictions of measured models on a planted platform, from kernels of that platform."""

from typing import Any

import pandas as pd
import pytest

from analysis.analyses.extrapolate import ExtrapolateOptions, extrapolate
from analysis.result import Result
from paradnn.core.errors import ConfigError, InsufficientData, SchemaError
from tests.analysis.planted import runs
from tests.analysis.test_own_kernels import planted_kernels, planted_step_seconds

#: Models with layers like those of CANDLE's P1B2 and P1B3, in sizes that the planted kernels cover.
MODELS: list[dict[str, Any]] = [
    {"layers": 3, "nodes": [1024, 512, 256], "input_size": 1500, "output_size": 10},
    {"layers": 4, "nodes": [1000, 500, 100, 50], "input_size": 1800, "output_size": 1},
]
BATCHES = (60, 100)


def models(device: str, scale: float, **columns: Any) -> pd.DataFrame:
    """Return runs of MODELS whose steps take `scale` times as long as on the planted platform."""
    points = pd.DataFrame(
        {f"model.{key}": [str(model[key]) for model in MODELS] for key in MODELS[0]}
    ).assign(batch_size=BATCHES)
    seconds = [
        scale * planted_step_seconds(model, batch)
        for model, batch in zip(MODELS, BATCHES, strict=True)
    ]
    return runs(
        points,
        **{
            "family": "fc",
            "mode": "train",
            "device": device,
            "environment_id": device,
            "step_time_ms": [1e3 * value for value in seconds],
            **columns,
        },
    )


@pytest.fixture(autouse=True)
def planted_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the store by one that contains the planted kernels of "Test CPU"."""
    kernels = planted_kernels()
    monkeypatch.setattr("analysis.store.load.load", lambda *_, **options: kernels)


def predict(frame: pd.DataFrame, **options: Any) -> Result:
    return extrapolate(frame, ExtrapolateOptions(**{"to": ("Test CPU",)} | options))


def test_steps_of_a_host_are_predicted_on_the_planted_platform() -> None:
    frame = pd.concat([models("Host", 7.0), models("Test CPU", 1.0)], ignore_index=True)
    result = predict(frame)
    table = result.table[result.table["host"] == "Host"]
    for row, model, batch in zip(table.to_dict("records"), MODELS, BATCHES, strict=True):
        truth = planted_step_seconds(model, batch)
        assert row["seconds"] == pytest.approx(truth, rel=0.15)
        assert row["low"] < truth < row["high"]
        assert row["measured_seconds"] == pytest.approx(truth)
        assert row["speedup"] == pytest.approx(7.0, rel=0.15)

    assert table["covered"].all()

    text = result.text()
    # The first layer multiplies batch x input by input x nodes.
    assert "100 x 1800 by 1800 x 1000" in text
    assert "4 points measured on Test CPU: median error" in text


def test_times_of_epochs_and_runs_follow_from_the_step_time() -> None:
    result = predict(models("Host", 7.0), examples=1_001, epochs=10, nodes=94_000)
    row = result.table.iloc[1]

    assert row["steps"] == 11  # batches of 100; the last one is not full
    assert row["epoch_seconds"] == pytest.approx(11 * row["seconds"])
    assert row["run_seconds_high"] == pytest.approx(110 * row["high"])
    assert row["runs_per_day"] == pytest.approx(94_000 * 86_400 / row["run_seconds"])
    assert row["runs_per_day_low"] == pytest.approx(94_000 * 86_400 / row["run_seconds_high"])
    assert "94,000 nodes complete" in result.text()


def test_the_share_of_products_in_the_profile_is_stated() -> None:
    shares = {"category_share.matmul": [0.75, float("nan")]}
    table = predict(models("Host", 7.0, **shares)).table

    assert table["product_share"].iloc[0] == 0.75
    assert table["product_share"].isna().iloc[1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"to": ()}, "--to=.*is missing", id="no device"),
        pytest.param({"to": ("H2OO",)}, "H2OO", id="unknown device"),
    ],
)
def test_unknown_devices_are_rejected(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        predict(models("Host", 1.0), **options)


def test_a_prediction_for_the_host_is_compared_with_its_measurement() -> None:
    table = predict(models("Test CPU", 1.0)).table
    assert table["covered"].all()
    assert table["error"].abs().max() < 0.15


def test_environments_of_a_host_are_pooled_only_on_request() -> None:
    environments = [models("Host", 7.0, environment_id=name) for name in ("old", "new")]
    frame = pd.concat(environments, ignore_index=True)

    with pytest.raises(SchemaError, match="heterogeneous"):
        predict(frame)
    assert "environment_id = " in predict(frame, pool=True).pooled


def test_runs_of_kernels_alone_are_rejected() -> None:
    with pytest.raises(InsufficientData, match="no step of a model with layers"):
        predict(planted_kernels())
