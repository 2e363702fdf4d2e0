"""Sweeps on a standalone Spark of two workers, one of which is lost in the middle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.conftest import Sweep, settled
from tests.conftest import Store

pytest.importorskip("pyspark")

from tests.cluster.spark import SparkCluster

Start = Callable[..., Sweep]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkCluster]:
    cluster = SparkCluster()
    yield cluster
    cluster.stop()


def on(cluster: SparkCluster) -> tuple[str, str]:
    return "hydra/launcher=spark", f"hydra.launcher.master={cluster.master}"


def test_a_sweep_is_spread_over_both_workers(spark: SparkCluster, sweep: Start, store: Store) -> None:
    begin = time.time()
    running = sweep(*on(spark), "model.nodes=range(8,16)", "sweep.chunk=4")
    assert running.wait() == 0, running.said
    passed = time.time() - begin
    settled(store, 8)
    points = store.runs()
    assert len({point["node"] for point in points}) == 2
    assert {point["launcher"] for point in points} == {"spark"}
    assert {point["task"] for point in points} == {"0", "1"}
    assert all(0 < store.values("latest_metrics", point["run_id"])["queue_seconds"] < passed for point in points)


def test_a_lost_worker_gives_its_task_to_the_other(spark: SparkCluster, sweep: Start, store: Store) -> None:
    running = sweep(*on(spark), "model.nodes=range(8,20)", "sweep.chunk=6")
    running.until(lambda: len({point["node"] for point in running.measured()}) == 2, "points on both workers")
    spark.power_off(spark.workers[1])
    assert running.wait() == 0, running.said
    settled(store, 12)
    assert "1" in {point["restarts"] for point in store.runs()}
