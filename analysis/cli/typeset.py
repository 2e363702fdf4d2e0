"""A table for a paper: LaTeX (booktabs) or Markdown, with names of quantities and few digits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.labels import labelled

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ENDINGS", "typeset"]

#: What a file's ending makes of a table.
ENDINGS = (".tex", ".md")
_DIGITS = 4
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    sign: f"\\{sign}" for sign in "&%$#_{}"
}


def typeset(table: pd.DataFrame, path: Path) -> str:
    """The table as the file's ending says: a `tabular` for \\input, or a Markdown table. Empty columns are left out."""
    from pandas.api import types

    shown = table[[name for name in table.columns if table[name].notna().any()]]
    numeric = [types.is_numeric_dtype(shown[name]) and not types.is_bool_dtype(shown[name]) for name in shown.columns]
    head = [labelled(str(name)) for name in shown.columns]
    columns = [[_words(value, number) for value in shown[name]] for name, number in zip(shown, numeric, strict=True)]
    rows = [*zip(*columns, strict=True)]
    return _latex(head, rows, numeric) if path.suffix.lower() == ".tex" else _markdown(head, rows, numeric)


def _words(value: Any, number: bool) -> str:
    if str(value) in ("nan", "None", "<NA>", "NaT"):
        return ""
    return short(float(value), digits=_DIGITS) if number else str(value)


def _latex(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    lines = [" & ".join("".join(_LATEX.get(sign, sign) for sign in cell) for cell in row) for row in (head, *rows)]
    places = "".join("r" if number else "l" for number in numeric)
    body = "".join(f"{line} \\\\\n" for line in lines[1:])
    return (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{places}}}\n\\toprule\n{lines[0]} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    rule = ["---:" if number else "---" for number in numeric]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (cells[0], rule, *cells[1:]))
