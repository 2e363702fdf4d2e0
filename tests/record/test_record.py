"""A record of a planted answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paradnn.config.outcome import PointResult
from paradnn.config.point import read_point
from paradnn.costs.point import costs_of
from paradnn.platform.environment import Environment
from paradnn.record.record import Record, make_record
from paradnn.worker.messages import Answer, Compilation, Contention, Measurement, Timing, Trial

QUIET = Contention(2, 0.75, 0.01, 0.0, 40.0, None, 2500.0, None)


def record(*contention: Contention | None, beside: dict[str, Contention] | None = None) -> Record:
    """Of a process for each of `contention`; `beside` is that of their other phases."""
    point = read_point({"model": {"name": "fc"}})
    timing = Timing(1, [Trial(1, 0.5)], [0.5], [0.5] * 6, True, "", None)
    measured = [
        Measurement(1, Compilation([1.0], [1], None), {}, None, None, timing, None, "unavailable", entry)
        for entry in contention
    ]
    answers = [Answer("ok", None, {"compile": 1.0}, measurement=entry, contention=beside or {}) for entry in measured]
    results = [PointResult("ok", None, answer, {}) for answer in answers]
    environment = Environment("a processor", {}, {}, {})
    return make_record(
        point, environment, costs_of(point), results, tags={}, peaks={}, load=None, start_time=0, end_time=1
    )


def test_what_disturbed_a_point_is_recorded_with_a_verdict() -> None:
    quiet = record(QUIET)
    assert quiet.tags["contended"] == "false"
    assert "contended_reason" not in quiet.tags
    assert quiet.metrics["own_cpu_fraction"] == 0.75
    assert quiet.metrics["cpu_mhz"] == 2500.0
    assert "throttled_fraction" not in quiet.metrics
    busy = record(replace(QUIET, foreign_cpu_fraction=0.5, reason="other processes took 1.0 of 2 cores"))
    assert (busy.tags["contended"], busy.tags["contended_reason"]) == ("true", "other processes took 1.0 of 2 cores")


def test_one_process_that_was_disturbed_is_enough() -> None:
    both = record(QUIET, replace(QUIET, own_cpu_fraction=0.25, reason="it was busy"))
    assert (both.tags["contended"], both.tags["contended_reason"]) == ("true", "it was busy")
    assert both.metrics["own_cpu_fraction"] == 0.5


@pytest.mark.parametrize(("phase", "when"), [("prefill", "while prompts were read"), ("load", "under load")])
def test_a_phase_beside_the_blocks_is_contended_as_they_are(phase: str, when: str) -> None:
    assert record(QUIET, beside={phase: QUIET}).tags["contended"] == "false"
    made = record(QUIET, beside={phase: replace(QUIET, reason="it was busy")})
    assert (made.tags["contended"], made.tags["contended_reason"]) == ("true", f"{when}: it was busy")


def test_where_nothing_is_known_nothing_is_said() -> None:
    nothing = record(None)
    assert not {"contended", "contended_reason"} & set(nothing.tags)
    assert not {name for name in nothing.metrics if "fraction" in name}
