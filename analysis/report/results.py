"""What was measured, as a manager asks: models, throughput, what a million examples take, how sure that is.

As tables that sort, with few digits to read, the exact value to sort by and no column that says nothing, and as the
picture of the first screen: throughput by model, with intervals, a mark for each system.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.analyses.heatmap import MEMORY
from analysis.format import short
from analysis.labels import label, labelled
from analysis.report.populations import Population
from analysis.store.frame import is_ok
from paradnn.core.words import counted
from paradnn.errors import ParadnnError
from paradnn.families import FAMILIES

_CAP = 200  # rows of a table that are in the page
_CROWDED = 10  # columns above which a printed table is set smaller
_IDS = ("run_id", "a_run_id", "b_run_id")
_SHOWN = 12  # rows that stand open; of more, the models that span each family, and all of them folded
_MILLION = 1e6
_SETTINGS = ("mode", "compile", "optimizer.name", "data.name", "devices", "platform.threads", "framework.name")
_COUNTS = {"devices": "device", "platform.threads": "thread"}  # a bare number would not say of what
#: Of the chart: models, systems, letters of a name, marks of the axis, points whose names are compared.
_ROWS, _SYSTEMS, _LETTERS, _TICKS, _NAMED = 18, 4, 27, 6, 600

Row = Mapping[Any, Any]


class Cell(NamedTuple):
    """A cell of a table: its words, the number to sort by where it is one, and whether it is the id of a run."""

    words: Any
    exact: float | None = None
    is_run: bool = False


_NONE = Cell("-")


class Table(NamedTuple):
    """What a page shows as a table: headings, cells, a note above them, and what it holds of how much."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    size: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Which columns hold numbers."""
        return [any(row[place].exact is not None for row in self.rows) for place in range(len(self.head))]

    @property
    def wide(self) -> bool:
        """Whether it has so many columns that it is printed smaller."""
        return len(self.head) > _CROWDED


def frame_table(frame: pd.DataFrame, caption: str, whole: str = "", cap: int = _CAP) -> Table | None:
    """The first `cap` rows of a frame, None of an empty one; `whole` is the command that writes all of them.

    Columns that are empty or the same in every row are said above. The ends of an interval share a column, which is not
    there where no interval says more than its value.
    """
    if not len(frame):
        return None
    held = frame[[name for name in frame.columns if frame[name].notna().any()]]
    same = [name for name in held.columns if held[name].notna().all() and held[name].nunique() == 1]
    same = same if 1 < len(held.columns) > len(same) else []
    said = ", ".join(f"{label(str(name))} = {_plain(held[name].iloc[0], held[name])}" for name in same)
    notes = [f"The same in every row: {said}."] if same else []
    if len(frame) > cap:
        notes.append(f"The first {cap} of {len(frame):,} rows{f'; all of them: {whole}' if whole else '.'}")
    size = f"{len(frame):,} row{'s'[: len(frame) != 1]}" if len(frame) <= cap else f"{cap} of {len(frame):,} rows"
    columns = dict(_columns(held.drop(columns=same).head(cap)))
    return Table(caption, [*columns], [*zip(*columns.values(), strict=True)], " ".join(notes), size)


def _columns(frame: pd.DataFrame) -> Iterator[tuple[str, list[Cell]]]:
    """Heading and cells of each column; the two ends of an interval as one, behind what it is of."""
    names, before = [str(name) for name in frame.columns], ""
    upper = {name: f"{name.removesuffix('low')}high" for name in names if name == "low" or name.endswith("_low")}
    for name in names:
        if upper.get(name) in names:
            cells = _ends(frame, before, name, upper[name])
            if any(cell != _NONE for cell in cells):
                yield f"95% interval of {label(before)}" if before else "95% interval", cells
        elif name not in upper.values():
            before, values = name, frame[name]
            words = [_plain(value, values) for value in values.astype("object")]
            numbers = [
                float(value) if _is_number(values) and text != "-" else None
                for value, text in zip(values, words, strict=True)
            ]
            yield (
                labelled(name),
                [Cell(text, number, name in _IDS and text != "-") for text, number in zip(words, numbers, strict=True)],
            )


def _ends(frame: pd.DataFrame, of: str, low: str, high: str) -> list[Cell]:
    """Both ends in a cell; none where they are the value itself."""
    found = []
    for value, *ends in zip(frame[of] if of else [None] * len(frame), frame[low], frame[high], strict=True):
        nothing = any(pd.isna(end) for end in ends) or (ends[0] == ends[1] == value)
        words = [_plain(end, frame[name]) for end, name in zip(ends, (low, high), strict=True)]
        found.append(_NONE if nothing else Cell("\u00a0to\u00a0".join(words)))
    return found


def _is_number(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _plain(value: Any, values: pd.Series) -> str:
    """One value of a column as text."""
    if not _known(value):
        return "-"
    return short(float(value), digits=4) if _is_number(values) and isinstance(value, float) else str(value)


def _known(value: Any) -> bool:
    return value is not None and not (pd.api.types.is_scalar(value) and pd.isna(value))


def _number(row: Row, name: str) -> float:
    """A metric; NaN where the run has none."""
    value = row.get(name)
    return float(value) if _known(value) else math.nan  # type: ignore[arg-type]


class Results(NamedTuple):
    """What was measured: the table that stands open, that of all points where it is another, what was not measured."""

    shown: Table | None
    title: str
    whole: Table | None
    failed: Sequence[str]


def results(populations: Sequence[Population], whole: str) -> Results:
    """The measured points, and what was not measured in sentences; `whole` is the command that writes every run."""
    count = sum(len(one.points) for one in populations)
    failed = [f"{one.name}: {words}." for one in populations if (words := _failed(one))]
    if not count:
        return Results(None, "No point was measured.", None, failed)
    note = f"The first {_CAP} of {count:,}; all of them: {whole}" if count > _CAP else ""
    rows = [(one.name, row, one.published) for one in populations for row in one.points.head(_CAP).to_dict("records")]
    size = f"{_CAP} of {count:,} points" if count > _CAP else f"all {count} points"
    every = _table(rows[:_CAP], len(populations) > 1, "Measured points", note, size)
    if count <= _SHOWN:
        return Results(every, "", None, failed)
    title = "The smallest, the middle and the largest model of each family, at its fastest setting"
    spanning = [(one.name, row, one.published) for one in populations for row in _spanning(one)]
    return Results(_table(spanning, len(populations) > 1, title), f"{title}.", every, failed)


def fastest_settings(points: pd.DataFrame) -> pd.DataFrame:
    """Each model at its fastest setting; a token is not an example of another mode, so what generates is by itself."""
    model = ["family", *(name for name in map(str, points.columns) if name.startswith(("model.", "generate.")))]
    model = [name for name in model if points[name].nunique(dropna=False) > 1] or ["family"]
    order = np.argsort(-points["examples_per_second"].to_numpy(dtype="float64"), kind="stable")
    first = ~points[model].iloc[order].duplicated().to_numpy()
    return points.iloc[np.sort(order[first])]


def _spanning(population: Population) -> Iterator[Row]:
    """Of each family the smallest, the middle and the largest model, each at its fastest."""
    for _, own in fastest_settings(population.points).groupby("family", sort=False):
        yield from own.iloc[[*dict.fromkeys((0, len(own) // 2, len(own) - 1))]].to_dict("records")


def _table(rows: Sequence[tuple[str, Row, bool]], several: bool, caption: str, note: str = "", size: str = "") -> Table:
    """Rows of systems; a column that no row fills is left out, one that says the same in all is said once, above."""
    varied = [name for name in _SETTINGS if len({str(row[name]) for _, row, _ in rows if _known(row.get(name))}) > 1]
    cells = [
        {
            "system": Cell(system) if several else _NONE,
            "model": Cell(model_name(row).replace(" ", "\u00a0")),
            "batch size": _cell(_number(row, "batch_size"), lambda value: f"{int(value):,}"),
            "precision": Cell(row["precision"]) if _known(row.get("precision")) else _NONE,
            "settings": Cell(_settings(row, varied)) if varied else _NONE,
            "cost of a million": _cost(row),
            "examples/s": _cell(_number(row, "examples_per_second"), rate),
            "95% interval": Cell("\u00a0to\u00a0".join(map(rate, interval_of(row) or ())) or "-"),
            "a million examples": _cell(_MILLION / _number(row, "examples_per_second"), duration),
            "peak memory": _cell(_memory(row), lambda value: f"{value / 2**30:.3g} GiB"),
            "energy of a million": _cell(
                _number(row, "energy_per_step_joules") / _number(row, "batch_size") * _MILLION,
                lambda value: f"{value / 3.6e6:.3g} kWh",
            ),
            "quality": Cell(quality(row, published)),
        }
        for system, row, published in rows
    ]
    columns = {name: [row[name] for row in cells] for name in cells[0]}
    columns = {name: own for name, own in columns.items() if any(cell != _NONE for cell in own)}
    same = (
        {name: words for name in ("precision", "quality") if (words := _shared(columns, name))} if len(rows) > 1 else {}
    )
    said = [f"The same in every row: {', '.join(f'{name} {words}' for name, words in same.items())}."] if same else []
    return Table(
        caption, [*columns], [*zip(*columns.values(), strict=True)], " ".join([*said, *([note] if note else [])]), size
    )


def _shared(columns: dict[str, list[Cell]], name: str) -> str:
    """What all rows say of a column, taken out of it; the column goes where nothing else is in it."""
    parts = [str(cell.words).split(", ") for cell in columns.get(name, ())]
    common = [part for part in parts[0] if all(part in each for each in parts)] if parts else []
    if common:
        rest = [", ".join(part for part in each if part not in common) or "-" for each in parts]
        columns[name] = [Cell(words) for words in rest]
        if set(rest) == {"-"}:
            del columns[name]
    return ", ".join(common)


def _cell(value: float, words: Any) -> Cell:
    """A number above zero with its words."""
    return Cell(words(value), value) if value > 0 else _NONE


def _cost(row: Row) -> Cell:
    currency = row.get("price_currency")
    unit = str(currency) if _known(currency) else ""
    return _cell(_number(row, "cost_per_million_examples"), lambda value: short(value, unit, digits=3))


def _memory(row: Row) -> float:
    """Of the device where it is known, else of the point's processes."""
    device = _number(row, "peak_device_memory_bytes")
    return device if device > 0 else _number(row, "peak_memory_bytes")


def _settings(row: Row, varied: Sequence[str]) -> str:
    trains = row.get("mode", "train") == "train"
    known = {name: row[name] for name in varied if _known(row.get(name)) and (trains or name != "optimizer.name")}
    words = (counted(int(value), _COUNTS[name]) if name in _COUNTS else str(value) for name, value in known.items())
    return ", ".join(words)


def interval_of(row: Row) -> tuple[float, float] | None:
    """The ends of the 95% interval of a point's throughput; None where there is none."""
    low, high = (_number(row, f"examples_per_second_{end}") for end in ("low", "high"))
    return (low, high) if low > 0 and high == high else None


def rate(value: float) -> str:
    """Four digits, none before the point lost."""
    return f"{value:,.0f}" if value >= 1000 else short(value, digits=4)


def duration(seconds: float) -> str:
    """A time in the unit that fits it: 12 s, 3.4 min, 5.2 h, 1.3 days."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{short(seconds / size, digits=3)} {unit}"
    return f"{short(seconds, digits=3)} s"


def model_name(values: Row, batch: bool = False) -> str:
    """Family and size, such as "fc 4x1024", as the names of runs have them; the family alone where more is unknown.

    `batch`: with the batch size, where it is known.
    """
    family = str(values["family"])
    name = family
    if family in FAMILIES:
        options = FAMILIES[family].options
        given = {entry.name: values.get(f"model.{entry.name}") for entry in dataclasses.fields(options)}
        try:
            known = {name: _option(value) for name, value in given.items() if _known(value)}
            name = f"{family} {options(**{**known, 'name': family}).size}".strip()
        except (ParadnnError, TypeError, ValueError, AttributeError):
            pass
        else:
            prompt, tokens = (_number(values, f"generate.{each}") for each in ("prompt", "tokens"))
            name += f" generate {prompt:.0f}+{tokens:.0f}" if prompt == prompt and tokens == tokens else ""
    size = _number(values, "batch_size")
    return f"{name} at batch size {size:,.0f}" if batch and size == size else name


def _option(value: Any) -> Any:
    """A list of numbers is stored as its text; an address in brackets is no list."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return tuple(json.loads(value))
    return value


def quality(values: Row, published: bool = False) -> str:
    """How far a row can be trusted, in words."""
    if published:
        return "published, one figure, no interval"
    steady = values.get("steady")
    words = [("steady" if steady else "not steady") if _known(steady) else "not checked"]
    if _number(values, "contended") > 0:
        words.append("shared its machine")
    if str(values.get("checks") or "").startswith("failed"):
        words.append("a self-check failed")
    processes, replicates = _number(values, "processes"), _number(values, "replicates")
    words.append(f"{processes:.0f} processes" if processes > 1 else "single process")
    return ", ".join([*words, *([f"{replicates:.0f} replicates"] if replicates > 1 else [])])


def _failed(one: Population) -> str:
    """What of the points has no row."""
    failed = one.rows.loc[~is_ok(one.rows), "outcome"].fillna("unfinished")
    memory = int(failed.isin(MEMORY).sum())
    other = failed[~failed.isin(MEMORY)].value_counts()
    words = [f"{counted(memory, 'point')} did not fit its memory"] if memory else []
    return "; ".join(
        [*words, *(f"{counted(int(n), 'point')} ended as {label(str(name))}" for name, n in other.items())]
    )


def chart(populations: Sequence[Population]) -> dict[str, Any] | None:
    """What the template draws of the measured points, each model at its fastest where all do not fit; None where there
    are none. `place` is from 0 to 1 on a logarithmic axis; a doubtful mark was not steady, or measured beside other
    work."""
    shown = [one for one in populations if len(one.points)][:_SYSTEMS]
    whole = sum(len(one.points) for one in shown)
    found = _by_name([one.points if whole <= _NAMED else _thinned(one.points) for one in shown])
    if len(found) > _ROWS and whole <= _NAMED:
        found = _by_name([fastest_settings(one.points) for one in shown])
    names = _spread(found)
    if not names:
        return None
    lines = []
    for name in names:
        marks: list[dict[str, Any]] = [
            {
                "system": system,
                "at": float(row["examples_per_second"]),
                "ends": interval_of(row),
                "doubtful": _number(row, "steady") == 0 or _number(row, "contended") > 0,
            }
            for system, row in found[name].items()
        ]
        called = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
        lines.append((called, short(max(mark["at"] for mark in marks), digits=3), marks))
    every = [mark for *_, own in lines for mark in own]
    values = [value for mark in every for value in (mark["at"], *(mark["ends"] or ()))]
    low, high = math.log10(min(values)) - 0.08, math.log10(max(values)) + 0.08
    return {
        "rows": lines,
        "place": lambda value: (math.log10(value) - low) / (high - low),
        "ticks": [(value, short(value)) for value in _ticks(low, high)],
        "systems": [one.name for one in shown],
        "doubtful": any(mark["doubtful"] for mark in every),
        "intervals": any(mark["ends"] for mark in every),
        "count": len(every),
        "of": whole,
        "left": min(200, 24 + max(round(6.6 * len(called)) for called, *_ in lines)),
    }


def _ticks(low: float, high: float) -> list[float]:
    """A few round values between two powers of ten."""
    decades, inside = range(math.floor(low), math.ceil(high) + 1), list[float]()
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**decade for decade in decades for step in steps]
        inside = [value for value in values if low <= math.log10(value) <= high]
        if len(inside) <= _TICKS:
            break
    return inside[:: math.ceil(len(inside) / _TICKS) or 1]


def _thinned(points: pd.DataFrame) -> pd.DataFrame:
    """Each model at its fastest; of many in a family some, evenly over their sizes."""
    fastest = fastest_settings(points)
    families = fastest.groupby("family", sort=False)
    most = max(2, _NAMED // families.ngroups)
    place, size = families.cumcount(), families["family"].transform("size")
    step = (size - 1).clip(lower=1) / (most - 1)
    return fastest[(size <= most) | ((place / step).round().mul(step).round() == place)]


def _by_name(tables: Sequence[pd.DataFrame]) -> dict[str, dict[int, Row]]:
    """name of a point -> number of the system -> its row, in the order of the tables; the fastest of those that share a
    name."""
    found: dict[str, dict[int, Row]] = {}
    for system, table in enumerate(tables):
        for row in table.to_dict("records"):
            batch = _number(row, "batch_size")
            rows = found.setdefault(model_name(row) + (f" b{batch:.0f}" if batch == batch else ""), {})
            if system not in rows or rows[system]["examples_per_second"] < row["examples_per_second"]:
                rows[system] = row
    return found


def _spread(found: Mapping[str, Mapping[int, Row]]) -> list[str]:
    """The names that are shown: those that most systems have, evenly over what there is."""
    most = max((len(rows) for rows in found.values()), default=0)
    families: dict[str, list[str]] = {}
    for name, rows in found.items():
        if len(rows) == most:
            families.setdefault(str(next(iter(rows.values()))["family"]), []).append(name)
    each = max(1, _ROWS // max(len(families), 1))
    if sum(map(len, families.values())) <= _ROWS:
        each = _ROWS
    chosen: list[str] = []
    for own in families.values():
        places = {round(i * (len(own) - 1) / max(1, each - 1)) for i in range(each)}
        chosen += own if len(own) <= each else [name for i, name in enumerate(own) if i in places]
    return chosen[:_ROWS]
