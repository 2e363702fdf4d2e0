"""`mlflow run` as a user and as a remote host would: real runs of tiny points."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, TINY, Store, environment
from tests.processes import started, wait_for

AXES = " ".join(entry for entry in TINY if not entry.startswith("batch_size"))
#: Parameters of a point that needs no framework: where its run is does not depend on how it ends.
TOO_LARGE = ["-P", "batch_size=100000000", "-P", f"overrides={AXES} measure.memory_limit=1GiB"]


def mlflow_run(store: Store, uri: str, *arguments: str, cwd: Path = ROOT) -> None:
    environ = environment(store)
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    command = [sys.executable, "-m", "mlflow", "run", uri, "--env-manager", "local", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_parameter_is_passed_on_and_documented() -> None:
    project = yaml.safe_load((ROOT / "MLproject").read_text())
    text = (ROOT / "docs" / "mlflow-projects.md").read_text()
    for name, entry in project["entry_points"].items():
        assert f"`{name}`" in text
        for parameter in entry["parameters"]:
            assert f"{{{parameter}}}" in entry["command"]
            assert f"`{parameter}`" in text


@pytest.mark.framework
def test_a_sweep_under_mlflow_run_leaves_the_projects_run_alone(store: Store) -> None:
    overrides = f"model.nodes=8,9 batch_size=4 {AXES.replace('model.nodes=8', '')}"
    arguments = ["-e", "sweep", "--experiment-name", "paradnn", "-P", "experiment=none", "-P", f"overrides={overrides}"]
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


@contextmanager
def served_by_git(folder: Path) -> Iterator[str]:
    """This checkout's tracked and new files, committed in a repository that `git daemon` serves on loopback."""
    work, served = folder / "work", folder / "served"
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listing.stdout.split("\n"):
        if name and (ROOT / name).is_file():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, work / name)
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*author, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(served / "paradnn.git")], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--export-all", "--listen=127.0.0.1", f"--port={port}", f"--base-path={served}", str(served)]

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with started(["git", "daemon", *where], stderr=subprocess.DEVNULL):  # git is but the parent of git-daemon
        assert wait_for(listens)
        yield f"git://127.0.0.1:{port}/paradnn.git"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address, and the checkout that is served."""
    folder = tmp_path_factory.mktemp("git")
    with served_by_git(folder) as address:
        yield address, folder / "work"


@pytest.mark.framework
def test_a_point_from_a_git_address(store: Store, served: tuple[str, Path], tmp_path: Path) -> None:
    mlflow_run(store, served[0], "-e", "train", "-P", "compile=xla", *TOO_LARGE, cwd=tmp_path)
    [point] = store.runs()
    assert point["outcome"] == "oom_predicted"
    assert store.values("params", point["run_id"])["compile"] == "xla"


@pytest.mark.framework
def test_a_project_without_an_address_records_where_everything_else_does(served: tuple[str, Path]) -> None:
    work = served[1]
    environ = environment()
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    command = [sys.executable, "-m", "mlflow", "run", ".", "--env-manager", "local", "-e", "train"]
    done = subprocess.run([*command, *TOO_LARGE], cwd=work, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    [point] = Store(work / "mlruns").runs()
    assert point["outcome"] == "oom_predicted"
    assert "mlflow.parentRunId" not in point, "the project's run is in a store of MLflow's own"
    assert subprocess.run(["git", "status", "--short"], cwd=work, capture_output=True, text=True).stdout == ""
