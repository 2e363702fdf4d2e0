"""Pooling of heterogeneous runs with --pool.

The answer and the log of every command state the pooled groups.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.cli import COMMANDS, main
from analysis.result import Result
from analysis.store.load import load
from paradnn.core.errors import SchemaError
from tests.analysis import rejected
from tests.analysis.conftest import copy_of
from tests.analysis.planted import grid, runs

SIDES = ["Test tpu", "Test gpu"]

#: Command lines of all commands that treat runs as one population.
POOLING = [
    "memory",
    "predict",
    "heatmap --y nodes --metric examples_per_second",
    "sensitivity --metric examples_per_second",
    "boxplot --by device --metric examples_per_second",
    "overhead",
    "roofline",
    "speedup --a 'device=Test tpu' --b 'device=Test gpu'",
    "compare 'device=Test tpu' 'device=Test gpu'",
    "scaling",
    "infeed",
    "figure-of-merit",
    "software --by version.tensorflow",
    "claims --only 7",
]


def heterogeneous_runs() -> pd.DataFrame:
    """Return runs of two platforms, two device counts and two versions.

    Half of each platform's points come from a second environment.
    """
    points = grid()
    draw = np.random.default_rng(3)
    environments = pd.Series(["old", "new"] * (len(points) // 2))
    fixed = {
        "peak_flops_per_second": 1e10,
        "peak_bytes_per_second": 1e9,
        "phase_start_seconds": 1.0,
    }
    names = [
        "examples_per_second",
        "flops_per_second",
        "arithmetic_intensity",
        "flops_per_step",
        "parameters",
    ]
    names += ["infeed_fraction", "phase_measure_seconds"]
    parts = []
    for device, devices, version in itertools.product(SIDES, (1, 2), ("2.9", "2.16")):
        environment = {
            "device": device,
            "platform.name": device.removeprefix("Test "),
            "devices": devices,
        }
        environment |= {
            "version.tensorflow": version,
            "environment_id": device + environments + version,
        }
        parts.append(
            runs(
                points,
                **environment,
                **{name: draw.uniform(0.1, 1, len(points)) for name in names},
                **fixed,
            )
        )
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(run_id=[str(row) for row in range(len(frame))])


def answer(words: str) -> Result:
    frame = heterogeneous_runs()
    result = rejected.answer(words, frame)
    assert "pooled" not in frame.attrs, "an analysis must not change the loaded frame"
    return result


def test_every_analysis_is_tested_or_a_known_exception() -> None:
    """The exceptions count or follow runs or models, break steps down, or need special runs."""
    exceptions = {
        "changes",
        "runs",
        "parameters",
        "breakdown",
        "compare-published",
        "extrapolate",
        "time-to-accuracy",
        "frontier",
        "latency",
        "whatif",
    }
    analyses = {command.name for command in COMMANDS if command.analysis}

    assert {words.partition(" ")[0] for words in POOLING} == analyses - exceptions - {"channel"}


@pytest.mark.parametrize("words", POOLING)
def test_heterogeneous_runs_are_pooled_only_on_request(words: str) -> None:
    result = answer(f"{words} --pool")
    assert "environment_id = " in result.pooled
    assert "Test tpunew2.9" in result.pooled
    assert f"Heterogeneous runs were pooled: {result.pooled}." in result.text()

    if words.startswith("claims"):  # a failing check does not stop the others
        unpooled = answer(words)
        assert "these runs are heterogeneous" in unpooled.text()
        assert not unpooled.pooled
        return
    with pytest.raises(SchemaError, match="these runs are heterogeneous"):
        answer(words)


def test_the_log_names_the_pooled_groups(tmp_path: Path, store: str) -> None:
    uri = copy_of(store, tmp_path)
    for options in (["--pool"], ["--family", "fc"]):
        command = ["boxplot", "--by", "outcome", "--metric", "examples_per_second", *options]
        assert main([*command, "--store", uri, "--log"]) == 0
    logged = load(uri, kind="analysis")

    assert (
        logged["pooled"]
        .iloc[0]
        .startswith("environment_id = env-a (25 runs), env-b (4 runs), differing in device")
    )
    assert logged["pooled"].isna().tolist() == [False, True]
