"""Print the result of a comparison, and write the requested files."""

import csv
import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Column

from paradnn.cli.console import fitting_table, standard_output
from paradnn.compare.result import PairedResult, round_table
from paradnn.core.words import counted, in_seconds, rounded
from paradnn.platform.findings import host_findings
from paradnn.statistics.paired_rounds import MIN_ROUNDS, false_alarms
from paradnn.store.files import whole_file, write_json

#: Number of repetitions of a null comparison with randomly swapped sides.
_PERMUTATIONS = 400
#: Durations in minutes for which a null comparison reports the smallest detectable difference.
_MINUTES = (1, 5, 20)
_UNIT_NAMES = {"seconds": "time", "examples_per_second": "examples/s"}
_TEXT_COLUMNS = ("point", "side")


def write_files(
    options: Namespace, document: Mapping[str, Any], results: Sequence[PairedResult]
) -> None:
    """Write the files that the options --json and --csv name.

    Args:
        options: The options of the command line. `json` and `csv` are paths, or None to write no
            such file.
        document: Content of the JSON file.
        results: The result of each compared configuration. The CSV file lists all their rounds.
    """
    if options.json:
        write_json(options.json, document)
    if options.csv:
        table = round_table(results)
        with whole_file(options.csv, "--csv") as path, path.open("w", newline="") as file:
            csv.writer(file).writerows([table["columns"], *table["data"]])


def print_results(
    results: Sequence[PairedResult],
    sentences: Sequence[str],
    closing: Sequence[str],
    detail: int = 1,
) -> None:
    """Print the verdicts of a comparison, a table of the measurements, and closing lines.

    Args:
        results: The result of each compared configuration, for the tables.
        sentences: The verdicts as sentences, printed above the tables.
        closing: Lines to print below the tables.
        detail: 0 prints only the sentences, 1 also the table and the closing lines, and 2 also a
            table of all rounds.
    """
    _print_lines(sentences)
    if not detail:
        return
    if detail > 1:
        table = round_table(results)
        rounds = [
            [name, str(number), *(_format_number(value) for value in values)]
            for name, number, *values in table["data"]
        ]
        _print_table(table["columns"], rounds)
    headings, rows = summary_table(results)
    _print_table(headings, rows)
    _print_lines(closing)


def summary_table(results: Sequence[PairedResult]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of a table of the measurements of a comparison.

    Each configuration has one row per side, that is, per compared setting. A side without
    successful measurements has no row.

    Args:
        results: The result of each compared configuration; at least one.
    """
    rows = [
        [result.name, *side_cells(result, side)]
        for result in results
        for side in (0, 1)
        if result.values(side)
    ]
    return ["point", *side_headings(results[0].unit)], rows


def side_headings(unit: str) -> list[str]:
    """Return the headings of the cells that `side_cells` returns.

    Args:
        unit: Unit of the measurements: `seconds`, `metric` or `examples_per_second`.
    """
    return [
        "side",
        f"{_UNIT_NAMES.get(unit, unit)}, median",
        "smallest .. largest",
        "processor time",
        "runs",
    ]


def side_cells(result: PairedResult, side: int) -> list[str]:
    """Return label, median, range, processor time and number of runs of a side, as text.

    Args:
        result: A comparison of two settings, commands or functions, which are called sides.
        side: 0 for the first side, 1 for the second.
    """
    formats: dict[str, Callable[[float], str]] = {
        "seconds": in_seconds,
        "examples_per_second": rounded,
    }
    show = formats.get(result.unit, _format_number)
    values = result.values(side)
    if values:
        median = show(statistics.median(values))
        spread = f"{show(min(values))} .. {show(max(values))}"
    else:
        median = ""
        spread = ""
    cpu_seconds = result.cpu_seconds(side)
    processor_time = in_seconds(statistics.median(cpu_seconds)) if cpu_seconds else ""
    return [result.labels[side], median, spread, processor_time, f"{len(values):,}"]


def closing_lines(result: PairedResult, *, is_null: bool = False) -> list[str]:
    """Return lines with the duration of a comparison and the difference that it could detect.

    Args:
        result: A completed comparison.
        is_null: Whether the comparison compared a setting or command with itself. The lines then
            also report the differences that comparisons of several durations could detect, the rate
            of false alarms, and the setting of this host that harms measurements most.
    """
    duration = f"{counted(result.rounds, 'round')} in {in_seconds(result.seconds)}"
    found = result.estimate
    if found is None:
        return [f"{duration}."]
    lines = [
        f"{duration}; four of five such comparisons would detect a side that is "
        f"{_faster(found.visible)}."
    ]
    if is_null:
        lines += _null_lines(result, found.visible)
    return lines


def _null_lines(result: PairedResult, visible: float) -> list[str]:
    resolutions = [
        f"{_percent(_visible_after(result, visible, minutes))} in {minutes} min"
        for minutes in _MINUTES
    ]
    false = false_alarms(result.logs, result.rule, _PERMUTATIONS)
    harms = [
        f"{finding.what} {finding.value} ({finding.why})"
        for finding in host_findings()
        if finding.harms
    ]
    worst = harms[0] if harms else "no setting of this host"
    return [
        "Four of five comparisons of such a command on this machine would detect a difference of "
        f"{', '.join(resolutions)}.",
        f"False alarms: in {_PERMUTATIONS} repetitions of these rounds with randomly exchanged "
        f"sides, {_percent(false)} of the verdicts reported a difference.",
        f"Most harmful to measurements here: {worst}; python -m paradnn.check reports details.",
    ]


def _visible_after(result: PairedResult, visible: float, minutes: float) -> float:
    """Return the difference that a comparison of a given duration could detect, as a share.

    The width of the interval is inversely proportional to the square root of the number of rounds.

    Args:
        result: A completed comparison of the same sides.
        visible: The difference that `result` could detect, as a share.
        minutes: Duration of the comparison in minutes.
    """
    rounds = max(MIN_ROUNDS, result.rounds * 60 * minutes / result.seconds)
    return math.expm1(math.log1p(visible) * math.sqrt(result.rounds / rounds))


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without its empty columns; print nothing if it has no rows."""
    if not rows:
        return
    filled = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    columns = []
    for index in filled:
        if headings[index] in _TEXT_COLUMNS:
            columns.append(Column(headings[index], justify="left"))
        else:
            columns.append(Column(headings[index], justify="right"))
    cells = [[row[index] for index in filled] for row in rows]
    console = standard_output()
    console.print()
    console.print(fitting_table(console, columns, cells, ()))


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        standard_output().print(line, soft_wrap=True, markup=False, highlight=False)


def _format_number(value: float) -> str:
    return f"{value:,.6g}"


def _faster(share: float) -> str:
    """Return a gain in speed as text: "2.5% faster", or "4.2 times as fast" for 100% or more."""
    if share < 1:
        return f"{_percent(share)} faster"
    return f"{1 + share:.2g} times as fast"


def _percent(share: float) -> str:
    if share < 0.995:
        return f"{100 * share:.2g}%"
    return f"{100 * share:.0f}%"
