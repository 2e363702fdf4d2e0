"""Tables on a terminal: few digits, as wide as it is, what is left out said; CSV files that no spreadsheet computes."""

import csv
import io

import pandas as pd
import pytest

from analysis.cli import output
from analysis.result import Result
from paradnn.cli.console import Screen


def shown(monkeypatch: pytest.MonkeyPatch, width: int, rows: pd.DataFrame, **maps: pd.DataFrame) -> list[str]:
    out = io.StringIO()
    terminal = Screen(file=out, width=width, force_terminal=True, no_color=True, color_system=None)
    monkeypatch.setattr(output, "standard_output", lambda: terminal)
    output.show(Result(sources=(), numbers=rows, rows=[*maps.items()], sentences=["said \x1b]0;owned\x07"]))
    return [line.rstrip() for line in out.getvalue().splitlines()]


ROWS = pd.DataFrame(
    {
        "family": ["fc", "lstm"],
        "batch_size": [16384, 64],
        "device": ["GPU"] * 2,
        "rate": [19_490.5, float("nan")],
        "count": pd.array([3, pd.NA], dtype="Int64"),
        "empty": [None, None],
        "share": [0.123456, 1.0],
        "parameters": [25_600_000, 7],
    }
)


def test_a_table_has_few_digits_and_no_empty_column(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, 100, ROWS) == [
        "family  batch_size  device    rate  count  share  parameters",
        "fc           16384  GPU     19.5 k      3  0.123      25.6 M",
        "lstm            64  GPU          -      -      1           7",
        "said \\x1b]0;owned",
    ]


def test_a_narrow_terminal_is_told_what_it_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, 40, ROWS)
    assert max(map(len, lines[:3])) <= 40
    assert lines[0].split() == ["family", "batch_size", "rate", "count", "share"]
    assert lines[3:5] == [
        "The same in all rows: device GPU",
        "Columns without room here, which --csv FILE writes: parameters",
    ]


def test_a_map_is_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = pd.DataFrame([["32", "1.2 k", "oom_device"]], columns=["", "16", "64"])
    assert shown(monkeypatch, 60, ROWS, title=grid)[:3] == ["title", "       16          64", "32  1.2 k  oom_device"]


def test_no_cell_of_a_csv_is_a_formula() -> None:
    words = ["=1+1", "+cmd", "-2e5", "-1+1", "@x", "\tx", "fine", "-inf", "+5%"]
    out = io.StringIO()
    output.write_csv(pd.DataFrame({"=name": words, "n": range(-4, 5), "x": [-0.5] * 9}), out)
    first, *rows = csv.reader(io.StringIO(out.getvalue()))
    assert first == ["'=name", "n", "x"]
    assert [row[0] for row in rows] == ["'=1+1", "'+cmd", "-2e5", "'-1+1", "'@x", "'\tx", "fine", "-inf", "+5%"]
    assert [row[1:] for row in rows] == [[str(n), "-0.5"] for n in range(-4, 5)]
