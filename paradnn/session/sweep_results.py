"""What the parent run of a sweep shows of its points: a table in its description, the whole as a file, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradnn.core.words import counted
from paradnn.record.headline import Column, headline
from paradnn.record.record import image
from paradnn.record.sweep_figure import Mark, sweep_figure
from paradnn.session.summary import Row

__all__ = ["PICTURE", "TABLE", "picture", "table_file", "table_text"]

#: The artifacts of the parent run.
TABLE, PICTURE = "sweep.json", "sweep.png"
#: Characters of a description that every server takes, what stands around the table left aside.
_LONGEST = 3500
_HEAD = "| point | outcome | {speed} | 95% CI | memory | steady |\n| --- | --- | ---: | --- | ---: | --- |"
#: Columns of the file that stand first.
_FIRST = (
    *("name", "outcome", "examples_per_second", "examples_per_second_low", "examples_per_second_high"),
    *("steady", "contended", "peak_memory_bytes"),
)
#: Tags that every run of a sweep shares or that say nothing to a person: not in its table.
_UNSHOWN = (
    "mlflow.",
    "kind",
    "schema_version",
    "source",
    "sweep_id",
    "session_id",
    "owner",
    "claim_expires",
    "git_commit",
)


def table_file(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Every row with all its metrics and tags, in the layout of mlflow.log_table."""
    tables = [{key: value for key, value in row.cells().items() if not key.startswith(_UNSHOWN)} for row in rows]
    held = dict.fromkeys(key for row in tables for key in row)
    columns = [key for key in _FIRST if key in held] + [key for key in held if key not in _FIRST]
    return {"columns": columns, "data": [[row.get(key) for key in columns] for row in tables]}


def table_text(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, the fastest of each family first, as far as a description holds them."""
    if not rows:
        return ""
    ordered = sorted(rows, key=lambda row: (row.family, -row.metrics.get("examples_per_second", 0.0)))
    speed = Column(row.metrics for row in ordered)
    lines: list[str] = []
    for line in (_line(row, speed) for row in ordered):
        if sum(map(len, lines)) + len(line) > _LONGEST:
            break
        lines.append(line)
    rest = len(rows) - len(lines)
    more = f"\n\n{counted(rest, 'more point')} in the artifact `{TABLE}`." if rest else ""
    return "\n".join([_HEAD.format(speed=speed.heading), *lines]) + more


def picture(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The artifact that shows what every point was measured for; none where nothing was measured."""
    rates = [headline(row.metrics) for row in rows]
    marks = [
        Mark(row.name, row.family, row.outcome, rate.value if rate else None, rate.ends if rate else None)
        for row, rate in zip(rows, rates, strict=True)
    ]
    units = sorted({rate.unit for rate in rates if rate})
    return {PICTURE: image(sweep_figure(title, " or ".join(units), marks))} if units else {}


def _line(row: Row, speed: Column) -> str:
    metrics, rate = row.metrics, headline(row.metrics)
    ends = f"{rate.ends[0]:,.1f} to {rate.ends[1]:,.1f}" if rate and rate.ends else ""
    memory = metrics.get("peak_device_memory_bytes") or metrics.get("peak_memory_bytes")
    room = f"{memory / 2**30:.2f} GiB" if memory else ""
    steady = {"true": "yes", "false": "no"}.get(row.tags.get("steady", ""), "")
    steady += ", contended" if row.tags.get("contended") == "true" else ""
    return f"| {row.name} | {row.outcome} | {speed.cell(metrics)} | {ends} | {room} | {steady} |"
