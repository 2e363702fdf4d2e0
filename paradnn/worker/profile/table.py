"""The tables of a profile: a row for each operation, and one for each type of operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paradnn.worker.messages import Profile, Table
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.timeline import Usage, attribute
from paradnn.worker.profile.trace import COMPILED, Trace

__all__ = ["COLUMNS", "REMAINDER", "make_profile"]

#: Columns of the table of operations; that of the types lacks `operation`. All values are those of one step:
#: executions, seconds of self time and of explained wall time, share of the step, FLOP, B, FLOP/s, B/s, FLOP/B.
COLUMNS = (
    "operation",
    "type",
    "category",
    "count",
    "self_seconds",
    "wall_seconds",
    "share",
    "flops",
    "bytes",
    "flops_per_second",
    "bytes_per_second",
    "arithmetic_intensity",
)

#: The row of the time in which no known operation ran.
REMAINDER = "(no operation)"

Row = dict[str, Any]


def make_profile(
    trace: Trace,
    steps: int,
    slowdown: float,
    kernel_cost: Callable[[str, str], Cost],
    compiled_cost: Callable[[str, str], Cost],
) -> Profile:
    """The profile of `steps` traced steps: rows by falling share, the remainder last.

    A cost is looked up by a kernel's name and type, or by the names of an instruction and its module.
    """
    usage, idle = attribute([*trace.kernels, *trace.compiled], 0.0, trace.seconds)
    rows, products = [], defaultdict[str, float](float)
    for (name, kind), used in usage.items():
        compiled = kind.startswith(COMPILED)
        cost = trace.stated.get((name, kind)) or (
            compiled_cost(name, kind.removeprefix(COMPILED)) if compiled else kernel_cost(name, kind)
        )
        rows.append(_row(name, cost, used, steps, trace.seconds))
        if cost.product_flops:
            products[cost.dtype or "unknown"] += cost.product_flops * used.count / steps
    rest: Row = dict.fromkeys(("operation", "type", "category"), REMAINDER)
    rest |= {"count": 0.0, "self_seconds": idle / steps, "wall_seconds": idle / steps, "share": idle / trace.seconds}
    total = sum(products.values())
    return Profile(
        operations=_table([*_sorted(rows), rest], COLUMNS),
        operation_types=_table([*_sorted(_types(rows)), rest], COLUMNS[1:]),
        step_seconds=trace.seconds / steps,
        unexplained_share=idle / trace.seconds,
        product_flops=total,
        product_types={kind: flops / total for kind, flops in products.items()} if total else {},
        steps=steps,
        slowdown=slowdown,
    )


def _row(name: str, cost: Cost, used: Usage, steps: int, seconds: float) -> Row:
    flops = None if cost.flops is None else cost.flops * used.count / steps
    moved = None if cost.bytes is None else cost.bytes * used.count / steps
    return _rates(
        {
            "operation": name,
            "type": cost.kind,
            "category": cost.category,
            "count": used.count / steps,
            "self_seconds": used.self_seconds / steps,
            "wall_seconds": used.wall_seconds / steps,
            "share": used.wall_seconds / seconds,
            "flops": flops,
            "bytes": moved,
        }
    )


def _types(rows: Iterable[Row]) -> list[Row]:
    """Sums over the operations of a type; of what is unknown for some the sum is a lower bound, for all unknown."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["type"], row["category"]].append(row)
    summed = []
    for (kind, category), members in groups.items():
        sums: Row = {"type": kind, "category": category}
        for name in ("count", "self_seconds", "wall_seconds", "share", "flops", "bytes"):
            known = [member[name] for member in members if member[name] is not None]
            sums[name] = sum(known) if known else None
        summed.append(_rates(sums))
    return summed


def _rates(row: Row) -> Row:
    """FLOP/s and B/s over the self time, and arithmetic intensity, where both terms are known and not zero."""
    seconds, flops, moved = row["self_seconds"], row["flops"], row["bytes"]
    row["flops_per_second"] = flops / seconds if flops is not None and seconds else None
    row["bytes_per_second"] = moved / seconds if moved is not None and seconds else None
    row["arithmetic_intensity"] = flops / moved if flops is not None and moved else None
    return row


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -row["share"])


def _table(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> Table:
    names = list(columns)
    return Table(names, [[row.get(name) for name in names] for row in rows])
