"""Conclusions that the measurements of one side, or of two sides, support.

A series is one measured quantity of one session, such as the time of a benchmark. A file contains
the series of one session, which are usually measured one after another. It only shows how each
series scatters within that session. The difference between two files includes the difference
between their sessions. With three or more sessions per side, Welch's t-test decides, with each
session as one observation. With fewer sessions, the prior in `paradnn.statistics.priors` supplies
the scatter between sessions. The same prior supplies the drift between two series of one file.
"""

import math
import shlex
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from analysis.audit.series import Results, Series
from analysis.columns import format_values
from analysis.format import format_number
from analysis.lazy import stats
from paradnn.core.errors import DataError
from paradnn.core.words import counted
from paradnn.statistics.decision import MARGIN, Decision, decide
from paradnn.statistics.dependence import Component
from paradnn.statistics.priors import VariancePrior, scatter_priors
from paradnn.statistics.verdict import Verdict
from paradnn.statistics.welch import welch_variance

#: Smallest number of sessions per side with which their scatter is estimated without a prior.
MIN_SESSIONS = 3

#: Largest number of series of one file that are compared with each other.
_MAX_SERIES_COMPARED = 20
#: Largest number of characters of a command that a sentence repeats.
_MAX_COMMAND_CHARS = 500
#: Smallest value, in a unit, that rounds up to 1.00 of this unit at three digits.
_ROUNDS_UP = 0.9995
#: Smallest number of values with which a trend within a session is tested.
_MIN_VALUES_FOR_TREND = 10


class AuditFinding(NamedTuple):
    """A statement about one measured quantity, or about the ratio of two of them.

    Attributes:
        about: Name of the quantity, such as a benchmark; empty for a statement about a file.
        sentence: The statement.
        verdict: "faster", "slower", "equal", "different", "undecided" or "not comparable"; empty if
            nothing is compared.
        ratio: First side over second side, above 1 if the first side is better. If the file does
            not say whether more is better, it is the ratio of the values. NaN if nothing is
            compared.
        low: Lower end of the ratio's 95% interval; NaN without one.
        high: Upper end of the ratio's 95% interval; NaN without one.
    """

    about: str
    sentence: str
    verdict: str = ""
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan


def draw_conclusions(
    side: Sequence[Results], other_side: Sequence[Results] = ()
) -> Iterator[AuditFinding]:
    """Yield findings about the sessions of one side, or about the differences between two sides.

    Args:
        side: Content of the result files of the first side, one per session.
        other_side: The same for the second side; empty if there is only one.

    Yields:
        Findings: first the failures that harnesses report, then one finding per measured quantity.

    Raises:
        DataError: If the sides share no benchmark.
    """
    for results in (*side, *other_side):
        for note in results.notes:
            yield AuditFinding(results.file, f"{note}.")
    if other_side:
        yield from _compare_sides(side, other_side)
        return
    for results in side:
        for series in results.series:
            yield _describe_series(series)
        yield from _compare_within_file(results.series)


def _describe_series(series: Series) -> AuditFinding:
    """Describe how a measured quantity scatters within its session, and whether it was steady."""
    value = format_value(series.center, series.unit)
    if series.count >= 2:
        sample = counted(series.count, series.observation)
    elif series.stddev > 0:
        sample = f"an unstated number of {series.observation}s"
    else:
        sentence = f"{value}, a single number: its repeatability is unknown."
        return AuditFinding(series.name, sentence)
    parts = [f"{value}, {series.statistic} over {sample}"]
    if series.stddev > 0:
        parts.append(
            f"standard deviation {format_number(series.stddev / series.center, share=True)}"
        )
    parts.append("one session")
    sentence = f"{', '.join(parts)}.{_describe_stability(series)}"
    return AuditFinding(series.name, sentence)


def _describe_stability(series: Series) -> str:
    """Return sentences about a trend and an outlier in the measurements of a session.

    Returns:
        The sentences, each after a space; empty if there is neither, or too few measurements.
    """
    values = series.values
    if len(values) < _MIN_VALUES_FOR_TREND:
        return ""
    sentences = ""
    half = len(values) // 2
    change = statistics.median(values[half:]) / statistics.median(values[:half]) - 1
    trend = stats.spearmanr(range(len(values)), values)
    if trend.pvalue < 0.01 and abs(change) > 0.01:
        sentences += f" Not steady: the second half differs by {100 * change:+.2g}% from the first."
    slowest = max(values) / series.center
    if slowest > max(1.5, 2 * series.center / min(values)):
        sentences += (
            f" The slowest run took {format_number(slowest)} times the median; "
            "other work on the machine or a first run may explain it."
        )
    return sentences


def _compare_within_file(series: Sequence[Series]) -> Iterator[AuditFinding]:
    """Compare the first timed shell command of one file with each of the others.

    Args:
        series: The series of the file. Series without a command or without raw values are ignored.
    """
    comparable = [entry for entry in series if entry.values and entry.command]
    if not 2 <= len(comparable) <= _MAX_SERIES_COMPARED:
        return
    first, *others = comparable
    for other in others:
        yield _compare_commands(first, other)


def _compare_commands(first: Series, other: Series) -> AuditFinding:
    """Compare two shell commands of one session that were measured one after the other.

    The drift between them is assumed to be as large as between two sessions.
    """
    prior = scatter_priors().session
    drift = prior.update()
    log_ratio = _log_goodness(first) - _log_goodness(other)
    decision = decide(log_ratio, [Component(2 * drift.variance, drift.freedom)])
    difference = _describe_difference([first], [other], decision.ratio)
    verdict, statement = _judge(first, decision, difference, (first.name, other.name))
    sentence = (
        f"{statement} (95% interval of the ratio {decision.low:.3g} to {decision.high:.3g}). They "
        f"were measured one after the other, and the machine is assumed to drift by "
        f"{100 * prior.scale:.2g}%, as between sessions."
    )
    if decision.verdict is Verdict.UNDECIDED:
        sentence += f" To decide, {_advise_alternation(first, other)}"
    return AuditFinding(
        f"{first.name} and {other.name}",
        sentence,
        verdict,
        decision.ratio,
        decision.low,
        decision.high,
    )


def _advise_alternation(first: Series, other: Series) -> str:
    command = shlex.join(["paradnn", "compare", first.command, other.command])
    is_unsuitable = len(command) > _MAX_COMMAND_CHARS or "\n" in command
    if is_unsuitable or first.command == other.command:
        return "measure them alternately with paradnn compare."
    return f"measure them alternately: {command}"


def _compare_sides(
    side: Sequence[Results], other_side: Sequence[Results]
) -> Iterator[AuditFinding]:
    yield from _compare_conditions(side, other_side)
    first = _by_name(side)
    second = _by_name(other_side)
    shared = [name for name in first if name in second]
    if not shared:
        raise DataError(
            f"no benchmark is on both sides: {format_values({*first}, 5)} against "
            f"{format_values({*second}, 5)}; give files of the same benchmarks"
        )
    for name in shared:
        yield _compare_sessions(first[name], second[name])
    yield from _list_missing("first", first, second)
    yield from _list_missing("second", second, first)


def _compare_conditions(
    side: Sequence[Results], other_side: Sequence[Results]
) -> Iterator[AuditFinding]:
    """State the settings and machine properties in which the sides differ."""
    names = dict.fromkeys(name for results in (*side, *other_side) for name in results.conditions)
    for name in names:
        first, second = (
            {results.conditions[name] for results in sessions if name in results.conditions}
            for sessions in (side, other_side)
        )
        if first and second and first != second:
            sentence = (
                f"The sides differ in {name} ({format_values(first)} against "
                f"{format_values(second)}), which may explain a difference."
            )
            yield AuditFinding("", sentence)


def _compare_sessions(first: Sequence[Series], second: Sequence[Series]) -> AuditFinding:
    """Compare one quantity between two sides, each measured in one or more sessions.

    Args:
        first: The quantity in each session of the first side.
        second: The quantity in each session of the second side.
    """
    name = first[0].name
    obstacle = _comparison_obstacle([*first, *second])
    if obstacle:
        return AuditFinding(name, f"Not compared: {obstacle}.", "not comparable")
    logs = [[_log_goodness(series) for series in sessions] for sessions in (first, second)]
    log_ratio = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    difference = _describe_difference(first, second, math.exp(log_ratio))
    sessions = _format_sessions(first, second)
    scatters = any(len(values) > 1 and statistics.variance(values) > 0 for values in logs)
    if min(map(len, logs)) >= MIN_SESSIONS and scatters:
        decision = decide(log_ratio, [welch_variance(*logs)])
        basis = sessions
        closing = "This holds if the sessions of both sides alternated in time."
    else:
        prior = scatter_priors().session
        decision = decide(log_ratio, [_prior_component(logs, prior)])
        basis = f"{sessions}, assumed to scatter by {100 * prior.scale:.2g}%"
        if not scatters and max(map(len, logs)) > 1:
            basis = (
                "the sessions of each side are copies of each other and count as one, assumed to "
                f"scatter by {100 * prior.scale:.2g}%"
            )
        closing = (
            f"With {MIN_SESSIONS} or more sessions per side, measured alternately, the observed "
            "scatter replaces this assumption."
        )
    sides = ("the first side", "the second side")
    verdict, statement = _judge(first[0], decision, difference, sides)
    interval = f"95% interval of the ratio {decision.low:.3g} to {decision.high:.3g}"
    sentence = f"{statement} ({interval}, {basis}). {closing}"
    return AuditFinding(name, sentence, verdict, decision.ratio, decision.low, decision.high)


def _prior_component(logs: Sequence[Sequence[float]], prior: VariancePrior) -> Component:
    """Return the variance of the mean log ratio of two sides with few sessions.

    The sessions of a side that are copies of each other count as one.

    Args:
        logs: For each side, the logarithm of the median or mean of each session.
        prior: Prior of the scatter between sessions.
    """
    squares = 0.0
    freedom = 0
    weight = 0.0
    for values in logs:
        count = len(values)
        if count > 1 and statistics.variance(values) == 0:
            count = 1
        if count > 1:
            squares += (count - 1) * statistics.variance(values)
            freedom += count - 1
        weight += 1 / count
    variance = squares / freedom if freedom else 0.0
    posterior = prior.update(variance, freedom)
    return Component(weight * posterior.variance, posterior.freedom)


def _judge(
    series: Series, decision: Decision, difference: str, sides: tuple[str, str]
) -> tuple[str, str]:
    """Return the verdict on a ratio as a word, such as "faster", and as a statement.

    Args:
        series: The quantity on the first side, in any of its sessions.
        decision: The decision about the ratio of the first to the second side.
        difference: The difference as text.
        sides: Names of the sides.
    """
    if decision.verdict is Verdict.UNDECIDED:
        return "undecided", f"{difference}: undecided"
    if decision.verdict is Verdict.EQUAL:
        return "equal", f"{difference}: equal within {100 * MARGIN:.0f}%"
    if series.better == "unknown":
        return "different", f"{difference}; the file does not say whether more is better"
    if decision.verdict is Verdict.FASTER:
        return "faster", f"{difference}: {sides[0]} is better"
    return "slower", f"{difference}: {sides[1]} is better"


def _describe_difference(first: Sequence[Series], second: Sequence[Series], ratio: float) -> str:
    """Describe the values of both sides: "10 ms against 11 ms, differing by 10%".

    Args:
        first: The quantity in each session of the first side.
        second: The quantity in each session of the second side.
        ratio: Value of the first side over value of the second side, or its inverse.
    """
    unit = first[0].unit
    first_value, second_value = (
        format_value(statistics.geometric_mean(series.center for series in sessions), unit)
        for sessions in (first, second)
    )
    return f"{first_value} against {second_value}, differing by {_format_difference(ratio)}"


def _comparison_obstacle(sessions: Sequence[Series]) -> str:
    """Return why the sessions of a quantity cannot be compared; empty if they can.

    Args:
        sessions: The quantity in each session of both sides.
    """
    units = {series.unit for series in sessions}
    if len(units) > 1:
        return f"the units differ ({format_values({unit or 'none' for unit in units})})"
    versions = {series.version for series in sessions if series.version}
    if len(versions) > 1:
        return "the files are from different versions of the benchmark's code"
    return ""


def _log_goodness(series: Series) -> float:
    """Return the logarithm of a series' median or mean, negated if lower values are better."""
    if series.better == "lower":
        return -math.log(series.center)
    return math.log(series.center)


def _list_missing(
    label: str, side: dict[str, list[Series]], other_side: dict[str, list[Series]]
) -> Iterator[AuditFinding]:
    missing = {name for name in side if name not in other_side}
    if missing:
        yield AuditFinding("", f"Only on the {label} side: {format_values(missing, 5)}.")


def _by_name(side: Sequence[Results]) -> dict[str, list[Series]]:
    """Return the measured quantities of a side: name -> the quantity in each session."""
    by_name: dict[str, list[Series]] = {}
    for results in side:
        for series in results.series:
            by_name.setdefault(series.name, []).append(series)
    return by_name


def format_value(value: float, unit: str) -> str:
    """Format a value with its unit: "1.2 ms", "8.86 GB", "10/s".

    Args:
        value: The value; if it is a time, in seconds.
        unit: Its unit, such as "s", "B" or "1/s".
    """
    if unit != "s":
        return format_number(value, unit, digits=3)
    if value >= _ROUNDS_UP * 1000:
        return f"{value:,.0f} s"
    for name, seconds in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= _ROUNDS_UP * seconds:
            return f"{value / seconds:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


def _format_difference(ratio: float) -> str:
    """Format a ratio as a difference, such as "13%".

    A ratio of 2 or more, or of 0.5 or less, becomes a factor, such as "a factor of 2.5".
    """
    factor = max(ratio, 1 / ratio)
    if factor < 2:
        percent = 100 * (factor - 1)
        return f"{percent:.0f}%" if percent >= 10 else f"{percent:.2g}%"
    return f"a factor of {factor:.3g}"


def _format_sessions(first: Sequence[Series], second: Sequence[Series]) -> str:
    if len(first) == len(second) == 1:
        return "one session each"
    return f"{len(first)} and {len(second)} sessions"
