"""Numbers and lists as text."""

import pytest

from paradnn.core.words import core_list, core_text, counted, rounded


@pytest.mark.parametrize(
    ("count", "text"),
    [
        pytest.param(0, "0 points", id="zero"),
        pytest.param(1, "1 point", id="one"),
        pytest.param(2, "2 points", id="two"),
        pytest.param(1200, "1,200 points", id="thousands"),
    ],
)
def test_a_count_of_one_is_singular(count: int, text: str) -> None:
    assert counted(count, "point") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(33_706.7, "33,710", id="thousands"),
        pytest.param(12_345_678, "12,350,000", id="millions"),
        pytest.param(652.34, "652.3", id="hundreds"),
        pytest.param(9_999.6, "10,000", id="rounds up to five digits"),
        pytest.param(0.012345, "0.01235", id="below one"),
        pytest.param(0.0, "0", id="zero"),
    ],
)
def test_numbers_are_rounded_without_exponents(value: float, text: str) -> None:
    assert rounded(value) == text


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        pytest.param("0-3,6", [0, 1, 2, 3, 6], id="range and number"),
        pytest.param("6,0-1", [0, 1, 6], id="unsorted"),
        pytest.param("5", [5], id="one core"),
        pytest.param("3-1", [], id="descending range"),
        pytest.param("1-x", [], id="not a number"),
        pytest.param("", [], id="empty"),
    ],
)
def test_a_list_of_cores_is_read(text: str, cores: list[int]) -> None:
    assert core_list(text) == cores


def test_a_list_of_cores_is_written_as_sorted_ranges() -> None:
    assert core_text([6, 0, 2, 1]) == "0-2,6"
    assert core_list(core_text([1, 3, 4, 5, 9])) == [1, 3, 4, 5, 9]
