"""Speedup of A over B by type of operation, and the limits of operations (`speedup --operations`).

This is Figure 6 of the ParaDnn paper: speedups over arithmetic intensity. Memory limits an
operation whose intensity is below the ridge point of the roofline. Its speedup then shows the gain
in memory bandwidth. The input is the tables of `analysis.store.load.load_types`, paired by point
and type of operation. A point is one configuration to measure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from analysis.ceilings import with_best_ceilings
from analysis.columns import (
    format_values,
    is_configuration_column,
    is_platform_column,
    join_columns,
)
from analysis.format import format_with_interval
from analysis.lazy import drawing, np, pd
from analysis.operations import MINIMUM_SHARE, TRANSFERS
from analysis.pairing import RESULT_COLUMNS, pair
from analysis.result import AnalysisAnswer, Result
from analysis.roofs import find_roofs
from analysis.sides import KEPT, Sides, format_mean, tidy
from analysis.store.frame import profiling_remedy
from paradnn.core.errors import InsufficientData
from paradnn.core.words import counted
from paradnn.platform.specifications import find_hardware
from paradnn.statistics.dependence import geometric_mean, shared_levels
from paradnn.statistics.estimate import Estimate

#: Join column with the type of operation. `pair` would not join on the column `type`.
TYPE = "operation_type"
# Types of matrix products. XLA on a TPU calls a product that is fused with the operations after it
# an output fusion.
_PRODUCTS = re.compile(r"matmul|gemm|\bdot\b|conv(?!ert)|einsum|output fusion", re.IGNORECASE)
#: Columns that state the time and place of a run, in addition to those that identify its point.
_SESSION_COLUMNS = ("start_time", "sweep_id", "session_id", "sweep_order", "host")
_RUN_COLUMNS = ("run_id", "family", "device", "outcome", *_SESSION_COLUMNS, "source")


class Level(StrEnum):
    """What limits an operation on both sides of a comparison, as text in tables."""

    COMPUTE = "compute-bound"
    MATMUL = "memory-bound MatMul"
    OTHER = "memory-bound, other"
    ACROSS = "across a ridge"
    TRANSFER = "between devices"
    UNKNOWN = "ridge unknown"


class OperationSpeedup(NamedTuple):
    """Speedups of A over B by type of operation, such as MatMul.

    A point is one configuration that was measured on A and on B. A level is what limits an
    operation on both sides, such as memory bandwidth.

    Attributes:
        operations: A row for each type of operation in each point. It has these columns:

            - those of `pairing.pair`, with `a` and `b` in FLOP/s;
            - `operation_type`;
            - `arithmetic_intensity` in FLOP/B, the geometric mean of both sides;
            - `share`, the larger of its shares of the time on A and on B;
            - `bandwidth_gain`, the bandwidth of A relative to B;
            - `level`, a value of `Level`.
        levels: A row for each level: number of operations and of points, geometric mean of the
            speedup with its interval, and for memory-bound levels the mean `bandwidth_gain`.
        gain: The bandwidth gain with its interval; NaN without memory-bound operations.
        gain_from: The level whose operations show the gain; None without memory-bound operations.
        small: Number of omitted operations, whose `share` is below `MINIMUM_SHARE`.
    """

    operations: pd.DataFrame
    levels: pd.DataFrame
    gain: Estimate
    gain_from: Level | None
    small: int


def operations_over(sides: Sides, on: Sequence[str] | None, store: Sequence[str]) -> Result:
    """Compare the operations of profiled runs of A and of B.

    The ridge point of a roofline (FLOP/B) separates operations that memory limits from those that
    arithmetic limits. If the ridge point of one side is unknown, none is used. An operation that is
    memory-bound on only one side could otherwise be classified as memory-bound on both.

    Args:
        sides: The runs of A and B.
        on: Columns that identify the same configuration on both sides; None for all that both
            share.
        store: Addresses of the stores with the operation tables, and with the measured peak rates
            and bandwidths; empty for the default store.

    Raises:
        InsufficientData: If no operations can be paired.
    """
    from analysis.store.load import load_types

    roofs = [
        roof
        for side in (sides.a, sides.b)
        for roof in find_roofs(with_best_ceilings(side, store), find_hardware)
    ]
    roof_ridges = [roof.ridge for roof in roofs]
    if None not in roof_ridges:
        ridges = sorted({ridge for ridge in roof_ridges if ridge is not None})
    else:
        ridges = []
    types = load_types(pd.concat([sides.a, sides.b], ignore_index=True), store)
    speedup = operation_speedup(sides.a, sides.b, types, ridges, on)
    return Result(
        numbers=tidy(speedup.operations, ("operation_type", *KEPT)),
        answer=_answer(speedup, sides),
        sentences=[*_sentences(speedup, sides, ridges)],
        picture=lambda: draw_operations(speedup, ridges, sides.name_a, sides.name_b),
        sources=sides.sources,
        pooled=sides.pooled,
    )


def _answer(speedup: OperationSpeedup, sides: Sides) -> AnalysisAnswer:
    """State the geometric mean of the speedup for the limit that applies to the most operations."""
    name_a, name_b = sides.display_names
    row = speedup.levels.sort_values("operations", ascending=False, kind="stable").iloc[0]
    ends = tuple(float(row[f"geometric_mean{end}"]) for end in ("", "_low", "_high"))
    mean = format_with_interval((ends[0], ends[1], ends[2]), "{:.3g}x".format)
    operations = counted(int(row["operations"]), "operation")
    points = counted(int(row["points"]), "point")
    return AnalysisAnswer(
        sentence=(
            f"{name_a} runs {operations} ({row['level']}) in {points} at {mean} the FLOP rate of "
            f"{name_b}."
        ),
        ratio=ends[0],
        low=ends[1],
        high=ends[2],
        points=int(row["points"]),
        basis="the scatter between operations and points",
    )


def _sentences(speedup: OperationSpeedup, sides: Sides, ridges: Sequence[float]) -> Iterator[str]:
    called = " over ".join(sides.display_names)
    yield (
        f"{sides.explain_names()}Speedup of {called} in the FLOP rate of "
        f"{counted(len(speedup.operations), 'operation type')} in paired points. "
        f"Omitted: {speedup.small} below {MINIMUM_SHARE:.0%} of the time."
    )
    for row in speedup.levels.to_dict("records"):
        mean = format_mean(
            row["geometric_mean"], row["geometric_mean_low"], row["geometric_mean_high"]
        )
        operations = counted(row["operations"], "operation")
        points = counted(row["points"], "point")
        yield f"{row['level']}: {mean} over {operations} in {points}."
    if not ridges:
        yield (
            "No ridge point is known, so memory-bound operations cannot be identified. Measure the "
            "ceilings: python -m paradnn.ceilings"
        )
    elif speedup.gain_from is None:
        yield "No operation is memory-bound on both sides, so the bandwidth gain is unknown."
    else:
        edges = ", ".join(f"{ridge:.3g}" for ridge in ridges)
        yield (
            f"Memory bandwidth gain of {called}, from the level '{speedup.gain_from}': "
            f"{format_mean(*speedup.gain)}; ridge at {edges} FLOP/B."
        )
    yield from sides.describe_differences(speedup.operations, "operation type")


def operation_speedup(
    a: pd.DataFrame,
    b: pd.DataFrame,
    types: pd.DataFrame,
    ridges: Sequence[float] = (),
    on: Sequence[str] | None = None,
) -> OperationSpeedup:
    """Compare the operation types of A and B, and find what limits them.

    Operations are paired if they have the same type and belong to the same point (configuration to
    measure).

    speedup = FLOP/s of A / FLOP/s of B while the operation runs. As in the ParaDnn paper, an
    operation counts only if it has FLOPs and a rate on both sides. It must also take at least
    `MINIMUM_SHARE` of the time on one side.

    The bandwidth gain of an operation is speedup x intensity on B / intensity on A, since FLOP/s =
    intensity x B/s. This excludes the part of a speedup that is due to a higher intensity, such as
    from a larger batch (section 4.5 of the paper: a speedup of 3x with twice the batch is 1.5x of
    bandwidth). The reported gain is the mean over operations that memory limits on both sides. It
    excludes matrix products if there are other operations, since products may keep operands on the
    chip.

    Exchanges between devices have a separate `Level`. In a mean, each point counts once, with the
    geometric mean of its operations. The sampling units of the intervals are models and batch
    sizes.

    Args:
        a: Runs of A, one row each.
        b: Runs of B, one row each.
        types: Types of operation of these runs, as `load_types` returns them.
        ridges: Ridge points of both rooflines in FLOP/B. An operation is memory-bound if its
            intensity on both sides is below all of them, and compute-bound if it is above all of
            them.
        on: Columns that identify a point; None for all that both sides share.

    Returns:
        The speedup and the limit of each operation, and their means.

    Raises:
        InsufficientData: If A or B has no profiled operations, or nothing can be paired.
    """
    rows_a = _profiled_operations("A", a, types)
    rows_b = _profiled_operations("B", b, types)
    keys = join_columns(rows_a, rows_b)[0] if on is None else list(on)
    carried = ("intensity_a", "intensity_b", "share_a", "share_b")
    pairs = pair(rows_a, rows_b, "flops_per_second", [*keys, TYPE], carried)
    if pairs.empty:
        raise InsufficientData(
            "no type of operation with FLOPs was profiled at the same point on both sides: "
            f"A has {format_values({*rows_a[TYPE]}, 6)}; "
            f"B has {format_values({*rows_b[TYPE]}, 6)}; "
            "profile the same points on both sides"
        )
    share = pairs[["share_a", "share_b"]].max(axis=1)
    large = share.isna() | (share >= MINIMUM_SHARE)
    operations = pairs[large].reset_index(drop=True)
    on_a = operations.pop("intensity_a")
    on_b = operations.pop("intensity_b")
    column = list(operations).index("a")
    operations.insert(column, "arithmetic_intensity", np.sqrt(on_a * on_b))
    operations.insert(column + 1, "share", share[large].to_numpy())
    operations = operations.drop(columns=["share_a", "share_b"])
    operations["bandwidth_gain"] = operations["speedup"] * on_b / on_a
    operations["level"] = _find_levels(on_a, on_b, operations[TYPE], ridges)
    operations.attrs = pairs.attrs
    source = next(
        (level for level in (Level.OTHER, Level.MATMUL) if (operations["level"] == level).any()),
        None,
    )
    gain = _mean_over_configurations(
        operations[operations["level"].eq(source or "")], "bandwidth_gain"
    )
    return OperationSpeedup(operations, _by_level(operations), gain, source, int((~large).sum()))


def identity_columns(runs: pd.DataFrame) -> list[str]:
    """Return the columns that state the id, session, configuration and platform of runs.

    Columns of metrics are omitted.

    Args:
        runs: One row per run.
    """
    return [
        name
        for name in map(str, runs)
        if name in _RUN_COLUMNS or is_configuration_column(name) or is_platform_column(name)
    ]


def _by_level(operations: pd.DataFrame) -> pd.DataFrame:
    points = _number_configurations(operations)
    rows = []
    for level in (level for level in Level if (operations["level"] == level).any()):
        rows_of_level = operations[operations["level"] == level]
        if level in (Level.MATMUL, Level.OTHER):
            gain = _mean_over_configurations(rows_of_level, "bandwidth_gain")[0]
        else:
            gain = np.nan
        rows.append(
            (
                level.value,
                len(rows_of_level),
                points[rows_of_level.index].nunique(),
                *_mean_over_configurations(rows_of_level, "speedup"),
                gain,
            )
        )
    means = ["geometric_mean", "geometric_mean_low", "geometric_mean_high"]
    return pd.DataFrame(rows, columns=["level", "operations", "points", *means, "bandwidth_gain"])


def _profiled_operations(name: str, side: pd.DataFrame, types: pd.DataFrame) -> pd.DataFrame:
    """Return the operations of A or B that have FLOPs and a rate, with the columns of their runs.

    Args:
        name: "A" or "B".
        side: Runs of A or B, one row each.
        types: Types of operation of both sides.

    Raises:
        InsufficientData: If there is no such operation.
    """
    rows = types.merge(side[identity_columns(side)], on="run_id")
    if rows.empty:
        raise InsufficientData(
            f"no profile was recorded in {counted(len(side), 'run')} of {name}; "
            f"{profiling_remedy(side)}"
        )
    has_work = (
        (rows["flops"] > 0) & (rows["flops_per_second"] > 0) & (rows["arithmetic_intensity"] > 0)
    )
    if not has_work.any():
        raise InsufficientData(
            f"no operation of {name} has all of FLOPs, a FLOP rate and an arithmetic intensity"
        )
    suffix = name.lower()
    renamed = {
        "type": TYPE,
        "arithmetic_intensity": f"intensity_{suffix}",
        "share": f"share_{suffix}",
    }
    rows = rows[has_work].rename(columns=renamed)
    # `pair` expects one id per row, and a row is one operation type of a run.
    return rows.assign(run_id=rows["run_id"] + " " + rows[TYPE])


def _find_levels(
    a: pd.Series, b: pd.Series, types: pd.Series, ridges: Sequence[float]
) -> np.ndarray:
    """Return what limits each operation, as an array (n,) of the values of `Level`.

    Args:
        a: (n,) arithmetic intensities on A in FLOP/B.
        b: (n,) arithmetic intensities on B in FLOP/B.
        types: (n,) types of operation.
        ridges: Ridge points of both rooflines in FLOP/B; empty if unknown.
    """
    low = min(ridges, default=-np.inf)
    high = max(ridges, default=np.inf)
    bound = np.where(types.str.contains(_PRODUCTS), Level.MATMUL.value, Level.OTHER.value)
    other = Level.ACROSS if len(ridges) else Level.UNKNOWN
    levels = np.where(np.minimum(a, b) >= high, Level.COMPUTE.value, other.value)
    levels = np.where(np.maximum(a, b) < low, bound, levels)
    return np.where(types.str.contains(TRANSFERS), Level.TRANSFER.value, levels)


def _number_configurations(operations: pd.DataFrame) -> pd.Series:
    """Number the configurations; all operations of a configuration have the same number."""
    result_columns = (
        *RESULT_COLUMNS,
        TYPE,
        "arithmetic_intensity",
        "share",
        "bandwidth_gain",
        "level",
    )
    return operations.groupby(
        [name for name in operations if name not in result_columns], dropna=False, sort=False
    ).ngroup()


def _mean_over_configurations(rows: pd.DataFrame, column: str) -> Estimate:
    """Return the geometric mean of a column with its interval; each configuration counts once."""
    if rows.empty:
        return Estimate(np.nan, np.nan, np.nan)
    points = _number_configurations(rows)
    logs = pd.Series(np.log(rows[column].astype("float64"))).groupby(points).mean()
    each = rows.groupby(points).head(1)
    return geometric_mean(
        np.exp(logs.to_numpy()),
        shared_levels(each.set_axis(points[each.index]).reindex(logs.index)),
    )


def draw_operations(
    speedup: OperationSpeedup, ridges: Sequence[float] = (), a: str = "A", b: str = "B"
) -> drawing.Figure:
    """Draw the speedup of each operation over its arithmetic intensity.

    Each limit, such as memory bandwidth, has its own mark. The mean speedup under a limit is a line
    over the intensities of its operations. Dashed lines are ridge points.

    Args:
        speedup: The speedups.
        ridges: Ridge points of the rooflines in FLOP/B.
        a: Name of A.
        b: Name of B.
    """
    drawn, (axes,) = drawing.panels(1, 8.0, 4.4)
    for row in speedup.levels.to_dict("records"):
        level = row["level"]
        mean = row["geometric_mean"]
        rows = speedup.operations[speedup.operations["level"] == level]
        style = drawing.look(level, tuple(Level))
        intensity = rows["arithmetic_intensity"]
        label = f"{level}: {mean:.2f}x ({len(rows)})"
        axes.scatter(
            intensity, rows["speedup"], s=22, alpha=0.7, linewidths=0, label=label, **style
        )
        axes.plot(
            (intensity.min() / 1.25, intensity.max() * 1.25),
            [mean] * 2,
            color=style["color"],
            linewidth=1.4,
        )
    for ridge in ridges:
        axes.axvline(ridge, color="#666666", linestyle="--", linewidth=1)
    axes.axhline(1, color="#333333", linewidth=1)
    if len(ridges):
        edges = f" (ridge {' and '.join(f'{ridge:.3g}' for ridge in ridges)} dashed)"
    else:
        edges = ""
    x = f"arithmetic intensity in FLOP/B{edges}"
    logs = {"x": "{:g}".format, "y": drawing.times}
    drawing.finish(axes, f"Operations: {a} over {b}", x, "speedup of the FLOP rate", logs=logs)
    drawing.legend(drawn)
    return drawn
