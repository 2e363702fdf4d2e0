"""Sweeps on a Ray cluster of two nodes, with a worker and a node killed in the middle."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from tests.cluster.conftest import Sweep, settled
from tests.cluster.ray_cluster import RayCluster
from tests.conftest import Store

Start = Callable[..., Sweep]


def test_a_sweep_is_spread_over_both_nodes(ray_cluster: RayCluster, sweep: Start, store: Store) -> None:
    running = sweep(
        "hydra/launcher=ray_cluster", "model.nodes=range(8,16)", "sweep.chunk=4", environ=ray_cluster.environ
    )
    assert running.wait() == 0, running.said
    settled(store, 8)
    assert len({point["node"] for point in store.runs()}) == 2
    assert {point["launcher"] for point in store.runs()} == {"ray_cluster"}
    assert len({point["mlflow.parentRunId"] for point in store.runs()}) == 1
    [parent] = store.runs("sweep")
    assert parent["status"] == "FINISHED"


def test_a_killed_worker_is_replaced_and_its_task_goes_on(ray_cluster: RayCluster, sweep: Start, store: Store) -> None:
    running = sweep(
        "hydra/launcher=ray_cluster", "model.nodes=range(8,20)", "sweep.chunk=6", environ=ray_cluster.environ
    )
    running.until(lambda: len(running.measured()) >= 2, "two points")
    ray_cluster.workers()[0].kill()
    assert running.wait() == 0, running.said
    settled(store, 12)


def test_a_lost_node_gives_its_task_to_the_other(ray_cluster: RayCluster, sweep: Start, store: Store) -> None:
    running = sweep(
        "hydra/launcher=ray_cluster", "model.nodes=range(8,20)", "sweep.chunk=6", environ=ray_cluster.environ
    )
    second = ray_cluster.second
    assert second
    try:
        running.until(lambda: bool(second_at_work(ray_cluster)), "a task on the second node")
        running.until(lambda: len(running.measured()) >= 2, "two points")
        ray_cluster.power_off(second)
        assert running.wait() == 0, running.said
    finally:
        ray_cluster.second = ray_cluster.add_node()
    settled(store, 12)


def second_at_work(cluster: RayCluster) -> list[psutil.Process]:
    """Tasks on the second node."""
    assert cluster.second
    below = {process.pid for process in cluster.second.children(recursive=True)}
    return [process for process in cluster.workers() if process.pid in below]
