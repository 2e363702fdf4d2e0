"""Several hosts: the schedule against an event simulation, and against the best of all schedules."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest

from paradnn.forecast.forecast import tasks_of, wall_seconds


def simulated(tasks: list[float], hosts: int, start: float) -> float:
    """Each host, when it is free, takes the next task."""
    free = [start] * min(hosts, len(tasks))
    for task in tasks:
        heapq.heapreplace(free, free[0] + task)
    return max(free)


def best(tasks: list[float], hosts: int) -> float:
    """The shortest time over every assignment of tasks to hosts."""
    return min(
        max(sum(task for task, host in zip(tasks, places, strict=True) if host == one) for one in range(hosts))
        for places in itertools.product(range(hosts), repeat=len(tasks))
    )


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_the_schedule_is_a_schedule_and_no_worse_than_grahams_bound(hosts: int, count: int) -> None:
    random = np.random.default_rng(hosts * 10 + count)
    draws = random.lognormal(0, 1.2, (count, 6))
    wall = wall_seconds(draws, hosts, 2.0)
    for draw in range(6):
        tasks = [float(task) for task in draws[:, draw]]
        assert wall[draw] == pytest.approx(simulated(tasks, hosts, 2.0))
        optimum = best(tasks, hosts)
        assert optimum - 1e-9 <= wall[draw] - 2.0 <= (2 - 1 / hosts) * optimum + 1e-9
        assert wall[draw] - 2.0 >= max(sum(tasks) / hosts, max(tasks)) - 1e-9


def test_tasks_hold_all_points_and_a_start_each() -> None:
    seconds = np.arange(1.0, 8.0)[:, None] * np.ones((1, 3))
    start = np.array([1.0, 2.0, 3.0])
    tasks = tasks_of(seconds, 3, start)
    assert tasks[:, 0].tolist() == [1 + 2 + 3 + 1, 4 + 5 + 6 + 1, 7 + 1]
    assert wall_seconds(tasks, 1).tolist() == pytest.approx([28 + 3 * one for one in start])
    # A host that has nothing to do is no help, and no cost.
    assert wall_seconds(tasks, 50).tolist() == pytest.approx([15 + one for one in start])


def test_nothing_to_do_takes_no_time_but_the_start() -> None:
    assert wall_seconds(np.zeros((0, 4)), 3, 1.5).tolist() == [1.5] * 4
