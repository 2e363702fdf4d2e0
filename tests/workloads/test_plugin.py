"""Plug-ins: a family and a kind of work, each in one file of another package, work everywhere.

The tests also check that no module outside `paradnn/workloads` names a kind of work.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.reading import read_point
from paradnn.core.workload import WORKLOADS
from tests.conftest import ROOT, SHORT, Store, environment
from tests.processes import PATIENCE

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
#: Accepted commands with the plug-ins.
COMMANDS = {
    "help": ["paradnn.train", "--help"],
    "list of models": ["paradnn.listing", "models", "hidden layer between"],
    "list of tasks": ["paradnn.listing", "task", "tally"],
    "completion of a key": ["paradnn.completion", "paradnn train model=plane model.w"],
    "completion of a task": ["paradnn.completion", "paradnn train task=ta"],
    "sweep": ["paradnn.train", "-m", *SWEEP],
    "plan": ["paradnn.plan", "-m", *SWEEP],
    "point": [
        "paradnn.train",
        "task=tally",
        "mode=inference",
        "tally.steps=7",
        "model=plane",
        "model.wings=2",
        *SHORT,
    ],
    "parameters": ["analysis.__main__", "parameters"],
    "roofline": ["analysis.__main__", "roofline", "--family", "plane"],
}
#: Commands with invalid keys of the plug-ins.
REJECTED = [
    ["paradnn.train", "model=plane", "model.wings=0"],
    ["paradnn.train", "tally.steps=3"],
    ["paradnn.train", "task=tally", "mode=train"],
    ["paradnn.train", "task=tally", "mode=inference", "devices=2"],
]


@dataclass(frozen=True)
class PluginResults:
    """Results of the commands with the plug-ins.

    Attributes:
        store: Store of their runs.
        outputs: Standard output of each accepted command, by the name in COMMANDS.
        errors: Standard error of each rejected command.
    """

    store: Store
    outputs: dict[str, str]
    errors: list[str]

    def runs(self) -> dict[str, dict[str, str]]:
        """Return the recorded runs, by the number of wings of their model."""
        return {
            str(self.store.values("params", tags["run_id"])["model.wings"]): tags
            for tags in self.store.runs()
        }

    def metrics(self, wings: str) -> dict[str, Any]:
        """Return the metrics of the model with the given number of wings."""
        return self.store.values("latest_metrics", self.runs()[wings]["run_id"])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> PluginResults:
    store = Store(tmp_path_factory.mktemp("plugin"))
    shutil.copy(empty_database, store.folder / "mlflow.db")
    packages = ("families", "workloads")
    folders = ":".join(str(ROOT / "tests" / package / "plugin") for package in packages)
    commands = json.dumps([*COMMANDS.values(), *REJECTED])
    command = [sys.executable, "-c", PROGRAM, str(store.folder), commands]
    environ = environment(store, PYTHONPATH=folders)
    completed = subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    found = json.loads(completed.stdout)
    assert [each[0] for each in found] == [0] * 10 + [2] * 4
    outputs = [each[1] for each in found[:10]]
    return PluginResults(
        store=store,
        outputs=dict(zip(COMMANDS, outputs, strict=True)),
        errors=[each[2] for each in found[10:]],
    )


@pytest.mark.framework
def test_the_help_explains_the_keys_of_plug_ins(results: PluginResults) -> None:
    assert "Keys of model=plane\n  model.wings=8 " in results.outputs["help"]
    assert "Keys of task=tally\n  tally.steps=5 " in results.outputs["help"]


@pytest.mark.framework
def test_plug_ins_are_listed(results: PluginResults) -> None:
    # The result is independent of the terminal's width.
    assert (
        " ".join(results.outputs["list of models"].split())
        == "plane One hidden layer between four features and two classes. model.wings=8"
    )
    assert results.outputs["list of tasks"].split(maxsplit=1) == [
        "tally",
        "Forward passes, one by one.\n",
    ]


@pytest.mark.framework
def test_keys_and_names_of_plug_ins_are_completed(results: PluginResults) -> None:
    completions = (results.outputs["completion of a key"], results.outputs["completion of a task"])

    assert completions == ("model.wings=\n", "task=tally\n")


@pytest.mark.framework
def test_points_of_plug_ins_are_planned(results: PluginResults) -> None:
    assert "2 points" in results.outputs["plan"]


@pytest.mark.framework
def test_points_of_plug_ins_are_measured(results: PluginResults) -> None:
    assert {
        wings: (tags["outcome"], tags["tallied"]) for wings, tags in results.runs().items()
    } == dict.fromkeys("25", ("ok", "7"))


@pytest.mark.framework
def test_plug_ins_record_their_metrics(results: PluginResults) -> None:
    metrics = results.metrics("5")

    # (4 + 1) x wings + (wings + 1) x 2 parameters; 32 is the default batch size of the model.
    assert {wings: results.metrics(wings)["parameters"] for wings in "25"} == {"2": 16, "5": 37}
    assert metrics["flops_per_step"] == 2 * 32 * (4 * 5 + 5 * 2)
    assert metrics["tally_per_second"] > 0
    assert metrics["phase_tally_seconds"] > 0


@pytest.mark.framework
def test_plug_ins_describe_their_results(results: PluginResults) -> None:
    assert "Tally: 7 tallied." in results.runs()["5"]["mlflow.note.content"]
    assert "tallied/s" in results.outputs["sweep"]
    assert "  tally        7 tallied\n" in results.outputs["point"]


@pytest.mark.framework
def test_analyses_read_runs_of_plug_ins(results: PluginResults) -> None:
    assert "plane" in results.outputs["parameters"]
    assert "plane" in results.outputs["roofline"]


@pytest.mark.framework
def test_invalid_keys_of_plug_ins_are_rejected(results: PluginResults) -> None:
    assert results.errors == [
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
