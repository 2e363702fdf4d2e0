"""On what was measured: the systems side by side, and their points by outcome."""

from __future__ import annotations

from collections.abc import Sequence
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


def _described(one: Population, store: str | None) -> dict[str, str]:
    """Of what its newest run recorded of the machine, and of all its runs; empty where nothing is known."""
    last = {} if one.published or not len(one.rows) else one.rows.iloc[-1].to_dict()
    found = read_environment(last, last.get("store", store)) if last else {}
    machine: dict[str, Any] = {**found.get("host", {}), **found.get("hardware", {})}
    cores, physical, memory = (machine.get(name) for name in ("cores", "physical_cores", "memory_gib"))
    largest = one.points["peak_memory_bytes"].max() if "peak_memory_bytes" in one.points else None
    ids = [name for name in ("environment_id", "protocol_id") if name in one.rows]
    return {
        "Processor": str(machine.get("processor", "")),
        "Cores": f"{cores}{f' ({physical} physical)' if physical not in (None, 0, cores) else ''}" if cores else "",
        "Memory": f"{memory:g} GiB" if memory else "",
        "Largest point": short(float(largest) / 2**30, "GiB", digits=3) if largest and largest > 0 else "",
        "Accelerator": _accelerator(one, machine),
        "Measured hardware peaks": _peaks(one.rows),
        "Software": ", ".join(f"{name} {known}" for name in _FRAMEWORKS if (known := one.listed(f"version.{name}"))),
        "Operating system": " ".join(filter(None, (machine.get("system"), machine.get("kernel")))),
        "Host": one.listed("host") + (", virtual machine" if machine.get("virtualised") else ""),
        "Measured (UTC)": _when(one),
        "Protocol": _protocol(one),
        "Commit": one.listed("git_commit"),
        "Identity": ", ".join(f"{name.replace('_', ' ')} {one.listed(name)}" for name in ids if one.listed(name)),
        "Runs": _runs(one.rows),
    }


def _accelerator(one: Population, machine: dict[str, Any]) -> str:
    if cards := machine.get("accelerators"):
        kinds = [f"{card['name']}, {card['memory']}, driver {card['driver']}" for card in cards]
        return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return "none" if machine or one.value("platform.name") == "cpu" else one.device


def _when(one: Population) -> str:
    """The days and minutes (UTC) between which it was measured."""
    started = one.rows["start_time"].dropna()
    if one.published or not len(started):
        return "not published" if one.published else _UNKNOWN
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


def _runs(rows: pd.DataFrame) -> str:
    """How many there are, and how often a point was measured."""
    ok = rows[is_ok(rows)]
    words = f"{len(ok):,} measured" + (f" of {len(rows):,}" if len(ok) < len(rows) else "")
    counts = ok.groupby("point_id").size() if "point_id" in ok else pd.Series(dtype=int)
    if len(counts) and counts.max() > 1:
        words += f"; {counted(len(counts), 'point')}, {counts.min()} to {counts.max()} times each"
    return words


def counts(populations: Sequence[Population]) -> Table | None:
    """The points of every population by family and outcome."""
    parts = []
    for one in populations:
        family, outcome = one.rows["family"].fillna("(none)"), one.rows["outcome"].fillna("unfinished")
        table = pd.crosstab(family, outcome, margins=True, margins_name="points").drop(index="points")
        table = table.reindex([*families(one.rows), *(["(none)"] if "(none)" in table.index else [])])
        parts.append(table.rename_axis(columns=None).reset_index().assign(population=one.name))
    every = pd.concat(parts, ignore_index=True)
    first = ["population", "family", "points", *(["ok"] if "ok" in every else [])]
    every = every[[*first, *sorted(set(every.columns).difference(first))]]
    numbers = dict.fromkeys(every.columns[2:], "Int64")
    return frame_table(every.astype(numbers).fillna(0), "Points by family and outcome")


def flagged(rows: pd.DataFrame, column: str, value: bool) -> int:
    """How many rows say so."""
    return int((rows[column].astype("boolean") == value).fillna(False).sum()) if column in rows else 0
