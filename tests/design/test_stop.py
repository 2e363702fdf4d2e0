"""When enough is learned, against simulation and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from paradnn.designs.stop import (
    Finding,
    Rule,
    drawn_weights,
    findings,
    growth_until_settled,
    median_error,
    strain,
    weights_of,
)
from paradnn.forecast.regression import Prediction


def test_the_expected_error_is_that_of_a_simulation() -> None:
    random = np.random.default_rng(1)
    deviations = random.uniform(0.01, 0.9, 400)
    errors = np.abs(np.expm1(deviations * random.standard_normal((4000, 400))))
    assert median_error(deviations) == pytest.approx(np.median(errors), rel=0.01)
    # A single point's: the quartile of a normal distribution, within the second order.
    assert median_error(np.array([0.01])) == pytest.approx(0.006745, rel=0.001)
    assert median_error(np.array([])) == 0
    assert median_error(np.zeros(3)) == pytest.approx(0, abs=1e-9)


def test_weights_are_those_of_a_standardised_regression() -> None:
    random = np.random.default_rng(2)
    terms = random.standard_normal((60, 3)) @ random.standard_normal((3, 3)) + 5
    values = random.standard_normal((60, 4)) + terms[:, :1]
    found = weights_of(terms, values)
    for column in range(4):
        scores = np.column_stack([np.ones(60), (terms - terms.mean(0)) / terms.std(0, ddof=1)])
        response = values[:, column] / values[:, column].std(ddof=1)
        assert found[:, column] == pytest.approx(np.linalg.lstsq(scores, response, rcond=None)[0][1:])


def test_weights_of_a_prediction_are_those_of_its_draws() -> None:
    """Own variances of points as well as what they have in common; 1e6 degrees of freedom: no tails."""
    random = np.random.default_rng(4)
    terms = random.standard_normal((40, 3))
    offset, mean = random.standard_normal(40), terms @ [3.0, 1.0, 0.0]
    step = Prediction(
        mean, 0.05 * random.standard_normal((40, 2)), np.full(40, 0.04), np.arange(40), noise=1e-9, freedom=1e6
    )
    found = drawn_weights(terms, step, offset, 20_000, random)
    expected = weights_of(terms, offset[:, None] - step.draws(20_000, random))
    assert found.mean(axis=1) == pytest.approx(expected.mean(axis=1), abs=0.01)
    assert np.cov(found) == pytest.approx(np.cov(expected), rel=0.15, abs=2e-4)


def planted(spread: float, slopes: tuple[float, ...]) -> list[Finding]:
    """Findings over a grid of terms with known slopes, whose draws err in their slopes by `spread`."""
    random = np.random.default_rng(3)
    terms = np.stack(np.meshgrid(*[np.arange(4.0)] * len(slopes)), axis=-1).reshape(-1, len(slopes))
    drawn = np.array(slopes)[:, None] + spread * random.standard_normal((len(slopes), 400))
    return findings([f"x{number}" for number in range(len(slopes))], weights_of(terms, terms @ drawn))


def test_what_is_sure_is_settled_and_what_is_equal_can_be() -> None:
    sure = planted(0.001, (1.0, -2.0, 0.0, 1.0))
    assert all(finding.settled for finding in sure)
    first, *equal, last = [finding.text for finding in sure[:4]]
    assert (first, sorted(equal), last) == (
        "speed falls with x1",
        ["speed grows with x0", "speed grows with x3"],
        "speed hardly depends on x2",
    )
    assert sure[4].text.startswith("x1 matters more than ")
    assert " matters as much as " in sure[5].text
    assert " matters more than x2" in sure[6].text
    unsure = planted(1.5, (1.0, -2.0, 0.0, 1.0))
    assert not all(finding.settled for finding in unsure)
    assert not any("hardly" in finding.text for finding in unsure)


def test_shares_are_those_of_the_draws() -> None:
    [sign, other, order] = planted(1.0, (2.0, 1.0))
    # Normal slopes of mean 2, 1 and deviation 1: P(w > 0) = 0.977, 0.841.
    assert (sign.share, other.share) == pytest.approx((0.977, 0.841), abs=0.04)
    assert (sign.settled, other.settled) == (True, False)
    # P(|a| > |b|), by simulation: 0.76.
    assert order.share == pytest.approx(0.76, abs=0.06)


def test_terms_that_do_not_matter_have_no_order() -> None:
    assert [finding.text for finding in planted(0.0001, (1.0, 0.001, 0.002))][3:] == ["x0 matters more than x2"]


@pytest.mark.parametrize(
    ("rule", "reached"),
    [
        (Rule(points=10), "sweep.points=10"),
        (Rule(points=11, minutes=2.0), "sweep.minutes=2"),
        (Rule(points=11, error=0.05), "sweep.error=0.05"),
        (Rule(error=0.04, settled=True), "sweep.settled=true"),
        (Rule(points=11, minutes=2.5, error=0.04), None),
        (Rule(), None),
    ],
)
def test_the_first_rule_that_is_met_ends_a_sweep(rule: Rule, reached: str | None) -> None:
    assert rule.reached(10, 2.0, 0.05, [Finding("grows", 0.95)]) == reached


def test_what_is_not_known_ends_nothing() -> None:
    rule = Rule(error=0.5, settled=True)
    assert rule.reached(0, 0.0, None, []) is None
    assert rule.reached(9, 9.0, 0.9, [Finding("grows", 0.96), Finding("falls", 0.94)]) is None


def test_errors_that_are_larger_than_stated_are_told_by_their_median() -> None:
    random = np.random.default_rng(7)
    spreads = random.uniform(0.1, 1.0, 4000)
    errors = spreads * random.standard_t(6, 4000)
    assert strain(3 * errors, spreads, 6) == pytest.approx(3, rel=0.06)
    assert strain(errors / 3, spreads, 6) == 1
    assert strain(errors[:7] * 10, spreads[:7], 6) == 1


def test_an_unsettled_conclusion_takes_as_many_points_as_halve_its_interval() -> None:
    """P(z < 1.645 / 2) = 0.795: half as many standard deviations, four times as many points."""
    settled, half, even = Finding("", 0.96), Finding("", 0.7946), Finding("", 0.5)
    assert growth_until_settled([settled, half]) == pytest.approx(4, abs=0.02)
    assert growth_until_settled([half, even]) == 9
    assert growth_until_settled([settled]) == growth_until_settled([]) == 1
