"""`from paradnn import compare`: which of two functions, commands or words of the command line is faster, in Python.

from paradnn import compare
answer = compare(old, new, minutes=2)          # functions without arguments, of the top level of a file
answer = compare("python old.py", "python new.py")
assert answer.verdict != "slower", answer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paradnn.compare.commands import Command, Metric, Turns, follow
from paradnn.compare.duet import Duet, is_function, named
from paradnn.compare.text import answer
from paradnn.compare.verdict import Rule


@dataclass(frozen=True)
class Answer:
    """How many times as fast the first side is as the second, with its 95% interval; None after too few rounds.

    verdict: `faster`, `slower`, `equal` or `undecided`, of the first side. problem: why none. turns: every run.
    """

    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    rounds: int
    seconds: float
    problem: str | None
    turns: Turns = field(repr=False)

    def __str__(self) -> str:
        return self.turns.sentence()


def compare(
    first: Callable[[], Any] | str,
    second: Callable[[], Any] | str,
    *,
    minutes: float = 2.0,
    within: float = 0.02,
    equivalence: float = 0.02,
    timeout: float = 600.0,
) -> Answer:
    """Run both by turns in fresh processes until half the 95% interval is below `within`, or for so many minutes.

    Functions are called by finer turns (`paradnn.compare.duet`), commands one after the other. Differences below
    `equivalence` do not matter. ConfigError for what cannot be started.
    """
    words = named(first), named(second)
    kind = Duet if all(map(is_function, words)) else Turns
    one, two = (Command(word, word) for word in words)
    turns = kind((one, two), Rule(within, equivalence, most=640), Metric(), minutes=minutes, timeout=timeout)
    if follow(turns):
        raise KeyboardInterrupt
    found = answer(turns.estimate, equivalence, len(turns.rounds), turns.seconds, turns.problem)
    return Answer(**found, turns=turns)
