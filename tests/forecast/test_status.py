"""How points stand before they are measured: each by its own costs, whatever stands beside it in the sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

import pytest

from paradnn.config.costs import costs_of
from paradnn.config.point import Point, Settings, read_point
from paradnn.forecast.history import open_history
from paradnn.forecast.status import SweepStatus, sweep_status
from tests.forecast.planted import fc


@pytest.fixture
def settings(tmp_path: object) -> Settings:
    """A store that is not there."""
    return replace(Settings(), tracking=replace(Settings().tracking, name="offline", folder=f"{tmp_path}/none"))


def status_of(points: Sequence[Point], settings: Settings) -> SweepStatus:
    return sweep_status(points, settings, open_history(settings.tracking))


@pytest.mark.parametrize("order", [(1, 4), (4, 1)])
def test_a_sweep_over_devices_knows_each_points_own_costs(settings: Settings, order: tuple[int, int]) -> None:
    """Four devices hold the weights four times: only they pass a limit that lies between the two."""
    points = {count: fc(4, 2048, 64, devices=count) for count in order}
    bounds = {count: costs_of(point).memory_lower_bound_bytes for count, point in points.items()}
    assert bounds[4] > 3 * bounds[1]
    limited = [
        replace(points[count], measure=replace(points[count].measure, memory_limit=2 * bounds[1])) for count in order
    ]
    status = status_of(limited, settings)
    assert dict(zip(order, status.status, strict=True)) == {1: "missing", 4: "oom_predicted"}
    assert list(status.costs["memory_lower_bound_bytes"]) == [bounds[count] for count in order]


class Made(Sequence[Point]):
    """Points that are made when they are looked at, as a sweep too large to hold would be."""

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Point]: ...
    def __getitem__(self, index: int | slice) -> Point | Sequence[Point]:
        if isinstance(index, slice) or index >= len(self):
            raise IndexError(index)
        return fc(1 + index % 3, 64, 32)

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Point]:
        return (self[index] for index in range(len(self)))


def test_points_are_known_by_what_they_are(settings: Settings) -> None:
    """Not by where they lie in memory, which other points may have had before them."""
    assert status_of(Made(), settings).status == ["missing", "missing", "missing", "repeated"]


def test_what_only_sends_asks_for_no_ceilings(settings: Settings) -> None:
    """A session measures none for it, so that a plan counts none."""
    channel = read_point({"model": {"name": "channel"}, "batch_size": 1, "mode": "inference"})
    assert not status_of([channel], settings).ceilings
    assert list(status_of([channel, fc(1, 64, 32)], settings).ceilings.values()) == [None]
