"""`frontier`: what no other choice beats in cost against latency, or accuracy, or throughput; and which to choose.

What no other choice beats: of choices with two or more quantities each, as far as their intervals say so.

A choice beats another where it is no worse in any quantity and better in one (Pareto dominance). Of quantities with
intervals there are three kinds: choices that some other beats whatever the true values within the intervals, those that
none beats whatever they are, and those of which it depends.

Frontiers of measured choices: cost, latency, accuracy or throughput of each, how it stands, and which to choose.

All intervals of a task hold at once with 95% (Bonferroni), so no verdict of the task is wrong more often than that,
however many choices it has.

Choices in two quantities, with the line that none of them beats: filled on it, hollow undecided, grey beaten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from analysis.choices import PLATFORM, Kind, Task, estimate, tasks, words_of
from analysis.format import short
from analysis.labels import label, unit_of
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.prices import PriceList, currency_of, price_option, priced, read_prices
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, joined
from analysis.statistics.regression import Lacking
from analysis.store.frame import is_ok, require_homogeneous
from paradnn.core.words import counted
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.forecast.estimate import LEVEL
from paradnn.store.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


_LISTED = 5
_WRITTEN = 3  # tasks that are written out where no limit asks for all


@dataclass(frozen=True, kw_only=True)
class FrontierOptions(Options):
    """What an hour costs, which quantities, and what is asked of them."""

    command = "frontier"

    price: tuple[str, ...] = price_option("cost becomes a quantity to choose by")
    limit: tuple[tuple[str, str], ...] = option(
        (),
        "what a metric may be at most (at least where more is better), such as latency_p99_ms=15, repeatable: says "
        "which choice to take",
        metavar="METRIC=VALUE",
        several="repeat",
    )
    x: str | None = option(None, "first quantity (default: cost; without prices throughput, or time)", metavar="METRIC")
    y: str | None = option(
        None, "second (default: p99 of served queries, median latency of others, accuracy)", metavar="METRIC"
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FrontierResult(Result):
    """A frontier for each task; `currency` is that of the prices, `limits` are those that were given."""

    frontiers: tuple[Frontier, ...]
    prices: PriceList
    currency: str
    limits: Mapping[str, float]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each choice."""
        parts = [one.table.drop(columns="run_ids").assign(task=one.task) for one in self.frontiers]
        table = pd.concat(parts, ignore_index=True)
        return table[["task", *(name for name in table.columns if name != "task")]]

    def _figure(self) -> Figure:
        return draw_frontiers(self.largest, self.limits, self.currency)

    @property
    def largest(self) -> list[Frontier]:
        """The frontiers, those of most choices first."""
        return sorted(self.frontiers, key=lambda one: -len(one.table))

    def ends(self, one: Frontier) -> str:
        """Both ends of a frontier in a sentence: what is best in either quantity, as measured."""
        x, y = one.axes.x, one.axes.y
        by_y = one.table.sort_values(y, ascending=less_is_better(y), kind="stable")
        best = [
            (metric, row["choice"], _values(row, metric, other, self.currency))
            for metric, other, row in ((x, y, one.table.iloc[0]), (y, x, by_y.iloc[0]))
        ]
        head = f"{one.task}: as measured, of {counted(len(one.table), 'choice')} "
        if best[0][1] == best[1][1]:
            return f"{head}{best[0][1]} is best in {label(x)} and in {label(y)} ({best[0][2]})."
        (x, first, here), (y, second, there) = best
        return f"{head}{first} is best in {label(x)} ({here}), {second} in {label(y)} ({there})."

    def _paragraphs(self) -> Iterator[Paragraph]:
        written = list(self.frontiers) if self.limits else self.largest[:_WRITTEN]
        for one in written:
            yield _describe(one, self.currency)
            if one.advice:
                yield _advise(one, one.advice, self.limits, self.currency)
        if rest := self.largest[len(written) :]:
            yield Paragraph(f"{counted(len(rest), 'further task')} of {_sizes(rest)} choices: see the table.")
        if not self.limits:
            yield Paragraph(_how_to_choose(written[0]))
        yield Paragraph(
            "A choice is beaten where another is better whatever the true values within the intervals of both, which "
            "all hold at once with 95%; it is on the frontier where none can be better, else undecided."
        )
        if self.prices:
            said = f": {self.prices.origin}" if self.prices.origin else ""
            yield Paragraph(f"Prices given here win over those that runs recorded{said}.")


def _shown(frame: pd.DataFrame) -> Iterator[Shown]:
    """Where users were served or something was learnt, and of steps of inference."""
    asked = ("scheduled_queries_per_second", "best_accuracy")
    if any(name in frame and frame[name].notna().any() for name in asked) or (
        "mode" in frame and frame["mode"].isin(["inference", "generate"]).any()
    ):
        yield Shown()


@analysis(
    FrontierOptions,
    summary="what no other choice beats in cost, latency, throughput or accuracy, and which to choose",
    description="Put choices of platform and configuration that do the same work beside each other: cost against\n"
    "latency (a quantile of served queries, the median of closed runs), cost against accuracy of what\n"
    "learns; throughput in place of cost without prices. Each choice is on the frontier, beaten or, as\n"
    "far as the intervals say, undecided. With --limit it says which to take.",
    example="python -m analysis frontier --price V100=2 --limit latency_p99_ms=15 --figure frontier.png",
    gate="queries",
    section="all",
    order=150,
    title="What to choose",
    reading=("The line joins what no other choice beats. Filled: surely so; hollow: undecided; grey: beaten."),
    shown=_shown,
)
def frontier(frame: pd.DataFrame, options: FrontierOptions) -> FrontierResult:
    """The frontiers of measured choices. NotEnoughData where nothing is to be chosen from."""
    prices = read_prices(options.price, frame)
    limits = dict(_limit(name, value) for name, value in options.limit)
    frame = priced(frame, prices)
    found = frontiers(frame, options.x, options.y, limits, options.pool)
    sources = tuple(run for one in found for runs in one.table["run_ids"] for run in runs)
    pooled = joined(one.pooled for one in found)
    return FrontierResult(
        frontiers=tuple(found),
        prices=prices,
        currency=currency_of(frame),
        limits=limits,
        sources=sources,
        pooled=pooled,
    )


def _limit(name: str, value: str) -> tuple[str, float]:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError("--limit", f"{name}={value}", "is no number", "write for example latency_p99_ms=15")
    return name, number


def _describe(one: Frontier, currency: str) -> Paragraph:
    head = (
        f"{one.task}: of {counted(len(one.table), 'choice')} in {label(one.axes.x)} against {label(one.axes.y)}, "
        f"{one.count(Standing.ON)} on the frontier, {one.count(Standing.UNDECIDED)} undecided, "
        f"{one.count(Standing.BEATEN)} beaten."
    )
    rows = one.table[~one.table["standing"].eq(Standing.BEATEN.value)]
    points = [
        f"{row['choice']}: {_quantity(row, one.axes.x, currency)}, {_quantity(row, one.axes.y, currency)}"
        + ("" if row["standing"] == Standing.ON.value else " (undecided)")
        for _, row in rows.head(_LISTED).iterrows()
    ]
    if len(rows) > _LISTED:
        points.append(f"and {len(rows) - _LISTED} more, see --csv")
    unknown = int(one.table[[f"{one.axes.x}_high", f"{one.axes.y}_high"]].isna().any(axis=1).sum())
    if unknown:
        points.append(f"{counted(unknown, 'choice')} with an open interval: measure longer, or replicates.")
    if one.incomplete:
        points.append(f"{counted(one.incomplete, 'choice')} without one of the quantities left out.")
    return Paragraph(head, tuple(points))


def _how_to_choose(one: Frontier) -> str:
    """What to add for an advice: a limit that about half of the choices keep."""
    name = one.axes.y
    return f"To be told which to choose, say what you need, such as --limit {name}={one.table[name].median():.3g}."


def _sizes(rest: Sequence[Frontier]) -> str:
    """How many choices there are: "2", or "2 to 4"."""
    counts = [len(one.table) for one in rest]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _values(row: pd.Series, metric: str, other: str, currency: str) -> str:
    """Both quantities of a choice."""
    return (
        f"{short(row[metric], _unit(metric, currency), digits=3)}, "
        f"{label(other)} {short(row[other], _unit(other, currency), digits=3)}"
    )


def _quantity(row: pd.Series, metric: str, currency: str) -> str:
    """A quantity of a choice with its interval."""
    unit = _unit(metric, currency)
    words = f"{label(metric)} {short(row[metric], unit, digits=3)}"
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    if low == low and high == high and low < high:
        words += f" ({short(low, digits=3)} to {short(high, digits=3)})"
    return words


def _unit(metric: str, currency: str) -> str:
    unit = unit_of(metric)
    return currency if unit == "currency" else unit


def _advise(one: Frontier, advice: Advice, limits: Mapping[str, float], currency: str) -> Paragraph:
    asked = " and ".join(
        f"{label(name)} at {'most' if less_is_better(name) else 'least'} "
        f"{short(value, _unit(name, currency), digits=4)}"
        for name, value in limits.items()
    )
    rows = {row["choice"]: row for _, row in one.table.iterrows()}

    def said(name: str, why: str = "") -> str:
        return f"{name}{why}: {', '.join(_quantity(rows[name], metric, currency) for metric in (advice.by, *limits))}"

    points = []
    if advice.nearest:
        head = f"For {asked} no choice of {one.task} will do; nearest comes {said(advice.nearest)}."
    elif not advice.best:
        head = f"For {asked} no choice of {one.task} surely does; it may be {said(advice.unsure[0])}."
    else:
        best = "lowest" if less_is_better(advice.by) else "highest"
        why = f", of the {best} {label(advice.by)} among those that surely keep it"
        head = f"For {asked} choose {said(advice.best, why)}."
        if advice.rivals:
            points.append(f"Not surely worse in {label(advice.by)}: {'; '.join(advice.rivals[:_LISTED])}.")
        if advice.unsure:
            points.append(f"Better, but not surely within the limit: {'; '.join(advice.unsure[:_LISTED])}.")
    return Paragraph(head, tuple(points))


class Standing(StrEnum):
    """How a choice stands among the others."""

    ON = "on the frontier"
    UNDECIDED = "undecided"
    BEATEN = "beaten"


@dataclass(frozen=True)
class Box:
    """Choices (n,) in quantities (k,) of which less is better: `value`, `low` and `high` are (n, k).

    Ends are NaN where no interval is known: then the value stands for what the choice might do to others, and nothing
    is sure of the choice itself.
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, columns: Sequence[tuple[NDArray[np.float64], ...]], less: Sequence[bool]) -> Box:
        """Columns of values with their ends, (n,) each; `less` says of which quantities less is better."""
        turned = [
            (value, low, high) if better else (-value, -high, -low)
            for (value, low, high), better in zip(columns, less, strict=True)
        ]
        value, low, high = (np.column_stack([entry[place] for entry in turned]) for place in range(3))
        return cls(value, low, high)


def standings(box: Box) -> list[Standing]:
    """How each choice stands; ties beat each other in nothing."""
    surely = beats(np.where(np.isnan(box.high), np.inf, box.high), np.where(np.isnan(box.low), -np.inf, box.low))
    maybe = beats(np.where(np.isnan(box.low), box.value, box.low), np.where(np.isnan(box.high), np.inf, box.high))
    beaten, open_to = _by_others(surely), _by_others(maybe)
    return [
        Standing.BEATEN if lost else Standing.UNDECIDED if unsure else Standing.ON
        for lost, unsure in zip(beaten, open_to, strict=True)
    ]


def efficient(box: Box) -> NDArray[np.bool_]:
    """(n,) which choices no other beats, taken at their values."""
    return ~_by_others(beats(box.value, box.value))


def beats(of: NDArray[np.float64], against: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(n, n) whether choice i at the ends `of` (n, k) beats choice j at the ends `against`."""
    one, other = of[:, None, :], against[None, :, :]
    return np.asarray((one <= other).all(axis=2) & (one < other).any(axis=2))


def _by_others(table: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,) whether any other choice does it."""
    return np.asarray((table & ~np.eye(len(table), dtype=bool)).any(axis=0))


#: No goals in themselves, but what a choice serves, and how long it learns.
_BETTER = {"scheduled_queries_per_second": "higher", "learning_seconds": "lower"}
#: Cost, what takes its place without prices, and what is to be had for it.
_AXES = {
    Kind.SERVES: ("cost_per_million_queries", "scheduled_queries_per_second", "latency_p99_ms"),
    Kind.STEPS: ("cost_per_million_examples", "examples_per_second", "latency_p50_ms"),
    Kind.GENERATES: ("cost_per_million_tokens", "tokens_per_second", "time_per_output_token_ms"),
    Kind.LEARNS: ("cost_of_learning", "learning_seconds", "best_accuracy"),
}


@dataclass(frozen=True)
class Quantities:
    """The two quantities of a frontier, names of metrics."""

    x: str
    y: str


@dataclass(frozen=True)
class Advice:
    """Which choice to take: `best` surely keeps all limits and is best in `by`; `rivals` keep them too and are not
    surely worse; `unsure` would be better but may break a limit; `nearest` comes nearest where no choice keeps them at
    all.

    Names of choices; `best` is empty where none surely keeps them.
    """

    by: str
    best: str = ""
    rivals: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    nearest: str = ""


@dataclass(frozen=True)
class Frontier:
    """One task. `table` has a row for each choice, cheapest first: `choice`, `platform`, `runs`, the quantities with
    `_low` and `_high`, `standing`, and whether it is `efficient` at its values. `incomplete` counts choices without
    one of the quantities."""

    task: str
    axes: Quantities
    table: pd.DataFrame
    incomplete: int
    advice: Advice | None = None
    pooled: str = ""

    def count(self, standing: Standing) -> int:
        """How many choices stand so."""
        return int(self.table["standing"].eq(standing.value).sum())


def less_is_better(metric: str, option: str = "metric") -> bool:
    """Whether less of a metric is better; ConfigError, of the `option`, where neither is, and for what is no metric."""
    known = METRICS.get(metric)
    better = _BETTER.get(metric, known.better if known else None)
    if better is None:
        problem = "is neither better high nor low" if known else "is no metric"
        remedy = "choose one that python -m paradnn list metrics names, such as latency_p99_ms"
        raise ConfigError(option, metric, problem, remedy)
    return better == "lower"


def frontiers(
    frame: pd.DataFrame,
    x: str | None = None,
    y: str | None = None,
    limits: Mapping[str, float] | None = None,
    pool: bool = False,
) -> list[Frontier]:
    """A frontier for each task with two choices or more; `x` and `y` are metrics in place of cost (where there are
    prices, else throughput or time) and of latency or accuracy. `limits` are metrics with what they may be at most, or
    at least, whichever is better.

    ConfigError for a metric that cannot be compared, NotEnoughData where no task has two choices with both quantities.
    """
    limits = limits or {}
    for flag, name in (("--x", x), ("--y", y), *(("--limit", name) for name in limits)):
        if name is not None:
            less_is_better(name, flag)
    found, lacking = [], []
    for task in tasks(frame[is_ok(frame) | _learnt(frame)]):
        axes = _axes(task, x, y)
        try:
            found.append(_frontier(task, axes, limits, pool))
        except NotEnoughData as problem:
            lacking.append(Lacking(task.name, str(problem)))
    if not found:
        raise NotEnoughData(
            "no task has two choices to compare",
            lacking or [Lacking("all runs", "none is ok")],
            "measure more, such as python -m paradnn.train -m mode=inference batch_size=1,8,64",
        )
    return found


def _learnt(frame: pd.DataFrame) -> pd.Series:
    """Trainings count whether or not they reached their target: they have an accuracy at a cost."""
    if "best_accuracy" not in frame:
        return pd.Series(False, index=frame.index)
    return frame["best_accuracy"].notna() & frame["outcome"].eq("timeout").fillna(False)


def _axes(task: Task, x: str | None, y: str | None) -> Quantities:
    cost, rate, gain = _AXES[task.kind]
    # Only a schedule asks for a rate.
    known = [name for name in (cost, rate) if name in task.rows and task.rows[name].notna().any()]
    return Quantities(x or next(iter(known), "queries_per_second" if task.kind is Kind.SERVES else rate), y or gain)


def _frontier(task: Task, axes: Quantities, limits: Mapping[str, float], pool: bool) -> Frontier:
    rows = require_homogeneous(task.rows, ("protocol_id", "schema_version"), pool=pool)
    metrics = list(dict.fromkeys([axes.x, axes.y, *limits]))
    lacking = [name for name in metrics if name not in rows or not rows[name].notna().any()]
    if lacking:
        raise NotEnoughData(f"no run has {', '.join(lacking)}")
    columns = [name for name in task.varies if name in rows]
    groups = [part for _, part in rows.groupby(columns, dropna=False, sort=False)] if columns else [rows]
    error = (1 - LEVEL) / (len(groups) * len(metrics))
    shown = [name for name in columns if name != "environment_id"]
    table = pd.DataFrame([_row(part, shown, metrics, error) for part in groups])
    whole = table[metrics].notna().all(axis=1)
    table, incomplete = table[whole].reset_index(drop=True), int((~whole).sum())
    if len(table) < 2:
        raise NotEnoughData(f"{len(table)} choice{'s'[: len(table) != 1]} with {' and '.join(metrics)}, it takes two")
    table = _named_apart(table)
    pair = [axes.x, axes.y] if axes.x != axes.y else [axes.x]
    box = Box.of([_column(table, name) for name in pair], [less_is_better(name) for name in pair])
    table["standing"] = [standing.value for standing in standings(box)]
    table["efficient"] = efficient(box)
    table = table.sort_values(axes.x, ascending=less_is_better(axes.x), kind="stable", ignore_index=True)
    advice = _advice(table, axes, limits) if limits else None
    return Frontier(task.name, axes, table, incomplete, advice, rows.attrs.get("pooled", ""))


def _row(part: pd.DataFrame, columns: Sequence[str], metrics: Sequence[str], error: float) -> dict[str, object]:
    first = part.iloc[0]
    platform = [str(first[name]) for name in PLATFORM if name in columns and name != "device" and pd.notna(first[name])]
    row: dict[str, object] = {
        "choice": words_of(first, columns),
        "platform": ", ".join([str(first["device"]), *platform]),
        "runs": len(part),
        "run_ids": tuple(part["run_id"]),
    }
    for name in metrics:
        row[name], row[f"{name}_low"], row[f"{name}_high"] = estimate(part, name, error)
    return row


def _named_apart(table: pd.DataFrame) -> pd.DataFrame:
    """Choices that differ in their environment alone are numbered."""
    same = table.groupby("choice").cumcount()
    several = table["choice"].map(table["choice"].value_counts()) > 1
    names = [
        f"{name}, environment {number + 1}" if more else name
        for name, number, more in zip(table["choice"], same, several, strict=True)
    ]
    return table.assign(choice=names)


def _column(table: pd.DataFrame, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    value, low, high = (table[column].to_numpy(dtype="float64") for column in (name, f"{name}_low", f"{name}_high"))
    return value, low, high


def _advice(table: pd.DataFrame, axes: Quantities, limits: Mapping[str, float]) -> Advice:
    by = next((name for name in (axes.x, axes.y) if name not in limits), axes.x)
    count = len(table)
    kept, sure = np.ones(count, dtype=bool), np.ones(count, dtype=bool)
    excess = np.zeros(count)
    for name, limit in limits.items():
        sign = 1.0 if less_is_better(name) else -1.0
        value, low, high = _column(table, name)
        worst = high if sign > 0 else low
        kept &= sign * value <= sign * limit
        sure &= sign * worst <= sign * limit  # an unknown end is no sure one
        excess += np.maximum(0, sign * (value - limit)) / max(abs(limit), 1e-12)
    sign = 1.0 if less_is_better(by) else -1.0
    value, low, high = (sign * entry for entry in _column(table, by))
    low, high = (low, high) if sign > 0 else (high, low)
    names = table["choice"].to_numpy()
    if not kept.any():
        return Advice(by, nearest=str(names[int(excess.argmin())]))
    order = np.argsort(value, kind="stable")
    first = next((int(place) for place in order if sure[place]), None)
    bound = value[first] if first is not None else math.inf
    unsure = [str(names[place]) for place in order if kept[place] and not sure[place] and value[place] < bound]
    if first is None:
        return Advice(by, unsure=tuple(unsure))
    reach = high[first] if math.isfinite(high[first]) else math.inf
    rivals = [
        str(names[place])
        for place in order
        if sure[place] and place != first and (math.isnan(low[place]) or low[place] <= reach)
    ]
    return Advice(by, str(names[first]), tuple(rivals), tuple(unsure))


_GREY = "#999999"
_LIMIT = "#555555"
_PANELS = 6
_NAMED = 6


def draw_frontiers(found: Sequence[Frontier], limits: Mapping[str, float], currency: str) -> Figure:
    """A panel for each task, six at most; colours are platforms, bars the intervals that hold all at once."""
    shown = found[:_PANELS]
    columns = min(2, len(shown))
    rows = math.ceil(len(shown) / columns)
    drawn, axes = drawing.figure(6.2 * columns + 0.8, 4.6 * rows, rows, columns)
    panels = list(np.ravel(axes))
    platforms = list(dict.fromkeys(name for one in shown for name in one.table["platform"]))
    for panel, one in zip(panels, shown, strict=False):
        _panel(panel, one, platforms, limits, currency)
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    limited = any(name in (one.axes.x, one.axes.y) for one in shown for name in limits)
    drawn.legend(handles=_keys(platforms, limited), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return drawn


def _panel(axes: Axes, one: Frontier, platforms: Sequence[str], limits: Mapping[str, float], currency: str) -> None:
    x, y = one.axes.x, one.axes.y
    for _, row in one.table.iterrows():
        beaten, on = row["standing"] == Standing.BEATEN.value, row["standing"] == Standing.ON.value
        colour = _GREY if beaten else drawing.colour_of(row["platform"], platforms)
        axes.errorbar(
            row[x],
            row[y],
            xerr=_reach(row, x),
            yerr=_reach(row, y),
            fmt=drawing.marker_of(row["platform"], platforms),
            color=colour,
            markerfacecolor=colour if on or beaten else "white",
            markersize=4 if beaten else 7,
            elinewidth=0.8,
            capsize=2,
            alpha=0.6 if beaten else 1.0,
            zorder=2 if beaten else 3,
        )
    best = one.table[one.table["efficient"]].sort_values(x)
    axes.step(best[x], best[y], where="post" if less_is_better(x) else "pre", color=_LIMIT, linewidth=1, zorder=1)
    for _, row in best.head(_NAMED).iterrows():
        axes.annotate(row["choice"], (row[x], row[y]), (5, 5), textcoords="offset points", fontsize=7)
    for name, limit in limits.items():
        if name in (x, y):
            (axes.axvline if name == x else axes.axhline)(limit, color=_LIMIT, linewidth=1, linestyle="--")
    for name, scale in ((x, axes.set_xscale), (y, axes.set_yscale)):
        if not name.endswith(("accuracy", "fraction")) and (one.table[name] > 0).all():
            scale("log")
            drawing.log_ticks(axes.xaxis if name == x else axes.yaxis)
    drawing.finish(axes, one.task, _named(x, currency), _named(y, currency))


def _reach(row: pd.Series, metric: str) -> list[list[float]]:
    """How far the interval reaches down and up; where it is open, not at all."""
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    down, up = (distance if np.isfinite(distance) else 0.0 for distance in (row[metric] - low, high - row[metric]))
    return [[max(0.0, down)], [max(0.0, up)]]


def _named(metric: str, currency: str) -> str:
    unit = unit_of(metric)
    unit = currency if unit == "currency" else unit
    return f"{label(metric)} ({unit})" if unit else label(metric)


def _keys(platforms: Sequence[str], limited: bool) -> list[drawing.Line2D]:
    kinds = [("on the frontier", "black", "black", 7), ("undecided", "black", "white", 7), ("beaten", _GREY, _GREY, 4)]
    keys = [
        drawing.Line2D([], [], linestyle="", marker="o", color=edge, markerfacecolor=face, markersize=size, label=name)
        for name, edge, face, size in kinds
    ]
    keys += [drawing.Line2D([], [], color=_LIMIT, linewidth=1, linestyle="--", label="limit")] if limited else []
    return keys + [
        drawing.Line2D(
            [],
            [],
            linestyle="",
            marker=drawing.marker_of(name, platforms),
            color=drawing.colour_of(name, platforms),
            label=name,
        )
        for name in platforms
    ]
