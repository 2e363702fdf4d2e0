"""Verdicts and adjusted p values, compared with SciPy's distributions and statsmodels."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from paradnn.statistics.decision import adjust_p_values, decide, equivalent
from paradnn.statistics.dependence import Component
from paradnn.statistics.verdict import Verdict

P_VALUES = [0.04, 0.001, 0.2, 0.013, 0.6, 0.013, 0.03]


@pytest.mark.parametrize(
    ("discoveries", "method"),
    [
        pytest.param(False, "holm", id="family-wise error rate"),
        pytest.param(True, "fdr_bh", id="false discovery rate"),
    ],
)
def test_adjusted_p_values_equal_statsmodels(discoveries: bool, method: str) -> None:
    p_values = np.array([math.nan, *P_VALUES, math.nan])

    adjusted = adjust_p_values(p_values, discoveries=discoveries)

    expected = multipletests(P_VALUES, method=method)[1]

    assert np.isnan(adjusted[[0, -1]]).all()
    assert adjusted[1:-1] == pytest.approx(expected)


@pytest.mark.parametrize("discoveries", [False, True])
def test_missing_or_no_p_values_are_not_adjusted(discoveries: bool) -> None:
    assert np.isnan(adjust_p_values(np.array([math.nan]), discoveries=discoveries)).all()
    assert not len(adjust_p_values(np.array([]), discoveries=discoveries))


def test_an_adjusted_p_value_is_at_most_one() -> None:
    assert adjust_p_values(np.array([0.6, 0.9])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("least", "most", "p"),
    [
        pytest.param(-0.01, 0.01, lambda t: t.sf((math.log(1.05) - 0.01) / 0.02), id="symmetric"),
        pytest.param(0.02, 0.03, lambda t: t.sf((math.log(1.05) - 0.03) / 0.02), id="above"),
        pytest.param(-0.03, -0.02, lambda t: t.sf((math.log(1.05) - 0.03) / 0.02), id="below"),
        pytest.param(0.2, 0.2, lambda t: t.sf((math.log(1.05) - 0.2) / 0.02), id="far outside"),
    ],
)
def test_the_p_value_of_equivalence_is_the_larger_of_two_one_sided_tests(
    least: float, most: float, p: object
) -> None:
    found = equivalent(np.array([least]), np.array([most]), np.array([0.02]), np.array([7.0]), 0.05)

    assert found == pytest.approx([p(stats.t(7))])  # type: ignore[operator]


def test_equivalence_of_an_exact_ratio_at_the_margin_is_unknown() -> None:
    bound = np.array([math.log1p(0.05)])

    assert np.isnan(equivalent(bound, bound, np.zeros(1), np.ones(1), 0.05)).all()


def test_a_decision_has_students_interval_and_tests() -> None:
    log_ratio = 0.1
    error = 0.03
    freedom = 9
    student = stats.t(freedom)

    found = decide(log_ratio, [Component(error**2, freedom)])

    half_width = student.ppf(0.975) * error

    assert found.ratio == pytest.approx(math.exp(log_ratio))
    assert found.low == pytest.approx(math.exp(log_ratio - half_width))
    assert found.high == pytest.approx(math.exp(log_ratio + half_width))
    assert found.p_different == pytest.approx(2 * student.sf(log_ratio / error))
    assert found.p_equal == pytest.approx(student.cdf((log_ratio - math.log(1.05)) / error))
    assert found.verdict is Verdict.FASTER


@pytest.mark.parametrize("sign", [pytest.param(1, id="faster"), pytest.param(-1, id="slower")])
def test_a_bias_widens_the_interval_and_both_tests(sign: int) -> None:
    log_ratio = 0.1
    error = 0.03
    freedom = 9
    bias = 0.04
    student = stats.t(freedom)

    found = decide(sign * log_ratio, [Component(error**2, freedom)], bias=bias)

    half_width = student.ppf(0.975) * error + bias

    assert math.log(found.high / found.low) == pytest.approx(2 * half_width)
    assert found.p_different == pytest.approx(2 * student.sf((log_ratio - bias) / error))
    assert found.p_equal == pytest.approx(student.cdf((log_ratio + bias - math.log(1.05)) / error))
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("log_ratio", "error", "bias", "verdict"),
    [
        pytest.param(0.2, 0.01, 0.0, Verdict.FASTER, id="faster"),
        pytest.param(-0.2, 0.01, 0.0, Verdict.SLOWER, id="slower"),
        pytest.param(0.01, 0.001, 0.0, Verdict.EQUAL, id="significant, but within the margin"),
        pytest.param(0.2, 0.2, 0.0, Verdict.UNDECIDED, id="large scatter"),
        pytest.param(0.2, 0.01, 0.25, Verdict.UNDECIDED, id="a bias as large as the difference"),
    ],
)
def test_the_verdict_follows_from_the_difference_its_error_and_the_bias(
    log_ratio: float, error: float, bias: float, verdict: Verdict
) -> None:
    assert decide(log_ratio, [Component(error**2, 30.0)], bias=bias).verdict is verdict


@pytest.mark.parametrize(
    ("log_ratio", "verdict"),
    [
        pytest.param(0.049, Verdict.FASTER, id="just outside the margin"),
        pytest.param(0.048, Verdict.EQUAL, id="just within the margin"),
        pytest.param(-0.1, Verdict.SLOWER, id="slower"),
    ],
)
def test_an_exact_ratio_is_always_decided(log_ratio: float, verdict: Verdict) -> None:
    """The logarithm of the margin of 5% is 0.0488."""
    found = decide(log_ratio, [])

    assert found.verdict is verdict
    assert found.low == found.ratio == found.high == pytest.approx(math.exp(log_ratio))


def test_half_widths_of_independent_variances_add_in_quadrature() -> None:
    parts = [Component(0.03**2, 8.0), Component(0.04**2, 12.0)]

    found = decide(0.0, parts)

    half_widths = [stats.t.ppf(0.975, part.freedom) * math.sqrt(part.variance) for part in parts]

    assert math.log(found.high) == pytest.approx(math.hypot(*half_widths))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("p", "is_decided"),
    [pytest.param(0.049, True, id="below 5%"), pytest.param(0.051, False, id="above 5%")],
)
def test_a_difference_is_significant_below_five_percent(
    p: float, is_decided: bool, sign: int
) -> None:
    error = 0.1
    freedom = 9
    log_ratio = sign * stats.t(freedom).isf(p / 2) * error

    found = decide(log_ratio, [Component(error**2, freedom)])

    assert found.p_different == pytest.approx(p)

    expected = Verdict.FASTER if sign > 0 else Verdict.SLOWER
    assert found.verdict is (expected if is_decided else Verdict.UNDECIDED)


@pytest.mark.parametrize(
    ("p", "is_equal"),
    [pytest.param(0.049, True, id="below 5%"), pytest.param(0.051, False, id="above 5%")],
)
def test_equivalence_is_significant_below_five_percent(p: float, is_equal: bool) -> None:
    freedom = 9
    error = math.log(1.05) / stats.t(freedom).isf(p)

    found = decide(0.0, [Component(error**2, freedom)])

    assert found.p_equal == pytest.approx(p)
    assert (found.verdict is Verdict.EQUAL) == is_equal
