"""Counts as a person writes them, and words that a person may have meant."""

import difflib
import math
import re
from collections.abc import Iterable
from itertools import groupby

#: Numbers of hosts that a forecast is made for.
MOST_HOSTS = 100_000

_LONGEST = 100  # characters of a word that are looked at
_ALIKE = 0.6  # from here on two words may be the same, misspelt
_AS_GOOD = 0.05  # so much less alike a second proposal may be than the first


def counted(count: int, noun: str) -> str:
    """A number and what it counts: `1 point`, `1,200 points`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def rounded(value: float, digits: int = 4) -> str:
    """A number to so many significant digits, and never with an exponent: `33,710`, `652.3`,
    `0.01234`.
    """
    if value and math.isfinite(value):
        places = digits - 1 - math.floor(math.log10(abs(value)))
    else:
        places = 0
    return f"{round(value, places):,.{max(0, places)}f}"


def in_seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value < 0.1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean fc? `, with up to three of `known` that are spelt like `word`, in any case;
    empty where none is.
    """
    names = [name for name in dict.fromkeys(known) if name != word]
    typed = word.casefold()[:_LONGEST]
    swapped = [name for name in names if sorted(name.casefold()) == sorted(typed)]
    alike = {name: difflib.SequenceMatcher(None, typed, name.casefold()).ratio() for name in names}
    best = max(alike.values(), default=0.0)
    close = [name for name in names if alike[name] >= max(_ALIKE, best - _AS_GOOD)]
    proposed = swapped or sorted(close, key=lambda name: -alike[name])[:3]
    return f"did you mean {' or '.join(proposed)}? " if proposed else ""


def core_list(text: str) -> list[int]:
    """The cores in a list as the kernel writes it, 0-3,6, in their order; none where a part is no
    number or range.
    """
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
            return []
        cores |= set(range(int(first), int(last or first) + 1))
    return sorted(cores)


def core_text(cores: Iterable[int]) -> str:
    """The same the other way round."""
    runs = [
        [core for _, core in run]
        for _, run in groupby(enumerate(sorted(cores)), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


#: User and password, as SQLAlchemy divides an address: a password may hold / and blanks, and no
#: other address.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s]*@|[^:/@\s]*:(?:(?!\w+://)[^@\n])*@)")


def without_secrets(text: str) -> str:
    """An address, or a text with some, with user, password and query cut out, since they may be
    credentials.
    """
    return re.sub(r"\?[^\s]*", "?***", without_logins(text))


def without_logins(text: str) -> str:
    """The same with user and password alone cut out."""
    return _LOGIN.sub("***@", text)


def without_credentials(uri: str) -> str:
    """The address without user and password: usable where they come from the environment."""
    return _LOGIN.sub("", uri)
