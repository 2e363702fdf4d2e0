"""Drift told from points that were measured several times: planted drift and planted noise."""

from __future__ import annotations

import numpy as np
import pytest

from paradnn.session.drift import Drift


def planted(random: np.random.Generator, per_hour: float, noise: float, points: int = 24, processes: int = 3) -> Drift:
    """Step times of points between 1 ms and 1 s in rounds over two hours, that grow by so much an hour (logarithms)."""
    drift, begun = Drift(), np.linspace(0, 7200, points * processes).reshape(processes, points)
    levels = np.exp(random.uniform(np.log(1e-3), 0, points))
    for point in range(points):
        hours = begun[:, point] / 3600
        seconds = levels[point] * np.exp(per_hour * hours + random.normal(0, noise, processes))
        drift.add([(1.8e9 + 3600 * hour, float(value)) for hour, value in zip(hours, seconds, strict=True)])
    return drift


def test_planted_drift_is_found_and_its_interval_covers() -> None:
    random = np.random.default_rng(0)
    estimates = [planted(random, 0.02, 0.02).estimate() for _ in range(400)]
    covered = sum(entry.low <= np.expm1(0.02) <= entry.high for entry in estimates)
    assert 0.91 * 400 <= covered <= 0.99 * 400
    assert np.mean([entry.per_hour for entry in estimates]) == pytest.approx(np.expm1(0.02), rel=0.05)
    assert sum(entry.matters for entry in estimates) > 0.9 * 400
    assert estimates[0].hours == pytest.approx(2.0)
    assert "slower an hour" in str(estimates[0])


def test_noise_alone_is_rarely_called_drift() -> None:
    random = np.random.default_rng(1)
    assert sum(planted(random, 0.0, 0.02).estimate().matters for _ in range(400)) <= 0.08 * 400


def test_points_of_one_process_tell_nothing() -> None:
    drift = Drift()
    for second in range(100):
        drift.add([(1.8e9 + second, 1.0)])
    assert drift.estimate() is None
