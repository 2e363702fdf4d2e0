"""`speedup`: compute the speedup of A over B at each point, and what the speedup depends on.

The paper's Figures 8 to 10 show such speedups. A and B are sets of runs, such as those of two
devices. A point is a combination of hyperparameter values. A speedup is the ratio of the metric on
A to the metric on B at the same point. The result has, per family, the share of points at which A
is better, and the geometric mean and quartiles of the speedup. A regression of the logarithmic
speedup on the hyperparameters shows where A has an advantage. With --operations, operations are
compared instead of points, and the result includes the gain in memory bandwidth that their speedups
imply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.columns import find_column, hyperparameters, is_number
from analysis.format import format_number
from analysis.labels import label_with_unit, term_label
from analysis.lazy import drawing, np, pd
from analysis.operation_speedup import operations_over
from analysis.options import color_option, column_option, option
from analysis.pairing import pair, require_like_sessions
from analysis.point_names import with_point_names
from analysis.registry import analysis
from analysis.regression_terms import doublings, encode, format_weight
from analysis.result import AnalysisAnswer, Result
from analysis.sides import (
    PairedOptions,
    Sides,
    choose_sides,
    describe_bounds,
    describe_confounding,
    describe_interval_sources,
    describe_population,
    describe_share,
    format_ratio,
    is_speed,
    make_answer,
    side_option,
    speed_word,
)
from analysis.store.frame import families
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast, judge
from paradnn.statistics.decision import adjust_p_values
from paradnn.statistics.dependence import Unit, shared_levels
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.regression import Regression, regress
from paradnn.statistics.verdict import Verdict

#: Maximum number of families in a figure.
_MAXIMUM_PANELS = 6
#: Minimum number of values of a hyperparameter for separate effects in addition to the slope.
_MINIMUM_VALUES = 3
#: Columns of the weights in the table of `speedup_dependence`.
_WEIGHT_COLUMNS = ("weight", "low", "high", "p", "doubling", "doubling_low", "doubling_high")
#: Range of x (largest / smallest) above which the axis is logarithmic.
_LOG_AXIS_RANGE = 20


@dataclass(frozen=True, kw_only=True)
class SpeedupOptions(PairedOptions):
    """Options of the command `speedup`: sides, axes of the figure, and terms of the regression."""

    a: tuple[str, ...] = side_option("A")
    b: tuple[str, ...] = side_option("B")
    x: str = column_option("parameters", "column on the x axis of the figure", "X")
    color: str | None = color_option(
        "hyperparameter that colors the marks (default: batch_size, if it varies)"
    )
    terms: tuple[str, ...] | None = column_option(
        None, "hyperparameters of the regression (default: all that vary)", "X,Y"
    )
    operations: bool = option(False, "compare the operations of profiled runs")


class SpeedupFit(NamedTuple):
    """Regression of the speedup of a family on hyperparameters.

    Attributes:
        family: Name of the family.
        regression: The regression of log2(speedup).
        logarithms: Hyperparameters whose log2 is the term. Their slope is in doublings of the
            speedup per doubling of the hyperparameter.
        bases: Base value of each column with text values. Its other values are compared with the
            base value.
    """

    family: str
    regression: Regression
    logarithms: tuple[str, ...]
    bases: Mapping[str, str]

    @property
    def weights(self) -> pd.DataFrame:
        """The weights of the regression, a row per term, the largest absolute weight first.

        `doubling` is the factor by which doubling a hyperparameter multiplies the speedup.
        """
        weights = self.regression.weights.sort_values("weight", key=lambda column: -column.abs())
        return weights.join(doublings(weights, self.logarithms))


class Speedup(NamedTuple):
    """Speedups of side A over side B at the points that both sides measured.

    Attributes:
        pairs: A row per point, as `pairing.pair` returns them.
        families: A row per family, as `summarize` returns it.
        fits: The regressions of families with enough data.
        omitted: The reasons why other families have no regression.
    """

    pairs: pd.DataFrame
    families: pd.DataFrame
    fits: tuple[SpeedupFit, ...]
    omitted: tuple[InsufficientData, ...]


@analysis(
    SpeedupOptions,
    summary="speedup of A over B, point by point, and its dependence on hyperparameters",
    example=(
        "python -m analysis speedup --a 'device=TPU v2' --b device=V100 --color nodes "
        "--figure speedup.png"
    ),
    section="pair",
    order=170,
    title="What the speedup depends on",
)
def speedup(frame: pd.DataFrame, options: SpeedupOptions) -> Result:
    """Compare side A with side B point by point, or operation by operation.

    A point is a combination of hyperparameter values.

    Args:
        frame: Runs of both sides, one per row.
        options: The conditions that select each side's runs, the metric, the terms of the
            regression, and the axes of the figure.

    Raises:
        ConfigError: If a side has no runs, or the runs lack a column.
        SchemaError: If the runs of a side differ in their environment or timing protocol, and the
            option `pool` is not set.
    """
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), pool=options.pool)
    if options.operations:
        return operations_over(sides, sides.join_on(options.on), options.store)
    result = _pair_sides(sides, options)
    return sides.compared(
        cells=result.pairs,
        families=result.families,
        options=options,
        answer=make_answer(
            result.families.iloc[-1].to_dict(),
            Contrast.of(result.pairs, "all", options.unit),
            sides,
            metric=options.metric,
            margin=options.margin,
            verdict="by_itself",
        ),
        sentences=_describe(result, sides, options),
        picture=lambda: _draw(result, sides, options),
    )


def speedup_dependence(frame: pd.DataFrame, options: SpeedupOptions) -> Result:
    """Return only the regressions of the speedup, for a report that compares points elsewhere.

    Args:
        frame: Runs of both sides, one per row.
        options: The options of the command `speedup`.

    Returns:
        The result. Its table has a row per family and term. If no family has a regression, it has a
        row per point.

    Raises:
        ConfigError: If a side has no runs, or the runs lack a column.
        SchemaError: If the runs of a side differ in their environment or timing protocol, and the
            option `pool` is not set.
    """
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), pool=options.pool)
    result = _pair_sides(sides, options)
    fits = sorted(result.fits, key=lambda fit: -fit.regression.rows)
    sentences = [_describe_fit(fit) for fit in fits]
    sentences += [f"{group}: no regression." for group in result.omitted]
    if fits:
        weights = [fit.weights.assign(family=fit.family).reset_index() for fit in fits]
        table = pd.concat(weights, ignore_index=True)[["family", "term", *_WEIGHT_COLUMNS]]
    else:
        table = with_point_names(result.pairs[["speedup"]], result.pairs, {})
    answer = None
    if sentences:
        answer = AnalysisAnswer(sentence=sentences[0], points=len(result.pairs))
    return Result(
        numbers=table,
        answer=answer,
        sentences=sentences,
        picture=lambda: _draw(result, sides, options),
        sources=sides.sources,
        pooled=sides.pooled,
    )


def _pair_sides(sides: Sides, options: SpeedupOptions) -> Speedup:
    numeric = [name for name in sides.a.columns if is_number(sides.a[name])]
    carry = [name for name in dict.fromkeys(("parameters", options.x)) if name in numeric]
    return pair_points(
        sides.a,
        sides.b,
        options.metric,
        sides.join_on(options.on),
        carry=carry,
        terms=options.terms,
        unit=options.unit,
    )


def _describe(result: Speedup, sides: Sides, options: SpeedupOptions) -> Iterator[str]:
    names = sides.display_names
    if result.pairs.empty:
        yield (
            f"No point was measured on both sides: {names[0]} has "
            f"{counted(len(sides.a), 'run')} and {names[1]} has {len(sides.b)}."
        )
    else:
        explanation = sides.explain_names()
        if explanation:
            yield explanation.strip()
        total = result.families.iloc[-1].to_dict()
        word = speed_word(options.metric)
        yield f"{describe_share(total, names, word)}."
        yield from describe_population(total, inverted=total["by_itself"] == Verdict.SLOWER)
        yield from describe_confounding(Contrast.of(result.pairs, "all", options.unit))
        yield from describe_bounds(total, names)
        word = word if is_speed(options.metric) else f"better in {options.metric}"
        for row in result.families.to_dict("records"):
            yield _describe_family(row, word, names)
        yield describe_interval_sources(result.pairs)
    yield from map(_describe_fit, result.fits)
    yield from (f"{group}: no regression." for group in result.omitted)
    yield from sides.describe_differences(result.pairs)


def _describe_family(row: dict[Any, Any], word: str, names: tuple[str, str]) -> str:
    ends = [row[f"geometric_mean{end}"] for end in ("", "_low", "_high")]
    ratio, interval = format_ratio(*ends)
    return (
        f"{row['family']}: {describe_share(row, names, word)}; geometric mean {ratio} "
        f"({interval}) of {names[0]} over {names[1]}; quartiles {row['q25']:.3g} / "
        f"{row['median']:.3g} / {row['q75']:.3g}, from {row['minimum']:.3g} to "
        f"{row['maximum']:.3g}."
    )


def _describe_fit(fit: SpeedupFit) -> str:
    """State the terms of a regression with a significant weight, and the other terms.

    Args:
        fit: The regression of the speedup of one family.
    """
    weights = fit.weights
    is_shown = adjust_p_values(weights["p"].to_numpy()) <= 1 - LEVEL
    parts = []
    if is_shown.any():
        texts = [format_weight(str(term), row) for term, row in weights[is_shown].iterrows()]
        parts.append(f"the speedup depends on {'; '.join(texts)}")
    others = list(weights.index[~is_shown])
    if others:
        parts.append(
            f"no effect shown, with {counted(len(weights), 'term')} tested: {', '.join(others)}"
        )
    bases = "".join(f" {name} is compared with {base}." for name, base in fit.bases.items())
    return (
        f"{fit.family}: {'; '.join(parts)}. R² {fit.regression.r2:.2f}, "
        f"on held-out points {fit.regression.r2_held_out:.2f}.{bases}"
    )


def pair_points(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    *,
    carry: Sequence[str] = ("parameters",),
    terms: Sequence[str] | None = None,
    unit: Unit = "crossed",
) -> Speedup:
    """Compute the speedup of A over B point by point, and regress it on hyperparameters.

    Each family has a regression of log2(speedup) on the hyperparameters of its pairs. The log2 of a
    hyperparameter is the term if all its values are positive numbers.
    `paradnn.statistics.regression.regress` standardizes the weights. Their errors allow for the
    correlation of points that share a model or batch size.

    Args:
        a: Runs of A, one per row.
        b: Runs of B, one per row.
        metric: The metric to compare.
        on: Columns that identify a point; None for the default of `pair`.
        carry: Numeric columns to keep, as medians over the runs of a point.
        terms: Hyperparameters of the regression; None for all.
        unit: Sampling unit of the confidence intervals: "crossed" (models and batch sizes),
            "model" (models, at fixed batch sizes) or "point" (single configurations).

    Raises:
        ConfigError: If `pair` rejects the sides, or no pair has a term.
    """
    pairs = pair(a, b, metric, on, carry)
    fits = []
    omitted = []
    for family in families(pairs):
        rows = pairs[pairs["family"] == family]
        try:
            require_like_sessions(pairs, family)
            fits.append(_fit(family, rows, terms, unit))
        except InsufficientData as problem:
            omitted.append(InsufficientData(str(problem), group=family))
    return Speedup(pairs, summarize(pairs, unit), tuple(fits), tuple(omitted))


def summarize(pairs: pd.DataFrame, unit: Unit = "crossed") -> pd.DataFrame:
    """Summarize speedups by family.

    Args:
        pairs: A row per point that both sides measured, as `pairing.pair` returns them.
        unit: Sampling unit of the confidence intervals: "crossed" (models and batch sizes),
            "model" (models, at fixed batch sizes) or "point" (single configurations).

    Returns:
        A row per family, and a last row for "all" unless there is exactly one family. The columns
        are those of `Contrast.row` and `judge`. `by_itself` is the verdict of a row without a
        correction for the number of rows.
    """
    names = families(pairs)
    if len(names) != 1:
        names = [*names, "all"]
    return judge(
        pd.DataFrame([{"family": name, **Contrast.of(pairs, name, unit).row()} for name in names])
    )


def _fit(family: str, rows: pd.DataFrame, terms: Sequence[str] | None, unit: Unit) -> SpeedupFit:
    """Regress the logarithmic speedup of one family on its hyperparameters.

    Args:
        family: Name of the family.
        rows: Pairs of points of the family.
        terms: Hyperparameters of the regression; None for all that vary.
        unit: Sampling unit of the intervals of weights: "crossed", "model" or "point".
    """
    if terms is None:
        columns = hyperparameters(rows)
    else:
        columns = [find_column(rows, name, "--terms") for name in terms]
    names = [name for name in columns if rows[name].notna().all() and rows[name].nunique() > 1]
    design, bases = encode(rows, names)
    logarithms = [name for name in design if name in names and (design[name] > 0).all()]
    design[logarithms] = np.log2(design[logarithms])
    ratios = rows["speedup"].to_numpy(dtype="float64")
    levels = shared_levels(rows, unit, axes=_MINIMUM_VALUES)
    regression = regress(design, ratios, np.log2, levels=levels)
    return SpeedupFit(family, regression, tuple(logarithms), bases)


def _draw(result: Speedup, sides: Sides, options: SpeedupOptions) -> drawing.Figure:
    """Draw a row of panels per family: the speedup over --x, and the weights of its regression.

    The column --color, by default the batch size, sets the colors of marks. Above the line at 1, A
    is faster. Bars are 95% intervals.

    Args:
        result: The pairs and regressions.
        sides: The two sides, with their names.
        options: The options of the command.

    Raises:
        ConfigError: If there are more than six families, or --x is not a column of numbers.
    """
    pairs = result.pairs
    names = families(pairs)
    if len(names) > _MAXIMUM_PANELS:
        raise ConfigError(
            "--family",
            "(all)",
            f"{len(names)} families do not fit one figure, which has at most {_MAXIMUM_PANELS}",
            "name fewer families",
        )
    x = find_column(pairs, options.x, "--x")
    if not is_number(pairs[x]):
        remedy = "name a numeric column, such as parameters or nodes"
        raise ConfigError("--x", x, "is not a column of numbers", remedy)
    color_column = None
    coloring = None
    if options.color:
        color_column = find_column(pairs, options.color, "--color")
    elif "batch_size" in pairs and pairs["batch_size"].nunique() > 1:
        color_column = "batch_size"
    if color_column is not None:
        coloring = drawing.coloring(pairs[color_column], color_column)
    fits = {fit.family: fit for fit in result.fits}
    across = 2 if fits else 1
    figure, panels = drawing.panels(len(names) * across, 6.2, 3.9, across=across)
    for number, family in enumerate(names):
        rows = pairs[pairs["family"] == family]
        is_last = number == len(names) - 1
        parts: list[tuple[Any, Mapping[str, Any]]]
        if coloring is None or color_column is None:
            parts = [(slice(None), {"color": drawing.COLORS[0]})]
        else:
            parts = list(coloring.parts(rows[color_column]))
        axes = panels[across * number]
        _draw_ratios(axes, rows, x, parts)
        wins = int((rows["speedup"] > 1).sum())
        points = counted(len(rows), "point")
        title = f"{family}: {sides.name_a} over {sides.name_b}, ahead in {wins} of {points}"
        x_label = label_with_unit(x) if is_last else ""
        drawing.finish(axes, title, x_label, "speedup", logs={"y": drawing.times})
        if fits:
            _draw_weights(panels[2 * number + 1], fits.get(family), is_last=is_last)
    if coloring is not None:
        coloring.explain(figure, panels[::across])
    return figure


def _draw_ratios(
    axes: drawing.Axes,
    rows: pd.DataFrame,
    x: str,
    parts: Sequence[tuple[Any, Mapping[str, Any]]],
) -> None:
    """Draw the speedups of one family.

    Args:
        axes: Axes of the panel.
        rows: The pairs of points of the family.
        x: Column of the x axis.
        parts: Subsets of the rows, each with the style of its marks.
    """
    x_values = rows[x].astype("float64")
    axes.axhline(1, color="#333333", linewidth=1)
    axes.vlines(
        x_values, rows["speedup_low"], rows["speedup_high"], color="#999999", lw=0.7, zorder=1
    )
    for subset, style in parts:
        axes.scatter(
            x_values[subset],
            rows["speedup"][subset],
            s=20,
            alpha=0.85,
            linewidths=0,
            zorder=2,
            **style,
        )
    axes.set_yscale("log")
    if (x_values > 0).all() and x_values.max() > _LOG_AXIS_RANGE * x_values.min():
        axes.set_xscale("log")
        drawing.log_ticks(axes.xaxis, format_number)


def _draw_weights(axes: drawing.Axes, fit: SpeedupFit | None, *, is_last: bool) -> None:
    """Draw the weights of one family; remove the panel if it has no regression.

    Args:
        axes: Axes of the panel.
        fit: The regression of the family; None if it has no regression.
        is_last: Whether this is the lowest panel, which has a label on the x axis.
    """
    if fit is None:
        axes.remove()
        return
    weights = fit.weights
    axes.axvline(0, color="#333333", linewidth=1)
    rows = {term: term_label(str(term)) for term in weights.index}
    groups = {"": weights.rename(columns={"weight": "value"})}
    styles = {"": {"marker": drawing.MARKERS[0], "color": drawing.COLORS[0]}}
    drawing.forest(axes, rows, groups, styles)
    title = f"what log speedup depends on, R² {fit.regression.r2:.2f}"
    x_label = "standardized weight, 95% interval" if is_last else ""
    drawing.finish(axes, title, x_label)
