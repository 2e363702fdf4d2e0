"""What was measured where: a row for each population of the store, and its counts by family and outcome."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.format import short
from analysis.report.html import code, items, text
from analysis.report.populations import Population
from analysis.report.table import boxed, html_table
from analysis.store.frame import families, is_ok

__all__ = ["facts", "overview"]

_FRAMEWORKS = ("tensorflow", "jax", "torch", "keras", "python")


def overview(populations: Sequence[Population]) -> str:
    """A table of the populations and one of their families, as HTML."""
    head = ("Population", "Device", "Host", "Versions", "When (UTC)", "Points", "Measured")
    cells = [
        (
            f'<a href="#{one.key}">{text(one.name)}</a>',
            text(one.device),
            text(one.listed("host") or "not recorded"),
            text(_versions(one) or "not recorded"),
            text(_when(one)),
            f"{len(one.rows):,}",
            f"{int(is_ok(one.rows).sum()):,}",
        )
        for one in populations
    ]
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    table = boxed(
        f"<table><caption>What was measured where</caption><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>",
        "What was measured where",
    )
    counts = pd.concat([_counts(one) for one in populations], ignore_index=True)
    counts = counts.astype(dict.fromkeys(counts.columns[2:], "Int64")).fillna(0)
    return table + "<h3>Points by family and outcome</h3>" + html_table(counts, "Points by family and outcome")


def facts(population: Population) -> str:
    """A population's environment and protocol in sentences."""
    rows, listed = population.rows, population.listed
    known = [("Host", listed("host")), ("Software", _versions(population)), ("Commit", listed("git_commit"))]
    measure = [
        f"{name.removeprefix('measure.')} {listed(name)}" for name in population.with_prefix("measure.") if listed(name)
    ]
    lines = [text(f"{what}: {value}.") for what, value in (*known, ("When (UTC)", _when(population))) if value]
    if measure:
        lines.append(text(f"Timing protocol: {', '.join(measure)}."))
    ids = [
        f"{name.replace('_', ' ')} {code(listed(name) or '(none)')}"
        for name in ("environment_id", "protocol_id")
        if name in rows
    ]
    lines.append(f"Identity: {', '.join(ids)}.")
    lines += [text(line) for line in (_peaks(rows), _replicates(rows), _failures(rows)) if line]
    if population.published:
        lines.append(
            "These are the published measurements: best rates of one execution each, without intervals. See "
            "docs/published-data.md for what they can be compared with."
        )
    return items(lines)


def _versions(population: Population) -> str:
    """The frameworks by name and version; all others are in the runs."""
    versions = {name: population.listed(f"version.{name}") for name in _FRAMEWORKS}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _when(population: Population) -> str:
    if population.published:
        return "not published"
    started = population.rows["start_time"].dropna()
    if not len(started):
        return "not recorded"
    first, last = (moment.strftime("%Y-%m-%d %H:%M") for moment in (started.min(), started.max()))
    return first if first == last else f"{first} to {last}"


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


def _peaks(rows: pd.DataFrame) -> str:
    said = []
    for column, what, unit in (
        ("peak_flops_per_second", "arithmetic", "FLOP/s"),
        ("peak_bytes_per_second", "memory", "B/s"),
    ):
        values = [float(value) for value in rows[column].dropna()] if column in rows else []
        if values:
            ends = [short(value, unit, digits=3) for value in (min(values), max(values))]
            said.append(f"{what} {' to '.join(dict.fromkeys(ends))}")
    return f"Ceilings that its runs carry: {', '.join(said)}." if said else ""


def _replicates(rows: pd.DataFrame) -> str:
    if "point_id" not in rows:
        return ""
    counts = rows[is_ok(rows)].groupby("point_id").size()
    if not len(counts):
        return ""
    if counts.max() == 1:
        return f"{len(counts):,} points were measured once each: how far a repetition would differ is not known."
    return f"{len(counts):,} points were measured {counts.min()} to {counts.max()} times each."


def _failures(rows: pd.DataFrame) -> str:
    counts = rows.loc[~is_ok(rows), "outcome"].fillna("unfinished").value_counts()
    listed = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    unsteady = int((~rows.loc[is_ok(rows), "steady"].astype("boolean").fillna(True)).sum()) if "steady" in rows else 0
    said = [f"Not measured: {listed}."] if listed else []
    if unsteady:
        said.append(f"{unsteady:,} of the measured points were not steady.")
    contended = int(rows["contended"].astype("boolean").fillna(False).sum()) if "contended" in rows else 0
    if contended:
        said.append(f"{contended:,} were contended: others took time of their cores while they were measured.")
    return " ".join(said)
