"""Sessions of runs, missing replicates, processes, and changes of the machine's speed."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.analyses.compare import compare_points
from analysis.sides import describe_confounding
from paradnn.statistics.contrast import Contrast
from paradnn.statistics.sessions import (
    assign_sessions,
    find_speed_steps,
)
from tests.analysis.test_pairing import side

START = pd.Timestamp("2026-01-01", tz="UTC")


def runs_at(
    hours: list[float], sweep: list[str] | list[str | None] | str | None = None, **columns: object
) -> pd.DataFrame:
    """Return runs that started at the given hours after START."""
    seconds = 3600 * np.array(hours)
    frame = {"start_time": START + pd.to_timedelta(seconds, unit="s"), "sweep_id": sweep}
    return pd.DataFrame(frame | columns)


def planted(seed: int, sweeps: int, together: bool) -> list[pd.DataFrame]:
    """Return two equally fast sides of 12 points.

    Each sweep contains one run per point; a single sweep contains three. Runs scatter by 1%, and
    sweeps also scatter by 1%.

    Args:
        seed: Seed of the random numbers.
        sweeps: Number of sweeps.
        together: Whether both sides are in the same sweeps.
    """
    random = np.random.default_rng(seed)
    shifts = random.normal(0, 0.01, (2, sweeps))
    sweep = np.tile(np.arange(max(sweeps, 3)) % sweeps, 12)
    sides = []
    for number, name in enumerate("AB"):
        group = 0 if together else number
        logs = shifts[group][sweep] + random.normal(0, 0.01, len(sweep))
        hours = 10 * (2 * sweep + group) + random.permutation(len(sweep)) / 60
        frame = side(100 * np.exp(logs).reshape(12, -1), name)
        frame["sweep_id"] = np.char.add("both" if together else name, sweep.astype(str))
        frame["start_time"] = START + pd.to_timedelta(3600 * hours, unit="s")
        sides.append(frame)
    return sides


def test_a_session_is_a_sweep_or_a_series_of_runs_without_a_pause() -> None:
    runs = runs_at(
        [0, 0.1, 5, 5.2, 5.3, 9],
        ["s1", None, None, None, None, "s1"],
        host=["h", "h", "h", "h", "i", "h"],
    )

    names = assign_sessions(runs)

    assert names[0] == names[5], "one sweep is one session despite a pause"
    assert names[2] == names[3], "without a sweep, runs without a pause are one session"
    assert len({names[0], names[1], names[2], names[4]}) == 4


def test_a_sweep_that_continues_after_a_pause_has_two_sessions() -> None:
    runs = runs_at([0, 5], "s1", host="h", session_id=["x", "y"])

    names = assign_sessions(runs)

    assert names[0] != names[1]


def test_runs_on_two_hosts_are_two_sessions() -> None:
    names = assign_sessions(runs_at([0, 0.1], "s1", host=["h", "i"]))

    assert names[0] != names[1]


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(runs_at([0, 1], "s", source="published"), id="published"),
        pytest.param(pd.DataFrame({"family": ["fc", "fc"]}), id="no time"),
    ],
)
def test_sessions_of_published_and_undated_runs_are_unknown(runs: pd.DataFrame) -> None:
    assert list(assign_sessions(runs)) == [None, None]


@pytest.mark.parametrize("loss", ["deleted", "failed"])
def test_a_side_with_missing_replicates_allows_for_a_selection_bias(loss: str) -> None:
    """A third of B's replicates is missing.

    The mean of B may therefore be biased by phi(z) / (2 / 3) times the scatter.
    """
    a, b = planted(1, 1, together=True)
    complete = compare_points(a, b)
    is_first = b["replicate"].eq(0)
    if loss == "deleted":
        b = b[~is_first]
    else:
        b = b.assign(outcome=b["outcome"].mask(is_first, "timeout"))

    found = compare_points(a, b)

    bias = found.total["bias"]
    expected = stats.norm.pdf(stats.norm.ppf(2 / 3)) / (2 / 3) * 0.01

    assert bias == pytest.approx(expected, rel=0.5)
    assert complete.total["bias"] == 0
    assert found.total["geometric_mean_high"] > found.total["geometric_mean"] * np.exp(bias)

    limits = [*describe_confounding(Contrast.of(found.cells, "all"))]
    assert any("A lacks 0 replicates and B lacks 12" in limit for limit in limits)


def test_sides_that_lack_the_same_replicates_are_not_biased() -> None:
    a, b = (frame[frame["replicate"].gt(0)] for frame in planted(1, 1, together=True))

    assert compare_points(a, b).total["bias"] == 0


@pytest.mark.parametrize(
    ("shifts", "verdict"),
    [
        pytest.param([0.3, 0.1, -0.1, 0.1], "undecided", id="sessions disagree"),
        pytest.param([0.1] * 4, "faster", id="sessions agree"),
    ],
)
def test_the_interval_includes_the_scatter_of_the_ratio_between_sessions(
    shifts: list[float], verdict: str
) -> None:
    """In each session each side has its own worker, whose memory layout affects its speed."""
    a, b = planted(1, 4, together=True)
    a["examples_per_second"] *= np.exp(np.tile(shifts, 12))

    families = compare_points(a, b).families

    assert families["verdict"].tolist() == [verdict]


def test_copies_of_runs_do_not_narrow_the_interval() -> None:
    a, b = planted(1, 3, together=False)
    with_copies = [
        pd.concat([frame, frame.assign(run_id=frame["run_id"] + "x", replicate=9)])
        for frame in (a, b)
    ]

    without_copies = compare_points(a, b)
    found_with_copies = compare_points(with_copies[0], with_copies[1])

    assert without_copies.cells["a_units"].eq(3).all()
    assert found_with_copies.cells["a_units"].eq(3).all()

    for end in ("low", "high"):
        assert found_with_copies.total[f"geometric_mean_{end}"] == pytest.approx(
            without_copies.total[f"geometric_mean_{end}"], rel=0.01
        )


def sides_of_processes(processes: int, points: int) -> list[pd.DataFrame]:
    """Return two equal sides with one run per point; processes scatter by 3%.

    With one process, the recorded interval covers only the scatter within the process, 0.3%, and is
    far too narrow.
    """
    random = np.random.default_rng(2)
    sides = []
    for name in "AB":
        logs = random.normal(0, 0.03, (points, 5))
        half_width: Any = 0.003
        if processes == 5:
            half_width = stats.t.ppf(0.975, 4) * logs.std(axis=1, ddof=1) / np.sqrt(5)
        frame = side(100 * np.exp(logs.mean(axis=1))[:, None], name)
        rate = frame["examples_per_second"]
        frame["examples_per_second_low"] = rate * np.exp(-half_width)
        frame["examples_per_second_high"] = rate * np.exp(half_width)
        sides.append(frame.assign(processes=processes))
    return sides


def false_differences(cells: pd.DataFrame) -> int:
    return int(((cells["speedup_low"] > 1) | (cells["speedup_high"] < 1)).sum())


def test_one_process_per_point_gets_the_scatter_of_the_prior() -> None:
    cells = compare_points(*sides_of_processes(1, points=600)).cells

    assert set(cells["interval_source"]) == {"prior"}
    assert false_differences(cells) <= 30, "5% of 600"


def test_intervals_of_five_processes_have_the_nominal_error_rate() -> None:
    cells = compare_points(*sides_of_processes(5, points=600)).cells

    assert set(cells["interval_source"]) == {"processes"}
    assert 10 <= false_differences(cells) <= 48, "5% of 600, within chance"


RUNS = 162
#: Random positions in time of the runs.
PLACE = np.random.default_rng(0).permutation(RUNS)
#: Cells of the runs, three runs per cell.
CELLS = np.repeat(np.arange(54), 3)


def noise(seed: int) -> np.ndarray:
    """Return logarithms of speeds: cells scatter by 30%, and runs within a cell by 1%."""
    random = np.random.default_rng(seed)
    return random.normal(0, 0.3, 54)[CELLS] + random.normal(0, 0.01, RUNS)


@pytest.mark.parametrize(
    ("shift", "changes"),
    [
        pytest.param(np.zeros(RUNS), 0, id="no change"),
        pytest.param(-0.08 * (PLACE >= 81), 1, id="one step"),
        pytest.param(-0.2 * ((PLACE >= 60) & (PLACE < 100)), 2, id="a step and back"),
        pytest.param(-0.1 * PLACE / (RUNS - 1), 1, id="drift"),
    ],
)
def test_lasting_speed_changes_in_a_session_are_removed(shift: np.ndarray, changes: int) -> None:
    steps = find_speed_steps(shift + noise(1), CELLS, PLACE)

    tolerance = 0.01 if changes else 0.0

    assert steps.shift == pytest.approx(shift - shift.mean(), abs=tolerance)
    assert steps.variance_inflation == 108 / (108 - 3 * changes)
    assert not steps.drifts


def test_a_machine_that_changes_too_often_is_called_drifting() -> None:
    levels = np.random.default_rng(2).normal(0, 0.05, 17)[PLACE // 10]

    assert find_speed_steps(levels + noise(1), CELLS, PLACE).drifts
