"""On what was measured: the systems side by side, each in sentences, and its points by outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.format import short
from analysis.report.populations import Population
from analysis.report.results import Table, frame_table
from analysis.store.frame import families, is_ok
from analysis.store.load import read_environment
from paradnn.core.words import counted

_FRAMEWORKS = ("tensorflow", "jax", "torch", "keras", "python")
_UNKNOWN = "not recorded"


def systems(populations: Sequence[Population], store: str | None) -> list[tuple[str, list[str]]]:
    """(what, of each population what it says) for each thing that describes them; what no system says has no row."""
    described = [_described(one, store) for one in populations]
    return [
        (name, [each[name] or _UNKNOWN for each in described])
        for name in described[0]
        if any(each[name] for each in described)
    ]


def beside(population: Population, described: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, str]]:
    """What is known of a system beside its throughput, in a few lines."""
    known = {name: cells[0] for name, cells in described}
    if "peak_memory_bytes" in population.points and population.points["peak_memory_bytes"].notna().any():
        most = short(float(population.points["peak_memory_bytes"].max()) / 2**30, "GiB", digits=3)
        known["Memory"] = "; ".join(filter(None, (known.get("Memory"), f"the largest point took {most}")))
    names = ("Memory", "Measured hardware peaks", "Software", "Measured (UTC)", "Protocol")
    return [(name, known[name]) for name in names if known.get(name)]


def _described(one: Population, store: str | None) -> dict[str, str]:
    """Of what its newest run recorded of the machine, and of all its runs; empty where nothing is known."""
    last = {} if one.published or not len(one.rows) else one.rows.iloc[-1].to_dict()
    found = read_environment(last, last.get("store", store)) if last else {}
    machine: dict[str, Any] = {**found.get("host", {}), **found.get("hardware", {})}
    cores, physical, memory = (machine.get(name) for name in ("cores", "physical_cores", "memory_gib"))
    ok = int(is_ok(one.rows).sum())
    return {
        "Processor": str(machine.get("processor", "")),
        "Cores": f"{cores}{f' ({physical} physical)' if physical not in (None, 0, cores) else ''}" if cores else "",
        "Memory": f"{memory:g} GiB" if memory else "",
        "Accelerator": _accelerator(one, machine),
        "Measured hardware peaks": _peaks(one.rows),
        "Software": _software(one),
        "Operating system": " ".join(filter(None, (machine.get("system"), machine.get("kernel")))),
        "Host": one.listed("host") + (", virtual machine" if machine.get("virtualised") else ""),
        "Measured (UTC)": _when(one),
        "Protocol": _protocol(one),
        "Runs": f"{ok:,} measured" + (f" of {len(one.rows):,}" if ok < len(one.rows) else ""),
    }


def _accelerator(one: Population, machine: Mapping[str, Any]) -> str:
    if cards := machine.get("accelerators"):
        kinds = [f"{card['name']}, {card['memory']}, driver {card['driver']}" for card in cards]
        return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return "none" if machine or one.value("platform.name") == "cpu" else one.device


def _software(one: Population) -> str:
    """The frameworks by name and version; all others are in the runs."""
    return ", ".join(f"{name} {found}" for name in _FRAMEWORKS if (found := one.listed(f"version.{name}")))


def _when(one: Population) -> str:
    """The days and minutes (UTC) between which it was measured."""
    if one.published:
        return "not published"
    started = one.rows["start_time"].dropna()
    if not len(started):
        return _UNKNOWN
    return " to ".join(dict.fromkeys(f"{moment:%Y-%m-%d %H:%M}" for moment in (started.min(), started.max())))


def _peaks(rows: pd.DataFrame) -> str:
    """The hardware peaks that its runs carry as measured; of all precisions the lowest and the highest."""
    said = []
    for kind, what, unit in (("flops", "arithmetic", "FLOP/s"), ("bytes", "memory", "B/s")):
        column = f"peak_{kind}_per_second"
        if column in rows and rows[column].notna().any():
            ends = [short(float(value), unit, digits=3) for value in (rows[column].min(), rows[column].max())]
            said.append(f"{what} {' to '.join(dict.fromkeys(ends))}")
    note = " (measured beside other work, so too low: utilisations are too high)" if are_busy(rows) else ""
    return f"{', '.join(said)}{note}" if said else ""


def are_busy(rows: pd.DataFrame) -> bool:
    """Whether runs refer to hardware peaks that were measured beside other work."""
    return "ceilings_contended" in rows and bool(rows["ceilings_contended"].notna().any())


def _protocol(one: Population) -> str:
    if one.published:
        return "one figure for each point, without intervals (docs/published-data.md)"
    processes, *least = (one.value(f"measure.{name}") for name in ("processes", "min_seconds", "min_blocks"))
    words = ["single process" if processes == "1" else f"{processes} processes a point"] if processes else []
    return ", ".join([*words, *(["at least {} s and {} blocks each".format(*least)] if all(least) else [])])


def counts(populations: Sequence[Population]) -> Table | None:
    """The points of every population by family and outcome."""
    parts = []
    for one in populations:
        named = one.rows.assign(
            family=one.rows["family"].fillna("(none)"), outcome=one.rows["outcome"].fillna("unfinished")
        )
        table = pd.crosstab(named["family"], named["outcome"])
        order = [*families(one.rows), *(["(none)"] if "(none)" in table.index else [])]
        columns = sorted(table.columns, key=lambda name: (name != "ok", name))
        table = table.loc[order, columns].reset_index()
        table.insert(0, "population", one.name)
        table.insert(2, "points", table[columns].sum(axis=1))
        parts.append(table.rename_axis(columns=None))
    every = pd.concat(parts, ignore_index=True)
    return frame_table(
        every.astype(dict.fromkeys(every.columns[2:], "Int64")).fillna(0), "Points by family and outcome"
    )


def facts(one: Population) -> list[str]:
    """A population's environment and protocol in sentences."""
    measure = [f"{name.removeprefix('measure.')} {one.listed(name)}" for name in one.with_prefix("measure.")]
    ids = [name for name in ("environment_id", "protocol_id") if name in one.rows]
    known = {
        "Host": one.listed("host"),
        "Software": _software(one),
        "Commit": one.listed("git_commit"),
        "When (UTC)": _when(one),
        "Timing protocol": ", ".join(words for words in measure if not words.endswith(" ")),
        "Identity": ", ".join(f"{name.replace('_', ' ')} {one.listed(name) or _UNKNOWN}" for name in ids),
        "Measured hardware peaks": _peaks(one.rows),
    }
    published = (
        "These are published measurements: one figure for each point, without an interval. See docs/published-data.md "
        "for what they are and can be compared with."
    )
    lines = [f"{what}: {words}." for what, words in known.items() if words]
    return [*lines, *_repeated(one.rows), *_doubtful(one.rows), *([published] if one.published else [])]


def _repeated(rows: pd.DataFrame) -> Iterator[str]:
    counts = rows[is_ok(rows)].groupby("point_id").size() if "point_id" in rows else pd.Series(dtype=int)
    if len(counts) and counts.max() == 1:
        yield f"Measured once: {counted(len(counts), 'point')}; how far a repetition would differ is not known."
    elif len(counts):
        yield f"Measured {counts.min()} to {counts.max()} times each: {counted(len(counts), 'point')}."


def _doubtful(rows: pd.DataFrame) -> Iterator[str]:
    outcomes = rows.loc[~is_ok(rows), "outcome"].fillna("unfinished").value_counts()
    if len(outcomes):
        yield f"Not measured: {', '.join(f'{count:,} {outcome}' for outcome, count in outcomes.items())}."
    if unsteady := flagged(rows[is_ok(rows)], "steady", False):
        yield f"Not steady: {counted(unsteady, 'measured point')}."
    if contended := flagged(rows, "contended", True):
        yield f"Contended: {counted(contended, 'point')}; others took time of the cores meanwhile."


def flagged(rows: pd.DataFrame, column: str, value: bool) -> int:
    """How many rows say so."""
    return int((rows[column].astype("boolean") == value).fillna(False).sum()) if column in rows else 0
