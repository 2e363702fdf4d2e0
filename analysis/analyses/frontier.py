"""`frontier`: find the choices of platform and configuration that no other choice beats.

Choices that do the same work (a task) are compared in two quantities: cost, and latency or
accuracy. Without prices, throughput replaces cost. Latency is a quantile over served queries or, in
a closed loop, the median over batches. --x and --y select any two metrics that have a better
direction (higher or lower), such as the tokens per second of the system and of one user. With
--limit, the output also recommends a choice.

A choice beats another choice if it is no worse in both quantities and better in at least one
(Pareto dominance). A choice is beaten if the measurements show that another choice beats it. It is
on the frontier if no other choice can beat it. Otherwise it is undecided. All of these statements
hold simultaneously with 95% confidence: Shaffer's step-down method tests the pairs of choices
(`paradnn.statistics.pairwise`). If choices were measured in separate sessions, the test allows for
session effects (`paradnn.statistics.priors`).

All intervals of a task hold simultaneously with 95% confidence (Bonferroni), so they also hold for
the best choice. If other choices may be as good, the best measured value overstates the advantage
of its choice (selection bias). The answer therefore shrinks it toward the other values
(`paradnn.statistics.shrinkage`). The table contains the measured value.
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

#: Better direction of the offered query rate and of the training time. `METRICS` gives them none,
#: because they have a better direction only in a comparison of choices.
_BETTER = {"scheduled_queries_per_second": "higher", "learning_seconds": "lower"}
#: Maximum number of choices that a paragraph lists.
_MAX_LISTED = 5
#: Maximum number of tasks that are described in sentences. With --limit, all tasks are described.
_DESCRIBED_TASKS = 3
#: Maximum number of panels in a figure, and maximum number of labeled choices in a panel.
_MAX_PANELS = 6
_MAX_LABELED = 6
#: Upper bound of the variance that sessions add to the difference of two choices, in units of the
#: variance of one session effect. It covers the effects of both sessions and the drift within them.
_MAX_SESSION_FACTOR = 4.0
_BEATEN_COLOR = "#999999"
_LINE_COLOR = "#555555"
#: Possible standings of a choice compared with all other choices of its task.
ON = "on the frontier"
UNDECIDED = "undecided"
BEATEN = "beaten"
#: Marker style of each standing. It overrides the marker style of the platform.
_MARKERS: dict[str, dict[str, object]] = {
    ON: {},
    UNDECIDED: {"markerfacecolor": "white"},
    BEATEN: {"color": _BEATEN_COLOR, "markersize": 4, "alpha": 0.6, "zorder": 2},
}


@dataclass(frozen=True, kw_only=True)
class FrontierOptions(Options):
    """Options of the command `frontier`: the quantities to compare, prices, and limits."""

    x: str | None = column_option(
        None, "first quantity (default: cost, else throughput or time)", "METRIC"
    )
    y: str | None = column_option(None, "second quantity (default: latency or accuracy)", "METRIC")
    price: tuple[str, ...] = price_option("adds cost to the compared quantities")
    limit: tuple[tuple[str, str], ...] = option(
        (),
        "recommend a choice that satisfies a limit, such as latency_p99_ms=15: a maximum, or a "
        "minimum if more is better; repeatable",
        metavar="METRIC=VALUE",
        several="repeat",
    )


def _list_sections(frame: pd.DataFrame) -> Iterator[SectionSpec]:
    """Yield a report section if queries were served, a model trained, or inference timed."""
    metrics = ("scheduled_queries_per_second", "best_accuracy")
    has_metric = any(name in frame and frame[name].notna().any() for name in metrics)
    if has_metric or ("mode" in frame and frame["mode"].isin(["inference", "generate"]).any()):
        yield SectionSpec()


@analysis(
    FrontierOptions,
    summary="choices that no other choice beats in cost, latency, throughput or accuracy",
    example="python -m analysis frontier --price V100=2 --limit latency_p99_ms=15 --figure frontier.png",
    gate="queries",
    section="all",
    order=150,
    title="What to choose",
    reading=(
        "The line joins the choices on the frontier. Filled: no other choice can beat it; hollow: "
        "undecided; gray: beaten."
    ),
    list_sections=_list_sections,
)
def frontier(frame: pd.DataFrame, options: FrontierOptions) -> Result:
    """Compare choices of platform and configuration by Pareto dominance in two quantities.

    Only choices that do the same work, such as serving the same model, are compared. This work is a
    task.

    Args:
        frame: Runs, one per row.
        options: The two quantities, the prices, and the limits on metrics.

    Returns:
        The result. Its table has a row for each choice, with the task and the columns of
        `Frontier.table` except `run_ids`.

    Raises:
        ConfigError: If a limit is not a number, or --x, --y or --limit names an unknown metric or a
            metric without a better direction.
        InsufficientData: If no task has two choices with both quantities.
    """
    prices = read_prices(options.price, frame)
    limits = {name: _number(name, value) for name, value in options.limit}
    frame = with_costs(frame, prices)
    found = frontiers(frame, limits, pool=options.pool, x=options.x, y=options.y)
    currency = currency_of(frame)
    by_size = sorted(found, key=lambda front: -len(front.table))
    described = found if limits else by_size[:_DESCRIBED_TASKS]
    paragraphs = [*_paragraphs(described, by_size, limits, currency)]
    if prices:
        where = f": {prices.origin}" if prices.origin else ""
        paragraphs.append(Paragraph(f"Prices from --price override recorded prices{where}."))
    table = pd.concat([front.table.assign(task=front.task) for front in found], ignore_index=True)
    sentences = [_best(front, currency) for front in by_size[:_DESCRIBED_TASKS]]
    best = Highlight("What to choose", " ".join(sentences))
    return Result(
        numbers=table[["task", *table.columns.drop(["task", "run_ids"])]],
        answer=_answer(by_size, limits, currency),
        sentences=paragraphs,
        picture=lambda: _draw(by_size, limits, currency),
        sources=tuple(table["run_ids"].explode()),
        pooled=joined(front.pooled for front in found),
        stands_out=best if frame[PRICE].notna().any() else None,
    )


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            "--limit", f"{name}={value}", "is not a number", "for example, write latency_p99_ms=15"
        )
    return number


def _paragraphs(
    described: Sequence[Frontier],
    by_size: Sequence[Frontier],
    limits: Mapping[str, float],
    currency: str,
) -> Iterator[Paragraph]:
    """Yield a paragraph per task in `described`, and remarks about all tasks.

    A task is work that several choices do, and a choice is a platform with a configuration.

    Args:
        described: The first tasks of `by_size`, which get a paragraph each.
        by_size: All tasks, the task with the most choices first.
        limits: Upper limit by metric, or lower limit if more is better.
        currency: Currency of the costs.
    """
    for front in described:
        yield _describe(front, currency)
        if limits:
            yield _advise(front, limits, currency)
    rest = by_size[len(described) :]
    if rest:
        sizes = " to ".join(dict.fromkeys(str(len(front.table)) for front in (rest[-1], rest[0])))
        yield Paragraph(
            f"See the table for {counted(len(rest), 'further task')} (choices per task: {sizes})."
        )
    if not limits:
        # The median as an example, so that about half of the choices qualify.
        limit = f"{described[0].y}={described[0].table[described[0].y].median():.3g}"
        yield Paragraph(f"To get a recommendation, state a requirement, such as --limit {limit}.")
    yield Paragraph(
        "A choice is beaten if another choice is shown to beat it. It is on the frontier if no "
        "other choice can beat it. Otherwise it is undecided. All of these statements hold "
        "simultaneously with 95% confidence."
    )
    if any(front.has_session_effects for front in by_size):
        yield Paragraph(
            "The comparison allows for session effects between choices that were measured in "
            "separate sessions."
        )


def _answer(
    by_size: Sequence[Frontier], limits: Mapping[str, float], currency: str
) -> AnalysisAnswer:
    """Return the answer for the task with the most choices.

    A task is work that several choices do, and a choice is a platform with a configuration.
    The answer recommends a choice if limits are given. Otherwise it names the best choice in each
    quantity.

    Args:
        by_size: All tasks, the task with the most choices first.
        limits: Upper limit by metric, or lower limit if more is better.
        currency: Currency of the costs.
    """
    front = by_size[0]
    if limits:
        sentence = _advise(front, limits, currency).head
    else:
        sentence = _best(front, currency)
    if len(by_size) > 1:
        sentence = f"{sentence.removesuffix('.')} ({counted(len(by_size) - 1, 'more task')} below)."
    return AnalysisAnswer(
        sentence=sentence, points=len(front.table), basis="the intervals of the choices"
    )


def _best(front: Frontier, currency: str) -> str:
    """Return a sentence that names the best choice in each quantity, with its value and interval.

    Args:
        front: The choices (platforms with a configuration) that do the same work.
        currency: Currency of the costs.
    """
    best = []
    for name, other in ((front.x, front.y), (front.y, front.x)):
        row = front.table.sort_values(name, ascending=less_is_better(name), kind="stable").iloc[0]
        value = _describe_best(row, name, front.expected[name], currency)
        second = _quantity(row, other, currency, interval=False)
        best.append(f"{row['choice']} in {label(name)}: {value}, with {second}")
    choices = counted(len(front.table), "choice")
    return f"{front.task}: of {choices} the best are {'; and '.join(best)}."


def _describe_best(row: pd.Series, metric: str, expected: float, currency: str) -> str:
    """Return the value of the best choice in a metric, as text with its interval.

    The value is corrected for selection bias. If the measured value differs from it, the text
    states both.

    Args:
        row: Row of the choice (platform and configuration) in `Frontier.table`.
        metric: Column of the metric.
        expected: The corrected value, from `Frontier.expected`.
        currency: Currency of the costs.
    """
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


def _describe(front: Frontier, currency: str) -> Paragraph:
    standing = front.table["standing"]
    counts = ", ".join(f"{int((standing == each).sum())} {each}" for each in _MARKERS)
    rows = front.table[front.table["standing"] != BEATEN]
    points = [
        f"{row['choice']}: {_quantity(row, front.x, currency)}, {_quantity(row, front.y, currency)}"
        + ("" if row["standing"] == ON else " (undecided)")
        for _, row in rows.head(_MAX_LISTED).iterrows()
    ]
    ends = [f"{name}_{end}" for name in (front.x, front.y) for end in ("low", "high")]
    unknown = int(front.table[ends].isna().any(axis=1).sum())
    for count, words in (
        (len(rows) - _MAX_LISTED, "not listed, see --csv."),
        (unknown, "with an open interval: measure longer, or add replicates."),
        (front.incomplete, "omitted: one of the quantities was not measured."),
    ):
        points += [f"{counted(count, 'choice')} {words}"] if count > 0 else []
    choices = counted(len(front.table), "choice")
    return Paragraph(
        f"{front.task}: {choices}, compared by {label(front.x)} and {label(front.y)}: {counts}.",
        tuple(points),
    )


def _quantity(row: pd.Series, metric: str, currency: str, *, interval: bool = True) -> str:
    """Return the name and value of a metric of a choice, as text.

    Args:
        row: Row of the choice (platform and configuration) in `Frontier.table`.
        metric: Column of the metric.
        currency: Currency of the costs.
        interval: Whether the text includes the interval of the value.
    """
    words = f"{label(metric)} {format_number(row[metric], _unit(metric, currency), digits=3)}"
    ends = _interval(row, metric)
    if not interval or not ends:
        return words
    return f"{words} ({ends})"


def _interval(row: pd.Series, metric: str) -> str:
    """Return the interval of a metric of a choice, as text; empty for an exact value.

    Args:
        row: Row of the choice (platform and configuration) in `Frontier.table`.
        metric: Column of the metric.
    """
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


def _advise(front: Frontier, limits: Mapping[str, float], currency: str) -> Paragraph:
    """Return a paragraph that recommends a choice within the limits.

    A choice certainly satisfies a limit if its whole interval does. Among the choices that
    certainly satisfy all limits, the recommended choice is the best in the first quantity without a
    limit. The paragraph also lists the choices that may be as good.

    If no choice certainly satisfies all limits, the paragraph names the best choice that may
    satisfy them. If no choice may satisfy them, it names the choice that is nearest to the limits.

    Args:
        front: The choices (platforms with a configuration) that do the same work.
        limits: Upper limit by metric, or lower limit if more is better.
        currency: Currency of the costs.
    """
    by = next((name for name in (front.x, front.y) if name not in limits), front.x)
    table = front.table.sort_values(by, ascending=less_is_better(by), kind="stable")
    _, low, high = _ends(table, by)
    signed = {name: limit if less_is_better(name) else -limit for name, limit in limits.items()}
    # (limits, 3, choices): by how much the value, the low end and the high end exceed each limit.
    excess = np.array([_ends(table, name) - limit for name, limit in signed.items()])
    # Comparisons with NaN are false, so a choice with an unknown high end never surely qualifies.
    qualifies = (excess[:, 0] <= 0).all(axis=0)
    surely_qualifies = (excess[:, 2] <= 0).all(axis=0)
    requirements = " and ".join(
        f"{label(name)} at {'most' if less_is_better(name) else 'least'} "
        f"{format_number(limit, _unit(name, currency), digits=4)}"
        for name, limit in limits.items()
    )

    def describe(position: int, why: str = "") -> str:
        row = table.iloc[position]
        quantities = [_quantity(row, metric, currency) for metric in (by, *limits)]
        return f"{row['choice']}{why}: {', '.join(quantities)}"

    if not qualifies.any():
        scale = np.maximum(np.abs([*signed.values()]), 1e-12)
        nearest = int((excess[:, 0].clip(0) / scale[:, None]).sum(axis=0).argmin())
        return Paragraph(
            f"For {requirements} no choice of {front.task} qualifies; "
            f"the nearest is {describe(nearest)}."
        )
    if not surely_qualifies.any():
        return Paragraph(
            f"For {requirements} no choice of {front.task} qualifies with certainty; "
            f"the best one that may qualify is {describe(int(qualifies.argmax()))}."
        )
    best = int(surely_qualifies.argmax())
    others = qualifies & ~(low > high[best]) & (np.arange(len(table)) != best)
    extreme = "lowest" if less_is_better(by) else "highest"
    why = f", which has the {extreme} {label(by)} of the choices that qualify with certainty"
    points: tuple[str, ...] = ()
    if others.any():
        points = (f"May be as good: {'; '.join(table['choice'][others][:_MAX_LISTED])}.",)
    return Paragraph(f"For {requirements} choose {describe(best, why)}.", points)


class Ordering(NamedTuple):
    """Pairwise order of n choices (platforms with a configuration) in one quantity. Less is better.

    Each attribute is a boolean table (n, n). Row i, column j compares choice i with choice j.

    Attributes:
        no_worse: Whether choice i is certainly no worse than choice j.
        better: Whether choice i is certainly better than choice j.
        may_be_no_worse: Whether choice i may be no worse than choice j.
        may_be_better: Whether choice i may be better than choice j.
    """

    no_worse: np.ndarray
    better: np.ndarray
    may_be_no_worse: np.ndarray
    may_be_better: np.ndarray

    @classmethod
    def of_intervals(cls, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> Ordering:
        """Return the order of choices, given the confidence interval of each choice.

        If an end of a choice's interval is unknown, that end is treated as infinite. Comparisons
        that depend on it are then not certain. For `may_be_no_worse` and `may_be_better`, the value
        of the choice replaces an unknown low end.

        Args:
            value: (n,) values of the choices in the quantity. Less is better.
            low: (n,) low ends of the intervals; NaN if unknown.
            high: (n,) high ends of the intervals; NaN if unknown.
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
        """Return the order of choices, given their differences, corrected for the number of pairs.

        Args:
            differences: (n, n) value of choice i minus value of choice j in the quantity.
            errors: Independent parts of the variance (n, n) of each difference.
            rate: Familywise error rate: largest probability that any decision on a pair is wrong.
        """
        differ = find_differences(differences, errors, rate)
        return cls._of_signs(differences, differ, errors)

    @classmethod
    def of_single_pairs(cls, differences: np.ndarray, errors: Sequence[Component]) -> Ordering:
        """Return the order of choices, given their differences, without correction for many pairs.

        Args:
            differences: (n, n) value of choice i minus value of choice j in the quantity.
            errors: Independent parts of the variance (n, n) of each difference.
        """
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
    """Return which choices beat which other choices over all quantities (Pareto dominance).

    A choice is a platform with a configuration. It beats another choice if it is no worse in every
    quantity and better in at least one.

    Args:
        orders: The order of the n choices in each quantity.

    Returns:
        Two boolean tables (n, n): whether choice i certainly beats choice j, and whether choice i
        may beat choice j.
    """
    surely = np.all([one.no_worse for one in orders], axis=0)
    surely &= np.any([one.better for one in orders], axis=0)
    may = np.all([one.may_be_no_worse for one in orders], axis=0)
    may &= np.any([one.may_be_better for one in orders], axis=0)
    return surely, may


def standings(surely: np.ndarray, may: np.ndarray) -> list[str]:
    """Return the standing of each choice: "beaten", "undecided" or "on the frontier".

    A choice is a platform with a configuration. It is beaten if another choice certainly beats it,
    undecided if another choice may beat it, and otherwise on the frontier.

    Args:
        surely: (n, n) whether choice i certainly beats choice j (see `dominance`).
        may: (n, n) whether choice i may beat choice j.
    """
    names = np.select([_by_others(surely), _by_others(may)], [BEATEN, UNDECIDED], ON)
    return [str(name) for name in names]


def efficient(values: np.ndarray) -> np.ndarray:
    """Return which of n choices no other choice beats, if all values are treated as exact.

    Args:
        values: (k, n) values of n choices (platforms with a configuration) in k quantities. Less is
            better.

    Returns:
        A boolean array (n,): whether the choice is Pareto-efficient.
    """
    exact = [Ordering.of_intervals(one, one, one) for one in values]
    return ~_by_others(dominance(exact)[0])


def _by_others(table: np.ndarray) -> np.ndarray:
    """Return which columns of a square boolean table have a true entry off the diagonal.

    Args:
        table: (n, n) entry (i, j): whether choice i beats choice j.

    Returns:
        A boolean array (n,): whether choice j is beaten by any different choice.
    """
    return np.asarray((table & ~np.eye(len(table), dtype=bool)).any(axis=0))


@dataclass(frozen=True)
class Frontier:
    """The choices of one task, compared in two quantities.

    A task is work that all its choices do, and a choice is a platform with a configuration.

    Attributes:
        task: Name of the task.
        x: Metric of the first quantity.
        y: Metric of the second quantity.
        table: A row for each choice, the best choice in `x` first. Columns: `choice`, `platform`,
            `runs` (number of runs), `run_ids`, each metric with the ends of its interval (suffixes
            `_low` and `_high`), `standing` (see `standings`), and `efficient` (see the function
            `efficient`).
        incomplete: Number of choices without a row because they lack a metric.
        has_session_effects: Whether an effect of separate sessions was part of a comparison that
            may decide a standing.
        expected: Value of the best choice by metric (`x` and `y`), corrected for selection bias.
        pooled: How the pooled runs differ, as text; empty if no heterogeneous runs were pooled.
    """

    task: str
    x: str
    y: str
    table: pd.DataFrame
    incomplete: int
    has_session_effects: bool
    expected: Mapping[str, float]
    pooled: str = ""


def less_is_better(metric: str, flag: str = "--limit") -> bool:
    """Return whether lower values of a metric are better.

    Args:
        metric: Name of the metric.
        flag: Option that an error message names.

    Raises:
        ConfigError: If the metric is unknown, or neither lower nor higher values are better.
    """
    known = METRICS.get(metric)
    better = _BETTER.get(metric, known.better if known else None)
    if better is None:
        if known:
            problem = "cannot be ranked: neither high nor low values are better"
        else:
            problem = "is not a metric"
        remedy = "name a metric from python -m paradnn list metrics, such as latency_p99_ms"
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
    """Compare the choices of each task that has at least two choices.

    A task is work that all its choices do, and a choice is a platform with a configuration.

    Args:
        frame: Runs, one per row.
        limits: Upper limit by metric, or lower limit if more is better; None for no limits. Choices
            without one of these metrics are omitted.
        pool: Whether to pool runs that differ in timing protocol or schema version.
        x: Metric of the first quantity. None for cost or, without prices, throughput or time.
        y: Metric of the second quantity. None for latency or accuracy.

    Returns:
        A comparison for each task.

    Raises:
        ConfigError: If a quantity or limit names an unknown metric or a metric without a better
            direction, or if both quantities are the same.
        InsufficientData: If no task has two choices with both quantities.
    """
    limits = limits or {}
    for flag, name in (*(("--limit", name) for name in limits), ("--x", x), ("--y", y)):
        if name is not None:
            less_is_better(name, flag)
    if x is not None and x == y:
        raise ConfigError("--y", y, "is the same as --x", "name a different metric")
    used = is_ok(frame)
    if "best_accuracy" in frame:
        # A training run that timed out before its target accuracy still has a best accuracy.
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
            "no two platforms or configurations did the same work, so none can be compared",
            groups=omitted or [InsufficientData("none has outcome ok", group="all runs")],
            remedy=(
                "measure several configurations, for example: "
                "python -m paradnn.train -m mode=inference batch_size=1,8,64"
            ),
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
        raise InsufficientData(f"no run records {' or '.join(missing)}")
    choices = _complete_choices(task, rows, metrics)
    table = choices.table
    runs = [[scatters[name] for name in (x, y)] for scatters in choices.run_scatters]
    tables, has_session_effects = _dominance_over_sessions(table, choices.parts, (x, y), runs)
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
        has_session_effects=has_session_effects,
        expected=expected,
        pooled=rows.attrs.get("pooled", ""),
    )


class _Choices(NamedTuple):
    """The choices of a task for which all metrics are known.

    A task is work that several choices do, and a choice is a platform with a configuration.

    Attributes:
        table: A row per choice, with its name and its metrics.
        parts: The runs of each choice, in the order of `table`.
        run_scatters: For each choice, a mapping from a metric to its variance between the runs of a
            session (see `_Scatter.runs`).
        incomplete: Number of omitted choices, which lack a metric.
    """

    table: pd.DataFrame
    parts: list[pd.DataFrame]
    run_scatters: list[dict[str, Component | None]]
    incomplete: int


def _complete_choices(task: Task, rows: pd.DataFrame, metrics: Sequence[str]) -> _Choices:
    """Estimate the metrics of each choice, and omit the choices that lack a metric.

    A choice is a platform with a configuration.

    Args:
        task: The work that all choices do, such as serving one model. `task.varies` has the columns
            in which choices differ.
        rows: The runs of the task.
        metrics: Metrics that a choice needs.

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
            f"a comparison needs two platforms or configurations with {' and '.join(metrics)}, "
            f"but these runs have {len(table)}"
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
    """Return the names of choices, made unique by a number, such as "V100, environment 2".

    A choice is a platform with a configuration. Only names that several choices share get a number.
    These choices differ only in their environment.

    Args:
        choices: Names of the choices.
    """
    numbers = (choices.groupby(choices).cumcount() + 1).astype(str)
    return choices.where(~choices.duplicated(keep=False), choices + ", environment " + numbers)


def _quantities(
    task: Task, rows: pd.DataFrame, requested: tuple[str | None, str | None]
) -> tuple[str, str]:
    """Return the two metrics in which the choices of a task are compared.

    Args:
        task: The work that all choices (platforms with a configuration) do.
        rows: The runs of the task.
        requested: The values of --x and --y; None for the default metric of the task.

    Raises:
        InsufficientData: If both metrics are the same.
    """
    x, y = requested
    *candidates, default_y = task.work.role(ResultDescription).objectives
    if y is None:
        y = default_y
    if x is None:
        others = [name for name in candidates if name != y]
        recorded = [name for name in others if name in rows and rows[name].notna().any()]
        x = recorded[0] if recorded else others[-1]
    if x == y:
        raise InsufficientData(
            f"--x and the default of --y are both {x}; name another metric with --y"
        )
    return x, y


def _dominance_over_sessions(
    table: pd.DataFrame,
    parts: Sequence[pd.DataFrame],
    names: Sequence[str],
    runs: Sequence[Sequence[Component | None]],
) -> tuple[tuple[np.ndarray, np.ndarray], bool]:
    """Return which choices beat which other choices, allowing for session effects.

    A choice is a platform with a configuration. Rates and times are compared by logarithms. The
    variance of a difference has two parts: the noise of both choices within their sessions, and the
    effects of sessions that the choices do not share. A prior, updated with the repeated sessions
    of the choices, gives the variance of a session effect. Exact values, such as a rate that a
    schedule set, and qualities (accuracies and fractions) have no session effects.

    All statements hold simultaneously with 95% confidence. They follow from the signs of the
    differences in two quantities. For each quantity, the probability that any sign is wrong is at
    most 2.5%: `find_differences` is two-sided at 5%, and the intervals of a quality are corrected
    by Bonferroni.

    Args:
        table: The n choices, with `_low` and `_high` of each metric.
        parts: (n,) the runs of each choice.
        names: (k,) the metrics.
        runs: (n, k) variance between runs (see `_Scatter.runs`).

    Returns:
        The tables of `dominance`, and whether session effects were part of any comparison that may
        decide a standing.
    """
    count = len(table)
    qualities = []
    measured = []
    for column, name in enumerate(names):
        values = table[name].to_numpy(dtype="float64")
        if _is_quality(name, values):
            qualities.append(Ordering.of_intervals(*_ends(table, name)))
            continue
        sign = 1 if less_is_better(name) else -1
        logs = sign * np.log(values)
        noise = [
            _noise(part, name, scatters[column]) for part, scatters in zip(parts, runs, strict=True)
        ]
        measured.append(_Differences.of(logs, noise))
    session = _session_variance(parts, names)
    priors = scatter_priors(classify_devices(*parts))
    if not any(one.has_noise for one in measured):
        none = Component(np.zeros((count, count)), np.inf)
        return dominance([*qualities, *(one.order(none) for one in measured)]), False
    largest = Component(
        np.full((count, count), _MAX_SESSION_FACTOR * session.variance), session.freedom
    )
    surely_narrow, may_narrow = dominance([*qualities, *(one.single_order() for one in measured)])
    surely_wide, may_wide = dominance([*qualities, *(one.order(largest) for one in measured)])
    # Computing the exact session effects takes about 10 ms per pair. They are computed only for
    # pairs that may decide a standing. For these pairs, the narrowest and the widest intervals give
    # different results, and the standing does not follow from other pairs. All other pairs keep
    # the upper bound.
    beaten = _by_others(surely_wide)
    undecided = _by_others(may_narrow)
    is_decisive = (surely_narrow & ~surely_wide) | (may_wide & ~may_narrow & ~undecided)
    is_decisive &= ~beaten
    variance = largest.variance.copy()
    freedom = np.full((count, count), session.freedom)
    has_session_effects = False
    for i, j in zip(*np.nonzero(np.triu(is_decisive | is_decisive.T)), strict=True):
        schedule = Schedule.of(parts[i], parts[j])
        effects = [
            effect.component for effect in schedule.effects(SessionVariance(*session), priors)
        ]
        pair_effect = Component(0.0, np.inf)
        if effects:
            pair_effect = combine(effects)
            has_session_effects = True
        variance[[i, j], [j, i]] = pair_effect.variance
        freedom[[i, j], [j, i]] = pair_effect.freedom
    sessions = Component(variance, freedom)
    tables = dominance([*qualities, *(one.order(sessions) for one in measured)])
    return tables, has_session_effects


@dataclass(frozen=True, eq=False)
class _Differences:
    """Differences between n choices (platforms with a configuration) in a measured quantity.

    Attributes:
        differences: (n, n) logarithm of choice i's value minus logarithm of choice j's value.
        noise: Two parts of the variance (n, n) of each difference: the noise of choice i, and the
            noise of choice j.
    """

    differences: np.ndarray
    noise: tuple[Component, Component]

    @classmethod
    def of(cls, logs: np.ndarray, noise: Sequence[Component]) -> _Differences:
        """Return the differences between all pairs of choices.

        Args:
            logs: (n,) logarithms of the values of the choices.
            noise: (n,) variance of each logarithm.
        """
        shape = (len(logs), len(logs))
        variance = np.broadcast_to([float(one.variance) for one in noise], shape)
        freedom = np.broadcast_to([float(one.freedom) for one in noise], shape)
        both = (Component(variance.T, freedom.T), Component(variance, freedom))
        return cls(logs[:, None] - logs[None, :], both)

    @property
    def has_noise(self) -> bool:
        """Whether the value of any choice is inexact."""
        return bool((self.noise[0].variance > 0).any())

    def order(self, sessions: Component) -> Ordering:
        """Return the order of the choices, with a correction for the number of pairs.

        A choice is a platform with a configuration.

        Args:
            sessions: Variance (n, n) that session effects add to each difference. Differences
                between two exact values have no session effects.
        """
        is_noisy = sum(one.variance for one in self.noise) > 0
        effects = Component(np.where(is_noisy, sessions.variance, 0.0), sessions.freedom)
        return Ordering.of_differences(self.differences, [*self.noise, effects], 1 - LEVEL)

    def single_order(self) -> Ordering:
        """Return the order without session effects or a correction for the number of pairs."""
        return Ordering.of_single_pairs(self.differences, self.noise)


@dataclass(frozen=True)
class _Scatter:
    """Scatter of one metric between runs and between sessions, from all choices of a task.

    A choice is a platform with a configuration, and the choices of a task do the same work.

    Attributes:
        runs: For each choice, the posterior variance of the logarithm of the metric between runs in
            a session. None if the metric has no prior; the variance is then estimated from the runs
            of the choice alone.
        session: Posterior variance of the effect of a session on the logarithm of the metric; None
            if the metric has no prior.
    """

    runs: Sequence[Component | None]
    session: Component | None

    @classmethod
    def unknown(cls, count: int) -> _Scatter:
        """Return the scatter of a metric without a prior.

        Args:
            count: Number of choices.
        """
        return cls([None] * count, None)

    @classmethod
    def of(cls, parts: Sequence[pd.DataFrame], metric: str) -> _Scatter:
        """Estimate the scatter of a metric: the priors of step times, updated with the runs.

        All choices get the same variance, estimated from the scatter of the runs of all choices.
        There is one exception: if at least MINIMUM_POINTS choices have replicates that differ, each
        choice with replicates gets a separate variance. These variances are shrunk toward each
        other (see `moderate_variances`).

        Args:
            parts: The runs of each choice.
            metric: Column of the metric.

        Returns:
            The scatter. It is unknown (see `unknown`) if the runs of a choice lack the column of
            the metric.
        """
        known = [part[part[metric].gt(0).fillna(False)] for part in parts if metric in part]
        if len(known) < len(parts):
            return cls.unknown(len(parts))
        components = [_within_sessions(part, metric) for part in known]
        variances = np.array([one.variance for one in components])
        freedoms = np.array([one.freedom for one in components])
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
    """Return the variance of the logarithm of a metric between runs of the same session.

    Args:
        part: The runs of one choice.
        metric: Column of the metric.

    Returns:
        The variance, pooled over the sessions. Its degrees of freedom are 0 if no session has
        replicates that differ.
    """
    logs = pd.Series(np.log(part[metric].to_numpy(dtype="float64")))
    sessions = pd.Series(assign_sessions(part)).fillna("")
    deviations = logs - logs.groupby(sessions.to_numpy()).transform("mean")
    freedom = len(part) - sessions.nunique()
    if freedom <= 0 or not bool((deviations != 0).any()):
        return Component(0.0, 0.0)
    return Component(float((deviations**2).sum()) / freedom, float(freedom))


def _is_quality(metric: str, values: np.ndarray) -> bool:
    """Return whether choices are compared by differences, not by ratios, of a metric.

    Differences are used for accuracies, for fractions, and for metrics with a value of zero or
    less.

    Args:
        metric: Name of the metric.
        values: (n,) values of the choices.
    """
    return metric.endswith(("accuracy", "fraction")) or bool((values <= 0).any())


def _expected_best(
    values: np.ndarray,
    parts: Sequence[pd.DataFrame],
    metric: str,
    runs: Sequence[Component | None],
) -> float:
    """Return the value of the best choice, corrected for selection bias.

    Args:
        values: (n,) value of each choice (platform with a configuration).
        parts: (n,) the runs of each choice.
        metric: Column of the metric.
        runs: (n,) variance between runs (see `_Scatter.runs`).
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
    variances += np.where(is_exact, 0.0, _session_variance_of_choices(parts, metric))
    best = scores.max() - luck_of_largest(scores, np.sqrt(variances))
    return math.exp(sign * best)


def _session_variance_of_choices(parts: Sequence[pd.DataFrame], metric: str) -> np.ndarray:
    """Return the variance that session effects add to each choice's difference from the mean.

    A choice is a platform with a configuration, and the mean is over all choices. The variances are
    0 if all choices have the same share of their runs in each session.

    Args:
        parts: (n,) the runs of each choice.
        metric: The metric, on a logarithmic scale.

    Returns:
        An array (n,).
    """
    rows = pd.concat(parts, ignore_index=True)
    choice = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    session = pd.Series(assign_sessions(rows)).fillna("").to_numpy()
    shares = pd.crosstab(choice, session, normalize="index").to_numpy()
    distance = shares - shares.mean(axis=0)
    variance = _session_variance(parts, [metric]).variance
    return np.asarray((distance**2).sum(axis=1) * variance)


def _noise(part: pd.DataFrame, metric: str, run: Component | None = None) -> Component:
    """Return the variance of a choice's mean logarithm due to noise within its sessions.

    If a session has replicates, the variance follows from `run`, or from the scatter of the
    replicates if `run` is None. Otherwise the variance follows from the recorded intervals. Each
    run that timed a single process or has no interval then adds the prior variance between
    processes. A value that a schedule fixed, such as the rate of queries, has no noise.

    Args:
        part: The runs of the choice.
        metric: Column of the metric.
        run: Posterior variance of the metric's logarithm between runs (see `_Scatter.runs`).
    """
    known = part[part[metric].notna()]
    count = len(known)
    observed = _within_sessions(known, metric)
    if observed.freedom > 0:
        used = run or observed
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
    lacks_process_scatter = (processes == 1) | ~has_interval
    prior = scatter_priors(classify_devices(part)).process
    between = Component(int(lacks_process_scatter.sum()) * prior.scale**2 / count**2, prior.freedom)
    return combine([one for one in (recorded, between) if one.variance > 0])


def _session_variance(parts: Sequence[pd.DataFrame], names: Sequence[str]) -> Component:
    """Return the posterior variance of a session effect on the logarithm of a metric.

    Args:
        parts: The runs of each choice.
        names: The metrics. The result is the largest variance of any of them.
    """
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
    """Return the row of `Frontier.table` for one choice, without `standing` and `efficient`.

    Args:
        part: The runs of the choice.
        columns: Columns in which the choices differ.
        scatters: Scatter of all choices, by metric.
        position: Position of the choice in `scatters`.
        error: Probability that the interval of one metric excludes the true value.
    """
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
    """Return value, low end and high end of a quantity of each choice, as an array (3, n).

    If more is better, the values are negated, and the two ends are swapped, so that less is better.

    Args:
        table: A row for each of n choices.
        name: Metric of the quantity.
    """
    ends = table[[name, f"{name}_low", f"{name}_high"]].to_numpy(dtype="float64").T
    if less_is_better(name):
        return ends
    return -ends[[0, 2, 1]]


def _draw(
    by_size: Sequence[Frontier], limits: Mapping[str, float], currency: str
) -> drawing.Figure:
    """Draw a panel per task, for at most six tasks, with the frontier as a line.

    Filled marks are choices on the frontier, hollow marks are undecided choices, and gray marks are
    beaten choices. The color shows the platform. Error bars are simultaneous confidence intervals.

    Args:
        by_size: All tasks (work that several choices do), the task with the most choices first.
        limits: Limits by metric, drawn as dashed lines.
        currency: Currency of the costs.
    """
    shown = by_size[:_MAX_PANELS]
    drawn, panels = drawing.panels(len(shown), 6.2, 4.4, across=2)
    platforms = list(dict.fromkeys(name for front in shown for name in front.table["platform"]))
    for axes, front in zip(panels, shown, strict=True):
        _panel(axes, front, platforms, limits, currency)
    size: dict[str, object] = {"marker": "o", "markersize": 7, "color": "black"}
    handles = [drawing.handle(standing, **(size | style)) for standing, style in _MARKERS.items()]
    if any(name in (front.x, front.y) for front in shown for name in limits):
        handles.append(drawing.handle("limit", color=_LINE_COLOR, linewidth=1, linestyle="--"))
    drawing.legend(
        drawn,
        [*handles, *(drawing.handle(name, **drawing.look(name, platforms)) for name in platforms)],
    )
    return drawn


def _panel(
    axes: drawing.Axes,
    front: Frontier,
    platforms: Sequence[str],
    limits: Mapping[str, float],
    currency: str,
) -> None:
    x = front.x
    y = front.y
    for row in front.table.to_dict("records"):
        style = drawing.look(row["platform"], platforms) | {
            "markersize": 7,
            "elinewidth": 0.8,
            "zorder": 3,
        }
        ends = {
            f"{axis}_ends": (row[f"{name}_low"], row[f"{name}_high"])
            for axis, name in (("x", x), ("y", y))
        }
        drawing.marks(axes, row[x], row[y], **ends, **(style | _MARKERS[row["standing"]]))
    best = front.table[front.table["efficient"]].sort_values(x)
    axes.step(
        best[x],
        best[y],
        where="post" if less_is_better(x) else "pre",
        color=_LINE_COLOR,
        linewidth=1,
        zorder=1,
    )
    for row in best.head(_MAX_LABELED).to_dict("records"):
        axes.annotate(
            row["choice"], (row[x], row[y]), (5, 5), textcoords="offset points", fontsize="small"
        )
    for name, limit in limits.items():
        if name in (x, y):
            (axes.axvline if name == x else axes.axhline)(
                limit, color=_LINE_COLOR, linewidth=1, linestyle="--"
            )
    for name, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if not name.endswith(("accuracy", "fraction")) and (front.table[name] > 0).all():
            scale("log")
            drawing.log_ticks(axis)
    units = [(name, _unit(name, currency)) for name in (x, y)]
    drawing.finish(
        axes,
        front.task,
        *(f"{label(name)} ({unit})" if unit else label(name) for name, unit in units),
    )
