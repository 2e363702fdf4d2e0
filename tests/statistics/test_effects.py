"""Effects that do not cancel between two sides, by least squares and simulated schedules."""

import numpy as np
import pandas as pd
import pytest

from paradnn.statistics.dependence import Component
from paradnn.statistics.effects import (
    Schedule,
    combine,
    drift_weights,
    interaction_effect,
    learn_priors,
    selection_bias,
    side_effects,
    unit_scatter,
)
from paradnn.statistics.priors import scatter_priors

START = pd.Timestamp("2026-01-01", tz="UTC")
PRIORS = scatter_priors()


def runs_at(hours: list[float], **columns: object) -> pd.DataFrame:
    """Return runs of one sweep that started at the given hours after START."""
    times = START + pd.to_timedelta(3600 * np.array(hours), unit="s")
    return pd.DataFrame({"start_time": times, "sweep_id": "s"} | columns)


def test_variances_of_zero_have_the_fewest_degrees_of_freedom() -> None:
    assert combine([Component(0.0, 9.0), Component(0.0, 4.0)]) == (0.0, 4.0)


def residual_squares(design: np.ndarray, values: np.ndarray) -> float:
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return float(np.sum((values - fitted) ** 2))


def indicators(labels: np.ndarray) -> np.ndarray:
    return (labels[:, None] == np.unique(labels)).astype(float)


def test_the_scatter_of_units_in_an_incomplete_table_is_hendersons_estimate() -> None:
    """Compare with the sum of squares of units, adjusted for cells, divided by its coefficient."""
    random = np.random.default_rng(3)
    cells = random.integers(0, 5, 30)
    units = random.integers(0, 4, 30)
    logs = random.normal(size=30)
    cell_columns = indicators(cells)
    all_columns = np.column_stack([cell_columns, indicators(units)])
    squares = residual_squares(cell_columns, logs) - residual_squares(all_columns, logs)
    counts = cell_columns.T @ indicators(units)
    coefficient = 30 - np.sum(counts**2 / counts.sum(axis=1, keepdims=True))

    found = unit_scatter(logs, cells, units)

    assert found == pytest.approx((squares / coefficient, 3.0))


def brownian_variance(weights: np.ndarray, hours: np.ndarray) -> float:
    """Return the variance of a weighted sum of a Brownian motion, which starts at the first run."""
    elapsed = hours - hours.min()
    return float(weights @ np.minimum.outer(elapsed, elapsed) @ weights)


@pytest.mark.parametrize(
    "length", [pytest.param(1.0, id="one hour"), pytest.param(5.0, id="five hours")]
)
def test_the_weight_of_drift_is_the_variance_of_a_brownian_motion(length: float) -> None:
    """The rate makes the halves of two or more hours differ as much as two sessions do."""
    random = np.random.default_rng(2)
    hours = np.append(random.uniform(0, length, 8), [0.0, length])
    weights = random.normal(size=(3, 10))
    weights -= weights.mean(axis=1, keepdims=True)

    found = drift_weights(weights, hours)

    rate = 6 * min(length / 2, 1) / length

    assert found == pytest.approx([rate * brownian_variance(row, hours) for row in weights])


def test_runs_that_started_together_do_not_drift() -> None:
    assert drift_weights(np.array([[1.0, -1.0]]), np.zeros(2)).tolist() == [0.0]


def test_the_weight_of_a_point_follows_from_its_runs_alone() -> None:
    a = runs_at([0, 1, 20, 41], sweep_id=["s", "s", "t", "u"], host=["h", "h", "h", "i"])
    b = runs_at([0.5, 1.5, 30, 31], sweep_id=["s", "s", "v", "v"], host=["h", "h", "i", "i"])
    points = np.array([0, 1, 2, 2, 0, 1, 2, 0])
    schedule = Schedule.of(a, b, points)

    found = schedule.point_weights()

    for point in range(3):
        alone = schedule.select(points == point).session_weight
        assert found[point] == pytest.approx(alone + schedule.drift_weight)


def test_drift_counts_if_one_side_is_the_second_half_of_a_session() -> None:
    """Four runs are an hour apart, A first. The integral of F^2 is (1/4 + 1 + 1/4) / 3."""
    found = Schedule.of(runs_at([0, 1]), runs_at([2, 3])).drift_weight

    assert found == pytest.approx(min(6 * (0.25 + 1 + 0.25) / 3, 2.0))


@pytest.mark.parametrize(
    ("hours", "mixed"),
    [
        pytest.param([0.0], False, id="one side alone"),
        pytest.param([0.0, 0.1, 0.2, 0.3], True, id="alternating sides"),
    ],
)
def test_a_schedule_is_mixed_if_the_sides_alternate(hours: list[float], mixed: bool) -> None:
    runs = runs_at(hours)

    assert Schedule.of(runs[::2], runs[1::2]).is_mixed == mixed


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"sweep_order": "random"}, id="random order"),
        pytest.param({"source": "published"}, id="unknown times"),
    ],
)
def test_a_random_or_unknown_order_has_no_weight(columns: dict[str, object]) -> None:
    a = runs_at([9, 33, 57], sweep_id=["a", "b", "c"], **columns)
    b = runs_at([20, 44, 68], sweep_id=["d", "e", "f"], **columns)

    schedule = Schedule.of(a, b)

    assert schedule.order_weight == 0
    assert schedule.drift_weight == 0


def test_an_order_counts_to_the_extent_that_days_have_both_sides() -> None:
    """A comes first on two days. Each side has a quarter of its runs on one of the days."""
    a = runs_at([9.0, 33.0, 33.1, 33.2], sweep_id=["s", "t", "t", "t"])
    b = runs_at([10.0, 10.1, 10.2, 34.0], sweep_id=["s", "s", "s", "t"])

    assert Schedule.of(a, b).order_weight == pytest.approx((1 - 1 / 2) * (2 * 0.25) ** 2)


def test_no_runs_have_no_weight() -> None:
    schedule = Schedule.of(runs_at([]), runs_at([]))

    assert (schedule.session_weight, schedule.drift_weight, schedule.order_weight) == (0, 0, 0)


def test_a_counterpart_is_a_run_of_the_other_side_in_the_same_session() -> None:
    a = runs_at([0, 1, 2], sweep_id=["s", "s", "t"])
    b = runs_at([0.5, 3], sweep_id=["s", "u"])
    points = np.array([0, 1, 0, 0, 1])

    found = Schedule.of(a, b, points).has_counterpart

    assert found.tolist() == [True, False, False, True, False]


def planted_sessions(sessions: int, points: int = 4) -> tuple[np.ndarray, Schedule]:
    """Return logarithms of speeds and the schedule; each session measures all points of A, then B.

    The logarithms have shape (2, sessions, points).
    """
    logs = np.random.default_rng(sessions).normal(0, 0.1, (2, sessions, points))
    labels = np.repeat([f"s{number}" for number in range(sessions)], points)
    hours = np.repeat(10.0 * np.arange(sessions), points)
    sides = [runs_at((hours + 0.1 * side).tolist(), sweep_id=labels) for side in (0, 1)]
    point = np.tile(np.arange(points), 2 * sessions)
    return logs, Schedule.of(sides[0], sides[1], point)


def test_the_interaction_is_the_scatter_of_the_ratio_between_sessions() -> None:
    logs, schedule = planted_sessions(sessions=5)

    found = interaction_effect(logs.ravel(), schedule, PRIORS)

    ratios = (logs[0] - logs[1]).mean(axis=1)
    posterior = PRIORS.interaction.update(float(ratios.var(ddof=1)), 4.0)

    assert found is not None
    assert found.component == pytest.approx((posterior.variance / 5, posterior.freedom))
    assert found.prior_share == pytest.approx(1 - 4 / posterior.freedom)
    assert found.half_width == pytest.approx(float(found.component.half_width))


def test_one_session_shows_no_interaction() -> None:
    logs, schedule = planted_sessions(sessions=1)

    assert interaction_effect(logs.ravel(), schedule, PRIORS) is None


def test_sides_without_a_common_session_show_no_interaction() -> None:
    schedule = Schedule.of(runs_at([0], sweep_id="s"), runs_at([9], sweep_id="t"))

    assert interaction_effect(np.zeros(2), schedule, PRIORS) is None


def effects_by_name(a: pd.DataFrame, b: pd.DataFrame, points: np.ndarray) -> dict[str, float]:
    return {effect.name: effect.variance for effect in side_effects(a, b, points)}


def test_drivers_that_measure_one_side_each_add_twice_their_variance() -> None:
    a = runs_at([0, 0.1, 0.2], session_id="one")
    b = runs_at([0.01, 0.11, 0.21], session_id="two")

    found = effects_by_name(a, b, np.zeros(6, dtype=int))

    assert found == pytest.approx({"drivers": 2 * PRIORS.driver.update().variance})


def test_a_side_that_is_always_second_adds_an_effect_of_the_position() -> None:
    hours = np.arange(20) / 10
    a = runs_at(hours.tolist(), protocol_id="p")
    b = runs_at((hours + 0.05).tolist(), protocol_id="q")

    found = effects_by_name(a, b, np.tile(np.arange(20), 2))

    expected = {
        "position": PRIORS.position.update().variance,
        "protocol": PRIORS.protocol.update().variance,
    }

    assert found == pytest.approx(expected)


def replicates(processes: float, sessions: int = 1) -> tuple[pd.DataFrame, np.ndarray]:
    """Return three replicates of eight points per session, and the logarithms of their rates."""
    logs = np.random.default_rng(1).normal(0, 0.03, (sessions, 8, 3))
    parts = [
        runs_at(
            (24.0 * number + np.arange(24) / 60).tolist(),
            sweep_id=f"s{number}",
            point_id=np.repeat([f"p{point}" for point in range(8)], 3),
            examples_per_second=100 * np.exp(part.ravel()),
            processes=processes,
        )
        for number, part in enumerate(logs)
    ]
    return pd.concat(parts, ignore_index=True), logs


@pytest.mark.parametrize("processes", [1.0, 4.0])
def test_replicates_of_a_machine_update_the_prior_of_processes(processes: float) -> None:
    """A run of several processes scatters less than a single process."""
    runs, logs = replicates(processes)

    found = learn_priors(runs, PRIORS)

    variance = processes * float(logs.var(axis=2, ddof=1).mean())
    expected = PRIORS.process.learn(variance, 16.0)

    assert found.process.scale == pytest.approx(expected.scale)
    assert found.process.freedom == expected.freedom
    assert found.session.freedom == PRIORS.session.freedom


def test_runs_without_replicates_do_not_update_the_prior() -> None:
    runs, _ = replicates(1.0)

    assert learn_priors(runs.drop_duplicates("point_id"), PRIORS) is PRIORS


def test_runs_of_unknown_sessions_do_not_update_the_prior() -> None:
    runs, _ = replicates(1.0)

    assert learn_priors(runs.assign(source="published"), PRIORS) is PRIORS


def test_runs_without_a_rate_are_ignored() -> None:
    runs, logs = replicates(1.0)
    runs.loc[:2, "examples_per_second"] = np.nan

    found = learn_priors(runs, PRIORS)

    expected = PRIORS.process.learn(float(logs[0, 1:].var(axis=1, ddof=1).mean()), 14.0)

    assert found.process.scale == pytest.approx(expected.scale)


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        pytest.param((0, 0), (3, 3), id="no replicate is missing"),
        pytest.param((3, 3), (0, 0), id="all replicates are missing"),
        pytest.param((0, 0), (0, 0), id="no replicate was tried"),
    ],
)
def test_equal_numbers_of_missing_replicates_cause_no_bias(
    lost: tuple[int, int], kept: tuple[int, int]
) -> None:
    assert selection_bias(lost, kept) == 0.0


def test_a_run_continues_the_task_that_ended_last_before_it() -> None:
    """Three tasks at first; later runs continue the task that ended last before their start."""
    starts = np.array([0.0, 1.0, 2.0, 10.0, 11.0])
    ends = np.array([9.0, 8.0, 7.0, 20.0, 20.0])
    runs = runs_at((starts / 60).tolist())
    runs["end_time"] = START + pd.to_timedelta(60 * ends, unit="s")

    drivers = Schedule.of(runs[:3], runs[3:]).driver

    assert len(set(drivers[:3])) == 3
    assert drivers[3] == drivers[0]
    assert drivers[4] == drivers[1]


def test_runs_without_an_end_time_share_one_driver() -> None:
    runs = runs_at([0, 0.1, 0.2])
    runs["end_time"] = pd.Series([pd.NaT] * 3, dtype="datetime64[ns, UTC]")

    assert len(set(Schedule.of(runs[:2], runs[2:]).driver)) == 1


def test_drivers_differ_if_only_later_runs_overlap() -> None:
    runs = runs_at([0.0, 10 / 60, 10.5 / 60])
    runs["end_time"] = START + pd.to_timedelta([300, 1200, 1200], unit="s")

    drivers = Schedule.of(runs[:2], runs[2:]).driver

    assert drivers[0] == drivers[1]
    assert drivers[1] != drivers[2]
