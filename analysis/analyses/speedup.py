"""`speedup`: how much faster A is than B, over which points, and what that depends on (paper,
Figures 8 to 10).

Every ratio is of one point on both sides. Out come the share of points where A wins, the geometric
mean and the quartiles of the speedup for each family, and a regression of its logarithm on the
hyperparameters, which shows where A pays. With --operations it compares operation by operation, and
gives the gain in memory bandwidth that this implies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.columns import find_column, hyperparameters, is_number
from analysis.format import short
from analysis.labels import labelled, term_label
from analysis.lazy import drawing, np, pd
from analysis.operation_speedup import operations_over
from analysis.options import column_option, option
from analysis.pairing import pair, require_like_sessions
from analysis.registry import analysis
from analysis.regression_terms import encode, format_weight
from analysis.result import Result
from analysis.sides import (
    PairedOptions,
    Sides,
    choose_sides,
    is_speed,
    mean_of,
    no_verdict,
    side_option,
    sources_of,
)
from analysis.store.frame import families
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.statistics.contrast import Contrast, adjusted
from paradnn.statistics.dependence import Unit, levels_of
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.regression import Lacking, Regression, regress

_PANELS = 6
_VALUES = 3  # of a hyperparameter from which on each may have an effect of its own beside a slope


@dataclass(frozen=True, kw_only=True)
class SpeedupOptions(PairedOptions):
    """Two sides, how they are paired, and how the speedup is drawn and regressed."""

    a: tuple[str, ...] = side_option("A")
    b: tuple[str, ...] = side_option("B")
    x: str = column_option("parameters", "what the speedup is drawn against", "X")
    colour: str | None = column_option(
        None, "hyperparameter that colours the marks, such as batch_size", "C"
    )
    terms: tuple[str, ...] | None = column_option(
        None, "hyperparameters of the regression (default: all that vary)", "X,Y"
    )
    operations: bool = option(False, "compare the operations of profiled runs")


class SpeedupFit(NamedTuple):
    """What the speedup of a family depends on. `logarithms` names the hyperparameters taken as
    log2: a slope is in doublings of the speedup, per doubling of such a hyperparameter.
    """

    family: str
    regression: Regression
    logarithms: tuple[str, ...]
    baselines: Mapping[str, str]

    @property
    def weights(self) -> pd.DataFrame:
        """Those of the regression, the largest first; `doubling` a hyperparameter multiplies the
        speedup by.
        """
        found = self.regression.weights.sort_values("weight", key=lambda column: -column.abs())
        return found.assign(doubling=(2 ** found["slope"]).where(found.index.isin(self.logarithms)))


class Speedup(NamedTuple):
    """`pairs` as `pairing.pair` gives them, `families` as `summarise` does, a fit for each family
    that allows one, and in `lacking` why the others have none.
    """

    pairs: pd.DataFrame
    families: pd.DataFrame
    fits: tuple[SpeedupFit, ...]
    lacking: tuple[Lacking, ...]


@analysis(
    SpeedupOptions,
    summary="how much faster A is than B, point by point, and what that depends on",
    example="python -m analysis speedup --a 'device=TPU v2' --b device=V100 --colour nodes --figure speedup.png",
    section="pair",
    order=170,
    title="What the speedup depends on",
)
def speedup(frame: pd.DataFrame, options: SpeedupOptions) -> Result:
    """A over B point by point: the share of wins, the mean, and what the speedup depends on.

    With `operations` the same operation by operation. ConfigError for a side without runs or a
    column that is not there, SchemaError for heterogeneous runs of a side.
    """
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), options.pool)
    on = sides.join_on(options.on)
    if options.operations:
        return operations_over(sides, on, options.store)
    numbers = [name for name in sides.a.columns if is_number(sides.a[name])]
    carry = tuple(dict.fromkeys(name for name in ("parameters", options.x) if name in numbers))
    found = pair_points(sides.a, sides.b, options.metric, on, carry, options.terms, options.unit)
    told = _told(found, sides, options.metric)
    return sides.compared(
        found.pairs, found.families, options, told, lambda: _draw(found, sides, options)
    )


def _told(found: Speedup, sides: Sides, metric: str) -> Iterator[str]:
    a, b = names = sides.called
    if found.pairs.empty:
        yield f"No point was measured on both sides, of {len(sides.a)} runs of {a} and {len(sides.b)} of {b}."
    else:
        yield f"{sides.named()}Speedup is {a} over {b} in {metric}, above 1 where {a} is better."
        word = "faster" if is_speed(metric) else f"better in {metric}"
        for row in found.families.to_dict("records"):
            yield _family(row, word, names)
        yield (
            f"Intervals of share and mean are 95%, over {found.families['sample'].iloc[-1]}: what others of their kind "
            f"would give. {sources_of(found.pairs)}"
        )
        yield from no_verdict(found.pairs)
    yield from map(_fit, found.fits)
    yield from (f"{lacking}: no regression." for lacking in found.lacking)
    yield from sides.apart(found.pairs)


def _family(row: dict[Any, Any], word: str, names: tuple[str, str]) -> str:
    return (
        f"{row['family']}: {names[0]} is {word} in {row['wins']} of {row['points']} points, {row['share']:.1%} "
        f"({row['share_low']:.1%} to {row['share_high']:.1%}); {mean_of(row, names)}; quartiles {row['q25']:.3g} / "
        f"{row['median']:.3g} / {row['q75']:.3g}, from {row['minimum']:.3g} to {row['maximum']:.3g}."
    )


def _fit(fit: SpeedupFit) -> str:
    """One family's regression in a sentence: what has a weight that is told from none, and what has
    not.
    """
    result = fit.regression
    weights = fit.weights
    clear = adjusted(weights["p"].to_numpy()) <= 1 - LEVEL
    shown = [
        format_weight(str(term), row, "the speedup") for term, row in weights[clear].iterrows()
    ]
    if shown:
        words = [f"standardised weights on log speedup: {'; '.join(shown)}"]
    else:
        words = []
    others = list(weights.index[~clear])
    if others:
        words.append(
            f"not distinguished from no effect, with {len(weights)} terms tried: {', '.join(others)}"
        )
    baseline = "".join(f" {name} is against {value}." for name, value in fit.baselines.items())
    held_out = f"R² {result.r2:.2f}, on held-out points {result.r2_held_out:.2f}"
    return f"{fit.family}: {'; '.join(words)}. {held_out}.{baseline}"


def pair_points(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    carry: Sequence[str] = ("parameters",),
    terms: Sequence[str] | None = None,
    unit: Unit = "crossed",
) -> Speedup:
    """The speedup of A over B point by point, and its regression on hyperparameters for each
    family.

    log2(speedup) is regressed on the hyperparameters of the pairs (or `terms`), numbers above zero
    as log2. Weights are standardised, see `regression.regress`; their errors allow for the models
    and batch sizes that points share (`unit`). Raises ConfigError as `pair` does, and for terms
    that no pair has.
    """
    pairs = pair(a, b, metric, on, carry)
    fits = []
    lacking = []
    for family in families(pairs):
        rows = pairs[pairs["family"] == family]
        try:
            require_like_sessions(pairs, family)
            fits.append(_fit_of(family, rows, terms, unit))
        except NotEnoughData as problem:
            lacking.append(Lacking(family, str(problem)))
    return Speedup(pairs, summarise(pairs, unit), tuple(fits), tuple(lacking))


def summarise(pairs: pd.DataFrame, unit: Unit = "crossed") -> pd.DataFrame:
    """One row for each family, and one for "all" where there are several, as
    `contrast.Contrast.row` gives them.
    """
    names = [*families(pairs), "all"]
    names = names if len(names) > 2 else names[:-1]
    return pd.DataFrame(
        [{"family": name, **Contrast.of(pairs, name, unit).row()} for name in names]
    )


def _fit_of(family: str, rows: pd.DataFrame, terms: Sequence[str] | None, unit: Unit) -> SpeedupFit:
    if terms is None:
        chosen = hyperparameters(rows)
    else:
        chosen = [find_column(rows, name, "--terms") for name in terms]
    names = [name for name in chosen if rows[name].notna().all() and rows[name].nunique() > 1]
    design, baselines = encode(rows, names)
    logarithms = [name for name in design if name in names and (design[name] > 0).all()]
    design[logarithms] = np.log2(design[logarithms])
    ratio = rows["speedup"].to_numpy(dtype="float64")
    found = regress(design, ratio, np.log2, levels=levels_of(rows, unit, axes=_VALUES))
    return SpeedupFit(family, found, tuple(logarithms), baselines)


def _draw(found: Speedup, sides: Sides, asked: SpeedupOptions) -> drawing.Figure:
    """A row for each family: speedup against --x, coloured by --colour, and beside it the weights
    of the family's regression where any has one. Above the line at 1 A is faster; bars are 95%
    intervals where there are any.
    """
    pairs = found.pairs
    names = families(found.pairs)
    fits = {fit.family: fit for fit in found.fits}
    if len(names) > _PANELS:
        raise ConfigError(
            "--family",
            "(all)",
            f"more than {_PANELS} families do not fit one figure",
            "choose some",
        )
    x = find_column(pairs, asked.x, "--x")
    if not is_number(pairs[x]):
        raise ConfigError("--x", x, "is not a number", "choose for example parameters or nodes")
    if asked.colour:
        colour = find_column(pairs, asked.colour, "--colour")
    else:
        colour = None
    shades = drawing.colouring(pairs[colour], colour) if colour else None
    across = 2 if fits else 1
    figure, every = drawing.panels(len(names) * across, 6.2, 3.9, across=across)
    for number, family in enumerate(names):
        rows = pairs[pairs["family"] == family]
        axes = every[across * number]
        last = number == len(names) - 1
        places = rows[x].astype("float64")
        axes.axhline(1, color="#333333", linewidth=1)
        axes.vlines(
            places, rows["speedup_low"], rows["speedup_high"], color="#999999", lw=0.7, zorder=1
        )
        for mine, look in (
            shades.parts(rows[colour]) if shades else [(slice(None), {"color": drawing.COLOURS[0]})]
        ):
            axes.scatter(
                places[mine],
                rows["speedup"][mine],
                s=20,
                alpha=0.85,
                linewidths=0,
                zorder=2,
                **look,
            )
        axes.set_yscale("log")
        wins = int((rows["speedup"] > 1).sum())
        title = (
            f"{family}: {sides.name_a} over {sides.name_b}, ahead in {wins} of {len(rows)} points"
        )
        drawing.finish(
            axes, title, labelled(x) if last else "", "speedup", logs={"y": drawing.times}
        )
        if (places > 0).all() and places.max() > 20 * places.min():
            axes.set_xscale("log")
            drawing.log_ticks(axes.xaxis, short)
        if across == 2:
            _weights(every[2 * number + 1], fits.get(family), last)
    if shades:
        shades.explain(figure, every[::across])
    return figure


def _weights(axes: drawing.Axes, fit: SpeedupFit | None, last: bool) -> None:
    if fit is None:
        axes.remove()
        return
    weights = fit.weights
    axes.axvline(0, color="#333333", linewidth=1)
    rows = {term: term_label(str(term)) for term in weights.index}
    groups = {"": weights.rename(columns={"weight": "value"})}
    drawing.forest(
        axes, rows, groups, {"": {"marker": drawing.MARKERS[0], "color": drawing.COLOURS[0]}}
    )
    title = f"what log speedup depends on, R² {fit.regression.r2:.2f}"
    drawing.finish(axes, title, "standardised weight, 95% interval" if last else "")
