"""The regression on planted laws: recovered where there are data, honest where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from paradnn.forecast.bayes import fit


def test_a_law_is_recovered_in_spite_of_runs_that_were_disturbed() -> None:
    random = np.random.default_rng(0)
    features = np.column_stack([np.ones(400), random.normal(0, 1, (400, 2))])
    law = np.array([0.5, -0.3, 0.8])
    values = features @ law + 0.05 * random.standard_normal(400)
    values[::20] += 3.0
    found = fit(features, values, np.full(3, 1.0))
    assert found.mean == pytest.approx(law, abs=0.02)
    plain = np.linalg.lstsq(features, values, rcond=None)[0]
    assert abs(plain[0] - law[0]) > 0.1  # what least squares make of it


def test_without_data_the_prior_comes_back() -> None:
    prior = np.array([0.5, 2.0, 0.1])
    found = fit(np.zeros((0, 3)), np.zeros(0), prior)
    assert found.mean.tolist() == [0, 0, 0]
    assert np.sqrt(np.diag(found.root @ found.root.T)) == pytest.approx(prior)
    lines = found.lines(np.eye(3), 20_000, np.random.default_rng(1))
    assert lines.std(axis=1) == pytest.approx(prior, rel=0.05)


def test_a_group_without_data_keeps_its_spread_and_errs_together() -> None:
    """Of two groups one is measured: the other's points stay uncertain, and all in the same direction."""
    random = np.random.default_rng(2)
    features = np.column_stack([np.ones(60), np.ones(60), np.zeros(60)])
    found = fit(features, 1.0 + 0.1 * random.standard_normal(60), np.array([1.0, 0.4, 0.4]))
    other = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])
    lines = found.lines(other, 5000, random)
    assert np.corrcoef(lines)[0, 1] == pytest.approx(1.0)
    assert lines.std() > 0.4
    assert found.lines(features[:1], 5000, random).std() < 0.05


@pytest.mark.parametrize("count", [4, 15, 60])
def test_intervals_cover_as_often_as_they_say(count: int) -> None:
    """Coefficients drawn from the prior, data from them: 95% intervals of new values hold 95% of these."""
    random = np.random.default_rng(count)
    prior, inside = np.array([1.0, 0.5, 0.3]), []
    for _ in range(300):
        law = prior * random.standard_normal(3)
        features = np.column_stack([np.ones(count + 1), random.normal(0, 1, (count + 1, 2))])
        values = features @ law + 0.2 * random.standard_normal(count + 1)
        found = fit(features[:-1], values[:-1], prior)
        draws = found.lines(features[-1:], 400, random) + found.errors(1, 400, random)
        low, high = np.quantile(draws[0], [0.025, 0.975])
        inside.append(low <= values[-1] <= high)
    assert 0.92 <= np.mean(inside) <= 0.985


def test_an_observation_that_is_not_trusted_says_nothing() -> None:
    features = np.ones((10, 1))
    values = np.array([1.0] * 5 + [9.0] * 5)
    found = fit(features, values, np.array([10.0]), np.array([1.0] * 5 + [0.0] * 5))
    assert found.mean[0] == pytest.approx(1.0, abs=0.01)
