"""`scaling`: how speed grows with devices, and the fraction that does not run in parallel.

How speed grows with devices: each point on n devices against itself on one, and Amdahl's non-parallel fraction.

The paper's Figure 4 sets the utilisation on eight cores against that on one and reads off a largest non-parallel
fraction. Here every point on n devices is paired with the same point on one, and the fraction is fitted for each
family with an interval. The batch is that of the whole step, so this is strong scaling.

Scaling over devices: each point on many against itself on one, and Amdahl's law through all of them (Figure 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from analysis.format import percent_interval
from analysis.labels import label, unit_of
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options, option
from analysis.registry import Remedy, Shown, analysis
from analysis.result import Paragraph, Result, joined, pooled_within
from analysis.scaling_hosts import (
    Expected,
    PredictedResult,
    _predicted,
    describe_expected,
    expect_measured,
    plan,
    pooled_messages,
    told_apart,
    trainings,
)
from analysis.statistics.dependence import Levels, crossed_quantile, crossed_variance, levels_of
from analysis.statistics.pairing import RESULT_COLUMNS, pair, sampling
from analysis.statistics.quantiles import bootstrap_ratio
from analysis.store.frame import families, is_ok, require_homogeneous
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.families import message_families
from paradnn.forecast.estimate import LEVEL, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from paradnn.forecast.communication.data_parallel import Exchange


#: Columns of a pair that are shown even where all pairs agree, in this order, and those that never are.
_SHOWN = (
    "devices",
    "one",
    "many",
    "speedup",
    "speedup_low",
    "speedup_high",
    "efficiency",
    "fraction",
    "interval_source",
)
_HIDDEN = (
    "family",
    *(f"{side}_{name}" for side in "ab" for name in ("count", "units", "spread")),
    *("log_error", "degrees", "p_value", "comparable"),
    *_SHOWN,
)
_PREDICTED = "predicted from a channel (model=channel)"


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Which rate, over which count of devices; and over which channel steps are predicted."""

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
    channel: str | None = option(
        None,
        "predict steps from what messages cost on a measured channel, called as `analysis channel` calls it: "
        "'tensorflow all_reduce'",
        metavar="NAME",
        group=_PREDICTED,
    )
    algorithm: Literal["ring", "tree", "halving", "parameter_server"] = option(
        "ring", "how gradients are summed (default: ring)", group=_PREDICTED
    )
    servers: int = option(1, "parameter servers (default: 1)", metavar="N", low=1, group=_PREDICTED)
    bucket: int | None = option(
        None,
        "gather gradients up to so many bytes, 0: each layer by itself (default: all at once, as TensorFlow does)",
        metavar="B",
        low=0,
        group=_PREDICTED,
    )
    hosts: tuple[str, ...] = option(
        (), "what so many hosts would give, on paper: 1,2,4,1024", metavar="N,N", group=_PREDICTED
    )
    scaling: Literal["weak", "strong"] = option(
        "weak", "of --hosts: each has the measured batch (weak, the default), or all share it", group=_PREDICTED
    )

    @property
    def beside_messages(self) -> bool:
        return self.channel is not None

    @property
    def exchange(self) -> Exchange | None:
        """How gradients are exchanged, where a channel is named."""
        from paradnn.forecast.communication.data_parallel import Exchange

        if self.channel is None:
            return None
        bucket = math.inf if self.bucket is None else self.bucket
        return Exchange(self.channel, self.algorithm, self.servers, bucket)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScalingResult(Result):
    """Every point on several devices against itself on one, and the non-parallel fraction of each family."""

    scaling: Scaling
    expected: Expected | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The pairs, without columns that are the same in all of them; with a channel, measured beside predicted."""
        if self.expected is not None:
            return told_apart(self.expected.table)
        pairs = self.scaling.pairs
        others = [name for name in pairs.columns if name not in _HIDDEN and pairs[name].nunique(dropna=False) > 1]
        return pairs[["family", *others, *_SHOWN]]

    def _figure(self) -> Figure:
        return draw_scaling(self.scaling, self.expected)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for family in self.scaling.families:
            yield _describe(family, self.scaling.by.rpartition(".")[2])
        if self.scaling.alone:
            names = ", ".join(self.scaling.alone)
            yield Paragraph(f"Not compared: {names}, of which no point was measured on 1 and on more.")
        yield Paragraph(
            "The fraction is that of Amdahl's law, speedup = 1 / (s + (1 - s) / n), fitted over points; intervals "
            "are 95%, over models and batch sizes as a sample of their design space."
        )
        for reason, those in _reasons(self.scaling.apart):
            yield Paragraph(f"No interval of {', '.join(those)} holds what time does to them: {reason}.")
        if self.expected is not None:
            yield from describe_expected(self.expected)


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    """Over threads where these were varied and devices were not."""
    devices, threads = (name in rows and rows[name].nunique() > 1 for name in ("devices", "platform.threads"))
    yield Shown(ScalingOptions(by="platform.threads") if threads and not devices else None)


def _remedy(rows: pd.DataFrame) -> Remedy:
    """Over devices on GPUs, else over threads."""
    if "platform.name" in rows and set(rows["platform.name"].dropna()) == {"gpu"}:
        return Remedy(("devices=1,2",), then=("",))
    return Remedy(("platform.threads=1,2",), then=("--by", "platform.threads"))


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
    remedy=_remedy,
)
def scaling(frame: pd.DataFrame, options: ScalingOptions) -> Result:
    """Every point on several devices against itself on one, and Amdahl's fraction of each family.

    With a channel also each measured step beside what the channel says of it; with `hosts` only what these would give.

    NotEnoughData where no point was measured on one device and on more, SchemaError for heterogeneous runs of a family.
    """
    exchange = options.exchange
    _check(options)
    if exchange is not None and options.hosts:
        return plan(frame, exchange, options.hosts, options.scaling, options.pool)
    if exchange is None:
        pairs = fit_scaling(frame, options.metric, options.by, options.pool)
        return ScalingResult(scaling=pairs, sources=pairs.run_ids, pooled=joined(pairs.pooled))

    expected = expect_measured(frame, exchange)
    messages = pooled_messages(frame, expected, options.pool)
    try:
        pairs = fit_scaling(frame, options.metric, options.by, options.pool)
    except NotEnoughData:  # of weak scaling: batches differ
        used = trainings(frame)
        pooled = joined((pooled_within(used, ["family", "device"], options.pool), messages))
        return PredictedResult(expected=expected, sources=(*used["run_id"], *expected.run_ids), pooled=pooled)
    pooled = joined((*pairs.pooled, messages))
    sources = (*pairs.run_ids, *expected.run_ids)
    return ScalingResult(scaling=pairs, expected=expected, sources=sources, pooled=pooled)


def _check(options: ScalingOptions) -> None:
    """ConfigError for an option that says nothing without another one, which is not there."""
    usual = ScalingOptions()
    if options.channel is None:
        for name in ("hosts", "algorithm", "servers", "bucket", "scaling"):
            if (given := getattr(options, name)) != getattr(usual, name):
                value = ",".join(given) if name == "hosts" else given
                raise ConfigError(f"--{name}", value, "needs to know what messages cost", "name a --channel")
    if options.servers != usual.servers and options.algorithm != "parameter_server":
        reason = f"--algorithm={options.algorithm} has no servers"
        raise ConfigError("--servers", options.servers, reason, "add --algorithm parameter_server, or leave it out")
    if options.scaling != usual.scaling and not options.hosts:
        raise ConfigError("--scaling", options.scaling, "says how --hosts share the batch", "name --hosts")


def _describe(family: FamilyScaling, what: str) -> Paragraph:
    counts, most = ", ".join(map(str, family.counts)), family.counts[-1]
    head = (
        f"{family.family}: over {family.points} points on {counts} against 1 ({what}), "
        f"{percent_interval(family.fraction)} of the step does not run in parallel"
        f"{_bound(family.fraction.value, what)}."
    )
    points = [
        f"Point by point: median {percent_interval(family.median)}, 90th percentile "
        f"{percent_interval(family.upper)}, at most {100 * family.largest:.3g}%.",
        f"On {most}: a median of {percent_interval(family.efficiency)} of the speed of {most} without loss.",
    ]
    if family.largest_batch is not None:
        upper = percent_interval(family.upper_at_largest_batch)
        points.append(f"At the largest batch size, {family.largest_batch}: 90th percentile {upper}.")
    odd = [f"{family.slower} slower than on one"] * (family.slower > 0)
    odd += [f"{family.superlinear} more than n times as fast"] * (family.superlinear > 0)
    if odd:
        points.append(f"Of {family.measurements} measurements {', '.join(odd)}.")
    return Paragraph(head, tuple(points))


def _reasons(apart: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    """Each reason once, with the families that it is of."""
    found: dict[str, list[str]] = {}
    for name, reason in apart.items():
        found.setdefault(reason, []).append(name)
    return found.items()


def _bound(fraction: float, what: str) -> str:
    """What the fraction means for any number of devices."""
    if fraction >= 1:
        return f": more {what} make it slower"
    if fraction <= 0:
        return ": nothing is lost"
    return f", so no number of {what} makes it more than {1 / fraction:.3g}x as fast"


#: Rates, of which n devices have n times as much where nothing is lost.
METRICS = ("examples_per_second", "flops_per_second")
#: The column that says how several devices meet.
_TRANSPORT = "transport"
#: Families of messages, which run on no devices.
_FOUND = (*RESULT_COLUMNS, "many", "one", "devices", "efficiency", "fraction")


@dataclass(frozen=True)
class FamilyScaling:
    """The non-parallel fraction of one family's points.

    `fraction` is the fit over all points and counts, `median` and `upper` (the 90th percentile) are over the fractions
    fitted to each point by itself, `largest` is the greatest of these. `largest_batch` is the largest batch size,
    `upper_at_largest_batch` the 90th percentile there. `efficiency` is the median of speedup / n at the largest n.
    `slower` counts measurements that were slower than on one device, `superlinear` those above n times as fast.
    """

    family: str
    points: int
    measurements: int
    counts: tuple[int, ...]
    fraction: Estimate
    median: Estimate
    upper: Estimate
    largest: float
    largest_batch: int | None
    upper_at_largest_batch: Estimate
    efficiency: Estimate
    slower: int
    superlinear: int


@dataclass(frozen=True)
class Scaling:
    """`pairs` has a row for each point and count above one: the join columns, `devices` (the count), `one` and `many`
    (the metric on one and on all devices), `speedup` with its interval, `efficiency` (speedup / count) and `fraction`.
    `alone` are the families without a pair. `apart`: families -> why their counts cannot be told from sessions or a
    drift. `pooled` says what differed among runs that were pooled, `run_ids` are the measured runs.
    """

    metric: str
    by: str
    pairs: pd.DataFrame
    families: tuple[FamilyScaling, ...]
    alone: tuple[str, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)
    pooled: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()


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
    frame: pd.DataFrame,
    metric: str = "examples_per_second",
    by: str = "devices",
    pool: bool = False,
    level: float = LEVEL,
) -> Scaling:
    """Pair each point on n > 1 devices with itself on one, and fit the fraction of each family.

    Amdahl's law says 1 / speedup - 1 / n = s (1 - 1 / n), a line through the origin: s is fitted by least squares over
    all points and counts of a family. Its interval is over models and batch sizes, which points share (`dependence`),
    of points that share nothing a bootstrap-t (`bootstrap_ratio`); all counts of a point count together, so it also
    allows for points that scale differently. So are medians and percentiles over models and batch sizes. `by` is the
    column that counts devices; platform.threads will do. `level` is that of all these.

    Raises ConfigError for another metric, NotEnoughData where no point was measured on one device and on more,
    SchemaError for heterogeneous runs of a family.

    Where devices meet in several ways (`transport`), the families are "fc, local" and "fc, grpc", each with a fraction.
    """
    if metric not in METRICS:
        raise ConfigError("--metric", metric, "is no rate that grows with devices", f"choose {' or '.join(METRICS)}")
    measured = _counted(frame, by)
    checked = [require_homogeneous(rows, pool=pool) for _, rows in measured.groupby("family", dropna=False)]
    pooled = tuple(rows.attrs["pooled"] for rows in checked if rows.attrs.get("pooled"))
    found, apart = _paired(measured, metric, by)
    alone = tuple(name for name in families(measured) if name not in set(found["family"]))
    if _TRANSPORT in found and found[_TRANSPORT].nunique() > 1:
        # How devices meet decides what they lose: each way has a fraction of its own.
        found["family"] = found["family"] + ", " + found[_TRANSPORT]
    found = found.rename(columns={"a": "many", "b": "one"})
    found["efficiency"] = found["speedup"] / found["devices"]
    found["fraction"] = amdahl_fraction(found["speedup"], found["devices"])
    named = [_family(name, found[found["family"] == name], level) for name in families(found)]
    return Scaling(metric, by, found, tuple(named), alone, apart, pooled, tuple(measured["run_id"]))


#: Columns that count devices, which older runs lack.
_COUNTS = ("devices", "hosts", "platform.threads")


def _counted(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """The measured runs that say how many devices they had."""
    measured = _by_hosts(frame[is_ok(frame) & ~frame["family"].isin(message_families())])
    if by not in measured and by not in _COUNTS:
        raise ConfigError("--by", by, "these runs have no such column", f"name one that counts: {', '.join(_COUNTS)}")
    if by not in measured or measured[by].notna().sum() == 0:
        raise NotEnoughData(f"{by}: no measured run records how many; measure points with {by}=1 and more")
    if not pd.api.types.is_numeric_dtype(measured[by]):
        raise ConfigError("--by", by, "holds no numbers", "name the column that counts devices")
    return measured[measured[by].notna()]


def _paired(measured: pd.DataFrame, metric: str, by: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """Each point on more devices beside itself on one, as `pairing.pair` has them; column `devices` counts. Then which
    families' sides cannot be told from their sessions, and why."""
    counts = sorted({int(count) for count in measured[by]})
    # One device exchanges nothing: it is what devices of every transport are held against.
    count_columns = [name for name in (by, _TRANSPORT) if name in measured]
    one = measured[measured[by] == 1].drop(columns=count_columns)
    if one.empty or counts == [1]:
        there = ", ".join(map(str, counts))
        raise NotEnoughData(f"{by} = {there}: scaling needs points on 1 and on more; measure the same points on both")
    parts = []
    for count, transport, many in _by_count(measured, by):
        if count > 1:
            met = {} if transport is None else {_TRANSPORT: transport}
            parts.append(pair(many.drop(columns=count_columns), one, metric).assign(devices=count, **met))
    found = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if found.empty:
        raise NotEnoughData(f"no point was measured with {by}=1 and with more; measure the same points on both")
    apart: dict[str, str] = {}
    for part in parts:
        for name in families(part):
            design = sampling(part, name).design
            if not design.comparable:
                apart.setdefault(name, design.text())
    return found, apart


def _by_hosts(rows: pd.DataFrame) -> pd.DataFrame:
    """Devices of several hosts meet in another way than those of one: their transport says so."""
    if not {"hosts", _TRANSPORT} <= set(rows.columns):
        return rows
    hosts = rows["hosts"].fillna(1).astype("int64")
    words = rows[_TRANSPORT].where(hosts == 1, rows[_TRANSPORT] + " on " + hosts.astype("string") + " hosts")
    return rows.drop(columns="hosts").assign(**{_TRANSPORT: words})


def _by_count(measured: pd.DataFrame, by: str) -> Iterator[tuple[int, str | None, pd.DataFrame]]:
    """The runs of each count, and of each transport where runs name one."""
    for count in sorted({int(count) for count in measured[by]}):
        rows = measured[measured[by] == count]
        if _TRANSPORT not in rows:
            yield count, None, rows
            continue
        for transport in sorted(rows[_TRANSPORT].dropna().unique()):
            yield count, str(transport), rows[rows[_TRANSPORT] == transport]


def _family(name: str, pairs: pd.DataFrame, level: float) -> FamilyScaling:
    keys = [column for column in pairs.columns if column not in _FOUND]
    point = pairs.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    count = pairs["devices"].to_numpy(dtype="float64")
    room = 1 - 1 / count
    lost = 1 / pairs["speedup"].to_numpy(dtype="float64") - 1 / count
    above, below = np.bincount(point, lost * room), np.bincount(point, room * room)
    each = above / below
    levels = levels_of(pairs.iloc[np.unique(point, return_index=True)[1]])
    most = pairs[pairs["devices"] == pairs["devices"].max()]
    largest, there = None, np.ones(len(each), dtype=bool)
    if "batch_size" in pairs and pairs["batch_size"].notna().any():
        batches = pairs.groupby(point)["batch_size"].first().to_numpy(dtype="float64", na_value=np.nan)
        largest = int(np.nanmax(batches))
        there = batches == largest
    return FamilyScaling(
        family=name,
        points=len(each),
        measurements=len(pairs),
        counts=tuple(sorted({int(n) for n in pairs["devices"]})),
        fraction=_fraction(above, below, levels, level),
        median=crossed_quantile(each, levels, level=level),
        upper=crossed_quantile(each, levels, 0.9, level),
        largest=float(each.max()),
        largest_batch=largest,
        upper_at_largest_batch=crossed_quantile(each[there], levels.of(there), 0.9, level),
        efficiency=crossed_quantile(most["efficiency"], levels_of(most), level=level),
        slower=int((pairs["speedup"] < 1).sum()),
        superlinear=int((pairs["speedup"] > pairs["devices"]).sum()),
    )


def _fraction(above: np.ndarray, below: np.ndarray, levels: Levels, level: float) -> Estimate:
    """sum(above) / sum(below) over points, with an interval that knows which models and batch sizes they share."""
    if levels.independent:
        return bootstrap_ratio(above, below, level)
    ratio = float(above.sum() / below.sum())
    variance, freedom = crossed_variance((above - ratio * below) / below.mean(), levels)
    reach = float(stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(variance))
    return Estimate(ratio, ratio - reach, ratio + reach)


_LINE = "#555555"


def draw_scaling(found: Scaling, expected: Expected | None = None) -> Figure:
    """Left the rate of each device against that of one alone, with x = y where nothing is lost; then the speedup
    over the count, with each family's fitted law, its interval as a band, and the line without loss; right, where a
    channel predicts steps, these against measured ones."""
    panels = 2 if expected is None else 3
    drawn, (row,) = drawing.figure(5.5 * panels, 4.8, 1, panels)
    _rates(row[0], found)
    _speedups(row[1], found)
    handles, labels = row[0].get_legend_handles_labels()
    if expected is not None:
        _predicted(row[2], expected, _unusual(found))
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return drawn


def _rates(axes: Axes, found: Scaling) -> None:
    among = _unusual(found)
    for family in found.families:
        rows = found.pairs[found.pairs["family"] == family.family]
        axes.plot(
            rows["one"],
            rows["many"] / rows["devices"],
            drawing.marker_of(family.family, among),
            color=drawing.colour_of(family.family, among),
            markersize=5,
            alpha=0.6,
            markeredgewidth=0,
            linestyle="none",
            label=f"{family.family}: non-parallel {_percent(family.fraction)}",
        )
    each = found.pairs["many"] / found.pairs["devices"]
    ends = [min(found.pairs["one"].min(), each.min()), max(found.pairs["one"].max(), each.max())]
    axes.plot(ends, ends, "--", color=_LINE, linewidth=1, label="nothing lost")
    name, unit = label(found.metric), unit_of(found.metric)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        drawing.log_ticks(axis)
        axis.set_major_formatter(drawing.quantity(""))
    sides = f"{name} on one ({unit})", f"{name} of each of n ({unit})"
    drawing.finish(axes, f"Each of n {_counted_points(found.by)} against one alone", *sides)


def _speedups(axes: Axes, found: Scaling) -> None:
    most = int(found.pairs["devices"].max())
    counts = np.geomspace(1, most, 100)
    reach, among = len(found.families), _unusual(found)
    for number, family in enumerate(found.families):
        colour, rows = drawing.colour_of(family.family, among), found.pairs[found.pairs["family"] == family.family]
        # Families stand beside each other at each count.
        shift = 2 ** (0.08 * (number - (reach - 1) / 2))
        axes.plot(
            rows["devices"] * shift,
            rows["speedup"],
            drawing.marker_of(family.family, among),
            color=colour,
            markersize=4,
            alpha=0.5,
            markeredgewidth=0,
            linestyle="none",
        )
        axes.plot(counts, amdahl_speedup(family.fraction.value, counts), color=colour, linewidth=1.8)
        low, high = (amdahl_speedup(end, counts) for end in (family.fraction.low, family.fraction.high))
        if np.isfinite(low).all() and (low > 0).all():  # else the law has no upper end at some count
            axes.fill_between(counts, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(counts, counts, "--", color=_LINE, linewidth=1)
    axes.axhline(1, color=_LINE, linewidth=0.8)
    ticks = sorted({1, *(int(count) for count in found.pairs["devices"])})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    drawing.finish(axes, "Speedup, and Amdahl's law fitted", _counted_points(found.by), "speedup over one")


def _unusual(found: Scaling) -> list[str]:
    """All names, where a family stands there once for each transport and so has no colour of its own."""
    names = [family.family for family in found.families]
    return names if any(", " in name for name in names) else []


def _counted_points(by: str) -> str:
    return by.rpartition(".")[2]


def _percent(value: tuple[float, float, float]) -> str:
    middle, low, high = (f"{100 * number:.1f}%" for number in value)
    return f"{middle} ({low} to {high})" if np.isfinite(value[1]) else middle
