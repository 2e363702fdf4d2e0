"""Rooflines: the ceilings of devices, the limits of models and operations, and their figure.

The ceilings are the peak FLOP/s and the memory bandwidth of a device.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from analysis.ceilings import BANDWIDTH, PEAK, has_low_ceilings, remeasure_command
from analysis.columns import OPERATION_SETTINGS
from analysis.format import format_number
from analysis.labels import not_recorded
from analysis.lazy import drawing, np, pd
from analysis.store.frame import families, is_ok
from paradnn.statistics.dependence import Unit, crossed_quantile, shared_levels

#: A function that returns the data sheet of a device, with `peak_flops` (FLOP/s by precision) and
#: `bandwidth` (B/s or None). It returns None if the device has no known data sheet.
Sheets = Callable[[str], Any]


class RoofVerdict(StrEnum):
    """What limits a model or an operation, as text in the tables of results.

    Only an operation can be "between devices". Its bytes cross the links between devices, and a
    roofline does not include the rate of links.
    """

    MEMORY = "memory-bound"
    TRANSFER = "between devices"
    RIDGE = "at the ridge"
    COMPUTE = "compute-bound"
    UNKNOWN = "unknown"


_NUMERIC_COLUMNS = (
    "arithmetic_intensity",
    "flops_per_second",
    "trace_arithmetic_intensity",
    "trace_flops_utilization",
    "trace_flops_utilization_lowest",
    "trace_captures",
    "published_intensity",
    "infeed_fraction",
    PEAK,
    BANDWIDTH,
    "step_time_ms",
    "step_time_low_ms",
    "step_time_high_ms",
)
_ROOF_COLUMNS = ["device", "precision", "family"]


@dataclass(frozen=True)
class Roof:
    """The roofline of a device at a precision: its peak FLOP/s and its memory bandwidth.

    Attributes:
        device: Name of the device.
        precision: Precision of the arithmetic, such as "float32".
        peak: Peak rate in FLOP/s; None if unknown.
        bandwidth: Memory bandwidth in B/s; None if unknown.
        peak_source: "measured", "specification" or "unknown".
        bandwidth_source: Source of the bandwidth, with the same values.
        ridge_low: Lowest ridge point of all measured pairs of peak and bandwidth, in FLOP/B; the
            ridge itself if there is a single pair, None if the peak or the bandwidth is unknown.
        ridge_high: Highest ridge point of all measured pairs, in FLOP/B; None as for `ridge_low`.
        peak_is_low: Whether the peak is only a lower bound, see `analysis.ceilings`.
        bandwidth_is_low: Whether the bandwidth is only a lower bound.
        remedy: Command that measures peak and bandwidth again, if one of them is a lower bound;
            else empty.
    """

    device: str
    precision: str
    peak: float | None
    bandwidth: float | None
    peak_source: str
    bandwidth_source: str
    ridge_low: float | None = None
    ridge_high: float | None = None
    peak_is_low: bool = False
    bandwidth_is_low: bool = False
    remedy: str = ""

    @property
    def ridge(self) -> float | None:
        """Ridge point: the arithmetic intensity in FLOP/B above which arithmetic is the limit.

        It is peak / bandwidth; None if one of them is unknown.
        """
        if self.peak is None or self.bandwidth is None:
            return None
        return self.peak / self.bandwidth

    @property
    def is_low(self) -> bool:
        """Whether the peak or the bandwidth is only a lower bound."""
        return self.peak_is_low or self.bandwidth_is_low

    @property
    def source(self) -> str:
        """The source of peak and bandwidth as text, with a note if one of them is too low."""
        peak = self.peak_source
        if self.peak_is_low:
            peak += ", too low"
        bandwidth = self.bandwidth_source
        if self.bandwidth_is_low:
            bandwidth += ", too low"
        if peak == bandwidth:
            return peak
        return f"peak: {peak}; bandwidth: {bandwidth}"

    def attainable(self, intensity: Any) -> np.ndarray:
        """Return the attainable rate in FLOP/s: min(peak, intensity x bandwidth).

        Args:
            intensity: Arithmetic intensities in FLOP/B, of any shape.

        Returns:
            Rates of the same shape; NaN if the peak or the bandwidth is unknown.
        """
        values = np.asarray(intensity, dtype="float64")
        if self.peak is None or self.bandwidth is None:
            return np.full(values.shape, np.nan)
        return np.minimum(self.peak, values * self.bandwidth)


class PlacedModels(NamedTuple):
    """Measured models compared with the rooflines of their devices.

    A roofline has the peak FLOP/s and the memory bandwidth of a device at a precision.

    Attributes:
        points: One row per run, with these columns:

            - `run_id`, `device`, `precision`, `family`;
            - further settings that vary (such as `compile`), the batch size, and the `model.*` that
              vary within a family;
            - `arithmetic_intensity` in FLOP/B;
            - `traffic`, the source of its bytes: "analytic" or "trace";
            - `flops_per_second` with its interval `rate_low` to `rate_high` (for a trace, the range
              of the run's captures);
            - `attainable`, the rate that the roofline allows, in FLOP/s;
            - `share` = rate / attainable with `share_low` and `share_high`;
            - `verdict`, a value of `RoofVerdict`;
            - `infeed_fraction`, the share of the step time spent waiting for input;
            - `ceilings`, the source of peak and bandwidth.

            Unknown numbers are NaN.
        roofs: One roofline for each device and precision.
        omitted: Number of runs that cannot be placed, by reason.
    """

    points: pd.DataFrame
    roofs: tuple[Roof, ...]
    omitted: Mapping[str, int]


def place_models(frame: pd.DataFrame, sheets: Sheets) -> PlacedModels:
    """Compare the measured runs of a frame with the rooflines of their devices.

    A run is placed at its `arithmetic_intensity` and `flops_per_second`. The intensity is exact
    work over compulsory traffic, an upper bound of the true intensity. A published run with a trace
    is placed by counted traffic and the rate of the trace (utilization x specified peak). Both come
    from the same execution. `published_intensity` is not based on counted traffic, so it is not
    used.

    Args:
        frame: One row per run.
        sheets: Function that returns the data sheet of a device, given its name; None if unknown.
    """
    rows = _with_keys(frame)
    measured = rows[is_ok(rows)].reset_index(drop=True)
    roofs = find_roofs(measured, sheets)
    points, reasons = _place_runs(measured, sheets)
    unmeasured = "without a measurement (for example, because they ran out of memory)"
    omitted = {unmeasured: len(rows) - len(measured)}
    for reason, count in reasons.value_counts(sort=False).items():
        omitted[str(reason)] = int(count)
    omitted = {reason: count for reason, count in omitted.items() if count}
    return PlacedModels(_with_shares(points, roofs), roofs, omitted)


def find_roofs(frame: pd.DataFrame, sheets: Sheets) -> tuple[Roof, ...]:
    """Find the peak FLOP/s and the memory bandwidth for every device and precision of a frame.

    Each of the two ceilings is the median over the runs that recorded a measured one. Ceilings that
    are too low (see `analysis.ceilings`) are used only if there are no others. In that case the
    highest of them is the ceiling, as a lower bound. If no run has a measured ceiling, that of the
    data sheet is used.

    Args:
        frame: One row per run.
        sheets: Function that returns the data sheet of a device, given its name; None if unknown.

    Returns:
        One roof per device and precision.
    """
    roofs = []
    for (device, precision), group in _with_keys(frame).groupby(["device", "precision"], sort=True):
        sheet = sheets(str(device))
        if sheet is None:
            specified = (None, None)
        else:
            specified = (sheet.peak_flops.get(precision), sheet.bandwidth)
        peak = _find_ceiling(group, PEAK, specified[0])
        bandwidth = _find_ceiling(group, BANDWIDTH, specified[1])
        roof = Roof(
            device=str(device),
            precision=str(precision),
            peak=peak.value,
            bandwidth=bandwidth.value,
            peak_source=peak.source,
            bandwidth_source=bandwidth.source,
            peak_is_low=peak.is_low,
            bandwidth_is_low=bandwidth.is_low,
        )
        if roof.ridge is not None:
            ridges = peak.used.fillna(peak.value) / bandwidth.used.fillna(bandwidth.value)
            roof = replace(roof, ridge_low=float(ridges.min()), ridge_high=float(ridges.max()))
        if roof.is_low:
            roof = replace(roof, remedy=remeasure_command(group[has_low_ceilings(group)]))
        roofs.append(roof)
    return tuple(roofs)


class _Ceiling(NamedTuple):
    """The peak FLOP/s or the memory bandwidth of a device, with its source.

    Attributes:
        value: The peak in FLOP/s or the bandwidth in B/s; None if unknown.
        source: "measured", "specification" or "unknown".
        is_low: Whether the value is only a lower bound.
        used: The measured values from which `value` is computed, by run; NaN for other runs.
    """

    value: float | None
    source: str
    is_low: bool
    used: pd.Series


def _find_ceiling(group: pd.DataFrame, column: str, specified: float | None) -> _Ceiling:
    measured = group[column].where(np.isfinite(group[column]) & (group[column] > 0))
    sound = measured.mask(has_low_ceilings(group, column))
    if sound.notna().any():
        return _Ceiling(float(sound.median()), "measured", is_low=False, used=sound)
    if measured.notna().any():
        highest = measured.where(measured == measured.max())
        return _Ceiling(float(measured.max()), "measured", is_low=True, used=highest)
    if specified:
        return _Ceiling(float(specified), "specification", is_low=False, used=measured)
    return _Ceiling(None, "unknown", is_low=False, used=measured)


def find_verdict(intensity: Any, roof: Roof) -> np.ndarray:
    """Return whether memory or arithmetic limits the rate at each arithmetic intensity.

    The verdict is "memory-bound" below the ridge point, else "compute-bound". If the measured peaks
    or bandwidths differ between runs, it is "at the ridge" between the lowest and the highest ridge
    point. It is "unknown" if the peak, the bandwidth or the intensity is unknown.

    Args:
        intensity: Arithmetic intensities in FLOP/B, of any shape.
        roof: The roofline of the device at the precision.

    Returns:
        Values of `RoofVerdict`, of the same shape.
    """
    values = np.asarray(intensity, dtype="float64")
    low = roof.ridge if roof.ridge_low is None else roof.ridge_low
    high = roof.ridge if roof.ridge_high is None else roof.ridge_high
    if low is None or high is None:
        return np.full(values.shape, RoofVerdict.UNKNOWN.value, dtype=object)
    # The first condition that holds decides.
    conditions = [values < low, values >= high, values >= low]
    verdicts = [RoofVerdict.MEMORY.value, RoofVerdict.COMPUTE.value, RoofVerdict.RIDGE.value]
    return np.select(conditions, verdicts, RoofVerdict.UNKNOWN.value).astype(object)


def summarize_families(points: pd.DataFrame, unit: Unit = "crossed") -> pd.DataFrame:
    """Summarize the rows of `PlacedModels.points` by model family and device.

    The rows are grouped by the columns that `group_columns` returns.

    Args:
        points: The rows.
        unit: Sampling unit of the intervals of medians: "crossed" (models and batch sizes), "model"
            (models, at fixed batch sizes) or "point" (single points).

    Returns:
        One row per group with these columns:

        - those of `group_columns`;
        - `points`: number of rows of the group, followed by their number for each verdict;
        - `share_q25`, `share_median`, `share_q75`: quartiles of the rate relative to the roofline;
        - `median_low`, `median_high`: the 95% interval of the median;
        - `sample`: the sample behind the interval, as text, such as "23 models";
        - `lowest_intensity`, `highest_intensity`: arithmetic intensities in FLOP/B.
    """
    verdicts = (RoofVerdict.MEMORY, RoofVerdict.COMPUTE, RoofVerdict.RIDGE, RoofVerdict.UNKNOWN)
    keys = group_columns(points)
    rows = []
    for place, group in points.groupby(keys, sort=False, dropna=False):
        known = group[group["share"].notna()]
        levels = shared_levels(known, unit)
        interval = crossed_quantile(known["share"], levels)
        row: dict[str, Any] = dict(zip(keys, place, strict=True))
        row["points"] = len(group)
        for verdict in verdicts:
            column = re.sub("[- ]", "_", verdict.value)
            row[column] = int((group["verdict"] == verdict).sum())
        row["share_q25"] = known["share"].quantile(0.25)
        row["share_median"] = known["share"].quantile(0.5)
        row["share_q75"] = known["share"].quantile(0.75)
        row["median_low"] = interval.low
        row["median_high"] = interval.high
        row["sample"] = levels.description
        row["lowest_intensity"] = group["arithmetic_intensity"].min()
        row["highest_intensity"] = group["arithmetic_intensity"].max()
        rows.append(row)
    return pd.DataFrame(rows)


def group_columns(points: pd.DataFrame) -> list[str]:
    """Return the columns by which the rows of `PlacedModels.points` are grouped.

    These are device, precision and family, and the settings that change the operations of a step
    and vary among the rows.

    Args:
        points: The rows.
    """
    varying = [
        name
        for name in OPERATION_SETTINGS
        if name in points and name not in _ROOF_COLUMNS and points[name].nunique(dropna=False) > 1
    ]
    return [*_ROOF_COLUMNS, *varying]


def _with_keys(frame: pd.DataFrame) -> pd.DataFrame:
    """Return runs with all columns that are needed to compare them with a roofline.

    Unknown numbers are NaN; an unknown device, precision or family is "... not recorded".
    """
    rows = frame.reindex(columns=list(dict.fromkeys([*frame, *_NUMERIC_COLUMNS, *_ROOF_COLUMNS])))
    places = {
        name: rows[name].astype("object").where(rows[name].notna(), not_recorded(name))
        for name in _ROOF_COLUMNS
    }
    return rows.astype(dict.fromkeys(_NUMERIC_COLUMNS, "float64")).assign(**places)


def _place_runs(rows: pd.DataFrame, sheets: Sheets) -> tuple[pd.DataFrame, pd.Series]:
    """Return rate and arithmetic intensity of the runs, without runs that lack one of them.

    Args:
        rows: One row per run, with the columns that `_with_keys` adds.
        sheets: Returns the data sheet of a device.

    Returns:
        The remaining runs, in the form of `PlacedModels.points`; and for each given run the reason
        why it was omitted, or None if it was not.
    """
    specified = _specified_peaks(rows, sheets)
    is_traced = (
        (rows["trace_arithmetic_intensity"] > 0)
        & (rows["trace_flops_utilization"] > 0)
        & ~np.isnan(specified)
    )
    intensity = rows["arithmetic_intensity"].where(~is_traced, rows["trace_arithmetic_intensity"])
    traced_rate = rows["trace_flops_utilization"] * specified
    rate = rows["flops_per_second"].where(~is_traced, traced_rate)
    # The interval of a rate is the inverted interval of the step time. A trace is the best of the
    # run's captures, so its rate is the upper end of their range.
    rate_low = rate * rows["step_time_ms"] / rows["step_time_high_ms"]
    rate_high = rate * rows["step_time_ms"] / rows["step_time_low_ms"]
    has_several_captures = rows["trace_captures"] > 1
    lowest_traced = rows["trace_flops_utilization_lowest"] * specified
    columns = ["run_id", *_ROOF_COLUMNS, *_descriptive_columns(rows)]
    points = rows[columns].assign(
        arithmetic_intensity=intensity,
        traffic=np.where(is_traced, "trace", "analytic"),
        flops_per_second=rate,
        rate_low=rate_low.where(~is_traced, lowest_traced.where(has_several_captures)),
        rate_high=rate_high.where(~is_traced, rate.where(has_several_captures)),
        infeed_fraction=rows["infeed_fraction"],
    )
    has_no_traffic = ~(intensity > 0)
    reasons = pd.Series(None, index=rows.index, dtype="object")
    reasons[~(rate > 0)] = "without a FLOP rate"
    reasons[has_no_traffic] = "without an arithmetic intensity"
    reasons[has_no_traffic & rows["published_intensity"].notna()] = (
        "published without counted traffic"
    )
    return points[reasons.isna()].reset_index(drop=True), reasons


def _specified_peaks(rows: pd.DataFrame, sheets: Sheets) -> np.ndarray:
    """Return the specified peak FLOP/s (n,) of each run's device at its precision, NaN if unknown.

    Args:
        rows: n runs, one row each.
        sheets: Returns the data sheet of a device.
    """
    peaks: dict[str, Mapping[str, float]] = {}
    for device in set(rows["device"]):
        sheet = sheets(device)
        peaks[device] = {} if sheet is None else sheet.peak_flops
    keys = zip(rows["device"], rows["precision"], strict=True)
    run_peaks = [peaks[device].get(precision) or math.nan for device, precision in keys]
    return np.array(run_peaks, dtype="float64")


def _descriptive_columns(rows: pd.DataFrame) -> list[str]:
    """Return the names of the columns that describe the models of runs.

    They are the settings that vary, the batch size, and the columns `model.*` that vary within a
    family.
    """
    settings = [name for name in group_columns(rows) if name not in _ROOF_COLUMNS]
    by_family = rows.groupby("family")
    sizes = [
        name
        for name in map(str, rows)
        if name.startswith("model.")
        and name != "model.name"
        and (by_family[name].nunique() > 1).any()
    ]
    batch_size = ["batch_size"] if "batch_size" in rows else []
    return [*settings, *batch_size, *sizes]


def _with_shares(points: pd.DataFrame, roofs: tuple[Roof, ...]) -> pd.DataFrame:
    """Add to each run the attainable rate, the share of it, the verdict and the source of the roof.

    Rows are sorted by device, precision and family, and then by share, highest first.

    Args:
        points: Runs with their rate and arithmetic intensity.
        roofs: A roof for each device and precision.
    """
    table = points.assign(attainable=np.nan, verdict=RoofVerdict.UNKNOWN.value)
    ceilings = pd.Series("unknown", index=table.index, dtype="object")
    for roof in roofs:
        is_under = (table["device"] == roof.device) & (table["precision"] == roof.precision)
        intensity = table.loc[is_under, "arithmetic_intensity"]
        table.loc[is_under, "attainable"] = roof.attainable(intensity)
        table.loc[is_under, "verdict"] = find_verdict(intensity, roof)
        ceilings[is_under] = roof.source
    table["share"] = table["flops_per_second"] / table["attainable"]
    table["share_low"] = table["rate_low"] / table["attainable"]
    table["share_high"] = table["rate_high"] / table["attainable"]
    table["ceilings"] = ceilings
    order = families(table)
    positions = {name: position for position, name in enumerate(order)}
    table["position"] = table["family"].map(positions).fillna(len(order))
    table = table.sort_values(
        ["device", "precision", "position", "share"],
        ascending=[True, True, True, False],
        kind="stable",
    )
    return table.drop(columns="position").reset_index(drop=True)


def draw_roofs(
    axes: drawing.Axes, points: pd.DataFrame, roof: Roof, others: Sequence[Roof] = ()
) -> None:
    """Draw a roofline on logarithmic scales whose ranges include the given points and the ridge.

    Args:
        axes: The panel.
        points: The points that the scales include, with arithmetic_intensity (FLOP/B) and
            flops_per_second.
        roof: The roofline, drawn in black.
        others: Rooflines of the same device at other precisions, drawn in gray.
    """
    intensity = points["arithmetic_intensity"]
    ridges = [each.ridge for each in (roof, *others) if each.ridge is not None]
    peaks = [each.peak for each in (roof, *others) if each.peak is not None]
    left = min([intensity.min(), *(ridge / 4 for ridge in ridges)]) / 1.5
    right = max([intensity.max(), *(ridge * 4 for ridge in ridges)]) * 1.5
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    other_look = {"color": "#bbbbbb", "linewidth": 1.0, "linestyle": "--", "zorder": 0.5}
    for each in others:
        _draw_ceilings(axes, each, (left, right), other_look)
    style = {"color": drawing.COLORS[-1], "linewidth": 1.6, "zorder": 3}
    _draw_ceilings(axes, roof, (left, right), style)
    if roof.ridge is not None and roof.peak is not None:
        color = drawing.COLORS[-1]
        axes.plot(roof.ridge, roof.peak, marker="|", markersize=12, color=color, zorder=3)
    lowest = float(points["flops_per_second"].min())
    highest = max([points["flops_per_second"].max(), *peaks])
    axes.set_ylim(lowest / 2, highest * 2)
    drawing.log_ticks(axes.xaxis, "{:g}".format)
    drawing.log_ticks(axes.yaxis, lambda value: format_number(value, "FLOP/s"))


def _draw_ceilings(
    axes: drawing.Axes, roof: Roof, limits: tuple[float, float], style: dict[str, Any]
) -> None:
    """Draw a roofline; if only its peak or its bandwidth is known, draw that as a dotted line.

    Args:
        axes: The panel.
        roof: The roofline.
        limits: Lowest and highest arithmetic intensity of the panel, in FLOP/B.
        style: Arguments of `Axes.plot`.
    """
    left, right = limits
    intensity = np.array([left, roof.ridge or left, right])
    rate = np.minimum(roof.peak or np.inf, intensity * (roof.bandwidth or np.inf))
    if roof.ridge is None:
        style = style | {"linestyle": ":"}
    if np.isfinite(rate).all():
        axes.plot(intensity, rate, **style)


def format_roof(roof: Roof) -> str:
    """Format peak and bandwidth: "180 TFLOP/s, 2.4 TB/s, ridge 75 FLOP/B (specification)"."""
    if roof.peak is None and roof.bandwidth is None:
        return "no ceiling known"
    parts = []
    if roof.peak is None:
        parts.append("peak unknown")
    else:
        parts.append(format_number(roof.peak, "FLOP/s", digits=3))
    if roof.bandwidth is None:
        parts.append("bandwidth unknown")
    else:
        parts.append(format_number(roof.bandwidth, "B/s", digits=3))
    if roof.ridge is not None:
        parts.append(f"ridge {roof.ridge:.3g} FLOP/B")
    if roof.ridge_low != roof.ridge_high:
        parts.append(f"{roof.ridge_low:.3g} to {roof.ridge_high:.3g} over its runs")
    return f"{', '.join(parts)} ({roof.source})"


def roof_sentences(roof: Roof) -> str:
    """Return the peak, the bandwidth and their sources as text.

    If one of them is unknown or too low, the text ends with a command that measures both.
    """
    text = f"{roof.device} in {roof.precision}: {format_roof(roof)}"
    if roof.ridge is None:
        return f"{text}. Measure the ceilings: python -m paradnn.ceilings"
    if not roof.is_low:
        return f"{text}."
    return (
        f"{text}. These ceilings are lower bounds: other work ran while they were measured, or a "
        "run exceeded them. Shares of the roof are too high, and verdicts may be wrong. Measure "
        f"the ceilings again on a quiet machine: {roof.remedy}"
    )
