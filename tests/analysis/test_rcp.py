"""MLPerf's files of reference points, written here in their form, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.published.rcp import read_rcp
from paradnn.errors import DataError


def record(benchmark: str, batch_size: int, took: list[float], key: str = "Epochs to converge") -> dict[str, Any]:
    about = {"Benchmark": benchmark, "Creator": "X", "Platform": "8xA100", "BS": batch_size}
    return about | {"Hyperparams": {"opt_base_learning_rate": 0.1}, key: took}


def written(folder: Path) -> Path:
    root = folder / "mlperf_logging" / "rcp_checker"
    for name in ("training_5.1.0", "hpc_3.0.0"):
        (root / name).mkdir(parents=True)
    first = {"b_256": record("bert", 256, [9.0, 1, 5, 6, 7]), "b_512": record("bert", 512, [8.0] * 10)}
    (root / "training_5.1.0" / "rcps_bert.json").write_text(json.dumps(first))
    lora = {"l_8": record("lora", 8, [900.0, 1000, 1100], "samples to converge")}
    (root / "hpc_3.0.0" / "rcps_lora.json").write_text(json.dumps(lora))
    (root / "hpc_3.0.0" / "rcps_torn.json").write_text("{")
    (root / "hpc_3.0.0" / "rcps_unet3d.json").write_text(
        json.dumps({"u": record("unet3d", 2, [*map(float, range(40))])})
    )
    return folder


def test_a_point_is_the_mean_that_the_rules_ask_for(tmp_path: Path) -> None:
    found = read_rcp(written(tmp_path))
    means = [run.metrics["epochs_to_target"] for run in found.runs]
    assert means == [1000, np.mean(range(4, 36)), 6, 8]
    assert [line.split(":")[0] for line in found.left_out] == ["hpc_3.0.0/rcps_torn.json"]
    with pytest.raises(DataError, match="holds no reference points of MLPerf; give a clone of mlcommons/logging"):
        read_rcp(tmp_path / "mlperf_logging" / "rcp_checker" / "training_5.1.0")


def test_they_are_logged_once(
    tmp_path: Path, blank_store: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = written(tmp_path / "logging"), blank_store(tmp_path / "mlflow.db")
    assert main(["import-mlperf-rcp", str(folder), "--store", store]) == 0
    out = capsys.readouterr().out
    assert "4 points logged, 0 were there already; 3 files, 1 damaged" in out
    assert main(["import-mlperf-rcp", str(folder), "--store", store]) == 0
    assert "0 points logged, 4 were there already" in capsys.readouterr().out
    target = tmp_path / "runs.csv"
    assert main(["export", str(target), "--store", store, "--experiment", "mlperf-rcp"]) == 0
    text = target.read_text()
    assert "mlperf.opt_base_learning_rate" in text
    assert "8xA100" in text
