"""Two sides of a comparison, as a user names them on the command line.

What every comparison of two sides adds to its numbers: selection, power, sessions, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.columns import find_column
from analysis.format import format_distinct, short
from analysis.lazy import drawing, pd
from analysis.options import Options, column_option, option, unit_option
from analysis.pairing import LEVELLED
from analysis.result import Result, joined
from analysis.store.conditions import filter_by_text, parse_condition
from analysis.store.frame import is_ok, require_homogeneous
from paradnn.core.errors import ConfigError, HeterogeneousError
from paradnn.core.words import counted
from paradnn.statistics.contrast import MARGIN
from paradnn.statistics.sessions import sampling
from paradnn.store.metrics import metric as registered

#: Columns of a pair that are shown whether they vary or not.
KEPT = ("family", "a", "b", "speedup", "speedup_low", "speedup_high", "interval_source")

_SHORT = 32  # letters of a name that is written out in sentences
_SPEED_UNITS = ("1/s", "ms", "FLOP/s", "s")


def side_option(side: str, also: str = "") -> Any:
    """The conditions of one side's runs."""
    text = f"{also}condition of side {side}'s runs, repeatable"
    return option((), text, metavar="COLUMN=VALUE", several="repeat", names="conditions")


@dataclass(frozen=True, kw_only=True)
class PairedOptions(Options):
    """What every comparison of two sides takes."""

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
        "hyperparameters that identify a point, such as nodes,batch_size (default: the whole configuration, but for "
        "what sets A and B apart)",
        "X,Y",
    )


@dataclass(frozen=True)
class Sides:
    """Both sides' runs, what to call them, and what differs within a side where heterogeneous runs
    were pooled.
    """

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
        if self.called == (self.name_a, self.name_b):
            return ""
        return f"A is {self.name_a}, B is {self.name_b}. "

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the ok runs of both."""
        return tuple(run for side in (self.a, self.b) for run in side.loc[is_ok(side), "run_id"])

    def join_on(self, names: Sequence[str] | None) -> list[str] | None:
        """The columns that `--on` names, with or without `model.`; None for none given, ConfigError
        for no column.

        What one side alone has is left to the method, which says which side.
        """

        def column(name: str) -> str:
            holder = next(
                (side for side in (self.a, self.b) if name in side or f"model.{name}" in side),
                self.a,
            )
            return find_column(holder, name, "--on")

        return None if names is None else [column(name) for name in names]

    def apart(self, pairs: pd.DataFrame, what: str = "points") -> Iterator[str]:
        """What sets the sides apart beside what they were chosen by, and what has no pair."""
        attrs, (a, b), metric = pairs.attrs, self.called, pairs.attrs["metric"]
        both = {"a": (a, self.a), "b": (b, self.b)}
        given = f"device {self.name_a} {self.name_b}"
        differ = {name: values for name, values in attrs["differ"].items() if name not in given}
        if differ:
            yield f"{a} and {b} also differ in {_each(differ)}: the ratios include these effects."
        if metric in LEVELLED.values():
            yield f"Speeds are at one speed of the machine, whose own was measured beside every run ({metric})."
        source, protocol = (
            [
                sorted(side[column].dropna().unique()) if column in side else []
                for _, side in both.values()
            ]
            for column in ("source", "protocol_id")
        )
        if all(source) and source[0] != source[1]:
            shown = " / ".join(", ".join(part) for part in source)
            yield f"They were not timed in the same way: source {shown}, see docs/validation/published-data.md."
        elif all(protocol) and protocol[0] != protocol[1]:
            yield "They were not timed by the same protocol (measure.*)."
        for key, (name, _) in both.items():
            count = attrs[f"unusable_{key}"]
            if count:
                yield f"{count} ok runs of {name} hold no {metric} above zero."
        if attrs["disjoint"]:
            yield f"No value is shared in {_each(attrs['disjoint'])}: choose runs that agree there."
        alone = [
            f"{', '.join(attrs['alone'][key])} on {both[key][0]} alone"
            for key in both
            if attrs["alone"][key]
        ]
        told = f" ({'; '.join(alone)})" if alone else ""
        yield f"Without a counterpart: {attrs['unpaired_a']} {what} of {a}, {attrs['unpaired_b']} of {b}{told}."
        for name, count in attrs["mixed"].items():
            points = counted(count, "point")
            yield f"Left out: {points} of both with runs that differ in {name} on one side alone; choose one {name}."
        for name, side in both.values():
            failed = side.loc[~is_ok(side), "outcome"].fillna("unfinished").value_counts()
            if len(failed):
                listed = ", ".join(f"{count} {outcome}" for outcome, count in failed.items())
                yield f"Of the runs of {name} {failed.sum()} have no measurement ({listed})."

    def compared(
        self,
        cells: pd.DataFrame,
        families: pd.DataFrame,
        asked: PairedOptions,
        said: Iterable[str],
        picture: Callable[[], drawing.Figure],
        keep: Sequence[str] = (),
    ) -> Compared:
        """The result of a comparison of the sides; of the columns that say nothing those of `keep`
        are shown.
        """
        return Compared(
            cells=cells,
            families=families,
            asked=asked,
            numbers=tidy(cells, [*KEPT, *keep]),
            sentences=[*said],
            picture=picture,
            sources=self.sources,
            pooled=self.pooled,
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Compared(Result):
    """What was found of two sides: the pairs of points (`cells`), a row for each family, and what
    was asked.
    """

    cells: pd.DataFrame
    families: pd.DataFrame
    asked: PairedOptions


def choose_sides(
    frame: pd.DataFrame, a: Sequence[str], b: Sequence[str], names: Sequence[str], pool: bool
) -> Sides:
    """The runs that meet A's conditions and those that meet B's, each side of one environment and
    protocol.

    A condition is as in --where; one text holds several with " & " between them. `names` are how A
    and B are called in messages. ConfigError for a condition that no run meets, SchemaError for a
    side of heterogeneous runs unless `pool`.
    """
    chosen = []
    called = []
    for conditions, name in zip((a, b), names, strict=True):
        if not conditions:
            raise ConfigError(
                name, "(none)", "both sides are needed", "name --a 'device=TPU v2' --b device=V100"
            )
        parts = [part.strip() for text in conditions for part in text.split(" & ")]
        rows = filter_by_text(frame, parts, name)
        said = " & ".join(parts)
        first = parse_condition(parts[0], name)
        if rows.empty:
            if first.column in frame:
                held = sorted(frame[first.column].dropna().astype("str").unique())
            else:
                held = []
            listed = ", ".join(held[:6]) + (f" and {len(held) - 6} more" if len(held) > 6 else "")
            if held:
                remedy = f"{first.column} is {listed}"
            else:
                remedy = "see python -m analysis runs"
            raise ConfigError(name, said, "no run matches", remedy)
        try:
            chosen.append(require_homogeneous(rows, pool=pool))
        except HeterogeneousError as error:
            raise HeterogeneousError(f"{name} ({said}): {error}") from None
        # A device by its name alone, all else as it was written.
        device = len(parts) == 1 and (first.column, first.sign) == ("device", "=")
        called.append(first.values[0] if device else said)
    known = zip(names, (side.attrs.get("pooled") for side in chosen), strict=True)
    pooled = joined(f"{name}: {words}" for name, words in known if words)
    return Sides(chosen[0], chosen[1], called[0], called[1], pooled)


def is_speed(metric: str) -> bool:
    """Whether "faster" says what "better" is of a metric."""
    return registered(metric).unit in _SPEED_UNITS or "utilization" in metric


def _each(values: Mapping[str, tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({one} / {two})" for name, (one, two) in values.items())


def mean_in_words(value: float, low: float, high: float) -> str:
    """A geometric mean with its interval over points."""
    if low != low:
        return f"{value:.3g} (too few points for an interval)"
    return "{} ({} to {})".format(*format_distinct(value, low, high))


def tidy(pairs: pd.DataFrame, keep: Sequence[str] = ()) -> pd.DataFrame:
    """A table without the columns that say the same in every row, or nothing."""
    varies = {
        name
        for name in pairs
        if pairs[name].notna().any() and pairs[name].nunique(dropna=False) > 1
    }
    shown = [name for name in pairs if name in keep or name in varies]
    return pairs[shown] if len(pairs) else pairs


_RARE = 0.01  # share of points below which it is not said that what is rarer may be missing


def mean_of(row: Mapping[Any, Any], names: tuple[str, str], turned: bool = False) -> str:
    """The geometric mean of a row of `contrast.Contrast.row` with its interval, over which points
    that is, and what those that one side alone ran leave open; `turned` of B over A.
    """
    ends = [row[f"geometric_mean{end}"] for end in ("", "_low", "_high")]
    ends = [1 / ends[place] for place in (0, 2, 1)] if turned else ends
    said = mean_in_words(*ends)
    alone = [
        f"{row[f'missing_{side}']} on {name} alone" for side, name in zip("ab", names, strict=True)
    ]
    alone = [words for words in alone if not words.startswith("0 ")]
    over = f"over {counted(row['points'], 'point')}"
    if not alone:
        return f"geometric mean {said} {over}"
    share = f"{row['share_least']:.1%} to {row['share_most']:.1%}"
    return (
        f"geometric mean {said} {over} that both ran; {' and '.join(alone)} ran, with which {names[0]} is ahead in "
        f"{share} of all and the mean lies in that interval if no ratio is further from 1 than those measured"
    )


def sources_of(pairs: pd.DataFrame) -> str:
    """Where the intervals of single ratios come from."""
    words = {
        "replicates": "from replicates",
        "processes": "from several processes of one run",
        "none": "unknown",
        "within process": "from blocks within one process, without the spread between processes, so no verdict on them",
    }
    counts = pairs["interval_source"].value_counts().to_dict()
    return f"Intervals of single ratios: {', '.join(f'{count} {words[str(name)]}' for name, count in counts.items())}."


def rare(points: int) -> Iterator[str]:
    """What so few points may not contain: with a chance of 5% all n miss what occurs in 1 -
    0.05^(1/n) of points.
    """
    share = 1 - 0.05 ** (1 / points) if points else 1.0
    if share >= _RARE:
        least = short(share, share=True)
        yield (
            f"What happens to fewer than {least} of points, such as a long wait, may have happened to none of these "
            f"{points} (95%): no interval holds it."
        )


def no_verdict(pairs: pd.DataFrame) -> Iterator[str]:
    """Why the sides of some families, or some of their points, carry no verdict and what to run,
    each reason once.
    """
    reasons: dict[str, list[str]] = {}
    for family, carries in pairs.groupby("family", sort=False)["comparable"]:
        if not carries.any():
            reasons.setdefault(sampling(pairs, str(family)).design.text(), []).append(str(family))
        elif lacking := int((~carries).sum()):
            points = counted(lacking, "point")
            yield f"{family}: {points} of {len(carries)} left out, whose sides were measured in different sessions."
        changed = sampling(pairs, str(family)).design.stepped
        if changed:
            yield f"{family}: the machine's speed changed by {changed:.1%} in a session, whose runs count at its mean."
    for reason, names in reasons.items():
        yield f"No verdict for {', '.join(names)}: {reason}."
