"""The systems side by side, each with its description, as result pages of benchmarks have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.format import short
from analysis.report.html import text
from analysis.report.populations import Population
from analysis.report.table import boxed
from analysis.store.environments import read_environment
from analysis.store.frame import is_ok

__all__ = ["peaks", "systems_table", "versions", "when"]

_FRAMEWORKS = ("tensorflow", "jax", "torch", "keras", "python")
_UNKNOWN = "not recorded"
_CAPTION = "The systems side by side"


def systems_table(populations: Sequence[Population], store: str | None, linked: bool = True) -> str:
    """A column for each population, a row for each thing that describes it; what no system says has no row. `linked` to
    the chapters of the populations."""
    environments = [_environment(one, store) for one in populations]
    names = [f'<a href="#{one.key}">{text(one.name)}</a>' if linked else text(one.name) for one in populations]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = []
    for name, describe in _ROWS.items():
        cells = [describe(one, environment) for one, environment in zip(populations, environments, strict=True)]
        if any(cells):
            body = "".join(f"<td>{text(cell or _UNKNOWN)}</td>" for cell in cells)
            rows.append(f'<tr><th scope="row">{name}</th>{body}</tr>')
    return boxed(
        f'<table class="systems"><caption>{_CAPTION}</caption><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>",
        _CAPTION,
    )


def versions(population: Population) -> str:
    """The frameworks by name and version; all others are in the runs."""
    known = {name: population.listed(f"version.{name}") for name in _FRAMEWORKS}
    return ", ".join(f"{name} {version}" for name, version in known.items() if version)


def when(population: Population) -> str:
    """The days and minutes (UTC) between which it was measured."""
    if population.published:
        return "not published"
    started = population.rows["start_time"].dropna()
    if not len(started):
        return _UNKNOWN
    first, last = (moment.strftime("%Y-%m-%d %H:%M") for moment in (started.min(), started.max()))
    return first if first == last else f"{first} to {last}"


def peaks(rows: pd.DataFrame) -> str:
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
    return ", ".join(said)


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
    "Measured hardware peaks": lambda population, _: peaks(population.rows),
    "Software": lambda population, _: versions(population),
    "Operating system": _system,
    "Host": _host,
    "Measured (UTC)": lambda population, _: when(population),
    "Protocol": _protocol,
    "Runs": _runs,
}
