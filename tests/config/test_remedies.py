"""Remedies in error messages about points lead to a valid point."""

import re
import shlex

import pytest

from paradnn.core.errors import ConfigError
from tests.config.test_points import REJECTED, point

#: Starts of open remedies, which leave the value or the key to the user.
OPEN_REMEDIES = (
    "choose a batch_size that is a multiple of ",
    "choose a larger value",
    "choose a port of at most ",
    "choose a divisor of ",
    "choose a multiple of ",
    "choose a smaller batch size",
    "choose a smaller filter, or more padding",
    "choose another model",
    "choose smaller sizes",
    "give bytes, a number with KiB, MiB, GiB or GB, or auto",
    "give either the interpreter or the requirements",
    "give software.requirements too",
    "keys of data: ",
    "lower it, or raise learn.epochs",
    "lower it, or raise measure.timeout",
    "omit software",
    "quote it: ",
    "raise the rate or measure.timeout",
    "see measure=... in --help",
    "set batch_size to a multiple of ",
    "set endpoint.first_token_ms, endpoint.token_ms or endpoint.request_ms",
    "set it to the path of the files",
    "use a name that begins with one of ",
    "write http://host:port/v1, without a password",
    "write model.build=my_models.py:make_net, or package.module:make_net",
)
_VALUE = r"(\[[^\]]*\]|[\w.,+-]*\w)"
_MAX_STEPS = 6


def error_of(words: str) -> str:
    """Return the error of a point; empty if the point is valid."""
    try:
        point(words)
    except ConfigError as error:
        return str(error)
    return ""


def follow(words: str, error: str) -> str | None:
    """Apply the first remedy of an error to the overrides; return None if the remedy is open."""
    key = error.partition("=")[0]
    problem, _, remedy = error.partition("; ")
    others = shlex.join(word for word in shlex.split(words) if not word.startswith(f"{key}="))
    suggestion = re.search(r"did you mean (\w+)\?", remedy)
    if suggestion and "no such key" in problem:
        group = key.rpartition(".")[0]
        return words.replace(f"{key}=", f"{group}.{suggestion[1]}=")
    if suggestion:
        return f"{others} {key}={suggestion[1]}"
    if "has no batch; omit it" in error:
        return f"{others} batch_size=1"  # the default of a model without a batch
    if remedy.startswith("omit it"):
        return others
    bound = re.search(r"must be at (?:least|most) ([\d.e+-]+)", problem)
    if bound:
        return f"{others} {key}={bound[1]}"
    if remedy.startswith(OPEN_REMEDIES):
        return None
    proposed = re.search(rf"\b([a-z][\w.]*=){_VALUE}", remedy)
    if proposed:
        return f"{others} {proposed[1]}{proposed[2]}"
    raised = re.search(r"raise ([\w.]+) to (\d+)", remedy)
    if raised:
        return f"{words} {raised[1]}={raised[2]}"
    value = re.search(rf"(?:choose one of|for example, write|as in) '?{_VALUE}", remedy)
    assert value, f"no known remedy in: {error}"
    quotes = '"' if "in quotes" in remedy else ""
    return f"{others} '{key}={quotes}{value[1].partition(',')[0]}{quotes}'"


def follow_all(words: str) -> list[str]:
    """Follow remedies until the point is valid or a remedy is open; return the errors.

    Raises:
        AssertionError: If the remedies lead to neither within _MAX_STEPS steps.
    """
    errors = []
    for _ in range(_MAX_STEPS):
        error = error_of(words)
        if not error:
            return errors
        errors.append(error)
        corrected = follow(words, error)
        if corrected is None:
            return errors
        words = corrected
    raise AssertionError("the remedies lead in circles:\n" + "\n".join(errors))


INVALID_OVERRIDES = [
    f"{base} {overrides}".strip() for base, cases in REJECTED.items() for overrides, _ in cases
]


@pytest.mark.parametrize("words", INVALID_OVERRIDES)
def test_remedies_lead_to_a_valid_point_or_an_open_remedy(words: str) -> None:
    errors = follow_all(words)

    assert errors, "the overrides must be invalid at the start"


def test_every_open_remedy_occurs() -> None:
    remedies = [
        error.partition("; ")[2] for words in INVALID_OVERRIDES for error in follow_all(words)
    ]

    for start in OPEN_REMEDIES:
        assert any(remedy.startswith(start) for remedy in remedies), start
