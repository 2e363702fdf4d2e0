"""Drift told from points that were measured several times: planted drift and planted noise."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.drift import correlated
from benchmarks.drift import planted as in_rounds
from paradnn.session.summary import DriftEstimate, drift_of


def planted(
    random: np.random.Generator, per_hour: float, noise: float, points: int = 24, processes: int = 3
) -> DriftEstimate | None:
    """Step times of points between 1 ms and 1 s in rounds over two hours, that grow by so much an hour (logarithms)."""
    measured, begun = [], np.linspace(0, 7200, points * processes).reshape(processes, points)
    levels = np.exp(random.uniform(np.log(1e-3), 0, points))
    for point in range(points):
        hours = begun[:, point] / 3600
        seconds = levels[point] * np.exp(per_hour * hours + random.normal(0, noise, processes))
        measured.append([(1.8e9 + 3600 * hour, float(value)) for hour, value in zip(hours, seconds, strict=True)])
    return drift_of(measured)


def test_planted_drift_is_found_and_its_interval_covers() -> None:
    random = np.random.default_rng(0)
    estimates = [planted(random, 0.02, 0.02) for _ in range(400)]
    covered = sum(entry.low <= 0.02 <= entry.high for entry in estimates)
    assert 0.91 * 400 <= covered <= 0.99 * 400
    assert np.mean([entry.per_hour for entry in estimates]) == pytest.approx(0.02, rel=0.05)
    assert sum(entry.matters for entry in estimates) > 0.9 * 400
    assert estimates[0].hours == pytest.approx(2.0)
    assert "% longer at the end than at the beginning, 2.0 h before" in str(estimates[0])


def test_noise_alone_is_rarely_called_drift() -> None:
    random = np.random.default_rng(1)
    assert sum(planted(random, 0.0, 0.02).matters for _ in range(400)) <= 0.08 * 400


@pytest.mark.parametrize(("points", "processes"), [(24, 2), (24, 5), (100, 2)])
@pytest.mark.parametrize("coefficient", [0.5, 0.7, 0.9])
def test_a_machine_that_wanders_is_rarely_said_to_drift(points: int, processes: int, coefficient: float) -> None:
    """AR(1) noise in the order in which a sweep measures; each point's level hides some of the correlation."""
    random = np.random.default_rng(2)
    told = 0
    for _ in range(200):
        logs = correlated(points * processes, coefficient, random)
        found = in_rounds(points, processes, logs, random)
        told += found is not None and found.matters
    assert told <= 0.08 * 200


def test_a_sweep_of_seconds_is_told_as_what_it_saw() -> None:
    """A change within seconds is no rate an hour, which may have no number at all."""
    begun = [1.8e9 + 0.01 * point for point in range(12)]
    found = drift_of([[(at, 1.0), (at + 0.5, 2.0), (at + 1, 4.0)] for at in begun])
    assert found is not None
    assert found.matters
    assert "longer at the end than at the beginning, 0.0 min before" in str(found)
    assert "inf" not in str(found)


def test_points_of_one_process_tell_nothing() -> None:
    assert drift_of([[(1.8e9 + second, 1.0)] for second in range(100)]) is None
