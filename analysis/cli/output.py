"""Output of results: on the terminal, as CSV, JSON and figures, and as runs of the store.

A terminal shows few digits and only the columns that fit. A note names the option that shows the
rest. Texts in a store, such as names and tags, are untrusted: control characters in them are
escaped on the terminal, and no cell of a CSV file is a formula.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.columns import is_configuration_column
from analysis.labels import interval_ends
from analysis.lazy import pd
from analysis.options import Arguments, Selection, option
from analysis.point_names import POINT
from analysis.result import Result
from paradnn.cli.console import say, si, standard_output, unlimited_output, visible
from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted
from paradnn.store.files import whole_file, write_json

_FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
#: Maximum length of the value of a tag that every MLflow server accepts.
_MAX_TAG_LENGTH = 5000
_OPTION_GROUP = "output"
#: Maximum number of printed rows of a table, and of lines between the answer and the table.
_MAX_ROWS = 20
_MAX_LINES = 5
#: Widths in characters: of a printed table, of the gap between columns, of a cell.
_MAX_WIDTH = 100
_COLUMN_GAP = 2
_MAX_CELL_WIDTH = 60
#: A column of whole numbers is printed with all digits if all are below this number.
_MAX_EXACT = 100_000
#: Columns that only --all prints.
_DETAILS = ("run_id", "log_error", "degrees", "p_value", "p_adjusted")
_REMEDY = ": --all prints them, --csv FILE writes them"
#: Texts of missing values.
_MISSING = ("nan", "None", "<NA>", "NaT", "")
#: First character of a text that a spreadsheet evaluates as a formula (OWASP, CSV injection).
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d[\d_,.]*|\.\d+)(e[+-]?\d+)?%?|[+-]inf", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Output(Arguments):
    """Options for the output of a result."""

    csv: str | None = option(
        None,
        "write the table to a file, - for standard output",
        metavar="FILE",
        group=_OPTION_GROUP,
    )
    json: str | None = option(
        None,
        "write the answer and all rows as JSON to a file, - for standard output",
        metavar="FILE",
        group=_OPTION_GROUP,
    )
    all: bool = option(
        False,
        "print all rows, all columns and all caveats of the answer",
        group=_OPTION_GROUP,
    )
    log: bool = option(
        False,
        "store the result as a run of kind=analysis that lists its source runs",
        group=_OPTION_GROUP,
    )


@dataclass(frozen=True, kw_only=True)
class FigureOutput(Output):
    """Options for the output of a result that has a figure."""

    figure: tuple[str, ...] = option(
        (),
        "draw the figure to a .png, .svg or .pdf file; repeatable",
        metavar="FILE",
        several="repeat",
        group=_OPTION_GROUP,
    )
    width: float | None = option(
        None,
        "format the figure for print, with exactly this width, such as 3.3 for one column or 7 for "
        "a page",
        metavar="INCHES",
        low=2.5,
        group=_OPTION_GROUP,
    )


def emit_result(
    command: str,
    result: Result,
    *,
    frame: pd.DataFrame,
    selection: Selection,
    output: FigureOutput,
    command_line: Sequence[str],
) -> None:
    """Print the result of an analysis, and write the requested files.

    With --log, the result is also stored as a run.

    Args:
        command: Name of the command.
        result: The result.
        frame: The runs from which the result was computed.
        selection: The options that selected these runs.
        output: The options that request outputs.
        command_line: The words of the command line, which are recorded with --log.

    Raises:
        ConfigError: If an output cannot be written or drawn. Nothing is printed in that case.
    """
    if output.csv == "-" and output.json == "-":
        problem = "--csv already writes to standard output"
        raise ConfigError("--json", output.json, problem, "name a file for one of them")
    table_file = _file_of(output.csv, "--csv")
    json_file = _file_of(output.json, "--json")
    figure_files = _figure_files(result, output)
    # Drawing can fail, so it comes before any output.
    figures = [(result.figure(output.width), path) for path in figure_files]
    _print_requested(result, output)
    if table_file is not None:
        with whole_file(table_file, "--csv") as temporary:
            write_csv(result.table, temporary)
    if json_file is not None:
        write_json(json_file, result.as_json())
    for figure, path in figures:
        with whole_file(path, "--figure") as temporary:
            if output.width is None:
                figure.savefig(temporary, bbox_inches="tight", dpi=150)
            else:
                # Trimming the margins would change the requested width.
                figure.savefig(temporary, dpi=300)
    if output.log:
        run_id = _log_result(
            command, result, frame=frame, selection=selection, command_line=command_line
        )
        print(f"logged as run {run_id}", file=sys.stderr)


def _figure_files(result: Result, output: FigureOutput) -> list[Path]:
    """Return the files of the requested figures.

    Raises:
        ConfigError: If a file cannot be written, the result has no figure, or --width is given
            without --figure.
    """
    files = [
        check_file(path, "--figure", suffixes=_FIGURE_SUFFIXES, kind="a .png, .svg or .pdf file")
        for path in output.figure
    ]
    if output.width is not None and not files:
        problem = "needs a figure"
        raise ConfigError("--width", output.width, problem, "name its file with --figure")
    if files and not result.drawable:
        problem = "the result has nothing to draw"
        raise ConfigError("--figure", str(files[0]), problem, "omit it, or select different runs")
    return files


def _print_requested(result: Result, output: FigureOutput) -> None:
    """Print the result in the requested form.

    The form is CSV if --csv is "-", JSON if --json is "-", else text with a table.
    """
    if output.csv == "-":
        _print_csv(result.table)
        if result.set_aside is not None:
            say(result.set_aside, sys.stderr)
    elif output.json == "-":
        print(json.dumps(result.as_json(), indent=1, allow_nan=False))
    else:
        print_result(result, everything=output.all)


def _file_of(path: str | None, option: str) -> Path | None:
    """Return the file that an output option names, after a check that its folder exists.

    Args:
        path: Value of the option; None if the option is absent, "-" for standard output.
        option: Name of the option, for error messages.

    Returns:
        The file; None if the option is absent or names standard output.

    Raises:
        ConfigError: If the path is a folder, or its folder does not exist.
    """
    if path is None or path == "-":
        return None
    return _check_writable(path, option)


def _check_writable(path: str, option: str) -> Path:
    """Return the path of an output file, after a check that its folder exists.

    Args:
        path: The path that the user gave.
        option: Name of the option with this path, for error messages.

    Raises:
        ConfigError: If the path is a folder, or its folder does not exist.
    """
    target = Path(path).expanduser()
    problem = ""
    if target.is_dir():
        problem = "is a folder"
    elif not target.parent.is_dir():
        problem = f"there is no folder {target.parent}"
    if problem:
        raise ConfigError(option, path, problem, "name a file in a folder that exists")
    return target


def check_file(path: str, option: str, *, suffixes: Sequence[str], kind: str) -> Path:
    """Return the path of an output file, after a check of its folder and its suffix.

    Args:
        path: The path that the user gave.
        option: Name of the option with this path, for error messages.
        suffixes: Allowed suffixes in lower case, such as ".html".
        kind: Description of the allowed files for the error message, such as "a .html file".

    Raises:
        ConfigError: If the path is a folder, its folder does not exist, or the suffix is not
            allowed.
    """
    target = _check_writable(path, option)
    if target.suffix.lower() not in suffixes:
        raise ConfigError(option, path, "has an unsupported suffix", f"name {kind}")
    return target


def _log_result(
    name: str,
    result: Result,
    *,
    frame: pd.DataFrame,
    selection: Selection,
    command_line: Sequence[str],
) -> str:
    """Store a result as a run, and return the id of this run.

    The source runs, from which the result was computed, are listed in the artifact sources.json. If
    the list is short enough, the tag `sources` contains it too. The tag `source_sweeps` lists the
    sweeps of the source runs.

    Args:
        name: Name of the analysis.
        result: The result.
        frame: The runs from which the result was computed.
        selection: The options that selected these runs, including the store.
        command_line: The words of the command line, for the tag `command_line`.
    """
    from analysis.store.write import log_run, open_experiment, writing
    from paradnn.store.address import address_of
    from paradnn.store.runs import ANALYSIS_OUTCOME

    experiment = next(iter(selection.experiment), default_experiment())
    client, experiment_id = open_experiment(selection.written, experiment)
    tags = _result_tags(name, result, frame, command_line)
    with writing(address_of(selection.written).uri), tempfile.TemporaryDirectory() as folder:
        _write_artifacts(result, Path(folder))
        return log_run(
            client,
            experiment_id,
            name,
            tags,
            span=(None, int(time.time() * 1000)),
            last={ANALYSIS_OUTCOME: "ok"},
            files=Path(folder),
        )


def _result_tags(
    name: str, result: Result, frame: pd.DataFrame, command_line: Sequence[str]
) -> dict[str, str]:
    """Return the tags of the run that stores a result: name -> value.

    Values are cut to the length that every MLflow server accepts.

    Args:
        name: Name of the analysis.
        result: The result.
        frame: The runs from which the result was computed.
        command_line: The words of the command line. Secrets in it are removed.
    """
    from paradnn.core.words import without_secrets
    from paradnn.store.runs import SCHEMA_VERSION

    run_ids = list(result.sources)
    sources = ",".join(run_ids)
    if len(sources) > _MAX_TAG_LENGTH:
        sources = "see sources.json"
    sweeps: list[str] = []
    if "sweep_id" in frame:
        sweeps = sorted(frame.loc[frame["run_id"].isin(run_ids), "sweep_id"].dropna().unique())
    tags = {
        "kind": "analysis",
        "schema_version": SCHEMA_VERSION,
        "analysis": name,
        "command_line": shlex.join(map(without_secrets, command_line)),
        "source_count": str(len(run_ids)),
        "sources": sources,
        "source_sweeps": ",".join(sweeps),
    }
    if result.pooled:
        tags["pooled"] = result.pooled
    if result.quality and result.quality.text():
        tags["left_out"] = result.quality.text()
    if result.set_aside:
        tags["set_aside"] = str(result.set_aside)
    return {key: value[:_MAX_TAG_LENGTH] for key, value in tags.items()}


def _write_artifacts(result: Result, folder: Path) -> None:
    """Write table, text, source runs and figures of a result as files into a folder."""
    table = result.table.to_json(
        orient="split", index=False, date_format="iso", double_precision=15
    )
    contents = {
        "result.json": json.dumps(json.loads(table)),
        "result.txt": result.text() + "\n",
        "sources.json": json.dumps(list(result.sources)),
    }
    if result.quality:
        contents["quality.json"] = json.dumps(result.quality.as_json())
    for file, content in contents.items():
        (folder / file).write_text(content, encoding="utf-8")
    if result.drawable:
        figure = result.figure()
        for suffix in (".png", ".svg"):
            figure.savefig(folder / f"figure{suffix}", bbox_inches="tight", dpi=150)


def print_result(result: Result, *, everything: bool = False) -> None:
    """Print a result: its answer, remarks on the answer, and its tables.

    Args:
        result: The result.
        everything: Whether to print all remarks, rows and columns, instead of a selection.
    """
    if everything:
        console = unlimited_output()
        max_lines = sys.maxsize
        limits = _NO_LIMITS
    else:
        console = standard_output()
        max_lines = _MAX_LINES
        limits = _TableLimits(min(console.width, _MAX_WIDTH))
    opening = result.opening()
    if opening:
        console.print(opening, style="bold", soft_wrap=True, markup=False)
    lines, omitted = result.terminal_lines(max_lines)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    if omitted:
        _print_note(console, f"{counted(omitted, 'more line')}: see --all")
    if result.rows:
        _print_grids(console, result.rows, limits)
    elif result.rows is not None and len(result.table):
        _print_table(console, result.table, limits, everything=everything)


def _print_grids(
    console: Console, grids: Sequence[tuple[str, pd.DataFrame]], limits: _TableLimits
) -> None:
    """Print the first tables of a result that fit, each below its title.

    A last line states the number of omitted tables.

    Args:
        console: The terminal.
        grids: The titles and tables.
        limits: Largest size of the output.
    """
    fitting_grids = _first_grids(grids, limits.rows)
    for title, cells in fitting_grids:
        shown = cells.head(limits.rows)
        fitting = _fit_table(shown, limits, keeps_constants=bool(title))
        heading = ""
        numeric: Collection[str] = ()
        if title:
            heading = f"\n{title}"
            numeric = fitting.cells.columns[1:]
        console.print(heading, style="bold", soft_wrap=True, markup=False)
        console.print(_make_table(fitting.cells, numeric=numeric))
        for note in fitting.notes(len(cells) - len(shown)):
            _print_note(console, note)
    omitted = len(grids) - len(fitting_grids)
    if omitted:
        _print_note(console, f"{counted(omitted, 'more map')}: see --all")


def _print_table(
    console: Console, table: pd.DataFrame, limits: _TableLimits, *, everything: bool
) -> None:
    """Print the first rows of a table, and the numbers of omitted rows and columns.

    Args:
        console: The terminal.
        table: The table.
        limits: Largest size of the output.
        everything: Whether to print all rows and columns.
    """
    shown = table.head(limits.rows)
    if everything:
        cells = _format_cells(shown)
    else:
        shown = _without_columns_in_point_names(shown)
        cells = _merge_intervals(_format_cells(shown))
    fitting = _fit_table(cells, limits)
    console.print()
    console.print(_make_table(fitting.cells, numeric=[*shown.select_dtypes("number")]))
    for note in fitting.notes(len(table) - len(shown)):
        _print_note(console, note)


def _print_note(console: Console, note: str) -> None:
    console.print(note, style="dim", soft_wrap=True, markup=False)


def _first_grids(
    grids: Sequence[tuple[str, pd.DataFrame]], rows: int
) -> Sequence[tuple[str, pd.DataFrame]]:
    """Return the first tables with at most a given number of rows in total, but at least one table.

    Args:
        grids: The titles and tables.
        rows: Largest number of rows.
    """
    total = 0
    for position, (_, cells) in enumerate(grids):
        total += len(cells)
        if total > rows and position:
            return grids[:position]
    return grids


def _print_csv(table: pd.DataFrame) -> None:
    """Write a table to standard output; on a terminal, control characters are escaped."""
    if not sys.stdout.isatty():
        write_csv(table, sys.stdout)
        return
    text = _safe_table(table).to_csv(index=False)
    sys.stdout.write(visible(text))


def write_csv(table: pd.DataFrame, target: TextIO | Path) -> None:
    """Write a table as CSV, with texts escaped that a spreadsheet would evaluate as formulas.

    Args:
        table: The table.
        target: File or stream to write to.
    """
    _safe_table(table).to_csv(target, index=False)


def _safe_table(table: pd.DataFrame) -> pd.DataFrame:
    """Escape texts and column names that a spreadsheet would evaluate as formulas."""
    texts = {
        str(name): column.map(_escape_formula)
        for name, column in table.items()
        if column.dtype.kind not in "biufcmM"
    }
    return table.assign(**texts).rename(columns=_escape_formula)


def _escape_formula(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would evaluate."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def _format_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Format every cell as text; drop the columns without values."""
    names = [name for name in table.columns if not table[name].map(_is_missing).all()]
    return table[names].apply(_format_column).astype(str)


def _merge_intervals(cells: pd.DataFrame) -> pd.DataFrame:
    """Merge the columns with the two ends of an interval into one column.

    The merged column is at the place of the lower end.

    Args:
        cells: All cells, as text.
    """
    names = [str(name) for name in cells.columns]
    merged: dict[str, pd.Series] = {}
    intervals = interval_ends(names)
    highs = {ends.high for ends in intervals.values()}
    for name in names:
        if name in intervals:
            high, value = intervals[name]
            text = cells[name] + " to " + cells[high]
            is_unknown = cells[name].eq("-") & cells[high].eq("-")
            heading = f"95% CI of {value}" if value else "95% CI"
            merged[heading] = text.mask(is_unknown, "-")
        elif name not in highs:
            merged[name] = cells[name]
    return pd.DataFrame(merged, index=cells.index)


def _is_missing(value: Any) -> bool:
    return str(value) in _MISSING


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not _is_missing(value)


def _format_column(values: pd.Series) -> pd.Series:
    """Format the cells of a column; small whole numbers, such as batch sizes, keep all digits."""
    numbers = [value for value in values if _is_number(value)]
    is_exact = all(float(value).is_integer() and abs(value) < _MAX_EXACT for value in numbers)

    def format_cell(value: Any) -> str:
        if _is_missing(value):
            return "-"
        if not _is_number(value):
            return str(value)
        if is_exact:
            return f"{value:.0f}"
        return si(float(value)).strip()

    return values.map(format_cell)


def _without_columns_in_point_names(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the columns whose values are part of the point names, if the table has point names."""
    if POINT not in table:
        return table
    return table[
        [name for name in table if name != "family" and not is_configuration_column(str(name))]
    ]


class _TableLimits(NamedTuple):
    """Limits of a printed table.

    Attributes:
        width: Maximum number of characters in a row.
        rows: Maximum number of rows.
        cell: Maximum number of characters in a cell.
        states_constants: Whether a note below the table replaces the columns that have the same
            value in all rows.
    """

    width: int
    rows: int = _MAX_ROWS
    cell: int = _MAX_CELL_WIDTH
    states_constants: bool = True


_NO_LIMITS = _TableLimits(sys.maxsize, sys.maxsize, sys.maxsize, states_constants=False)


class _FittingTable(NamedTuple):
    """The part of a table that fits on a terminal.

    Attributes:
        cells: The printed cells, as text.
        constant: Column with the same value in all rows -> the value. These columns are not
            printed.
        omitted: Names of the columns that do not fit.
    """

    cells: pd.DataFrame
    constant: Mapping[str, str]
    omitted: Sequence[str]

    def notes(self, omitted_rows: int = 0) -> Iterator[str]:
        """Yield notes on the omitted rows and columns, and on how to print them.

        Args:
            omitted_rows: Number of rows that are not printed.
        """
        if self.constant:
            values = [f"{name} {value}" for name, value in self.constant.items()]
            yield _join_fitting("The same in all rows: ", values, _MAX_WIDTH)
        note = ""
        if omitted_rows:
            note = counted(omitted_rows, "more row")
        if self.omitted:
            if note:
                note += ", "
            note += counted(len(self.omitted), "more column")
            room = _MAX_WIDTH - len(note) - len(_REMEDY) - len(" ()")
            names = _join_fitting("", self.omitted, room)
            if len(names) <= room:
                note += f" ({names})"
        if note:
            yield f"{note}{_REMEDY}"


def _join_fitting(start: str, texts: Sequence[str], width: int) -> str:
    """Join the first texts that fit into a width with commas; count the others ("and 3 more").

    Args:
        start: Text before the list.
        texts: The texts, at least one.
        width: Maximum number of characters, unless the first text is longer.
    """
    joined = f"{start}{texts[0]}"
    for position, text in enumerate(texts[1:], start=1):
        rest = f" and {len(texts) - position} more"
        if len(joined) + len(text) + len(rest) > width:
            return f"{joined}{rest}"
        joined += f", {text}"
    return joined


def _fit_table(
    cells: pd.DataFrame, limits: _TableLimits, *, keeps_constants: bool = False
) -> _FittingTable:
    """Choose the columns to print: of those whose values differ between rows, as many as fit.

    Args:
        cells: All cells, as text.
        limits: Limits of the printed table.
        keeps_constants: Whether to keep columns with the same value in all rows, as in a heat map.
    """
    if limits.cell < sys.maxsize:
        cells = cells.map(lambda text: _shorten(text, limits.cell))
    constant = {}
    details: list[str] = []
    if limits.states_constants and not keeps_constants:
        details = [str(name) for name in cells.columns if name in _DETAILS]
        if len(details) < len(cells.columns):
            cells = cells.drop(columns=details)
        else:
            details = []
    if limits.states_constants and len(cells) > 1 and not keeps_constants:
        constant = {
            str(name): str(cells[name].iloc[0])
            for name in cells.columns
            if cells[name].nunique() == 1
        }
    if len(constant) == len(cells.columns):
        constant = {}
    differing = cells.drop(columns=list(constant))
    shown = differing
    while _width(shown) > limits.width and len(shown.columns) > 1:
        shown = shown.iloc[:, :-1]
    omitted = [*map(str, differing.columns[len(shown.columns) :]), *details]
    return _FittingTable(shown, constant, omitted)


def _make_table(cells: pd.DataFrame, *, numeric: Collection[str]) -> Table:
    """Return a printable table.

    Args:
        cells: The cells, as text.
        numeric: Columns of numbers, which are right-aligned.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in cells.columns:
        table.add_column(
            Text(str(name)),
            justify="right" if name in numeric else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in cells.itertuples(index=False):
        table.add_row(*map(Text, row))
    return table


def _shorten(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return f"{text[: length - 1]}…"


def _width(cells: pd.DataFrame) -> int:
    widths = [max(len(str(name)), int(cells[name].str.len().max())) for name in cells.columns]
    return sum(widths) + _COLUMN_GAP * (len(widths) - 1)
