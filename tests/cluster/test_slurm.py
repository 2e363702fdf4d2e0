"""Sweeps on a real Slurm of two nodes, and what becomes of their points when jobs and nodes are lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import psutil

from tests.cluster.conftest import Sweep, settled
from tests.cluster.slurm import Slurm
from tests.conftest import Store

Start = Callable[..., Sweep]


def test_a_sweep_is_spread_over_both_nodes(slurm: Slurm, sweep: Start, store: Store) -> None:
    begin = time.time()
    running = sweep("hydra/launcher=slurm", "model.nodes=range(8,16)", "sweep.chunk=4", environ=slurm.environ)
    assert running.wait() == 0, running.said
    passed = time.time() - begin
    settled(store, 8)
    points, [parent] = store.runs(), store.runs("sweep")
    assert {point["node"] for point in points} == {"n1", "n2"}
    assert {point["launcher"] for point in points} == {"slurm"}
    assert len({point["job_id"] for point in points}) == 2
    assert {point["mlflow.parentRunId"] for point in points} == {parent["run_id"]}
    assert parent["status"] == "FINISHED"
    assert "8 ok" in parent["mlflow.note.content"]
    assert "8 ok" in running.said
    for point in points:
        metrics = store.values("latest_metrics", point["run_id"])
        assert min(metrics["queue_seconds"], metrics["task_start_seconds"]) > 0
        assert metrics["queue_seconds"] + metrics["task_start_seconds"] < passed
    again = sweep("hydra/launcher=slurm", "model.nodes=range(8,16)", "sweep.chunk=4", environ=slurm.environ)
    assert again.wait() == 0
    assert "8 skipped, the store holds their outcome already (8 ok)" in again.said
    assert len(store.runs("sweep")) == 1


def test_a_task_that_is_put_back_into_the_queue_goes_on(slurm: Slurm, sweep: Start, store: Store) -> None:
    running = sweep("hydra/launcher=slurm", "model.nodes=range(8,24)", "sweep.chunk=8", environ=slurm.environ)
    running.until(lambda: len(running.measured(task="0")) >= 2, "two points of the first task")
    before = {run["run_id"] for run in running.measured(task="0")}
    job = running.measured(task="0")[0]["job_id"]
    slurm.requeue(job)
    assert running.wait() == 0, running.said
    settled(store, 16)
    assert before <= {run["run_id"] for run in running.measured(task="0", restarts="0")}
    assert running.measured(task="0", restarts="1")


def test_a_task_that_is_killed_and_put_back_loses_nothing(slurm: Slurm, sweep: Start, store: Store) -> None:
    running = sweep("hydra/launcher=slurm", "model.nodes=range(8,20)", "sweep.chunk=6", environ=slurm.environ)
    running.until(lambda: bool(running.measured(task="0")), "a point of the first task")
    seen = {run["run_id"] for run in running.measuring(task="0")}
    running.until(lambda: {run["run_id"] for run in running.measuring(task="0")} - seen != set(), "a point that begins")
    [claim] = running.measuring(task="0")
    # It cannot give its claim back, as it does when Slurm asks it to end.
    psutil.Process(json.loads(claim["mlflow.paradnn.owner"])["pid"]).kill()
    slurm.requeue(claim["job_id"])
    assert running.wait() == 0, running.said
    settled(store, 12)
    [lost] = [run for run in store.runs() if "outcome" not in run]
    assert (lost["run_id"], lost["status"], lost["reason"]) == (claim["run_id"], "KILLED", "its driver was killed")


def test_a_cancelled_job_is_told_and_the_same_command_finishes_the_sweep(
    slurm: Slurm, sweep: Start, store: Store
) -> None:
    command = ("hydra/launcher=slurm", "model.nodes=range(8,20)", "sweep.chunk=6")
    running = sweep(*command, environ=slurm.environ)
    running.until(lambda: bool(running.measured(task="1")), "a point of the second task")
    slurm.run("scancel", running.measured(task="1")[0]["job_id"])
    assert running.wait() == 1
    assert running.measured(task="0")
    assert len(running.measured(task="0")) == 6, "the other job was not waited for"
    missing = 12 - len(running.measured())
    assert f"{missing} of 12 points have no outcome; the same command measures them" in running.said
    assert "hydra/launcher=slurm" in running.said
    assert not running.measuring()
    assert sweep(*command, environ=slurm.environ).wait() == 0
    settled(store, 12)


def test_a_node_that_goes_down_gives_its_task_to_the_other(slurm: Slurm, sweep: Start, store: Store) -> None:
    running = sweep("hydra/launcher=slurm", "model.nodes=range(8,20)", "sweep.chunk=6", environ=slurm.environ)
    running.until(lambda: bool(running.measured(node="n2")), "a point on n2")
    job = running.measured(node="n2")[0]["job_id"]
    try:
        slurm.power_off("n2")
        running.until(lambda: slurm.jobs()[job][0] == "PENDING", "the lost job back in the queue")
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        assert running.wait() == 0, running.said
    finally:
        slurm.power_on("n2")
    settled(store, 12)
    assert {run["node"] for run in running.measured(restarts="1")} == {"n1"}


def test_the_submitting_process_killed_leaves_its_tasks_to_finish(slurm: Slurm, sweep: Start, store: Store) -> None:
    command = ("hydra/launcher=slurm", "model.nodes=range(8,16)", "sweep.chunk=4")
    running = sweep(*command, environ=slurm.environ)
    running.until(lambda: bool(running.measured()), "a point")
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    # Measured by the tasks that go on, or by those of the same command: by one of them.
    again = sweep(*command, environ=slurm.environ)
    assert again.wait() == 0, again.said
    settled(store, 8)
