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
from markupsafe import Markup

from analysis import drawing
from analysis.analyses.heatmap import MEMORY
from analysis.format import short
from analysis.labels import label, labelled
from analysis.report.page import embed
from analysis.report.populations import Population
from analysis.store.frame import is_ok
from paradnn.core.errors import ParadnnError
from paradnn.core.words import counted
from paradnn.families import FAMILIES

_CAP = 200  # rows of a table that are in the page
_CROWDED = 10  # columns above which a printed table is set smaller
_IDS = ("run_id", "a_run_id", "b_run_id")
_SETTINGS = ("mode", "compile", "optimizer.name", "data.name", "devices", "platform.threads", "framework.name")
_MARKS, _SYSTEMS = 18, 4  # of the chart
AT_BATCH = " at batch size {:,.0f}"

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
    size = counted(len(frame), "row") if len(frame) <= cap else f"{cap} of {len(frame):,} rows"
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
            exact = [float(value) if _is_number(values) and pd.notna(value) else None for value in values]
            is_run = name in _IDS
            yield labelled(name), [Cell(*pair, is_run and pair[0] != "-") for pair in zip(words, exact, strict=True)]


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


def results(populations: Sequence[Population], whole: str) -> tuple[Table | None, list[str]]:
    """The measured points, and what was not measured in sentences; `whole` is the command that writes every run."""
    failed = [f"{one.name}: {words}." for one in populations if (words := _failed(one))]
    tables = [_measured(one, one.points) for one in populations if len(one.points)]
    if not tables:
        return None, ["No point was measured.", *failed]
    return frame_table(pd.concat(tables, ignore_index=True), "Measured points", whole), failed


def fastest_settings(points: pd.DataFrame) -> pd.DataFrame:
    """Each model at its fastest setting; a token is not an example of another mode, so what generates is by itself."""
    model = ["family", *(name for name in map(str, points.columns) if name.startswith(("model.", "generate.")))]
    first = points.sort_values("examples_per_second", ascending=False, kind="stable").drop_duplicates(model)
    return points[points.index.isin(first.index)]


def _measured(one: Population, points: pd.DataFrame) -> pd.DataFrame:
    """Points of a system as rows of a table."""

    def of(name: str) -> pd.Series:
        return points[name].astype("float64") if name in points else pd.Series(np.nan, points.index)

    rows = points.to_dict("records")
    settings = {name: points[name] for name in ("batch_size", "precision", *_SETTINGS) if name in points}
    if "optimizer.name" in settings and "mode" in points:
        settings["optimizer.name"] = settings["optimizer.name"].where(points["mode"].eq("train"))
    rate, memory = of("examples_per_second"), of("peak_device_memory_bytes").fillna(of("peak_memory_bytes"))
    columns = {
        "system": one.name,
        "model": [model_name(row) for row in rows],
        **settings,
        "cost_per_million_examples": of("cost_per_million_examples"),
        "price_currency": points.get("price_currency"),
        "examples_per_second": rate,
        "examples_per_second_low": of("examples_per_second_low"),
        "examples_per_second_high": of("examples_per_second_high"),
        "minutes a million examples": 1e6 / rate / 60,
        "peak memory (GiB)": memory / 2**30,
        "energy of a million (kWh)": of("energy_per_step_joules") / of("batch_size") / 3.6,
        "quality": [quality(row, one.published) for row in rows],
    }
    return pd.DataFrame(columns, index=points.index)


def interval_of(row: Row) -> tuple[float, float] | None:
    """The ends of the 95% interval of a point's throughput; None where there is none."""
    low, high = (_number(row, f"examples_per_second_{end}") for end in ("low", "high"))
    return (low, high) if low > 0 and high == high else None


def rate(value: float) -> str:
    """Four digits, none before the point lost."""
    return f"{value:,.0f}" if value >= 1000 else short(value, digits=4)


def model_name(values: Row, batch: str = "") -> str:
    """Family and size, such as "fc 4x1024", as the names of runs have them; the family alone where more is unknown.

    `batch`: how the batch size is written behind, where it is known.
    """
    name = family = str(values["family"])
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
    return name + batch.format(size) if size == size else name


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
    ended = one.rows.loc[~is_ok(one.rows), "outcome"].fillna("unfinished").astype(str)
    words = ended.map(lambda name: "did not fit its memory" if name in MEMORY else f"ended as {label(name)}")
    return "; ".join(f"{counted(int(count), 'point')} {what}" for what, count in words.value_counts().items())


def chart(populations: Sequence[Population]) -> tuple[Markup, str] | None:
    """The picture of the first screen, and what stands below it: throughput by model, each at its fastest setting where
    all points do not fit; None where nothing was measured."""
    tables = {one.name: one.points for one in populations if len(one.points)}
    tables = dict([*tables.items()][:_SYSTEMS])
    if not tables:
        return None
    whole = sum(map(len, tables.values()))
    if whole > _MARKS * len(tables):
        tables = {name: fastest_settings(points) for name, points in tables.items()}
    groups = {name: _values_by_name(points) for name, points in tables.items()}
    values = pd.concat([table["value"] for table in groups.values()]).groupby(level=0, sort=False)
    counts = values.size()
    names = counts.index[counts == counts.max()]
    names = list(names[np.unique(np.linspace(0, len(names) - 1, _MARKS).round().astype(int))])
    groups = {name: table.loc[table.index.intersection(names)] for name, table in groups.items()}
    rows = {name: f"{name} {short(best, digits=3)}" for name, best in values.max()[names].items()}
    with drawing.page(None):
        drawn, axes = drawing.figure(7.0, 0.8 + 0.3 * len(names))
        axes.set_xscale("log")
        drawing.forest(axes, rows, groups, {name: drawing.look(name, [*groups]) for name in groups})
        drawing.log_ticks(axes.xaxis, short)
        drawing.finish(axes, "", "examples/s")
        if len(groups) > 1:
            drawing.legend(drawn)
        figure = embed(drawn, f"Throughput in examples a second by model: {'; '.join(rows.values())}")
    known = any(table["low"].notna().any() for table in groups.values())
    caption = f"Each mark is a point{', the line its 95% interval' if known else '; none has an interval'}."
    marks = sum(map(len, groups.values()))
    if marks < whole:
        caption += f" {marks} of {whole:,} points, each model at its fastest setting; the table below has all."
    return figure, caption


def _values_by_name(points: pd.DataFrame) -> pd.DataFrame:
    """Throughput (value, low, high) by the name of a point; the fastest of those that share one."""
    rows = points.to_dict("records")
    ends = [interval_of(row) or (math.nan, math.nan) for row in rows]
    table = pd.DataFrame(ends, columns=["low", "high"]).assign(
        value=[float(row["examples_per_second"]) for row in rows]
    )
    table.index = pd.Index([model_name(row, " b{:.0f}") for row in rows])
    best = (
        table.reset_index().sort_values("value", ascending=False, kind="stable").drop_duplicates("index").sort_index()
    )
    return best.set_index("index")
