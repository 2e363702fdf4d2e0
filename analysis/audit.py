"""`audit`: what may be concluded from the results of other harnesses, and what would have to be
measured to know more.

A file holds series of one session, most of them one after the other: how they scatter within it,
and no more. Two files are two sessions, and their difference is the benchmarks' and the hours'
together; with three or more sessions a side (`--against`) a session is one observation, and Welch's
t over them carries a verdict.
"""

import contextlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from analysis.columns import format_values
from analysis.format import short
from analysis.lazy import stats
from analysis.options import Arguments, Selection, option
from paradnn.cli.console import say
from paradnn.core.errors import ConfigError, DataError
from paradnn.core.words import counted
from paradnn.store.files import write_json

MOST_BYTES = 64 * 2**20  # JSON of this size takes about ten times as much memory
SESSIONS = 3  # that each side needs for a verdict
_SHOWN = 20  # series that are written out


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Arguments):
    """Which files."""

    files: tuple[str, ...] = option(
        text="results of one side, a file a session",
        metavar="FILE",
        positional=True,
        several="words",
    )
    against: tuple[str, ...] | None = option(
        None, "results of the other side", metavar="FILE", several="words"
    )
    json: str | None = option(None, "write the findings to FILE", metavar="FILE")


@dataclass(frozen=True)
class Series:
    """A number that was measured, in `unit`: the median (else the mean) of `count`, their standard
    deviation (NaN where it is not said), and they themselves in the order of time where the file
    has them. `higher`: more is better.
    """

    name: str
    unit: str
    middle: float
    spread: float = math.nan
    count: int = 1
    values: tuple[float, ...] = ()
    higher: bool = False


class Results(NamedTuple):
    """What a file holds, with what its harness says of failures."""

    file: str
    kind: str
    series: tuple[Series, ...]
    notes: tuple[str, ...]


class AuditFinding(NamedTuple):
    """A sentence about a series, or about a ratio with its 95% interval (NaN where there is none)."""

    about: str
    sentence: str
    verdict: str = ""
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan


#: What a reader gives of a JSON document: series, None for what is no positive number, and
#: sentences of what failed; nothing of another harness's document. What is no JSON object comes as
#: one with the key `text`.
Read = Iterator[Series | str | None]


def _number(value: Any) -> float:
    """A finite number, else NaN."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value)
        else:
            number = math.nan
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _series(
    name: Any, unit: str, cells: Mapping[str, Any], raw: Any = None, higher: bool = False
) -> Series | None:
    """A series from a list of raw values, but for those that are no positive numbers; else from the
    cells of a summary, however they are called; None where there is neither.
    """

    def cell(*names: str) -> float:
        return _number(next((cells[each] for each in names if each in cells), None))

    if isinstance(raw, list):
        known = tuple(value for value in map(_number, raw) if value > 0)
    else:
        known = ()
    if known:
        scatter = statistics.stdev(known) if len(known) > 1 else math.nan
        return Series(str(name), unit, statistics.median(known), scatter, len(known), known, higher)
    middle = cell("median", "p50", "mean", "avg")
    count = cell("count", "rounds")
    if not middle > 0:
        return None
    spread = cell("stddev", "std_dev", "std")
    return Series(str(name), unit, middle, spread, int(count) if count >= 1 else 1, (), higher)


def _entries(document: Any, key: str) -> list[Mapping[str, Any]]:
    """The objects in a list of an object; none where it is another thing."""
    found = document.get(key) if isinstance(document, Mapping) else None
    if isinstance(found, list):
        return [entry for entry in found if isinstance(entry, Mapping)]
    return []


def _inner(entry: Any, *keys: str) -> Mapping[str, Any]:
    """An object within objects; an empty one where there is none."""
    for key in keys:
        entry = entry.get(key) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, Mapping) else {}


def _hyperfine(document: Any) -> Read:
    for entry in _entries(document, "results"):
        name = entry.get("command", "?")
        codes = entry.get("exit_codes")
        yield _series(name, "s", entry, entry.get("times"))
        if isinstance(codes, list) and (failed := sum(code != 0 for code in codes)):
            yield f"{name}: {failed} of {len(codes)} runs failed, and their times are among the others"


def _pytest(document: Any) -> Read:
    for entry in _entries(document, "benchmarks"):
        cells = _inner(entry, "stats")
        yield _series(entry.get("fullname", entry.get("name", "?")), "s", cells, cells.get("data"))


def _google(document: Any) -> Read:
    values: dict[tuple[str, str], list[Any]] = {}
    for entry in _entries(document, "benchmarks"):
        name = str(entry.get("run_name", entry.get("name", "?")))
        if entry.get("error_occurred"):
            yield f"{name} failed"
        elif entry.get("run_type", "iteration") == "iteration":
            values.setdefault((name, str(entry.get("time_unit", "ns"))), []).append(
                entry.get("real_time")
            )
    if _inner(document, "context").get("cpu_scaling_enabled") is True:
        yield "the processor's clock was scaled while this was measured (its own warning)"
    yield from (_series(name, unit, {}, found) for (name, unit), found in values.items())


def _asv(document: Any) -> Read:
    columns = document.get("result_columns")
    for name, found in _inner(document, "results").items():
        cells: Mapping[str, Any] = found if isinstance(found, Mapping) else {"result": found}
        if isinstance(found, list) and isinstance(columns, list) and columns:
            cells = dict(zip(columns, found, strict=False))
        numbers = cells.get("result")
        samples = cells.get("samples")
        numbers = numbers if isinstance(numbers, list) else [numbers]
        for place, value in enumerate(numbers):
            if isinstance(samples, list) and place < len(samples):
                own = samples[place]
            else:
                own = None
            yield _series(
                name if len(numbers) == 1 else f"{name}[{place}]", "s", {"median": value}, own
            )


#: Of load tests: what stands in a summary, and whether more is better.
_AIPERF = {
    "request_throughput": True,
    "output_token_throughput": True,
    "request_latency": False,
    "time_to_first_token": False,
    "inter_token_latency": False,
}


def _aiperf(document: Any) -> Read:
    body = _inner(document, "records") or document
    for name, higher in _AIPERF.items():
        cells = _inner(body, name)
        yield _series(name, str(cells.get("unit", "")), cells, higher=higher)
    yield from _lost("", _inner(body, "error_request_count").get("avg"))


def _guidellm(document: Any) -> Read:
    for place, entry in enumerate(_entries(document, "benchmarks"), 1):
        for name, found in _inner(entry, "metrics").items():
            higher = "per_second" in name
            unit = (
                "ms"
                if name.endswith("_ms")
                else "s"
                if "latency" in name
                else "1/s"
                if higher
                else ""
            )
            if unit:
                yield _series(
                    f"{name} (load {place})", unit, _inner(found, "successful"), higher=higher
                )
        totals = _inner(entry, "metrics", "request_totals") or _inner(
            entry, "run_stats", "requests_made"
        )
        yield from _lost(f"load {place}: ", totals.get("errored"))


def _vllm(document: Any) -> Read:
    for name in ("request_throughput", "output_throughput"):
        yield _series(name, "1/s", {"mean": document.get(name)}, higher=True)
    for name in ("ttft", "tpot", "itl", "e2el"):
        keys = {word: f"{word}_{name}_ms" for word in ("median", "mean", "std")}
        cells = {word: document[key] for word, key in keys.items() if key in document}
        yield _series(f"{name}_ms", "ms", {**cells, "count": document.get("completed")})
    yield from _lost("", document.get("failed"))


def _lost(begin: str, count: Any) -> Read:
    failed = _number(count)
    if failed > 0:
        yield f"{begin}{failed:.0f} requests failed"


def _loadgen(document: Any) -> Read:
    text = str(document.get("text", ""))
    if "MLPerf Results Summary" not in text:
        return
    cells = dict(re.findall(r"^\s*([^:\n=]{1,60}?)\s*:\s*(.{1,60}?)\s*$", text, flags=re.MULTILINE))
    for name, value in cells.items():
        higher = "per second" in name
        with contextlib.suppress(ValueError):
            if higher or name.endswith("latency (ns)"):
                unit = "1/s" if higher else "ns"
                yield _series(
                    name.removesuffix(" (ns)"), unit, {"mean": float(value)}, higher=higher
                )
    valid = cells.get("Result is", "VALID")
    if valid != "VALID":
        yield f"its own rules call it {valid}"


#: By the harness that writes such files.
READERS: dict[str, Callable[[Mapping[str, Any]], Read]] = {
    "hyperfine": _hyperfine,
    "pytest-benchmark": _pytest,
    "Google Benchmark": _google,
    "asv": _asv,
    "GuideLLM": _guidellm,
    "AIPerf": _aiperf,
    "vllm bench": _vllm,
    "LoadGen": _loadgen,
}


def read_results(path: Path) -> Results:
    """What a file holds; DataError for one that cannot be read, or holds no number of a kind that
    is known.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(
                f"{path} has over {MOST_BYTES // 2**20} MiB: give the summary that the harness wrote"
            )
        text = path.read_text(errors="replace")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); give a file of results"
        ) from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    for kind, reads in READERS.items():
        read = [*reads(document if isinstance(document, dict) else {"text": text})]
        series = tuple(one for one in read if isinstance(one, Series))
        if series:
            return Results(
                str(path), kind, series, tuple(one for one in read if isinstance(one, str))
            )
    known = ", ".join(READERS)
    raise DataError(
        f"{path} holds no number above zero of a kind that is known; give results of {known}"
    )


def conclusions(sides: Sequence[Sequence[Results]]) -> Iterator[AuditFinding]:
    """What one side's files say, or two sides' against each other, series by series."""
    for results in (result for side in sides for result in side):
        yield from (AuditFinding(results.file, f"{note}.") for note in results.notes)
    if len(sides) == 1:
        for results in sides[0]:
            yield from map(_within, results.series)
            yield from _beside(results.series)
        return
    first, second = (_by_name(side) for side in sides)
    shared = [name for name in first if name in second]
    if not shared:
        raise DataError(
            f"no benchmark is in both: {format_values({*first}, 5)} against {format_values({*second}, 5)}; give files of the same"
        )
    yield from (_between(first[name], second[name]) for name in shared)
    for called, side, other in (("first", first, second), ("second", second, first)):
        alone = [name for name in side if name not in other]
        if alone:
            yield AuditFinding(
                "", f"In files of the {called} side alone: {format_values({*alone}, 5)}."
            )


def _within(series: Series) -> AuditFinding:
    """How a series scatters, and whether it was steady."""
    shown = _shown(series.middle, series.unit)
    if series.count < 2:
        return AuditFinding(
            series.name, f"{shown}: a single number; how it would repeat is not known."
        )
    if series.spread > 0:
        scatter = f", standard deviation {short(series.spread / series.middle, share=True)}"
    else:
        scatter = ""
    words = f"{shown} in the median of {counted(series.count, 'run')}{scatter}, in one session."
    values = series.values
    half = len(series.values) // 2
    if len(values) < 10:
        return AuditFinding(series.name, words)
    change = statistics.median(values[half:]) / statistics.median(values[:half]) - 1
    if stats.spearmanr(range(len(values)), values).pvalue < 0.01 and abs(change) > 0.01:
        words += f" Not steady: the second half differs by {100 * change:+.2g}% from the first."
    slowest = max(values) / series.middle
    if slowest > max(1.5, 2 * series.middle / min(values)):
        words += (
            f" Its slowest run took {short(slowest)} times the median: other work, or a first run."
        )
    return AuditFinding(series.name, words)


def _beside(series: Sequence[Series]) -> Iterator[AuditFinding]:
    """The series of one file, such as hyperfine's commands, against the first of the same unit."""
    first, *others = [one for one in series if one.unit == series[0].unit and one.values] or [
        series[0]
    ]
    for other in others if len(others) < _SHOWN else ():
        ratio = first.middle / other.middle
        remedy = f"paradnn compare '{first.name}' '{other.name}' runs both by turns"
        apart = f"They differ by {100 * abs(ratio - 1):.2g}%, but one was measured before the other"
        sentence = f"{apart}: a drift of the machine looks the same. No verdict; {remedy}."
        yield AuditFinding(f"{first.name} and {other.name}", sentence, "no verdict", ratio)


def _between(first: Sequence[Series], second: Sequence[Series]) -> AuditFinding:
    """A series of both sides, each with its sessions; the ratio is how many times as good the first
    side is.
    """
    logs = [
        [math.log(one.middle) * (1 if one.higher else -1) for one in side]
        for side in (first, second)
    ]
    name = first[0].name
    ratio = math.exp(statistics.fmean(logs[0]) - statistics.fmean(logs[1]))
    apart = f"The sides differ by {100 * abs(ratio - 1):.2g}%"
    one, two = map(len, logs)
    if min(one, two) < SESSIONS:
        if max(one, two) == 1:
            runs = "one session each"
        else:
            runs = f"{one} and {two} sessions"
        words = f"{apart}: {runs}, no verdict; {SESSIONS} or more a side, by turns, would tell."
        return AuditFinding(name, words, "no verdict", ratio)
    if not any(map(statistics.variance, logs)):
        return AuditFinding(
            name, f"{apart}: sessions are copies of each other.", "no verdict", ratio
        )
    ends = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)  # Welch's
    low = math.exp(ends.low)
    high = math.exp(ends.high)
    verdict = "undecided"
    words = f"{apart}, which their scatter explains"
    if low > 1 or high < 1:
        verdict, side, times = (
            ("faster", "first", ratio) if low > 1 else ("slower", "second", 1 / ratio)
        )
        words = f"The {side} side is {times:.3g} times as good"
    basis = f"95% interval of the ratio {low:.3g} to {high:.3g} over {one} and {two} sessions"
    sentence = f"{words} ({basis}), if the sessions of both sides alternated in time."
    return AuditFinding(name, sentence, verdict, ratio, low, high)


def _by_name(side: Sequence[Results]) -> dict[str, list[Series]]:
    found: dict[str, list[Series]] = {}
    for series in (series for results in side for series in results.series):
        found.setdefault(series.name, []).append(series)
    return found


def _shown(value: float, unit: str) -> str:
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    if unit not in scale:
        return short(value, unit, digits=3)
    name = next((name for name in ("s", "ms", "us") if value * scale[unit] >= scale[name]), "ns")
    return f"{value * scale[unit] / scale[name]:.3g} {name}"


def audit(options: AuditOptions, selection: Selection) -> None:
    """Read result files of hyperfine, pytest-benchmark, asv, Google Benchmark, AIPerf, GuideLLM,
    vllm bench and LoadGen, and say what they show and what they cannot: one session a side carries
    no verdict, three or more a side do (--against).
    """
    shared = sorted(set(options.files) & set(options.against or ()))
    if shared:
        raise ConfigError(
            "--against", shared[0], "is on both sides", "give two sides that share no file"
        )
    sides = [
        [read_results(Path(name)) for name in names]
        for names in (options.files, options.against)
        if names
    ]
    for results in (result for side in sides for result in side):
        say(f"{results.file}: {results.kind}, {len(results.series)} series")
    findings = list(conclusions(sides))
    for finding in findings[:_SHOWN]:
        say(f"  {finding.about}: {finding.sentence}" if finding.about else f"  {finding.sentence}")
    if len(findings) > _SHOWN:
        say(f"  and {len(findings) - _SHOWN} more: --json FILE holds all")
    if options.json:
        known = [
            {name: value for name, value in one._asdict().items() if value == value}
            for one in findings
        ]
        write_json(Path(options.json), [dict.fromkeys(AuditFinding._fields) | row for row in known])
