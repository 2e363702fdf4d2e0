from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.parameters import ParametersOptions, parameters, read_models
from analysis.cli import main
from paradnn.core.errors import ConfigError, NotEnoughData


def models() -> pd.DataFrame:
    """Fully connected models of 4 to 32 layers of 10 nodes on two devices and three batches; two real models."""
    rows = [
        {
            "family": "fc",
            "model.name": "fc",
            "model.layers": layers,
            "batch_size": batch,
            "device": device,
            "parameters": 100.0 * layers + (device == "B") * 1e-3,
        }
        for layers in (4, 8, 16, 32)
        for batch in (16, 32, 64)
        for device in "AB"
    ]
    rows += [{"family": "gru", "model.name": "gru", "model.layers": 1, "parameters": 5e8, "outcome": "oom_host"}]
    rows += [{"family": "gru", "model.name": "gru", "model.layers": 2, "parameters": np.nan}]
    rows += [
        {"family": name, "model.name": name, "parameters": count}
        for name, count in (("resnet50", 25.6e6), ("resnet50", 25.6e6), ("squeezenet", 1.25e6))
    ]
    return pd.DataFrame(rows)


def test_models_are_counted_once_and_real_ones_stand_apart() -> None:
    found = parameters(models())
    assert list(found.ranges["family"]) == ["fc", "gru"]
    fc = found.ranges.loc[0]
    assert (fc["models"], fc["minimum"], fc["median"], fc["maximum"], fc["span"]) == (4, 400, 1200, 3200, 8)
    assert found.real.to_dict("list") == {"family": ["squeezenet", "resnet50"], "parameters": [1.25e6, 25.6e6]}
    assert (found.unknown, len(found.models)) == (1, 5)


def test_the_command_says_and_draws_the_ranges(tmp_path: Path) -> None:
    result = parameters(models())
    assert result.text().splitlines() == [
        "fc: 4 models from 400 to 3.2k trainable parameters, a factor of 8; half of them between 700 and 2k, "
        "median 1.2k.",
        "gru: 1 model of 500M trainable parameters.",
        "squeezenet: 1.25M, outside every family's range.",
        "resnet50: 25.6M, outside every family's range.",
        "1 runs do not report their parameters.",
    ]
    assert list(result.table["family"]) == ["fc", "gru", "squeezenet", "resnet50"]
    result.figure().savefig(tmp_path / "parameters.png")
    unknown = parameters(models().drop(columns="parameters"))
    assert not unknown.drawable
    assert unknown.text().endswith("29 runs do not report their parameters.")
    with pytest.raises(NotEnoughData, match="no run matches"):
        parameters(models().head(0))


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "analysis", "parameters", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_how_quiet_the_machine_was_says_nothing_of_sizes() -> None:
    runs = models().assign(outcome="ok", contended="false", steady="false: drifts")
    runs.loc[:9, "contended"] = "true: 1.0 of 2 cores"
    assert "shared the machine" not in parameters(runs).text()
    assert "not steady" not in parameters(runs).text()
    runs.loc[20:, "steady"] = "true"
    kept = parameters(runs, ParametersOptions(steady_only=True))
    assert "runs on a contended machine" in kept.text()


def test_a_table_of_models_needs_no_store(tmp_path: Path) -> None:
    """As a list of points has it: the name of the model among its keys, other columns beside."""
    frame = models().drop(columns="family").assign(batch_size=64)
    frame[:20].to_csv(tmp_path / "some.csv", index=False)
    frame[20:].to_csv(tmp_path / "others.csv", index=False)
    tables, store = [str(tmp_path / name) for name in ("some.csv", "others.csv")], f"sqlite:///{tmp_path}/none.db"
    done = run_command(
        "--table", *tables, "--store", store, "--where", "parameters<1e7", "--figure", str(tmp_path / "figure.png")
    )
    assert done.returncode == 0, done.stderr
    assert "fc: 4 models from 400 to 3.2k" in done.stdout
    assert "squeezenet: 1.25M, outside" in done.stdout
    assert "resnet50" not in done.stdout
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert not (tmp_path / "none.db").exists()


def test_a_table_is_narrowed_and_refused_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models.csv"
    models.write_text("family,parameters\nfc,10\ngru,20\nfc,\n")
    assert list(read_models([str(models)])["parameters"].dropna()) == [10, 20]
    assert main(["parameters", "--table", str(models), "--family", "fc"]) == 0
    assert "gru" not in capsys.readouterr().out
    assert main(["parameters", "--table", str(models), "--log"]) == 2
    assert "--log=with --table: a result in the store names the runs" in capsys.readouterr().err
    for content, message in (
        ("family\nfc\n", "has no column parameters; its columns are family"),
        ("", r"--table=.*cannot be read"),
    ):
        models.write_text(content)
        with pytest.raises(ConfigError, match=message):
            read_models([str(models)])
