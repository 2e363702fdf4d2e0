"""The Kubernetes manifest: its server and its pods, run as processes of this host."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.postgres import START_SECONDS, free_port, is_well
from tests.conftest import ROOT, SHORT, Store, environment
from tests.processes import PATIENCE, started, wait_for
from tests.session.test_launch import drivers_at_work, points_measured_once

SWEEP = "model.nodes=range(8,14)"
#: Values that Kubernetes substitutes for fields of a pod.
FIELDS = {
    "metadata.labels['batch.kubernetes.io/job-name']": "paradnn",
    "spec.nodeName": "worker-1",
}


@pytest.fixture
def manifest(tmp_path: Path) -> Mapping[str, Any]:
    """Return the resources by kind, with a temporary folder, localhost and a free port."""
    text = (ROOT / "docs" / "how-to" / "kubernetes.yaml").read_text()
    replacements = {
        "5000": str(free_port()),
        "paradnn-tracking:": "localhost:",
        "/data": str(tmp_path),
        "experiment=paper_fc": "model=fc",
    }
    for original, replacement in replacements.items():
        text = text.replace(original, replacement)
    return {resource["kind"]: resource for resource in yaml.safe_load_all(text)}


def container_of(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    [container] = resource["spec"]["template"]["spec"]["containers"]
    return container


@contextmanager
def pod(
    resource: Mapping[str, Any], *words: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command of a resource's container, with further words and variables."""
    container = container_of(resource)
    command = container["command"]
    if command[0] == "python":
        command = command[1:]
    else:
        command = ["-m", *command]
    environ = environment()
    for entry in container["env"]:
        source = entry.get("valueFrom")
        if source is None:
            environ[entry["name"]] = entry["value"]
        else:
            environ[entry["name"]] = FIELDS[source["fieldRef"]["fieldPath"]]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with started(
        [sys.executable, *command, *words], cwd=ROOT, env=environ | variables, **quiet
    ) as process:
        yield process


def test_pods_share_a_sweep_and_a_restarted_pod_continues(
    manifest: Mapping[str, Any], tmp_path: Path
) -> None:
    job = manifest["Job"]
    address = next(
        entry["value"]
        for entry in container_of(job)["env"]
        if entry["name"] == "MLFLOW_TRACKING_URI"
    )
    point = ["model.layers=1", "model.input_size=16", "model.output_size=4", "batch_size=4"]
    words = [SWEEP, *point, *SHORT, "measure.min_seconds=2"]
    store = Store(tmp_path)

    def driver(index: int) -> Any:
        folder = f"tracking.folder={tmp_path}/pod-{index}"
        return pod(job, *words, folder, JOB_COMPLETION_INDEX=str(index))

    with ExitStack() as stack:
        stack.enter_context(pod(manifest["Deployment"]))
        assert wait_for(lambda: is_well(address), START_SECONDS)
        first = stack.enter_context(driver(0))
        second = stack.enter_context(driver(1))
        assert wait_for(lambda: (tmp_path / "mlflow.db").exists() and drivers_at_work(store))
        assert wait_for(lambda: {"0", "1"} <= set(drivers_at_work(store)))
        first.send_signal(signal.SIGTERM)
        assert first.wait(job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
        restarted = stack.enter_context(driver(0))
        codes = [restarted.wait(PATIENCE), second.wait(PATIENCE)]

    assert codes == [0, 0]

    points = points_measured_once(store, 6)
    assert {run["driver"] for run in points} <= {"0", "1"}
    assert {run["job_id"] for run in points} == {"paradnn"}
    assert {run["node"] for run in points} == {"worker-1"}
    assert not [run for run in store.runs() if run["status"] == "RUNNING"]


def test_the_number_of_drivers_equals_the_number_of_pods(manifest: Mapping[str, Any]) -> None:
    spec = manifest["Job"]["spec"]

    [drivers] = [
        word.partition("=")[2]
        for word in container_of(manifest["Job"])["command"]
        if word.startswith("sweep.drivers=")
    ]

    assert int(drivers) == spec["completions"] == spec["parallelism"]
