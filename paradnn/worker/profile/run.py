"""The untimed stretch of steps under the profiler, after everything that is timed, and the tables
of what it saw: a row for each operation, and one for each type of operation.
"""

import base64
import math
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.core.messages import NoProfile, OperationTable, Profile
from paradnn.worker.frameworks import Framework, Step
from paradnn.worker.profile.hlo import HloCosts
from paradnn.worker.profile.shapes import Cost, shares, sum_products
from paradnn.worker.profile.trace import COMPILED, Trace, attribute

#: The stretch lasts about this long, within these counts of steps: after some 80 TensorFlow traces
#: no cheap operation.
_SECONDS = 0.25
_FEWEST = 3
_MOST = 60
#: A step as long as this is profiled once: its shares will not change.
_LONG_STEP = 5.0
#: Steps under the profiler may take so much longer, and reading the trace takes time too.
_SLOWDOWN = 2.0


def profile_steps(
    framework: Framework,
    step: Step,
    step_seconds: float,
    keep_trace: bool,
    seconds_left: float = math.inf,
) -> Profile | NoProfile:
    """The profile of a step that takes `step_seconds` unprofiled; with `keep_trace` it holds the
    trace. Where the framework cannot be profiled, its trace cannot be read, or it would take longer
    than the `seconds_left` of the point, NoProfile says why: a point that was measured is not lost
    to its profile.
    """
    fewest = _FEWEST if step_seconds < _LONG_STEP else 1
    steps = min(_MOST, max(fewest, math.ceil(_SECONDS / step_seconds)))
    expected = _SLOWDOWN * (steps + 1) * step_seconds
    if expected > seconds_left:
        reason = (
            f"the profile may take {expected:.0f} s, measure.timeout leaves {seconds_left:.0f} s"
        )
        return NoProfile(reason, limited=True)
    try:
        return _profile(framework, step, steps, step_seconds, keep_trace)
    except UnavailableError as error:
        return NoProfile(str(error))
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:300]
        return NoProfile(f"{type(error).__name__}: {message}".rstrip(": "))


def _profile(
    framework: Framework, step: Step, steps: int, step_seconds: float, keep_trace: bool
) -> Profile:
    with tempfile.TemporaryDirectory(prefix="trace-", dir=".") as name:
        folder = Path(name)
        with framework.trace(folder) as marked:
            # The first step under the profiler pays for its start.
            step.run(1)
            with marked():
                begin = time.perf_counter()
                step.run(steps)
                seconds = time.perf_counter() - begin
        trace = framework.read_trace(folder)
        kept = {}
        if keep_trace and trace.file:
            kept[str(trace.file.relative_to(folder))] = base64.b64encode(
                trace.file.read_bytes()
            ).decode()
    return replace(
        make_profile(trace, steps, seconds / steps / step_seconds, step.kernel_cost), trace=kept
    )


#: Columns of the table of operations; that of the types lacks `operation`. All values are those of
#: one step: executions, seconds of self time and of explained wall time, share of the step, FLOP,
#: B, FLOP/s, B/s, FLOP/B.
_SUMS = ("count", "self_seconds", "wall_seconds", "share", "flops", "bytes")
COLUMNS = (
    "operation",
    "type",
    "category",
    *_SUMS,
    "flops_per_second",
    "bytes_per_second",
    "arithmetic_intensity",
)

#: The row of the time in which no known operation ran.
REMAINDER = "(no operation)"

Row = dict[str, Any]


def make_profile(
    trace: Trace, steps: int, slowdown: float, kernel_cost: Callable[[str, str], Cost]
) -> Profile:
    """The profile of `steps` traced steps: rows by falling share, the remainder last.
    `kernel_cost`: the cost of a framework's own operation by its name and type, where the trace
    does not state it.
    """
    usage, idle = attribute(trace.events, 0.0, trace.seconds)
    instructions = HloCosts(trace.modules)
    rows = []
    costs = []
    for (name, kind), used in usage.items():
        cost = trace.stated.get((name, kind))
        if cost is None:
            compiled = kind.startswith(COMPILED)
            if compiled:
                cost = instructions.cost(name, kind.removeprefix(COMPILED))
            else:
                cost = kernel_cost(name, kind)
        count = used.count / steps
        wall = used.wall_seconds
        work = [None if each is None else each * count for each in (cost.flops, cost.bytes)]
        times = (used.self_seconds / steps, wall / steps, wall / trace.seconds)
        rows.append(
            dict(zip(COLUMNS, (name, cost.kind, cost.category, count, *times, *work), strict=False))
        )
        costs.append(replace(cost, product_flops=cost.product_flops * count))
    times = (idle / steps, idle / steps, idle / trace.seconds)
    rest = dict(zip(COLUMNS, (REMAINDER, REMAINDER, REMAINDER, 0.0, *times), strict=False))
    products = sum_products(costs)
    # XLA puts what a GPU runs as one graph into a computation of that name (openxla/xprof issues
    # 2544 and 3070).
    parts = [part.name for module in trace.modules for part in module.computations]
    return Profile(
        operations=_table(rows, rest, COLUMNS),
        operation_types=_table(_types(rows), rest, COLUMNS[1:]),
        step_seconds=trace.seconds / steps,
        unexplained_share=idle / trace.seconds,
        product_flops=sum(products.values()),
        product_types=shares(products),
        steps=steps,
        slowdown=slowdown,
        command_buffers=sum(name.startswith("command_buffer") for name in parts),
    )


def _types(rows: Iterable[Row]) -> list[Row]:
    """Sums over the operations of a type; of what is unknown for some the sum is a lower bound, for
    all unknown.
    """
    summed: dict[tuple[str, str], Row] = {}
    for row in rows:
        sums = summed.setdefault(
            (row["type"], row["category"]), {name: row[name] for name in ("type", "category")}
        )
        for name in _SUMS:
            known = [each for each in (sums.get(name), row[name]) if each is not None]
            sums[name] = sum(known) if known else None
    return list(summed.values())


def _table(rows: Iterable[Row], rest: Row, columns: Sequence[str]) -> OperationTable:
    """Rows by falling share and the rest, with rates over the self time where both terms are known
    and not zero.
    """

    def ratio(row: Row, over: str, under: str) -> float | None:
        if row.get(over) is not None and row.get(under):
            return row[over] / row[under]
        return None

    ordered = [*sorted(rows, key=lambda row: -row["share"]), rest]
    for row in ordered:
        row["flops_per_second"] = ratio(row, "flops", "self_seconds")
        row["bytes_per_second"] = ratio(row, "bytes", "self_seconds")
        row["arithmetic_intensity"] = ratio(row, "flops", "bytes")
    return OperationTable(list(columns), [[row.get(name) for name in columns] for row in ordered])
