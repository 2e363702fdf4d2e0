"""Tables for a paper, read back by other programs' rules."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.cli.output import typeset
from analysis.labels import label, labelled

TABLE = pd.DataFrame(
    {
        "family": ["fc", "a_b & 50%"],
        "model.nodes": pd.array([64, None], dtype="Int64"),
        "examples_per_second": [12345.678, 0.25],
        "nothing": [float("nan")] * 2,
    }
)


def test_latex_escapes_and_aligns() -> None:
    lines = typeset(TABLE, Path("t.tex")).splitlines()
    assert lines[1] == r"\begin{tabular}{lrr}"
    assert lines[3] == r"family & nodes & throughput (examples/s) \\"
    assert lines[5:7] == [r"fc & 64 & 12.35k \\", r"a\_b \& 50\% &  & 0.25 \\"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_markdown_has_a_cell_for_each_column() -> None:
    text = typeset(TABLE.assign(family="a|b"), Path("t.md"))
    assert text.splitlines()[1:3] == ["| --- | ---: | ---: |", r"| a\|b | 64 | 12.35k |"]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("examples_per_second_low", "throughput, lower end (examples/s)"),
        ("step_time_high_ms", "step time, upper end (ms)"),
        ("peak_memory_bytes", "peak memory (B)"),
        ("flops_utilization", "utilisation of the measured peak"),
        ("model.embedding_size", "embedding size"),
        ("p91", "91st percentile"),
        ("version.tensorflow", "tensorflow version"),
    ],
)
def test_columns_are_told_as_quantities(column: str, words: str) -> None:
    assert labelled(column) == words
    assert words.startswith(label(column))


def test_the_command_line_writes_it(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "t.md"
    assert main(["runs", "--store", store, "--typeset", str(target)]) == 0
    assert target.read_text().startswith("| ")
    assert main(["runs", "--store", store, "--typeset", str(tmp_path / "t.doc")]) == 2
    assert "is of no known kind; name a .tex or .md file" in capsys.readouterr().err
