"""Ranges of model sizes, from runs and from design spaces."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.parameters import ParametersOptions, parameters
from paradnn.core.errors import ParadnnError
from tests.analysis.rejected import assert_rejected


def models() -> pd.DataFrame:
    """Return runs of fully connected models with 4 to 32 layers, of gru, and of two real models.

    The fully connected models ran on two devices at three batch sizes.
    """
    rows = [
        {
            "family": "fc",
            "model.name": "fc",
            "model.layers": layers,
            "batch_size": batch,
            "device": device,
        }
        | {"parameters": 100.0 * layers + (device == "B") * 1e-3}
        for layers in (4, 8, 16, 32)
        for batch in (16, 32, 64)
        for device in "AB"
    ]
    rows += [
        {
            "family": "gru",
            "model.name": "gru",
            "model.layers": 1,
            "parameters": 5e8,
            "outcome": "oom_host",
        }
    ]
    rows += [{"family": "gru", "model.name": "gru", "model.layers": 2, "parameters": np.nan}]
    rows += [
        {"family": name, "model.name": name, "parameters": count}
        for name, count in (("resnet50", 25.6e6), ("resnet50", 25.6e6), ("squeezenet", 1.25e6))
    ]
    return pd.DataFrame(rows)


def test_the_command_reports_and_draws_the_ranges(tmp_path: Path) -> None:
    result = parameters(models())

    assert result.text().splitlines() == [
        "7 models have from 400 (fc) to 500M (gru) trainable parameters, a factor of 1.25M.",
        "fc: 4 models from 400 to 3.2k trainable parameters, a factor of 8; half of them between 700 and 2k, "
        "median 1.2k.",
        "gru: 1 model with 500M trainable parameters.",
        "squeezenet: 1.25M, outside every family's range.",
        "resnet50: 25.6M, outside every family's range.",
        "1 run does not report parameters.",
    ]
    result.figure().savefig(tmp_path / "parameters.png")


def test_runs_without_parameters_are_reported_and_not_drawn() -> None:
    without_parameters = parameters(models().drop(columns="parameters"))

    assert not without_parameters.drawable
    assert without_parameters.text().endswith("29 runs do not report parameters.")


def test_notes_about_noise_are_omitted_because_sizes_have_none() -> None:
    runs = models().assign(outcome="ok", contended="false", steady="false: drifts")
    runs.loc[:9, "contended"] = "true: 1.0 of 2 cores"

    assert "shared the machine" not in parameters(runs).text()
    assert "not steady" not in parameters(runs).text()

    runs.loc[20:, "steady"] = "true"
    steady_only = parameters(runs, ParametersOptions(steady_only=True))

    assert "runs on a contended machine" in steady_only.text()


def test_the_ranges_of_a_design_space_need_no_runs() -> None:
    space = (
        "model=fc model.layers=4,8 model.nodes=32,64 model.input_size=100 model.output_size=10 batch_size=1,2",
        "model=resnet50 batch_size=1",
    )
    options = ParametersOptions(space=space)

    assert parameters.load_frame is not None

    frame = parameters.load_frame(options)
    table = parameters(frame, options).table.set_index("family")
    # Weights and biases of the first layer, the hidden layers and the last layer.
    sizes = [
        100 * nodes + nodes + (layers - 1) * (nodes**2 + nodes) + nodes * 10 + 10
        for layers in (4, 8)
        for nodes in (32, 64)
    ]

    assert table.loc["fc", ["models", "minimum", "maximum"]].tolist() == [4, min(sizes), max(sizes)]
    assert table.loc["resnet50", "maximum"] == 25_583_592  # trainable weights, as counted by Keras


def test_an_empty_frame_is_rejected() -> None:
    assert_rejected("parameters", models().head(0), "no run matches")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("'model=fc", "no closing quotation", id="open quotation"),
        pytest.param("model=fcx", "did you mean fc", id="unknown family"),
        pytest.param("model=gemm", "no model with trainable parameters", id="kernel"),
    ],
)
def test_a_space_without_models_is_rejected(overrides: str, problem: str) -> None:
    assert parameters.load_frame is not None
    with pytest.raises(ParadnnError, match=f"--space.*{problem}"):
        parameters.load_frame(ParametersOptions(space=(overrides,)))
