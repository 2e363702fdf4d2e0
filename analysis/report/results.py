"""What was measured, as a manager asks: models, throughput, what a million examples take, how sure that is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.analyses.heatmap import MEMORY
from analysis.format import short
from analysis.labels import label
from analysis.report.populations import Population
from analysis.report.table import CAP, Cell, Table
from analysis.store.frame import is_ok
from paradnn.core.words import counted
from paradnn.errors import ParadnnError
from paradnn.families import FAMILIES

__all__ = ["Results", "duration", "fastest_settings", "interval_of", "model_name", "quality", "rate", "results"]

_SHOWN = 12  # rows that stand open; of more, the models that span each family, and all of them folded
_MILLION = 1e6
_NONE = Cell("-")
_SETTINGS = ("mode", "compile", "optimizer.name", "data.name", "devices", "platform.threads", "framework.name")
_COUNTS = {"devices": "device", "platform.threads": "thread"}  # a bare number would not say of what


class _Row(NamedTuple):
    """A point with the system that it was measured on; `values` are the columns of its (aggregated) run."""

    population: Population
    values: Mapping[Any, Any]

    def number(self, name: str) -> float:
        """A metric; NaN where the run has none."""
        value = self.values.get(name)
        return float(value) if value is not None and pd.notna(value) else float("nan")

    @property
    def throughput(self) -> float:
        """Examples a second."""
        return self.number("examples_per_second")


@dataclass(frozen=True)
class Results:
    """What was measured: the table that stands open, that of all points where it is another, what was not measured."""

    shown: Table | None
    title: str
    whole: Table | None
    failed: Sequence[str]


def results(populations: Sequence[Population], whole: str) -> Results:
    """The measured points, and what was not measured in sentences; `whole` is the command that writes every run."""
    points = [(population, population.points) for population in populations]
    count = sum(len(table) for _, table in points)
    failed = list(_failed(populations))
    if not count:
        return Results(None, "No point was measured.", None, failed)
    note = f"The first {CAP} of {count:,}; all of them: {whole}" if count > CAP else ""
    rows = [row for population, table in points for row in _rows(population, table.head(CAP))][:CAP]
    every = _table(
        rows,
        populations,
        "Measured points",
        note,
        f"{CAP} of {count:,} points" if count > CAP else f"all {count} points",
    )
    if count <= _SHOWN:
        return Results(every, "", None, failed)
    title = "The smallest, the middle and the largest model of each family, at its fastest setting"
    spanning = [row for population in populations for row in _spanning(population)]
    return Results(_table(spanning, populations, title), f"{title}.", every, failed)


def fastest_settings(points: pd.DataFrame) -> pd.DataFrame:
    """Each model at its fastest setting; a token is not an example of another mode, so what generates is by itself."""
    model = ["family", *(name for name in map(str, points.columns) if name.startswith(("model.", "generate.")))]
    model = [name for name in model if points[name].nunique(dropna=False) > 1] or ["family"]
    order = np.argsort(-points["examples_per_second"].to_numpy(dtype="float64"), kind="stable")
    first = ~points[model].iloc[order].duplicated().to_numpy()
    return points.iloc[np.sort(order[first])]


def _rows(population: Population, points: pd.DataFrame) -> list[_Row]:
    return [_Row(population, row) for row in points.to_dict("records")]


def _spanning(population: Population) -> list[_Row]:
    """Of each family the smallest, the middle and the largest model, each at its fastest."""
    fastest = fastest_settings(population.points)
    chosen = []
    for _, own in fastest.groupby("family", sort=False):
        places = dict.fromkeys((0, len(own) // 2, len(own) - 1))
        chosen += _rows(population, own.iloc[[*places]])
    return chosen


def _table(
    rows: Sequence[_Row], populations: Sequence[Population], caption: str, note: str = "", size: str = ""
) -> Table:
    """The rows; a column that no row fills is left out, and one that says the same in all is said once, above."""
    varied = [
        name for name in _SETTINGS if len({str(value) for row in rows if _known(value := row.values.get(name))}) > 1
    ]
    columns = {
        "system": [Cell(row.population.name) for row in rows] if len(populations) > 1 else [],
        "model": [Cell(model_name(row.values).replace(" ", "\u00a0")) for row in rows],
        "batch size": [_whole(row.values.get("batch_size")) for row in rows],
        "precision": [Cell(row.values.get("precision")) for row in rows],
        "settings": [_settings(row, varied) for row in rows] if varied else [],
        "cost of a million": [_cost(row) for row in rows],
        "examples/s": [Cell(rate(row.throughput), row.throughput) for row in rows],
        "95% interval": [_interval(row) for row in rows],
        "a million examples": [Cell(duration(_MILLION / row.throughput), _MILLION / row.throughput) for row in rows],
        "peak memory": [_memory(row) for row in rows],
        "energy of a million": [_energy(row) for row in rows],
        "quality": [Cell(quality(row.values, row.population.published)) for row in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cell != _NONE for cell in cells)}
    same = _taken(filled) if len(rows) > 1 else {}
    said = [f"The same in every row: {', '.join(f'{name} {words}' for name, words in same.items())}."] if same else []
    return Table(
        caption, [*filled], [*zip(*filled.values(), strict=True)], " ".join([*said, *filter(None, [note])]), size
    )


def _taken(columns: dict[str, list[Cell]]) -> dict[str, str]:
    """What all rows say alike of precision and quality, taken out of the columns."""
    same = {}
    for name in {"precision", "quality"} & set(columns):
        parts = [str(cell.words).split(", ") for cell in columns[name]]
        if common := [part for part in parts[0] if all(part in each for each in parts)]:
            same[name] = ", ".join(common)
            rest = [", ".join(part for part in each if part not in common) or "-" for each in parts]
            columns[name] = [Cell(words) for words in rest]
            if set(rest) == {"-"}:
                del columns[name]
    return dict(sorted(same.items()))


def _known(value: Any) -> bool:
    return value is not None and pd.notna(value)


def _whole(value: Any) -> Cell:
    return Cell(f"{int(value):,}", float(value)) if _known(value) else _NONE


def _settings(row: _Row, varied: Sequence[str]) -> Cell:
    known = {name: row.values[name] for name in varied if _known(row.values.get(name))}
    if row.values.get("mode", "train") != "train":
        known.pop("optimizer.name", None)  # nothing is trained
    return Cell(
        ", ".join(
            counted(int(value), _COUNTS[name]) if name in _COUNTS else str(value) for name, value in known.items()
        )
    )


def interval_of(row: Mapping[Any, Any]) -> tuple[float, float] | None:
    """The ends of the 95% interval of a point's throughput; None where there is none."""
    low, high = (row.get(f"examples_per_second_{end}") for end in ("low", "high"))
    if low is None or high is None or pd.isna(low) or pd.isna(high) or low <= 0:
        return None
    return float(low), float(high)


def _interval(row: _Row) -> Cell:
    ends = interval_of(row.values)
    return Cell("\u00a0to\u00a0".join(map(rate, ends))) if ends else _NONE


def _memory(row: _Row) -> Cell:
    """Of the device where it is known, else of the point's processes."""
    device = row.number("peak_device_memory_bytes")
    memory = device if device > 0 else row.number("peak_memory_bytes")
    return Cell(f"{memory / 2**30:.3g} GiB", memory) if memory == memory else _NONE


def _energy(row: _Row) -> Cell:
    joules = row.number("energy_per_step_joules") / row.number("batch_size") * _MILLION
    return Cell(f"{joules / 3.6e6:.3g} kWh", joules) if joules > 0 else _NONE


def _cost(row: _Row) -> Cell:
    cost = row.number("cost_per_million_examples")
    currency = row.values.get("price_currency")
    return Cell(short(cost, str(currency) if _known(currency) else "", digits=3), cost) if cost > 0 else _NONE


def rate(value: float) -> str:
    """Four digits, none before the point lost."""
    return f"{value:,.0f}" if value >= 1000 else short(value, digits=4)


def duration(seconds: float) -> str:
    """A time in the unit that fits it: 12 s, 3.4 min, 5.2 h, 1.3 days."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{short(seconds / size, digits=3)} {unit}"
    return f"{short(seconds, digits=3)} s"


def model_name(values: Mapping[Any, Any]) -> str:
    """Family and size, such as "fc 4x1024", as the names of runs have them; the family alone where more is unknown."""
    family = str(values["family"])
    if family not in FAMILIES:
        return family
    options = FAMILIES[family].options
    given = {entry.name: values.get(f"model.{entry.name}") for entry in dataclasses.fields(options)}
    try:
        known = {name: _option(value) for name, value in given.items() if value is not None and pd.notna(value)}
        size = options(**{**known, "name": family}).size
    except (ParadnnError, TypeError, ValueError, AttributeError):
        return family
    lengths = [values.get(f"generate.{name}", pd.NA) for name in ("prompt", "tokens")]
    generated = f" generate {int(lengths[0])}+{int(lengths[1])}" if all(map(pd.notna, lengths)) else ""
    return f"{family} {size}".strip() + generated


def _option(value: Any) -> Any:
    """A list of numbers is stored as its text; an address in brackets is no list."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return tuple(json.loads(value))
    return value


def quality(values: Mapping[Any, Any], published: bool = False) -> str:
    """How far a row can be trusted, in words."""
    if published:
        return "published, one figure, no interval"
    steady, contended = values.get("steady"), values.get("contended")
    words = ["steady" if pd.notna(steady) and bool(steady) else "not steady" if pd.notna(steady) else "not checked"]
    if pd.notna(contended) and bool(contended):
        words.append("shared its machine")
    if str(values.get("checks") or "").startswith("failed"):
        words.append("a self-check failed")
    processes = values.get("processes")
    count = int(processes) if processes is not None and pd.notna(processes) else 1
    words.append("single process" if count == 1 else f"{count} processes")
    replicates = values.get("replicates")
    if replicates is not None and pd.notna(replicates) and replicates > 1:
        words.append(f"{int(replicates)} replicates")
    return ", ".join(words)


def _failed(populations: Sequence[Population]) -> Iterator[str]:
    """What of the points has no row, system by system."""
    for one in populations:
        failed = one.rows.loc[~is_ok(one.rows), "outcome"].fillna("unfinished")
        if not len(failed):
            continue
        memory = int(failed.isin(MEMORY).sum())
        other = failed[~failed.isin(MEMORY)].value_counts()
        words = [f"{counted(memory, 'point')} did not fit its memory"] if memory else []
        words += [f"{counted(int(count), 'point')} ended as {label(str(name))}" for name, count in other.items()]
        yield f"{one.name}: {'; '.join(words)}."
