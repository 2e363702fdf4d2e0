"""Points whose processes are on two nodes: under Slurm; and a node lost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import psutil

from tests.cluster.conftest import POINTS, Sweep, settled
from tests.cluster.slurm import Slurm
from tests.conftest import Store
from tests.processes import wait_for

Start = Callable[..., Sweep]
#: Messages of each transport that every environment has, on one host and between two.
MESSAGES = ["model=channel", "model.transport=tcp,grpc", "hosts=1,2", "measure=quick", "measure.min_seconds=0.2"]
#: Enough that a node can be lost in the middle.
LONGER = ["model=channel", f"model.bytes={','.join(map(str, range(64, 72)))}", "hosts=2", "measure=quick"]
DEVICES = ["batch_size=4", "devices=2", "transport=grpc", "hosts=2", "platform.threads=1", *POINTS]


def on_slurm(*further: str) -> tuple[str, ...]:
    return "hydra/launcher=slurm", "hydra.launcher.nodes=2", *further


def servers() -> list[psutil.Process]:
    """Servers of processes that are on another node than the session, without what they have forked.

    Those of this interpreter: another suite on this machine has its own.
    """
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:3] == [sys.executable, "-m", "paradnn.worker.host"]:
                found[process.pid] = process
    return [process for process in found.values() if process.ppid() not in found]


def names_of(points: list[dict[str, str]]) -> set[str]:
    return {point["mlflow.runName"] for point in points}


def test_messages_go_between_two_nodes_of_slurm(slurm: Slurm, sweep: Start, store: Store) -> None:
    running = sweep(*on_slurm("sweep.chunk=8"), environ=slurm.environ, points=MESSAGES)
    running.until(lambda: bool(servers()), "a server")
    assert {server.environ()["SLURMD_NODENAME"] for server in servers()} == {"n2"}
    assert running.wait() == 0, running.said
    settled(store, 4)
    assert {point["node"] for point in store.runs()} == {"n1"}
    assert sum("2 hosts" in name for name in names_of(store.runs())) == 2
    assert wait_for(lambda: not servers())


def test_devices_of_two_nodes_of_slurm_share_a_step(slurm: Slurm, sweep: Start, store: Store) -> None:
    running = sweep(*on_slurm("model.nodes=8"), environ=slurm.environ, points=DEVICES)
    assert running.wait() == 0, running.said
    settled(store, 1)


def test_a_task_that_loses_one_of_its_nodes_goes_on_later(slurm: Slurm, sweep: Start, store: Store) -> None:
    running = sweep(*on_slurm("sweep.chunk=8"), environ=slurm.environ, points=LONGER)
    running.until(lambda: len(running.measured()) >= 2, "two points")
    job = running.measured()[0]["job_id"]
    try:
        slurm.power_off("n2")
        running.until(lambda: slurm.jobs()[job][0] == "PENDING", "the job back in the queue")
    finally:
        slurm.power_on("n2")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert running.wait() == 0, running.said
    settled(store, 8)
    assert running.measured(restarts="1")
