"""Following the remedies of error messages leads to a valid point."""

import re
import shlex

import pytest

from paradnn.core.errors import ConfigError
from tests.config.test_points import REJECTED, point

#: How remedies begin that leave the value or the key to the user.
OPEN_REMEDIES = (
    "allowed are names that begin with ",
    "choose a batch_size that is a multiple of devices",
    "choose a larger value",
    "choose a lower one",
    "choose a multiple of ",
    "choose a smaller batch size",
    "choose a smaller filter, or more padding",
    "choose another model",
    "choose fewer",
    "choose smaller sizes",
    "give bytes, a number with KiB, MiB, GiB or GB, or auto",
    "give each host the same number of them",
    "give one of them",
    "give software.requirements too",
    "keys of data: ",
    "omit one of them",
    "quote it: ",
    "request less, or raise measure.timeout",
    "see measure=... in --help",
    "set endpoint.first_token_ms, endpoint.token_ms or endpoint.request_ms",
    "set it to the folder of the files",
    "start this command with that interpreter",
    "write http://host:port/v1, without a password",
    "write model.build=my_models.py:make_net, or package.module:make_net",
)
_VALUE = r"(\[[^\]]*\]|[\w.,+-]*\w)"
_MAX_STEPS = 6


def error_of(words: str) -> str:
    """Return the error of a point, or nothing if the point is valid."""
    try:
        point(words)
    except ConfigError as error:
        return str(error)
    return ""


def follow(words: str, error: str) -> str | None:
    """Return the overrides after the first remedy of an error, or None if it is open."""
    key = error.partition("=")[0]
    problem, _, remedy = error.partition("; ")
    others = shlex.join(word for word in shlex.split(words) if not word.startswith(f"{key}="))
    meant = re.search(r"did you mean (\w+)\?", remedy)
    if meant and "no such key" in problem:
        group = key.rpartition(".")[0]
        return words.replace(f"{key}=", f"{group}.{meant[1]}=")
    if meant:
        return f"{others} {key}={meant[1]}"
    if "has no batch; omit it" in error:
        return f"{others} batch_size=1"  # the default that comes with such a model
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
    value = re.search(rf"(?:choose one of|write for example|as in) '?{_VALUE}", remedy)
    assert value, f"no known remedy in: {error}"
    quotes = '"' if "in quotes" in remedy else ""
    return f"{others} '{key}={quotes}{value[1].partition(',')[0]}{quotes}'"


def trail(words: str) -> list[str]:
    """Return the errors on the way from invalid overrides to a valid point or an open remedy.

    Raises:
        AssertionError: If the remedies lead to neither.
    """
    errors = []
    for _ in range(_MAX_STEPS):
        error = error_of(words)
        if not error:
            return errors
        errors.append(error)
        followed = follow(words, error)
        if followed is None:
            return errors
        words = followed
    raise AssertionError("the remedies lead in circles:\n" + "\n".join(errors))


WORDS = [
    f"{base} {overrides}".strip() for base, cases in REJECTED.items() for overrides, _ in cases
]


@pytest.mark.parametrize("words", WORDS)
def test_following_the_remedies_leads_to_a_valid_point(words: str) -> None:
    errors = trail(words)

    assert errors, "the overrides were valid from the start"


def test_every_open_remedy_occurs() -> None:
    remedies = [error.partition("; ")[2] for words in WORDS for error in trail(words)]

    for start in OPEN_REMEDIES:
        assert any(remedy.startswith(start) for remedy in remedies), start
