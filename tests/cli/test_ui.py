"""`make ui`: says what is wrong before MLflow starts, and serves the store that everything else uses."""

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from paradnn.config.point import Tracking
from paradnn.store.mlflow_store import MlflowStore
from tests.conftest import ROOT, Store, environment, run
from tests.processes import started, wait_for


def test_a_taken_port_is_told_with_another(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(["paradnn.ui", "--port", str(port)], store)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: --port={port}: cannot be listened on (Address already in use); name ")
        assert f"make ui PORT={port % 65535 + 1}" in done.stderr


@pytest.mark.slow
def test_the_store_is_served(store: Store, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    MlflowStore(Tracking(uri=store.uri))
    command = [sys.executable, "-m", "paradnn.ui", "--port", str(port)]
    silent = subprocess.DEVNULL

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    with started(command, cwd=ROOT, env=environment(store, MLFLOW_WORKERS="1"), stdout=silent, stderr=silent):
        assert wait_for(answers)
