"""Numbers and lists as text."""

import pytest

from paradnn.core.words import core_list, core_text, counted, rounded


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 points"), (1, "1 point"), (2, "2 points"), (1200, "1,200 points")]
)
def test_only_one_is_singular(count: int, text: str) -> None:
    assert counted(count, "point") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (33_706.7, "33,710"),
        (12_345_678, "12,350,000"),
        (652.34, "652.3"),
        (9_999.6, "10,000"),
        (0.012345, "0.01235"),
        (0.0, "0"),
    ],
)
def test_numbers_are_rounded_without_exponents(value: float, text: str) -> None:
    assert rounded(value) == text


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0-3,6", [0, 1, 2, 3, 6]),
        ("6,0-1", [0, 1, 6]),
        ("5", [5]),
        ("3-1", []),
        ("1-x", []),
        ("", []),
    ],
)
def test_a_list_of_cores_is_read(text: str, cores: list[int]) -> None:
    assert core_list(text) == cores


def test_a_list_of_cores_has_one_text() -> None:
    assert core_text([6, 0, 2, 1]) == "0-2,6"
    assert core_list(core_text([1, 3, 4, 5, 9])) == [1, 3, 4, 5, 9]
