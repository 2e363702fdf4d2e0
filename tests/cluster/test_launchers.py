"""Sweeps on a real Slurm and a real Ray, whose jobs are killed, restarted and interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cluster.ray_cluster import RAY, end_node, ray_head, ray_node
from tests.cluster.slurm import Slurm, slurm
from tests.conftest import ROOT, Store, environment
from tests.processes import PATIENCE, children_of, started, wait_for, with_default_signal_handlers
from tests.session.test_launch import drivers_at_work, points_measured_once, sweep_of

#: Time limit in seconds for a host to take over a point of a lost host.
TAKEOVER_SECONDS = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm() as running:
        yield running


@contextmanager
def launching(
    store: Store, launcher: str, environ: Mapping[str, str], *overrides: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a sweep of six points that take seconds each, and wait until a driver works."""
    slow = ["model.nodes=range(8,14)", "measure.min_seconds=2"]
    words = sweep_of(store, launcher, *slow, *overrides)
    command = with_default_signal_handlers([sys.executable, "-m", *words])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    variables = environment(store) | environ
    with started(command, cwd=ROOT, env=variables, text=True, **pipes) as process:
        assert wait_for(lambda: drivers_at_work(store) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        yield process


def succeeded(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, out
    return out


def test_a_sweep_on_slurm_measures_points_measured_once(cluster: Slurm, store: Store) -> None:
    with launching(store, "submitit_slurm", cluster.environ) as process:
        succeeded(process)
    points = points_measured_once(store, 6)

    assert {run["node"] for run in points} <= {"n1", "n2"}
    assert all("_" in run["job_id"] for run in points)
    assert store.values("latest_metrics", points[0]["run_id"])["queue_seconds"] < PATIENCE


def test_a_canceled_slurm_job_loses_no_point(cluster: Slurm, store: Store) -> None:
    """Without accounting, the launcher would wait for the job forever, but the sweep ends."""
    with launching(store, "submitit_slurm", cluster.environ) as process:
        job = next(iter(drivers_at_work(store).values()))["job_id"]
        assert cluster.text("scancel", "--signal=KILL", job) == ""
        succeeded(process)
    points_measured_once(store, 6)


def test_a_requeued_slurm_job_continues_its_points(cluster: Slurm, store: Store) -> None:
    with launching(store, "submitit_slurm", cluster.environ) as process:
        number, lease = next(iter(drivers_at_work(store).items()))
        assert cluster.text("scontrol", "requeue", lease["job_id"]) == ""
        succeeded(process)
    points_measured_once(store, 6)
    # SIGTERM ended the driver, which released its points.
    ended = [run for run in store.runs() if run["driver"] == number and "outcome" not in run]

    assert {run["status"] for run in ended} <= {"KILLED"}


def test_slurm_jobs_survive_the_launching_process(cluster: Slurm, store: Store) -> None:
    """The launching process and the jobs run on one host, but not in the same job."""
    with launching(store, "submitit_slurm", cluster.environ) as process:
        process.kill()
        process.wait()
        assert wait_for(lambda: [run["status"] for run in store.runs("sweep")] == ["FINISHED"])
    points_measured_once(store, 6)


def test_ctrl_c_ends_slurm_jobs(cluster: Slurm, store: Store) -> None:
    with launching(store, "submitit_slurm", cluster.environ) as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert {run["status"] for run in store.runs("sweep")} == {"KILLED"}
    assert not [run for run in store.runs() if run["status"] == "RUNNING"]
    assert wait_for(lambda: cluster.text("squeue", "-h", "-o", "%i") == "")


@pytest.mark.parametrize(
    "is_node_lost",
    [pytest.param(False, id="both nodes survive"), pytest.param(True, id="one node is lost")],
)
def test_ray_distributes_drivers_over_two_nodes(
    store: Store, tmp_path: Path, is_node_lost: bool
) -> None:
    one_core = "--num-cpus=1"
    with ray_head(tmp_path, one_core) as (address, _), ExitStack() as stack:
        node = ray_node(address, tmp_path / "node.log", one_core)
        stack.callback(end_node, node)
        existing = f"+hydra.launcher.ray.init.address={address}"
        with launching(store, "ray", RAY, existing) as process:
            # Each node has one core, so two drivers can work concurrently only on two nodes.
            assert wait_for(lambda: {"0", "1"} <= set(drivers_at_work(store)))
            if is_node_lost:
                end_node(node)
            succeeded(process)

    points_measured_once(store, 6)


def test_a_killed_ray_task_is_restarted(store: Store) -> None:
    """The sweep starts a private Ray, although killed nodes left the address of their cluster."""
    with launching(store, "ray", RAY, "+hydra.launcher.ray.init.num_cpus=2") as process:
        owner = next(iter(drivers_at_work(store).values()))["owner"]
        psutil.Process(owner["pid"]).parent().kill()
        succeeded(process)
    points_measured_once(store, 6)


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_another_host_takes_over_the_point_of_a_lost_host(store: Store) -> None:
    """Namespaces make the lost driver appear to be a process of another host."""
    words = sweep_of(store, "basic", "model.nodes=range(8,14)", "measure.min_seconds=3")
    command = [sys.executable, "-m", *words]
    separate = ["unshare", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", *command]
    variables = environment(store, PARADNN_SWEEP="lost")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    with (
        started(separate, env=variables | {"PARADNN_DRIVER": "0"}, **quiet) as lost,
        started(command, env=variables | {"PARADNN_DRIVER": "1"}, **quiet) as other,
    ):
        assert wait_for(lambda: {"0", "1"} <= set(drivers_at_work(store)))
        for pid in [*children_of(lost.pid), lost.pid]:
            kill_if_running(pid)
        killed_ms = time.time() * 1000
        assert other.wait(PATIENCE) == 0
    points = points_measured_once(store, 6)
    [[latest]] = store.query("SELECT max(start_time) FROM runs WHERE status = 'FINISHED'")

    assert latest - killed_ms < 1000 * TAKEOVER_SECONDS

    [taken_over] = [run for run in store.runs() if run["status"] == "KILLED"]
    assert taken_over["point_id"] in {run["point_id"] for run in points if run["driver"] == "1"}
    assert json.loads(taken_over["mlflow.paradnn.owner"])["boot"] != ""


def kill_if_running(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
