"""What becomes of a result: printed, written as CSV or drawn, put back into the store.

On a terminal and as CSV: few digits, as many columns as there is room for, nothing that a cell
could start. What is left out is said, and how to get all of it. `paradnn.cli.console` shows control
signs in place of obeying them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from analysis.lazy import pd
from analysis.options import Arguments, Selection, option
from analysis.result import Result
from paradnn.cli.console import SafeConsole, say, si, standard_output
from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError
from paradnn.store.files import whole_file

_KINDS = (".png", ".svg", ".pdf")
_TAG_LENGTH = 5000  # what every MLflow server accepts as a tag's value
_GROUP = "output"
_ROWS = 50  # of a table that are printed
_GAP = 2  # between columns
_WIDEST = 48  # characters of a text in a table that has no room
_EXACT = 100_000  # columns of smaller whole numbers have all their digits
_NONE = ("nan", "None", "<NA>", "NaT", "")
#: What a spreadsheet would compute, or send somewhere, when it opens a file (OWASP, CSV injection).
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d[\d_,.]*|\.\d+)(e[+-]?\d+)?%?|[+-]inf", re.IGNORECASE)
_DIGITS = 4  # of a number in a paper


@dataclass(frozen=True, kw_only=True)
class Output(Arguments):
    """Where a result goes beside the terminal."""

    csv: str | None = option(
        None, "write the table to a file, - for standard output", metavar="FILE", group=_GROUP
    )
    log: bool = option(
        False,
        "put the result into the store, as a run of kind=analysis that names its sources",
        group=_GROUP,
    )


@dataclass(frozen=True, kw_only=True)
class FigureOutput(Output):
    """The same of a result that has a figure."""

    figure: tuple[str, ...] = option(
        (),
        "draw the figure, as PNG, SVG or PDF by the file's ending, repeatable",
        metavar="FILE",
        several="repeat",
        group=_GROUP,
    )
    width: float | None = option(
        None,
        "set the figure for print, exactly so many inches wide, such as 3.3 for a column and 7 for a page",
        metavar="INCHES",
        low=2.5,
        group=_GROUP,
    )


def deliver(
    command: str,
    result: Result,
    frame: pd.DataFrame,
    selection: Selection,
    output: FigureOutput,
    command_line: Sequence[str],
) -> None:
    """Print the result of an analysis and write what the options ask for.

    `frame` holds the runs it rests on. What cannot be drawn or written is refused before anything
    is printed.
    """
    if output.csv and output.csv != "-":
        table = _writable(output.csv, "--csv")
    else:
        table = None
    pictures = [
        named(path, "--figure", _KINDS, "a .png, .svg or .pdf file") for path in output.figure
    ]
    if output.width is not None and not pictures:
        raise ConfigError(
            "--width", output.width, "there is no figure to set", "name its file with --figure"
        )
    if pictures and not result.drawable:
        raise ConfigError(
            "--figure", str(pictures[0]), "there is nothing to draw", "choose other runs"
        )
    figures = [(result.figure(output.width), path) for path in pictures]
    if output.csv == "-":
        write_csv(result.table, sys.stdout)
        if result.set_aside is not None:
            say(result.set_aside, sys.stderr)
    else:
        show(result)
    if table is not None:
        with whole_file(table, "--csv") as making:
            write_csv(result.table, making)
    for figure, path in figures:
        with whole_file(path, "--figure") as making:
            # What is for print keeps its size; else the margins are trimmed.
            exact = output.width is not None
            figure.savefig(
                making, bbox_inches=None if exact else "tight", dpi=300 if exact else 150
            )
    if output.log:
        print(
            f"logged as run {_log(command, result, frame, selection, command_line)}",
            file=sys.stderr,
        )


def _writable(path: str, option: str) -> Path:
    target = Path(path).expanduser()
    if target.is_dir() or not target.parent.is_dir():
        if target.is_dir():
            problem = "is a folder"
        else:
            problem = f"there is no folder {target.parent}"
        raise ConfigError(option, path, problem, "name a file in a folder that exists")
    return target


def named(path: str, option: str, endings: Sequence[str], such: str) -> Path:
    """A file that can be written, of one of these endings."""
    target = _writable(path, option)
    if target.suffix.lower() not in endings:
        raise ConfigError(option, path, "is of no known kind", f"name {such}")
    return target


def _log(
    name: str,
    result: Result,
    frame: pd.DataFrame,
    selection: Selection,
    command_line: Sequence[str],
) -> str:
    """Put a result into the store; returns the run's id. All source runs stand in sources.json, and
    in the tag `sources` where they fit; `source_sweeps` names the sweeps they come from.
    """
    from analysis.store.write import log_run, open_experiment, writing
    from paradnn.core.words import without_secrets
    from paradnn.store.address import address_of
    from paradnn.store.runs import ANALYSIS_OUTCOME, SCHEMA_VERSION

    client, experiment_id = open_experiment(
        selection.written, next(iter(selection.experiment), default_experiment())
    )
    sources = list(result.sources)
    used = frame[frame["run_id"].isin(sources)]
    listed = ",".join(sources)
    tags = {
        "kind": "analysis",
        "schema_version": SCHEMA_VERSION,
        "analysis": name,
        "command_line": shlex.join(map(without_secrets, command_line)),
        "source_count": str(len(sources)),
        "sources": listed if len(listed) <= _TAG_LENGTH else "see sources.json",
        "source_sweeps": ",".join(
            sorted(used["sweep_id"].dropna().unique()) if "sweep_id" in used else []
        ),
    }
    said = {"pooled": result.pooled, "left_out": result.quality.text() if result.quality else ""}
    tags |= {
        name: words
        for name, words in (said | {"set_aside": str(result.set_aside or "")}).items()
        if words
    }
    table = json.loads(
        result.table.to_json(orient="split", index=False, date_format="iso", double_precision=15)
    )
    contents = {
        "result.json": json.dumps(table),
        "result.txt": result.text() + "\n",
        "sources.json": json.dumps(sources),
        **({"quality.json": json.dumps(result.quality.as_json())} if result.quality else {}),
    }
    with writing(address_of(selection.written).uri), tempfile.TemporaryDirectory() as folder:
        for file, content in contents.items():
            (Path(folder) / file).write_text(content, encoding="utf-8")
        if result.drawable:
            figure = result.figure()
            for kind in (".png", ".svg"):
                figure.savefig(Path(folder) / f"figure{kind}", bbox_inches="tight", dpi=150)
        return log_run(
            client,
            experiment_id,
            name,
            {key: words[:_TAG_LENGTH] for key, words in tags.items()},
            span=(None, int(time.time() * 1000)),
            last={ANALYSIS_OUTCOME: "ok"},
            files=Path(folder),
        )


def show(result: Result) -> None:
    """Print the table, or its maps, and the findings in words."""
    screen = standard_output()
    grids = result.rows or ()
    for title, cells in grids:
        _print_table(screen, cells, [], title)
    if result.rows is not None and not grids and len(result.table):
        cells = result.table.head(_ROWS)
        _print_table(screen, _texts(cells), [*cells.select_dtypes("number")])
        if len(result.table) > _ROWS:
            print(f"... and {len(result.table) - _ROWS:,} rows more; --csv FILE writes all of them")
    screen.print(result.text(), soft_wrap=True, markup=False)


def write_csv(table: pd.DataFrame, target: TextIO | Path) -> None:
    """A table as CSV, whose texts no spreadsheet takes for a formula; numbers stay as they are."""
    texts = {
        name: column.map(_inert)
        for name, column in table.items()
        if column.dtype.kind not in "biufcmM"
    }
    safe = table.assign(**{str(name): column for name, column in texts.items()}).rename(
        columns=_inert
    )
    safe.to_csv(target, index=False)


def _inert(value: Any) -> Any:
    """A value; of a text that begins as a formula does, one that a quotation mark makes a text."""
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """Every cell as a person reads it, without columns that hold nothing."""
    kept = table[[name for name in table.columns if not table[name].map(_is_none).all()]]
    return kept.apply(_column).astype(str)


def _is_none(value: Any) -> bool:
    return str(value) in _NONE


def _column(values: pd.Series) -> pd.Series:
    """The cells of a column as texts; whole numbers are settings and counts, unless they are large."""

    def is_number(value: Any) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and not _is_none(value)

    exact = all(
        float(value).is_integer() and abs(value) < _EXACT for value in values if is_number(value)
    )
    if exact:
        number = "{:.0f}".format
    else:

        def number(value):
            return si(float(value)).strip()

    return values.map(
        lambda one: number(one) if is_number(one) else "-" if _is_none(one) else str(one)
    )


def _print_table(
    screen: SafeConsole, cells: pd.DataFrame, numeric: Sequence[str], title: str = ""
) -> None:
    """A table of texts; where there is no room, without what is the same in all rows, then without
    its last columns.
    """
    if screen.is_terminal:
        cells = cells.map(lambda text: text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…")
    if len(cells) > 1 and not title:
        same = [name for name in cells.columns if cells[name].nunique() == 1]
    else:
        same = []
    kept = cells
    notes = []
    if _width(kept) > screen.width and same and len(same) < len(kept.columns):
        kept = kept.drop(columns=same)
        notes.append(
            f"The same in all rows: {', '.join(f'{name} {cells[name].iloc[0]}' for name in same)}"
        )
    while _width(kept) > screen.width and len(kept.columns) > 1:
        kept = kept.iloc[:, :-1]
    named = {*kept.columns, *(same if notes else ())}
    left_out = [str(name) for name in cells.columns if name not in named]
    if left_out:
        notes.append(f"Columns without room here, which --csv FILE writes: {', '.join(left_out)}")
    if title:
        screen.print(title, style="bold", soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(kept.columns):
        right = name in numeric or (bool(title) and place > 0)
        table.add_column(
            Text(str(name)), justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in kept.itertuples(index=False):
        table.add_row(*map(Text, row))
    screen.print(table)
    for note in notes:
        screen.print(note, style="dim", soft_wrap=True, markup=False)


def _width(cells: pd.DataFrame) -> int:
    widths = [max(len(str(name)), int(cells[name].str.len().max())) for name in cells.columns]
    return sum(widths) + _GAP * (len(widths) - 1)
