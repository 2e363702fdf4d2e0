"""`extrapolate`: predict the step time of measured models on another device from its kernels.

The method is that of CANDLE (Stevens, "Performance and benchmarking of deep learning"). The profile
of a step on one host states the share of matrix products in the time. The layers of the model give
the sizes of these products. Timings of single operations (kernels) on the other device predict
the time of each operation there. They are measured with paradnn.train -m experiment=kernels, or
come from the atlas of published timings. The sum of the predicted times is the step time.

With --examples, the analysis also derives the time of an epoch, the time of a run of --epochs
epochs, and the number of runs per day on --nodes nodes. If the same point was measured on the other
device, the error of the prediction is stated. The other device may be the host itself; this checks
the prediction against the measurement.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.format import format_number, format_seconds, format_with_interval
from analysis.lazy import np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, pooled_within, require_runs
from analysis.store.frame import aggregate_replicates, is_ok
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.families import FAMILIES
from paradnn.families.operations import Operation

#: Categories of a profile whose operations are products.
_PRODUCT_CATEGORIES = ("category_share.matmul", "category_share.convolution")
#: Columns, in addition to model.*, in which two runs of the same point agree.
_POINT_COLUMNS = ("family", "batch_size", "precision", "mode", "compile", "framework.name")
_SECONDS_PER_DAY = 86_400.0
#: Maximum number of points to predict: each takes about 50 ms.
_MAX_POINTS = 40
#: The largest products are named until they cover this share of the arithmetic, or until this
#: number is named.
_NAMED_SHARE = 0.95
_MAX_NAMED = 4
#: Maximum number of points that sentences describe; the table has all.
_MAX_DESCRIBED = 6


@dataclass(frozen=True, kw_only=True)
class ExtrapolateOptions(Options):
    """Options of the command `extrapolate`: the devices, and the sizes of an epoch and a run."""

    to: tuple[str, ...] = option(
        (),
        "a device with kernels in the store, or with published timings (paradnn ask --list shows "
        "these devices); repeatable",
        metavar="DEVICE",
        several="repeat",
    )
    examples: int | None = option(
        None, "number of examples in an epoch: adds the times of an epoch and of a run", low=1
    )
    epochs: int = option(1, "number of epochs in a run", low=1)
    nodes: int = option(1, "number of nodes that complete runs independently", low=1)


@analysis(
    ExtrapolateOptions,
    summary="measured models on another device, from its kernels: step, epoch, run and runs a day",
    example="python -m analysis extrapolate --to H200 --examples 50000 --epochs 90 --nodes 100",
    has_figure=False,
)
def extrapolate(frame: pd.DataFrame, options: ExtrapolateOptions) -> Result:
    """Predict the step times of measured points on other devices.

    A point is a combination of hyperparameter values. The host is the device on which it was
    measured.

    Args:
        frame: Runs, one per row.
        options: The other devices, and the numbers of examples, epochs and nodes.

    Returns:
        The result. Its table has a row for each measured point and each other device:

        - `family`, `point`, `host`, `device`.
        - `host_seconds`: the step time measured on the host.
        - `product_share`: the share of matrix products in the profile of the step; NaN without a
          profile.
        - `seconds`, `low`, `high`: the predicted step time on the device with its 95% interval.
        - `speedup`: host_seconds / seconds.
        - `measured_seconds`: the step time measured on the device, if any, with `error` (seconds /
          measured_seconds - 1) and `covered` (whether it is inside the interval).
        - `missing`: the reason if there is no prediction.
        - With --examples: `steps` of an epoch, `epoch_seconds`, `run_seconds` and `runs_per_day` of
          all nodes; the last two with `_low` and `_high`.

    Raises:
        ConfigError: If no device is given, or a device is unknown.
        InsufficientData: If no model with layers was measured.
        HeterogeneousError: If the runs of a device differ in their environment or timing protocol,
            and the option `pool` is not set.
    """
    from analysis.atlas.own import load_kernels

    require_runs(frame)
    if not options.to:
        raise ConfigError("--to", "(none)", "is missing", "name a device, such as --to H200")
    runs = _measured_models(frame)
    pooled = pooled_within(runs, ["device"], pool=options.pool)
    points = aggregate_replicates(runs)
    kernels = load_kernels(options.store or None)
    rows = []
    paragraphs: list[Paragraph] = []
    for point in points.head(_MAX_POINTS).to_dict("records"):
        point_rows = [_row(point, device, kernels, points, options) for device in options.to]
        rows += point_rows
        if len(paragraphs) == _MAX_DESCRIBED:
            continue
        lines = [line for row in point_rows for line in _describe_prediction(row, options)]
        paragraphs.append(Paragraph(_describe_host(point, point_rows[0]), tuple(lines)))
    table = pd.DataFrame(rows)
    return Result(
        numbers=table,
        answer=_answer(table),
        sentences=[*paragraphs, *_describe_errors(table), *_describe_limits(len(points), options)],
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _answer(table: pd.DataFrame) -> AnalysisAnswer:
    """State the predicted step time of a single point, or the range of speedups on each device.

    Args:
        table: The table of `extrapolate`.
    """
    points = table["point"].nunique()
    known = table[table["speedup"].notna()]
    if known.empty:
        sentence = f"No step of {counted(points, 'point')} can be predicted on another device."
        return AnalysisAnswer(sentence=sentence, points=points)
    if len(known) == 1:
        row = known.iloc[0]
        step = format_with_interval((row["seconds"], row["low"], row["high"]), format_seconds)
        text = (
            f"A step of {row['point']} would take {step} on {row['device']}, "
            f"{row['speedup']:.3g}x as fast as on {row['host']}"
        )
    else:
        parts = []
        for (host, device), rows in known.groupby(["host", "device"], sort=False):
            ends = [f"{end:.3g}" for end in (rows["speedup"].min(), rows["speedup"].max())]
            extent = " to ".join(dict.fromkeys(ends))
            parts.append(
                f"{device} would run {counted(len(rows), 'point')} of {host} {extent} times as fast"
            )
        text = "; ".join(parts)
    return AnalysisAnswer(
        sentence=f"{text} (predicted).", points=points, basis="the model of kernel times"
    )


def _measured_models(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that measured a step of a model with layers.

    Kernels and communication are excluded.

    Args:
        frame: Runs, one per row.

    Raises:
        InsufficientData: If there are no such runs.
    """
    names = [
        name
        for name, family in FAMILIES.items()
        if family.has_layers and not family.is_kernel and not family.is_communication
    ]
    is_measured = is_ok(frame) & frame["family"].isin(names)
    if "step_time_ms" in frame:
        is_measured &= frame["step_time_ms"].gt(0)
    if "mode" in frame:
        is_measured &= frame["mode"].isin(["train", "inference"]) | frame["mode"].isna()
    if "step_time_ms" not in frame or not is_measured.any():
        raise InsufficientData(
            "no step of a model with layers was measured; measure one: paradnn train model=fc"
        )
    return frame[is_measured]


def _row(
    point: Mapping[Any, Any],
    device: str,
    kernels: pd.DataFrame,
    points: pd.DataFrame,
    options: ExtrapolateOptions,
) -> dict[str, Any]:
    """Return the row of a point and another device in the table of `extrapolate`.

    Args:
        point: The measured point, as a mapping from columns to values.
        device: Name of the other device.
        kernels: Timings of operations in the store, of any device.
        points: All measured points, one per row.
        options: The options of the command.
    """
    from analysis.atlas.points import format_point, model_from_row

    seconds, low, high, missing = _predict(point, device, kernels)
    host_seconds = float(point["step_time_ms"]) / 1e3
    measured = _measured_seconds(point, points[points["device"] == device])
    covered = None
    if measured > 0 and seconds > 0:
        covered = low <= measured <= high
    row = {
        "family": point["family"],
        "point": format_point(point, model_from_row(point)),
        "host": point["device"],
        "device": device,
        "host_seconds": host_seconds,
        "product_share": _product_share(point),
        "seconds": seconds,
        "low": low,
        "high": high,
        "speedup": host_seconds / seconds,
        "measured_seconds": measured,
        "error": seconds / measured - 1,
        "covered": covered,
        "missing": missing,
    }
    if options.examples is not None:
        steps = math.ceil(options.examples / int(point["batch_size"]))
        row |= {"steps": steps, "epoch_seconds": steps * seconds}
        run = steps * options.epochs
        daily = options.nodes * _SECONDS_PER_DAY / run
        for end, step in (("", seconds), ("_low", low), ("_high", high)):
            row[f"run_seconds{end}"] = run * step
        for end, step in (("", seconds), ("_low", high), ("_high", low)):
            row[f"runs_per_day{end}"] = daily / step
    return row


def _predict(
    point: Mapping[Any, Any], device: str, kernels: pd.DataFrame
) -> tuple[float, float, float, str]:
    """Predict the step time of a point on a device.

    If the store has kernels (timed operations) of the device, they replace the published timings.

    Args:
        point: The measured point, as a mapping from columns to values.
        device: Name of the device.
        kernels: Timings of operations in the store, of any device.

    Returns:
        The step time in seconds, the low and high end of its 95% interval, and an empty text; three
        NaN and the reason if the time is unknown.
    """
    from analysis.atlas.estimate import estimate_step_time
    from analysis.atlas.own import own_atlas

    unknown = (math.nan, math.nan, math.nan)
    atlas = None
    if kernels["device"].eq(device).any():
        try:
            atlas = own_atlas(kernels, device, point)
        except InsufficientData as problem:
            return *unknown, str(problem)
    estimate = estimate_step_time(point, device, atlas=atlas, option="--to")
    if estimate.seconds is None or estimate.low is None or estimate.high is None:
        return *unknown, estimate.why
    return estimate.seconds, estimate.low, estimate.high, ""


def _product_share(point: Mapping[Any, Any]) -> float:
    """Return the share of matrix products in the profile of a step; NaN without a profile.

    Args:
        point: The measured point, as a mapping from columns to values.
    """
    shares = [float(point.get(name, math.nan)) for name in _PRODUCT_CATEGORIES]
    known = [share for share in shares if not math.isnan(share)]
    return sum(known) if known else math.nan


def _measured_seconds(point: Mapping[Any, Any], measured: pd.DataFrame) -> float:
    """Return the median step time in seconds of a point on another device; NaN if not measured.

    Args:
        point: The point that was measured on the host, as a mapping from columns to values.
        measured: The points that were measured on the other device, one per row.
    """
    keys = [name for name in map(str, measured) if name.startswith("model.")]
    keys += [name for name in _POINT_COLUMNS if name in measured]
    is_same = np.ones(len(measured), dtype=bool)
    for name in keys:
        value = point[name]
        if isinstance(value, list) or not pd.isna(value):
            is_same &= measured[name].astype("str").eq(str(value)).to_numpy()
        else:
            is_same &= measured[name].isna().to_numpy()
    return float(measured.loc[is_same, "step_time_ms"].median()) / 1e3


def _describe_host(point: Mapping[Any, Any], row: Mapping[str, Any]) -> str:
    """State the measured step time, the share of matrix products in it, and the largest products.

    Args:
        point: The measured point, as a mapping from columns to values.
        row: Row of the point in the table of `extrapolate`.
    """
    text = f"{row['point']}: {format_seconds(row['host_seconds'])} a step on {row['host']}"
    if not math.isnan(row["product_share"]):
        text += f", {row['product_share']:.0%} of it in products according to its profile"
    return f"{text}. {_describe_products(point)}"


def _describe_products(point: Mapping[Any, Any]) -> str:
    """Name the largest matrix products of a step, with their sizes and shares of the arithmetic.

    Args:
        point: The measured point, as a mapping from columns to values.
    """
    from analysis.atlas.points import get_text, model_from_row

    entries = model_from_row(point).product_list(
        batch_size=int(point["batch_size"]),
        precision=str(point["precision"]),
        mode=get_text(point, "mode", "train"),
    )
    flops: defaultdict[Operation, float] = defaultdict(float)
    for entry in entries:
        flops[entry.operation] += entry.count * entry.operation.flops
    total = sum(flops.values())
    named = []
    covered = 0.0
    largest = sorted(flops, key=lambda operation: -flops[operation])
    for operation in largest[:_MAX_NAMED]:
        if covered >= _NAMED_SHARE:
            break
        share = flops[operation] / total
        covered += share
        m, n, k, _ = operation.product
        named.append(f"{m} x {k} by {k} x {n} {share:.0%}")
    products = counted(len(flops), "product")
    return f"Largest of its {products}, by share of the arithmetic: {', '.join(named)}."


def _describe_prediction(row: Mapping[str, Any], options: ExtrapolateOptions) -> Iterator[str]:
    """Yield the predicted step, epoch and run of a point on a device, and the measured step.

    Args:
        row: Row of the point and device in the table of `extrapolate`.
        options: The options of the command.
    """
    if row["missing"]:
        yield f"{row['device']}: unknown; {row['missing']}."
        return
    text = f"{row['device']}: {_interval(row, '', format_seconds)} a step"
    if row["device"] != row["host"]:
        text += f", {format_number(row['speedup'], digits=3)} times as fast"
    if row["measured_seconds"] > 0:
        position = "inside" if row["covered"] else "outside"
        text += (
            f"; measured {format_seconds(row['measured_seconds'])}, {position} the interval "
            f"(error {row['error']:+.0%})"
        )
    yield f"{text}."
    if options.examples is None:
        return
    runs = _interval(row, "runs_per_day", lambda value: format_number(value, digits=3))
    yield (
        f"{row['device']}: an epoch of {counted(row['steps'], 'step')} takes "
        f"{_format_duration(row['epoch_seconds'])}, a run of {counted(options.epochs, 'epoch')} "
        f"{_interval(row, 'run_seconds', _format_duration)}; {counted(options.nodes, 'node')} "
        f"complete {runs} runs a day."
    )


def _format_duration(seconds: float) -> str:
    """Return a time as text: from two days on in days, from two hours on in hours."""
    for unit, size in (("d", _SECONDS_PER_DAY), ("h", 3600.0)):
        if seconds >= 2 * size:
            return format_number(seconds / size, unit, digits=3)
    return format_seconds(seconds)


def _interval(row: Mapping[str, Any], name: str, format_value: Any) -> str:
    """Return a quantity with its interval as text, such as "2.1 ms (1.8 ms to 2.4 ms)".

    Args:
        row: Row of a point and device in the table of `extrapolate`.
        name: Column of the quantity; empty for the step time.
        format_value: Function that formats a value.
    """
    if name:
        keys = (name, f"{name}_low", f"{name}_high")
    else:
        keys = ("seconds", "low", "high")
    value, low, high = (format_value(row[key]) for key in keys)
    return f"{value} ({low} to {high})"


def _describe_errors(table: pd.DataFrame) -> Iterator[str]:
    """Yield, per device, the errors of the predictions at the points that were measured there.

    Args:
        table: The table of `extrapolate`.
    """
    for device, rows in table.groupby("device", sort=False):
        known = rows[rows["error"].notna()]
        if known.empty:
            continue
        median = known["error"].abs().median()
        inside = int(known["covered"].astype(bool).sum())
        yield (
            f"{counted(len(known), 'point')} measured on {device}: median error {median:.0%}, "
            f"{inside} inside the 95% interval."
        )


def _describe_limits(count: int, options: ExtrapolateOptions) -> Iterator[str]:
    if _MAX_DESCRIBED < count <= _MAX_POINTS:
        yield f"{counted(count - _MAX_DESCRIBED, 'further point')}: see the table."
    if count > _MAX_POINTS:
        yield f"The table has {_MAX_POINTS} of {count} points; select other points with --where."
    if options.examples is not None:
        yield (
            "An epoch is a whole number of steps without evaluation, input or restarts, and each "
            "node works on a separate run."
        )
