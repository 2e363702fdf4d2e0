"""Planted worlds of benchmarks/worlds.py, analysed through a store and the commands.

Commands make no false statement and find the planted effects.
"""

import os
import shutil
from pathlib import Path

import pytest
from scipy import stats

from benchmarks.worlds import WORLDS, rates

#: Worlds that failed in nearly every draw before the commands handled them.
ONCE_WRONG = [
    "hosts",
    "slow block",
    "creep",
    "protocols",
    "one lost",
    "mostly",
    "daily",
    "in order",
    "sloped",
    "channel, one",
]
#: Worlds in which only chance or the planted effect decides a command's conclusion.
DECIDED_BY_CHANCE = [
    "choices",
    "seeds",
    "stepped",
    "memory",
    "levels, claim",
    "scattered",
    "cells",
    "power, sessions",
]
#: Probability that a table fails by chance, for one draw per world and for several draws. Sixty
#: rows of several draws fail by chance in one table of ten.
CHANCE_OF_ONE_DRAW = 0.06
CHANCE_OF_SEVERAL_DRAWS = 0.002


def check(world: str, draws: int, database: Path, folder: Path) -> None:
    """Require false statements in at most 5% of the draws and true statements in at least 80%."""
    chance = CHANCE_OF_ONE_DRAW if draws == 1 else CHANCE_OF_SEVERAL_DRAWS
    store = folder / "mlflow.db"
    shutil.copy(database, store)
    for row in rates(world, draws, store):
        print(row)
        if row.true:
            # Power: at least 80% of the draws make a true statement.
            least = stats.binom.isf(1 - chance / 3, row.draws, 0.8)
            assert row.times >= max(least, 1), str(row)
        else:
            most = stats.binom.isf(chance, row.draws, 0.05)
            assert row.times <= most, str(row)


@pytest.mark.parametrize("world", [*ONCE_WRONG, *DECIDED_BY_CHANCE])
def test_one_draw(world: str, empty_database: Path, tmp_path: Path) -> None:
    check(world, 1, empty_database, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_several_draws(world: str, empty_database: Path, tmp_path: Path) -> None:
    draws = int(os.environ.get("PARADNN_DRAWS", "8"))

    check(world, draws, empty_database, tmp_path)
