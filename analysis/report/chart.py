"""The picture of the first screen: throughput by model, with intervals, a mark for each system."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.format import short
from analysis.report.populations import Population
from analysis.report.results import fastest_settings, interval_of, model_name

__all__ = ["Chart", "throughput"]

_ROWS = 18  # models of a chart
_SYSTEMS = 4
_NAMED = 600  # points whose names are compared
_COLUMNS = (
    "family",
    "batch_size",
    "steady",
    "contended",
    *(f"examples_per_second{end}" for end in ("", "_low", "_high")),
)
_LETTERS = 27  # of a name
_TICKS = 6


@dataclass(frozen=True)
class Mark:
    """A measured point: its system's number, places from 0 to 1 along the axis, whether it is to be trusted less."""

    system: int
    x: float
    low: float | None
    high: float | None
    shift: float
    doubtful: bool


@dataclass(frozen=True)
class Line:
    """A row of the chart: the model, its marks, and the highest throughput as a number."""

    name: str
    value: str
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Chart:
    """Everything that the drawing takes; `rest` says what it leaves out, `systems` are the names of the marks."""

    rows: Sequence[Line]
    ticks: Sequence[tuple[float, str]]
    systems: Sequence[str]
    doubtful: bool
    rest: str
    alternative: str

    @property
    def left(self) -> int:
        """The width that the names take."""
        return min(200, 24 + max(round(6.6 * len(line.name)) for line in self.rows))


def throughput(populations: Sequence[Population]) -> Chart | None:
    """The chart of the measured points, each model at its fastest where all do not fit; None where there are none."""
    shown = [one for one in populations if len(one.points)][:_SYSTEMS]
    whole = sum(len(one.points) for one in shown)
    found = _by_name([one.points for one in shown] if whole <= _NAMED else [_thinned(one) for one in shown])
    if len(found) > _ROWS and whole <= _NAMED:
        found = _by_name([fastest_settings(one.points) for one in shown])
    chosen = _spread(found)
    if not chosen:
        return None
    scale = _Scale([row for name in chosen for row in found[name].values()])
    rows = [_line(name, found[name], scale, len(shown)) for name in chosen]
    rest = ""
    if (count := sum(len(line.marks) for line in rows)) < whole:
        rest = f"{count} of {whole:,} points, each model at its fastest setting; the table below has all."
    said = "; ".join(f"{line.name} {line.value}" for line in rows)
    return Chart(
        rows,
        list(scale.ticks()),
        [one.name for one in shown],
        any(mark.doubtful for line in rows for mark in line.marks),
        rest,
        f"Throughput in examples a second by model, on a logarithmic scale. {said}",
    )


def _thinned(population: Population) -> pd.DataFrame:
    """Each model at its fastest; of many in a family some, evenly over their sizes."""
    fastest = fastest_settings(population.points)
    families = fastest.groupby("family", sort=False)
    most = max(2, _NAMED // families.ngroups)
    place, size = families.cumcount(), families["family"].transform("size")
    step = (size - 1).clip(lower=1) / (most - 1)
    return fastest[(size <= most) | ((place / step).round().mul(step).round() == place)]


def is_doubtful(row: Mapping[Any, Any]) -> bool:
    """Whether a point was not steady, or measured beside other work."""
    steady, contended = row.get("steady"), row.get("contended")
    return bool((pd.notna(steady) and not steady) or (pd.notna(contended) and contended))


def _by_name(tables: Sequence[pd.DataFrame]) -> dict[str, dict[int, dict[Any, Any]]]:
    """name of a point -> number of the system -> its row, in the order of the tables; the fastest of those that share a
    name."""
    found: dict[str, dict[int, dict[Any, Any]]] = {}
    for system, table in enumerate(tables):
        names = [name for name in map(str, table) if name in _COLUMNS or name.startswith(("model.", "generate."))]
        for row in table[names].to_dict("records"):
            batch = row.get("batch_size")
            name = model_name(row) + (f" b{int(batch)}" if pd.notna(batch) else "")
            rows = found.setdefault(name, {})
            if system not in rows or rows[system]["examples_per_second"] < row["examples_per_second"]:
                rows[system] = row
    return found


def _spread(found: Mapping[str, Mapping[int, Mapping[Any, Any]]]) -> list[str]:
    """The names that are shown: those that most systems have, evenly over what there is."""
    most = max((len(rows) for rows in found.values()), default=0)
    names = [name for name, rows in found.items() if len(rows) == most]
    if len(names) <= _ROWS:
        return names
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(str(next(iter(found[name].values()))["family"]), []).append(name)
    each = max(1, _ROWS // len(families))
    places = {
        family: {round(i * (len(own) - 1) / max(1, each - 1)) for i in range(each)} for family, own in families.items()
    }
    return [name for family, own in families.items() for i, name in enumerate(own) if i in places[family]][:_ROWS]


class _Scale:
    """A logarithmic axis over the throughputs of rows and their intervals."""

    def __init__(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        values = [value for row in rows for value in (row["examples_per_second"], *(interval_of(row) or ()))]
        self._low, self._high = math.log10(min(values)) - 0.08, math.log10(max(values)) + 0.08

    def place(self, value: float) -> float:
        """Where a value stands, from 0 to 1."""
        return (math.log10(value) - self._low) / (self._high - self._low)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Places and words of a few round values."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            values = [step * 10.0**decade for decade in decades for step in steps]
            inside = [value for value in values if 0 <= self.place(value) <= 1]
            if len(inside) <= _TICKS:
                break
        for value in inside[:: math.ceil(len(inside) / _TICKS)] if inside else []:
            yield self.place(value), short(value)


def _line(name: str, rows: Mapping[int, Mapping[Any, Any]], scale: _Scale, systems: int) -> Line:
    marks = []
    for system, row in rows.items():
        ends = interval_of(row)
        low, high = (scale.place(ends[0]), scale.place(ends[1])) if ends else (None, None)
        shift = 5.0 * (system - (systems - 1) / 2) if systems > 1 else 0.0
        marks.append(Mark(system, scale.place(row["examples_per_second"]), low, high, shift, is_doubtful(row)))
    best = max(float(row["examples_per_second"]) for row in rows.values())
    return Line(name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…", short(best, digits=3), marks)
