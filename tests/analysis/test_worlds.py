"""The planted worlds of benchmarks/worlds.py, through a store and the commands: nothing is said
that is not so.
"""

import os
import shutil
from itertools import chain
from pathlib import Path

import pytest
import yaml
from scipy import stats

from benchmarks.worlds import WORLDS, rates

_QUICK = [*chain(*yaml.safe_load(Path(__file__).with_name("quick_worlds.yaml").read_text()))]


def check(world: str, draws: int, database: Path, folder: Path) -> None:
    """A false sentence is said no more often than in 5%, a true one in 80% and more; several draws
    of sixty such rows fail by chance in one table of ten.
    """
    chance = 0.06 if draws == 1 else 0.002
    shutil.copy(database, folder / "mlflow.db")
    for row in rates(world, draws, folder / "mlflow.db"):
        print(row)
        least = stats.binom.isf(1 - chance / 3, row.draws, 0.8)
        most = stats.binom.isf(chance, row.draws, 0.05)
        assert max(least, 1) <= row.times if row.true else row.times <= most, str(row)


@pytest.mark.parametrize("world", _QUICK)
def test_a_draw(world: str, empty_database: Path, tmp_path: Path) -> None:
    check(world, 1, empty_database, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_a_world(world: str, empty_database: Path, tmp_path: Path) -> None:
    check(world, int(os.environ.get("PARADNN_DRAWS", "8")), empty_database, tmp_path)
