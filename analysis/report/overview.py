"""What was measured of each population: its environment and protocol in sentences, its points by outcome."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.report.html import code, items, text
from analysis.report.populations import Population
from analysis.report.systems import peaks, versions, when
from analysis.report.table import html_table
from analysis.store.frame import families, is_ok
from paradnn.core.words import counted

__all__ = ["facts", "overview"]


def overview(populations: Sequence[Population]) -> str:
    """The points of every population by family and outcome, as HTML."""
    counts = pd.concat([_counts(one) for one in populations], ignore_index=True)
    counts = counts.astype(dict.fromkeys(counts.columns[2:], "Int64")).fillna(0)
    return html_table(counts, "Points by family and outcome")


def facts(population: Population) -> str:
    """A population's environment and protocol in sentences."""
    rows, listed = population.rows, population.listed
    known = [("Host", listed("host")), ("Software", versions(population)), ("Commit", listed("git_commit"))]
    measure = [
        f"{name.removeprefix('measure.')} {listed(name)}" for name in population.with_prefix("measure.") if listed(name)
    ]
    lines = [text(f"{what}: {value}.") for what, value in (*known, ("When (UTC)", when(population))) if value]
    if measure:
        lines.append(text(f"Timing protocol: {', '.join(measure)}."))
    ids = [
        f"{name.replace('_', ' ')} {code(listed(name)) if listed(name) else 'not recorded'}"
        for name in ("environment_id", "protocol_id")
        if name in rows
    ]
    lines.append(f"Identity: {', '.join(ids)}.")
    measured = f"Measured hardware peaks: {peaks(rows)}." if peaks(rows) else ""
    lines += [text(line) for line in (measured, _replicates(rows), _failures(rows)) if line]
    if population.published:
        lines.append(
            "These are published measurements: one figure for each point, without an interval. See "
            "docs/published-data.md for what they are and can be compared with."
        )
    return items(lines)


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
