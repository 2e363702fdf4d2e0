"""A few draws of the planted worlds of benchmarks/worlds.py: no sentence that is not so, and what is there is found."""

from __future__ import annotations

import pytest

from benchmarks.worlds import rates

#: What must not be said even once in ten draws; over 100 draws it is at most 5% (docs/analysis.md).
_NEVER = (
    *("hosts", "slow block", "blocks", "protocols", "choices"),
    *(pytest.param(world, marks=pytest.mark.long) for world in ("sessions", "late", "nothing small")),
)


@pytest.mark.parametrize("world", _NEVER)
def test_equal_sides_are_not_told_apart(world: str) -> None:
    for row in rates([world], 8):
        assert row["rate"] <= 1 / 8, row


@pytest.mark.long
def test_points_that_one_side_alone_ran_move_no_interval_beyond_the_truth() -> None:
    """Bounds hold where no ratio is more extreme than those measured: 55% missed it without."""
    assert all(row["rate"] <= 0.2 for row in rates(["memory"], 12))


@pytest.mark.parametrize("world", ["all won", "one lost", pytest.param("power", marks=pytest.mark.long)])
def test_what_is_there_is_found(world: str) -> None:
    (row,) = rates([world], 8)
    assert row["rate"] >= 5 / 8, row


@pytest.mark.long
def test_a_half_per_cent_is_the_same() -> None:
    rows = {row["said"]: row["rate"] for row in rates(["small"], 8)}
    assert rows["compare: a difference"] == 0
    assert rows["compare: the same"] >= 7 / 8


@pytest.mark.parametrize("world", ["levels", "resumed", "even"])
def test_values_and_sessions_that_differ_are_no_slope(world: str) -> None:
    (row,) = rates([world], 20, seed=1)
    assert row["rate"] <= 3 / 20, row


def test_a_slope_over_four_values_is_found() -> None:
    (row,) = rates(["sloped"], 10)
    assert row["rate"] >= 7 / 10
