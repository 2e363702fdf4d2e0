"""Sides that stand in different sessions, or one after the other, get no verdict; what to run is
said instead.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from analysis.analyses.compare import compare_points
from paradnn.statistics.sessions import (
    Design,
    SessionOverlap,
    arrange,
    sampling,
    session_component,
    sessions_of,
    steps,
)
from tests.analysis.test_pairing import side

START = pd.Timestamp("2026-01-01", tz="UTC")


def design_of(a: pd.DataFrame, b: pd.DataFrame) -> Design:
    """How sides stand, of one point unless they name some."""
    return arrange(a, b, pd.concat([a, b])["point"].to_numpy() if "point" in a else None).design


def at(hours: list[float], sweep: list[str] | str | None = None, **columns: object) -> pd.DataFrame:
    """Runs that began at these hours."""
    frame = {
        "start_time": START + pd.to_timedelta(3600 * np.array(hours), unit="s"),
        "sweep_id": sweep,
    }
    return pd.DataFrame(frame | columns)


def planted(
    seed: int, sweeps: int, together: bool, true: float = 0.0, effect: float = 0.01
) -> list[pd.DataFrame]:
    """Two sides of 12 points with three replicates, or one in each sweep, that scatter by 1%, as do
    sweeps.
    """
    random = np.random.default_rng(seed)
    sides = []
    shift = random.normal(0, effect, (2, sweeps))
    for number, name in enumerate("AB"):
        which = np.tile(np.arange(max(sweeps, 3)) % sweeps, 12)
        own = 0 if together else number
        logs = true * (number == 0) + shift[own][which] + random.normal(0, 0.01, len(which))
        frame = side(100 * np.exp(logs).reshape(12, -1), name)
        hours = 10 * (2 * which + own) + random.permutation(len(which)) / 60
        label = np.char.add("both" if together else name, which.astype(str))
        sides.append(
            frame.assign(sweep_id=label, start_time=START + pd.to_timedelta(3600 * hours, unit="s"))
        )
    return sides


def test_a_session_is_a_sweep_or_runs_without_a_pause() -> None:
    runs = at(
        [0, 0.1, 5, 5.2, 5.3, 9],
        ["s1", None, None, None, None, "s1"],
        host=["h", "h", "h", "h", "i", "h"],
    )
    names = sessions_of(runs)
    assert names[0] == names[5]
    assert names[2] == names[3]
    assert len({names[0], names[1], names[2], names[4]}) == 4
    other = sessions_of(runs.assign(session_id=["x", "x", "x", "x", "x", "y"]))
    assert other[0] != other[5], "a sweep that went on after a pause"
    assert sessions_of(runs.assign(host="i"))[0] != names[0]
    assert list(sessions_of(runs.assign(source="published"))) == [None] * 6
    assert list(sessions_of(pd.DataFrame({"family": ["fc"]}))) == [None]


SIDES = yaml.safe_load(Path(__file__).with_name("standing.yaml").read_text())


@pytest.mark.parametrize("row", SIDES, ids=str)
def test_how_sides_stand_in_time(row: dict[str, Any]) -> None:
    a = at(**row["a"])
    b = at(**row["b"])
    standing = SessionOverlap[row["standing"]]
    design = design_of(a, b)
    assert design.standing is standing
    assert design.comparable == (standing in (SessionOverlap.TOGETHER, SessionOverlap.REPEATED))
    assert ("python -m paradnn.compare" in design.text()) != design.comparable


def test_sides_of_one_sweep_stand_together_where_chance_ordered_them() -> None:
    """One point a side always begins before the other; so do three of three in a tenth of all
    random orders.
    """
    a, b = (at(hours, "s", host="h", sweep_order="random") for hours in ([0, 1, 2], [3, 4, 5]))
    assert design_of(a, b).comparable
    assert not design_of(a.assign(sweep_order="given"), b).comparable


def test_a_side_that_lacks_more_of_its_replicates_gets_no_verdict() -> None:
    """They failed, or were deleted, and those that are left may be the fast ones; what both lack is
    chance.
    """
    a, b = planted(1, 1, together=True)
    kept = b[b["replicate"].gt(0)]
    first = b["replicate"].eq(0)
    for other in (kept, b.assign(outcome=b["outcome"].mask(first, "timeout"))):
        found = compare_points(a, other).cells
        assert "A lacks 0 replicates and B 12" in sampling(found, "fc").design.text()
    assert compare_points(a[a["replicate"].gt(0)], kept).cells["comparable"].all()


@pytest.mark.parametrize(
    ("luck", "verdict"), [([0.3, 0.1, -0.1, 0.1], "no difference shown"), ([0.1] * 4, "A better")]
)
def test_how_the_ratio_differs_from_session_to_session_counts(
    luck: list[float], verdict: str
) -> None:
    """A worker of each side, with a memory layout of its own, in each of four sessions of both."""
    a, b = planted(1, 4, together=True)
    a["examples_per_second"] *= np.exp(np.tile(luck, 12))
    assert compare_points(a, b).families["verdict"].tolist() == [verdict]


def test_what_sessions_add_is_the_scatter_of_their_means() -> None:
    logs = np.array([[1.0, 1.2, 0.9], [2.0, 2.2, 1.9]])
    points = np.repeat(["p", "q"], 3)
    sessions = np.tile(["a", "b", "c"], 2)
    found = session_component(logs.ravel(), points, sessions)
    assert found == pytest.approx((np.var([1.5, 1.7, 1.4], ddof=1) / 3, 2))
    assert (
        session_component(np.arange(3.0), np.array(["p", "q", "r"]), np.array(["a", "b", "c"]))
        is None
    )


def test_a_cell_of_several_sessions_is_tested_over_their_means() -> None:
    a, b = (one[one["batch_size"] == 64] for one in planted(1, 3, together=False))
    twice = [
        pd.concat([one, one.assign(run_id=one["run_id"] + "x", replicate=9)]) for one in (a, b)
    ]
    row, again = (compare_points(*sides).cells.iloc[0] for sides in ((a, b), twice))
    assert row["a_units"] == again["a_units"] == 3
    logs = [np.log(one["examples_per_second"].iloc[:3]) for one in (a, b)]
    expected = stats.ttest_ind(*logs, equal_var=False).pvalue
    assert [row["p_value"], again["p_value"]] == pytest.approx([expected, expected])


def test_one_process_a_point_is_never_clear_and_five_are_at_their_rate() -> None:
    random = np.random.default_rng(2)
    counts = {}
    for processes in (1, 5):
        sides = []
        for name in "AB":
            inside = random.normal(0, 0.03, (600, 5))
            if processes == 5:
                half = stats.t.ppf(0.975, 4) * inside.std(axis=1, ddof=1) / np.sqrt(5)
            else:
                half = 0.003
            frame = side(100 * np.exp(inside.mean(axis=1))[:, None], name).assign(
                processes=processes
            )
            for end, sign in (("low", -1), ("high", 1)):
                frame[f"examples_per_second_{end}"] = frame["examples_per_second"] * np.exp(
                    sign * half
                )
            sides.append(frame)
        cells = compare_points(*sides).cells
        found = cells[cells["tested"]]
        counts[processes] = int(((found["speedup_low"] > 1) | (found["speedup_high"] < 1)).sum())
        if processes == 5:
            assert set(cells["interval_source"]) == {"processes"}
            assert cells["tested"].all()
    assert counts[1] == 0
    assert 10 <= counts[5] <= 48, "5% of 600 and what chance adds"


@pytest.mark.parametrize(
    ("size", "places"), [(0.0, ()), (-0.08, (81,)), (-0.2, (60, 100)), (-0.1, None)]
)
def test_lasting_changes_in_a_session_are_found_and_nothing_else(
    size: float, places: tuple[int, ...] | None
) -> None:
    """Steps, one there and one back again, and a steady drift, from what repeats; cells may differ
    by any amount.
    """
    random = np.random.default_rng(0)
    place = random.permutation(162)
    cells = np.repeat(np.arange(54), 3)
    moved = size * (
        place / 161 if places is None else np.searchsorted(places, place, side="right") % 2
    )
    logs = moved + random.normal(0, 0.3, 54)[cells] + random.normal(0, 0.01, 162)
    found, taken, wanders = steps(logs, cells, place)
    assert found == pytest.approx(moved - moved.mean(), abs=0.01 * bool(size))
    changes = 1 if places is None else len(places)
    assert (taken, wanders) == (108 / (108 - 3 * changes), False)
    levels = random.normal(0, 0.05, 17)[
        place // 10
    ]  # a new one every ten runs, more than steps there are
    assert steps(logs + levels, cells, place)[2]
