"""`frontier`: find the choices of platform and configuration that no other choice beats.

Choices compete for the same work. They are compared in cost against latency or accuracy; without
prices, throughput takes the place of cost. Latency is a quantile of served queries, or the median
of closed runs. --x and --y compare any two metrics that have a better direction, such as the
tokens per second of a system against those of a user. With --limit, the output also recommends a
choice.

A choice beats another if it is no worse in any quantity and better in one (Pareto dominance). A
choice is beaten if another is shown to beat it, and on the frontier if none can. Otherwise it is
undecided. All of these statements hold at once with 95%: pairs of choices are tested by Shaffer's
step-down method (`paradnn.statistics.pairwise`). Choices that were measured in separate sessions
may differ by what a session does to its runs (`paradnn.statistics.priors`).

All intervals of a task hold at once with 95% (Bonferroni), so they also hold for the best choice.
The value of the best choice is a lucky one if others may be as good. It is therefore drawn toward
theirs (`paradnn.statistics.shrinkage`) where the answer names it; the table holds it as measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis.choices import PLATFORM, Task, describe_choice, estimate, recorded_interval, tasks
from analysis.format import format_number
from analysis.labels import column_unit, label
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options, column_option, option
from analysis.prices import PRICE, currency_of, price_option, read_prices, with_costs
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Highlight, Paragraph, Result, joined
from analysis.store.frame import is_ok, require_homogeneous
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.results import ResultDescription
from paradnn.core.words import counted
from paradnn.statistics.dependence import MINIMUM_POINTS, Component
from paradnn.statistics.effects import Schedule, SessionVariance, combine, unit_scatter
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.pairwise import find_differences
from paradnn.statistics.priors import classify_devices, scatter_priors
from paradnn.statistics.sessions import assign_sessions
from paradnn.statistics.shrinkage import luck_of_largest
from paradnn.statistics.variances import moderate_variances
from paradnn.store.metrics import METRICS

#: Better directions of metrics that are goals only in the context of a choice: the served rate and
#: the training time.
_BETTER = {"scheduled_queries_per_second": "higher", "learning_seconds": "lower"}
_LISTED = 5
_WRITTEN = 3  # tasks that are written out; with a limit all are
# Panels of a picture, and choices that are named in each panel, at most.
_PANELS = 6
_NAMED = 6
#: Sum of squared session weights of a pair of choices at most: two sessions, and drifts within.
_MAX_SESSIONS = 4.0
_GREY = "#999999"
_LIMIT = "#555555"
#: Standings of a choice among the others.
ON = "on the frontier"
UNDECIDED = "undecided"
BEATEN = "beaten"
#: Marker style of each standing, which overrides that of the platform.
_MARKERS: dict[str, dict[str, object]] = {
    ON: {},
    UNDECIDED: {"markerfacecolor": "white"},
    BEATEN: {"color": _GREY, "markersize": 4, "alpha": 0.6, "zorder": 2},
}


@dataclass(frozen=True, kw_only=True)
class FrontierOptions(Options):
    """Quantities to compare, price of an hour, and limits that a choice must keep."""

    x: str | None = column_option(
        None, "first quantity (default: cost, else throughput or time)", "METRIC"
    )
    y: str | None = column_option(None, "second quantity (default: latency or accuracy)", "METRIC")
    price: tuple[str, ...] = price_option("cost becomes a quantity to choose by")
    limit: tuple[tuple[str, str], ...] = option(
        (),
        "recommend a choice that keeps a limit, such as latency_p99_ms=15: a maximum, or a minimum if more is "
        "better; repeatable",
        metavar="METRIC=VALUE",
        several="repeat",
    )


def _list_sections(frame: pd.DataFrame) -> Iterator[SectionSpec]:
    """Yield the section if users were served, a model was trained, or inference was timed."""
    asked = ("scheduled_queries_per_second", "best_accuracy")
    if any(name in frame and frame[name].notna().any() for name in asked) or (
        "mode" in frame and frame["mode"].isin(["inference", "generate"]).any()
    ):
        yield SectionSpec()


@analysis(
    FrontierOptions,
    summary="what no other choice beats in cost, latency, throughput or accuracy, and which to choose",
    example="python -m analysis frontier --price V100=2 --limit latency_p99_ms=15 --figure frontier.png",
    gate="queries",
    section="all",
    order=150,
    title="What to choose",
    reading=(
        "The line joins the choices on the frontier. Filled: no other can be better; hollow: undecided; gray: beaten."
    ),
    list_sections=_list_sections,
)
def frontier(frame: pd.DataFrame, options: FrontierOptions) -> Result:
    """Compare measured choices by Pareto dominance; the table has a row for each choice.

    Raises:
        ConfigError: If a limit is not a number, or a quantity or limit is not of a metric that has
            a better direction.
        InsufficientData: If no task has two choices with both quantities.
    """
    prices = read_prices(options.price, frame)
    limits = {name: _number(name, value) for name, value in options.limit}
    frame = with_costs(frame, prices)
    found = frontiers(frame, limits, pool=options.pool, x=options.x, y=options.y)
    currency = currency_of(frame)
    largest = sorted(found, key=lambda one: -len(one.table))
    paragraphs = [*_paragraphs(found if limits else largest[:_WRITTEN], largest, limits, currency)]
    if prices:
        where = f": {prices.origin}" if prices.origin else ""
        paragraphs.append(Paragraph(f"Prices given here override those that runs recorded{where}."))
    table = pd.concat([one.table.assign(task=one.task) for one in found], ignore_index=True)
    best = Highlight("What to choose", " ".join(_best(one, currency) for one in largest[:_WRITTEN]))
    return Result(
        numbers=table[["task", *table.columns.drop(["task", "run_ids"])]],
        answer=_answer(largest, limits, currency),
        sentences=paragraphs,
        picture=lambda: _draw(largest, limits, currency),
        sources=tuple(table["run_ids"].explode()),
        pooled=joined(one.pooled for one in found),
        stands_out=best if frame[PRICE].notna().any() else None,
    )


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            "--limit", f"{name}={value}", "is not a number", "write for example latency_p99_ms=15"
        )
    return number


def _paragraphs(
    written: Sequence[Frontier],
    largest: Sequence[Frontier],
    limits: Mapping[str, float],
    currency: str,
) -> Iterator[Paragraph]:
    """Describe the tasks in `written`, and then all tasks together.

    Args:
        written: The tasks that are written out.
        largest: All tasks, the one with the most choices first.
        limits: Metric -> the limit that a choice must keep.
        currency: Currency of the costs.
    """
    for one in written:
        yield _describe(one, currency)
        if limits:
            yield _advise(one, limits, currency)
    rest = largest[len(written) :]
    if rest:
        sizes = " to ".join(dict.fromkeys(str(len(one.table)) for one in (rest[-1], rest[0])))
        yield Paragraph(f"{counted(len(rest), 'further task')} of {sizes} choices: see the table.")
    if not limits:  # about half of the choices keep a limit at the median
        limit = f"{written[0].y}={written[0].table[written[0].y].median():.3g}"
        yield Paragraph(f"To get a recommendation, state a requirement, such as --limit {limit}.")
    yield Paragraph(
        "A choice is beaten if another is shown to beat it, and on the frontier if none can; "
        "otherwise it is undecided. All of these statements hold at once with 95%."
    )
    if any(one.apart for one in largest):
        yield Paragraph(
            "Choices that were measured in separate sessions may differ by effects of those sessions."
        )


def _answer(
    largest: Sequence[Frontier], limits: Mapping[str, float], currency: str
) -> AnalysisAnswer:
    """State which choice to take for the limits, else the best choice in either quantity."""
    one = largest[0]
    if limits:
        sentence = _advise(one, limits, currency).head
    else:
        sentence = _best(one, currency)
    if len(largest) > 1:
        sentence = f"{sentence.removesuffix('.')} ({counted(len(largest) - 1, 'more task')} below)."
    return AnalysisAnswer(
        sentence=sentence, points=len(one.table), basis="the intervals of the choices"
    )


def _best(one: Frontier, currency: str) -> str:
    """Name the best choice in either quantity, with its interval, in a sentence."""
    best = []
    for name, other in ((one.x, one.y), (one.y, one.x)):
        row = one.table.sort_values(name, ascending=less_is_better(name), kind="stable").iloc[0]
        value = _describe_best(row, name, one.expected[name], currency)
        second = _quantity(row, other, currency, interval=False)
        best.append(f"{row['choice']} in {label(name)}: {value}, with {second}")
    choices = counted(len(one.table), "choice")
    return f"{one.task}: of {choices} the best are {'; and '.join(best)}."


def _describe_best(row: pd.Series, metric: str, expected: float, currency: str) -> str:
    """Format the best value of a metric: expected, with its interval, and as measured."""
    unit = _unit(metric, currency)
    text = format_number(expected, unit, digits=3)
    measured = format_number(row[metric], unit, digits=3)
    remarks = [_interval(row, metric)]
    if text != measured:
        remarks.append(f"{measured} as measured")
    known = [remark for remark in remarks if remark]
    if not known:
        return text
    return f"{text} ({'; '.join(known)})"


def _describe(one: Frontier, currency: str) -> Paragraph:
    standing = one.table["standing"]
    counts = ", ".join(f"{int((standing == each).sum())} {each}" for each in _MARKERS)
    rows = one.table[one.table["standing"] != BEATEN]
    points = [
        f"{row['choice']}: {_quantity(row, one.x, currency)}, {_quantity(row, one.y, currency)}"
        + ("" if row["standing"] == ON else " (undecided)")
        for _, row in rows.head(_LISTED).iterrows()
    ]
    ends = [f"{name}_{end}" for name in (one.x, one.y) for end in ("low", "high")]
    unknown = int(one.table[ends].isna().any(axis=1).sum())
    for count, words in (
        (len(rows) - _LISTED, "not listed, see --csv."),
        (unknown, "with an open interval: measure longer, or replicates."),
        (one.incomplete, "omitted for lack of one of the quantities."),
    ):
        points += [f"{counted(count, 'choice')} {words}"] if count > 0 else []
    choices = counted(len(one.table), "choice")
    return Paragraph(
        f"{one.task}: of {choices} in {label(one.x)} against {label(one.y)}, {counts}.",
        tuple(points),
    )


def _quantity(row: pd.Series, metric: str, currency: str, *, interval: bool = True) -> str:
    """Format a quantity of a choice, with its interval if requested."""
    words = f"{label(metric)} {format_number(row[metric], _unit(metric, currency), digits=3)}"
    ends = _interval(row, metric)
    if not interval or not ends:
        return words
    return f"{words} ({ends})"


def _interval(row: pd.Series, metric: str) -> str:
    """Format the interval of a quantity of a choice; empty for an exact value."""
    low = row[f"{metric}_low"]
    high = row[f"{metric}_high"]
    if low == high:
        return ""
    low_text = format_number(low, digits=3)
    high_text = format_number(high, digits=3)
    if pd.isna(low) and pd.isna(high):
        return "open interval"
    if pd.isna(low):
        return f"at most {high_text}"
    if pd.isna(high):
        return f"at least {low_text}"
    return f"{low_text} to {high_text}"


def _unit(metric: str, currency: str) -> str:
    unit = column_unit(metric)
    return currency if unit == "currency" else unit


def _advise(one: Frontier, limits: Mapping[str, float], currency: str) -> Paragraph:
    """Recommend a choice that keeps the limits.

    Of the choices that certainly keep all limits, it is the best in the first quantity without a
    limit. Choices that may be equally good are listed. If no choice keeps the limits, the nearest
    one is named.
    """
    by = next((name for name in (one.x, one.y) if name not in limits), one.x)
    table = one.table.sort_values(by, ascending=less_is_better(by), kind="stable")
    _, low, high = _ends(table, by)
    signed = {name: limit if less_is_better(name) else -limit for name, limit in limits.items()}
    over = np.array([_ends(table, name) - most for name, most in signed.items()])
    # Comparisons with NaN are false, so a choice with an unknown end never certainly keeps a limit.
    kept, sure = ((over[:, end] <= 0).all(axis=0) for end in (0, 2))
    asked = " and ".join(
        f"{label(name)} at {'most' if less_is_better(name) else 'least'} "
        f"{format_number(limit, _unit(name, currency), digits=4)}"
        for name, limit in limits.items()
    )

    def describe(position: int, why: str = "") -> str:
        row = table.iloc[position]
        return f"{row['choice']}{why}: {', '.join(_quantity(row, metric, currency) for metric in (by, *limits))}"

    if not kept.any():
        scale = np.maximum(np.abs([*signed.values()]), 1e-12)
        nearest = int((over[:, 0].clip(0) / scale[:, None]).sum(axis=0).argmin())
        return Paragraph(
            f"For {asked} no choice of {one.task} qualifies; the nearest is {describe(nearest)}."
        )
    if not sure.any():
        return Paragraph(
            f"For {asked} no choice of {one.task} qualifies with certainty; it may be {describe(int(kept.argmax()))}."
        )
    best = int(sure.argmax())
    others = kept & ~(low > high[best]) & (np.arange(len(table)) != best)
    why = f", of the {'lowest' if less_is_better(by) else 'highest'} {label(by)} among those that qualify with certainty"
    points: tuple[str, ...] = ()
    if others.any():
        points = (f"May be as good: {'; '.join(table['choice'][others][:_LISTED])}.",)
    return Paragraph(f"For {asked} choose {describe(best, why)}.", points)


class Ordering(NamedTuple):
    """Knowledge about the order of n choices in one quantity; less is better.

    Each field is an (n, n) table about choice i against choice j.

    Attributes:
        no_worse: Whether it is certainly no worse.
        better: Whether it is certainly better.
        may_be_no_worse: Whether it may be no worse.
        may_be_better: Whether it may be better.
    """

    no_worse: np.ndarray
    better: np.ndarray
    may_be_no_worse: np.ndarray
    may_be_better: np.ndarray

    @classmethod
    def of_intervals(cls, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> Ordering:
        """Compare choices by intervals that hold at once.

        The ends are NaN if no interval is known. Then the value serves as the low end in the test
        whether the choice may be better, and nothing about the choice itself is certain.

        Args:
            value: (n,) values.
            low: (n,) low ends.
            high: (n,) high ends.
        """
        least = np.where(np.isnan(low), -np.inf, low)
        most = np.where(np.isnan(high), np.inf, high)
        best = np.where(np.isnan(low), value, low)
        return cls(
            no_worse=most[:, None] <= least[None, :],
            better=most[:, None] < least[None, :],
            may_be_no_worse=best[:, None] <= most[None, :],
            may_be_better=best[:, None] < most[None, :],
        )

    @classmethod
    def of_differences(
        cls, differences: np.ndarray, errors: Sequence[Component], rate: float
    ) -> Ordering:
        """Compare choices by their differences (see `find_differences`)."""
        differ = find_differences(differences, errors, rate)
        return cls._of_signs(differences, differ, errors)

    @classmethod
    def of_single_pairs(cls, differences: np.ndarray, errors: Sequence[Component]) -> Ordering:
        """Compare each pair of choices as if it were the only one."""
        squares = sum(one.half_width**2 for one in errors)
        return cls._of_signs(differences, np.abs(differences) > np.sqrt(squares), errors)

    @classmethod
    def _of_signs(
        cls, differences: np.ndarray, differ: np.ndarray, errors: Sequence[Component]
    ) -> Ordering:
        is_exact = sum(one.variance for one in errors) == 0
        is_equal = is_exact & (differences == 0)
        better = differ & (differences < 0)
        return cls(
            no_worse=better | is_equal,
            better=better,
            may_be_no_worse=~better.T,
            may_be_better=~better.T & ~is_equal,
        )


def dominance(orders: Sequence[Ordering]) -> tuple[np.ndarray, np.ndarray]:
    """Compare all pairs of choices in all quantities.

    A choice beats another if it is no worse in any quantity and better in one.

    Returns:
        Two (n, n) tables: whether choice i certainly beats choice j, and whether it may.
    """
    surely = np.all([one.no_worse for one in orders], axis=0)
    surely &= np.any([one.better for one in orders], axis=0)
    may = np.all([one.may_be_no_worse for one in orders], axis=0)
    may &= np.any([one.may_be_better for one in orders], axis=0)
    return surely, may


def standings(surely: np.ndarray, may: np.ndarray) -> list[str]:
    """Return the standing of each choice.

    Args:
        surely: (n, n) whether choice i certainly beats choice j (see `dominance`).
        may: (n, n) whether choice i may beat choice j.
    """
    return [*map(str, np.select([_by_others(surely), _by_others(may)], [BEATEN, UNDECIDED], ON))]


def efficient(values: np.ndarray) -> np.ndarray:
    """Return (n,) whether no other choice beats a choice at their values (k, n)."""
    exact = [Ordering.of_intervals(one, one, one) for one in values]
    return ~_by_others(dominance(exact)[0])


def _by_others(table: np.ndarray) -> np.ndarray:
    """Return (n,) whether a table (n, n) is true of any other choice against this one."""
    return np.asarray((table & ~np.eye(len(table), dtype=bool)).any(axis=0))


@dataclass(frozen=True)
class Frontier:
    """Choices of one task in two quantities.

    Attributes:
        task: Name of the task.
        x: Metric of the first quantity.
        y: Metric of the second quantity.
        table: A row for each choice, the best in `x` (the cheapest) first: `choice`, `platform`,
            `runs`, `run_ids`, the quantities with `_low` and `_high`, `standing`, and whether the
            choice is `efficient` at its values.
        incomplete: Number of choices without one of the quantities.
        apart: Whether sessions decided the standing of some choices.
        expected: Value of the best choice in either quantity, corrected for having been selected.
        pooled: Description of pooled heterogeneous runs; empty if none were pooled.
    """

    task: str
    x: str
    y: str
    table: pd.DataFrame
    incomplete: int
    apart: bool
    expected: Mapping[str, float]
    pooled: str = ""


def less_is_better(metric: str, flag: str = "--limit") -> bool:
    """Whether less of a metric is better.

    Args:
        metric: Name of the metric.
        flag: The option that an error names.

    Raises:
        ConfigError: If the metric is unknown or has no better direction.
    """
    known = METRICS.get(metric)
    better = _BETTER.get(metric, known.better if known else None)
    if better is None:
        if known:
            problem = "has no better direction"
        else:
            problem = "is not a metric"
        remedy = "choose one that python -m paradnn list metrics names, such as latency_p99_ms"
        raise ConfigError(flag, metric, problem, remedy)
    return better == "lower"


def frontiers(
    frame: pd.DataFrame,
    limits: Mapping[str, float] | None = None,
    *,
    pool: bool = False,
    x: str | None = None,
    y: str | None = None,
) -> list[Frontier]:
    """Return a frontier for each task with two choices or more.

    Args:
        frame: The runs.
        limits: Metric -> its upper limit, or its lower limit if more is better.
        pool: Whether to pool heterogeneous runs.
        x: First quantity. By default the cost; without prices throughput or time.
        y: Second quantity. By default latency or accuracy.

    Raises:
        ConfigError: If a quantity or a limit is of no metric that has a better direction, or both
            quantities are the same.
        InsufficientData: If no task has two choices with both quantities.
    """
    limits = limits or {}
    for flag, name in (*(("--limit", name) for name in limits), ("--x", x), ("--y", y)):
        if name is not None:
            less_is_better(name, flag)
    if x is not None and x == y:
        raise ConfigError("--y", y, "is the same as --x", "name another metric")
    used = is_ok(frame)
    if "best_accuracy" in frame:  # trainings count even if they missed their target
        used = used | (
            frame["best_accuracy"].notna() & frame["outcome"].eq("timeout").fillna(False)
        )
    found = []
    omitted = []
    for task in tasks(frame[used]):
        try:
            found.append(_frontier(task, list(limits), pool=pool, quantities=(x, y)))
        except InsufficientData as problem:
            omitted.append(InsufficientData(str(problem), group=task.name))
    if not found:
        raise InsufficientData(
            "no task has two choices to compare",
            groups=omitted or [InsufficientData("no ok run", group="all runs")],
            remedy="measure more, such as python -m paradnn.train -m mode=inference batch_size=1,8,64",
        )
    return found


def _frontier(
    task: Task,
    limits: Sequence[str],
    *,
    pool: bool,
    quantities: tuple[str | None, str | None],
) -> Frontier:
    rows = require_homogeneous(task.rows, ("protocol_id", "schema_version"), pool=pool)
    x, y = _quantities(task, rows, quantities)
    metrics = list(dict.fromkeys([x, y, *limits]))
    missing = [name for name in metrics if name not in rows or not rows[name].notna().any()]
    if missing:
        raise InsufficientData(f"no run has {', '.join(missing)}")
    choices = _complete_choices(task, rows, metrics)
    table = choices.table
    runs = [[scatters[name] for name in (x, y)] for scatters in choices.run_scatters]
    tables, apart = _over_sessions(table, choices.parts, (x, y), runs)
    values = np.stack([_ends(table, name)[0] for name in (x, y)])
    expected = {
        name: _expected_best(table[name].to_numpy(dtype="float64"), choices.parts, name, known)
        for name, known in zip((x, y), zip(*runs, strict=True), strict=True)
    }
    table = table.assign(standing=standings(*tables), efficient=efficient(values))
    table = table.sort_values(x, ascending=less_is_better(x), kind="stable", ignore_index=True)
    return Frontier(
        task=task.name,
        x=x,
        y=y,
        table=table,
        incomplete=choices.incomplete,
        apart=apart,
        expected=expected,
        pooled=rows.attrs.get("pooled", ""),
    )


class _Choices(NamedTuple):
    """The choices of a task that have all metrics.

    Attributes:
        table: A row per choice.
        parts: The runs of each choice.
        run_scatters: Per choice and metric, the variance of the logarithm of one run, as in
            `_Scatter`.
        incomplete: Number of choices that lack a metric.
    """

    table: pd.DataFrame
    parts: list[pd.DataFrame]
    run_scatters: list[dict[str, Component | None]]
    incomplete: int


def _complete_choices(task: Task, rows: pd.DataFrame, metrics: Sequence[str]) -> _Choices:
    """Estimate the metrics of each choice.

    Raises:
        InsufficientData: If fewer than two choices have all metrics.
    """
    columns = [name for name in task.varies if name in rows]
    if columns:
        groups = [part for _, part in rows.groupby(columns, dropna=False, sort=False)]
    else:
        groups = [rows]
    # Intervals hold simultaneously over all choices and quantities (Bonferroni).
    error = (1 - LEVEL) / (len(groups) * len(metrics))
    shown = [name for name in columns if name != "environment_id"]
    scatters = {name: _Scatter.unknown(len(groups)) for name in metrics}
    if task.has_step_times:
        scatters = {name: _Scatter.of(groups, name) for name in metrics}
    table = pd.DataFrame(
        [_row(part, shown, scatters, position, error) for position, part in enumerate(groups)]
    )
    is_complete = table[list(metrics)].notna().all(axis=1)
    table = table[is_complete].reset_index(drop=True)
    if len(table) < 2:
        raise InsufficientData(
            f"{counted(len(table), 'choice')} with {' and '.join(metrics)}, it takes two"
        )
    table["choice"] = _number_duplicates(table["choice"])
    kept = np.flatnonzero(is_complete).tolist()
    return _Choices(
        table=table,
        parts=[groups[position] for position in kept],
        run_scatters=[
            {name: scatters[name].runs[position] for name in metrics} for position in kept
        ],
        incomplete=len(groups) - len(kept),
    )


def _number_duplicates(choices: pd.Series) -> pd.Series:
    """Number the choices that differ only in their environment."""
    numbers = (choices.groupby(choices).cumcount() + 1).astype(str)
    return choices.where(~choices.duplicated(keep=False), choices + ", environment " + numbers)


def _quantities(
    task: Task, rows: pd.DataFrame, requested: tuple[str | None, str | None]
) -> tuple[str, str]:
    """Return the requested quantities; defaults take the place of those that are None."""
    x, y = requested
    *candidates, default_y = task.work.role(ResultDescription).objectives
    if y is None:
        y = default_y
    if x is None:
        others = [name for name in candidates if name != y]
        recorded = [name for name in others if name in rows and rows[name].notna().any()]
        x = recorded[0] if recorded else others[-1]
    if x == y:
        raise InsufficientData(f"--x and the default of --y are both {x}; name --y, too")
    return x, y


def _over_sessions(
    table: pd.DataFrame,
    parts: Sequence[pd.DataFrame],
    names: Sequence[str],
    runs: Sequence[Sequence[Component | None]],
) -> tuple[tuple[np.ndarray, np.ndarray], bool]:
    """Compare all pairs of choices, and allow for differences between their sessions.

    Rates and times are compared by logarithms. Each choice has the noise within its sessions. A
    pair may further differ by the effects of sessions that it does not share, whose variance is the
    posterior of its prior after the choices' repeated sessions. Exact values, such as a rate that a
    schedule set, and qualities do not depend on the session.

    All statements hold at once with 95%. They follow from the signs of the pairs' differences in
    two quantities. A sign is wrong with 2.5% at any pair of one quantity (`find_differences` at 5%,
    two-sided), or outside the intervals of a quality with 2.5% (Bonferroni).

    Args:
        table: The n choices, with `_low` and `_high` of each metric.
        parts: (n,) the runs of each choice.
        names: (k,) the metrics.
        runs: (n, k) variance of the logarithm of one run, where more than the runs of the choice is
            known about it.

    Returns:
        The tables of `dominance`, and whether sessions decided any of their entries.
    """
    count = len(table)
    of_qualities = []
    measured = []
    for place, name in enumerate(names):
        values = table[name].to_numpy(dtype="float64")
        if _is_quality(name, values):
            of_qualities.append(Ordering.of_intervals(*_ends(table, name)))
            continue
        sign = 1 if less_is_better(name) else -1
        logs = sign * np.log(values)
        noise = [_noise(part, name, known[place]) for part, known in zip(parts, runs, strict=True)]
        measured.append(_Differences.of(logs, noise))
    session = _session_variance(parts, names)
    priors = scatter_priors(classify_devices(*parts))
    if not any(one.has_noise for one in measured):
        none = Component(np.zeros((count, count)), np.inf)
        return dominance([*of_qualities, *(one.order(none) for one in measured)]), False
    most = Component(np.full((count, count), _MAX_SESSIONS * session.variance), session.freedom)
    plain = dominance([*of_qualities, *(one.single_order() for one in measured)])
    wide = dominance([*of_qualities, *(one.order(most) for one in measured)])
    # Only pairs that decide a standing are arranged, which takes some 10 ms for each. The others
    # keep the largest effect of sessions.
    beaten = _by_others(wide[0])
    unsure = _by_others(plain[1])
    asked = ((plain[0] & ~wide[0]) | (wide[1] & ~plain[1] & ~unsure)) & ~beaten
    variance = most.variance.copy()
    freedom = np.full((count, count), session.freedom)
    apart = False
    for i, j in zip(*np.nonzero(np.triu(asked | asked.T)), strict=True):
        schedule = Schedule.of(parts[i], parts[j])
        effects = [
            effect.component for effect in schedule.effects(SessionVariance(*session), priors)
        ]
        of_pair = Component(0.0, np.inf)
        if effects:
            of_pair = combine(effects)
            apart = True
        variance[[i, j], [j, i]] = of_pair.variance
        freedom[[i, j], [j, i]] = of_pair.freedom
    reach = Component(variance, freedom)
    return dominance([*of_qualities, *(one.order(reach) for one in measured)]), apart


@dataclass(frozen=True, eq=False)
class _Differences:
    """A measured quantity of n choices.

    Attributes:
        differences: (n, n) logarithm of choice i minus that of choice j.
        noise: Variance of each difference from the noise of choice i, and from that of choice j.
    """

    differences: np.ndarray
    noise: tuple[Component, Component]

    @classmethod
    def of(cls, logs: np.ndarray, noise: Sequence[Component]) -> _Differences:
        shape = (len(logs), len(logs))
        variance = np.broadcast_to([float(one.variance) for one in noise], shape)
        freedom = np.broadcast_to([float(one.freedom) for one in noise], shape)
        both = (Component(variance.T, freedom.T), Component(variance, freedom))
        return cls(logs[:, None] - logs[None, :], both)

    @property
    def has_noise(self) -> bool:
        """Whether the quantity of any choice is not exact."""
        return bool((self.noise[0].variance > 0).any())

    def order(self, sessions: Component) -> Ordering:
        """Return the order with the effects of sessions (n, n) on inexact differences."""
        is_noisy = sum(one.variance for one in self.noise) > 0
        effects = Component(np.where(is_noisy, sessions.variance, 0.0), sessions.freedom)
        return Ordering.of_differences(self.differences, [*self.noise, effects], 1 - LEVEL)

    def single_order(self) -> Ordering:
        """Return the order of each pair as if it were the only one, in one session."""
        return Ordering.of_single_pairs(self.differences, self.noise)


@dataclass(frozen=True)
class _Scatter:
    """Knowledge about the scatter of one metric that all choices of a task share.

    Attributes:
        runs: Posterior variance of the logarithm of one run of each choice; None if only the runs
            of the choice are known.
        session: The same for the mean of a session.
    """

    runs: Sequence[Component | None]
    session: Component | None

    @classmethod
    def unknown(cls, count: int) -> _Scatter:
        """Return the scatter of a metric without a prior."""
        return cls([None] * count, None)

    @classmethod
    def of(cls, parts: Sequence[pd.DataFrame], metric: str) -> _Scatter:
        """Update the priors of step times by the runs of all choices.

        The choices have the mean scatter of all. From MINIMUM_POINTS choices with replicates on,
        each has its own, shrunk toward that of the others.
        """
        known = [part[part[metric].gt(0).fillna(False)] for part in parts if metric in part]
        if len(known) < len(parts):
            return cls.unknown(len(parts))
        own = [_within_sessions(part, metric) for part in known]
        variances = np.array([one.variance for one in own])
        freedoms = np.array([one.freedom for one in own])
        prior = scatter_priors(classify_devices(*parts)).process
        total = float(freedoms.sum())
        mean = 0.0
        if total:
            mean = float((variances * freedoms).sum()) / total
        posterior = prior.update(mean, total)
        runs: list[Component | None] = [posterior] * len(parts)
        if ((variances > 0) & (freedoms > 0)).sum() >= MINIMUM_POINTS:
            moderated = moderate_variances(variances, freedoms)
            for position in np.flatnonzero(freedoms > 0):
                runs[position] = Component(
                    moderated.variance[position], moderated.freedom[position]
                )
        return cls(runs, _session_variance(parts, [metric]))


def _within_sessions(part: pd.DataFrame, metric: str) -> Component:
    """Return the variance of a run's logarithm within the sessions of a choice."""
    logs = pd.Series(np.log(part[metric].to_numpy(dtype="float64")))
    sessions = pd.Series(assign_sessions(part)).fillna("")
    deviations = logs - logs.groupby(sessions.to_numpy()).transform("mean")
    freedom = len(part) - sessions.nunique()
    if freedom <= 0 or not bool((deviations != 0).any()):
        return Component(0.0, 0.0)
    return Component(float((deviations**2).sum()) / freedom, float(freedom))


def _is_quality(metric: str, values: np.ndarray) -> bool:
    """Whether values of a metric are compared by differences instead of ratios."""
    return metric.endswith(("accuracy", "fraction")) or bool((values <= 0).any())


def _expected_best(
    values: np.ndarray,
    parts: Sequence[pd.DataFrame],
    metric: str,
    runs: Sequence[Component | None],
) -> float:
    """Return the expected value of the best choice; it was also lucky if others may be as good.

    Args:
        values: (n,) value of each choice.
        parts: (n,) the runs of each choice.
        metric: The quantity.
        runs: (n,) variance of the logarithm of one run, where more than the runs of the choice is
            known about it.
    """
    sign = -1 if less_is_better(metric) else 1
    if _is_quality(metric, values):
        errors = np.array([part[metric].astype("float64").sem() for part in parts], dtype=float)
        scores = sign * values
        return float(sign * (scores.max() - luck_of_largest(scores, errors)))
    scores = sign * np.log(values)
    noise = [_noise(part, metric, run) for part, run in zip(parts, runs, strict=True)]
    variances = np.array([float(one.variance) for one in noise])
    is_exact = variances == 0
    variances += np.where(is_exact, 0.0, _session_luck(parts, metric))
    best = scores.max() - luck_of_largest(scores, np.sqrt(variances))
    return math.exp(sign * best)


def _session_luck(parts: Sequence[pd.DataFrame], metric: str) -> np.ndarray:
    """Return the variance (n,) that sessions add to a choice relative to the mean of all choices.

    It is 0 if all choices have the same share of their runs in each session.
    """
    rows = pd.concat(parts, ignore_index=True)
    choice = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    session = pd.Series(assign_sessions(rows)).fillna("").to_numpy()
    shares = pd.crosstab(choice, session, normalize="index").to_numpy()
    distance = shares - shares.mean(axis=0)
    variance = _session_variance(parts, [metric]).variance
    return np.asarray((distance**2).sum(axis=1) * variance)


def _noise(part: pd.DataFrame, metric: str, run: Component | None = None) -> Component:
    """Return the variance of a choice's mean logarithm that is due to noise within its sessions.

    It comes from the runs of the same session. Without such runs it is that of the recorded
    intervals, to which the prior of the scatter between processes is added if a run timed one
    process or has no interval. A value that a schedule fixed has no noise.

    Args:
        part: The runs of the choice.
        metric: The quantity.
        run: Variance of the logarithm of one run, if more than these runs is known about it.
    """
    known = part[part[metric].notna()]
    count = len(known)
    own = _within_sessions(known, metric)
    if own.freedom > 0:
        used = run or own
        return Component(used.variance / count, used.freedom)
    ends = np.array([recorded_interval(metric, row) for _, row in known.iterrows()])
    if (ends[:, 0] == ends[:, 1]).all():
        return Component(0.0, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.log(ends[:, 1] / ends[:, 0]) / 2 / stats.norm.ppf((1 + LEVEL) / 2)
    has_interval = np.isfinite(errors)
    recorded = Component(float((errors[has_interval] ** 2).sum()) / count**2, np.inf)
    processes = np.full(count, math.nan)
    if "processes" in known:
        processes = known["processes"].to_numpy(dtype="float64", na_value=np.nan)
    is_short = (processes == 1) | ~has_interval
    prior = scatter_priors(classify_devices(part)).process
    between = Component(int(is_short.sum()) * prior.scale**2 / count**2, prior.freedom)
    return combine([one for one in (recorded, between) if one.variance > 0])


def _session_variance(parts: Sequence[pd.DataFrame], names: Sequence[str]) -> Component:
    """Return the posterior variance of sessions, the largest that any of the metrics shows."""
    rows = pd.concat(parts, ignore_index=True)
    choice = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    session = pd.factorize(pd.Series(assign_sessions(rows)).fillna(""))[0]
    prior = scatter_priors(classify_devices(rows)).session
    found = []
    for name in names:
        values = rows[name].to_numpy(dtype="float64", na_value=np.nan)
        is_known = values > 0
        if is_known.any():
            logs = np.log(values[is_known])
            scatter = unit_scatter(logs, choice[is_known], session[is_known])
            found.append(prior.update(scatter.variance, scatter.freedom))
    return max(found, key=lambda one: one.variance, default=prior.update())


def _row(
    part: pd.DataFrame,
    columns: Sequence[str],
    scatters: Mapping[str, _Scatter],
    position: int,
    error: float,
) -> dict[str, object]:
    """Return the row of a choice, whose runs are the part at `position`."""
    first = part.iloc[0]
    platform = [
        str(first[name])
        for name in PLATFORM
        if name in columns and name != "device" and pd.notna(first[name])
    ]
    row: dict[str, object] = {
        "choice": describe_choice(first, columns),
        "platform": ", ".join([str(first["device"]), *platform]),
        "runs": len(part),
        "run_ids": tuple(part["run_id"]),
    }
    for name, scatter in scatters.items():
        row[name], row[f"{name}_low"], row[f"{name}_high"] = estimate(
            part, name, error, run=scatter.runs[position], session=scatter.session
        )
    return row


def _ends(table: pd.DataFrame, name: str) -> np.ndarray:
    """Return (3, n) the value, low and high end of a quantity, turned so that less is better."""
    found = table[[name, f"{name}_low", f"{name}_high"]].to_numpy(dtype="float64").T
    return found if less_is_better(name) else -found[[0, 2, 1]]


def _draw(found: Sequence[Frontier], limits: Mapping[str, float], currency: str) -> drawing.Figure:
    """Draw a panel for each of up to six tasks, with the line that no choice beats.

    Filled marks are on the frontier, hollow ones undecided and gray ones beaten. Colors are
    platforms. Bars are the intervals that hold at once.
    """
    shown = found[:_PANELS]
    drawn, panels = drawing.panels(len(shown), 6.2, 4.4, across=2)
    platforms = list(dict.fromkeys(name for one in shown for name in one.table["platform"]))
    for axes, one in zip(panels, shown, strict=True):
        _panel(axes, one, platforms, limits, currency)
    size: dict[str, object] = {"marker": "o", "markersize": 7, "color": "black"}
    handles = [drawing.handle(standing, **(size | look)) for standing, look in _MARKERS.items()]
    if any(name in (one.x, one.y) for one in shown for name in limits):
        handles.append(drawing.handle("limit", color=_LIMIT, linewidth=1, linestyle="--"))
    drawing.legend(
        drawn,
        [*handles, *(drawing.handle(name, **drawing.look(name, platforms)) for name in platforms)],
    )
    return drawn


def _panel(
    axes: drawing.Axes,
    one: Frontier,
    platforms: Sequence[str],
    limits: Mapping[str, float],
    currency: str,
) -> None:
    x = one.x
    y = one.y
    for row in one.table.to_dict("records"):
        look = drawing.look(row["platform"], platforms) | {
            "markersize": 7,
            "elinewidth": 0.8,
            "zorder": 3,
        }
        ends = {
            f"{axis}_ends": (row[f"{name}_low"], row[f"{name}_high"])
            for axis, name in (("x", x), ("y", y))
        }
        drawing.marks(axes, row[x], row[y], **ends, **(look | _MARKERS[row["standing"]]))
    best = one.table[one.table["efficient"]].sort_values(x)
    axes.step(
        best[x],
        best[y],
        where="post" if less_is_better(x) else "pre",
        color=_LIMIT,
        linewidth=1,
        zorder=1,
    )
    for row in best.head(_NAMED).to_dict("records"):
        axes.annotate(
            row["choice"], (row[x], row[y]), (5, 5), textcoords="offset points", fontsize="small"
        )
    for name, limit in limits.items():
        if name in (x, y):
            (axes.axvline if name == x else axes.axhline)(
                limit, color=_LIMIT, linewidth=1, linestyle="--"
            )
    for name, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if not name.endswith(("accuracy", "fraction")) and (one.table[name] > 0).all():
            scale("log")
            drawing.log_ticks(axis)
    units = [(name, _unit(name, currency)) for name in (x, y)]
    drawing.finish(
        axes,
        one.task,
        *(f"{label(name)} ({unit})" if unit else label(name) for name, unit in units),
    )
