"""`mlflow run` of this project from a Git address, with an empty home folder and environment.

MLflow creates the environment from python_env.yaml, so the test downloads the same packages as
`pip install paradnn`. Certificates and package indexes of the machine remain in effect.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.postgres import Postgres, Server, free_port
from tests.conftest import TINY
from tests.processes import started, wait_for
from tests.test_mlproject import copy_to_repository

#: Overrides that make measurements short.
OVERRIDES = " ".join(entry for entry in TINY if entry.startswith(("measure", "ceilings")))


def mlflow_run(
    home: Path, server: Server, address: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `mlflow run` with MLflow and uv on the path, but without the project's environment."""
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("uv", "mlflow"):
        if not (programs / name).exists():
            found = shutil.which(
                name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            )
            assert found, f"{name} is missing: pip install {name}"
            (programs / name).symlink_to(found)
    environ = {
        "HOME": str(home),
        "PATH": f"{programs}:{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "MLFLOW_TRACKING_URI": server.uri,
    }
    # The certificates depend on the network of this machine, and uv reads them only from here.
    if "SSL_CERT_FILE" in os.environ:
        environ["SSL_CERT_FILE"] = os.environ["SSL_CERT_FILE"]
    command = [
        "mlflow",
        "run",
        address,
        "--env-manager",
        "uv",
        "--experiment-name",
        "paradnn",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=home, env=environ, capture_output=True, text=True, timeout=1500, check=False
    )


@contextmanager
def served_by_git(folder: Path) -> Iterator[str]:
    """Serve a copy of this checkout by `git daemon` on loopback; yield its address."""
    served = folder / "served"
    port = free_port()
    clone = [
        "git",
        "clone",
        "-q",
        "--bare",
        str(copy_to_repository(folder / "work")),
        str(served / "paradnn.git"),
    ]
    subprocess.run(clone, check=True)
    options = [
        "--export-all",
        "--listen=127.0.0.1",
        f"--port={port}",
        f"--base-path={served}",
        str(served),
    ]

    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with started(["git", "daemon", *options], stderr=subprocess.DEVNULL):
        assert wait_for(is_listening)
        yield f"git://127.0.0.1:{port}/paradnn.git"


@pytest.mark.timeout(1800)
def test_a_preset_and_a_point_run_from_a_git_address(
    tracking: tuple[Server, str],
    database: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    server, name = tracking
    home = tmp_path_factory.mktemp("home")
    with served_by_git(tmp_path) as address:
        sweep = [
            "-e",
            "sweep",
            "-P",
            "experiment=quick",
            "-P",
            f"overrides=sweep.sample=3 {OVERRIDES}",
        ]
        done = mlflow_run(home, server, address, *sweep)
        assert done.returncode == 0, done.stderr[-4000:]
        point = [
            "-e",
            "train",
            "-P",
            "batch_size=4",
            "-P",
            "compile=xla",
            "-P",
            f"overrides={' '.join(TINY)}",
        ]
        done = mlflow_run(home, server, address, *point)
        assert done.returncode == 0, done.stderr[-4000:]
    points = database.runs(name)

    assert [point["outcome"] for point in points] == ["ok"] * 4

    [parent] = database.runs(name, "sweep")
    assert sum(point.get("mlflow.parentRunId") == parent["run_id"] for point in points) == 3

    projects = database.rows(
        name, "SELECT run_uuid, value FROM tags WHERE key = 'mlflow.project.env'"
    )
    assert len(projects) == 2
    assert {manager for _, manager in projects} == {"uv"}
    assert parent["mlflow.parentRunId"] in {run_id for run_id, _ in projects}

    values = database.rows(
        name,
        "SELECT p.value FROM params p JOIN tags t USING (run_uuid) "
        "WHERE p.key = 'compile' AND t.key = 'kind' AND t.value = 'point'",
    )
    assert ("xla",) in values

    versions = {point["version.tensorflow"] for point in points}
    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text()

    assert versions == {
        line.removeprefix("tensorflow==")
        for line in constraints.splitlines()
        if "tensorflow==" in line
    }
