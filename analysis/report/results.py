"""What was measured, as a manager asks: models, throughput, what a million examples take, how sure
that is, on what.

As tables that sort, with few digits to read, the exact value to sort by and no column that says
nothing, and as the picture of the first screen: throughput by model, with intervals, a mark for
each system.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis import drawing
from analysis.columns import MEMORY_OUTCOMES, is_number
from analysis.format import format_number
from analysis.labels import label, label_with_unit
from analysis.report.page import embed
from analysis.report.populations import Population
from analysis.store.frame import is_ok
from analysis.store.load import read_environment
from paradnn.core.errors import ParadnnError
from paradnn.core.words import counted
from paradnn.families import FAMILIES

_CAP = 200  # rows of a table that are in the page
_IDS = ("run_id", "a_run_id", "b_run_id")
_SETTINGS = (
    "mode",
    "compile",
    "optimizer.name",
    "data.name",
    "devices",
    "platform.threads",
    "framework.name",
)
# of the chart
_MARKS = 18
_SYSTEMS = 4
_FRAMEWORKS = ("tensorflow", "jax", "torch", "keras", "python")
_UNKNOWN = "not recorded"
AT_BATCH = " at batch size {:,.0f}"

Row = Mapping[Any, Any]


class Cell(NamedTuple):
    """A cell of a table: its words, the number to sort by where it is one, and whether it is the id
    of a run.
    """

    words: Any
    exact: float | None = None
    is_run: bool = False


_NONE = Cell("-")


class PageTable(NamedTuple):
    """What a page shows as a table: headings, cells, a note above them, and what it holds of how
    much.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    size: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Which columns hold numbers."""
        return [
            any(row[place].exact is not None for row in self.rows)
            for place in range(len(self.head))
        ]


def frame_table(
    frame: pd.DataFrame, caption: str, whole: str = "", cap: int = _CAP
) -> PageTable | None:
    """The first `cap` rows of a frame, None of an empty one; `whole` is the command that writes all
    of them.

    Columns that are empty or the same in every row are said above. The ends of an interval share a
    column, which is not there where no interval says more than its value.
    """
    if not len(frame):
        return None
    held = frame.dropna(axis="columns", how="all")
    same = [
        name
        for name in held.columns
        if held[name].notna().all() and held[name].eq(held[name].iloc[0]).all()
    ]
    same = same if 1 < len(held.columns) > len(same) else []
    said = ", ".join(f"{label(str(name))} = {_words(held[name].head(1))[0]}" for name in same)
    notes = [f"The same in every row: {said}."] if same else []
    if len(frame) > cap:
        notes.append(
            f"The first {cap} of {len(frame):,} rows{f'; all of them: {whole}' if whole else '.'}"
        )
    if len(frame) <= cap:
        size = counted(len(frame), "row")
    else:
        size = f"{cap} of {len(frame):,} rows"
    columns = dict(_columns(held.drop(columns=same).head(cap)))
    return PageTable(
        caption, [*columns], [*zip(*columns.values(), strict=True)], " ".join(notes), size
    )


def _columns(frame: pd.DataFrame) -> Iterator[tuple[str, list[Cell]]]:
    """Heading and cells of each column; the two ends of an interval as one, behind what it is of."""
    names = [str(name) for name in frame.columns]
    before = ""
    upper = {
        name: f"{name.removesuffix('low')}high"
        for name in names
        if name == "low" or name.endswith("_low")
    }
    for name in names:
        values = frame[name]
        high = upper.get(name)
        if high in names:
            no_news = values.isna() | frame[high].isna()
            no_news |= values.eq(frame[high]) & values.eq(frame[before]) if before else False
            texts = zip(no_news, _words(values), _words(frame[high]), strict=True)
            if not no_news.all():
                if before:
                    heading = f"95% interval of {label(before)}"
                else:
                    heading = "95% interval"
                yield (
                    heading,
                    [_NONE if none else Cell("\u00a0to\u00a0".join(ends)) for none, *ends in texts],
                )
        elif name not in upper.values():
            before = name
            numeric = is_number(values)
            yield (
                label_with_unit(name),
                [
                    _NONE
                    if pd.isna(value)
                    else Cell(text, float(value) if numeric else None, name in _IDS)
                    for value, text in zip(values, _words(values), strict=True)
                ],
            )


def _words(values: pd.Series) -> list[str]:
    """The values of a column as texts."""
    rounded = pd.api.types.is_float_dtype(values)
    return [
        "-" if pd.isna(one) else format_number(float(one), digits=4) if rounded else str(one)
        for one in values
    ]


def _number(row: Row, name: str) -> float:
    """A metric; NaN where the run has none."""
    if _known(row.get(name)):
        return float(row.get(name, math.nan))
    return math.nan


def _known(value: Any) -> bool:
    return value is not None and not (pd.api.types.is_scalar(value) and pd.isna(value))


def results(populations: Sequence[Population], whole: str) -> tuple[PageTable | None, list[str]]:
    """The measured points, and what was not measured in sentences; `whole` is the command that
    writes every run.
    """
    failed = []
    for one in populations:
        ended = one.rows.loc[~is_ok(one.rows), "outcome"].fillna("unfinished").astype(str)
        words = ended.map(
            lambda name: (
                "did not fit its memory" if name in MEMORY_OUTCOMES else f"ended as {label(name)}"
            )
        )
        said = "; ".join(
            f"{counted(int(count), 'point')} {what}" for what, count in words.value_counts().items()
        )
        if said:
            failed.append(f"{one.name}: {said}.")
    tables = [_measured(one, one.points) for one in populations if len(one.points)]
    if not tables:
        return None, ["No point was measured.", *failed]
    return frame_table(pd.concat(tables, ignore_index=True), "Measured points", whole), failed


def _measured(one: Population, points: pd.DataFrame) -> pd.DataFrame:
    """Points of a system as rows of a table."""

    def of(name: str) -> pd.Series:
        if name in points:
            return points[name].astype("float64")
        return pd.Series(np.nan, points.index)

    sizes = [name for name in map(str, points) if name.startswith(("model.", "generate."))]
    settings = {
        name: points[name] for name in ("batch_size", "precision", *_SETTINGS) if name in points
    }
    if "optimizer.name" in settings and "mode" in points:
        settings["optimizer.name"] = settings["optimizer.name"].where(points["mode"].eq("train"))
    whole = points.assign(processes=of("processes").round())
    memory = of("peak_device_memory_bytes").fillna(of("peak_memory_bytes"))
    columns = {
        "system": one.name,
        "model": _of_each(points, ["family", "batch_size", *sizes], model_name),
        **settings,
        "cost_per_million_examples": of("cost_per_million_examples"),
        "price_currency": points.get("price_currency"),
        **{
            name: of(name)
            for name in (f"examples_per_second{end}" for end in ("", "_low", "_high"))
        },
        "minutes a million examples": 1e6 / of("examples_per_second") / 60,
        "peak memory (GiB)": memory / 2**30,
        "energy of a million (kWh)": of("energy_per_step_joules") / of("batch_size") / 3.6,
        "quality": "published, one figure, no interval"
        if one.published
        else _of_each(whole, _QUALITY, _quality),
    }
    return pd.DataFrame(columns, index=points.index)


def _of_each(points: pd.DataFrame, names: Sequence[str], words: Callable[[Row], str]) -> list[str]:
    """The words of every row, which depend on these columns alone: found once for rows that are the
    same in them.
    """
    rows = points[[name for name in names if name in points]]
    number = rows.groupby(list(rows), dropna=False, sort=False).ngroup()
    found = [words(row) for row in rows[~number.duplicated()].to_dict("records")]
    return [found[each] for each in number]


def model_name(values: Row, batch: str = "") -> str:
    """Family and size, such as "fc 4x1024", as the names of runs have them; the family alone where
    more is unknown.

    `batch`: how the batch size is written behind, where it is known.
    """
    name = family = str(values["family"])
    if family in FAMILIES:
        options = FAMILIES[family].options
        given = {
            entry.name: values.get(f"model.{entry.name}") for entry in dataclasses.fields(options)
        }
        try:
            known = {name: _option(value) for name, value in given.items() if _known(value)}
            name = f"{family} {options(**{**known, 'name': family}).size}".strip()
        except (ParadnnError, TypeError, ValueError, AttributeError):
            pass
        else:
            prompt, tokens = (_number(values, f"generate.{each}") for each in ("prompt", "tokens"))
            name += (
                f" generate {prompt:.0f}+{tokens:.0f}"
                if prompt == prompt and tokens == tokens
                else ""
            )
    size = _number(values, "batch_size")
    return name + batch.format(size) if size == size else name


def _option(value: Any) -> Any:
    """A list of numbers is stored as its text; an address in brackets is no list."""
    is_list = isinstance(value, str) and value.startswith("[") and value.endswith("]")
    return tuple(json.loads(value)) if is_list else value


#: What the words of `_quality` depend on.
_QUALITY = ("steady", "contended", "checks", "processes", "replicates")


def _quality(values: Row) -> str:
    """How far a row can be trusted, in words."""
    steady, processes, replicates = (
        _number(values, name) for name in ("steady", "processes", "replicates")
    )
    words = {
        "steady" if steady > 0 else "not steady" if steady == 0 else "not checked": True,
        "shared its machine": _number(values, "contended") > 0,
        "a self-check failed": str(values.get("checks") or "").startswith("failed"),
        f"{processes:.0f} processes" if processes > 1 else "single process": True,
        f"{replicates:.0f} replicates": replicates > 1,
    }
    return ", ".join(word for word, is_so in words.items() if is_so)


def chart(populations: Sequence[Population]) -> tuple[Markup, str] | None:
    """The picture of the first screen, and what stands below it: throughput by model, each at its
    fastest setting where all points do not fit; None where nothing was measured.
    """
    tables = dict([(one.name, one.points) for one in populations if len(one.points)][:_SYSTEMS])
    if not tables:
        return None
    whole = sum(map(len, tables.values()))
    few = len(tables) > 1 or whole <= _MARKS * len(
        tables
    )  # a model may be fastest at another setting elsewhere
    groups = {name: _values_by_name(points, few) for name, points in tables.items()}
    values = pd.concat([table["value"] for table in groups.values()]).groupby(level=0, sort=False)
    counts = values.size()
    names = counts.index[counts == counts.max()]
    names = list(names[np.unique(np.linspace(0, len(names) - 1, _MARKS).round().astype(int))])
    groups = {name: table.loc[table.index.intersection(names)] for name, table in groups.items()}
    rows = {
        name: f"{name}: {format_number(best, digits=3)}"
        for name, best in values.max()[names].items()
    }
    with drawing.page(None):
        drawn, (axes,) = drawing.panels(1, 7.0, 0.8 + 0.3 * len(names))
        drawing.forest(axes, rows, groups, {name: drawing.look(name, [*groups]) for name in groups})
        drawing.finish(axes, "", "examples/s", logs={"x": format_number})
        if len(groups) > 1:
            drawing.legend(drawn)
        figure = embed(
            drawn, f"Throughput in examples a second by model: {'; '.join(rows.values())}"
        )
    known = any(table["low"].notna().any() for table in groups.values())
    caption = f"Each mark is a point{', the line its 95% interval' if known else '; none has an interval'}."
    marks = sum(map(len, groups.values()))
    if marks < whole:
        if len(groups) > 1:
            which = "of those that most systems measured"
        else:
            which = "each model at its fastest setting"
        caption += f" {marks} of {whole:,} points, {which}; the table below has all."
    return figure, caption


def _values_by_name(points: pd.DataFrame, every: bool) -> pd.DataFrame:
    """Throughput (value, low, high) by the name of a point, the fastest of those that share one;
    unless `every` setting fits, of each model at its fastest. A token is not an example of another
    mode, so what generates is by itself.
    """
    value = "examples_per_second"
    model = [
        "family",
        *(name for name in map(str, points.columns) if name.startswith(("model.", "generate."))),
    ]
    held = [
        name
        for name in (*model, "batch_size", value, f"{value}_low", f"{value}_high")
        if name in points
    ]
    fast = points[held].sort_values(value, ascending=False, kind="stable")
    fast = fast if every else fast.drop_duplicates(model)
    table = drawing.ends_of(fast, value).astype("float64")
    table = table.assign(
        name=[model_name(row, " b{:.0f}") for row in fast.to_dict("records")]
    ).drop_duplicates("name")
    return table.loc[points.index.intersection(table.index, sort=False)].set_index("name")


def systems(populations: Sequence[Population], store: str | None) -> list[tuple[str, list[str]]]:
    """(what, of each population what it says) for each thing that describes them; what no system
    says has no row.
    """
    described = [_described(one, store) for one in populations]
    return [
        (name, [each[name] or _UNKNOWN for each in described])
        for name in described[0]
        if any(each[name] for each in described)
    ]


def _described(one: Population, store: str | None) -> dict[str, str]:
    """Of what its newest run recorded of the machine, and of all its runs; empty where nothing is
    known.
    """
    if one.published or not len(one.rows):
        last = {}
    else:
        last = one.rows.iloc[-1].to_dict()
    if last:
        found = read_environment(last, last.get("store", store))
    else:
        found = {}
    machine: dict[str, Any] = {**found.get("host", {}), **found.get("hardware", {})}
    cores, physical, memory = (
        machine.get(name) for name in ("cores", "physical_cores", "memory_gib")
    )
    if "peak_memory_bytes" in one.points:
        largest = one.points["peak_memory_bytes"].max()
    else:
        largest = None
    ids = [name for name in ("environment_id", "protocol_id") if name in one.rows]
    cards = [
        f"{card['name']}, {card['memory']}, driver {card['driver']}"
        for card in machine.get("accelerators") or ()
    ]
    kinds = "; ".join(f"{cards.count(kind)} x {kind}" for kind in dict.fromkeys(cards))
    return {
        "Processor": str(machine.get("processor", "")),
        "Cores": f"{cores}{f' ({physical} physical)' if physical not in (None, 0, cores) else ''}"
        if cores
        else "",
        "Memory": f"{memory:g} GiB" if memory else "",
        "Largest point": format_number(float(largest) / 2**30, "GiB", digits=3)
        if largest and largest > 0
        else "",
        "Accelerator": kinds
        or ("none" if machine or one.value("platform.name") == "cpu" else one.device),
        "Measured hardware peaks": _peaks(one.rows),
        "Software": ", ".join(
            f"{name} {known}" for name in _FRAMEWORKS if (known := one.listed(f"version.{name}"))
        ),
        "Operating system": " ".join(filter(None, (machine.get("system"), machine.get("kernel")))),
        "Host": one.listed("host") + (", virtual machine" if machine.get("virtualised") else ""),
        **_timed(one),
        "Commit": one.listed("git_commit"),
        "Identity": ", ".join(
            f"{name.replace('_', ' ')} {one.listed(name)}" for name in ids if one.listed(name)
        ),
        "Runs": _runs(one.rows),
    }


def _peaks(rows: pd.DataFrame) -> str:
    """The hardware peaks that its runs carry as measured; of all precisions the lowest and the
    highest.
    """
    said = []
    for kind, what, unit in (("flops", "arithmetic", "FLOP/s"), ("bytes", "memory", "B/s")):
        column = f"peak_{kind}_per_second"
        if column in rows and rows[column].notna().any():
            ends = [
                format_number(float(value), unit, digits=3)
                for value in (rows[column].min(), rows[column].max())
            ]
            said.append(f"{what} {' to '.join(dict.fromkeys(ends))}")
    if are_busy(rows):
        note = " (measured beside other work, so too low: utilisations are too high)"
    else:
        note = ""
    return f"{', '.join(said)}{note}" if said else ""


def are_busy(rows: pd.DataFrame) -> bool:
    """Whether runs refer to hardware peaks that were measured beside other work."""
    return "ceilings_contended" in rows and bool(rows["ceilings_contended"].notna().any())


def _timed(one: Population) -> dict[str, str]:
    """The days and minutes (UTC) between which it was measured, and how."""
    if one.published:
        protocol = (
            "one figure for each point, without intervals (docs/validation/published-data.md)"
        )
        return {"Measured (UTC)": "not published", "Protocol": protocol}
    started = one.rows["start_time"].dropna()
    ends = dict.fromkeys(
        f"{moment:%Y-%m-%d %H:%M}" for moment in (started.min(), started.max()) if len(started)
    )
    processes, *least = (
        one.value(f"measure.{name}") for name in ("processes", "min_seconds", "min_blocks")
    )
    if processes:
        words = ["single process" if processes == "1" else f"{processes} processes a point"]
    else:
        words = []
    words += ["at least {} s and {} blocks each".format(*least)] if all(least) else []
    return {"Measured (UTC)": " to ".join(ends), "Protocol": ", ".join(words)}


def _runs(rows: pd.DataFrame) -> str:
    """How many there are, and how often a point was measured."""
    ok = rows[is_ok(rows)]
    words = f"{len(ok):,} measured" + (f" of {len(rows):,}" if len(ok) < len(rows) else "")
    if "point_id" in ok:
        counts = ok.groupby("point_id").size()
    else:
        counts = pd.Series(dtype=int)
    if len(counts) and counts.max() > 1:
        words += f"; {counted(len(counts), 'point')}, {counts.min()} to {counts.max()} times each"
    return words
