"""What was measured, and on what: the systems side by side, each in sentences, and its points by outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.format import short
from analysis.report.populations import Population
from analysis.report.table import Table, frame_table
from analysis.store.frame import families, is_ok
from analysis.store.load import read_environment
from paradnn.core.words import counted

__all__ = ["counts", "facts", "systems"]

_FRAMEWORKS = ("tensorflow", "jax", "torch", "keras", "python")
_UNKNOWN = "not recorded"


def systems(populations: Sequence[Population], store: str | None) -> list[tuple[str, list[str]]]:
    """(what, of each population what it says) for each thing that describes them; what no system says has no row."""
    environments = [_environment(one, store) for one in populations]
    rows = []
    for name, describe in _ROWS.items():
        cells = [describe(one, environment) for one, environment in zip(populations, environments, strict=True)]
        if any(cells):
            rows.append((name, [cell or _UNKNOWN for cell in cells]))
    return rows


def beside(population: Population, described: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, str]]:
    """What is known of a system beside its throughput, in a few lines."""
    known = {name: cells[0] for name, cells in described}
    memory = known.get("Memory", "")
    if "peak_memory_bytes" in population.points and population.points["peak_memory_bytes"].notna().any():
        most = short(float(population.points["peak_memory_bytes"].max()) / 2**30, "GiB", digits=3)
        memory = f"{memory}; the largest point took {most}" if memory else f"the largest point took {most}"
    lines = [
        (name, known.get(name, "")) for name in ("Measured hardware peaks", "Software", "Measured (UTC)", "Protocol")
    ]
    return [(name, words) for name, words in (("Memory", memory), *lines) if words]


def _versions(population: Population) -> str:
    """The frameworks by name and version; all others are in the runs."""
    known = {name: population.listed(f"version.{name}") for name in _FRAMEWORKS}
    return ", ".join(f"{name} {version}" for name, version in known.items() if version)


def _when(population: Population) -> str:
    """The days and minutes (UTC) between which it was measured."""
    if population.published:
        return "not published"
    started = population.rows["start_time"].dropna()
    if not len(started):
        return _UNKNOWN
    first, last = (moment.strftime("%Y-%m-%d %H:%M") for moment in (started.min(), started.max()))
    return first if first == last else f"{first} to {last}"


def _peaks(rows: pd.DataFrame) -> str:
    """The hardware peaks that its runs carry as measured; of all precisions the lowest and the highest."""
    said = []
    for column, what, unit in (
        ("peak_flops_per_second", "arithmetic", "FLOP/s"),
        ("peak_bytes_per_second", "memory", "B/s"),
    ):
        values = [float(value) for value in rows[column].dropna()] if column in rows else []
        if values:
            ends = [short(value, unit, digits=3) for value in (min(values), max(values))]
            said.append(f"{what} {' to '.join(dict.fromkeys(ends))}")
    note = " (measured beside other work, so too low: utilisations are too high)" if are_busy(rows) else ""
    return f"{', '.join(said)}{note}" if said else ""


def are_busy(rows: pd.DataFrame) -> bool:
    """Whether runs refer to hardware peaks that were measured beside other work."""
    return "ceilings_contended" in rows and bool(rows["ceilings_contended"].notna().any())


def _environment(population: Population, store: str | None) -> Mapping[str, Any]:
    """What the newest of its runs recorded, in one mapping."""
    rows = population.rows
    if population.published or not len(rows):
        return {}
    last = rows.iloc[-1].to_dict()
    found = read_environment(last, last.get("store", store))
    return {**found.get("host", {}), **found.get("hardware", {})}


def _cores(_: Population, environment: Mapping[str, Any]) -> str:
    cores, physical = environment.get("cores"), environment.get("physical_cores")
    if not cores:
        return ""
    return f"{cores} ({physical} physical)" if physical and physical != cores else str(cores)


def _memory(_: Population, environment: Mapping[str, Any]) -> str:
    return f"{environment['memory_gib']:g} GiB" if environment.get("memory_gib") else ""


def _accelerator(population: Population, environment: Mapping[str, Any]) -> str:
    cards = environment.get("accelerators")
    if cards:
        kinds = [f"{card['name']}, {card['memory']}, driver {card['driver']}" for card in cards]
        return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    if environment or (population.value("platform.name") == "cpu"):
        return "none"
    return population.device


def _system(_: Population, environment: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (environment.get("system"), environment.get("kernel"))))


def _host(population: Population, environment: Mapping[str, Any]) -> str:
    return population.listed("host") + (", virtual machine" if environment.get("virtualised") else "")


def _protocol(population: Population, _: Mapping[str, Any]) -> str:
    if population.published:
        return "one figure for each point, without intervals (docs/published-data.md)"
    processes, *least = (population.value(f"measure.{name}") for name in ("processes", "min_seconds", "min_blocks"))
    words = ["single process" if processes == "1" else f"{processes} processes a point"] if processes else []
    return ", ".join([*words, *(["at least {} s and {} blocks each".format(*least)] if all(least) else [])])


def _runs(population: Population, _: Mapping[str, Any]) -> str:
    ok = int(is_ok(population.rows).sum())
    return f"{ok:,} measured" + (f" of {len(population.rows):,}" if ok < len(population.rows) else "")


_ROWS: Mapping[str, Callable[[Population, Mapping[str, Any]], str]] = {
    "Processor": lambda _, environment: str(environment.get("processor", "")),
    "Cores": _cores,
    "Memory": _memory,
    "Accelerator": _accelerator,
    "Measured hardware peaks": lambda population, _: _peaks(population.rows),
    "Software": lambda population, _: _versions(population),
    "Operating system": _system,
    "Host": _host,
    "Measured (UTC)": lambda population, _: _when(population),
    "Protocol": _protocol,
    "Runs": _runs,
}


def counts(populations: Sequence[Population]) -> Table | None:
    """The points of every population by family and outcome."""
    each = pd.concat([_counts(one) for one in populations], ignore_index=True)
    each = each.astype(dict.fromkeys(each.columns[2:], "Int64")).fillna(0)
    return frame_table(each, "Points by family and outcome")


def facts(population: Population) -> list[str]:
    """A population's environment and protocol in sentences."""
    rows, listed = population.rows, population.listed
    known = [("Host", listed("host")), ("Software", _versions(population)), ("Commit", listed("git_commit"))]
    measure = [
        f"{name.removeprefix('measure.')} {listed(name)}" for name in population.with_prefix("measure.") if listed(name)
    ]
    lines = [f"{what}: {value}." for what, value in (*known, ("When (UTC)", _when(population))) if value]
    if measure:
        lines.append(f"Timing protocol: {', '.join(measure)}.")
    ids = [
        f"{name.replace('_', ' ')} {listed(name) or 'not recorded'}"
        for name in ("environment_id", "protocol_id")
        if name in rows
    ]
    lines.append(f"Identity: {', '.join(ids)}.")
    measured = f"Measured hardware peaks: {_peaks(rows)}." if _peaks(rows) else ""
    lines += filter(None, (measured, _replicates(rows), _failures(rows)))
    if population.published:
        lines.append(
            "These are published measurements: one figure for each point, without an interval. See "
            "docs/published-data.md for what they are and can be compared with."
        )
    return lines


def _counts(population: Population) -> pd.DataFrame:
    rows = population.rows
    named = rows.assign(family=rows["family"].fillna("(none)"), outcome=rows["outcome"].fillna("unfinished"))
    table = pd.crosstab(named["family"], named["outcome"])
    order = [*families(rows), *(["(none)"] if "(none)" in table.index else [])]
    columns = sorted(table.columns, key=lambda name: (name != "ok", name))
    table = table.loc[order, columns].reset_index()
    table.insert(0, "population", population.name)
    table.insert(2, "points", table[columns].sum(axis=1))
    return table.rename_axis(columns=None)


def _replicates(rows: pd.DataFrame) -> str:
    if "point_id" not in rows:
        return ""
    counts = rows[is_ok(rows)].groupby("point_id").size()
    if not len(counts):
        return ""
    if counts.max() == 1:
        return f"Measured once: {counted(len(counts), 'point')}; how far a repetition would differ is not known."
    return f"Measured {counts.min()} to {counts.max()} times each: {counted(len(counts), 'point')}."


def _failures(rows: pd.DataFrame) -> str:
    counts = rows.loc[~is_ok(rows), "outcome"].fillna("unfinished").value_counts()
    listed = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    unsteady = int((~rows.loc[is_ok(rows), "steady"].astype("boolean").fillna(True)).sum()) if "steady" in rows else 0
    said = [f"Not measured: {listed}."] if listed else []
    if unsteady:
        said.append(f"Not steady: {counted(unsteady, 'measured point')}.")
    contended = int(rows["contended"].astype("boolean").fillna(False).sum()) if "contended" in rows else 0
    if contended:
        said.append(f"Contended: {counted(contended, 'point')}; others took time of the cores meanwhile.")
    return " ".join(said)
