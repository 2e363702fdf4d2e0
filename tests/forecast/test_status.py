"""Status of points before they are measured, and schedules of several hosts."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from paradnn.config.point import Point, step_costs
from paradnn.config.reading import read_point
from paradnn.config.settings import Settings
from paradnn.forecast.forecast import forecast, wall_seconds
from paradnn.forecast.history import open_history
from paradnn.forecast.status import SweepStatus, sweep_status
from tests.forecast.planted import fc


@pytest.fixture
def settings(tmp_path: object) -> Settings:
    """Return settings whose store does not exist."""
    return replace(
        Settings(), tracking=replace(Settings().tracking, name="offline", folder=f"{tmp_path}/none")
    )


def status_of(points: Sequence[Point], settings: Settings) -> SweepStatus:
    return sweep_status(points, settings, open_history(settings.tracking))


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((1, 4), id="one device first"),
        pytest.param((4, 1), id="four devices first"),
    ],
)
def test_the_status_of_a_point_depends_on_its_number_of_devices(
    settings: Settings, order: tuple[int, int]
) -> None:
    """Four devices hold four copies of the weights, so only this point exceeds the limit."""
    points = {count: fc(4, 2048, 64, devices=count) for count in order}
    bounds = {count: step_costs(point).memory_lower_bound_bytes for count, point in points.items()}
    assert bounds[4] > 3 * bounds[1]
    limited = [
        replace(points[count], measure=replace(points[count].measure, memory_limit=2 * bounds[1]))
        for count in order
    ]
    status = status_of(limited, settings)
    assert dict(zip(order, status.status.tolist(), strict=True)) == {
        1: "missing",
        4: "oom_predicted",
    }
    assert list(status.costs["memory_lower_bound_bytes"]) == [bounds[count] for count in order]


def test_communication_points_need_no_ceilings(settings: Settings) -> None:
    """A session measures no ceilings for a point of `model=channel`, so a plan includes none."""
    channel = read_point({"model": {"name": "channel"}, "batch_size": 1, "mode": "inference"})
    assert not status_of([channel], settings).ceilings
    assert list(status_of([channel, fc(1, 64, 32)], settings).ceilings.values()) == [None]


def test_a_sample_of_many_points_predicts_the_total_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        fc(1 + index % 5, 64 * (1 + index // 5 % 20), 16 * (1 + index // 100))
        for index in range(400)
    ]
    history = open_history(settings.tracking)
    all_points = forecast(status_of(points, settings), settings, history)
    monkeypatch.setattr("paradnn.forecast.forecast._MAX_POINTS", 100)
    sample = forecast(status_of(points, settings), settings, history)
    assert (len(sample.where), sample.weight) == (100, 4.0)
    for hosts in (1, 3):
        assert np.median(sample.wall(hosts)) == pytest.approx(
            np.median(all_points.wall(hosts)), rel=0.15
        )


def simulated_wall_seconds(tasks: list[float], hosts: int, start: float) -> float:
    """Return the end time if each free host takes the next task."""
    free_times = [start] * min(hosts, len(tasks))
    for task in tasks:
        heapq.heapreplace(free_times, free_times[0] + task)
    return max(free_times)


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_the_schedule_gives_the_next_point_to_a_free_host(hosts: int, count: int) -> None:
    random = np.random.default_rng(hosts * 10 + count)
    draws = random.lognormal(0, 1.2, (count, 6))
    wall = wall_seconds(draws, hosts, 2.0)
    for draw in range(6):
        tasks = [float(task) for task in draws[:, draw]]
        assert wall[draw] == pytest.approx(simulated_wall_seconds(tasks, hosts, 2.0))
