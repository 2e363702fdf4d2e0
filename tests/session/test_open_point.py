"""What a point that is measured in several processes asks of each, and when it has enough: planted results."""

from dataclasses import replace
from typing import Any

import pytest

from paradnn.config.identity import Identity
from paradnn.config.point import Measure, Point, costs_of
from paradnn.families.fc import FullyConnected
from paradnn.platform.environment import Environment
from paradnn.session.open_point import OpenPoint
from paradnn.store.runs import Claim
from paradnn.workloads.serve import Server
from paradnn.workloads.serve.generator import LOADGEN_SEED
from tests.session.records import answered, timing


def planted(*seconds: float, **settings: Any) -> OpenPoint:
    """A point whose processes took steps of so many seconds, without noise within a process."""
    point = Point(model=FullyConnected(), measure=Measure(**settings))
    return OpenPoint(point, None, None, None, {}, None, results=[answered(timing([value] * 10)) for value in seconds])


@pytest.mark.parametrize(
    ("seconds", "settings", "complete"),
    [
        ([1.0], {}, True),
        ([1.0], {"processes": 2}, False),
        ([1.0, 1.1], {"processes": 2}, True),
        ([1.0, 1.1], {"processes": 2, "relative_interval": 0.02}, False),
        ([1.0, 1.1], {"processes": 2, "relative_interval": 0.02, "max_processes": 2}, True),
        ([1.0, 1.001, 1.002], {"processes": 2, "relative_interval": 0.02}, False),
        ([1.0, 1.001, 1.002, 1.003], {"processes": 2, "relative_interval": 0.02}, True),
        ([1.0], {"relative_interval": 0.02}, True),
    ],
)
def test_when_a_point_has_enough_processes(seconds: list[float], settings: dict[str, Any], complete: bool) -> None:
    assert planted(*seconds, **settings).is_complete is complete


def test_only_the_first_process_profiles_and_of_several_none_goes_on_alone() -> None:
    settings = {"profile": True, "keep_trace": True, "relative_interval": 0.02}
    first, second = planted(processes=2, **settings).request(), planted(1.0, processes=2, **settings).request()
    assert [entry["measure"]["profile"] for entry in (first, second)] == [True, False]
    assert [entry["measure"]["keep_trace"] for entry in (first, second)] == [True, False]
    assert [entry["measure"]["relative_interval"] for entry in (first, second)] == [None, None]
    assert planted(**settings).request()["measure"]["relative_interval"] == 0.02


def test_every_process_and_replicate_has_a_schedule_of_its_own() -> None:
    """Processes that serve the same arrivals would agree in what is those arrivals' luck; the first has LoadGen's."""
    seeds = []
    for replicate in range(3):
        for done in range(3):
            entry = planted(*[1.0] * done, processes=3)
            load = Server(rate=100.0)
            entry.point = replace(entry.point, workload=load, replicate=replicate)
            seeds.append(entry.request()["server"]["seed"])
    assert seeds[0] == LOADGEN_SEED
    assert len(set(seeds)) == len(seeds)
    entry.point = replace(entry.point, workload=replace(load, seed=2**32 - 1))
    assert 0 <= entry.request()["server"]["seed"] < 2**32


def test_numbers_of_which_nothing_can_be_computed_end_the_point_and_not_the_sweep() -> None:
    entry = planted(1.0, 1.0, processes=2)
    entry.results = [
        replace(each, answer=replace(each.answer, latencies=[0.0] * 200)) for each in entry.results if each.answer
    ]
    entry.environment, entry.costs = Environment("a processor", {"cores": 2}, {}, {}), costs_of(entry.point)
    entry.claim = Claim("run", Identity("point", "environment", 0), 0)
    record = entry.record()
    assert record.outcome == "crash"
    assert str(record.reason).startswith("process 2: what its worker measured cannot be: ")
