"""Readers for benchmark tools of single languages: pyperf, JMH, Go's testing package, Criterion.rs.

Units, kinds of benchmark, repetitions and failures are read as each tool's documentation and source
define them.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.audit.series import (
    SECONDS_PER_UNIT,
    Direction,
    Note,
    Reading,
    child,
    children,
    finite_number,
    from_summary,
    from_values,
    text_conditions,
)

#: Unit of a benchmark's values by pyperf's metadata `unit`.
_PYPERF_UNITS = {"second": "s", "byte": "B", "integer": ""}


def read_pyperf(document: Any) -> Reading:
    """Read the JSON file of `pyperf ... -o FILE`: the values of all worker processes.

    Args:
        document: The parsed file. Metadata that all benchmarks share are stored at its top level. A
            run without values served only to calibrate the number of loops, and is ignored.
    """
    shared = child(document, "metadata")
    for entry in children(document, "benchmarks"):
        runs = children(entry, "runs")
        if not runs:
            continue
        metadata = {**shared, **child(entry, "metadata")}
        if not child(runs[0], "metadata").keys().isdisjoint({"hostname", "cpu_model_name"}):
            metadata = {**child(runs[0], "metadata"), **metadata}
        yield from text_conditions(
            {
                "machine": metadata.get("hostname"),
                "processor": metadata.get("cpu_model_name"),
                "Python version": metadata.get("python_version"),
            }
        )
        values = [value for run in runs for value in _as_list(run.get("values"))]
        unit = _PYPERF_UNITS.get(str(metadata.get("unit", "second")), "")
        better: Direction = "unknown"
        if unit:
            better = "lower"
        yield from_values(str(metadata.get("name", "?")), unit, values, better=better)


def read_jmh(document: Any) -> Reading:
    """Read the JSON results of JMH (`-rf json`): one value per measured iteration of each fork.

    In mode `thrpt`, values are operations per unit of time. In all other modes, they are times per
    operation. In mode `sample`, a histogram replaces the values, so the series has only a median, a
    mean and a count.

    Args:
        document: A mapping whose key `jmh` holds the list of results in the file.
    """
    entries = children(document, "jmh")
    first: Mapping[str, Any] = {}
    if entries:
        first = entries[0]
    yield from text_conditions(
        {"Java version": first.get("jdkVersion"), "JVM": first.get("vmName")}
    )
    modes = Counter(_jmh_name(entry) for entry in entries)
    for entry in entries:
        name = _jmh_name(entry)
        if modes[name] > 1:
            name = f"{name} [{entry.get('mode', '?')}]"
        metric = child(entry, "primaryMetric")
        unit, scale, better = _jmh_unit(str(metric.get("scoreUnit", "")))
        values = [
            scale * finite_number(value)
            for fork in _as_list(metric.get("rawData"))
            for value in _as_list(fork)
        ]
        summary = {
            "p50": scale * finite_number(child(metric, "scorePercentiles").get("50.0")),
            "mean": scale * finite_number(metric.get("score")),
            "count": _histogram_count(metric.get("rawDataHistogram")),
        }
        yield from_values(name, unit, values, better=better) or from_summary(
            name, unit, summary, better=better
        )


def _jmh_name(entry: Mapping[str, Any]) -> str:
    parameters = child(entry, "params")
    name = str(entry.get("benchmark", "?"))
    settings = [f"{key}={value}" for key, value in parameters.items()]
    threads = entry.get("threads", 1)
    if threads != 1:
        settings.append(f"{threads} threads")
    if settings:
        name += f" ({', '.join(settings)})"
    return name


def _jmh_unit(unit: str) -> tuple[str, float, Direction]:
    """Convert the unit of a JMH score to a canonical unit.

    Args:
        unit: The unit in the file, such as "ms/op" or "ops/us".

    Returns:
        Three values:

        - the canonical unit: "s" for a time per operation, "1/s" for a rate;
        - the number by which a score is multiplied to convert it to that unit;
        - whether "lower" or "higher" scores are better.

        An unknown unit is returned unchanged, with the factor 1.0 and "unknown".
    """
    numerator, _, denominator = unit.partition("/")
    if denominator == "op" and numerator in SECONDS_PER_UNIT:
        return "s", SECONDS_PER_UNIT[numerator], "lower"
    if numerator == "ops" and denominator in SECONDS_PER_UNIT:
        return "1/s", 1 / SECONDS_PER_UNIT[denominator], "higher"
    return unit, 1.0, "unknown"


def _histogram_count(forks: Any) -> float:
    """Return the number of observations in the histograms of JMH.

    Args:
        forks: The JSON value `rawDataHistogram`: a list of forks. A fork is a list of iterations,
            and an iteration is a list of [value, count] pairs.
    """
    pairs = (
        pair
        for fork in _as_list(forks)
        for iteration in _as_list(fork)
        for pair in _as_list(iteration)
    )
    counts = (finite_number(_as_list(pair)[-1]) for pair in pairs if _as_list(pair))
    return sum(count for count in counts if count > 0)


_GO_RESULT = re.compile(r"^(Benchmark\S*)[ \t]+\d+((?:[ \t]+\S+[ \t]+\S+)+)[ \t]*$")
_GO_SETTING = re.compile(r"^(goos|goarch|pkg|cpu):[ \t]*(.+?)[ \t]*$")
_GO_FAILURE = re.compile(r"^[ \t]*--- (?:FAIL|SKIP): (Benchmark\S*)")
#: "Unit NAME better=higher" declares the direction of a unit (golang.org/design/14313).
_GO_UNIT = re.compile(r"^Unit[ \t]+(\S+)[ \t]+.*\bbetter=(higher|lower)\b")
_GO_DIRECTIONS: dict[str, Direction] = {
    "ns/op": "lower",
    "B/op": "lower",
    "allocs/op": "lower",
    "MB/s": "higher",
}


def read_go(document: Any) -> Reading:
    """Read the output of `go test -bench`: one value per unit and repetition (`-count`).

    The format is https://go.googlesource.com/proposal/+/master/design/14313-benchmark-format.md.

    Args:
        document: A mapping whose key `text` holds the output.
    """
    text = _GoText()
    for line in str(child(document).get("text", "")).splitlines():
        text.add_line(line)
    if not text.results:
        return
    settings = {name: ", ".join(sorted(values)) for name, values in text.settings.items()}
    yield from text_conditions(
        {
            "processor": settings.get("cpu"),
            "operating system": settings.get("goos"),
            "architecture": settings.get("goarch"),
        }
    )
    has_packages = len(text.settings.get("pkg", ())) > 1
    for (package, benchmark, unit), values in text.results.items():
        name = benchmark
        if has_packages:
            name = f"{package} {name}"
        if unit != "ns/op":
            name += f" {unit}"
        canonical, scale = _go_unit(unit)
        better = text.directions.get(unit, "unknown")
        yield from_values(name, canonical, [scale * value for value in values], better=better)
    for benchmark in dict.fromkeys(text.failures):
        yield Note(f"{benchmark} failed or was skipped")


class _GoText:
    """The content of a text in Go's benchmark format.

    Attributes:
        settings: Key -> the distinct values in lines of the form "key: value".
        results: (package, benchmark, unit) -> values.
        directions: Unit -> "higher" or "lower", the direction of better values.
        failures: Benchmarks that failed or were skipped.
    """

    def __init__(self) -> None:
        self.settings: dict[str, set[str]] = {}
        self.results: dict[tuple[str, str, str], list[float]] = {}
        self.directions = dict(_GO_DIRECTIONS)
        self.failures: list[str] = []
        self._package = ""

    def add_line(self, line: str) -> None:
        setting = _GO_SETTING.match(line)
        result = _GO_RESULT.match(line)
        failure = _GO_FAILURE.match(line)
        unit = _GO_UNIT.match(line)
        if setting:
            self.settings.setdefault(setting[1], set()).add(setting[2])
            if setting[1] == "pkg":
                self._package = setting[2]
        elif result:
            words = result[2].split()
            for value, name in zip(words[::2], words[1::2], strict=True):
                key = (self._package, result[1], name)
                self.results.setdefault(key, []).append(_parse_number(value))
        elif failure:
            self.failures.append(failure[1])
        elif unit:
            self.directions[unit[1]] = "higher" if unit[2] == "higher" else "lower"


def _go_unit(unit: str) -> tuple[str, float]:
    """Convert a unit of Go's benchmark format to a canonical unit.

    Args:
        unit: The unit in the file, such as "ns/op".

    Returns:
        The canonical unit, such as "s", and the number by which a value is multiplied to convert it
        to that unit. An unknown unit is returned unchanged, with the factor 1.0.
    """
    if unit == "ns/op":
        return "s", 1e-9
    if unit == "B/op":
        return "B", 1.0
    if unit == "MB/s":
        return "B/s", 1e6
    return unit, 1.0


_CRITERION_TIME = re.compile(
    r"^(?P<name>\S.*?)?[ \t]+time:[ \t]+\[(?P<low>\S+ \S+) (?P<typical>\S+ \S+) (?P<high>\S+ \S+)\]"
)
_LIBTEST_TIME = re.compile(
    r"^test (?P<name>.+?)[ \t]+\.\.\. bench:[ \t]+(?P<value>[\d,.]+) ns/iter \(\+/- (?P<range>[\d,.]+)\)"
)
#: Folders of the latest run and of the run before it.
_CRITERION_RUNS = ("new", "base")
_CRITERION_SECONDS = {
    "ps": 1e-12,
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1,
}


def read_criterion(document: Any) -> Reading:
    """Read results of Criterion.rs or of `cargo bench`.

    Args:
        document: Results from one of these sources:

            - A file sample.json or estimates.json below target/criterion. It contains times in
              nanoseconds, but not the name of the benchmark. `with_name` must have added the name
              under the key `name`.
            - The messages of `cargo criterion --message-format=json`, under the key `criterion`.
            - The output of `cargo bench`, under the key `text`.
    """
    name = str(child(document).get("name", "?"))
    if "sampling_mode" in child(document):
        yield from_values(name, "ns", _per_iteration(document.get("iters"), document.get("times")))
    elif "point_estimate" in child(document, "std_dev"):
        # The file of relative changes has the same layout without a standard deviation.
        yield from_summary(
            name,
            "ns",
            {
                "median": child(document, "median").get("point_estimate"),
                "std": child(document, "std_dev").get("point_estimate"),
            },
        )
    for message in children(document, "criterion"):
        if message.get("reason") != "benchmark-complete":
            continue
        values = _per_iteration(message.get("iteration_count"), message.get("measured_values"))
        yield from_values(str(message.get("id", "?")), str(message.get("unit", "ns")), values)
    yield from _criterion_text(str(child(document).get("text", "")).splitlines())


def with_name(document: Any, path: Path) -> Any:
    """Return the content of a file of Criterion.rs with the name of the benchmark under `name`.

    Criterion.rs states the name of a benchmark only in the path of its file.

    Args:
        document: Content of the file. Files of other benchmark tools are returned unchanged.
        path: Path of the file: `.../criterion/NAME/new/sample.json`, with `base` instead of `new`
            for the previous run.
    """
    is_sample = "sampling_mode" in child(document)
    if not is_sample and "point_estimate" not in child(document, "std_dev"):
        return document
    parts = list(path.absolute().parent.parts)
    if parts[-1] in _CRITERION_RUNS:
        parts.pop()
    if "criterion" in parts[:-1]:
        start = len(parts) - parts[::-1].index("criterion")
    else:
        start = len(parts) - 1
    return {**document, "name": "/".join(parts[start:])}


def _criterion_text(lines: Sequence[str]) -> Reading:
    previous = ""
    for line in lines:
        match = _CRITERION_TIME.match(line)
        if match:
            # A long name is on the line before the times.
            name = match["name"] or previous
            center = _criterion_seconds(match["typical"])
            yield from_summary(name, "s", {"mean": center})
        match = _LIBTEST_TIME.match(line)
        if match:
            yield from_summary(match["name"], "ns", {"median": _parse_number(match["value"])})
        previous = line.strip()


def _criterion_seconds(text: str) -> float:
    value, _, unit = text.partition(" ")
    return _parse_number(value) * _CRITERION_SECONDS.get(unit, math.nan)


def _per_iteration(counts: Any, totals: Any) -> list[float]:
    """Return the mean time of an iteration in each sample.

    Args:
        counts: Number of iterations of each sample, as a JSON list.
        totals: Total time of each sample, as a JSON list of the same length.

    Returns:
        Times in the unit of `totals`. Samples without iterations are omitted.
    """
    pairs = zip(_as_list(counts), _as_list(totals), strict=False)
    numbers = ((finite_number(count), finite_number(total)) for count, total in pairs)
    return [total / count for count, total in numbers if count > 0]


def _as_list(value: Any) -> list[Any]:
    """Return a JSON value if it is a list; an empty list for any other value."""
    if isinstance(value, list):
        return value
    return []


def _parse_number(text: str) -> float:
    """Parse a number with commas between thousands; NaN if the text is not a number."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
