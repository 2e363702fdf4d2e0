"""Interleaved blocks of two functions, timed by a planted clock."""

import itertools
from pathlib import Path

import pytest

import paradnn.compare
from paradnn.core.errors import ConfigError
from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, Rule

#: Module with a planted clock, which each function advances by a known time. Each call is logged.
CLOCK = """
import os, time
now = [0.0]
time.perf_counter = lambda: now[0]
def _spend(name, seconds):
    now[0] += seconds
    with open("log", "a") as log:
        log.write(f"{name} {os.getpid()}\\n")
def one(): _spend("one", 0.025)
def two(): _spend("two", 0.05)
def fails(): raise ValueError("no such thing")
def leaves(): os._exit(5)
"""


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write CLOCK into the current folder, and return the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clock.py").write_text(CLOCK)
    return tmp_path


def test_the_ratio_of_two_functions_follows_from_their_planted_times(clock: Path) -> None:
    answer = paradnn.compare("clock.py:one", "clock.py:two")
    assert answer.ratio == pytest.approx(2.0)
    assert answer.verdict == "faster"
    assert answer.rounds == 5
    assert answer.rule == Rule(most=COMMAND_ROUNDS)
    assert answer.protocol.minutes == 2
    assert str(answer).startswith("clock.py:one is 2.0000 times as fast as clock.py:two")
    assert answer.values(0) == [pytest.approx(0.025)] * 50


def test_blocks_of_both_functions_alternate_in_fresh_processes(clock: Path) -> None:
    paradnn.compare("clock.py:one", "clock.py:two")
    calls = [line.split() for line in (clock / "log").read_text().splitlines()]
    pids = {name: [pid for caller, pid in calls if caller == name] for name in ("one", "two")}

    assert {name: len(set(found)) for name, found in pids.items()} == {
        "one": 6,
        "two": 6,
    }, "one process per function for each of five rounds and for the warm-up"

    last_pids = {found[-1] for found in pids.values()}
    last_round = [name for name, pid in calls if pid in last_pids]
    changes = sum(first != second for first, second in itertools.pairwise(last_round))

    assert changes > 10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("fails", "exit code 1 (ValueError: no such thing)", id="exception"),
        pytest.param("leaves", "exit code 5", id="exit"),
    ],
)
def test_a_function_that_fails_has_no_verdict(clock: Path, name: str, reason: str) -> None:
    answer = paradnn.compare("clock.py:one", f"clock.py:{name}")
    assert answer.verdict == "undecided"
    assert answer.problem == f"clock.py:{name} failed: {reason}"


@pytest.mark.parametrize("word", ["nowhere.py:f", "clock.py:three", "no.such.module:f"])
def test_a_function_that_does_not_exist_is_rejected(clock: Path, word: str) -> None:
    with pytest.raises(ConfigError, match=r"^function="):
        paradnn.compare("clock.py:one", word)


def test_a_function_that_other_processes_cannot_import_is_rejected() -> None:
    with pytest.raises(ConfigError, match="define it at the top level of a file"):
        paradnn.compare(lambda: None, "true")
