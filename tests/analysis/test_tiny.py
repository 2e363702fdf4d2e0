"""MLPerf Tiny's files, written here as its submitters write them, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.published.tiny import read_tiny

RATE, STREAM = "0007.1 ulp-mlperf: Median throughput is    78.125 inf./sec.\n", "Estimated throughput: 1250 inf./sec.\n"
ENERGY = "0007.2 ulp-ml: Median energy cost is       71.5 uJ/inf.\n"


def written(folder: Path) -> Path:
    texts = {
        "vww/performance": RATE,
        "vww/energy": ENERGY + RATE.replace("78", "70"),
        "kws/energy": ENERGY + RATE,
        "sww/energy": ENERGY + STREAM,
        "ic/performance": "Runtime requirements have been met.\n",
        "other/performance": RATE,
    }
    for name, text in texts.items():
        (folder / "closed/we/results/board_1" / name).mkdir(parents=True)
        (folder / "closed/we/results/board_1" / name / "results.txt").write_text(text)
    (folder / "closed/we/systems").mkdir()
    about = {"Board Name": "Board", "Processor(s) Name": "M4", "Inference Framework": "engine 1"}
    (folder / "closed/we/systems/board_1.json").write_text("\ufeff" + json.dumps(about))
    return folder


def test_rates_and_energies_are_those_of_the_files(tmp_path: Path) -> None:
    found = read_tiny(written(tmp_path))
    metrics = {run.name.split()[0]: run.metrics for run in found.runs}
    assert metrics == {
        "vww": {"examples_per_second": 78.125, "step_time_ms": 12.8, "energy_per_example_joules": 71.5e-6},
        "kws": {"examples_per_second": 78.125, "step_time_ms": 12.8, "energy_per_example_joules": 71.5e-6},
        "sww": {"examples_per_second": 1250.0, "step_time_ms": 0.8},
    }
    assert {run.tags["device"] for run in found.runs} == {"Board (M4)"}
    assert len({run.point_id for run in found.runs}) == 3
    assert found.left_out == ["board_1, ic: gives no throughput"]
