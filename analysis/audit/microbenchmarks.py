"""Readers for hyperfine, pytest-benchmark, Google Benchmark and asv.

Units, types of benchmark, repetitions and failures follow each harness's documentation and source.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.audit.series import (
    Direction,
    Note,
    Reading,
    Series,
    child,
    children,
    finite_number,
    from_summary,
    from_values,
    text_conditions,
)
from paradnn.core.words import counted

_MAX_LISTED_FAILURES = 5


def read_hyperfine(document: Any) -> Reading:
    """Read `hyperfine --export-json`: seconds per run of each command.

    Args:
        document: The parsed file.
    """
    entries = children(document, "results")
    occurrences = Counter(str(entry.get("command", "?")) for entry in entries)
    for entry in entries:
        command = str(entry.get("command", "?"))
        name = " ".join(command.split())
        parameters = child(entry, "parameters")
        if occurrences[command] > 1 and parameters:
            settings = ", ".join(f"{key}={value}" for key, value in parameters.items())
            name = f"{name} ({settings})"
        times, note = _without_failures(entry)
        series = from_values(name, "s", times, command=command)
        if series is None:
            series = from_summary(name, "s", entry, command=command)
        yield series
        yield from _hyperfine_zeros(name, times)
        if note:
            yield Note(f"{name}: {note}")


def _without_failures(entry: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the times of the successful runs of a command, and a note about failed runs.

    If all runs failed, or the file does not say which runs failed, return the times of all runs.

    Args:
        entry: Results of hyperfine for one command.

    Returns:
        The times in seconds as a JSON value, and the note; empty if no run failed.
    """
    times = entry.get("times")
    exit_codes = entry.get("exit_codes")
    if not isinstance(exit_codes, list):
        return times, ""
    # A null exit code is a run that a signal ended.
    has_failed = [code != 0 for code in exit_codes]
    failed = sum(has_failed)
    if not failed:
        return times, ""
    runs = counted(len(exit_codes), "run")
    if failed == len(has_failed) or not isinstance(times, list) or len(times) != len(has_failed):
        return times, f"{failed} of {runs} failed; the times include failed runs"
    kept = [time for time, is_failed in zip(times, has_failed, strict=True) if not is_failed]
    return kept, f"{failed} of {runs} failed and are excluded"


def _hyperfine_zeros(name: str, times: Any) -> Reading:
    """Report times that are zero after hyperfine has subtracted the start-up time of the shell."""
    if not isinstance(times, list):
        return
    zeros = sum(finite_number(time) == 0 for time in times)
    if zeros:
        yield Note(
            f"{name}: {zeros} of {counted(len(times), 'time')} are zero and excluded, because the "
            "command takes no longer than the shell that starts it; "
            "measure it with hyperfine --shell=none"
        )


def read_pytest_benchmark(document: Any) -> Reading:
    """Read `pytest --benchmark-json` or a saved run: seconds per call, one value per round.

    Args:
        document: The parsed file.
    """
    machine = child(document, "machine_info")
    yield from text_conditions(
        {
            "machine": machine.get("node"),
            "processor": child(machine, "cpu").get("brand_raw"),
            "Python version": machine.get("python_version"),
        }
    )
    for entry in children(document, "benchmarks"):
        summary = child(entry, "stats")
        name = str(entry.get("fullname", entry.get("name", "?")))
        # The raw values are in the file only with --benchmark-json or --benchmark-save-data.
        yield from_values(name, "s", summary.get("data")) or from_summary(name, "s", summary)


_GOOGLE_AGGREGATE = re.compile(r"(.+)_(mean|median|stddev|cv|BigO|RMS)")


def read_google_benchmark(document: Any) -> Reading:
    """Read `--benchmark_out_format=json`: real time per iteration, one value per repetition.

    A file of `--benchmark_report_aggregates_only` contains the mean, median and standard deviation
    of the repetitions instead.

    Args:
        document: The parsed file of Google Benchmark.
    """
    context = child(document, "context")
    yield from text_conditions(
        {"machine": context.get("host_name"), "number of processors": context.get("num_cpus")}
    )
    # Benchmarks that were registered twice differ only in `family_index`.
    repetitions: dict[tuple[Any, str, str], list[Any]] = {}
    aggregates: dict[tuple[Any, str, str], dict[str, Any]] = {}
    entries = children(document, "benchmarks")
    names = {str(entry.get("name", "?")) for entry in entries}
    for entry in entries:
        name = str(entry.get("run_name", entry.get("name", "?")))
        if entry.get("error_occurred") is True or entry.get("skipped") is True:
            yield _google_failure(name, entry)
            continue
        family = entry.get("family_index")
        unit = str(entry.get("time_unit", "ns"))
        key = (family, name, unit)
        aggregate = _google_aggregate(entry, names)
        if not aggregate:
            repetitions.setdefault(key, []).append(entry.get("real_time"))
        elif entry.get("aggregate_unit", "time") == "time":
            benchmark, statistic = aggregate
            key = (family, benchmark, unit)
            summary = aggregates.setdefault(key, {"count": entry.get("repetitions")})
            summary[statistic] = entry.get("real_time")
    for (_, name, unit), values in repetitions.items():
        yield from_values(name, unit, values)
    for key, summary in aggregates.items():
        if key not in repetitions:
            _, name, unit = key
            yield from_summary(name, unit, summary)
    if context.get("cpu_scaling_enabled") is True:
        yield Note("CPU frequency scaling was enabled, as the harness itself warns")
    if context.get("library_build_type") == "debug":
        yield Note("the benchmark library was a debug build, so its overhead is large")


def _google_aggregate(entry: Mapping[str, Any], names: set[str]) -> tuple[str, str] | None:
    """Return the names of benchmark and statistic if an entry summarizes repetitions, else None.

    Versions before 1.5 write no `run_type`, so the suffix of the name must show it. A suffix, such
    as `_mean`, counts only if the file also has the standard deviation of the benchmark.

    Args:
        entry: An entry of the list `benchmarks`.
        names: The names of all entries.
    """
    name = str(entry.get("name", "?"))
    run_type = entry.get("run_type")
    if run_type == "aggregate":
        benchmark = str(entry.get("run_name", name))
        return benchmark, str(entry.get("aggregate_name", ""))
    match = _GOOGLE_AGGREGATE.fullmatch(name)
    if run_type is None and match and f"{match[1]}_stddev" in names:
        return match[1], match[2]
    return None


def _google_failure(name: str, entry: Mapping[str, Any]) -> Note:
    if entry.get("error_occurred") is True:
        message = entry.get("error_message")
        outcome = "failed"
    else:
        message = entry.get("skip_message")
        outcome = "was skipped"
    if message:
        return Note(f"{name} {outcome}: {message}")
    return Note(f"{name} {outcome}")


#: Pattern of the function name of an asv benchmark, and the unit and better direction of its
#: metric. The unit of `track_` benchmarks is only in the suite's benchmarks.json.
_ASV_KINDS: tuple[tuple[re.Pattern[str], str, Direction], ...] = (
    (re.compile(r"(time|timeraw)_|(Time|Timeraw)[A-Z_]"), "s", "lower"),
    (re.compile(r"(mem|peakmem)_|(Mem|PeakMem)[A-Z_]"), "B", "lower"),
)


def read_asv(document: Any) -> Reading:
    """Read a result file of asv (format versions 1 and 2).

    A result is the median of the samples of a benchmark, for each combination of its parameters.
    null marks a failed benchmark, NaN a skipped benchmark.

    Args:
        document: The parsed file.
    """
    columns = child(document).get("result_columns")
    machine = child(document, "params")
    yield from text_conditions(
        {
            "machine": machine.get("machine"),
            "processor": machine.get("cpu"),
            "Python version": machine.get("python"),
        }
    )
    failures: list[str] = []
    number_of_results = 0
    for name, entry in child(document, "results").items():
        cells = _asv_cells(entry, columns)
        results = cells.get("result")
        if not isinstance(results, list):
            results = [results]
        names = _asv_names(str(name), cells.get("params"), len(results))
        number_of_results += len(results)
        for position, (full_name, result) in enumerate(zip(names, results, strict=True)):
            if result is None:
                failures.append(full_name)
            yield _asv_series(full_name, result, cells, position)
    if failures:
        listed = ", ".join(failures[:_MAX_LISTED_FAILURES])
        if len(failures) > _MAX_LISTED_FAILURES:
            listed += f" and {len(failures) - _MAX_LISTED_FAILURES} more"
        yield Note(f"{len(failures)} of {counted(number_of_results, 'result')} failed: {listed}")


def _asv_cells(entry: Any, columns: Any) -> Mapping[str, Any]:
    """Return the values of a benchmark by column, for the three layouts that asv has used.

    Args:
        entry: Value of the benchmark in the object `results`.
        columns: Names of the columns, the value of `result_columns`; None in older files.
    """
    if isinstance(entry, Mapping):
        return entry
    if isinstance(entry, list) and isinstance(columns, list):
        # asv omits trailing columns without a value.
        return dict(zip(map(str, columns), entry, strict=False))
    return {"result": entry}


def _asv_names(name: str, parameters: Any, count: int) -> list[str]:
    """Return the names of the results of a benchmark, in the order of the results.

    The results follow the Cartesian product of the parameters; the last parameter varies fastest.

    Args:
        name: Name of the benchmark.
        parameters: A list of values for each parameter, as JSON.
        count: Number of results.
    """
    if isinstance(parameters, list) and all(isinstance(values, list) for values in parameters):
        combinations = list(itertools.product(*parameters))
        if parameters and len(combinations) == count:
            return [f"{name}({', '.join(map(str, values))})" for values in combinations]
    if count == 1:
        return [name]
    return [f"{name}[{position}]" for position in range(count)]


def _asv_series(name: str, result: Any, cells: Mapping[str, Any], position: int) -> Series | None:
    unit, better = _asv_kind(name)
    version = str(cells.get("version") or "")
    samples = _at(cells.get("samples"), position)
    series = from_values(name, unit, samples, better=better, version=version)
    if series is not None and math.isfinite(finite_number(result)):
        return series
    statistics = _at(cells.get("stats"), position)
    if not isinstance(statistics, Mapping):
        statistics = {}
    repeats = _at(cells.get("stats_repeat"), position) or statistics.get("repeat")
    summary = {"median": result, "count": repeats}
    return from_summary(name, unit, summary, better=better, version=version)


def _asv_kind(name: str) -> tuple[str, Direction]:
    """Return the unit and the better direction ("higher", "lower" or "unknown") of a benchmark.

    The prefix of the function's name determines both, such as `time_`.

    Args:
        name: `module.function` or `module.Class.method`; parameters follow in brackets.
    """
    function = re.split(r"[(\[]", name, maxsplit=1)[0].rpartition(".")[2]
    for pattern, unit, better in _ASV_KINDS:
        if pattern.match(function):
            return unit, better
    return "", "unknown"


def _at(values: Any, position: int) -> Any:
    if isinstance(values, Sequence) and not isinstance(values, str) and position < len(values):
        return values[position]
    return None
