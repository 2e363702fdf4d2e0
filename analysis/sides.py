"""Two sides of a comparison, as a user names them on the command line.

What every comparison of two sides adds to its numbers: selection, power, sessions, in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.columns import find_column
from analysis.format import short
from analysis.lazy import pd
from analysis.options import Options, option, unit_option
from analysis.result import Paragraph, joined
from analysis.statistics.contrast import MARGIN, detectable, replicates_for
from analysis.statistics.pairing import sampling
from analysis.store.conditions import parse, select
from analysis.store.frame import is_ok, require_homogeneous
from paradnn.core.words import counted
from paradnn.errors import ConfigError, HeterogeneousError
from paradnn.store.metrics import metric as registered

#: Columns of a pair that are shown whether they vary or not.
KEPT = ("family", "a", "b", "speedup", "speedup_low", "speedup_high", "interval_source")

_SHORT = 32  # letters of a name that is written out in sentences
_SPEED_UNITS = ("1/s", "ms", "FLOP/s", "s")


@dataclass(frozen=True, kw_only=True)
class PairedOptions(Options):
    """What every comparison of two sides takes."""

    unit: Literal["crossed", "model", "point"] = unit_option()
    margin: float = option(
        MARGIN, "differences up to this are called the same, where that is shown (default: 0.05)", metavar="D", above=0
    )
    power: bool = option(False, "say what more replicates could find")

    metric: str = option(
        "examples_per_second", "what to compare (default: examples_per_second)", metavar="M", names="columns"
    )
    on: tuple[str, ...] | None = option(
        None,
        "hyperparameters that identify a point, such as nodes,batch_size (default: the whole configuration, but for "
        "what sets A and B apart)",
        metavar="X,Y",
        names="columns",
    )


@dataclass(frozen=True)
class Sides:
    """Both sides' runs, what to call them, and what differs within a side where heterogeneous runs were pooled."""

    a: pd.DataFrame
    b: pd.DataFrame
    name_a: str
    name_b: str
    pooled: str = ""

    @property
    def called(self) -> tuple[str, str]:
        """What sentences call them: by their names where these are short, else A and B."""
        names = self.name_a, self.name_b
        return names if max(map(len, names)) <= _SHORT else ("A", "B")

    def named(self) -> str:
        """Which side is which, where sentences do not say it."""
        return "" if self.called == (self.name_a, self.name_b) else f"A is {self.name_a}, B is {self.name_b}. "

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the ok runs of both."""
        return tuple(run for side in (self.a, self.b) for run in side.loc[is_ok(side), "run_id"])


def choose_sides(frame: pd.DataFrame, a: Sequence[str], b: Sequence[str], names: Sequence[str], pool: bool) -> Sides:
    """The runs that meet A's conditions and those that meet B's, each side of one environment and protocol.

    A condition is as in --where; one text holds several with " & " between them. `names` are how A and B are called
    in messages. ConfigError for a condition that no run meets, SchemaError for a side of heterogeneous runs unless
    `pool`.
    """
    chosen, pooled = [], []
    for conditions, name in zip((a, b), names, strict=True):
        parts = [part.strip() for text in conditions for part in text.split(" & ")]
        rows = _rows(frame, parts, name)
        try:
            rows = require_homogeneous(rows, pool=pool)
        except HeterogeneousError as error:
            raise HeterogeneousError(f"{name} ({' & '.join(parts)}): {error}") from None
        pooled += [f"{name}: {rows.attrs['pooled']}"] if "pooled" in rows.attrs else []
        chosen.append((rows, _name(parts)))
    return Sides(chosen[0][0], chosen[1][0], chosen[0][1], chosen[1][1], joined(pooled))


def _rows(frame: pd.DataFrame, conditions: list[str], name: str) -> pd.DataFrame:
    rows = select(frame, conditions, name)
    if rows.empty:
        column = parse(conditions[0], name).column
        held = sorted(set(frame[column].dropna().astype("str"))) if column in frame else []
        listed = ", ".join(held[:6]) + (f" and {len(held) - 6} more" if len(held) > 6 else "")
        remedy = f"{column} is {listed}" if len(held) else "see python -m analysis runs"
        raise ConfigError(name, " & ".join(conditions), "no run matches", remedy)
    return rows


def _name(conditions: list[str]) -> str:
    """A device by its name alone, all else as it was written."""
    first = parse(conditions[0])
    named = len(conditions) == 1 and (first.column, first.sign) == ("device", "=")
    return first.values[0] if named else " & ".join(conditions)


def join_on(names: Sequence[str] | None, sides: Sides) -> list[str] | None:
    """The columns that `--on` names, with or without `model.`; None for none given, ConfigError for no column.

    What one side alone has is left to the method, which says which side.
    """

    def column(name: str) -> str:
        holder = next((side for side in (sides.a, sides.b) if name in side or f"model.{name}" in side), sides.a)
        return find_column(holder, name, "--on")

    return None if names is None else [column(name) for name in names]


def is_speed(metric: str) -> bool:
    """Whether "faster" says what "better" is of a metric."""
    return registered(metric).unit in _SPEED_UNITS or "utilization" in metric


def apart(pairs: pd.DataFrame, sides: Sides, what: str = "points") -> Iterator[Paragraph]:
    """In words: what sets the sides apart beside what they were chosen by, and what has no pair."""
    return map(Paragraph, _apart(pairs.attrs, sides, what))


def _apart(attrs: Mapping[Any, Any], sides: Sides, what: str) -> Iterator[str]:
    a, b = sides.called
    differ = [
        f"{name} ({one} / {two})"
        for name, (one, two) in attrs["differ"].items()
        if name != "device" and name not in f"{sides.name_a} {sides.name_b}"
    ]
    if differ:
        yield f"{a} and {b} also differ in {', '.join(differ)}: the ratios include these effects."
    for key, column in (("source", "source"), ("protocol", "protocol_id")):
        values = [sorted(set(side[column].dropna())) if column in side else [] for side in (sides.a, sides.b)]
        if values[0] != values[1] and all(values):
            shown = " / ".join(", ".join(part) for part in values) if key == "source" else ""
            yield (
                f"They were not timed in the same way: source {shown}, see docs/published-data.md."
                if shown
                else "They were not timed by the same protocol (measure.*)."
            )
            break
    for name, called in (("a", a), ("b", b)):
        if attrs[f"unusable_{name}"]:
            yield f"{attrs[f'unusable_{name}']} ok runs of {called} hold no {attrs['metric']} above zero."
    if attrs["disjoint"]:
        listed = ", ".join(f"{name} ({one} / {two})" for name, (one, two) in attrs["disjoint"].items())
        yield f"No value is shared in {listed}: choose runs that agree there."
    alone = [
        f"{', '.join(attrs['alone'][side])} on {called} alone"
        for side, called in (("a", a), ("b", b))
        if attrs["alone"][side]
    ]
    told = f" ({'; '.join(alone)})" if alone else ""
    yield f"Without a counterpart: {attrs['unpaired_a']} {what} of {a}, {attrs['unpaired_b']} of {b}{told}."
    for name, count in attrs["mixed"].items():
        points = counted(count, "point")
        yield f"Left out: {points} of both with runs that differ in {name} on one side alone; choose one {name}."
    yield from filter(None, (_failed(name, side) for name, side in ((a, sides.a), (b, sides.b))))


def _failed(name: str, side: pd.DataFrame) -> str:
    """Such as "Of the runs of A 220 have no measurement (220 oom_device)."; empty where all are ok."""
    counts = side.loc[~is_ok(side), "outcome"].fillna("unfinished").value_counts()
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return f"Of the runs of {name} {counts.sum()} have no measurement ({listed})." if len(counts) else ""


def mean_in_words(value: float, low: float, high: float) -> str:
    """A geometric mean with its interval over points."""
    return f"{value:.3g} ({low:.3g} to {high:.3g})" if low == low else f"{value:.3g} (too few points for an interval)"


def tidy(pairs: pd.DataFrame, keep: Sequence[str] = ()) -> pd.DataFrame:
    """A table without the columns that say the same in every row, or nothing."""
    varies = {name for name in pairs if pairs[name].notna().any() and pairs[name].nunique(dropna=False) > 1}
    shown = [name for name in pairs if name in keep or name in varies]
    return pairs[shown] if len(pairs) else pairs


_RARE = 0.01  # share of points below which it is not said that what is rarer may be missing
_TRIED = (3, 5, 10, 20, 30)  # replicates that --power tells of


def selection(row: dict[Any, Any], names: tuple[str, str] = ("A", "B")) -> str:
    """What the points that ran on one side alone leave open, such as "57 points ran on A alone, so ..."."""
    sides = zip("ab", names, strict=True)
    missing = [f"{row[f'missing_{side}']} on {name} alone" for side, name in sides if row[f"missing_{side}"]]
    if not missing:
        return ""
    words = (
        f"Of the points that both sides tried, {' and '.join(missing)} ran: over all of them the share of points in "
        f"which {names[0]} is ahead lies between {row['share_least']:.1%} and {row['share_most']:.1%}"
    )
    if "median_least" in row:
        words += (
            f", the median between {_ratio(row['median_least'])} and {_ratio(row['median_most'])}, the geometric mean "
            f"between {_ratio(row['mean_least'])} and {_ratio(row['mean_most'])} if no ratio is more extreme than "
            "those measured"
        )
    return f"{words}."


def rare(points: int) -> Iterator[str]:
    """What so few points may not contain: with a chance of 5% all n miss what occurs in 1 - 0.05^(1/n) of points."""
    share = 1 - 0.05 ** (1 / points) if points else 1.0
    if share >= _RARE:
        yield (
            "No interval holds what did not happen: waits that occur in fewer than "
            f"{short(share, share=True)} of the points may be missing from {points} of them (95%)."
        )


def smallest(difference: float) -> str:
    """Such as "a difference of 3.1% or more would have been found in four of five cases"."""
    if not math.isfinite(difference):
        return "no difference of any size could have been found"
    return f"a difference of {_percent(difference)} would have been found in four of five cases"


def no_verdict(pairs: pd.DataFrame) -> Iterator[str]:
    """Why the sides of some families, or some of their points, carry no verdict and what to run, each reason once."""
    reasons: dict[str, list[str]] = {}
    for family, carries in pairs.groupby("family", sort=False)["comparable"]:
        if not carries.any():
            reasons.setdefault(sampling(pairs, str(family)).design.text(), []).append(str(family))
        elif lacking := int((~carries).sum()):
            points = counted(lacking, "point")
            yield f"{family}: {points} of {len(carries)} left out, whose sides were measured in different sessions."
    for reason, names in reasons.items():
        yield f"No verdict for {', '.join(names)}: {reason}."


def more_replicates(spread: float, rate: float, tests: int, margin: float) -> str:
    """The smallest differences of one point that several numbers of replicates find, and how many `margin` takes."""
    if not math.isfinite(spread):
        return "Power: unknown, since no point has two independent measurements on both sides."
    listed = ", ".join(f"{count}: {_percent(detectable(spread, count, rate, tests))}" for count in _TRIED)
    needed = replicates_for(margin, spread, rate, tests)
    takes = f"{needed} replicates" if needed else "over a thousand replicates"
    one = "one point" if tests <= 1 else f"one of {tests} points"
    return (
        f"Power: measurements of a point scatter by {spread:.2%}. A difference in {one} that is found in four of five "
        f"cases, by replicates a side: {listed}. {_percent(margin)} takes {takes}."
    )


def _percent(difference: float) -> str:
    return f"{100 * difference:.2g}%" if difference < 1 else f"a factor of {1 + difference:.2g}"


def _ratio(value: float) -> str:
    return "0" if value == 0 else "any" if math.isinf(value) else f"{value:.3g}"
