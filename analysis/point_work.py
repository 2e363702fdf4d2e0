"""The operations of measured points with their times, for the model of hardware upgrades.

A point is one configuration that was measured. A profiled point has one operation for each type in
its table of operations, and each operation has a measured time. The operations of other points are
computed from their layers, and the step time is their only measured time. A point whose model this
version cannot build counts as one operation with the recorded FLOPs and bytes.

Waiting for input and exchanges between devices do not depend on the arithmetic and memory of a
device. Their time is recorded separately as fixed time, and so is that of operations with unknown
work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.labels import not_recorded
from analysis.lazy import np, pd
from analysis.operations import TRANSFERS
from analysis.roofs import Roof
from analysis.store.frame import is_ok, profiling_remedy
from paradnn.core.errors import InsufficientData, ParadnnError
from paradnn.core.layers import COMPUTE_BYTES

if TYPE_CHECKING:
    from paradnn.forecast.upgrades import OperationLimits, TimedWork

#: Parts of a step that an upgrade does not change.
FIXED = ("input", "communication", "other")
#: Possible limits of a step: three terms of the model, then times that no upgrade changes.
LIMITS = ("compute", "memory", "overhead", *FIXED)
#: Types of operation that wait for input.
_INPUT_TYPE = r"(?i)infeed|IteratorGetNext"
#: Types of matrix products and convolutions.
_PRODUCT_TYPES = r"(?i)matmul|gemm|\bdot\b|conv(?!ert)|einsum|output fusion"
#: First word of the names of groups of profiled operations.
_PROFILE = "profile"
#: Largest standard deviation of log times around their fit with which the fit is accepted.
_MAX_SPREAD = 0.5
#: Settings beyond device and precision that change how fast the same operations run.
_FIT_SETTINGS = ("family", "mode", "compile", "framework.name", "model.direction")


class _TimedPart(NamedTuple):
    """One measured time of a point (measured configuration), with the operations that it covers.

    Attributes:
        point: Position of the point among the points with known work.
        group: Key of the group whose times share a fit.
        seconds: The measured time.
        operations: FLOPs per call, bytes per call, and calls of each operation.
    """

    point: int
    group: tuple[str, ...]
    seconds: float
    operations: Sequence[tuple[float, float, float]]


@dataclass(frozen=True, eq=False)
class PointWork:
    """Operations and measured times of points.

    A point is one measured configuration. A fit estimates the FLOP/s, the memory bandwidth and the
    overhead of a group of times. Fixed time, such as waiting for input, is not part of a fit.

    Attributes:
        points: The p points, one row each.
        work: The operations and the m measured times.
        point: (m,) the row of `points` that each measured time belongs to.
        group: (m,) the name of the group with which each measured time shares a fit.
        fixed: Seconds of each point by kind of fixed time (p rows, columns `FIXED`).
        profiled: (p,) whether the operations of a point come from its profile.
    """

    points: pd.DataFrame
    work: TimedWork
    point: np.ndarray
    group: np.ndarray
    fixed: pd.DataFrame
    profiled: np.ndarray

    def restricted(self, is_kept: np.ndarray) -> PointWork:
        """Return the work of some points only.

        Args:
            is_kept: (p,) whether each point is kept.
        """
        is_chosen = is_kept[self.point]
        positions = np.cumsum(is_kept) - 1
        return PointWork(
            points=self.points[is_kept].reset_index(drop=True),
            work=self.selected(is_chosen),
            point=positions[self.point[is_chosen]],
            group=self.group[is_chosen],
            fixed=self.fixed[is_kept].reset_index(drop=True),
            profiled=self.profiled[is_kept],
        )

    def selected(self, is_chosen: np.ndarray) -> TimedWork:
        """Return some of the measured times, with their operations.

        Args:
            is_chosen: (m,) whether each measured time is chosen.
        """
        from paradnn.forecast.upgrades import TimedWork

        work = self.work
        is_operation = is_chosen[work.owner]
        positions = np.cumsum(is_chosen) - 1
        return TimedWork(
            flops=work.flops[is_operation],
            bytes=work.bytes[is_operation],
            calls=work.calls[is_operation],
            owner=positions[work.owner[is_operation]],
            seconds=work.seconds[is_chosen],
        )


def measured_work(points: pd.DataFrame, store: Sequence[str]) -> PointWork:
    """Return the operations of measured configurations with their times.

    The operations are those of a profile if there is one. Otherwise they are computed from the
    layers of the model.

    Args:
        points: One row per measured configuration.
        store: Addresses of the stores of the runs; empty for the default store.

    Raises:
        InsufficientData: If no configuration has a time and known work.
    """
    from analysis.store.load import load_types

    ok = points[is_ok(points)]
    if ok.filter(regex=r"^op_share\.").notna().any(axis=None):
        types = load_types(ok, store or None)
    else:
        types = pd.DataFrame({"run_id": []})
    measured = point_work(ok, types)
    if not len(measured.work.seconds):
        raise InsufficientData(
            "no point has a step time and known work; measure a point, for example: paradnn train "
            "model=fc"
        )
    return measured


class FittedGroup(NamedTuple):
    """Measured times that share a fit of FLOP/s, memory bandwidth and overhead.

    Attributes:
        work: The times with their operations.
        fit: The fit.
        points: The row of `PointWork.points` that each time belongs to.
        device: Name of the device on which the times were measured.
        precision: Precision of the arithmetic, such as "float32".
    """

    work: TimedWork
    fit: OperationLimits
    points: np.ndarray
    device: str
    precision: str


class FittedWork(NamedTuple):
    """Measured times with fits of FLOP/s, memory bandwidth and overhead.

    Attributes:
        measured: The times that a fit explains.
        groups: The fits, each with its times.
        unexplained: Number of points whose fit was rejected, by family and device, such as "fc on
            V100".
    """

    measured: PointWork
    groups: Sequence[FittedGroup]
    unexplained: Mapping[str, int]


def fit_work(measured: PointWork, roofs: Sequence[Roof]) -> FittedWork:
    """Fit FLOP/s, memory bandwidth and overhead to the measured times of each group.

    A group of whole steps is excluded if its times scatter too much around their fit. Something
    other than arithmetic, memory and overhead then takes the time, such as waiting for input.

    Args:
        measured: The measured times with their operations.
        roofs: Peak FLOP/s and memory bandwidth of each device and precision, the prior means of the
            fits.

    Raises:
        InsufficientData: If the fits of all groups are rejected.
    """
    from paradnn.forecast.upgrades import OperationLimits

    ceilings = {(roof.device, roof.precision): roof for roof in roofs}
    fits = {}
    is_kept = np.ones(len(measured.points), dtype=bool)
    unexplained: Counter[str] = Counter()
    for name in dict.fromkeys(measured.group):
        is_chosen = measured.group == name
        first = measured.points.iloc[measured.point[is_chosen][0]]
        roof = ceilings[_recorded_name(first, "device"), _recorded_name(first, "precision")]
        fit = OperationLimits.fit(measured.selected(is_chosen), roof.peak, roof.bandwidth)
        if fit.spread > _MAX_SPREAD and not name.startswith(_PROFILE):
            is_kept[measured.point[is_chosen]] = False
            unexplained[f"{first['family']} on {first['device']}"] += int(is_chosen.sum())
        else:
            fits[name] = (fit, roof)
    if not is_kept.any():
        raise InsufficientData(
            f"neither arithmetic nor memory traffic explains the times of "
            f"{', '.join(unexplained)}, and these points have no profiles; "
            f"{profiling_remedy(measured.points)}"
        )
    if unexplained:
        measured = measured.restricted(is_kept)
    groups = []
    for name, (fit, roof) in fits.items():
        is_chosen = measured.group == name
        groups.append(
            FittedGroup(
                work=measured.selected(is_chosen),
                fit=fit,
                points=measured.point[is_chosen],
                device=roof.device,
                precision=roof.precision,
            )
        )
    return FittedWork(measured, groups, unexplained)


def limits_of_points(measured: PointWork, groups: Sequence[FittedGroup]) -> pd.DataFrame:
    """Return the share of each point's time by its limit, such as compute, memory or overhead.

    A point is one measured configuration. The share of compute, memory or overhead is the
    elasticity of the throughput with respect to it.

    Args:
        measured: The p points with their measured times.
        groups: Fits of these times.

    Returns:
        p rows with the columns `LIMITS`; the sum of each row is 1.
    """
    from paradnn.forecast.upgrades import limit_shares

    seconds = np.zeros((len(measured.points), len(LIMITS)))
    seconds[:, 3:] = measured.fixed.to_numpy()
    for group in groups:
        shares = limit_shares(group.work, group.fit.logs)
        np.add.at(seconds[:, :3], group.points, (shares * group.work.seconds).T)
    return pd.DataFrame(seconds / seconds.sum(axis=1, keepdims=True), columns=list(LIMITS))


def point_work(points: pd.DataFrame, types: pd.DataFrame) -> PointWork:
    """Return the operations of measured configurations with their times.

    Args:
        points: One row per configuration, with `step_time_ms`. Rows without a time or without known
            work are omitted.
        types: Types of operation of their runs, as `analysis.store.load.load_types` returns them.
    """
    from paradnn.forecast.upgrades import TimedWork

    if "step_time_ms" in points:
        is_timed = is_ok(points) & points["step_time_ms"].gt(0)
    else:
        is_timed = pd.Series(False, index=points.index)
    points = points[is_timed].reset_index(drop=True)
    points = points.assign(
        device=[_recorded_name(row, "device") for row in points.to_dict("records")]
    )
    tables = dict(iter(_classified(types).groupby("run_id", sort=False)))
    parts: list[_TimedPart] = []
    fixed: list[np.ndarray] = []
    profiled = []
    has_work = np.zeros(len(points), dtype=bool)
    for index, row in enumerate(points.to_dict("records")):
        position = len(fixed)
        table = tables.get(row["run_id"])
        row_parts: list[_TimedPart] = []
        if table is not None:
            row_parts, fixed_seconds = _profiled_parts(position, row, table)
        is_profiled = bool(row_parts)
        if not is_profiled:
            row_parts, fixed_seconds = _whole_step(position, row)
        if row_parts:
            has_work[index] = True
            parts += row_parts
            fixed.append(fixed_seconds)
            profiled.append(is_profiled)
    points = points[has_work].reset_index(drop=True)
    owner = [index for index, part in enumerate(parts) for _ in part.operations]
    operations = np.array(
        [operation for part in parts for operation in part.operations], dtype="float64"
    ).reshape(-1, 3)
    work = TimedWork(
        flops=operations[:, 0],
        bytes=operations[:, 1],
        calls=operations[:, 2],
        owner=np.array(owner, dtype="intp"),
        seconds=np.array([part.seconds for part in parts], dtype="float64"),
    )
    return PointWork(
        points=points,
        work=work,
        point=np.array([part.point for part in parts], dtype="intp"),
        group=np.array([" ".join(part.group) for part in parts], dtype=object),
        fixed=pd.DataFrame(np.array(fixed).reshape(-1, len(FIXED)), columns=list(FIXED)),
        profiled=np.array(profiled, dtype=bool),
    )


def _classified(types: pd.DataFrame) -> pd.DataFrame:
    """Return types of operation with the columns `is_input`, `is_transfer` and `is_product`.

    Args:
        types: A row per type of operation and run, with the column `type`.
    """
    if "type" not in types:
        return types
    is_input = types["type"].str.contains(_INPUT_TYPE)
    return types.assign(
        is_input=is_input,
        is_transfer=types["type"].str.contains(TRANSFERS) & ~is_input,
        is_product=types["type"].str.contains(_PRODUCT_TYPES),
    )


def _profiled_parts(
    position: int, row: Mapping[Any, Any], table: pd.DataFrame
) -> tuple[list[_TimedPart], np.ndarray]:
    """Return the timed parts of a profiled step: one per type of operation, and the fixed times.

    A profile may cover many steps, so the work per step is the rate times the seconds per step.

    Args:
        position: Position of the configuration among those with known work.
        row: The measured configuration.
        table: The types of operation of its profile.

    Returns:
        The parts, and the seconds of each kind of fixed time, such as waiting for input, in the
        order of `FIXED`.
    """
    step = float(row["step_time_ms"]) / 1e3
    seconds = table["share"].fillna(0.0) * step
    flops = (table["flops_per_second"] * seconds).fillna(0.0)
    moved = (table["bytes_per_second"] * seconds).fillna(0.0)
    is_input = table["is_input"]
    is_transfer = table["is_transfer"]
    is_known = ~is_input & ~is_transfer & ((flops > 0) | (moved > 0)) & (seconds > 0)
    parts = []
    work = pd.DataFrame({"flops": flops, "bytes": moved, "seconds": seconds})
    known_work = work.assign(is_product=table["is_product"])[is_known]
    for operation_flops, operation_bytes, own_seconds, is_product in known_work.to_numpy():
        kind = "products" if is_product else "other operations"
        group = (_PROFILE, str(row["device"]), str(row.get("precision")), kind)
        operation = (float(operation_flops), float(operation_bytes), 1.0)
        parts.append(_TimedPart(position, group, float(own_seconds), [operation]))
    known = float(seconds[is_input | is_transfer | is_known].sum())
    waiting = float(seconds[is_input].sum())
    exchange = float(seconds[is_transfer].sum())
    return parts, np.array([waiting, exchange, max(0.0, step - known)])


def _whole_step(position: int, row: Mapping[Any, Any]) -> tuple[list[_TimedPart], np.ndarray]:
    """Return a step without a profile as a single timed part, and the fixed times.

    Args:
        position: Position of the configuration among those with known work.
        row: The measured configuration.

    Returns:
        One part, or none if the work of the step is unknown; and the seconds of each kind of fixed
        time, such as waiting for input, in the order of `FIXED`.
    """
    step = float(row["step_time_ms"]) / 1e3
    infeed = float(row.get("infeed_fraction", 0.0) or 0.0)
    if not 0 < infeed < 1:
        infeed = 0.0
    operations = list(_layer_operations(row)) or list(_recorded_operation(row))
    if not operations:
        return [], np.zeros(len(FIXED))
    settings = [str(row.get(name, "")) for name in _FIT_SETTINGS]
    group = ("step", str(row["device"]), str(row.get("precision")), *settings)
    part = _TimedPart(position, group, (1 - infeed) * step, operations)
    return [part], np.array([infeed * step, 0.0, 0.0])


def _layer_operations(row: Mapping[Any, Any]) -> Iterator[tuple[float, float, float]]:
    """Yield FLOPs per call, bytes per call and number of calls of a model's operations.

    The bytes that a step moves in addition to those of its matrix products count as one elementwise
    operation per product. Nothing is yielded if the layers of the model are unknown.

    Args:
        row: The measured configuration.
    """
    from analysis.atlas.points import get_text, model_from_row

    try:
        model = model_from_row(row)
        mode = get_text(row, "mode", "train")
        if model.is_communication or mode not in ("train", "inference"):
            return
        precision = get_text(row, "precision", "float32")
        if precision not in COMPUTE_BYTES:
            return
        batch = int(row["batch_size"])
        arguments: dict[str, Any] = {"batch_size": batch, "precision": precision}
        if model.is_kernel:
            operation = model.as_operation(**arguments)
            repeats = float(operation.product[-1])
            yield operation.flops / repeats, operation.bytes / repeats, repeats
            return
        products = model.product_list(**arguments, mode=mode)
        optimizer = get_text(row, "optimizer.name", "rmsprop")
        total = model.costs(**arguments, mode=mode, optimizer=optimizer).bytes_per_step
    except (ParadnnError, TypeError, ValueError, KeyError, AttributeError):
        return
    calls_of: defaultdict[tuple[float, float], float] = defaultdict(float)
    moved = 0.0
    for entry in products:
        operation = entry.operation
        repeats = float(operation.product[-1])
        work = (operation.flops / repeats, operation.bytes / repeats)
        calls_of[work] += entry.count * repeats
        moved += entry.count * operation.bytes
    for (flops, each_bytes), calls in calls_of.items():
        yield flops, each_bytes, calls
    count = sum(calls_of.values())
    rest = max(0.0, total - moved)
    if count and rest:
        yield 0.0, rest / count, count


def _recorded_operation(row: Mapping[Any, Any]) -> Iterator[tuple[float, float, float]]:
    """Yield the recorded FLOPs and bytes of a step as a single operation that is called once.

    Nothing is yielded if neither is recorded.
    """
    flops = _positive_number(row, "flops_per_step")
    moved = _positive_number(row, "bytes_per_step")
    intensity = _positive_number(row, "arithmetic_intensity")
    if not moved and flops and intensity:
        moved = flops / intensity
    if flops or moved:
        yield flops, moved, 1.0


def _recorded_name(row: Mapping[Any, Any] | pd.Series, column: str) -> str:
    """Return the device or precision of a row; a missing one becomes "... not recorded"."""
    value = row.get(column)
    return not_recorded(column) if value is None or pd.isna(value) else str(value)


def _positive_number(row: Mapping[Any, Any], name: str) -> float:
    """Return a number of a row; 0 if it is missing or not positive."""
    value = row.get(name)
    if value is None or pd.isna(value) or not value > 0:
        return 0.0
    return float(value)
