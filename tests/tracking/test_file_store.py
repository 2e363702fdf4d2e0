"""MLflow's file stores, which are rejected: the message names the command that converts them."""

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
    """Return a file store in which MLflow has written one run."""
    folder = tmp_path_factory.mktemp("files")
    program = (
        "import mlflow\n"
        f"client = mlflow.MlflowClient({folder.as_uri()!r})\n"
        "experiment = client.create_experiment('paradnn')\n"
        "client.log_param(client.create_run(experiment).info.run_id, 'key', 'value')\n"
    )
    variables = environment(MLFLOW_ALLOW_FILE_STORE="true")
    subprocess.run([sys.executable, "-c", program], env=variables, check=True, capture_output=True)
    return folder


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
    completed = run([*command.split(), address.format(path=folder)])

    assert completed.returncode == 2
    assert "the folder is a file store of MLflow; mlflow migrate-filestore " in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_a_measurement_into_a_file_store_is_rejected(folder: Path) -> None:
    completed = run(["paradnn.train", *TINY, f"tracking.uri={folder.as_uri()}"])

    assert completed.returncode == 2
    assert "mlflow migrate-filestore" in completed.stderr


@pytest.mark.slow
def test_the_proposed_command_converts_the_store(folder: Path) -> None:
    message = run(["analysis.__main__", "runs", "--store", str(folder)]).stderr
    [command] = re.findall(r"mlflow migrate-filestore .*?mlflow\.db", message)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    subprocess.run(
        shlex.split(command), env=environment(PATH=path), check=True, capture_output=True
    )

    assert Store(folder).query("SELECT key, value FROM params") == [("key", "value")]
