"""Text formatting: numbers, suggestions for misspelled words, lists of cores, masked logins."""

import difflib
import math
import re
from collections.abc import Iterable
from itertools import groupby

#: The largest number of hosts that a forecast accepts.
MAX_HOSTS = 100_000

#: Number of characters of a misspelled word that are compared.
_MAX_COMPARED_CHARS = 100
#: A known word is suggested only if its similarity (0 to 1) is at least this value.
_MIN_SIMILARITY = 0.6
#: Further suggestions may be less similar than the best suggestion by at most this value.
_SIMILARITY_MARGIN = 0.05
_MAX_SUGGESTIONS = 3


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 point` or `1,200 points`.

    Args:
        count: The number.
        noun: The noun in the singular.
    """
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"


def rounded(value: float, digits: int = 4) -> str:
    """Return a number rounded to significant digits, without exponent.

    Examples: `33,710`, `652.3`, `0.01234`.

    Args:
        value: The number.
        digits: Number of significant digits.
    """
    places = 0
    if value and math.isfinite(value):
        places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(0, places)}f}"


def in_seconds(value: float) -> str:
    """Return a duration as text, in milliseconds, seconds or minutes.

    Args:
        value: The duration in seconds.
    """
    if value < 0.1:
        return f"{1e3 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion such as `did you mean fc? `, with up to three similar known words.

    Case and leading dashes are ignored. If known words have the same letters in a different order,
    only these words are suggested.

    Args:
        word: The misspelled word.
        known: The known words.

    Returns:
        The suggestion with a final space; empty if no known word is similar.
    """
    names = [name for name in dict.fromkeys(known) if name != word]
    typed = _comparable(word)
    suggestions = [name for name in names if sorted(_comparable(name)) == sorted(typed)]
    if not suggestions:
        similarity = {
            name: difflib.SequenceMatcher(None, typed, _comparable(name)).ratio() for name in names
        }
        best = max(similarity.values(), default=0.0)
        threshold = max(_MIN_SIMILARITY, best - _SIMILARITY_MARGIN)
        similar = [name for name in names if similarity[name] >= threshold]
        similar.sort(key=lambda name: -similarity[name])
        suggestions = similar[:_MAX_SUGGESTIONS]
    if not suggestions:
        return ""
    return f"did you mean {' or '.join(suggestions)}? "


def _comparable(word: str) -> str:
    return word.casefold().lstrip("-")[:_MAX_COMPARED_CHARS]


def core_list(text: str) -> list[int]:
    """Return the sorted core numbers in a text such as 0-3,6, the list format of Linux.

    The result is empty if any part of the text is neither a number nor an ascending range.

    Args:
        text: Numbers and ascending ranges, separated by commas.
    """
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not first.isdigit() or not last.isdigit() or int(last) < int(first):
            return []
        cores.update(range(int(first), int(last) + 1))
    return sorted(cores)


def core_text(cores: Iterable[int]) -> str:
    """Return core numbers as text such as 0-3,6; the inverse of `core_list`."""
    texts = []
    # The difference between a core and its position is constant within a range.
    for _, group in groupby(enumerate(sorted(cores)), lambda pair: pair[1] - pair[0]):
        run = [core for _, core in group]
        if len(run) > 1:
            texts.append(f"{run[0]}-{run[-1]}")
        else:
            texts.append(str(run[0]))
    return ",".join(texts)


#: User and password in an address, recognized as SQLAlchemy does. A password may contain slashes
#: and spaces, but not another address.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s]*@|[^:/@\s]*:(?:(?!\w+://)[^@\n])*@)")


def without_secrets(text: str) -> str:
    """Return a text in which user, password and query of every URL are masked."""
    return re.sub(r"\?[^\s]*", "?***", without_logins(text))


def without_logins(text: str) -> str:
    """Return a text in which user and password of every URL are masked."""
    return _LOGIN.sub("***@", text)


def without_credentials(uri: str) -> str:
    """Return a URL without user and password.

    Args:
        uri: The URL, such as postgresql://user:password@host/name.
    """
    return _LOGIN.sub("", uri)
