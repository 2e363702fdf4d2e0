"""A kind of work in one file of another package is in everything that kinds of work are in; nothing else names any."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paradnn.config.point import read_point
from paradnn.core.workload import WORKLOADS
from tests.conftest import ROOT, TINY, Store, environment
from tests.families.test_plugin import PROGRAM

SWEEP = ["task=tally", "mode=inference", "tally.steps=2,7", *TINY]
COMMANDS = [
    ["paradnn.train", "--help"],
    ["paradnn.listing.command", "task", "tally"],
    ["paradnn.listing.completion", "paradnn train task=ta"],
    ["paradnn.train", "tally.steps=3"],
    ["paradnn.train", "task=tally", "mode=train"],
    ["paradnn.train", "task=tally", "mode=inference", "devices=2"],
    ["paradnn.train", "-m", *SWEEP],
    ["paradnn.plan", "-m", *SWEEP],
    ["paradnn.train", *SWEEP[:2], "tally.steps=2", *TINY],
]


@pytest.mark.framework
def test_a_kind_of_work_of_another_package_is_in_everything(store: Store) -> None:
    environ = environment(store, PYTHONPATH=str(Path(__file__).with_name("plugin")))
    command = [sys.executable, "-c", PROGRAM, str(store.folder), json.dumps(COMMANDS)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told, listed, completed, alone, wrong, spread, swept, planned, known = json.loads(done.stdout)
    assert not [each for each in (told, listed, completed, swept, planned, known) if each[0]]
    assert "Keys of task=tally\n  tally.steps=5 " in told[1]
    assert listed[1].split(maxsplit=1) == ["tally", "Forward passes, one by one.\n"]
    assert completed[1] == "task=tally\n"
    assert alone[2] == "error: tally.steps=3: is a key of task=tally; add task=tally\n"
    assert wrong[2] == "error: mode=train: task=tally counts forward passes; set mode=inference\n"
    assert spread[2] == "error: devices=2: task=tally is for one device; set devices=1\n"
    runs = {store.values("params", each["run_id"])["tally.steps"]: each for each in store.runs()}
    assert {steps: (tags["outcome"], tags["tallied"]) for steps, tags in runs.items()} == {
        "2": ("ok", "2"),
        "7": ("ok", "7"),
    }
    metrics = store.values("latest_metrics", runs["7"]["run_id"])
    assert metrics["tally_per_second"] > 0 < metrics["phase_tally_seconds"]
    assert "Tally: 7 tallied." in runs["7"]["mlflow.note.content"]
    assert "tallied/s" in swept[1]
    assert "2 points" in planned[1]
    assert "  tally        2 tallied\n" in known[1]


def test_nothing_outside_its_folder_names_a_kind_of_work() -> None:
    """Its module is imported nowhere else; nor is its object asked for."""
    named = re.compile(
        r"paradnn\.workloads\.\w|WORKLOADS\['|WORKLOADS\[\"|\.workload\.name ==|isinstance\([\w.]*workload,"
    )
    folder = ROOT / "paradnn"
    for path in folder.rglob("*.py"):
        name = str(path.relative_to(folder))
        if not name.startswith("workloads/"):
            assert not (found := named.search(path.read_text())), (name, found)


def test_every_kind_of_work_is_read_from_the_keys_that_it_stores() -> None:
    for name, work in WORKLOADS.items():
        model = {"name": {"channel": "channel", "generate": "gpt", "endpoint": "endpoint"}.get(name, "fc")}
        sets = {"data": {"name": "digits"}, "model": {**model, "input_size": 64}} if name == "learn" else {}
        common = {"model": model, "measure": {"timeout": 1800}, "batch_size": 1, **sets}
        point = read_point({**common, **work.keys()})
        assert type(point.workload) is type(work)
        assert read_point({**common, **point.workload.keys()}) == point
