"""`scaling`: how speed grows with devices, and the fraction that does not run in parallel (Amdahl's law).

The paper's Figure 4 sets the utilisation on eight cores against that on one and reads off a largest non-parallel
fraction. Here every point on n devices is paired with the same point on one, and the fraction is fitted for each
family with an interval. The batch is that of the whole step, so this is strong scaling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from analysis.format import percent_interval, short
from analysis.labels import label, unit_of
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options, option
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, joined
from analysis.statistics.dependence import Levels, crossed_quantile, crossed_variance, levels_of
from analysis.statistics.pairing import RESULT_COLUMNS, pair, sampling
from analysis.statistics.quantiles import bootstrap_ratio
from analysis.store.frame import families, is_ok, require_homogeneous
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.families import message_families
from paradnn.forecast.estimate import LEVEL, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

#: Rates, of which n devices have n times as much where nothing is lost.
METRICS = ("examples_per_second", "flops_per_second")
#: Columns that count devices, which older runs lack.
_COUNTS = ("devices", "platform.threads")
#: Columns of a pair that are shown even where all pairs agree, in this order, and those that never are.
_RATIO = ("speedup", "speedup_low", "speedup_high", "efficiency", "fraction", "interval_source")
_SHOWN = ["devices", "one", "many", *_RATIO]
_HIDDEN = {"family", *RESULT_COLUMNS, *_SHOWN}
_LINE = "#555555"


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Which rate, over which count of devices."""

    command = "scaling"

    metric: Literal["examples_per_second", "flops_per_second"] = option(
        "examples_per_second", "a rate (default: examples_per_second)"
    )
    by: str = option(
        "devices",
        "what counts the devices (default: devices), such as platform.threads",
        metavar="COLUMN",
        names="columns",
    )


class FamilyScaling(NamedTuple):
    """The non-parallel fraction of one family's points.

    `fraction` is the fit over all points and counts, `median` and `upper` (the 90th percentile) are over the fractions
    fitted to each point by itself, `largest` is the greatest of these. `efficiency` is the median of speedup / n at the
    largest n.
    """

    family: str
    points: int
    measurements: int
    counts: tuple[int, ...]
    fraction: Estimate
    median: Estimate
    upper: Estimate
    largest: float
    efficiency: Estimate


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScalingResult(Result):
    """Every point on several devices against itself on one, and the non-parallel fraction of each family.

    `pairs` has a row for each point and count above one: the join columns, `devices` (the count), `one` and `many`
    (the metric on one and on all devices), `speedup` with its interval, `efficiency` (speedup / count) and `fraction`.
    `alone` are the families without a pair; `apart`: families -> why their counts cannot be separated from sessions or
    a drift.
    """

    metric: str
    by: str
    pairs: pd.DataFrame
    families: tuple[FamilyScaling, ...]
    alone: tuple[str, ...]
    apart: dict[str, str]

    @property
    def table(self) -> pd.DataFrame:
        """The pairs, without columns that are the same in all of them."""
        pairs = self.pairs
        others = [name for name in pairs if name not in _HIDDEN and pairs[name].nunique(dropna=False) > 1]
        return pairs[["family", *others, *_SHOWN]]

    def _paragraphs(self) -> Iterator[Paragraph | str]:
        what = self.by.rpartition(".")[2]
        for family in self.families:
            counts, most, fraction = ", ".join(map(str, family.counts)), family.counts[-1], family.fraction.value
            bound = f", so no number of {what} makes it more than {1 / fraction:.3g}x as fast" if fraction > 0 else ""
            bound = bound or ": nothing is lost"
            yield Paragraph(
                f"{family.family}: over {family.points} points on {counts} against 1 ({what}), "
                f"{percent_interval(family.fraction)} of the step does not run in parallel"
                f"{bound if fraction < 1 else f': more {what} make it slower'}.",
                (
                    f"Point by point: median {percent_interval(family.median)}, 90th percentile "
                    f"{percent_interval(family.upper)}, at most {100 * family.largest:.3g}%.",
                    f"On {most}: a median of {percent_interval(family.efficiency)} of the speed of {most} without "
                    "loss.",
                ),
            )
        if self.alone:
            yield f"Not compared: {', '.join(self.alone)}, of which no point was measured on 1 and on more."
        yield (
            "The fraction is that of Amdahl's law, speedup = 1 / (s + (1 - s) / n), fitted over points; intervals "
            "are 95%, over models and batch sizes as a sample of their design space."
        )
        for reason in dict.fromkeys(self.apart.values()):
            those = ", ".join(name for name, one in self.apart.items() if one == reason)
            yield f"No interval of {those} holds what time does to them: {reason}."

    def _figure(self) -> Figure:
        """Left the rate of each device against that of one alone, with x = y where nothing is lost; then the speedup
        over the count, with each family's fitted law, its interval as a band, and the line without loss."""
        drawn, (left, right) = drawing.panels(2, 5.5, 4.4, across=3)
        _rates(left, self)
        _speedups(right, self)
        drawing.legend(drawn)
        return drawn


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    """Over threads where these were varied and devices were not."""
    devices, threads = (name in rows and rows[name].nunique() > 1 for name in ("devices", "platform.threads"))
    yield Shown(ScalingOptions(by="platform.threads") if threads and not devices else None)


@analysis(
    ScalingOptions,
    summary="speed over device counts, with Amdahl's non-parallel fraction",
    description="Pair each point measured on several devices with the same point on one, and fit Amdahl's law:\n"
    "the fraction of the step that does not run in parallel, for each family, with its interval.",
    example="python -m analysis scaling --family fc --figure scaling.png",
    section="system",
    order=90,
    title="Scaling over devices",
    reading=("Speed against the same point on one device, with Amdahl's fraction."),
    shown=_shown,
)
def scaling(frame: pd.DataFrame, options: ScalingOptions) -> Result:
    """Every point on several devices against itself on one, and Amdahl's fraction of each family.

    NotEnoughData where no point was measured on one device and on more, SchemaError for heterogeneous runs of a family.
    """
    return fit_scaling(frame, options.metric, options.by, options.pool)


def amdahl_speedup(fraction: float, count: ArrayLike) -> np.ndarray:
    """1 / (s + (1 - s) / n) for n devices, s the non-parallel fraction (Amdahl, AFIPS 30, 1967)."""
    n = np.asarray(count, dtype="float64")
    return np.asarray(1 / (fraction + (1 - fraction) / n), dtype="float64")


def amdahl_fraction(speedup: ArrayLike, count: ArrayLike) -> np.ndarray:
    """s = (1 / speedup - 1 / n) / (1 - 1 / n), Amdahl's law solved for the fraction (Karp and Flatt, CACM 33, 1990).

    Below 0 where the speedup is above n, above 1 where n devices are slower than one. n must be above 1.
    """
    n = np.asarray(count, dtype="float64")
    return np.asarray((1 / np.asarray(speedup, dtype="float64") - 1 / n) / (1 - 1 / n), dtype="float64")


def fit_scaling(
    frame: pd.DataFrame, metric: str = "examples_per_second", by: str = "devices", pool: bool = False
) -> ScalingResult:
    """Pair each point on n > 1 devices with itself on one, and fit the fraction of each family.

    Amdahl's law says 1 / speedup - 1 / n = s (1 - 1 / n), a line through the origin: s is fitted by least squares over
    all points and counts of a family. Its 95% interval is over models and batch sizes, which points share
    (`dependence`), of points that share nothing a bootstrap-t (`bootstrap_ratio`); all counts of a point count
    together, so it also allows for points that scale differently.

    Raises ConfigError for another metric, NotEnoughData where no point was measured on one device and on more,
    SchemaError for heterogeneous runs of a family.
    """
    if metric not in METRICS:
        raise ConfigError("--metric", metric, "is no rate that grows with devices", f"choose {' or '.join(METRICS)}")
    measured = _counted(frame, by)
    checked = [require_homogeneous(rows, pool=pool) for _, rows in measured.groupby("family", dropna=False)]
    found, apart = _paired(measured, metric, by)
    alone = tuple(name for name in families(measured) if name not in set(found["family"]))
    found = found.rename(columns={"a": "many", "b": "one"})
    found["efficiency"] = found["speedup"] / found["devices"]
    found["fraction"] = amdahl_fraction(found["speedup"], found["devices"])
    return ScalingResult(
        metric=metric,
        by=by,
        pairs=found,
        families=tuple(_family(name, found[found["family"] == name]) for name in families(found)),
        alone=alone,
        apart=apart,
        pooled=joined(rows.attrs.get("pooled", "") for rows in checked),
        sources=tuple(measured["run_id"]),
    )


def _counted(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """The measured runs that say how many devices they had."""
    measured = frame[is_ok(frame) & ~frame["family"].isin(message_families())]
    if by not in measured and by not in _COUNTS:
        raise ConfigError("--by", by, "these runs have no such column", f"name one that counts: {', '.join(_COUNTS)}")
    if by not in measured or measured[by].notna().sum() == 0:
        raise NotEnoughData(f"{by}: no measured run records how many; measure points with {by}=1 and more")
    if not pd.api.types.is_numeric_dtype(measured[by]):
        raise ConfigError("--by", by, "holds no numbers", "name the column that counts devices")
    return measured[measured[by].notna()]


def _paired(measured: pd.DataFrame, metric: str, by: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """Each point on more devices beside itself on one, as `pairing.pair` has them; column `devices` counts. Then which
    families' sides cannot be separated from their sessions, and why."""
    counts = sorted({int(count) for count in measured[by]})
    one = measured[measured[by] == 1].drop(columns=by)
    if one.empty or counts == [1]:
        there = ", ".join(map(str, counts))
        raise NotEnoughData(f"{by} = {there}: scaling needs points on 1 and on more; measure the same points on both")
    parts: list[pd.DataFrame] = []
    apart: dict[str, str] = {}
    for _, many in measured[(measured[by] > 1) & (measured[by] % 1 == 0)].groupby(by, sort=True):
        part = pair(many.drop(columns=by), one, metric).assign(devices=int(many[by].iloc[0]))
        parts.append(part)
        for name in families(part):
            design = sampling(part, name).design
            if not design.comparable:
                apart.setdefault(name, design.text())
    found = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if found.empty:
        raise NotEnoughData(f"no point was measured with {by}=1 and with more; measure the same points on both")
    return found, apart


def _family(name: str, pairs: pd.DataFrame) -> FamilyScaling:
    keys = [column for column in pairs if column not in RESULT_COLUMNS and column not in _SHOWN]
    point = pairs.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    count = pairs["devices"].to_numpy(dtype="float64")
    room = 1 - 1 / count
    lost = 1 / pairs["speedup"].to_numpy(dtype="float64") - 1 / count
    above, below = np.bincount(point, lost * room), np.bincount(point, room * room)
    each = above / below
    levels = levels_of(pairs.iloc[np.unique(point, return_index=True)[1]])
    most = pairs[pairs["devices"] == pairs["devices"].max()]
    return FamilyScaling(
        family=name,
        points=len(each),
        measurements=len(pairs),
        counts=tuple(sorted({int(n) for n in pairs["devices"]})),
        fraction=_fraction(above, below, levels),
        median=crossed_quantile(each, levels),
        upper=crossed_quantile(each, levels, 0.9),
        largest=float(each.max()),
        efficiency=crossed_quantile(most["efficiency"], levels_of(most)),
    )


def _fraction(above: np.ndarray, below: np.ndarray, levels: Levels) -> Estimate:
    """sum(above) / sum(below) over points, with an interval that knows which models and batch sizes they share."""
    if levels.independent:
        return bootstrap_ratio(above, below, LEVEL)
    ratio = float(above.sum() / below.sum())
    variance, freedom = crossed_variance((above - ratio * below) / below.mean(), levels)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(variance))
    return Estimate(ratio, ratio - reach, ratio + reach)


def _rates(axes: Axes, found: ScalingResult) -> None:
    pairs = found.pairs
    each = pairs["many"] / pairs["devices"]
    for family in found.families:
        own, (middle, *ends) = pairs["family"] == family.family, (f"{100 * end:.1f}%" for end in family.fraction)
        said = f"{middle} ({' to '.join(ends)})" if math.isfinite(family.fraction.low) else middle
        how = drawing.look(family.family) | {"alpha": 0.6, "label": f"{family.family}: non-parallel {said}"}
        drawing.marks(axes, pairs["one"][own], each[own], **how)
    ends = [min(pairs["one"].min(), each.min()), max(pairs["one"].max(), each.max())]
    axes.plot(ends, ends, "--", color=_LINE, linewidth=1, label="nothing lost")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        drawing.log_ticks(axis, short)
    name, unit, by = label(found.metric), unit_of(found.metric), found.by.rpartition(".")[2]
    sides = f"{name} on one ({unit})", f"{name} of each of n ({unit})"
    drawing.finish(axes, f"Each of n {by} against one alone", *sides)


def _speedups(axes: Axes, found: ScalingResult) -> None:
    pairs = found.pairs
    counts = np.geomspace(1, int(pairs["devices"].max()), 100)
    for number, family in enumerate(found.families):
        look, rows = drawing.look(family.family), pairs[pairs["family"] == family.family]
        # Families stand beside each other at each count.
        shift = 2 ** (0.08 * (number - (len(found.families) - 1) / 2))
        drawing.marks(axes, rows["devices"] * shift, rows["speedup"], alpha=0.5, **look)
        axes.plot(counts, amdahl_speedup(family.fraction.value, counts), color=look["color"], linewidth=1.8)
        low, high = (amdahl_speedup(end, counts) for end in family.fraction[1:])
        if np.isfinite(low).all() and (low > 0).all():  # else the law has no upper end at some count
            drawing.band(axes, counts, low, high, look["color"])
    axes.plot(counts, counts, "--", color=_LINE, linewidth=1)
    axes.axhline(1, color=_LINE, linewidth=0.8)
    ticks = sorted({1, *(int(count) for count in pairs["devices"])})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    drawing.finish(axes, "Speedup, and Amdahl's law fitted", found.by.rpartition(".")[2], "speedup over one")
