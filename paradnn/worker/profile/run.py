"""Profile a few untimed steps after all measurements, and tabulate their operations.

The first table has a row for each operation. The second has a row for each type of operation.
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
from paradnn.worker.profile.trace import COMPILED, Trace, Usage, attribute

#: Target duration of the profiled steps.
PROFILE_SECONDS = 0.25
#: Fewest and most profiled steps. After about 80 steps TensorFlow's traces omit cheap operations.
MIN_STEPS = 3
MAX_STEPS = 60
#: A step of at least this many seconds is profiled once, because repeating it would not change the
#: shares of its operations.
LONG_STEP_SECONDS = 5.0
#: Assumed slowdown under the profiler, including the time to read the trace.
ASSUMED_SLOWDOWN = 2.0


def profile_steps(
    framework: Framework,
    step: Step,
    step_seconds: float,
    *,
    keep_trace: bool,
    seconds_left: float = math.inf,
) -> Profile | NoProfile:
    """Run some steps under the framework's profiler, and return the time of each operation.

    Args:
        framework: The framework that runs the step.
        step: The step, already compiled.
        step_seconds: Seconds of a step without the profiler.
        keep_trace: Whether the profile includes the profiler's trace file.
        seconds_left: Seconds until the time limit of the measurement.

    Returns:
        The profile. A failure must not discard the measurement that precedes the profile. Instead
        of raising an exception, this function returns a NoProfile with the reason.
    """
    min_steps = MIN_STEPS if step_seconds < LONG_STEP_SECONDS else 1
    steps = min(MAX_STEPS, max(min_steps, math.ceil(PROFILE_SECONDS / step_seconds)))
    expected = ASSUMED_SLOWDOWN * (steps + 1) * step_seconds
    if expected > seconds_left:
        reason = (
            f"the profile may take {expected:.0f} s, but measure.timeout leaves only "
            f"{seconds_left:.0f} s: raise measure.timeout"
        )
        return NoProfile(reason, limited=True)
    try:
        return _profile(framework, step, steps, step_seconds, keep_trace=keep_trace)
    except UnavailableError as error:
        return NoProfile(str(error))
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:300]
        return NoProfile(f"{type(error).__name__}: {message}".rstrip(": "))


def _profile(
    framework: Framework, step: Step, steps: int, step_seconds: float, *, keep_trace: bool
) -> Profile:
    with tempfile.TemporaryDirectory(prefix="trace-", dir=".") as name:
        folder = Path(name)
        with framework.trace(folder) as marked:
            # The first step under the profiler includes the start of the profiler.
            step.run(1)
            with marked():
                begin = time.perf_counter()
                step.run(steps)
                seconds = time.perf_counter() - begin
        trace = framework.read_trace(folder)
        trace_files = {}
        if keep_trace and trace.file:
            content = base64.b64encode(trace.file.read_bytes()).decode()
            trace_files[str(trace.file.relative_to(folder))] = content
    slowdown = seconds / steps / step_seconds
    profile = make_profile(trace, steps, slowdown, step.kernel_cost)
    return replace(profile, trace=trace_files)


#: Columns that are summed over the operations of a type. All values are per step: executions,
#: seconds of self time, seconds of wall time, fraction of the step time, FLOPs, bytes.
_SUMS = ("count", "self_seconds", "wall_seconds", "share", "flops", "bytes")
#: Columns of the table of operations. The table of operation types has the same columns except
#: `operation`. The units of the last three columns are FLOP/s, bytes/s and FLOP/byte.
COLUMNS = (
    "operation",
    "type",
    "category",
    *_SUMS,
    "flops_per_second",
    "bytes_per_second",
    "arithmetic_intensity",
)

#: Name of the row with the time in which no known operation ran.
REMAINDER = "(no operation)"

Row = dict[str, Any]


def make_profile(
    trace: Trace, steps: int, slowdown: float, kernel_cost: Callable[[str, str], Cost]
) -> Profile:
    """Return tables of the operations in a trace, with their times, FLOPs and bytes per step.

    The rows are in order of decreasing share of the step time. The last row, the remainder, has the
    time in which no known operation ran.

    Args:
        trace: The operations that the profiler recorded.
        steps: Number of steps in the trace.
        slowdown: Step time under the profiler, divided by the step time without it.
        kernel_cost: Function that returns the cost of a framework's operation by its name and type.
            It is called for operations whose cost the trace does not state.
    """
    usage, idle_seconds = attribute(trace.events, 0.0, trace.seconds)
    program_costs = HloCosts(trace.modules)
    rows = []
    costs = []
    for (name, kind), used in usage.items():
        cost = trace.stated_costs.get((name, kind))
        if cost is None and kind.startswith(COMPILED):
            cost = program_costs.cost(name, kind.removeprefix(COMPILED))
        elif cost is None:
            cost = kernel_cost(name, kind)
        executions = used.count / steps
        rows.append(_row(name, cost, used, steps, trace.seconds))
        costs.append(replace(cost, product_flops=cost.product_flops * executions))
    idle_share = idle_seconds / trace.seconds
    remainder: Row = {
        "operation": REMAINDER,
        "type": REMAINDER,
        "category": REMAINDER,
        "count": 0.0,
        "self_seconds": idle_seconds / steps,
        "wall_seconds": idle_seconds / steps,
        "share": idle_share,
    }
    products = sum_products(costs)
    return Profile(
        operations=_table(rows, remainder, COLUMNS),
        operation_types=_table(_type_rows(rows), remainder, COLUMNS[1:]),
        step_seconds=trace.seconds / steps,
        unexplained_share=idle_share,
        product_flops=sum(products.values()),
        product_types=shares(products),
        steps=steps,
        slowdown=slowdown,
        command_buffers=_count_command_buffers(trace),
    )


def _row(name: str, cost: Cost, used: Usage, steps: int, total_seconds: float) -> Row:
    """Return the row of an operation in the table of operations. All values are per step.

    Args:
        name: The name of the operation.
        cost: The cost of one execution.
        used: Number of executions, and seconds, in all steps together.
        steps: Number of steps in the trace.
        total_seconds: Duration of all steps together.
    """
    executions = used.count / steps
    return {
        "operation": name,
        "type": cost.kind,
        "category": cost.category,
        "count": executions,
        "self_seconds": used.self_seconds / steps,
        "wall_seconds": used.wall_seconds / steps,
        "share": used.wall_seconds / total_seconds,
        "flops": None if cost.flops is None else cost.flops * executions,
        "bytes": None if cost.bytes is None else cost.bytes * executions,
    }


def _count_command_buffers(trace: Trace) -> int:
    """Return the number of command buffers: parts of a program that a GPU runs as one graph.

    XLA puts each command buffer into a computation whose name begins with command_buffer
    (openxla/xprof issues 2544 and 3070).
    """
    names = [part.name for module in trace.modules for part in module.computations]
    return sum(name.startswith("command_buffer") for name in names)


def _type_rows(rows: Iterable[Row]) -> list[Row]:
    """Return one row per operation type, with the sums over the operations of the type.

    If a value is unknown for some operations, the sum is a lower bound. If it is unknown for all
    operations, the sum is None.
    """
    totals: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row["type"], row["category"])
        total = totals.setdefault(key, {"type": row["type"], "category": row["category"]})
        for name in _SUMS:
            known = [value for value in (total.get(name), row[name]) if value is not None]
            total[name] = sum(known) if known else None
    return list(totals.values())


def _table(rows: Iterable[Row], remainder: Row, columns: Sequence[str]) -> OperationTable:
    """Return a table of rows in order of decreasing share, followed by the remainder.

    The columns with rates, which are relative to the self time, are added to each row.

    Args:
        rows: One row per operation or type of operation.
        remainder: The row with the time in which no known operation ran.
        columns: The names of the columns.
    """
    ordered = [*sorted(rows, key=lambda row: -row["share"]), remainder]
    for row in ordered:
        row["flops_per_second"] = _ratio(row, "flops", "self_seconds")
        row["bytes_per_second"] = _ratio(row, "bytes", "self_seconds")
        row["arithmetic_intensity"] = _ratio(row, "flops", "bytes")
    return OperationTable(list(columns), [[row.get(name) for name in columns] for row in ordered])


def _ratio(row: Row, numerator: str, denominator: str) -> float | None:
    """Divide the values of two columns of a row; None if a value is unknown or the divisor is 0."""
    if row.get(numerator) is None or not row.get(denominator):
        return None
    ratio: float = row[numerator] / row[denominator]
    return ratio
