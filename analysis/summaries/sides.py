"""Two sides of a comparison, as a user names them on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.store.conditions import parse, select
from analysis.summaries.pooling import joined, sentence
from paradnn.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Sides", "apart", "choose_sides", "is_speed", "join_on", "names_of", "tidy"]

_SPEED_UNITS = ("1/s", "ms", "FLOP/s", "s")


@dataclass(frozen=True)
class Sides:
    """Both sides' runs, what to call them, and what differs within a side where unlike runs were pooled."""

    a: pd.DataFrame
    b: pd.DataFrame
    name_a: str
    name_b: str
    pooled: str = ""

    @property
    def sources(self) -> list[str]:
        """The ids of the ok runs of both."""
        from analysis.store.frame import is_ok

        return [run for side in (self.a, self.b) for run in side.loc[is_ok(side), "run_id"]]


def choose_sides(frame: pd.DataFrame, a: Sequence[str], b: Sequence[str], options: Sequence[str], pool: bool) -> Sides:
    """The runs that meet A's conditions and those that meet B's, each side alike in environment and protocol.

    A condition is as in --where; one text holds several with " & " between them. `options` are how A and B are called
    in messages. ConfigError for a condition without any run, SchemaError for a side of unlike runs unless `pool`.
    """
    from analysis.store.frame import require_alike

    chosen, pooled = [], []
    for conditions, option in zip((a, b), options, strict=True):
        parts = [part.strip() for text in conditions for part in text.split(" & ")]
        rows = _rows(frame, parts, option)
        try:
            rows = require_alike(rows, pool=pool)
        except SchemaError as error:
            raise SchemaError(f"{option} ({' & '.join(parts)}): {error}") from None
        pooled += [f"{option}: {rows.attrs['pooled']}"] if "pooled" in rows.attrs else []
        chosen.append((rows, _name(parts)))
    return Sides(chosen[0][0], chosen[1][0], chosen[0][1], chosen[1][1], joined(pooled))


def _rows(frame: pd.DataFrame, conditions: list[str], option: str) -> pd.DataFrame:
    rows = select(frame, conditions, option)
    if rows.empty:
        column = parse(conditions[0], option).column
        held = sorted(set(frame[column].dropna().astype("str"))) if column in frame else []
        listed = ", ".join(held[:6]) + (f" and {len(held) - 6} more" if len(held) > 6 else "")
        remedy = f"{column} is {listed}" if len(held) else "see python -m analysis runs"
        raise ConfigError(option, " & ".join(conditions), "none of the chosen runs is so", remedy)
    return rows


def _name(conditions: list[str]) -> str:
    """A device by its name alone, all else as it was written."""
    first = parse(conditions[0])
    named = len(conditions) == 1 and (first.column, first.sign) == ("device", "=")
    return first.values[0] if named else " & ".join(conditions)


def names_of(text: str | None) -> list[str] | None:
    """The parts of "A,B"; None where nothing was given."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def join_on(text: str | None, sides: Sides) -> list[str] | None:
    """The columns that `--on` names, with or without `model.`; None where nothing was given, ConfigError for no column.

    What one side alone has is left to the method, which says which side.
    """
    from analysis.methods.columns import find_column

    def column(name: str) -> str:
        holder = next((side for side in (sides.a, sides.b) if name in side or f"model.{name}" in side), sides.a)
        return find_column(holder, name, "--on")

    return None if text is None else [column(name) for name in names_of(text) or ()]


def is_speed(metric: str) -> bool:
    """Whether "faster" says what "better" is of a metric."""
    from paradnn.store.metrics import metric as registered

    return registered(metric).unit in _SPEED_UNITS or "utilization" in metric


def apart(pairs: pd.DataFrame, sides: Sides, what: str = "points") -> list[str]:
    """In words: what sets the sides apart beside what they were chosen by, and what has no pair."""
    attrs, lines = pairs.attrs, []
    differ = [
        f"{name} ({one} / {two})"
        for name, (one, two) in attrs["differ"].items()
        if name != "device" and name not in f"{sides.name_a} {sides.name_b}"
    ]
    if differ:
        lines.append(f"A and B also differ in {', '.join(differ)}: the ratios hold the effect of all that.")
    for key, column in (("source", "source"), ("protocol", "protocol_id")):
        values = [sorted(set(side[column].dropna())) if column in side else [] for side in (sides.a, sides.b)]
        if values[0] != values[1] and all(values):
            shown = " / ".join(", ".join(part) for part in values) if key == "source" else ""
            lines.append(
                f"They were not timed alike: source {shown}, see docs/published-data.md."
                if shown
                else "They were not timed by the same protocol (measure.*)."
            )
            break
    for name in "ab":
        if attrs[f"unusable_{name}"]:
            lines.append(f"{attrs[f'unusable_{name}']} ok runs of {name.upper()} hold no {attrs['metric']} above zero.")
    if attrs["disjoint"]:
        listed = ", ".join(f"{name} ({one} / {two})" for name, (one, two) in attrs["disjoint"].items())
        lines.append(f"No value is shared in {listed}: choose runs that agree there.")
    lines.append(f"Without a counterpart: {attrs['unpaired_a']} {what} of A, {attrs['unpaired_b']} of B.")
    lines += [words for name, side in (("A", sides.a), ("B", sides.b)) if (words := _failed(name, side))]
    return [*lines, *sentence(sides.pooled)]


def _failed(name: str, side: pd.DataFrame) -> str:
    """Such as "Of A 220 runs ended otherwise (220 oom_device)."; empty where all are ok."""
    from analysis.store.frame import is_ok

    counts = side.loc[~is_ok(side), "outcome"].fillna("unfinished").value_counts()
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return f"Of {name}'s runs {counts.sum()} have no measurement ({listed})." if len(counts) else ""


def tidy(pairs: pd.DataFrame, keep: Sequence[str] = ()) -> pd.DataFrame:
    """A table without the columns that say the same in every row, or nothing."""
    varies = {name for name in pairs if pairs[name].notna().any() and pairs[name].nunique(dropna=False) > 1}
    told = [name for name in pairs if name in keep or name in varies]
    return pairs[told] if len(pairs) else pairs
