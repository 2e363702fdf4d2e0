"""Times of whole points: phases add up, limits end them, and what lies between two points is no pause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paradnn.config.point import read_point
from paradnn.forecast.table import PastRuns
from paradnn.store.metrics import PHASES
from paradnn.workloads.serve import Offline, Server, SingleStream
from paradnn.workloads.step import Step
from tests.forecast.planted import Machine, expected_times, fc, grid, rates


def test_a_point_is_the_sum_of_its_phases_and_ends_at_its_limit() -> None:
    expected = expected_times([], [fc(4, 512, 256)])
    assert expected.seconds == pytest.approx(np.sum(list(expected.phases.values()), axis=0))
    assert set(expected.phases) <= {*PHASES, "between"}
    assert "profile" not in expected.phases
    large = fc(128, 8192, 16384)
    short = replace(large, measure=replace(large.measure, timeout=5.0, profile=True))
    late = expected_times([], [short])
    assert late.timed_out.all()
    inside = late.seconds - np.sum([late.phases[name] for name in ("schedule", "record", "between")], axis=0)
    assert inside == pytest.approx(5.0)


def test_queries_take_the_seconds_or_the_number_that_is_asked_for() -> None:
    inference = fc(4, 512, 256)
    loads = {
        "server": Server(rate=10.0, min_seconds=5.0, min_queries=400),
        "single_stream": SingleStream(min_seconds=0.0, min_queries=1000),
        "offline": Offline(min_seconds=20.0, min_queries=1),
    }
    points = [replace(inference, workload=load) for load in loads.values()]
    found = expected_times([], points)
    server, stream, offline = found.phases["load"]
    assert (server == 40).all()
    assert stream == pytest.approx(1000 * found.step[1])
    assert offline == pytest.approx(22)  # a tenth more is asked than is expected to take so long


def test_profiles_and_latencies_take_their_time() -> None:
    plain = fc(4, 512, 256)
    profiled = replace(plain, measure=replace(plain.measure, profile=True))
    inference = replace(plain, workload=Step("inference"))
    load = replace(inference, workload=Server(min_seconds=30.0))
    expected = expected_times([], [plain, profiled, inference, load])
    assert (expected.phases["load"] == np.array([[0], [0], [0], [30]])).all()
    assert np.all(expected.phases["latency"][3] == 0)
    assert np.all(expected.phases["profile"][0] == 0)
    assert np.all(expected.phases["profile"][1] > 0.25)
    assert np.all(expected.phases["latency"][:2] == 0)
    assert np.median(expected.phases["latency"][2]) == pytest.approx(
        min(10.0, 200 * np.median(expected.step[2])), rel=0.3
    )


def test_the_prompts_of_a_generation_take_as_long_as_its_tokens() -> None:
    config = {"model": {"name": "gpt"}, "batch_size": 4}
    plain, generating = (read_point({**config, "mode": mode}) for mode in ("inference", "generate"))
    phases = expected_times([], [plain, generating]).phases
    assert np.all(phases["prefill"][0] == 0)
    assert phases["prefill"][1] == pytest.approx(phases["warmup"][1] + phases["measure"][1])
    assert np.all(phases["latency"][1] > 0)


def test_a_pause_and_a_failed_run_between_two_points_are_no_overhead() -> None:
    random = np.random.default_rng(5)
    machine = Machine(random, session=0.0)
    points = grid(random, 40)
    runs = [
        replace(run, start=3.0 * index + (3600.0 if index > 20 else 0.0))
        for index, run in enumerate(machine.session("first", points))
    ]
    lost = {"outcome": "timeout"}
    runs[10] = replace(runs[10], tags={**runs[10].tags, **lost}, metrics={})
    expected = expected_times(runs, [fc(2, 128, 256)])
    assert np.median(expected.phases["between"]) < 2.0
    assert len(PastRuns.of(runs, rates)) == 39


def test_an_import_does_not_hide_in_the_mean_of_several_processes() -> None:
    """An import of 1.2 s and four starts of 0.02 s: 0.26 s in the mean, which is none of a start."""
    random = np.random.default_rng(6)
    runs = Machine(random, session=0.0).session("first", grid(random, 2))
    several = [
        replace(run, metrics={**run.metrics, "processes": 5.0, "phase_start_seconds": seconds})
        for run, seconds in zip(runs, (1.28, 0.1), strict=True)
    ]
    start = PastRuns.of(several, rates).phases["start"]
    assert np.isnan(start[0])
    assert start[1] == pytest.approx(0.02)
