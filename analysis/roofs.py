"""Roofs and what lies below them: ceilings, the ridge, what limits a model or an operation, and
their picture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from analysis.format import short
from analysis.labels import not_recorded
from analysis.lazy import drawing, np, pd
from analysis.store.frame import families, is_ok
from paradnn.statistics.dependence import Unit, crossed_quantile, levels_of

#: Finds a device's data sheet: `peak_flops` (precision -> FLOP/s) and `bandwidth` (B/s or None);
#: None without one.
Sheets = Callable[[str], Any]


class RoofVerdict(StrEnum):
    """What limits a model or an operation; tables hold the values. Only an operation is "between
    devices": its bytes cross the links, which are no ceiling of this roof.
    """

    MEMORY = "memory-bound"
    TRANSFER = "between devices"
    RIDGE = "at the ridge"
    COMPUTE = "compute-bound"
    UNKNOWN = "unknown"


_NUMBERS = (
    *(
        "arithmetic_intensity",
        "flops_per_second",
        "trace_arithmetic_intensity",
        "trace_flops_utilization",
    ),
    *("trace_flops_utilization_lowest", "trace_captures", "published_intensity", "infeed_fraction"),
    *(
        "peak_flops_per_second",
        "peak_bytes_per_second",
        "step_time_ms",
        "step_time_low_ms",
        "step_time_high_ms",
    ),
)
_PLACE = ["device", "precision", "family"]


@dataclass(frozen=True)
class Roof:
    """The ceilings of a device at a precision; None is unknown.

    `peak` in FLOP/s and `bandwidth` in B/s, each with its source: measured, specification or
    unknown. `ridge_low` and `ridge_high` enclose the ridge points of all measured pairs of ceilings
    (both the ridge where there is one pair).
    """

    device: str
    precision: str
    peak: float | None
    bandwidth: float | None
    peak_source: str
    bandwidth_source: str
    ridge_low: float | None = None
    ridge_high: float | None = None

    @property
    def ridge(self) -> float | None:
        """The intensity in FLOP/B above which arithmetic limits: peak / bandwidth (Williams et al.
        2009).
        """
        if self.peak is None or self.bandwidth is None:
            return None
        return self.peak / self.bandwidth

    @property
    def source(self) -> str:
        """Where the ceilings come from, in words."""
        if self.peak_source == self.bandwidth_source:
            return self.peak_source
        return f"peak: {self.peak_source}, bandwidth: {self.bandwidth_source}"

    def attainable(self, intensity: Any) -> np.ndarray:
        """The roof in FLOP/s at an intensity in FLOP/B: min(peak, intensity x bandwidth), NaN where
        it is unknown.

        Source: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52(4), 2009.
        """
        values = np.asarray(intensity, dtype="float64")
        if self.peak is None or self.bandwidth is None:
            return np.full(values.shape, np.nan)
        return np.minimum(self.peak, values * self.bandwidth)


class Placed(NamedTuple):
    """Models under roofs.

    `points` has one row a run: run_id, device, precision, family, the batch size and those of
    model.* in which some family varies, arithmetic_intensity (FLOP/B), traffic ("analytic" or
    "trace"), flops_per_second with its interval `rate_low`..`rate_high` (of a trace the range of
    the run's captures), attainable (FLOP/s), share (rate / attainable) with
    `share_low`..`share_high`, verdict and infeed_fraction. Unknown numbers are NaN. `left_out`
    counts runs without a place by the reason.
    """

    points: pd.DataFrame
    roofs: tuple[Roof, ...]
    left_out: Mapping[str, int]


def place_models(frame: pd.DataFrame, sheets: Sheets) -> Placed:
    """Place the measured runs of a frame (one row a run) under the roofs of their devices.

    A run's place is `arithmetic_intensity` and `flops_per_second`: exact work over compulsory
    traffic, so the true intensity is at most this. A published run that was traced is placed by its
    trace instead, counted traffic and the trace's own rate (fraction x specified peak), since both
    come from the same execution. `published_intensity` is no traffic and places nothing.
    """
    rows = _with_keys(frame)
    measured = rows[is_ok(rows)].reset_index(drop=True)
    roofs = find_roofs(measured, sheets)
    points, reasons = _place(measured, sheets)
    left_out = {"not measured, such as out of memory": len(rows) - len(measured)}
    left_out |= {
        str(reason): int(count) for reason, count in reasons.value_counts(sort=False).items()
    }
    return Placed(
        _under(points, roofs), roofs, {reason: count for reason, count in left_out.items() if count}
    )


def find_roofs(frame: pd.DataFrame, sheets: Sheets) -> tuple[Roof, ...]:
    """A roof for each device and precision in a frame: medians over its runs of the measured
    ceilings (`peak_flops_per_second`, `peak_bytes_per_second`), else the data sheet's.
    """
    roofs = []
    for (device, precision), group in _with_keys(frame).groupby(["device", "precision"], sort=True):
        sheet = sheets(str(device))
        ceilings = group[["peak_flops_per_second", "peak_bytes_per_second"]]
        ceilings = ceilings.where(np.isfinite(ceilings) & (ceilings > 0))
        if sheet is not None:
            specified = (sheet.peak_flops.get(precision), sheet.bandwidth)
        else:
            specified = (None, None)
        values: list[float | None] = []
        sources = []
        for (_, column), given in zip(ceilings.items(), specified, strict=True):
            measured = column.notna().any()
            values.append(float(column.median()) if measured else given and float(given))
            sources.append("measured" if measured else "specification" if given else "unknown")
        roof = Roof(str(device), str(precision), values[0], values[1], sources[0], sources[1])
        if roof.ridge is not None:
            ridges = ceilings.iloc[:, 0].fillna(values[0]) / ceilings.iloc[:, 1].fillna(values[1])
            roof = replace(roof, ridge_low=float(ridges.min()), ridge_high=float(ridges.max()))
        roofs.append(roof)
    return tuple(roofs)


def verdict(intensity: Any, roof: Roof) -> np.ndarray:
    """What limits at each intensity: memory-bound left of the ridge, else compute-bound.

    Where measured ceilings differ from run to run, "at the ridge" between the lowest and the
    highest ridge point; and "unknown" without both ceilings or without an intensity.
    """
    values = np.asarray(intensity, dtype="float64")
    low, high = (roof.ridge if edge is None else edge for edge in (roof.ridge_low, roof.ridge_high))
    if low is None or high is None:
        return np.full(values.shape, RoofVerdict.UNKNOWN.value, dtype=object)
    where = [values < low, values >= high, values >= low]
    names = [name.value for name in (RoofVerdict.MEMORY, RoofVerdict.COMPUTE, RoofVerdict.RIDGE)]
    return np.select(where, names, RoofVerdict.UNKNOWN.value).astype(object)


def summary(points: pd.DataFrame, unit: Unit = "crossed") -> pd.DataFrame:
    """One row for each device, precision and family: points, how many under each verdict, quartiles
    of their share of the roof with the 95% interval of the median over their models and batch sizes
    (`sample`), the range of their intensities (FLOP/B).
    """
    rows = []
    for place, group in points.groupby(["device", "precision", "family"], sort=False):
        known = group[group["share"].notna()]
        levels = levels_of(known, unit)
        quarter, middle, three = known["share"].quantile([0.25, 0.5, 0.75])
        interval = crossed_quantile(known["share"], levels)
        verdicts = (RoofVerdict.MEMORY, RoofVerdict.COMPUTE, RoofVerdict.RIDGE, RoofVerdict.UNKNOWN)
        counts = {
            re.sub("[- ]", "_", name.value): int((group["verdict"] == name).sum())
            for name in verdicts
        }
        rows.append(
            {**dict(zip(_PLACE, place, strict=True)), "points": len(group), **counts}
            | {"share_q25": quarter, "share_median": middle, "share_q75": three}
            | {"median_low": interval.low, "median_high": interval.high, "sample": levels.words}
            | {"lowest_intensity": group["arithmetic_intensity"].min()}
            | {"highest_intensity": group["arithmetic_intensity"].max()}
        )
    return pd.DataFrame(rows)


def _with_keys(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the columns that place a run, NaN or "device not recorded" where it lacks
    them.
    """
    rows = frame.reindex(columns=list(dict.fromkeys([*frame, *_NUMBERS, *_PLACE])))
    places = {
        name: rows[name].astype("object").where(rows[name].notna(), not_recorded(name))
        for name in _PLACE
    }
    return rows.astype(dict.fromkeys(_NUMBERS, "float64")).assign(**places)


def _place(rows: pd.DataFrame, specification: Sheets) -> tuple[pd.DataFrame, pd.Series]:
    """The runs that have a place, with it; and for every row the reason why it has none, or None."""
    sheets = {device: sheet for device in set(rows["device"]) if (sheet := specification(device))}
    peaks = {device: sheet.peak_flops for device, sheet in sheets.items()}
    keys = zip(rows["device"], rows["precision"], strict=True)
    specified = np.array(
        [peaks.get(device, {}).get(kind) or np.nan for device, kind in keys], dtype="float64"
    )
    traced = (
        (rows["trace_arithmetic_intensity"] > 0)
        & (rows["trace_flops_utilization"] > 0)
        & ~np.isnan(specified)
    )
    intensity = rows["arithmetic_intensity"].where(~traced, rows["trace_arithmetic_intensity"])
    rate = rows["flops_per_second"].where(~traced, rows["trace_flops_utilization"] * specified)
    # The rate's interval is the step time's, turned over; a trace is the best of its run's
    # captures.
    slow, fast = (rows[f"step_time_{end}_ms"] for end in ("high", "low"))
    several = rows["trace_captures"] > 1
    lowest = (rows["trace_flops_utilization_lowest"] * specified).where(several)
    models = [str(name) for name in rows if str(name).startswith("model.") and name != "model.name"]
    varies = [name for name in models if (rows.groupby("family")[name].nunique() > 1).any()]
    points = rows[
        ["run_id", *_PLACE, *(name for name in ("batch_size", *varies) if name in rows)]
    ].assign(
        arithmetic_intensity=intensity,
        traffic=np.where(traced, "trace", "analytic"),
        flops_per_second=rate,
        rate_low=(rate * rows["step_time_ms"] / slow).where(~traced, lowest),
        rate_high=(rate * rows["step_time_ms"] / fast).where(~traced, rate.where(several)),
        infeed_fraction=rows["infeed_fraction"],
    )
    no_traffic = ~(intensity > 0)
    no_rate = ~(rate > 0)
    printed = no_traffic & rows["published_intensity"].notna()
    reasons = pd.Series(None, index=rows.index, dtype="object")
    reasons[no_rate] = "without a FLOP rate"
    reasons[no_traffic] = "without an arithmetic intensity"
    reasons[printed] = "published without counted traffic"
    return points[reasons.isna()].reset_index(drop=True), reasons


def _under(points: pd.DataFrame, roofs: tuple[Roof, ...]) -> pd.DataFrame:
    """The points with attainable rate, share and verdict, sorted by device, precision, family, best
    share first.
    """
    table = points.assign(attainable=np.nan, verdict=RoofVerdict.UNKNOWN.value)
    for roof in roofs:
        here = (table["device"] == roof.device) & (table["precision"] == roof.precision)
        intensity = table.loc[here, "arithmetic_intensity"]
        table.loc[here, "attainable"] = roof.attainable(intensity)
        table.loc[here, "verdict"] = verdict(intensity, roof)
    for name, rate in (
        ("share", "flops_per_second"),
        ("share_low", "rate_low"),
        ("share_high", "rate_high"),
    ):
        table[name] = table[rate] / table["attainable"]
    place = {name: position for position, name in enumerate(families(table))}
    order = ["device", "precision", "place", "share"]
    keys = table["family"].map(place).fillna(len(place))
    table = table.assign(place=keys).sort_values(
        order, ascending=[True, True, True, False], kind="stable"
    )
    return table.drop(columns="place").reset_index(drop=True)


def frame_roof(
    axes: drawing.Axes, points: pd.DataFrame, roof: Roof, others: Sequence[Roof] = ()
) -> None:
    """Logarithmic scales around the points and the ridge, and the roofs."""
    ridges = [one.ridge for one in (roof, *others) if one.ridge is not None]
    peaks = [one.peak for one in (roof, *others) if one.peak is not None]
    left = min([points["arithmetic_intensity"].min(), *(ridge / 4 for ridge in ridges)]) / 1.5
    right = max([points["arithmetic_intensity"].max(), *(ridge * 4 for ridge in ridges)]) * 1.5
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    for one in others:
        _draw_roof(
            axes,
            one,
            left,
            right,
            {"color": "#bbbbbb", "linewidth": 1.0, "linestyle": "--", "zorder": 0.5},
        )
    _draw_roof(
        axes, roof, left, right, {"color": drawing.COLOURS[-1], "linewidth": 1.6, "zorder": 3}
    )
    if roof.ridge is not None and roof.peak is not None:
        axes.plot(
            roof.ridge, roof.peak, marker="|", markersize=12, color=drawing.COLOURS[-1], zorder=3
        )
    axes.set_ylim(
        float(points["flops_per_second"].min()) / 2,
        max([points["flops_per_second"].max(), *peaks]) * 2,
    )
    drawing.log_ticks(axes.xaxis, "{:g}".format)
    drawing.log_ticks(axes.yaxis, lambda value: short(value, "FLOP/s"))


def _draw_roof(
    axes: drawing.Axes, roof: Roof, left: float, right: float, look: dict[str, Any]
) -> None:
    """The two ceilings; one alone, dotted, where the other is unknown."""
    intensity = np.array([left, roof.ridge or left, right])
    rate = np.minimum(roof.peak or np.inf, intensity * (roof.bandwidth or np.inf))
    if np.isfinite(rate).all():
        axes.plot(intensity, rate, **(look if roof.ridge else look | {"linestyle": ":"}))


def describe(roof: Roof) -> str:
    """Such as "180 TFLOP/s, 2.4 TB/s, ridge 75 FLOP/B (specification)"."""
    if roof.peak is None and roof.bandwidth is None:
        return "no ceiling known"
    if roof.peak is None:
        peak = "peak unknown"
    else:
        peak = short(roof.peak, "FLOP/s", digits=3)
    if roof.bandwidth is None:
        bandwidth = "bandwidth unknown"
    else:
        bandwidth = short(roof.bandwidth, "B/s", digits=3)
    if roof.ridge is None:
        ridge = ""
    else:
        ridge = f", ridge {roof.ridge:.3g} FLOP/B"
    if roof.ridge_low != roof.ridge_high:
        ridge += f", {roof.ridge_low:.3g} to {roof.ridge_high:.3g} over its runs"
    return f"{peak}, {bandwidth}{ridge} ({roof.source})"


def roof_in_words(roof: Roof) -> str:
    """The ceilings with their sources and the ridge point, and what to do where one is not known."""
    if roof.ridge is None:
        remedy = "; measure the ceilings with python -m paradnn.ceilings"
    else:
        remedy = ""
    return f"{roof.device} in {roof.precision}: {describe(roof)}{remedy}."


def percent(value: float) -> str:
    """A share to three digits, "unknown" where it is NaN."""
    if math.isnan(value):
        return "unknown"
    return short(value, share=True, digits=3)
