"""Counts in words, and which word was meant."""

import pytest

from paradnn.core.words import counted, did_you_mean


def test_one_is_no_plural() -> None:
    assert [counted(count, "point") for count in (0, 1, 2, 1200)] == ["0 points", "1 point", "2 points", "1,200 points"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("modle", "did you mean model? "),
        ("nodez", "did you mean nodes? "),
        ("moed", "did you mean mode? "),
        ("zzz", ""),
        ("model", ""),
        ("noden", "did you mean nodea or nodeb or nodes? "),
    ],
)
def test_what_was_meant(word: str, meant: str) -> None:
    known = {"mo": ["mode", "model"], "no": ["nodes"]}.get(word[:2], [])
    known = ["nodea", "nodeb", "nodes"] if word == "noden" else ["model"] if word == "model" else known
    assert did_you_mean(word, known) == meant
