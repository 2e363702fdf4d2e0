"""Two sides of a comparison, as a user names them on the command line.

Every comparison of two sides selects its runs here. It takes from here, too, the sentences about
power, sessions and unpaired points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.columns import find_column
from analysis.format import format_distinct, format_number
from analysis.lazy import drawing, pd
from analysis.options import Options, column_option, option, unit_option
from analysis.pairing import LEVELLED
from analysis.result import Result, joined
from analysis.store.conditions import filter_by_text, parse_condition
from analysis.store.frame import is_ok, require_homogeneous
from paradnn.core.errors import ConfigError, HeterogeneousError
from paradnn.core.words import counted
from paradnn.statistics.decision import MARGIN
from paradnn.statistics.sessions import get_sampling
from paradnn.store.metrics import metric as registered

#: Columns of a pair that are shown whether they vary or not.
KEPT = ("family", "a", "b", "speedup", "speedup_low", "speedup_high", "interval_source")

#: Characters of a name that sentences write out; longer ones become A and B.
_LONGEST_NAME = 32
_SPEED_UNITS = ("1/s", "ms", "FLOP/s", "s")
#: Values of a column that an error message lists.
_LISTED_VALUES = 6
#: Share of points below which an event is too rare to be worth a caveat.
_RARE_SHARE = 0.01
_INTERVAL_SOURCES = {
    "replicates": "from replicates",
    "processes": "from several processes of one run",
    "none": "unknown",
    "within process": (
        "from blocks within one process, without the spread between processes, "
        "so no verdict on them"
    ),
}


def side_option(side: str, prefix: str = "") -> Any:
    """Declare the option that holds the conditions of one side's runs."""
    text = f"{prefix}condition of side {side}'s runs, repeatable"
    return option((), text, metavar="COLUMN=VALUE", several="repeat", names="conditions")


@dataclass(frozen=True, kw_only=True)
class PairedOptions(Options):
    """Options of every comparison of two sides."""

    unit: Literal["crossed", "model", "point"] = unit_option()
    margin: float = option(
        MARGIN,
        "differences up to this are called the same, where that is shown",
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


@dataclass(frozen=True)
class Sides:
    """The runs of both sides and their names.

    Attributes:
        a: Runs of A.
        b: Runs of B.
        name_a: Name of A, such as "TPU v2".
        name_b: Name of B.
        pooled: What differs within a side whose heterogeneous runs were pooled.
    """

    a: pd.DataFrame
    b: pd.DataFrame
    name_a: str
    name_b: str
    pooled: str = ""

    @property
    def display_names(self) -> tuple[str, str]:
        """The names that sentences use: those of the sides if both are short, else A and B."""
        names = (self.name_a, self.name_b)
        if max(map(len, names)) > _LONGEST_NAME:
            return ("A", "B")
        return names

    def explain_names(self) -> str:
        """Say which side is which; empty if sentences use the names themselves."""
        if self.display_names == (self.name_a, self.name_b):
            return ""
        return f"A is {self.name_a}, B is {self.name_b}. "

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the ok runs of both sides."""
        return tuple(run for side in (self.a, self.b) for run in side.loc[is_ok(side), "run_id"])

    def join_on(self, names: Sequence[str] | None) -> list[str] | None:
        """Return the columns that --on names, with or without `model.`; None for the default.

        A column that only one side has is accepted here: `pair` says which side lacks it.

        Raises:
            ConfigError: If neither side has the column.
        """
        if names is None:
            return None
        columns = []
        for name in names:
            holders = (side for side in (self.a, self.b) if name in side or f"model.{name}" in side)
            columns.append(find_column(next(holders, self.a), name, "--on"))
        return columns

    def describe_differences(self, pairs: pd.DataFrame, noun: str = "point") -> Iterator[str]:
        """Yield what sets the sides apart beyond their conditions, and what has no counterpart.

        Args:
            pairs: The pairs of both, as `pair` returns them.
            noun: What a pair is, in the singular.
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
        if metric in LEVELLED.values():
            yield (
                "Speeds are at one speed of the machine, which was measured next to every run "
                f"({metric})."
            )
        yield from self._describe_timing()
        for key, name in (("a", name_a), ("b", name_b)):
            count = attrs[f"unusable_{key}"]
            if count:
                yield f"Left out: {counted(count, 'ok run')} of {name} without a {metric} above zero."
        if attrs["disjoint"]:
            values = _format_values(attrs["disjoint"])
            yield f"No value is shared in {values}: choose runs that agree there."
        yield self._describe_unpaired(pairs, noun)
        for column, count in attrs["mixed"].items():
            yield (
                f"Left out: {counted(count, 'point')} of both with runs that differ in {column} "
                f"on one side alone; choose one {column}."
            )
        for name, side in ((name_a, self.a), (name_b, self.b)):
            failures = side.loc[~is_ok(side), "outcome"].fillna("unfinished").value_counts()
            if len(failures):
                outcomes = ", ".join(f"{count} {outcome}" for outcome, count in failures.items())
                count = failures.sum()
                yield f"Of the runs of {name} {count} have no measurement ({outcomes})."

    def _describe_timing(self) -> Iterator[str]:
        """Yield whether the sides were timed in different ways."""
        sources = [_distinct(side, "source") for side in (self.a, self.b)]
        protocols = [_distinct(side, "protocol_id") for side in (self.a, self.b)]
        if all(sources) and sources[0] != sources[1]:
            names = " / ".join(", ".join(values) for values in sources)
            yield (
                f"They were not timed in the same way: source {names}, "
                "see docs/validation/published-data.md."
            )
        elif all(protocols) and protocols[0] != protocols[1]:
            yield "They were not timed by the same protocol (measure.*)."

    def _describe_unpaired(self, pairs: pd.DataFrame, noun: str) -> str:
        """Count the points without a counterpart, and name families of one side alone."""
        attrs = pairs.attrs
        name_a, name_b = self.display_names
        alone = [
            f"{', '.join(attrs['alone'][key])} on {name} alone"
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
        keep: Sequence[str] = (),
    ) -> Compared:
        """Return the result of a comparison of the sides.

        Args:
            cells: A row per pair.
            families: A row per family.
            options: The options of the comparison.
            sentences: The findings as text.
            picture: Draws the figure.
            keep: Further columns of `cells` to show even if they do not vary.
        """
        return Compared(
            cells=cells,
            families=families,
            asked=options,
            numbers=tidy(cells, [*KEPT, *keep]),
            sentences=list(sentences),
            picture=picture,
            sources=self.sources,
            pooled=self.pooled,
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Compared(Result):
    """The result of a comparison of two sides.

    Attributes:
        cells: A row per pair of points.
        families: A row per family.
        asked: The options.
    """

    cells: pd.DataFrame
    families: pd.DataFrame
    asked: PairedOptions


def choose_sides(
    frame: pd.DataFrame, a: Sequence[str], b: Sequence[str], names: Sequence[str], pool: bool
) -> Sides:
    """Select the runs of both sides, each of one environment and protocol.

    Args:
        frame: All runs.
        a: Conditions of A, as in --where. One text may hold several, joined by " & ".
        b: Conditions of B.
        names: What messages call A and B, such as "--a" and "--b".
        pool: Whether heterogeneous runs of a side are pooled.

    Raises:
        ConfigError: If a side has no condition, or no run meets it.
        SchemaError: If the runs of a side are heterogeneous and `pool` is not set.
    """
    rows = []
    display_names = []
    for conditions, name in zip((a, b), names, strict=True):
        if not conditions:
            raise ConfigError(
                name, "(none)", "both sides are needed", "name --a 'device=TPU v2' --b device=V100"
            )
        side, display_name = _choose_side(frame, conditions, name, pool)
        rows.append(side)
        display_names.append(display_name)
    pooled = joined(
        f"{name}: {side.attrs['pooled']}"
        for name, side in zip(names, rows, strict=True)
        if side.attrs.get("pooled")
    )
    return Sides(rows[0], rows[1], display_names[0], display_names[1], pooled)


def _choose_side(
    frame: pd.DataFrame, conditions: Sequence[str], name: str, pool: bool
) -> tuple[pd.DataFrame, str]:
    """Return the runs of one side and its display name."""
    parts = [part.strip() for text in conditions for part in text.split(" & ")]
    text = " & ".join(parts)
    rows = filter_by_text(frame, parts, name)
    first = parse_condition(parts[0], name)
    if rows.empty:
        values = _distinct(frame, first.column)
        remedy = "see python -m analysis runs"
        if values:
            remedy = f"{first.column} is {', '.join(values[:_LISTED_VALUES])}"
            if len(values) > _LISTED_VALUES:
                remedy += f" and {len(values) - _LISTED_VALUES} more"
        raise ConfigError(name, text, "no run matches", remedy)
    try:
        side = require_homogeneous(rows, pool=pool)
    except HeterogeneousError as error:
        raise HeterogeneousError(f"{name} ({text}): {error}") from None
    # A device is called by its name alone, any other side by its conditions.
    if len(parts) == 1 and (first.column, first.sign) == ("device", "="):
        return side, first.values[0]
    return side, text


def is_speed(metric: str) -> bool:
    """Return whether a better value of a metric means faster."""
    return registered(metric).unit in _SPEED_UNITS or "utilization" in metric


def format_mean(value: float, low: float, high: float) -> str:
    """Format a geometric mean with its interval over points; NaN ends are unknown."""
    if low != low:
        return f"{value:.3g} (too few points for an interval)"
    mean, lower, upper = format_distinct(value, low, high)
    return f"{mean} ({lower} to {upper})"


def tidy(pairs: pd.DataFrame, keep: Sequence[str] = ()) -> pd.DataFrame:
    """Drop the columns that are constant or empty, except those of `keep`."""
    if not len(pairs):
        return pairs
    varying = {
        name
        for name in pairs
        if pairs[name].notna().any() and pairs[name].nunique(dropna=False) > 1
    }
    return pairs[[name for name in pairs if name in keep or name in varying]]


def describe_mean(row: Mapping[Any, Any], names: tuple[str, str], inverted: bool = False) -> str:
    """Describe a geometric mean: its interval, its points, and what unpaired points leave open.

    Args:
        row: The numbers of a family, as `Contrast.row` returns them.
        names: The names of A and B.
        inverted: Whether to give the mean of B over A.
    """
    value, low, high = (row[f"geometric_mean{end}"] for end in ("", "_low", "_high"))
    if inverted:
        value, low, high = 1 / value, 1 / high, 1 / low
    text = f"geometric mean {format_mean(value, low, high)} over {counted(row['points'], 'point')}"
    alone = [
        f"{row[f'missing_{side}']} on {name} alone"
        for side, name in zip("ab", names, strict=True)
        if row[f"missing_{side}"]
    ]
    if not alone:
        return text
    return (
        f"{text} that both ran; {' and '.join(alone)} ran, with which {names[0]} is ahead in "
        f"{row['share_least']:.1%} to {row['share_most']:.1%} of all and the mean lies in that "
        "interval if no ratio is further from 1 than those measured"
    )


def describe_interval_sources(pairs: pd.DataFrame) -> str:
    """Count where the intervals of single ratios come from."""
    counts = pairs["interval_source"].value_counts()
    texts = [f"{count} {_INTERVAL_SOURCES[str(name)]}" for name, count in counts.items()]
    return f"Intervals of single ratios: {', '.join(texts)}."


def rare_event_caveat(points: int) -> Iterator[str]:
    """Yield what share of points an event may have without occurring in any of these.

    All of n points miss an event that occurs in a share of 1 - 0.05^(1/n) with a chance of 5%. Many
    points need no caveat.
    """
    share = 1.0
    if points:
        share = 1 - 0.05 ** (1 / points)
    if share >= _RARE_SHARE:
        yield (
            f"What happens to fewer than {format_number(share, share=True)} of points, such as a long "
            f"wait, may have happened to none of these {points} (95%): no interval holds it."
        )


def describe_missing_verdicts(pairs: pd.DataFrame) -> Iterator[str]:
    """Yield why families, or some of their points, have no verdict, and what to run.

    Each reason is given once.
    """
    reasons: dict[str, list[str]] = {}
    for family, comparable in pairs.groupby("family", sort=False)["comparable"]:
        design = get_sampling(pairs, str(family)).design
        excluded = int((~comparable).sum())
        if not comparable.any():
            reasons.setdefault(design.text(), []).append(str(family))
        elif excluded:
            yield (
                f"{family}: {excluded} of {counted(len(comparable), 'point')} left out, whose "
                "sides were measured in different sessions."
            )
        if design.speed_change:
            yield (
                f"{family}: the machine's speed changed by {design.speed_change:.1%} in a session, "
                "whose runs count at its mean."
            )
    for reason, names in reasons.items():
        yield f"No verdict for {', '.join(names)}: {reason}."


def _distinct(frame: pd.DataFrame, column: str) -> list[str]:
    """Return the sorted values of a column as texts; empty if the frame lacks it."""
    if column not in frame:
        return []
    return sorted(frame[column].dropna().astype("str").unique())


def _format_values(values: Mapping[str, tuple[str, str]]) -> str:
    """Format the values of both sides in several columns."""
    return ", ".join(f"{name} ({a} / {b})" for name, (a, b) in values.items())
