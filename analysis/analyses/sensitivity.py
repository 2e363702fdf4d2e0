"""`sensitivity`: what a metric depends on, as standardised regression weights with intervals.

The paper (section 4.1, Figures 2 d-f, 8 a, 9 a, 10) fits metric = w0 x layers + w1 x nodes + ...
with everything on one scale and reads the signed weights as sensitivities: of +0.5, one standard
deviation more of the hyperparameter brings half of one more of the metric. Here each weight comes
with an interval that allows for unequal scatter and for values that each have an effect of their
own, and with a verdict: none on what went along with the session that measured it. One fit for each
family and device; columns that cannot have a weight, constant or collinear, are named instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.columns import (
    FamilyGroup,
    GroupKey,
    analyze_groups,
    as_numbers,
    choose_metric,
    compute_families_if_mixed,
    find_column,
    find_metric,
    format_values,
    hyperparameters,
    settings,
)
from analysis.format import short
from analysis.labels import label, term_label
from analysis.lazy import drawing, np, pd
from analysis.options import Options, column_option, metric_option, option, unit_option
from analysis.registry import SectionSpec, analysis
from analysis.result import Highlight, Paragraph, Result, pooled_within
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous, units
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.words import counted
from paradnn.statistics.contrast import adjusted
from paradnn.statistics.dependence import Component, Levels, Unit, combined, levels_of
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.regression import BETWEEN, Regression, regress
from paradnn.statistics.sessions import ALLOWANCE, When, when_of

_RATE = 0.05  # of fits without any effect in which some term may be said to matter
_POOR = 0.5  # the R2 below which a straight line is said to describe little
_MOST = 12  # terms of a panel; the weakest beyond it are left to the table


@dataclass(frozen=True, kw_only=True)
class SensitivityOptions(Options):
    """What is explained with what, and on which scale."""

    metric: str | None = metric_option("what to explain")
    on: tuple[str, ...] | None = column_option(
        None,
        "hyperparameters to explain it with, such as nodes,batch_size (default: all that vary)",
        "A,B",
    )
    log_scale: Literal["none", "both"] = option("none", "take logarithms of both sides")
    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True)
class Fit(GroupKey):
    """The regression of one family on one device. `weights` are those of the regression, the
    largest first, with `p_adjusted` for the number of terms, `doubling` (what doubling the
    hyperparameter multiplies the metric by, NaN where not both are logarithms) and `verdict`:
    depends, values differ (but no slope is shown), not shown, or none (sessions, order). `constant`
    maps every column without variation to its value; `said` is all this in words.
    """

    regression: Regression
    weights: pd.DataFrame
    constant: Mapping[str, str]
    said: Paragraph
    sample: str
    sources: tuple[str, ...]

    def strongest(self) -> tuple[str, list[str]] | None:
        """(the largest weight on which the metric depends, the terms that may weigh as much); None
        without one.
        """
        shown = self.weights.index[self.weights["verdict"] == "depends"]
        if not len(shown):
            return None
        first = self.weights.loc[shown[0]]
        rivals = []
        for name, other in self.weights.drop(shown[0]).iterrows():
            common = self.regression.correlation.loc[shown[0], name] * np.sign(
                first["weight"] * other["weight"]
            )
            variance = (
                first["error"] ** 2
                + other["error"] ** 2
                - 2 * common * first["error"] * other["error"]
            )
            both = combined(
                [Component(one["error"] ** 2, one["freedom"]) for one in (first, other)]
            )
            reach = Component(max(variance, 0.0), both.freedom).reach
            if (
                other["verdict"].startswith("none")
                or abs(first["weight"]) - abs(other["weight"]) <= reach
            ):
                rivals.append(str(name))
        return str(shown[0]), rivals


@analysis(
    SensitivityOptions,
    summary="what a metric depends on: regression weights with intervals",
    example="python -m analysis sensitivity --family fc --log-scale both --figure weights.png",
    section="system",
    order=50,
    title="What performance depends on",
    reading=(
        "Standardised weights of a regression on logarithms. Further from zero matters more; an interval"
        " that holds zero shows no effect."
    ),
    list_sections=lambda rows: [
        SectionSpec(SensitivityOptions(log_scale="both"), families=compute_families_if_mixed(rows))
    ],
)
def sensitivity(frame: pd.DataFrame, options: SensitivityOptions) -> Result:
    """The weights of every family on every device, over its ok runs; see `regress` for the
    formulas.

    ConfigError for a column or metric that is not there, NotEnoughData where no group can be
    fitted, SchemaError for heterogeneous runs of a group.
    """
    if options.pool:
        pooled = pooled_within(frame, ["family", "device"], pool=True)
    else:
        pooled = ""
    if options.metric:
        metric = find_metric(frame, options.metric)
    else:
        metric = choose_metric(frame)
    chosen = [find_column(frame, name, "--on") for name in options.on or ()]
    lacks = f"not enough data to explain {metric}"
    remedy = "measure more points, or choose fewer hyperparameters with --on"
    fits, lacking = analyze_groups(
        frame, lambda group: _fit(group, metric, chosen, options), lacks, remedy
    )
    log = options.log_scale == "both"
    of = f"{'log ' * log}{metric}"
    weigh = (
        f"A weight is the change of {of}, in its standard deviations, for one standard deviation of the "
        f"hyperparameter; {LEVEL:.0%} intervals over {'; '.join(dict.fromkeys(fit.sample for fit in fits))}, and over "
        "the values that a hyperparameter has."
    )
    return Result(
        numbers=pd.concat([_rows(fit, metric) for fit in fits], ignore_index=True),
        sentences=[*(fit.said for fit in fits), *(f"{each}: no fit." for each in lacking), weigh],
        picture=lambda: _draw(fits, f"{'log ' * log}{label(metric)}", log),
        stands_out=_headline(fits, metric),
        sources=tuple(run for fit in fits for run in fit.sources),
        pooled=pooled,
        metrics=(metric,),
    )


def _rows(fit: Fit, metric: str) -> pd.DataFrame:
    """A row for each weight, the most important first."""
    part = fit.weights.rename_axis("term").reset_index()
    found = fit.regression
    for place, (name, value) in enumerate(
        (("family", fit.family), ("device", fit.device), ("metric", metric))
    ):
        part.insert(place, name, value)
    return part.assign(points=found.rows, r2=found.r2, r2_held_out=found.r2_held_out)


def _headline(fits: Sequence[Fit], metric: str) -> Highlight | None:
    """The largest weight of the fit over the most points in which the metric depends on anything."""
    known = [(fit, strongest) for fit in fits if (strongest := fit.strongest()) is not None]
    if not known:
        return None
    fit, (term, rivals) = max(known, key=lambda one: one[0].regression.rows)
    row = fit.weights.loc[term]
    if pd.notna(row["doubling"]):
        doubling = f"; doubling it multiplies it by {row['doubling']:.2f}"
    else:
        doubling = ""
    if rivals:
        told = f" Whether it depends more on {' or '.join(map(label, rivals))} is not shown."
    else:
        told = ""
    words = (
        f"{label(metric)} of {fit.family} depends {'' if rivals else 'most '}on {label(term)}, weight "
        f"{row['weight']:+.2f} (95% CI {row['low']:+.2f} to {row['high']:+.2f}) over "
        f"{counted(fit.regression.rows, 'point')}{doubling}.{told}"
    )
    return Highlight("What it depends on", words)


def _fit(
    group: FamilyGroup, metric: str, chosen: Sequence[str], options: SensitivityOptions
) -> Fit:
    """The fit of one group."""
    ok = is_ok(group.rows)
    log = options.log_scale == "both"
    measured = group.rows[ok & group.rows[metric].notna()]
    if measured.empty:
        raise NotEnoughData(f"no measured run has {metric}")
    measured = require_homogeneous(measured, pool=options.pool)
    names = [
        name
        for name in dict.fromkeys(chosen or hyperparameters(measured))
        if measured[name].notna().any()
    ]
    every = aggregate_replicates(measured)
    rows = every[every[names].notna().all(axis=1)]
    if rows.empty:
        raise NotEnoughData(
            f"no measured run has all of {format_values(set(map(label, names)), 12)}; choose some with --on"
        )
    constant = {name: str(rows[name].iloc[0]) for name in names if rows[name].nunique() == 1}
    varying = [name for name in names if name not in constant]
    design, baselines = encode(rows, varying, log)
    values = rows[metric].to_numpy(dtype="float64")
    if log:
        _logarithms(values, metric, "leave those runs out with --where")
    levels = levels_of(rows, options.unit)
    fitted, weights = _regressed(
        design, values, log, levels, options.unit, when_of(measured, rows["point_id"])
    )
    constant |= {name: f"{value:g} in total" for name, value in fitted.constant.items()}
    weights = _judged(weights, [name for name in varying if log and _takes_logarithm(rows[name])])
    others = [
        name for name in hyperparameters(rows) if name not in names and rows[name].nunique() > 1
    ]
    others += [name for name in settings(rows) if name not in names]
    failed = group.rows.loc[~ok, "outcome"].fillna("unfinished").value_counts()
    head = f"{group.name}: {metric} over {fitted.rows:,} points"
    left_out = ", ".join(f"{count} {outcome}" for outcome, count in failed.items())
    if left_out:
        head += f"; runs without a measurement are left out ({left_out}), so this covers only models that ran"
    lacking = len(every) - len(rows), int(ok.sum()) - len(measured)
    points = [*_found(weights, fitted, units([metric]).get(metric, ""), log)]
    points += _notes(fitted, constant, baselines, others, *lacking)
    return Fit(
        family=group.family,
        device=group.device,
        regression=fitted,
        weights=weights,
        constant=constant,
        said=Paragraph(f"{head}.", tuple(points)),
        sample=levels.words,
        sources=tuple(measured["run_id"]),
    )


def _regressed(
    design: pd.DataFrame,
    values: np.ndarray,
    log: bool,
    levels: Levels,
    unit: Unit,
    when: When | None,
) -> tuple[Regression, pd.DataFrame]:
    """The regression of the values, or of their logarithms, and its weights with the p of whether
    there is a slope.
    """
    how: dict[str, Any] = {"by_value": unit == "crossed", "when": when}
    how["levels"] = None if unit == "point" else levels
    if log:
        fitted = regress(design, values, np.log, **how)
    else:
        fitted = regress(design, values, **how)
    if log or not (values > 0).all():
        return fitted, fitted.weights
    # Asked of logarithms, on which a factor for each doubling is a line.
    logs = design.apply(lambda column: np.log(column) if (column > 0).all() else column)
    tested = regress(logs, values, np.log, **how).weights
    return fitted, fitted.weights.assign(p=tested["p"].reindex(fitted.weights.index).fillna(1.0))


def _judged(weights: pd.DataFrame, logarithms: Sequence[str]) -> pd.DataFrame:
    """`Fit.weights`, the largest first."""
    found = weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
    apart = found["between"] >= BETWEEN
    found["p_adjusted"], given = (
        adjusted(found[name].mask(apart).to_numpy()) for name in ("p", "p_given")
    )
    slope = found["p_adjusted"].le(_RATE).to_numpy()
    differs = given <= _RATE
    slope = slope & (found["low"] * found["high"] > 0).to_numpy()
    names = ["none (sessions)", "depends", "none (order)", "values differ"]
    found["verdict"] = np.select([apart, slope, found["drift"] > 0, differs], names, "not shown")
    found["doubling"] = (2 ** found["slope"]).where(found.index.isin(logarithms))
    return found.drop(columns=["p_given", "between", "drift"])


def _found(weights: pd.DataFrame, found: Regression, unit: str, log: bool) -> Iterator[str]:
    """What the metric depends on, and how well that describes it."""
    named = {verdict: list(rows.index) for verdict, rows in weights.groupby("verdict", sort=False)}
    shown = named.get("depends")
    if shown:
        yield f"It depends on {'; '.join(weight_in_words(term, weights.loc[term]) for term in shown)}."
    differing = named.get("values differ")
    if differing:
        yield f"Values of {', '.join(differing)} differ, but not along a slope beyond their own scatter."
    others = named.get("not shown")
    if others:
        yield f"Not distinguished from no effect, with {len(weights)} terms tried: {', '.join(others)}."
    apart = named.get("none (sessions)")
    if apart:
        yield (
            f"No verdict on {', '.join(apart)}: other values were measured in other sessions, whose own shifts cannot "
            "be told from an effect; measure all of them in one session, or some again in each (replicate=0,1)."
        )
    ordered = named.get("none (order)")
    if ordered:
        yield (
            f"No verdict on {', '.join(ordered)}: values were measured one after the other, and a machine that changed "
            f"by {ALLOWANCE - 1:.0%} meanwhile would look the same; measure in random order (sweep.order=random)."
        )
    if log:
        error = f"a factor of {math.exp(found.rmse_held_out):.2f}"
    else:
        error = short(found.rmse_held_out, unit)
    poor = " A straight line describes less than half of it: try --log-scale both."
    yield (
        f"R² {found.r2:.2f}; on held-out points {found.r2_held_out:.2f}, typically off by {error}."
        f"{poor if found.r2_held_out < _POOR and not log else ''}"
    )


def _notes(
    fitted: Regression,
    constant: Mapping[str, str],
    baselines: Mapping[str, str],
    others: Sequence[str],
    incomplete: int,
    lacking: int,
) -> Iterator[str]:
    """What a fit leaves out, and what its weights are against."""
    if constant:
        named = ", ".join(f"{name} = {value}" for name, value in constant.items())
        yield f"Constant in these runs, so without a weight: {named}."
    for name, terms in fitted.collinear.items():
        yield f"{name} has no weight of its own: over these points it is a combination of {', '.join(terms)}."
    yield from (f"{name} is against {value}." for name, value in baselines.items())
    if others:
        yield f"These vary too but have no term: {', '.join(others)}; fix them with --where, or add them to --on."
    if incomplete or lacking:
        yield f"Left out: {incomplete} points without a hyperparameter of the fit, {lacking} runs without the metric."


def weight_in_words(term: str, row: pd.Series, what: str = "") -> str:
    """Such as "model.nodes +0.47 (+0.41 to +0.52)", with the effect of a doubling where both sides
    are logarithms.
    """
    digits = 2 if abs(row["weight"]) >= 0.1 else 3
    value, low, high = (f"{row[name]:+.{digits}f}" for name in ("weight", "low", "high"))
    if pd.notna(row["doubling"]):
        doubling = f", doubling it multiplies {what}by {row['doubling']:.2f}"
    else:
        doubling = ""
    return f"{term} {value} ({low} to {high}){doubling}"


def encode(
    frame: pd.DataFrame, names: Sequence[str], log: bool = False
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Hyperparameters as numbers: (rows x terms, column -> the value its indicators are against).

    Numbers stay (their natural logarithms with `log`), truth values are 0/1, lists of blocks become
    their total, and a column of words becomes an indicator `column=value` for each value but one:
    float32, else the commonest. ConfigError for a logarithm of what is not positive.
    """
    terms: dict[str, pd.Series] = {}
    baselines: dict[str, str] = {}
    for name in names:
        number = as_numbers(frame[name])
        if number is not None:
            logarithm = log and _takes_logarithm(frame[name])
            terms[name] = (
                _logarithms(number, name, "leave it out with --on") if logarithm else number
            )
            continue
        words = frame[name].astype("object")
        counts = words.value_counts().sort_index().sort_values(ascending=False, kind="stable")
        if counts.empty:
            continue
        base = "float32" if "float32" in counts else str(counts.index[0])
        baselines |= {name: base} if len(counts) > 1 else {}
        for value in [value for value in counts.index if value != base] or [base]:
            terms[f"{name}={value}"] = words.eq(value).astype("float64").mask(words.isna())
    return pd.DataFrame(terms, index=frame.index), baselines


def _logarithms(values: Any, name: str, remedy: str) -> Any:
    """ConfigError where a value has none."""
    if (values <= 0).any():
        raise ConfigError(
            "--log-scale", name, f"holds {values.min():g}, which has no logarithm", remedy
        )
    return np.log(values)


def _takes_logarithm(column: pd.Series) -> bool:
    """Whether a column becomes a logarithm on a log scale: numbers and totals of lists do, words
    and truth do not.
    """
    return not pd.api.types.is_bool_dtype(column) and as_numbers(column) is not None


def _draw(fits: Sequence[Fit], what: str, logarithms: bool) -> drawing.Figure:
    """A panel for each family, a row for each term, a mark with its interval for each device; zero
    is no effect. A term that one device's runs hold constant or cannot separate from others says so
    in place of a mark.
    """
    families = [
        [fit for fit in fits if fit.family == name]
        for name in dict.fromkeys(fit.family for fit in fits)
    ]
    devices = sorted({fit.device for fit in fits})
    orders = []
    for own in families:
        greatest = pd.concat([fit.weights["weight"].abs() for fit in own]).groupby(level=0).max()
        orders.append(list(greatest.sort_values(ascending=False, kind="stable").index[:_MOST]))
    height = max(
        len(order) * max(1.0, 0.6 * len(own)) for order, own in zip(orders, families, strict=True)
    )
    figure, panels = drawing.panels(len(families), 5.5, 0.34 * height + 1.5, across=2)
    for axes, own, order in zip(panels, families, orders, strict=True):
        rows = {term: term_label(term) for term in order}
        groups = {
            fit.device: fit.weights.reindex(order).rename(columns={"weight": "value"})
            for fit in own
        }
        looks = {
            name: drawing.look(*((name, devices) if len(devices) > 1 else (own[0].family,)))
            for name in groups
        }
        axes.axvline(0, color="#666666", linewidth=0.8)
        drawing.forest(axes, rows, groups, looks)
        for place, fit in enumerate(own):
            offset = (place - (len(own) - 1) / 2) * 0.7 / len(own)  # as in a forest
            for number, term in enumerate(order):
                if term not in fit.weights.index:
                    constant = fit.constant.get(term.partition("=")[0])
                    if constant is None:
                        words = "not separable from others"
                    else:
                        words = f"constant: {constant}"
                    how = {"color": looks[fit.device]["color"], "fontsize": "small", "va": "center"}
                    axes.text(0, number + offset, f" {words}", **how)
        title = own[0].name if len(own) == 1 else own[0].family
        scale = ", logarithms of the hyperparameters" * logarithms
        x = f"what {what} depends on: standardised weights ({LEVEL:.0%} intervals{scale})"
        drawing.finish(
            axes, f"{title}\nR² {', '.join(f'{fit.regression.r2:.2f}' for fit in own)}", x, grid="x"
        )
    drawing.legend(
        figure,
        [
            drawing.handle(name, **drawing.look(name, devices))
            for name in devices
            if len(devices) > 1
        ],
    )
    return figure
