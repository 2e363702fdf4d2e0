"""Two sides of a comparison, as a user names them on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.options import Options, option, unit_option
from analysis.result import Paragraph, joined
from analysis.store.conditions import parse, select
from paradnn.core.words import counted
from paradnn.errors import ConfigError, HeterogeneousError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

__all__ = ["KEPT", "PairedOptions", "Sides", "apart", "choose_sides", "is_speed", "join_on", "mean_in_words", "tidy"]

#: Columns of a pair that are shown whether they vary or not.
KEPT = ("family", "a", "b", "speedup", "speedup_low", "speedup_high", "interval_source")

_SHORT = 32  # letters of a name that is written out in sentences
_SPEED_UNITS = ("1/s", "ms", "FLOP/s", "s")


@dataclass(frozen=True, kw_only=True)
class PairedOptions(Options):
    """What every comparison of two sides takes."""

    unit: Literal["crossed", "model", "point"] = unit_option()
    margin: float = option(
        0.05, "differences up to this are called the same, where that is shown (default: 0.05)", metavar="D", above=0
    )
    power: bool = option(False, "say what more replicates could find")

    metric: str = option("examples_per_second", "what to compare (default: examples_per_second)", metavar="M")
    on: tuple[str, ...] | None = option(
        None,
        "hyperparameters that identify a point, such as nodes,batch_size (default: the whole configuration, but for "
        "what sets A and B apart)",
        metavar="X,Y",
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
        from analysis.store.frame import is_ok

        return tuple(run for side in (self.a, self.b) for run in side.loc[is_ok(side), "run_id"])


def choose_sides(frame: pd.DataFrame, a: Sequence[str], b: Sequence[str], names: Sequence[str], pool: bool) -> Sides:
    """The runs that meet A's conditions and those that meet B's, each side of one environment and protocol.

    A condition is as in --where; one text holds several with " & " between them. `names` are how A and B are called
    in messages. ConfigError for a condition that no run meets, SchemaError for a side of heterogeneous runs unless
    `pool`.
    """
    from analysis.store.frame import require_homogeneous

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
    from analysis.methods.columns import find_column

    def column(name: str) -> str:
        holder = next((side for side in (sides.a, sides.b) if name in side or f"model.{name}" in side), sides.a)
        return find_column(holder, name, "--on")

    return None if names is None else [column(name) for name in names]


def is_speed(metric: str) -> bool:
    """Whether "faster" says what "better" is of a metric."""
    from paradnn.store.metrics import metric as registered

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
    from analysis.store.frame import is_ok

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
