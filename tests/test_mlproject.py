"""`mlflow run` as a user or a remote host calls it, with real runs of tiny points."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, TINY, Store, environment
from tests.processes import PATIENCE

AXES = " ".join(entry for entry in TINY if not entry.startswith("batch_size"))


#: Program that runs several projects in one process, since importing MLflow takes seconds.
_RUN_PROJECTS = """
import json, sys
from mlflow.cli import cli
for arguments in json.loads(sys.argv[1]):
    cli(["run", *arguments], standalone_mode=False)
"""


def mlflow_run(store: Store | None, *projects: list[str], cwd: Path = ROOT) -> None:
    """Run `mlflow run` once per list of arguments; fail the test if a run fails."""
    environ = environment(store)
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    calls = [[*arguments, "--env-manager", "local"] for arguments in projects]
    command = [sys.executable, "-c", _RUN_PROJECTS, json.dumps(calls)]
    completed = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert completed.returncode == 0, completed.stderr[-2000:]


def test_every_parameter_is_used_and_documented() -> None:
    project = yaml.safe_load((ROOT / "MLproject").read_text())
    text = (ROOT / "docs" / "how-to" / "mlflow-projects.md").read_text()
    for name, entry in project["entry_points"].items():
        assert f"`{name}`" in text
        for parameter in entry["parameters"]:
            assert f"{{{parameter}}}" in entry["command"]
            assert f"`{parameter}`" in text


@pytest.mark.framework
def test_a_sweep_and_its_report_do_not_write_into_the_runs_of_the_project(
    store: Store, tmp_path: Path
) -> None:
    overrides = f"model.nodes=8,9 batch_size=4 {AXES.replace('model.nodes=8', '')}"
    page = tmp_path / "report.html"
    common_arguments = [".", "--experiment-name", "paradnn"]

    mlflow_run(
        store,
        [*common_arguments, "-e", "sweep", "-P", "experiment=none", "-P", f"overrides={overrides}"],
        [*common_arguments, "-e", "report", "-P", f"out={page}"],
    )

    [parent] = store.runs("sweep")
    points = store.runs()
    assert [point["outcome"] for point in points] == ["ok", "ok"]
    assert {point["mlflow.parentRunId"] for point in points} == {parent["run_id"]}
    projects = store.query(
        "SELECT value, run_uuid, status FROM runs JOIN tags USING (run_uuid) "
        "WHERE key = 'mlflow.project.entryPoint' ORDER BY start_time"
    )
    assert [(entry_point, status) for entry_point, _, status in projects] == [
        ("sweep", "FINISHED"),
        ("report", "FINISHED"),
    ]
    assert parent["mlflow.parentRunId"] == projects[0][1]
    assert [store.values("latest_metrics", run_id) for _, run_id, _ in projects] == [{}, {}]
    text = page.read_text()
    for point in points:
        assert point["run_id"] in text


def copy_to_repository(folder: Path) -> Path:
    """Copy the tracked and new files of this checkout to a new repository, and commit them."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listing.stdout.split("\n"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        [*author, "commit", "-q", "-m", "all"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.mark.framework
def test_a_project_without_an_address_uses_the_default_store(
    tmp_path: Path, empty_database: Path
) -> None:
    """Use a point without a framework, since the location of its run does not depend on that."""
    checkout = copy_to_repository(tmp_path / "work")
    store = Store(checkout / "mlruns")
    store.folder.mkdir(exist_ok=True)
    # Creating the tables of both stores would take seconds.
    for folder in (checkout, store.folder):
        shutil.copy(empty_database, folder / "mlflow.db")
    overrides = f"overrides={AXES} measure.memory_limit=1GiB"

    mlflow_run(
        None,
        [".", "-e", "train", "-P", "compile=xla", "-P", "batch_size=100000000", "-P", overrides],
        cwd=checkout,
    )

    [point] = store.runs()
    assert point["outcome"] == "oom_predicted"
    assert store.values("params", point["run_id"])["compile"] == "xla"
    assert "mlflow.parentRunId" not in point, (
        "the run of the project is in the default store of MLflow"
    )
    changed = subprocess.run(
        ["git", "status", "--short"], cwd=checkout, capture_output=True, text=True, check=True
    )
    assert changed.stdout == ""
