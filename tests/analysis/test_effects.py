"""Effects that do not cancel between two sides: their weights and variances."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paradnn.statistics.decision import decide
from paradnn.statistics.dependence import Component
from paradnn.statistics.effects import (
    Schedule,
    combine,
    learn_priors,
    selection_bias,
    side_effects,
    unit_effects,
    unit_scatter,
)
from paradnn.statistics.priors import VariancePrior, scatter_priors

START = pd.Timestamp("2026-01-01", tz="UTC")
#: A minute in hours.
MINUTE = 1 / 60


def runs_at(hours: Any, sweep: Any = "s", **columns: object) -> pd.DataFrame:
    """Return runs that started at the given hours after START."""
    seconds = 3600 * np.asarray(hours, dtype=float)
    frame = {"start_time": START + pd.to_timedelta(seconds, unit="s"), "sweep_id": sweep}
    return pd.DataFrame(frame | columns)


def block(begin: float, runs: int = 60) -> list[float]:
    """Return the start hours of `runs` runs, one per minute."""
    return [begin + MINUTE * number for number in range(runs)]


def days(*begins: float) -> list[float]:
    """Return the start hours of hour-long blocks, one per day; each begins at the given hour."""
    return [hour for day, begin in enumerate(begins) for hour in block(24 * day + begin)]


@pytest.mark.parametrize(
    ("a", "b", "weight"),
    [
        pytest.param(runs_at([0, 2], "s"), runs_at([1, 3], "s"), 0, id="both sides in one session"),
        pytest.param(runs_at([0], "s"), runs_at([10], "t"), 2, id="one session per side"),
        pytest.param(
            runs_at([0, 20, 40], ["a", "b", "c"]),
            runs_at([10, 30, 50], ["d", "e", "f"]),
            2 / 3,
            id="three alternating sessions per side",
        ),
        pytest.param(
            runs_at([0, 10, 20], ["a", "b", "c"]),
            runs_at([30, 40, 50], ["d", "e", "f"]),
            2,
            id="three sessions per side, one side first",
        ),
        pytest.param(
            runs_at([0, 20, 40], ["a", "b", "c"], host="h"),
            runs_at([10, 30, 50], ["d", "e", "f"], host="i"),
            2,
            id="one host per side, three sessions each",
        ),
        pytest.param(
            runs_at([0, 1, 2, 10], ["s", "s", "s", "t"]),
            runs_at([0.5, 1.5, 2.5, 3.5], "s"),
            2 * 0.25**2,
            id="a quarter of A in another session",
        ),
        pytest.param(
            runs_at([0, 1], "s", source="published"),
            runs_at([0, 1], "s", source="published"),
            2,
            id="unknown sessions",
        ),
    ],
)
def test_the_weight_of_sessions_is_the_part_that_does_not_cancel(
    a: pd.DataFrame, b: pd.DataFrame, weight: float
) -> None:
    assert Schedule.of(a, b).session_weight == pytest.approx(weight)


def test_sessions_on_few_hosts_count_as_one_unit_per_host() -> None:
    """Each side has four sessions on two of three hosts; both sides use host i."""
    hours = np.arange(0.0, 80.0, 20.0)
    a = runs_at(hours, ["a", "b", "c", "d"], host=["h", "i", "h", "i"])
    b = runs_at(hours + 10, ["e", "f", "g", "j"], host=["i", "j", "i", "j"])

    units = Schedule.of(a, b).units

    # Alternation and hosts weigh 1/2 each, but eight sessions on three hosts are only three draws.
    assert len(np.unique(units)) == 3


@pytest.mark.parametrize(
    ("a", "b", "weight"),
    [
        pytest.param(block(0), block(1), 2, id="A before B, weight of two sessions"),
        pytest.param(block(0) + block(3), block(1) + block(2), 0.5, id="A B B A, 6 times 1 / 12"),
        pytest.param(
            [2 * hour for hour in block(0)],
            [2 * hour + MINUTE for hour in block(0)],
            0,
            id="alternating",
        ),
    ],
)
def test_the_weight_of_drift_follows_from_the_order_of_the_sides(
    a: list[float], b: list[float], weight: float
) -> None:
    found = Schedule.of(runs_at(a), runs_at(b)).drift_weight
    randomized = Schedule.of(
        runs_at(a, sweep_order="random"), runs_at(b, sweep_order="random")
    ).drift_weight

    assert found == pytest.approx(weight, rel=0.05)
    assert randomized == 0


def test_the_weight_of_drift_grows_with_the_time_between_runs() -> None:
    """Two runs three minutes apart have 1/40 of the drift variance of two hours."""
    found = Schedule.of(runs_at([0]), runs_at([0.05])).drift_weight

    assert found == pytest.approx(6 / 40)


@pytest.mark.parametrize(
    ("a", "b", "weight"),
    [
        pytest.param(days(9, 9, 9), days(10, 10, 10), 2 / 3, id="A first on three mornings"),
        pytest.param(days(9, 10, 9, 10), days(10, 9, 10, 9), 0, id="counterbalanced"),
        pytest.param(days(9), days(10), 0, id="one morning"),
        pytest.param(days(8, 8, 8), days(20, 20, 20), 2 / 3, id="mornings against evenings"),
        pytest.param([0, 20], [10, 30], 0, id="alternating every ten hours"),
    ],
)
def test_an_order_that_repeats_every_day_does_not_average_out(
    a: list[float], b: list[float], weight: float
) -> None:
    sides = []
    for name, hours in (("a", a), ("b", b)):
        sweeps = [f"{name}{int(hour // 24)}" for hour in hours]
        sides.append(runs_at(hours, sweeps))

    assert Schedule.of(sides[0], sides[1]).order_weight == pytest.approx(weight)


def test_prior_and_data_are_weighted_by_their_degrees_of_freedom() -> None:
    prior = VariancePrior(scale=0.1, freedom=4, source="a test")

    assert prior.update() == pytest.approx((0.01, 4))
    assert prior.update(0.04, 2) == pytest.approx(((4 * 0.01 + 2 * 0.04) / 6, 6))


@pytest.mark.parametrize(
    ("variance", "expected"),
    [
        pytest.param(1e-6, (1e-6, 20), id="far less scatter than the prior expects"),
        pytest.param(1.0, (1.0, 20), id="far more scatter than the prior expects"),
        pytest.param(0.01, (0.01, 24), id="the scatter that the prior expects"),
        pytest.param(0.0, (0.01 * 4 / 24, 24), id="no scatter"),
    ],
)
def test_data_that_contradict_the_prior_replace_it(
    variance: float, expected: tuple[float, float]
) -> None:
    prior = VariancePrior(scale=0.1, freedom=4, source="a test")

    assert prior.update(variance, 20) == pytest.approx(expected)


def test_half_widths_add_in_quadrature() -> None:
    parts = [Component(0.01, 4.0), Component(0.0001, 100.0)]

    total = combine(parts)

    expected = np.hypot(0.1 * stats.t.ppf(0.975, 4), 0.01 * stats.t.ppf(0.975, 100))

    assert total.half_width == pytest.approx(expected)
    assert decide(0.5, parts).high == pytest.approx(np.exp(0.5 + expected))


def test_the_scatter_of_sessions_equals_that_of_their_means() -> None:
    """In a complete table, the adjusted sum of squares is that of the session means."""
    logs = np.random.default_rng(0).normal(0, 1, (5, 4))
    cells = np.repeat(np.arange(5), 4)
    units = np.tile(np.arange(4), 5)

    found = unit_scatter(logs.ravel(), cells, units)

    assert found == pytest.approx((logs.mean(axis=0).var(ddof=1), 3))

    effects = unit_effects(logs.ravel(), cells, units)[:4]
    assert effects - effects.mean() == pytest.approx(logs.mean(axis=0) - logs.mean())


def test_sessions_without_a_common_cell_have_no_estimated_scatter() -> None:
    labels = np.arange(3)

    assert unit_scatter(np.arange(3.0), labels, labels) == (0.0, 0.0)


def test_repeated_sessions_update_the_prior() -> None:
    """Three equal sessions per side add 4 degrees of freedom to the 8 of the prior.

    The data show no scatter, so the variance falls to 8/12.
    """
    a = runs_at([0, 20, 40], ["a", "b", "c"])
    b = runs_at([10, 30, 50], ["d", "e", "f"])

    (prior,) = side_effects(a, b)
    (posterior,) = side_effects(a, b, logs=np.zeros(6))

    assert posterior.variance == pytest.approx(prior.variance * 8 / 12)
    assert (prior.prior_share, posterior.prior_share) == pytest.approx((1, 8 / 12))


def test_missing_replicates_are_assumed_to_be_the_slowest() -> None:
    """The bias is the mean of a normal sample without its slowest third, in standard deviations."""
    sample = np.sort(np.random.default_rng(0).normal(0, 1, 300_000))

    assert selection_bias((0, 1), (3, 2)) == pytest.approx(-sample[:200_000].mean(), abs=0.01)
    assert selection_bias((1, 1), (2, 2)) == 0


@pytest.mark.parametrize(
    ("log_ratio", "error", "verdict"),
    [
        pytest.param(0.3, 0.05, "faster", id="A faster"),
        pytest.param(-0.3, 0.05, "slower", id="A slower"),
        pytest.param(0.01, 0.01, "equal", id="within the margin"),
        pytest.param(0.03, 0.005, "equal", id="significant but within the margin"),
        pytest.param(0.05, 0.05, "undecided", id="too much scatter"),
    ],
)
def test_the_verdict_follows_from_the_ratio_and_its_error(
    log_ratio: float, error: float, verdict: str
) -> None:
    assert decide(log_ratio, [Component(error**2, 20.0)]).verdict == verdict


@pytest.mark.parametrize(
    ("minutes", "drivers"),
    [
        pytest.param(1.0, 2, id="two concurrent tasks, one per side"),
        pytest.param(0.4, 1, id="one task, alternating sides"),
    ],
)
def test_runs_that_overlap_in_time_belong_to_different_drivers(
    minutes: float, drivers: int
) -> None:
    """A starts every minute and B half a minute later. No session is recorded."""
    duration = pd.Timedelta(minutes=minutes)
    a = runs_at(np.arange(10) * MINUTE)
    b = runs_at((np.arange(10) + 0.5) * MINUTE)
    sides = [side.assign(end_time=side["start_time"] + duration) for side in (a, b)]
    schedule = Schedule.of(*sides)

    assert len(np.unique(schedule.driver)) == drivers

    names = [effect.name for effect in side_effects(*sides)]
    assert ("drivers" in names) == (drivers == 2)

    recorded = [side.assign(session_id="one") for side in sides]
    assert len(np.unique(Schedule.of(*recorded).driver)) == 1


def test_effects_of_tasks_that_measure_both_sides_cancel() -> None:
    """Two tasks are always busy, and each alternates between the sides."""
    starts = np.arange(20)
    is_even = starts % 2 == 0
    hours = np.concatenate([starts, starts + 0.5]) * MINUTE
    is_a = np.concatenate([is_even, is_even])
    sides = [runs_at(hours[is_a]), runs_at(hours[~is_a])]
    sides = [side.assign(end_time=side["start_time"] + pd.Timedelta("59s")) for side in sides]
    schedule = Schedule.of(*sides)

    assert len(np.unique(schedule.driver)) == 2
    assert "drivers" not in [effect.name for effect in side_effects(*sides)]


@pytest.mark.parametrize(
    ("scatter", "low", "high"),
    [
        pytest.param(0.02, 0.0375, 0.06, id="quiet machine, prior at most halved"),
        pytest.param(0.075, 0.05, 0.1, id="scatter as in the prior"),
        pytest.param(0.5, 0.15, 0.15, id="noisy machine, prior at most doubled"),
    ],
)
def test_other_sessions_of_a_machine_update_the_priors(
    scatter: float, low: float, high: float
) -> None:
    random = np.random.default_rng(4)
    shifts = random.normal(0, scatter, 12)
    runs = pd.concat(
        [
            runs_at(
                24.0 * day + MINUTE * np.arange(6),
                sweep=f"s{day}",
                point_id=[f"p{number}" for number in range(6)],
                examples_per_second=100 * np.exp(shift + random.normal(0, 0.01, 6)),
            )
            for day, shift in enumerate(shifts)
        ]
    )
    priors = scatter_priors()
    learned = learn_priors(runs, priors)

    assert low <= learned.session.scale <= high
    assert learned.session.freedom == pytest.approx(priors.session.freedom + 11)
    assert learned.is_learned
    assert learn_priors(runs.iloc[:0], priors) == priors
