"""Planted worlds of benchmarks/calibration.py, analyzed through a store and the commands.

Commands make few false statements and find the planted effects.
"""

import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.calibration import (
    PAGE,
    ROWS,
    Goal,
    Reply,
    Tally,
    check_command_line,
    rate_interval,
    right_verdicts,
    tally,
    true_ratio,
    write_page,
)
from benchmarks.worlds import both

#: Rows with equal sides, or a truth on the bound, on which earlier versions were nearly always
#: wrong. One draw of each is asked in the normal suite.
ONCE_WRONG = [
    "hosts",
    "slow block",
    "creep",
    "protocols",
    "mostly",
    "daily",
    "in order",
    "choices",
    "seeds",
]
#: Rows with an effect so large that one draw decides.
ONCE_MISSED = ["claim, one lost", "claim, rises", "sloped"]
#: Probability that a table fails by chance, for one draw per row and for several draws.
CHANCE_OF_ONE_DRAW = 0.06
CHANCE_OF_SEVERAL_DRAWS = 0.0005


def check(name: str, draws: int, database: Path, folder: Path) -> None:
    """Require that no goal of a row is missed by more than chance explains."""
    chance = CHANCE_OF_ONE_DRAW if draws == 1 else CHANCE_OF_SEVERAL_DRAWS
    store = folder / "mlflow.db"
    shutil.copy(database, store)
    found = tally(name, draws, store)
    for goal in ROWS[name].goals:
        times = found.counts[goal.rate]
        most = stats.binom.isf(chance, found.draws, goal.at_most)
        least = stats.binom.ppf(chance, found.draws, goal.at_least)
        assert least <= times <= most, f"{name}: {goal}, but {times} of {found.draws}"


@pytest.mark.parametrize("name", [*ONCE_WRONG, *ONCE_MISSED])
def test_one_draw(name: str, empty_database: Path, tmp_path: Path) -> None:
    check(name, 1, empty_database, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_several_draws(name: str, empty_database: Path, tmp_path: Path) -> None:
    draws = int(os.environ.get("PARADNN_DRAWS", "12"))

    check(name, draws, empty_database, tmp_path)


def test_command_line_gives_the_same_answer(empty_database: Path, tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    shutil.copy(empty_database, store)

    check_command_line("power", store)


@pytest.mark.parametrize(
    ("ratio", "verdicts"),
    [
        pytest.param(1.0, {"equal"}, id="equal"),
        pytest.param(1.04, {"equal", "faster"}, id="within the margin"),
        pytest.param(1.06, {"faster"}, id="faster"),
        pytest.param(0.5, {"slower"}, id="slower"),
    ],
)
def test_right_verdicts(ratio: float, verdicts: set[str]) -> None:
    assert set(right_verdicts(ratio)) == verdicts


def test_truth_is_that_of_the_points_which_both_sides_ran() -> None:
    truth = np.log([[1.0], [4.0], [100.0]])
    frame = both(np.zeros((2, 3, 1)), np.zeros((2, 3, 1)), {"model.nodes": 3}, truth)
    is_lost = (frame["precision"] == "float32") & (frame["model.nodes"] == 2**7)

    ratio = true_ratio(frame[~is_lost])

    assert ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("times", "state"),
    [
        pytest.param(5, "yes", id="on the limit"),
        pytest.param(9, "not shown", id="within the sampling error"),
        pytest.param(20, "no", id="missed"),
    ],
)
def test_goal_states(times: int, state: str) -> None:
    assert Goal("false", at_most=0.05).state(times, 100) == state


def test_tally_counts_an_open_interval_as_covering() -> None:
    found = Tally("hosts")

    found.add(Reply("faster", 1.1, math.nan, truth=1.0, right=("equal",)))
    found.add(Reply("equal", 0.9, math.nan, truth=1.0, right=("equal",)))
    found.add(Reply("undecided", 0.9, 1.1, truth=1.0))

    assert found.counts["covered"] == 2
    assert found.counts["false"] == 1
    assert found.counts["right"] == 1
    assert found.counts["decided"] == 2


def test_rate_interval_of_no_case() -> None:
    low, high = rate_interval(0, 60)

    # The upper end p of no case in n draws solves (1 - p)^n = 2.5%.
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 60))


def test_page_keeps_its_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Before\n<!-- calibration -->\nold\n<!-- end of calibration -->\nafter\n")
    found = Tally("hosts")
    found.add(Reply("undecided", 0.9, 1.1, truth=1.0))

    write_page([found.record()], page)

    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("<!-- end of calibration -->\nafter\n")
    assert "old" not in text
    assert ROWS["hosts"].world in text
    assert "1 meet their goals" in text


def test_page_has_the_generated_part() -> None:
    assert "<!-- calibration -->\n\nOf " in PAGE.read_text(encoding="utf-8")
