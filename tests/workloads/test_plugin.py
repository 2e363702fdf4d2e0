"""Plug-ins: a family and a kind of work, each in one file of another package, work everywhere.

The tests also check that no module outside `paradnn/workloads` names a kind of work.
"""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from paradnn.config.reading import read_point
from paradnn.core.workload import WORKLOADS
from tests.conftest import ROOT, SHORT, Store, environment

#: Program that runs commands one after the other, in a process that finds the packages. It prints
#: exit codes, standard outputs and standard errors as JSON.
PROGRAM = """
import json, sys
from pathlib import Path
from tests.conftest import Store, _pools, run
results = []
for arguments in json.loads(sys.argv[2]):
    done = run(arguments, Store(Path(sys.argv[1])))
    results.append([done.returncode, done.stdout, done.stderr])
for pool in _pools.values():
    pool.close()
print(json.dumps(results))
"""
SWEEP = ["task=tally", "mode=inference", "tally.steps=7", "model=plane", "model.wings=2,5", *SHORT]
#: Commands with the plug-ins; the last four are rejected.
COMMANDS = [
    ["paradnn.train", "--help"],
    ["paradnn.listing", "models", "hidden layer between"],
    ["paradnn.listing", "task", "tally"],
    ["paradnn.completion", "paradnn train model=plane model.w"],
    ["paradnn.completion", "paradnn train task=ta"],
    ["paradnn.train", "-m", *SWEEP],
    ["paradnn.plan", "-m", *SWEEP],
    [
        "paradnn.train",
        "task=tally",
        "mode=inference",
        "tally.steps=7",
        "model=plane",
        "model.wings=2",
        *SHORT,
    ],
    ["analysis.__main__", "parameters"],
    ["analysis.__main__", "roofline", "--family", "plane"],
    ["paradnn.train", "model=plane", "model.wings=0"],
    ["paradnn.train", "tally.steps=3"],
    ["paradnn.train", "task=tally", "mode=train"],
    ["paradnn.train", "task=tally", "mode=inference", "devices=2"],
]


@pytest.mark.framework
def test_plug_ins_of_other_packages_are_used_everywhere(store: Store) -> None:
    packages = ("families", "workloads")
    folders = ":".join(str(ROOT / "tests" / package / "plugin") for package in packages)
    command = [sys.executable, "-c", PROGRAM, str(store.folder), json.dumps(COMMANDS)]
    environ = environment(store, PYTHONPATH=folders)
    completed = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert completed.returncode == 0, completed.stderr
    results = json.loads(completed.stdout)
    assert [each[0] for each in results] == [0] * 10 + [2] * 4
    (
        help_text,
        model,
        task,
        key,
        name,
        sweep_text,
        plan_text,
        point_text,
        parameters_text,
        roofline_text,
    ) = (each[1] for each in results[:10])
    assert "Keys of model=plane\n  model.wings=8 " in help_text
    assert "Keys of task=tally\n  tally.steps=5 " in help_text
    # The result is independent of the terminal's width.
    assert (
        " ".join(model.split())
        == "plane One hidden layer between four features and two classes. model.wings=8"
    )
    assert task.split(maxsplit=1) == ["tally", "Forward passes, one by one.\n"]
    assert (key, name) == ("model.wings=\n", "task=tally\n")
    runs = {store.values("params", each["run_id"])["model.wings"]: each for each in store.runs()}
    assert {
        wings: (tags["outcome"], tags["tallied"]) for wings, tags in runs.items()
    } == dict.fromkeys("25", ("ok", "7"))
    metrics = {
        wings: store.values("latest_metrics", tags["run_id"]) for wings, tags in runs.items()
    }
    # (4 + 1) x wings + (wings + 1) x 2 parameters; 32 is the default batch size of the model.
    assert {wings: found["parameters"] for wings, found in metrics.items()} == {"2": 16, "5": 37}
    assert metrics["5"]["flops_per_step"] == 2 * 32 * (4 * 5 + 5 * 2)
    assert metrics["5"]["tally_per_second"] > 0
    assert metrics["5"]["phase_tally_seconds"] > 0
    assert "Tally: 7 tallied." in runs["5"]["mlflow.note.content"]
    assert "tallied/s" in sweep_text
    assert "2 points" in plan_text
    assert "  tally        7 tallied\n" in point_text
    assert "plane" in parameters_text
    assert "plane" in roofline_text
    assert [each[2] for each in results[10:]] == [
        "error: model.wings=0: must be at least 1; choose a larger value\n",
        "error: tally.steps=3: is a key of task=tally; add task=tally\n",
        "error: mode=train: task=tally counts forward passes; set mode=inference\n",
        "error: devices=2: task=tally is for one device; set devices=1\n",
    ]


def test_no_module_outside_workloads_names_a_kind_of_work() -> None:
    """Search for modules that import a kind of work, or select one by its name."""
    named = re.compile(
        r"paradnn\.workloads\.\w|WORKLOADS\['|WORKLOADS\[\"|\.workload\.name ==|isinstance\([\w.]*workload,"
    )
    folder = ROOT / "paradnn"
    for path in folder.rglob("*.py"):
        name = str(path.relative_to(folder))
        if not name.startswith("workloads/"):
            match = named.search(path.read_text())
            assert match is None, (name, match)


def test_the_stored_keys_of_every_kind_of_work_define_the_same_work() -> None:
    for name, work in WORKLOADS.items():
        models = {"channel": "channel", "generate": "gpt", "endpoint": "endpoint", "judge": "timm"}
        model: dict[str, Any] = {"name": models.get(name, "fc")}
        common: dict[str, Any] = {
            "model": model,
            "measure": {"timeout": 1800},
            "batch_size": 1,
        }
        if name in ("learn", "judge"):
            common["data"] = {"name": "digits"}
        if name == "learn":
            model["input_size"] = 64
        if name == "judge":
            common["framework"] = {"name": "torch"}

        point = read_point({**common, **work.stored_keys()})

        assert type(point.workload) is type(work)
        assert read_point({**common, **point.workload.stored_keys()}) == point
