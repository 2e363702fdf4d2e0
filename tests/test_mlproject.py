"""`mlflow run` as a user or a remote host calls it: real runs of tiny points."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, TINY, Store, environment

AXES = " ".join(entry for entry in TINY if not entry.startswith("batch_size"))


def mlflow_run(store: Store | None, uri: str, *arguments: str, cwd: Path = ROOT) -> None:
    environ = environment(store)
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    command = [sys.executable, "-m", "mlflow", "run", uri, "--env-manager", "local", *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_parameter_is_passed_on_and_documented() -> None:
    project = yaml.safe_load((ROOT / "MLproject").read_text())
    text = (ROOT / "docs" / "how-to" / "mlflow-projects.md").read_text()
    for name, entry in project["entry_points"].items():
        assert f"`{name}`" in text
        for parameter in entry["parameters"]:
            assert f"{{{parameter}}}" in entry["command"]
            assert f"`{parameter}`" in text


@pytest.mark.framework
def test_a_sweep_under_mlflow_run_leaves_the_projects_run_alone(store: Store) -> None:
    overrides = f"model.nodes=8,9 batch_size=4 {AXES.replace('model.nodes=8', '')}"
    arguments = [
        "-e",
        "sweep",
        "--experiment-name",
        "paradnn",
        "-P",
        "experiment=none",
        "-P",
        f"overrides={overrides}",
    ]
    mlflow_run(store, ".", *arguments)
    [parent] = store.runs("sweep")
    points = store.runs()
    assert [point["outcome"] for point in points] == ["ok", "ok"]
    assert {point["mlflow.parentRunId"] for point in points} == {parent["run_id"]}
    [[project, status]] = store.query(
        "SELECT run_uuid, status FROM runs JOIN tags USING (run_uuid) WHERE key = 'mlflow.project.entryPoint'"
    )
    assert parent["mlflow.parentRunId"] == project
    assert status == "FINISHED"
    assert store.values("latest_metrics", project) == {}


def copied(folder: Path) -> Path:
    """Commit this checkout's tracked and new files to a separate repository."""
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
def test_a_project_without_an_address_records_where_everything_else_does(tmp_path: Path) -> None:
    """Use a point without a framework; the location of its run does not depend on its outcome."""
    work = copied(tmp_path / "work")
    arguments = ["-e", "train", "-P", "compile=xla", "-P", "batch_size=100000000"]
    mlflow_run(None, ".", *arguments, "-P", f"overrides={AXES} measure.memory_limit=1GiB", cwd=work)
    store = Store(work / "mlruns")
    [point] = store.runs()
    assert (point["outcome"], store.values("params", point["run_id"])["compile"]) == (
        "oom_predicted",
        "xla",
    )
    assert "mlflow.parentRunId" not in point, "the project's run is in a store of MLflow's own"
    assert (
        subprocess.run(
            ["git", "status", "--short"], cwd=work, capture_output=True, text=True
        ).stdout
        == ""
    )
