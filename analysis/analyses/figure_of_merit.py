"""`figure-of-merit`: summarize a suite by one number per platform, the harmonic mean of its rates.

The suite is the set of points that --where and --family select and that all platforms measured. The
figure of merit is the harmonic mean of a platform divided by the harmonic mean of the baseline.

Units of work done in sequence at rates x_1 .. x_n take the time sum(1 / x_i). Their overall rate is
therefore n / sum(1 / x_i), the harmonic mean. The arithmetic mean of rates or of ratios is not the
rate of any work (Smith, Characterizing computer performance with a single number, CACM 31(10),
1988). CANDLE's figure of merit is the ratio of two harmonic means.

--work replaces measured rates with the hours that a node needs for each unit of work, such as a
training. --nodes multiplies the rates of a platform by its number of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.columns import find_column, find_metric, join_columns
from analysis.format import format_number
from analysis.lazy import np, pd, stats
from analysis.options import Options, column_option, option
from analysis.pairing import direction
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, pooled_within, require_runs
from analysis.store.frame import is_ok, units
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.decision import Decision, decide
from paradnn.statistics.dependence import Component, sum_components
from paradnn.statistics.effects import Effect, side_effects
from paradnn.statistics.priors import classify_devices, scatter_priors
from paradnn.statistics.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class FigureOfMeritOptions(Options):
    """Options of the command `figure-of-merit`: the rate, the sides, the baseline, and the work."""

    metric: str = column_option("examples_per_second", "rate to summarize", "M")
    by: str = column_option("device", "column whose values are the sides, such as software.name")
    baseline: str | None = option(
        None, "the side whose figure of merit is 1 (default: the first by name)", metavar="SIDE"
    )
    work: tuple[tuple[str, str], ...] = option(
        (),
        "replace runs with the hours that a node needs for each unit of work, such as "
        "Titan=60,6,12, in the same order for each side; repeatable (default baseline: the first "
        "side)",
        metavar="SIDE=HOURS",
        several="repeat",
    )
    nodes: tuple[tuple[str, str], ...] = option(
        (),
        "number of nodes of a side, such as Titan=18688; repeatable (default: 1)",
        metavar="SIDE=COUNT",
        several="repeat",
    )


def _without_runs(options: FigureOfMeritOptions) -> pd.DataFrame | None:
    """Return an empty frame if --work replaces the runs; None if runs are needed."""
    return pd.DataFrame() if options.work else None


@analysis(
    FigureOfMeritOptions,
    summary="one number for each platform over a stated suite: the harmonic mean of its rates",
    example="python -m analysis figure-of-merit --by device --baseline V100 --where mode=train",
    has_figure=False,
    load_frame=_without_runs,
)
def figure_of_merit(frame: pd.DataFrame, options: FigureOfMeritOptions) -> Result:
    """Compare platforms by the harmonic mean of their rates over a suite of points.

    The suite consists of the points that all sides measured. A side is a value of the column `by`,
    such as a device. The default baseline is the first side by name.

    The rate of a point is the median over its runs. Intervals include the error of each
    measurement: Student's t, by the delta method on logarithms, with Satterthwaite's degrees of
    freedom. Intervals of `merit` also include the effects of the sides' sessions and hosts. They do
    not include the choice of the suite, which is taken as fixed.

    Args:
        frame: Runs, one per row; empty if the option `work` replaces them.
        options: The rate, the column of the sides, the baseline, units of work, and nodes.

    Returns:
        The result. Its table has a row for each side, the baseline first:

        - `side` and `points`, the number of points;
        - `harmonic` and `arithmetic`, the means of the rates;
        - `merit`, the harmonic mean divided by the baseline's harmonic mean;
        - `mean_ratio`, the arithmetic mean over points of the ratio to the baseline;
        - `_low` and `_high` of `harmonic` and `merit`, the ends of 95% intervals; NaN if an error
          is unknown.

    Raises:
        ConfigError: If the metric is not a rate, or the column or the baseline does not exist.
        InsufficientData: If the sides share no point.
        SchemaError: If the runs of a side differ in their environment or timing protocol, and the
            option `pool` is not set.
    """
    if options.work:
        return _from_work(options)
    require_runs(frame)
    metric = find_metric(frame, options.metric)
    by = find_column(frame, options.by, "--by")
    runs, parts = _sides(frame, metric, by, options.baseline)
    nodes = _nodes(options.nodes, list(parts))
    runs = runs.assign(**{metric: runs[metric] * runs[by].astype(str).map(nodes)})
    parts = {name: runs[runs[by].astype(str) == name] for name in parts}
    first, *others = parts
    shared = [join_columns(parts[first], rows)[0] for rows in parts.values()]
    keys = [name for name in shared[0] if name != by and all(name in other for other in shared)]
    points = {name: _points(rows, keys, metric) for name, rows in parts.items()}
    suite = pd.concat({name: each["rate"] for name, each in points.items()}, axis=1, join="inner")
    if suite.empty:
        raise InsufficientData(
            f"no point was measured with all values of {by} ({', '.join(parts)}); "
            f"choose fewer of these values with --where {by}=..."
        )
    missing = {name: len(each) - len(suite) for name, each in points.items()}
    points = {name: each.loc[suite.index] for name, each in points.items()}
    used = {name: each["run_ids"].explode().tolist() for name, each in points.items()}
    rows = [_row(first, suite, points[first], points[first])]
    answers = []
    for name in others:
        side_runs = runs[runs["run_id"].isin(used[name])]
        base_runs = runs[runs["run_id"].isin(used[first])]
        effects = _session_effects(side_runs, base_runs, keys, metric)
        rows.append(_row(name, suite, points[name], points[first], effects))
        answers.append(_answer(name, first, suite, points, effects))
    best = max(answers, key=lambda each: each.ratio or 0.0, default=None)
    sources = tuple(run for listed in used.values() for run in listed)
    return Result(
        numbers=pd.DataFrame(rows),
        sentences=[
            f"The suite is the {counted(len(suite), 'point')} measured with every {by}: "
            f"{_families(suite)}.",
            *_describe_nodes(nodes),
            *_means(rows, units([metric]).get(metric, "")),
            *_describe_coverage(missing, points, runs),
        ],
        answer=best or _baseline_alone(first, suite),
        pooled=pooled_within(frame[frame["run_id"].isin(sources)], [by], pool=options.pool),
        sources=sources,
    )


def _families(suite: pd.DataFrame) -> str:
    """Return the number of points of each family as text, such as "12 fc, 3 lstm".

    Args:
        suite: The points, with the family as a level of the index.
    """
    counts = suite.reset_index()["family"].value_counts()
    return ", ".join(f"{count} {family}" for family, count in counts.items())


def _describe_coverage(
    missing: Mapping[str, int], points: Mapping[str, pd.DataFrame], runs: pd.DataFrame
) -> Iterator[str]:
    """State the omitted points, and the errors that the intervals include.

    Args:
        missing: Number of points of each side that another side lacks.
        points: Points of the suite by side, from `_points`.
        runs: The runs of all sides.
    """
    omitted = _list_counts(missing)
    if omitted:
        yield f"Omitted, because not every side measured them: {omitted}."
    yield (
        "95% intervals include the errors of the measurements. Intervals of ratios also include "
        "the differences between sessions and hosts. The suite is taken as fixed."
    )
    single = _list_counts({name: int(each["single"].sum()) for name, each in points.items()})
    if single:
        scatter = scatter_priors(classify_devices(runs)).process.scale
        yield (
            f"Points timed in a single process: {single}. Further processes are expected to "
            f"scatter by {scatter:.0%}."
        )


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in counts.items() if count)


def _nodes(node_options: Sequence[tuple[str, str]], sides: Sequence[str]) -> dict[str, float]:
    """Return the number of nodes of each side; 1 if the option --nodes does not name the side.

    Args:
        node_options: Values of --nodes: pairs of a side and its number of nodes, as text.
        sides: Names of all sides.

    Raises:
        ConfigError: If a side does not exist, or a number is not positive.
    """
    nodes = dict.fromkeys(sides, 1.0)
    for name, text in node_options:
        if name not in nodes:
            remedy = f"choose one of {', '.join(sides)}"
            raise ConfigError("--nodes", name, "is not one of the compared names", remedy)
        (nodes[name],) = _positive_numbers("--nodes", name, text)
    return nodes


def _positive_numbers(flag: str, side: str, text: str) -> list[float]:
    """Parse the numbers of a text such as "60,6,12".

    Args:
        flag: The option: "--nodes", which takes one number, or "--work".
        side: Name of the side, for error messages.
        text: The numbers, separated by commas.

    Raises:
        ConfigError: If a number is not positive, or --nodes has several.
    """
    example = {"--nodes": "Titan=18688", "--work": "Titan=60,6,12"}[flag]
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(0 < number < math.inf for number in numbers):
        remedy = f"for example, write {example}"
        raise ConfigError(flag, f"{side}={text}", "expects positive numbers", remedy)
    if flag == "--nodes" and len(numbers) > 1:
        raise ConfigError(
            flag, f"{side}={text}", "expects one number", f"for example, write {example}"
        )
    return numbers


def _describe_nodes(nodes: Mapping[str, float]) -> Iterator[str]:
    if any(count != 1 for count in nodes.values()):
        texts = (f"{count:,.10g} of {name}" for name, count in nodes.items())
        yield (
            f"Rates are totals over all nodes ({', '.join(texts)}), without communication between "
            "nodes."
        )


def _from_work(options: FigureOfMeritOptions) -> Result:
    """Return the result for --work: how many units of work all nodes of a side complete in a day.

    Args:
        options: The options; `work` states the hours that a node needs for each unit of work.

    Raises:
        ConfigError: If a number is not positive, the sides have different numbers of units, or the
            baseline does not exist.
    """
    hours = {name: _positive_numbers("--work", name, text) for name, text in options.work}
    first = options.baseline if options.baseline is not None else next(iter(hours))
    if first not in hours:
        raise ConfigError(
            "--baseline",
            first,
            "is not a side that --work names",
            f"choose one of {', '.join(hours)}",
        )
    hours = {first: hours[first]} | hours
    nodes = _nodes(options.nodes, list(hours))
    for name, values in hours.items():
        if len(values) != len(hours[first]):
            problem = (
                f"has {counted(len(values), 'unit')} of work, but {first} has {len(hours[first])}"
            )
            remedy = "give the hours of the same units for each side"
            raise ConfigError("--work", name, problem, remedy)
    rates = {
        name: nodes[name] * 24.0 / np.array(values, dtype="float64")
        for name, values in hours.items()
    }
    rows: list[dict[str, Any]] = []
    for name, per_day in rates.items():
        merit = float(stats.hmean(per_day) / stats.hmean(rates[first]))
        known = {"side": name, "points": len(per_day), "harmonic": float(stats.hmean(per_day))}
        unknown = dict.fromkeys(
            ("harmonic_low", "harmonic_high", "merit_low", "merit_high"), math.nan
        )
        ratios = per_day / rates[first]
        means = {"arithmetic": float(per_day.mean()), "mean_ratio": float(ratios.mean())}
        units_of_work = {f"unit_{position}": rate for position, rate in enumerate(per_day, start=1)}
        rows.append(known | unknown | means | {"merit": merit} | units_of_work)
    best = max(rows, key=lambda row: float(row["merit"]))
    suite = f"in the harmonic mean over {counted(len(hours[first]), 'unit')} of work"
    sentence = f"{best['side']} does {best['merit']:.3g}x the work of {first} {suite}"
    return Result(
        numbers=pd.DataFrame(rows),
        answer=AnalysisAnswer(
            sentence=sentence, ratio=float(best["merit"]), points=len(hours[first])
        ),
        sentences=[
            f"The suite is {counted(len(hours[first]), 'unit')} of work; rates are per day.",
            *_describe_nodes(nodes),
            *_means(rows, "/day"),
            "Hours are taken as exact, so there are no intervals.",
        ],
        sources=(),
    )


def _sides(
    frame: pd.DataFrame, metric: str, by: str, baseline: str | None
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """Split the measured runs by side.

    Args:
        frame: Runs, one per row.
        metric: Column of the rate. Runs without a positive value are ignored.
        by: Column whose values are the names of the sides.
        baseline: Name of the baseline; None for the first side by name.

    Returns:
        All measured runs, and a mapping from a side to its runs, with the baseline first.

    Raises:
        ConfigError: If the metric is not a rate, or the baseline has no run.
        InsufficientData: If no run has the metric and the column.
    """
    if direction(metric) != "higher":
        raise ConfigError(
            "--metric",
            metric,
            "is not a rate",
            "choose a metric that is better if higher, such as examples_per_second",
        )
    if metric in frame:
        runs = frame[is_ok(frame) & frame[by].notna() & (frame[metric] > 0)]
    else:
        runs = frame[:0]
    parts = {str(name): rows for name, rows in runs.groupby(by)}
    if not parts:
        raise InsufficientData(
            f"no measured run has both {metric} and {by}; choose a different --metric or --by"
        )
    first = baseline if baseline is not None else next(iter(parts))
    if first not in parts:
        raise ConfigError(
            "--baseline", first, f"no run has this {by}", f"choose one of {', '.join(parts)}"
        )
    return runs, {first: parts[first]} | parts


def _means(rows: Sequence[Mapping[str, Any]], unit: str) -> Iterator[Paragraph]:
    def format_mean(row: Mapping[str, Any], name: str, unit: str = "", more: str = "") -> str:
        value, low, high = (
            format_number(row[f"{name}{end}"], unit, digits=4) for end in ("", "_low", "_high")
        )
        if math.isnan(row[f"{name}_low"]):
            return f"{value}{more}"
        return f"{value}{more} ({low} to {high})"

    base = rows[0]["side"]
    for row in rows:
        words = f"{row['side']}: harmonic mean {format_mean(row, 'harmonic', unit)}"
        if row is rows[0]:
            yield Paragraph(f"{words}.")
            continue
        mean = format_number(row["mean_ratio"], digits=4)
        yield Paragraph(
            f"{words}, {format_mean(row, 'merit', more=f' times {base}')}.",
            (f"The arithmetic mean of the points' ratios, {mean}, is not a ratio of times.",),
        )


def _points(runs: pd.DataFrame, keys: list[str], metric: str) -> pd.DataFrame:
    """Summarize the runs of a side by point.

    Args:
        runs: Runs of one side.
        keys: Columns that identify a point.
        metric: Column of the rate.

    Returns:
        A row for each point, with the columns:

        - `rate`, the median over runs;
        - `log`, the mean logarithm of the rate over runs;
        - `error`, the standard error of `log`;
        - `freedom`, the degrees of freedom of the error;
        - `run_ids`;
        - `single`, whether a single process was timed. The error of such a point includes the prior
          of the scatter between processes (`paradnn.statistics.priors`).
    """
    from paradnn.forecast.table import NOISE_METRICS, stated_freedom, stated_noise

    stated = runs.reindex(columns=list(NOISE_METRICS)).to_numpy(dtype="float64", na_value=np.nan).T
    rate = runs[metric].astype("float64")
    recorded = {"recorded_error": stated_noise(*stated), "freedom": stated_freedom(*stated[2:4])}
    recorded["single"] = ~(stated[2] > 1)
    table = runs[keys].assign(rate=rate, log=np.log(rate), run_ids=runs["run_id"], **recorded)
    found = table.groupby(keys, dropna=False, sort=True).agg(
        rate=("rate", "median"),
        log=("log", "mean"),
        spread=("log", "std"),
        recorded_error=("recorded_error", "mean"),
        freedom=("freedom", "min"),
        count=("rate", "size"),
        single=("single", "all"),
        run_ids=("run_ids", list),
    )
    # The scatter of replicates includes more than the noise that single runs record.
    has_replicates = found["count"] > 1
    spread = found["spread"].where(has_replicates, found["recorded_error"])
    error = spread / np.sqrt(found["count"])
    freedom = (found["count"] - 1).where(has_replicates, found["freedom"])
    prior = scatter_priors(classify_devices(runs)).process
    single = (~has_replicates & found["single"]) | error.isna()
    with_prior = np.hypot(error.fillna(0.0), prior.scale / np.sqrt(found["count"]))
    return found.assign(
        error=error.mask(single, with_prior),
        freedom=freedom.mask(single, prior.freedom),
        single=single,
    )


def _mean(points: pd.DataFrame) -> tuple[float, float, list[Component]]:
    """Return the harmonic mean of a side, and its error on a logarithmic scale.

    Args:
        points: Points of the side, from `_points`.

    Returns:
        Three values:

        - the harmonic mean of the rates;
        - the logarithm of a second harmonic mean, in which the rate of a point is the geometric
          mean over its runs;
        - the contribution of each point to the variance of this logarithm.
    """
    means = np.exp(points["log"].to_numpy())
    # The derivative of the logarithmic mean with respect to a point's logarithmic rate is the
    # point's share of the time.
    share = (1 / means) / (1 / means).sum()
    variances = (share * points["error"].to_numpy()) ** 2
    freedom = points["freedom"].to_numpy()
    parts = [Component(*map(float, pair)) for pair in zip(variances, freedom, strict=True)]
    return float(stats.hmean(points["rate"])), float(np.log(stats.hmean(means))), parts


def _ends(value: float, log: float, parts: Sequence[Component]) -> tuple[float, float, float]:
    """Return a harmonic mean with the ends of its 95% interval, from Student's t.

    If necessary, the interval is widened to include the value.

    Args:
        value: Harmonic mean of the rates.
        log: Logarithm around which the interval is symmetric (see `_mean`).
        parts: Contribution of each point to the variance of `log`.

    Returns:
        The value, the low end and the high end. Both ends are NaN if an error is unknown.
    """
    half_width = float(sum_components(parts).half_width)
    if not half_width > 0:
        if half_width == 0:
            return (value, value, value)
        return (value, math.nan, math.nan)
    return value, min(value, math.exp(log - half_width)), max(value, math.exp(log + half_width))


def _session_effects(
    a: pd.DataFrame, b: pd.DataFrame, keys: list[str], metric: str
) -> list[Effect]:
    """Return the effects of sessions and hosts on the log ratio of two sides.

    Args:
        a: Runs of the first side.
        b: Runs of the second side.
        keys: Columns that identify a point.
        metric: Column of the rate.
    """
    both = pd.concat([a, b], ignore_index=True)
    points = both.groupby(keys, dropna=False).ngroup().to_numpy()
    return side_effects(a, b, points, np.log(both[metric].to_numpy(dtype="float64")))


def _decide_merit(points: pd.DataFrame, base: pd.DataFrame, effects: Sequence[Effect]) -> Decision:
    """Decide whether a side has a higher harmonic mean than the baseline.

    Args:
        points: Points of the side, from `_points`.
        base: Points of the baseline, from `_points`.
        effects: Effects of the sessions and hosts of both sides on the log ratio.
    """
    _, log, parts = _mean(points)
    _, base_log, base_parts = _mean(base)
    errors = [sum_components(parts), sum_components(base_parts)]
    return decide(log - base_log, [*errors, *(effect.component for effect in effects)])


def _baseline_alone(first: str, suite: pd.DataFrame) -> AnalysisAnswer:
    sentence = f"Only {first} was measured, on {counted(len(suite), 'point')}"
    return AnalysisAnswer(sentence=sentence, points=len(suite))


def _answer(
    name: str,
    first: str,
    suite: pd.DataFrame,
    points: Mapping[str, pd.DataFrame],
    effects: Sequence[Effect],
) -> AnalysisAnswer:
    """State how a side compares with the baseline.

    Args:
        name: Name of the side.
        first: Name of the baseline.
        suite: (points, sides) rates.
        points: Points of each side, from `_points`.
        effects: Effects of the sessions and hosts of both sides on the log ratio.
    """
    found = _decide_merit(points[name], points[first], effects)
    value = float(stats.hmean(suite[name]) / stats.hmean(suite[first]))
    interval = f"95% CI {found.low:.3g}x to {found.high:.3g}x"
    over = f"in the harmonic mean over {counted(len(suite), 'point')}"
    sentence = f"{name} is {value:.3g}x as fast as {first} ({interval}) {over}"
    if found.verdict is Verdict.EQUAL:
        sentence = f"{name} and {first} are equally fast, {value:.3g}x ({interval}), {over}"
    elif found.verdict is Verdict.UNDECIDED:
        sentence = f"{sentence}: undecided, measure each side in more sessions"
    sources = ["measurement errors", *(effect.name for effect in effects)]
    prior = any(effect.prior_share > 0.5 for effect in effects)
    return AnalysisAnswer(
        sentence=sentence,
        verdict=found.verdict.value,
        ratio=value,
        low=min(value, found.low),
        high=max(value, found.high),
        ahead=int((suite[name] > suite[first]).sum()),
        points=len(suite),
        basis=", ".join(sources) + (", mostly by the prior of their scatter" if prior else ""),
    )


def _row(
    name: str,
    suite: pd.DataFrame,
    points: pd.DataFrame,
    base: pd.DataFrame,
    effects: Sequence[Effect] = (),
) -> dict[str, Any]:
    """Return the row of a side in the table of `figure_of_merit`.

    Args:
        name: Name of the side.
        suite: (points, sides) rates, the baseline in the first column.
        points: Points of the side, from `_points`.
        base: Points of the baseline; the same object for the baseline itself.
        effects: Effects of the sessions and hosts of both sides on the log ratio.
    """
    value, log, parts = _mean(points)
    harmonic, low, high = _ends(value, log, parts)
    merit = 1.0
    merit_low = 1.0
    merit_high = 1.0
    if points is not base:
        found = _decide_merit(points, base, effects)
        merit = value / _mean(base)[0]
        merit_low = min(merit, found.low)
        merit_high = max(merit, found.high)
    return {
        "side": name,
        "points": len(suite),
        "harmonic": harmonic,
        "harmonic_low": low,
        "harmonic_high": high,
        "arithmetic": suite[name].mean(),
        "merit": merit,
        "merit_low": merit_low,
        "merit_high": merit_high,
        "mean_ratio": (suite[name] / suite.iloc[:, 0]).mean(),
    }
