"""Two sides of a comparison, A and B, as a user names them on the command line.

Every comparison of two sides selects its runs with this module. The module also writes the
sentences that all comparisons share: those on further runs, sessions and unpaired points. A point
is one configuration to measure. It is unpaired if only one side measured it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from analysis.columns import find_column
from analysis.format import format_distinct, format_number
from analysis.lazy import drawing, np, pd
from analysis.more_runs import describe_more_runs
from analysis.options import Options, arguments, column_option, option, unit_option
from analysis.pairing import LEVELED
from analysis.point_names import with_point_names
from analysis.result import AnalysisAnswer, AnswerVerdict, Result, joined
from analysis.store.conditions import filter_by_text, parse_condition, possible_texts
from analysis.store.frame import is_ok, require_homogeneous
from paradnn.core.errors import ConfigError, HeterogeneousError
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast, Evidence
from paradnn.statistics.decision import MARGIN
from paradnn.statistics.effects import learn_priors
from paradnn.statistics.priors import ScatterPriors, classify_devices, scatter_priors
from paradnn.statistics.verdict import Verdict
from paradnn.store.metrics import metric as registered

#: Columns of a pair that are always shown, even if they do not vary.
KEPT = ("family", "a", "b", "speedup", "speedup_low", "speedup_high", "interval_source")

#: Largest number of characters of a side's name in sentences. If a name is longer, the sides are
#: called A and B.
_LONGEST_NAME = 32
_SPEED_UNITS = ("1/s", "ms", "FLOP/s", "s")
#: Largest number of values of a column that an error message lists.
_LISTED_VALUES = 6
#: Share of points below which an event is too rare to be worth a caveat.
_RARE_SHARE = 0.01
_INTERVAL_SOURCES = {
    "replicates": "from replicates",
    "processes": "from several processes of one run",
    "prior": "from the prior of process scatter, since a side has a single process",
}
#: Names of the effects of `paradnn.statistics.effects` in sentences about the basis of an interval.
_EFFECT_TEXTS = {
    "processes": "processes",
    "sessions": "sessions",
    "sessions and sides": "the ratio between sessions",
    "reference speed": "the slope of the reference speed",
    "order": "the order",
    "position": "the position within a point",
    "drivers": "drivers",
    "protocol": "protocols",
}
#: Share of the degrees of freedom above which the prior dominates a variance.
_DOMINANT_SHARE = 0.5
#: `Schedule.session_weight` above which the sides count as sharing no session.
_SEPARATE_WEIGHT = 0.5
#: Largest log ratio between workers of one machine (docs/validation/verdicts.md).
_WORKER_EFFECT = 0.1
#: Smallest half width of an effect, in logarithms, that a sentence mentions.
_MIN_STATED_HALF_WIDTH = 0.01
#: Smallest share of the variance with which an effect is named as a basis of an interval.
_MIN_STATED_VARIANCE_SHARE = 0.1


def side_option(side: str, prefix: str = "") -> Any:
    """Return a dataclass field for the option that selects the runs of one side of a comparison.

    Args:
        side: "A" or "B".
        prefix: Start of the help text.
    """
    text = f"{prefix}condition of side {side}'s runs, repeatable"
    return option((), text, metavar="COLUMN=VALUE", several="repeat", names="conditions")


@dataclass(frozen=True, kw_only=True)
class PairedOptions(Options):
    """Options of every comparison of two sides."""

    unit: Literal["crossed", "model", "point"] = unit_option()
    margin: float = option(
        MARGIN,
        "largest relative difference that counts as equal",
        metavar="D",
        above=0,
    )
    metric: str = column_option("examples_per_second", "what to compare", "M")
    on: tuple[str, ...] | None = column_option(
        None,
        "hyperparameters that identify a point, such as nodes,batch_size "
        "(default: the whole configuration, except what sets A and B apart)",
        "X,Y",
    )

    def side_devices(self) -> list[set[str]]:
        """Return the devices that the conditions of each side allow.

        Returns:
            One set of device names per side. The list is empty if the conditions of any side do not
            restrict the device.
        """
        devices = []
        for argument in arguments(type(self)):
            if argument.metadata.get("names") != "conditions":
                continue
            value = getattr(self, argument.name)
            side = (value,) if isinstance(value, str) else value
            texts = [part.strip() for text in side for part in text.split(" & ")]
            possible = possible_texts(texts, "device", argument.display_name)
            if possible is None:
                return []
            devices.append(possible)
        return devices


@dataclass(frozen=True)
class Sides:
    """The runs of the two sides of a comparison, A and B, and the names of the sides.

    Attributes:
        a: Runs of A, one row each.
        b: Runs of B, one row each.
        name_a: Name of A: its device, such as "TPU v2", or the conditions that select its runs.
        name_b: Name of B, in the same form.
        pooled: How the runs of a side differ in environment or protocol, as text; empty if they do
            not differ.
    """

    a: pd.DataFrame
    b: pd.DataFrame
    name_a: str
    name_b: str
    pooled: str = ""

    @property
    def display_names(self) -> tuple[str, str]:
        """The names for sentences: the names of the sides if both are short, else A and B."""
        names = (self.name_a, self.name_b)
        if max(map(len, names)) > _LONGEST_NAME:
            return ("A", "B")
        return names

    def explain_names(self) -> str:
        """Return a sentence that defines the letters A and B by the conditions of the sides.

        The text is empty if `display_names` are the names of the sides rather than the letters.
        """
        if self.display_names == (self.name_a, self.name_b):
            return ""
        return f"A is {self.name_a}, B is {self.name_b}. "

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the ok runs of both sides."""
        return tuple(run for side in (self.a, self.b) for run in side.loc[is_ok(side), "run_id"])

    def join_on(self, names: Sequence[str] | None) -> list[str] | None:
        """Return the columns that the user named with --on.

        These columns identify the same configuration on both sides. A column that only one side has
        is accepted. `pair` then raises an error that names the side without the column.

        Args:
            names: Names of columns, with or without the prefix `model.`; None if --on is absent.

        Returns:
            The full names of the columns; None if `names` is None.

        Raises:
            ConfigError: If neither side has one of the columns.
        """
        if names is None:
            return None
        columns = []
        for name in names:
            holders = (side for side in (self.a, self.b) if name in side or f"model.{name}" in side)
            columns.append(find_column(next(holders, self.a), name, "--on"))
        return columns

    def describe_differences(self, pairs: pd.DataFrame, noun: str = "point") -> Iterator[str]:
        """Yield sentences on further differences of the sides, and on omitted points and runs.

        A point is one configuration to measure. Further differences are columns in which the sides
        differ although no condition names the column.

        Args:
            pairs: The points that both sides measured, as `pair` returns them.
            noun: Noun for a point in these sentences, in the singular.
        """
        attrs = pairs.attrs
        name_a, name_b = self.display_names
        conditions = f"device {self.name_a} {self.name_b}"
        differ = {
            name: values for name, values in attrs["differ"].items() if name not in conditions
        }
        if differ:
            yield (
                f"{name_a} and {name_b} also differ in {_format_values(differ)}: "
                "the ratios include these effects."
            )
        metric = attrs["metric"]
        if metric in LEVELED.values():
            yield (
                "Values are corrected to one speed of the machine, which was measured with every "
                f"run ({metric})."
            )
        yield from self._describe_timing()
        for key, name in (("a", name_a), ("b", name_b)):
            count = attrs[f"unusable_{key}"]
            if count:
                yield f"Omitted: {counted(count, 'ok run')} of {name} without a {metric} above zero."
        if attrs["disjoint"]:
            values = _format_values(attrs["disjoint"])
            yield f"The sides share no value in {values}. Choose runs with common values."
        if attrs["unpaired_a"] or attrs["unpaired_b"]:
            yield self._describe_unpaired(pairs, noun)
        for column, count in attrs["mixed"].items():
            yield (
                f"Omitted: {counted(count, 'point')} of both sides, since runs of the same point "
                f"differ in {column} on only one side; choose one value of {column}."
            )
        for name, side in ((name_a, self.a), (name_b, self.b)):
            failures = side.loc[~is_ok(side), "outcome"].fillna("unfinished").value_counts()
            if len(failures):
                outcomes = ", ".join(f"{count} {outcome}" for outcome, count in failures.items())
                count = failures.sum()
                yield f"{counted(count, 'run')} of {name} without a measurement: {outcomes}."

    def _describe_timing(self) -> Iterator[str]:
        """Yield a sentence if the sides have different sources of times or timing protocols."""
        sources = [_sorted_texts(side, "source") for side in (self.a, self.b)]
        protocols = [_sorted_texts(side, "protocol_id") for side in (self.a, self.b)]
        if all(sources) and sources[0] != sources[1]:
            names = " / ".join(", ".join(values) for values in sources)
            yield (
                f"The sides were timed in different ways (source {names}); "
                "see docs/validation/published-data.md."
            )
        elif all(protocols) and protocols[0] != protocols[1]:
            yield "The sides were timed by different protocols (measure.*)."

    def _describe_unpaired(self, pairs: pd.DataFrame, noun: str) -> str:
        """Return a sentence on the points that only one side measured.

        The sentence states the number of these points per side, and the families that only one side
        measured.

        Args:
            pairs: The points that both sides measured, as `pair` returns them.
            noun: Noun for a point in the sentence, in the singular.
        """
        attrs = pairs.attrs
        name_a, name_b = self.display_names
        alone = [
            f"{', '.join(attrs['alone'][key])} only on {name}"
            for key, name in (("a", name_a), ("b", name_b))
            if attrs["alone"][key]
        ]
        text = (
            f"Without a counterpart: {counted(attrs['unpaired_a'], noun)} of {name_a}, "
            f"{attrs['unpaired_b']} of {name_b}"
        )
        if alone:
            text += f" ({'; '.join(alone)})"
        return f"{text}."

    def compared(
        self,
        *,
        cells: pd.DataFrame,
        families: pd.DataFrame,
        options: PairedOptions,
        sentences: Iterable[str],
        picture: Callable[[], drawing.Figure],
        answer: AnalysisAnswer | None = None,
        keep: Sequence[str] = (),
    ) -> Compared:
        """Return the result of a comparison of these sides.

        Args:
            cells: A row per configuration that both sides measured, with the ratio of A to B.
            families: A row per model family, with its mean ratio.
            options: The options of the comparison.
            sentences: The findings as text.
            picture: Function that draws the figure.
            answer: The main finding; None for a comparison without one.
            keep: Columns of `cells` that the table shows even if they do not vary, in addition to
                `KEPT`.
        """
        return Compared(
            cells=cells,
            families=families,
            options=options,
            numbers=_name_points(cells, [*KEPT, *keep]),
            answer=answer,
            sentences=list(sentences),
            picture=picture,
            sources=self.sources,
            pooled=self.pooled,
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Compared(Result):
    """The result of a comparison of two sides, A and B.

    Attributes:
        cells: A row per configuration that both sides measured, with the ratio of A to B.
        families: A row per model family, with its mean ratio.
        options: The options of the comparison.
    """

    cells: pd.DataFrame
    families: pd.DataFrame
    options: PairedOptions


def choose_sides(
    frame: pd.DataFrame, a: Sequence[str], b: Sequence[str], names: Sequence[str], *, pool: bool
) -> Sides:
    """Select the runs of both sides, A and B, of a comparison.

    The runs of a side must agree in their environment and timing protocol, unless `pool` is set.
    The environment consists of the hardware and the versions of the software.

    Args:
        frame: All runs, one row each.
        a: Conditions of A, in the form of --where, such as "device=V100". One text may contain
            several conditions, joined by " & ".
        b: Conditions of B, in the same form.
        names: Options that messages name for A and for B, such as "--a" and "--b".
        pool: Whether runs of a side that differ in their environment or protocol are accepted.

    Raises:
        ConfigError: If a side has no condition, or no run satisfies its conditions.
        HeterogeneousError: If the runs of a side differ in their environment or protocol and `pool`
            is not set.
    """
    rows = []
    display_names = []
    for conditions, name in zip((a, b), names, strict=True):
        if not conditions:
            remedy = f"name {_example_sides(frame, names)}"
            raise ConfigError(name, "(none)", "both sides are needed", remedy)
        side, display_name = _choose_side(frame, conditions, name, pool=pool)
        rows.append(side)
        display_names.append(display_name)
    rows[0].attrs["priors"] = _machine_priors(frame, rows)
    pooled = joined(
        f"{name}: {side.attrs['pooled']}"
        for name, side in zip(names, rows, strict=True)
        if side.attrs.get("pooled")
    )
    return Sides(rows[0], rows[1], display_names[0], display_names[1], pooled)


def _machine_priors(frame: pd.DataFrame, sides: Sequence[pd.DataFrame]) -> ScatterPriors:
    """Return prior distributions of the measurement scatter for a comparison of A and B.

    The starting point is the prior of the device class. It is updated with the ok runs of `frame`
    that belong to neither side. Only runs on the devices and hosts of the sides are used. If
    `frame` lacks the column `device` or `host`, the prior is returned without an update.

    Args:
        frame: All runs, including those of both sides.
        sides: The runs of A and the runs of B, which are compared.
    """
    priors = scatter_priors(classify_devices(*sides))
    # pandas looks up Python strings ten times as fast as its string type.
    compared = pd.concat([side["run_id"] for side in sides]).astype("object")
    others = is_ok(frame) & ~frame["run_id"].astype("object").isin(compared)
    for name in ("device", "host"):
        if name not in frame:
            return priors
        known = set().union(*(side[name].dropna().unique() for side in sides))
        others &= frame[name].isin(known)
    return learn_priors(frame[others], priors)


def _example_sides(frame: pd.DataFrame, names: Sequence[str]) -> str:
    """Return example options that select two sides, for an error message.

    The options name two values of a column that varies in the runs. If no suitable column varies,
    the result is "--a 'device=TPU v2' --b device=V100".

    Args:
        frame: All runs.
        names: Options that select the runs of A and of B, such as "--a" and "--b".
    """
    values = ["TPU v2", "V100"]
    column = "device"
    for candidate in ("device", "framework.name", "compile", "precision", "batch_size"):
        if candidate in frame and frame[candidate].nunique() > 1:
            column = candidate
            values = sorted(map(str, frame[candidate].dropna().unique()))[:2]
            break
    sides = [
        f"{name} {shlex.quote(f'{column}={value}')}"
        for name, value in zip(names, values, strict=True)
    ]
    return " ".join(sides)


def _choose_side(
    frame: pd.DataFrame, conditions: Sequence[str], name: str, *, pool: bool
) -> tuple[pd.DataFrame, str]:
    """Return the runs of one side of a comparison, and the name of the side.

    Args:
        frame: All runs.
        conditions: Conditions of the side, such as "device=V100"; at least one.
        name: Option of the side that messages name, such as "--a".
        pool: Whether runs that differ in their environment or protocol are accepted.

    Raises:
        ConfigError: If no run satisfies the conditions.
        HeterogeneousError: If the runs differ in their environment or protocol and `pool` is not
            set.
    """
    parts = [part.strip() for text in conditions for part in text.split(" & ")]
    text = " & ".join(parts)
    rows = filter_by_text(frame, parts, name)
    first = parse_condition(parts[0], name)
    if rows.empty:
        values = _sorted_texts(frame, first.column)
        remedy = "see python -m analysis runs"
        if values:
            remedy = f"the values of {first.column} are {', '.join(values[:_LISTED_VALUES])}"
            if len(values) > _LISTED_VALUES:
                remedy += f" and {len(values) - _LISTED_VALUES} more"
        raise ConfigError(name, text, "no run matches", remedy)
    try:
        side = require_homogeneous(rows, pool=pool)
    except HeterogeneousError as error:
        raise HeterogeneousError(f"{name} ({text}): {error}") from None
    # If a single device is the only condition, the side has its name. Otherwise the conditions are
    # the name of the side.
    if len(parts) == 1 and first.column == "device":
        devices = _sorted_texts(side, "device")
        if len(devices) == 1:
            return side, devices[0]
    return side, text


def is_speed(metric: str) -> bool:
    """Return whether a metric measures speed, so that a better value means faster."""
    return registered(metric).unit in _SPEED_UNITS or "utilization" in metric


def format_mean(value: float, low: float, high: float) -> str:
    """Format a geometric mean with its interval, such as "1.2 (1.1 to 1.3)".

    Args:
        value: The mean over points (measured configurations).
        low: Lower end of the interval. If it is NaN, the text says that there are too few points
            for an interval.
        high: Upper end of the interval.
    """
    if low != low:
        return f"{value:.3g} (too few points for an interval)"
    mean, lower, upper = format_distinct(value, low, high)
    return f"{mean} ({lower} to {upper})"


def _name_points(pairs: pd.DataFrame, keep: Sequence[str]) -> pd.DataFrame:
    """Return the columns that vary between points, after a column with the names of the points.

    Args:
        pairs: The points that both sides measured, as `pair` returns them.
        keep: Columns to return even if they do not vary.
    """
    if not len(pairs):
        return pairs
    return with_point_names(tidy(pairs, keep), pairs, pairs.attrs["differ"])


def tidy(pairs: pd.DataFrame, keep: Sequence[str] = ()) -> pd.DataFrame:
    """Return a table of paired points without the columns that are constant or empty.

    Args:
        pairs: A row per configuration that both sides measured, as `pair` returns them.
        keep: Columns that are never removed.
    """
    if not len(pairs):
        return pairs
    varying = {
        name
        for name in pairs
        if pairs[name].notna().any() and pairs[name].nunique(dropna=False) > 1
    }
    # Only `Contrast` needs the number of a point.
    varying.discard("point")
    return pairs[[name for name in pairs if name in keep or name in varying]]


def speed_word(metric: str) -> str:
    """Return "faster" for a metric of speed, and "better" for any other metric."""
    return "faster" if is_speed(metric) else "better"


def make_answer(
    row: Mapping[Any, Any],
    contrast: Contrast,
    sides: Sides,
    *,
    metric: str,
    margin: float,
    verdict: str = "verdict",
) -> AnalysisAnswer:
    """Return the main finding of a comparison of A and B, over the points that both measured.

    A point is one configuration to measure.

    Args:
        row: Statistics of all these points, as `Contrast.row` and `judge` return them.
        contrast: The points with their ratios of A to B.
        sides: The sides.
        metric: Column of the compared metric.
        margin: Largest relative difference that counts as equal, such as 0.05 for 5%.
        verdict: Key of `row` with the verdict.
    """
    points = int(row["points"])
    if not points:
        a, b = sides.display_names
        return AnalysisAnswer(
            sentence=f"{a} and {b} have no point in common.",
            verdict="undecided",
            ahead=0,
            points=0,
        )
    decision = str(row[verdict])
    sentence = _describe_decision(decision, row, sides, metric, margin)
    if decision == Verdict.UNDECIDED:
        remedy = describe_more_runs(sides.a, sides.b, contrast, margin)
        sentence += f"; {remedy}" if remedy else "."
    ratio, low, high = _mean_ratio(row)
    return AnalysisAnswer(
        sentence=sentence,
        verdict=cast(AnswerVerdict, decision),
        ratio=ratio,
        low=low,
        high=high,
        ahead=int(row["wins"]),
        points=points,
        basis=describe_basis(contrast),
    )


def _mean_ratio(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of a comparison, and the two ends of its interval.

    Args:
        row: Statistics of all points, as `Contrast.row` returns them.
    """
    return (
        float(row["geometric_mean"]),
        float(row["geometric_mean_low"]),
        float(row["geometric_mean_high"]),
    )


def _describe_decision(
    decision: str, row: Mapping[Any, Any], sides: Sides, metric: str, margin: float
) -> str:
    """Return the verdict of a comparison of A and B as text.

    The text ends with a full stop, except for an undecided comparison, to which the caller may add
    a remedy.

    Args:
        decision: The verdict: a value of `Verdict`.
        row: Statistics of all points (configurations), as `Contrast.row` and `judge` return them.
        sides: The sides.
        metric: Column of the compared metric.
        margin: Largest relative difference that counts as equal, such as 0.05 for 5%.
    """
    names = sides.display_names
    points = int(row["points"])
    wins = int(row["wins"])
    ratio = _mean_ratio(row)
    if decision == Verdict.FASTER:
        return _describe_lead(names, ratio, wins, points, metric)
    if decision == Verdict.SLOWER:
        value, low, high = ratio
        inverse = (1 / value, 1 / high, 1 / low)
        return _describe_lead(names[::-1], inverse, points - wins, points, metric)
    formatted, interval = format_ratio(*ratio)
    result = f"{formatted} ({interval}) on {counted(points, 'point')}"
    if decision == Verdict.EQUAL:
        same = "equally fast" if is_speed(metric) else "equal"
        return f"{names[0]} and {names[1]} are {same} within {margin:.0%}: {result}."
    return f"undecided: {names[0]} over {names[1]} is {result}"


def _describe_lead(
    names: Sequence[str], ratio: tuple[float, float, float], wins: int, points: int, metric: str
) -> str:
    """State by what factor one side leads the comparison, and on how many points.

    Args:
        names: Name of the leading side, then name of the trailing side.
        ratio: The mean ratio of the leading side to the trailing side, and the ends of its
            interval.
        wins: Number of points (configurations) on which the leading side is ahead.
        points: Number of all points.
        metric: Column of the compared metric.
    """
    formatted, interval = format_ratio(*ratio)
    return (
        f"{names[0]} is {formatted} {speed_word(metric)} than {names[1]} ({interval}), ahead on "
        f"{wins} of {counted(points, 'point')}."
    )


def format_ratio(value: float, low: float, high: float) -> tuple[str, str]:
    """Format a ratio and its 95% interval as two texts: "5.32x" and "95% CI 3.9x to 7.2x".

    Args:
        value: The ratio.
        low: Lower end of the interval.
        high: Upper end of the interval. If an end is not finite, the second text is "no interval".
    """
    if not math.isfinite(low) or not math.isfinite(high):
        return f"{value:.3g}x", "no interval"
    mean, lower, upper = format_distinct(value, low, high)
    return f"{mean}x", f"95% CI {lower}x to {upper}x"


def describe_basis(contrast: Contrast) -> str:
    """Return the main sources of uncertainty of a mean ratio, as text.

    The source with the largest variance comes first. A source is marked "(mostly the prior)" if its
    variance comes mostly from a prior distribution rather than from the measurements. The text is
    empty if no source is known.

    Args:
        contrast: The points (configurations) that both sides measured, with their ratios.
    """
    effects = contrast.effects
    total = sum(effect.half_width**2 for effect in effects)
    parts = []
    for effect in sorted(effects, key=lambda effect: -effect.half_width):
        if effect.half_width**2 < _MIN_STATED_VARIANCE_SHARE * total:
            continue
        text = _EFFECT_TEXTS[effect.name]
        if effect.prior_share >= _DOMINANT_SHARE:
            text += " (mostly the prior)"
        parts.append(text)
    if contrast.bias:
        parts.append("lost replicates (worst case)")
    if not parts:
        return ""
    return f"scatter of {', '.join(parts)}"


def describe_share(
    row: Mapping[Any, Any], names: tuple[str, str], word: str, noun: str = "point"
) -> str:
    """Return on how many points the leading side is ahead, with the interval of this share.

    Args:
        row: Statistics of all points (measured configurations), as `Contrast.row` returns them.
        names: The names of A and B.
        word: "faster" or "better".
        noun: Noun for a point, in the singular.
    """
    points = int(row["points"])
    wins = int(row["wins"])
    share, low, high = (float(row[f"share{end}"]) for end in ("", "_low", "_high"))
    leader = names[0]
    if share < 0.5:
        leader = names[1]
        wins = points - wins
        share, low, high = 1 - share, 1 - high, 1 - low
    text = f"{leader} is {word} on {wins} of {counted(points, noun)} ({share:.0%}"
    if high - low < 0.005:
        return f"{text})"
    text += f"; {low:.0%} to {high:.0%}"
    shift = math.expm1(float(row["shift"]))
    if shift >= 0.005:
        text += f" if a session shifts one side by {shift:.0%}"
    return f"{text})"


def describe_population(row: Mapping[Any, Any], *, inverted: bool = False) -> Iterator[str]:
    """Yield a sentence with the geometric mean ratio to expect for other, similar models.

    Yields nothing if the sample of models is too small for an interval.

    Args:
        row: Statistics of all points (measured configurations), as `Contrast.row` returns them.
        inverted: Whether to state the ratio of B to A instead of A to B.
    """
    value = float(row["geometric_mean"])
    low = float(row["population_low"])
    high = float(row["population_high"])
    if not math.isfinite(low):
        return
    if inverted:
        value, low, high = 1 / value, 1 / high, 1 / low
    ratio, interval = format_ratio(value, low, high)
    yield f"For other models like these: {ratio} ({interval}), with {row['sample']} as a sample."


def describe_bounds(row: Mapping[Any, Any], names: tuple[str, str]) -> Iterator[str]:
    """Yield a sentence on the share of points on which A is ahead, including unpaired points.

    A point is one configuration to measure. An unpaired point was measured on one side only, so the
    sentence states the lowest and the highest possible share. Yields nothing if every point is
    paired.

    Args:
        row: Statistics of all points, as `Contrast.row` returns them.
        names: The names of A and B.
    """
    alone = [
        f"{counted(row[f'missing_{side}'], 'point')} ran only on {name}"
        for side, name in zip("ab", names, strict=True)
        if row[f"missing_{side}"]
    ]
    if alone:
        yield (
            f"{' and '.join(alone)}: including them, {names[0]} is ahead on "
            f"{row['share_least']:.0%} to {row['share_most']:.0%} of the points."
        )


def describe_confounding(contrast: Contrast) -> Iterator[str]:
    """Yield sentences on effects that cannot be separated from the difference between A and B.

    Examples are effects of sessions (runs measured in one go), of the order of measurement, and of
    lost replicates. Each sentence states what the interval assumes about the effect. Yields nothing
    if it is not known when the runs were measured.

    Args:
        contrast: The configurations that both sides measured, with the schedule and scatter of
            their runs.
    """
    if contrast.evidence is None or not len(contrast.pairs):
        return
    evidence = contrast.evidence
    yield from _describe_sessions(contrast, evidence)
    yield from _describe_single_session(contrast, evidence)
    yield from _describe_order(contrast, evidence)
    for name in sorted(set(contrast.pairs["family"].dropna())):
        lost = evidence.lost.get(name)
        if lost is not None:
            yield (
                f"{name}: of the points that both sides measured, A lacks "
                f"{counted(lost[0], 'replicate')} and B lacks {lost[1]}. The interval assumes that "
                "the missing replicates were the slowest."
            )
        change = evidence.speed_change.get(name, 0.0)
        if change >= _MIN_STATED_HALF_WIDTH:
            yield (
                f"{name}: the machine's speed changed by {change:.1%} within a session; its runs "
                "are corrected to the mean speed of the session."
            )


def _describe_sessions(contrast: Contrast, evidence: Evidence) -> Iterator[str]:
    """Yield a sentence if the interval allows for effects of sessions or for drift.

    A session is a series of runs measured in one go. Its conditions matter if the sides were
    measured in different sessions. Drift matters if they were measured in separate blocks of a
    session.

    Args:
        contrast: The configurations that both sides measured.
        evidence: Schedule and scatter of the runs of these configurations.
    """
    effect = next((each for each in contrast.effects if each.name == "sessions"), None)
    if effect is None or effect.half_width < _MIN_STATED_HALF_WIDTH:
        return
    points = contrast.pairs["point"].to_numpy()
    schedule = evidence.schedule.select(np.isin(evidence.schedule.point, points))
    if schedule.session_weight <= _SEPARATE_WEIGHT:
        yield (
            "The sides do not share all sessions, or were measured in blocks: the interval allows "
            f"for {effect.half_width:.0%} of drift."
        )
        return
    scale = math.sqrt(evidence.session.variance)
    if effect.prior_share >= 1:
        origin = "from the prior"
        if evidence.priors.is_learned:
            origin += " and other runs of this machine"
    elif effect.prior_share >= _DOMINANT_SHARE:
        origin = "from the prior and the data"
    else:
        origin = "from the scatter of repeated sessions"
    counts = [len(np.unique(schedule.session[schedule.side == number])) for number in (0, 1)]
    text = f"The sides share no session ({counts[0]} of A, {counts[1]} of B)"
    if not schedule.times_known:
        text = "The sessions are not recorded"
    yield f"{text}: the interval allows each session a shift of {scale:.1%}, {origin}."


def _describe_single_session(contrast: Contrast, evidence: Evidence) -> Iterator[str]:
    """Yield a sentence if a small ratio may be due to the worker processes instead of the sides.

    If all runs belong to one session, a difference between the workers that measured the two sides
    looks like a difference between the sides.

    Args:
        contrast: The configurations that both sides measured.
        evidence: Schedule and scatter of the runs of these configurations.
    """
    is_small = abs(float(np.log(contrast.ratios).mean())) < _WORKER_EFFECT
    if is_small and len(np.unique(evidence.schedule.session)) == 1:
        yield (
            "Both sides ran in one session, in which a difference of a few percent between their "
            "workers would have the same effect. Repeat the sweep in another session."
        )


def _describe_order(contrast: Contrast, evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each effect of order, position, drivers or protocol.

    The interval of the ratio of A to B allows for these effects. Drivers are the processes that run
    sweeps. Two of them may have measured the sides at the same time.

    Args:
        contrast: The configurations that both sides measured.
        evidence: Schedule and scatter of the runs of these configurations.
    """
    names = {each.name for each in contrast.effects if each.half_width >= _MIN_STATED_HALF_WIDTH}
    priors = evidence.priors
    if "order" in names:
        yield (
            "The order is confounded: one side always came first, so the interval allows for an "
            f"order effect of {priors.order.scale:.0%}; alternate the order."
        )
    if "position" in names:
        yield (
            "One side was always measured right after the other at the same point: the interval "
            f"allows for a position effect of {priors.position.scale:.0%}; use sweep.order=random."
        )
    if "drivers" in names:
        yield (
            "Different drivers measured the sides at the same time: the interval allows for a "
            "difference between drivers."
        )
    if "protocol" in names:
        yield (
            "The sides were timed by different protocols (measure.*): the interval allows for an "
            f"effect of {priors.protocol.scale:.0%}."
        )


def describe_interval_sources(pairs: pd.DataFrame) -> str:
    """Return a sentence that counts the intervals of single ratios by the source of their scatter.

    Args:
        pairs: The configurations that both sides measured, one row each, with the column
            `interval_source`, such as "replicates" or "prior".
    """
    counts = pairs["interval_source"].value_counts()
    texts = [f"{count} {_INTERVAL_SOURCES[str(name)]}" for name, count in counts.items()]
    return f"Intervals of single ratios: {', '.join(texts)}."


def rare_event_caveat(points: int) -> Iterator[str]:
    """Yield a caveat that the measured configurations may miss rare events.

    With a probability of 5%, n points show no event that affects a share of 1 - 0.05^(1/n) of all
    points. The caveat states this share. Yields nothing if the share is below 1%.

    Args:
        points: Number n of points (measured configurations).
    """
    share = 1.0
    if points:
        share = 1 - 0.05 ** (1 / points)
    if share >= _RARE_SHARE:
        yield (
            f"An event that affects fewer than {format_number(share, share=True)} of points, such "
            f"as a long wait, may be absent from these {points} (95% confidence); no interval "
            "covers it."
        )


def _sorted_texts(frame: pd.DataFrame, column: str) -> list[str]:
    """Return the sorted values of a column as texts; empty if the frame lacks it."""
    if column not in frame:
        return []
    return sorted(frame[column].dropna().astype("str").unique())


def _format_values(values: Mapping[str, tuple[str, str]]) -> str:
    """Format the values of A and of B in several columns, such as "precision (float32 / float16)".

    Args:
        values: Column -> the value of A and the value of B.
    """
    return ", ".join(f"{name} ({a} / {b})" for name, (a, b) in values.items())
