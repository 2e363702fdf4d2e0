"""A folder in which MLflow keeps runs as files: the message names the command that converts it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY, Store, environment, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Let MLflow write one run of an experiment as files."""
    made = tmp_path_factory.mktemp("files")
    program = (
        "import mlflow\n"
        f"client = mlflow.MlflowClient({made.as_uri()!r})\n"
        "experiment = client.create_experiment('paradnn')\n"
        "client.log_param(client.create_run(experiment).info.run_id, 'key', 'value')\n"
    )
    variables = environment(MLFLOW_ALLOW_FILE_STORE="true")
    subprocess.run([sys.executable, "-c", program], env=variables, check=True, capture_output=True)
    return made


@pytest.mark.parametrize(
    ("command", "address"),
    [
        pytest.param("analysis.__main__ runs --store", "{path}", id="read a folder"),
        pytest.param("analysis.__main__ runs --store", "file://{path}", id="read an address"),
        pytest.param("paradnn.ui --store", "file://{path}", id="browse"),
        pytest.param("paradnn.watch --store", "file://{path}", id="watch"),
    ],
)
def test_a_file_store_is_reported_with_the_command_that_converts_it(
    command: str, address: str, folder: Path
) -> None:
    done = run([*command.split(), address.format(path=folder)])

    assert done.returncode == 2
    assert "the folder is a file store of MLflow; mlflow migrate-filestore " in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_is_measured_into_a_file_store(folder: Path) -> None:
    done = run(["paradnn.train", *TINY, f"tracking.uri={folder.as_uri()}"])

    assert done.returncode == 2
    assert "mlflow migrate-filestore" in done.stderr


@pytest.mark.slow
def test_the_proposed_command_converts_the_store(folder: Path) -> None:
    message = run(["analysis.__main__", "runs", "--store", str(folder)]).stderr
    [command] = re.findall(r"mlflow migrate-filestore .*?mlflow\.db", message)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    subprocess.run(
        shlex.split(command), env=environment(PATH=path), check=True, capture_output=True
    )

    assert Store(folder).query("SELECT key, value FROM params") == [("key", "value")]
