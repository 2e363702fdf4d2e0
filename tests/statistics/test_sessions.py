"""Sessions, and the order of two sides within and between them, in planted schedules."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paradnn.statistics.sessions import (
    MeasurementTimes,
    assign_sessions,
    differ_by_time_of_day,
    family_slope,
    find_speed_steps,
    follow_share,
    have_other_protocols,
    is_mixed,
    leveled_component,
    measurement_times,
    merge_into_turns,
)

START = pd.Timestamp("2026-01-01", tz="UTC")


def runs_at(hours: list[float], **columns: object) -> pd.DataFrame:
    """Return runs that started at the given hours after START."""
    times = START + pd.to_timedelta(3600 * np.array(hours), unit="s")
    return pd.DataFrame({"start_time": times} | columns)


def test_runs_of_unknown_source_have_a_session() -> None:
    sessions = assign_sessions(runs_at([0, 0.1, 0.2], source=[None, "measured", "published"]))

    assert sessions[0] == sessions[1]
    assert sessions[0] is not None
    assert sessions[2] is None


def slopes(values: list[float], errors: list[float], **columns: object) -> pd.DataFrame:
    return pd.DataFrame({"reference_slope_seen": values, "reference_slope_error": errors} | columns)


@pytest.mark.parametrize(
    ("values", "errors"),
    [
        pytest.param([0.5], [0.1], id="one run"),
        pytest.param([0.4, 0.5, 0.6], [0.1, 0.2, 0.1], id="runs agree"),
        pytest.param([0.1, 0.9, 0.4], [0.05, 0.1, 0.2], id="runs disagree"),
    ],
)
def test_a_family_slope_is_the_weighted_mean_with_birges_factor(
    values: list[float], errors: list[float]
) -> None:
    weights = 1 / np.square(errors)
    mean = np.average(values, weights=weights)
    chi_square = np.sum(((np.array(values) - mean) / errors) ** 2)
    birge = max(1.0, chi_square / max(len(values) - 1, 1))

    slope, error = family_slope(slopes(values, errors))

    assert slope == pytest.approx(mean)
    assert error == pytest.approx(np.sqrt(birge / weights.sum()))


@pytest.mark.parametrize(
    ("value", "slope"),
    [
        pytest.param(-0.3, 0.0, id="opposite sign"),
        pytest.param(1.4, 1.0, id="steeper than the machine"),
    ],
)
def test_a_family_slope_is_limited(value: float, slope: float) -> None:
    assert family_slope(slopes([value], [0.1])) == pytest.approx((slope, 0.1))


def test_the_error_of_a_slope_is_scaled_by_the_change_of_the_machine() -> None:
    speeds = np.exp([0.1, 0.2, 0.3, -0.1, 0.0])
    runs = slopes([0.5] * 5, [0.2] * 5, reference_speed=speeds)
    is_a = np.array([True, True, True, False, False])

    found = leveled_component(runs, is_a)

    distance = 0.2 - (-0.05)

    assert found == pytest.approx(((distance * 0.2 / np.sqrt(5)) ** 2, 4.0))


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        pytest.param([9, 33, 57], [20, 44, 68], True, id="mornings and evenings"),
        pytest.param([9, 33, 57], [12.2, 36.2, 60.2], True, id="more than three hours apart"),
        pytest.param([9, 33, 57], [11.8, 35.8, 59.8], False, id="less than three hours apart"),
        pytest.param([23, 49, 71], [30, 54, 78], True, id="one side around midnight"),
        pytest.param([9, 45, 57], [15, 27, 63], False, id="each side around the clock"),
        pytest.param([9, 33, 57], [13, 45, 61], False, id="one side from noon to night"),
        pytest.param([1, 2, 3], [8, 9, 10], False, id="all within a day"),
        pytest.param([9, 33], [20, 44, 68], False, id="two sessions of A"),
        pytest.param([9, 33, 57], [20, 44], False, id="two sessions of B"),
    ],
)
def test_sides_differ_by_the_time_of_day(a: list[float], b: list[float], differ: bool) -> None:
    hours = np.array([*a, *b], dtype=float)
    side = np.repeat([0, 1], [len(a), len(b)])

    assert differ_by_time_of_day(np.arange(len(hours)), side, hours) == differ


@pytest.mark.parametrize(
    ("sessions", "turns"),
    [
        pytest.param("ABAB", [0, 1, 2, 3], id="alternating sides"),
        pytest.param("AABB", [0, 0, 1, 1], id="one side first"),
        pytest.param("ABBA", [0, 1, 1, 2], id="back to the first side"),
        pytest.param("AXXB", [0, 1, 2, 3], id="sessions with both sides"),
    ],
)
def test_successive_sessions_of_a_side_are_one_turn(sessions: str, turns: list[int]) -> None:
    """X marks a session with both sides. The runs are listed in reverse order of time."""
    session = []
    side = []
    for number, name in enumerate(sessions):
        for side_number in {"A": [0], "B": [1], "X": [0, 1]}[name]:
            session.append(number)
            side.append(side_number)
    labels = np.array(session[::-1])

    found = merge_into_turns(labels, np.array(side[::-1]), 10.0 * labels)

    assert (found - found.min()).tolist() == [turns[label] for label in labels]


@pytest.mark.parametrize(
    ("order", "mixed"),
    [
        pytest.param("AB" * 10, True, id="alternating"),
        pytest.param("ABBA" * 5, True, id="counterbalanced"),
        pytest.param("A" * 10 + "B" * 10, False, id="one side first"),
        pytest.param("A" * 5 + "B" * 10 + "A" * 5, False, id="three blocks"),
        pytest.param("AAAAABBBBB" * 2, False, id="four long blocks"),
        # A precedes B in 70 of 100 pairs in the first case, and in 76 in the second. Up to 75 may
        # be due to chance.
        pytest.param("AB" * 4 + "A" * 6 + "B" * 6, True, id="a late imbalance within chance"),
        pytest.param("AB" * 3 + "A" * 7 + "B" * 7, False, id="a late imbalance beyond chance"),
        pytest.param("A" * 8 + "AB" * 4 + "B" * 8, False, id="mixed in the middle"),
        pytest.param("AB", False, id="two runs"),
        pytest.param("ABAB", True, id="four runs"),
        pytest.param("ABAAB", True, id="four blocks of five runs"),
        # By Wald and Wolfowitz, 24 runs have 13 blocks on average, and 1% of orders have fewer than
        # 6.9 blocks. For 22 runs, 1% of orders have fewer than 6.2 blocks.
        pytest.param("AAABBBB" * 3 + "AAA", True, id="seven blocks of 24 runs"),
        pytest.param("AAAABBBB" * 3, False, id="six blocks of 24 runs"),
        pytest.param("AABBBBAAAAABBBAAAABBBB", False, id="six blocks of 22 runs"),
    ],
)
def test_sides_are_mixed_unless_chance_cannot_explain_their_order(order: str, mixed: bool) -> None:
    side = np.array([name == "B" for name in order]).astype(int)

    assert is_mixed(side, np.arange(len(order)) / 60) == mixed


def test_runs_that_begin_together_are_mixed() -> None:
    side = np.repeat([0, 1], 10)
    hours = np.tile(np.arange(10) / 60, 2)

    assert is_mixed(side, hours)


def test_few_random_orders_are_called_blocks() -> None:
    """Two tests at 1% each together reject at most about 2% of random orders."""
    random = np.random.default_rng(1)
    hours = np.arange(40) / 60
    orders = [random.permutation(np.repeat([0, 1], 20)) for _ in range(500)]

    rejected = sum(not is_mixed(side, hours) for side in orders)

    assert 1 <= rejected <= stats.binom.ppf(0.999, 500, 0.02)


def pairs(seconds: list[str], **columns: object) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return runs, points and sides; the sides of a point ran in succession.

    `seconds` names the side, "A" or "B", that ran second at each point.
    """
    side = np.array([number for name in seconds for number in ((0, 1) if name == "B" else (1, 0))])
    point = np.repeat(np.arange(len(seconds)), 2)
    return runs_at((np.arange(len(side)) / 60).tolist(), **columns), point, side


@pytest.mark.parametrize(
    ("seconds", "share"),
    [
        pytest.param(["B"] * 20, 1.0, id="B always second"),
        pytest.param(["A"] * 20, -1.0, id="A always second"),
        pytest.param(["B"] * 18 + ["A"] * 2, 0.8, id="B mostly second"),
        pytest.param(["A", "B"] * 10, 0.0, id="alternating"),
        pytest.param(["B"] * 7, 0.0, id="B second at seven points, p = 1 / 64"),
        pytest.param(["B"] * 8, 1.0, id="B second at eight points, p = 1 / 128"),
    ],
)
def test_the_share_of_points_with_one_side_second_counts_beyond_chance(
    seconds: list[str], share: float
) -> None:
    runs, point, side = pairs(seconds)

    found = follow_share(runs, point, side, np.zeros(len(runs)))

    assert found == pytest.approx(share)


@pytest.mark.parametrize(
    ("columns", "sessions"),
    [
        pytest.param({"sweep_order": "random"}, np.zeros(40), id="random order"),
        pytest.param({}, np.arange(40), id="every run in a separate session"),
        pytest.param({"end_time": START + pd.Timedelta("9h")}, np.zeros(40), id="runs overlap"),
    ],
)
def test_no_side_is_second_in_random_separate_or_overlapping_runs(
    columns: dict[str, object], sessions: np.ndarray
) -> None:
    runs, point, side = pairs(["B"] * 20, **columns)

    assert follow_share(runs, point, side, sessions) == 0


def test_runs_of_different_points_do_not_follow_each_other() -> None:
    runs, _, side = pairs(["B"] * 20)

    assert follow_share(runs, np.arange(40), side, np.zeros(40)) == 0


def test_points_have_positions_in_their_session() -> None:
    hours = [0, 0.1, 0.2, 0.3, 5, 5.1]
    runs = runs_at(hours, sweep_id=["s"] * 4 + ["t"] * 2, point_id=list("abcdef"))

    found = measurement_times(runs, pd.Series(list("fabcde")))

    assert found is not None
    assert found.session.tolist() == [0, 1, 1, 1, 1, 0]
    assert found.position == pytest.approx([0.25, -0.375, -0.125, 0.125, 0.375, -0.25])
    assert np.diff(found.hours[1:]) == pytest.approx(np.diff(hours[:5]))


def test_a_point_measured_in_two_sessions_has_a_separate_session() -> None:
    runs = runs_at([0, 1, 10, 11], sweep_id=["s", "s", "t", "t"], point_id=["a", "b", "b", "c"])

    found = measurement_times(runs, pd.Series(["a", "b", "c"]))

    assert found is not None
    assert len(set(found.session)) == 3
    assert found.position == pytest.approx([0.0, 0.0, 0.0])
    assert np.diff(found.hours) == pytest.approx([5.5, 5.5])


def test_without_start_times_positions_are_zero_and_hours_unknown() -> None:
    runs = pd.DataFrame({"sweep_id": "s", "point_id": ["a", "b"]})

    found = measurement_times(runs, pd.Series(["a", "b"]))

    assert isinstance(found, MeasurementTimes)
    assert found.position.tolist() == [0.0, 0.0]
    assert np.isnan(found.hours).all()


def test_times_are_unknown_if_one_session_is_unknown() -> None:
    runs = pd.DataFrame({"sweep_id": ["s", None], "point_id": ["a", "b"]})

    assert measurement_times(runs, pd.Series(["a", "b"])) is None


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        pytest.param(["p"], ["q"], True, id="different protocols"),
        pytest.param(["p", "q"], ["q"], False, id="one protocol in common"),
        pytest.param(["p"], [None], False, id="unknown on one side"),
        pytest.param(["p"], None, False, id="no column"),
    ],
)
def test_sides_without_a_common_protocol_have_other_protocols(
    a: list[str | None], b: list[str | None] | None, differ: bool
) -> None:
    sides = [pd.DataFrame({} if ids is None else {"protocol_id": ids}) for ids in (a, b)]

    assert have_other_protocols(*sides) == differ


@pytest.mark.parametrize(
    ("cells", "repeats", "is_found"),
    [
        pytest.param(1, 10, False, id="no position with six runs before and after it"),
        pytest.param(4, 3, False, id="eight degrees of freedom"),
        pytest.param(3, 4, True, id="nine degrees of freedom"),
    ],
)
def test_a_speed_step_needs_nine_degrees_of_freedom(
    cells: int, repeats: int, is_found: bool
) -> None:
    count = cells * repeats
    cell = np.tile(np.arange(cells), repeats)
    times = np.arange(count)
    jump = 0.5 * (times >= count // 2)

    found = find_speed_steps(jump + 1e-3 * (times % 5), cell, times)

    expected = jump - jump.mean() if is_found else np.zeros(count)

    assert found.shift == pytest.approx(expected, abs=0.01)
