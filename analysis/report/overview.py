"""What was measured where: a row for each part of the store, and its counts by family and outcome."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.format import short
from analysis.report.html import code, items, text
from analysis.report.populations import Part
from analysis.report.table import boxed, html_table
from analysis.store.frame import families, is_ok

__all__ = ["facts", "overview"]

_FRAMEWORKS = ("tensorflow", "jax", "torch", "keras", "python")


def overview(parts: Sequence[Part]) -> str:
    """A table of the parts and one of their families, as HTML."""
    head = ("Part", "Device", "Host", "Versions", "When (UTC)", "Points", "Measured")
    cells = [
        (
            f'<a href="#{part.key}">{text(part.name)}</a>',
            text(part.device),
            text(part.one("host") or "not recorded"),
            text(_versions(part) or "not recorded"),
            text(_when(part)),
            f"{len(part.rows):,}",
            f"{int(is_ok(part.rows).sum()):,}",
        )
        for part in parts
    ]
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    table = boxed(
        f"<table><caption>What was measured where</caption><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>",
        "What was measured where",
    )
    counts = pd.concat([_counts(part) for part in parts], ignore_index=True)
    counts = counts.astype(dict.fromkeys(counts.columns[2:], "Int64")).fillna(0)
    return table + "<h3>Points by family and outcome</h3>" + html_table(counts, "Points by family and outcome")


def facts(part: Part) -> str:
    """A part's environment and protocol in sentences."""
    rows = part.rows
    told = [("Host", part.one("host")), ("Software", _versions(part)), ("Commit", part.one("git_commit"))]
    measure = [
        f"{str(name).removeprefix('measure.')} {part.one(str(name))}"
        for name in rows.columns
        if str(name).startswith("measure.") and part.one(str(name))
    ]
    lines = [text(f"{what}: {value}.") for what, value in (*told, ("When (UTC)", _when(part))) if value]
    if measure:
        lines.append(text(f"Timing protocol: {', '.join(measure)}."))
    ids = [
        f"{name.replace('_', ' ')} {code(part.one(name) or '(none)')}"
        for name in ("environment_id", "protocol_id")
        if name in rows
    ]
    lines.append(f"Identity: {', '.join(ids)}.")
    lines += [text(line) for line in (_peaks(rows), _replicates(rows), _failures(rows)) if line]
    if part.published:
        lines.append(
            "These are the published measurements: best rates of one execution each, without intervals. See "
            "docs/published-data.md for what they can be compared with."
        )
    return items(lines)


def _versions(part: Part) -> str:
    """The frameworks by name and version; all others are in the runs."""
    found = [f"{name} {part.one(f'version.{name}')}" for name in _FRAMEWORKS if part.one(f"version.{name}")]
    return ", ".join(found)


def _when(part: Part) -> str:
    if part.published:
        return "not published"
    started = part.rows["start_time"].dropna()
    if not len(started):
        return "not recorded"
    first, last = (moment.strftime("%Y-%m-%d %H:%M") for moment in (started.min(), started.max()))
    return first if first == last else f"{first} to {last}"


def _counts(part: Part) -> pd.DataFrame:
    named = part.rows.assign(
        family=part.rows["family"].fillna("(none)"), outcome=part.rows["outcome"].fillna("unfinished")
    )
    table = pd.crosstab(named["family"], named["outcome"])
    order = [*families(part.rows), *(["(none)"] if "(none)" in table.index else [])]
    columns = sorted(table.columns, key=lambda name: (name != "ok", name))
    table = table.loc[order, columns].reset_index()
    table.insert(0, "part", part.name)
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
        said.append(f"{unsteady:,} of the measured points did not reach a steady state in their warm-up.")
    return " ".join(said)
