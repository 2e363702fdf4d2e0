"""Counts as a person writes them, and words that a person may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Numbers of hosts that a forecast is made for.
MOST_HOSTS = 100_000

_LONGEST = 100  # characters of a word that are looked at
_ALIKE = 0.6  # from here on two words may be the same, misspelt
_AS_GOOD = 0.05  # so much less alike a second proposal may be than the first


def counted(count: int, noun: str) -> str:
    """A number and what it counts: `1 point`, `1,200 points`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean fc? `, with up to three of `known` that are spelt like `word`, in any case; empty where none is."""
    names, typed = [name for name in dict.fromkeys(known) if name != word], word.casefold()[:_LONGEST]
    swapped = [name for name in names if sorted(name.casefold()) == sorted(typed)]
    alike = {name: difflib.SequenceMatcher(None, typed, name.casefold()).ratio() for name in names}
    best = max(alike.values(), default=0.0)
    close = [name for name in names if alike[name] >= max(_ALIKE, best - _AS_GOOD)]
    proposed = swapped or sorted(close, key=lambda name: -alike[name])[:3]
    return f"did you mean {' or '.join(proposed)}? " if proposed else ""
