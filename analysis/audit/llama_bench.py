"""Reader for the outputs of llama-bench: Markdown table (the default), CSV, JSON and JSON lines.

All outputs state the mean and the standard deviation of the repetitions of a test. Only JSON has
the repetitions themselves and their number.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.audit.series import (
    Reading,
    child,
    children,
    finite_number,
    from_summary,
    from_values,
    text_conditions,
)

#: Fields that are not settings: build, results and time stamps, and the path of the model, which
#: differs between machines.
_RESULTS = frozenset(
    {
        "build_commit",
        "build_number",
        "model_filename",
        "model_n_params",
        "n_prompt",
        "n_gen",
        "n_depth",
        "test_time",
        "avg_ns",
        "stddev_ns",
        "avg_ts",
        "stddev_ts",
        "samples_ns",
        "samples_ts",
    }
)
#: Columns of the Markdown table that are not settings.
_TABLE_RESULTS = frozenset({"params", "test", "t/s"})
#: Tokens per second, then the standard deviation. A console that lacks "±" shows "+-" or "+/-".
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:\s*(?:±|\+/?-)\s*(\d+(?:\.\d+)?))?")
_INTEGER = re.compile(r"\d+")


def read_llama_bench(document: Any) -> Reading:
    """Read the tests of a llama-bench output: tokens per second, one series per test.

    Settings that vary within the file are part of the names; the others are conditions.

    Args:
        document: The tests of a JSON output under the key `llama-bench`, or a text with CSV or
            Markdown tables under the key `text`.

    Yields:
        A series per test, and the settings that all tests share.
    """
    tests = children(document, "llama-bench")
    text = child(document).get("text")
    if isinstance(text, str):
        tests = [*_csv_tests(text), *_table_tests(text)]
    names = [_name(test) for test in tests]
    settings = [_settings(test) for test in tests]
    values: dict[str, set[str]] = {}
    for test_settings in settings:
        for key, value in test_settings.items():
            values.setdefault(key, set()).add(value)
    varied = [key for key in sorted(values) if len(values[key]) > 1]
    for test, name, test_settings in zip(tests, names, settings, strict=True):
        distinction = ", ".join(f"{key}={test_settings[key]}" for key in varied if key in test)
        if distinction:
            name = f"{name} ({distinction})"
        series = from_values(name, "tokens/s", test.get("samples_ts"), better="higher")
        if series is None:
            summary = {"mean": test.get("avg_ts"), "stddev": test.get("stddev_ts")}
            series = from_summary(name, "tokens/s", summary, better="higher")
        yield series
    yield from text_conditions(
        {key: distinct.pop() for key, distinct in sorted(values.items()) if len(distinct) == 1}
    )


def _settings(test: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: str(value)
        for key, value in test.items()
        if key not in _RESULTS and key not in _TABLE_RESULTS
    }


def _name(test: Mapping[str, Any]) -> str:
    """Return the name that llama-bench prints for a test, such as "pp512+tg128 @ d1024".

    Args:
        test: A result of a JSON or CSV output, or a row of a Markdown table.
    """
    if "test" in test:
        # Versions of 2023 print "pp 512".
        return re.sub(r"^(pp|tg) ", r"\1", str(test["test"]))
    parts = []
    if finite_number(test.get("n_prompt")) > 0:
        parts.append(f"pp{test['n_prompt']}")
    if finite_number(test.get("n_gen")) > 0:
        parts.append(f"tg{test['n_gen']}")
    name = "+".join(parts)
    if finite_number(test.get("n_depth")) > 0:
        name += f" @ d{test['n_depth']}"
    return name


def _csv_tests(text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows below each CSV header of llama-bench in a text.

    A row maps each column to a number or a text, as in the JSON output.
    """
    header: list[str] = []
    for line in text.splitlines():
        cells = _csv_cells(line)
        if {"n_prompt", "n_gen", "avg_ts"} <= set(cells):
            header = cells
        elif header and len(cells) == len(header):
            yield {key: _number_or_text(cell) for key, cell in zip(header, cells, strict=True)}
        else:
            header = []


def _csv_cells(line: str) -> list[str]:
    """Return the cells of a line; empty if the line is blank or is not CSV."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # such as a field above the limit of the csv module
        return []


def _number_or_text(cell: str) -> float | str:
    if _INTEGER.fullmatch(cell):
        return int(cell)
    try:
        return float(cell)
    except ValueError:
        return cell


def _table_tests(text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of each Markdown table of llama-bench in a text.

    A row maps each column to its text. `avg_ts` and `stddev_ts` hold the rate and its standard
    deviation in tokens/s.
    """
    header: Sequence[str] = ()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "test" in cells and "t/s" in cells:
            header = cells
        elif header and len(cells) == len(header):
            test: dict[str, Any] = dict(zip(header, cells, strict=True))
            rate = _RATE.fullmatch(test["t/s"])
            if rate is None:
                # The line between the header and the rows.
                continue
            test["avg_ts"] = float(rate[1])
            # A single repetition has a standard deviation of zero.
            if rate[2] and float(rate[2]) > 0:
                test["stddev_ts"] = float(rate[2])
            yield test
        else:
            header = ()
