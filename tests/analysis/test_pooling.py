"""Heterogeneous runs are pooled only on demand, and every command's answer and log then say what differed."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.cli import COMMANDS, main, make_parser
from analysis.options import read_arguments
from analysis.result import Result
from analysis.store.load import load
from paradnn.core.errors import SchemaError
from tests.analysis.planted import grid, runs

SIDES = ["Test tpu", "Test gpu"]

#: Each command that treats runs as one population, with the arguments that it needs here.
POOLING = {
    "memory": [],
    "predict": [],
    "heatmap": ["--y", "nodes", "--metric", "examples_per_second"],
    "sensitivity": ["--metric", "examples_per_second"],
    "boxplot": ["--by", "device", "--metric", "examples_per_second"],
    "overhead": [],
    "roofline": [],
    "speedup": ["--a", f"device={SIDES[0]}", "--b", f"device={SIDES[1]}"],
    "compare": [f"device={SIDES[0]}", f"device={SIDES[1]}"],
    "scaling": [],
    "infeed": [],
    "figure-of-merit": [],
    "software": ["--by", "version.tensorflow"],
    "claims": ["--only", "7"],
}


def unlike() -> pd.DataFrame:
    """Two platforms, two device counts, two versions; half of each platform's points are of another environment."""
    points, draw = grid(), np.random.default_rng(3)
    environments = pd.Series(["old", "new"] * (len(points) // 2))
    fixed = {"peak_flops_per_second": 1e10, "peak_bytes_per_second": 1e9, "phase_start_seconds": 1.0}
    names = ["examples_per_second", "flops_per_second", "arithmetic_intensity", "flops_per_step", "parameters"]
    names += ["infeed_fraction", "phase_measure_seconds"]
    parts = []
    for device, devices, version in itertools.product(SIDES, (1, 2), ("2.9", "2.16")):
        place = {"device": device, "platform.name": device.removeprefix("Test "), "devices": devices}
        place |= {"version.tensorflow": version, "environment_id": device + environments + version}
        parts.append(runs(points, **place, **{name: draw.uniform(0.1, 1, len(points)) for name in names}, **fixed))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(run_id=[str(row) for row in range(len(frame))])


def answer(name: str, *options: str) -> Result:
    """What a command says of these runs."""
    command, frame = next(command for command in COMMANDS if command.name == name), unlike()
    assert command.analysis
    result = command.analysis(
        frame, read_arguments(command.options, make_parser().parse_args([name, *POOLING[name], *options]))
    )
    assert "pooled" not in frame.attrs, "the frame that was loaded stays as it is"
    return result


def test_every_command_that_analyses_is_here() -> None:
    """But those that count runs or models or follow them, the breakdown, and what needs other runs."""
    others = {"changes", "runs", "parameters", "breakdown", "beside", "time-to-accuracy", "frontier", "latency"}
    assert {*POOLING} == {command.name for command in COMMANDS if command.analysis} - others - {"channel"}


@pytest.mark.parametrize("name", POOLING)
def test_unlike_runs_are_pooled_only_where_that_is_asked_for_and_said(name: str) -> None:
    result = answer(name, "--pool")
    assert "environment_id = " in result.pooled
    assert "Test tpunew2.9" in result.pooled
    assert f"Heterogeneous runs were pooled: {result.pooled}." in result.text()
    if name == "claims":  # a check that cannot be made does not stop the others
        refused = answer(name)
        assert "these runs are heterogeneous" in refused.text()
        assert not refused.pooled
        return
    with pytest.raises(SchemaError, match="these runs are heterogeneous"):
        answer(name)


def test_log_keeps_what_was_pooled(tmp_path: Path, store: str) -> None:
    copy = tmp_path / "mlflow.db"
    copy.write_bytes(Path(store.removeprefix("sqlite:///")).read_bytes())
    uri = f"sqlite:///{copy}"
    for options in (["--pool"], ["--family", "fc"]):
        command = ["boxplot", "--by", "outcome", "--metric", "examples_per_second", *options]
        assert main([*command, "--store", uri, "--log"]) == 0
    logged = load(uri, kind="analysis")
    assert logged["pooled"].iloc[0].startswith("environment_id = env-a (25 runs), env-b (4 runs), differing in device")
    assert logged["pooled"].isna().tolist() == [False, True]
