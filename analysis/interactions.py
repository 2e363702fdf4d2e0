"""Interactions of hyperparameters: whether the effect of one depends on the value of another.

A regression with a product term for each pair of hyperparameters shows interactions. If it explains
the logarithm of the metric, the effects of two hyperparameters without an interaction multiply. For
example, suppose that two optimizations alone give speedups of 3x and 2x. The interaction is then
the speedup of both together divided by 6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.lazy import np, pd
from paradnn.core.errors import InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.decision import adjust_p_values
from paradnn.statistics.dependence import Levels
from paradnn.statistics.priors import ScatterPriors
from paradnn.statistics.regression import Regression, regress
from paradnn.statistics.sessions import MeasurementTimes

#: Probability that a fit reports at least one interaction although no pair interacts.
_FALSE_POSITIVE_RATE = 0.05


@dataclass(frozen=True)
class Interactions:
    """Fit of a metric on hyperparameters and on the products of all pairs of them.

    Each term of the regression encodes one hyperparameter, or the product of two.

    Attributes:
        regression: The regression on single terms and products.
        columns: (n, k) the values of the k terms, products included, at n points.
        pairs: The two terms of each product, by name of the product.
        weights: A row per product as in `Regression.weights`, the largest absolute weight first,
            with these further columns:

            - `p_adjusted`: the p-value, adjusted for the number of products;
            - `combined`, `combined_low`, `combined_high`: the factor by which the effect of both
              changes together differs from the product of their single effects, with its interval;
              NaN unless `is_log`;
            - `verdict`: "interact", "values interact" (the measured values interact, but the
              interval of the trend along them includes 0), "not shown", "undecided (sessions)" or
              "undecided (order)". A verdict is undecided if the interval of the weight includes
              0 only because it allows for session effects or for drift.
        is_log: Whether the regression explains the logarithm of the metric.
    """

    regression: Regression
    columns: pd.DataFrame
    pairs: Mapping[str, tuple[str, str]]
    weights: pd.DataFrame
    is_log: bool


def fit_interactions(
    design: pd.DataFrame,
    values: np.ndarray,
    *,
    owners: Mapping[str, str],
    logarithmic: Sequence[str],
    is_log: bool,
    levels: Levels | None,
    when: MeasurementTimes | None,
    priors: ScatterPriors | None = None,
) -> Interactions:
    """Fit a metric on hyperparameters and on the products of all pairs of them.

    A term is a column of the regression that encodes a hyperparameter, such as its logarithm or an
    indicator. The factors of a product are centered, so the weight of a single term remains the
    slope at the mean of the other terms.

    Args:
        design: (n, k) the single terms, one row per point (measured configuration).
        values: (n,) the metric.
        owners: Hyperparameter that each term encodes, by term. Two indicators of the same
            hyperparameter have no product.
        logarithmic: Terms that are logarithms.
        is_log: Whether to explain the logarithm of the metric.
        levels: Which points share a level of a factor, such as a batch size; None for independent
            points.
        when: When the points were measured; None if unknown.
        priors: Prior distributions of the measurement scatter; None for those of shared machines.

    Raises:
        InsufficientData: If fewer than two hyperparameters vary, or there are too few points.
    """
    varying = [name for name in map(str, design) if design[name].nunique() > 1]
    centered = design - design.mean()
    products = {}
    factors = {}
    pairs = {}
    for a, b in itertools.combinations(varying, 2):
        if owners[a] == owners[b]:
            continue
        name = f"{a} x {b}"
        pairs[name] = (a, b)
        products[name] = centered[a] * centered[b]
        factors[name] = design[[a, b]].to_numpy(dtype="float64")
    if not products:
        raise InsufficientData("--interactions needs two or more hyperparameters that vary")
    whole = pd.concat([design[varying], pd.DataFrame(products)], axis=1)
    scale = np.log if is_log else np.asarray
    regression = regress(
        whole, values, scale, levels=levels, when=when, products=factors, priors=priors
    )
    names = [name for name in products if name in regression.weights.index]
    weights = regression.weights.loc[names]
    weights = weights.assign(p_adjusted=_adjust_p_values(weights, "p"), verdict=_verdicts(weights))
    for end in ("", "_low", "_high"):
        weights[f"combined{end}"] = math.nan
    if is_log:
        _add_combined(weights, pairs, logarithmic)
    order = weights["weight"].abs().sort_values(ascending=False, kind="stable").index
    return Interactions(
        regression=regression,
        columns=whole,
        pairs=pairs,
        weights=weights.loc[order],
        is_log=is_log,
    )


def _adjust_p_values(weights: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column of p-values, adjusted for testing all rows.

    Args:
        weights: A row per product of terms.
        name: Column of the p-values.
    """
    return adjust_p_values(weights[name].to_numpy())


def _verdicts(weights: pd.DataFrame) -> np.ndarray:
    excludes_zero = weights["low"] * weights["high"] > 0
    is_shown = (_adjust_p_values(weights, "p") <= _FALSE_POSITIVE_RATE) & excludes_zero
    of_values = _adjust_p_values(weights, "p_given") <= _FALSE_POSITIVE_RATE
    return np.select(
        [is_shown, weights["limit"] == "sessions", weights["limit"] == "order", of_values],
        ["interact", "undecided (sessions)", "undecided (order)", "values interact"],
        "not shown",
    )


def _add_combined(
    weights: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], logarithmic: Sequence[str]
) -> None:
    """Fill the columns `combined`, `combined_low` and `combined_high` of `weights` in place.

    They hold the factor by which the effect of two changes together differs from the product of
    their single effects. A change doubles a hyperparameter whose term is a logarithm. It increases
    any other term, such as an indicator, by 1.

    Args:
        weights: A row per product of terms, as in `Interactions.weights`.
        pairs: The two terms of each product, by name of the product.
        logarithmic: Terms that are logarithms.
    """
    for name, row in weights.iterrows():
        if row["weight"] == 0:
            continue
        change = 1.0
        for term in pairs[str(name)]:
            change *= math.log(2) if term in logarithmic else 1.0
        slope_per_weight = row["slope"] / row["weight"]
        ends = {"": row["weight"], "_low": row["low"], "_high": row["high"]}
        for end, weight in ends.items():
            weights.loc[name, f"combined{end}"] = math.exp(weight * slope_per_weight * change)


def describe_interactions(interactions: Interactions, r2_without: float) -> Iterator[str]:
    """Yield sentences on the interactions of a fit.

    Args:
        interactions: Result of `fit_interactions`.
        r2_without: R² on held-out points of the fit without interactions.
    """
    weights = interactions.weights
    by_verdict = dict(iter(weights.groupby("verdict", sort=False)))
    shown = by_verdict.get("interact")
    tried = f"{counted(len(weights), 'pair')} of hyperparameters"
    of_values = by_verdict.get("values interact")
    if shown is not None:
        texts = [_format_interaction(str(name), row) for name, row in shown.iterrows()]
        yield f"Of {tried}, these interact: {'; '.join(texts)}."
    if of_values is not None:
        texts = [_format_interaction(str(name), row) for name, row in of_values.iterrows()]
        yield (
            "At the measured values these interact, but the data do not show a trend: "
            f"{'; '.join(texts)}. Measure more values of both hyperparameters."
        )
    if shown is None and of_values is None:
        yield f"No interaction was detected in {tried}."
    elif interactions.is_log:
        yield (
            "The factor compares the effect of both changes with the product of their single "
            "effects. A change doubles a number, or replaces the base value with another value."
        )
    for verdict, reason in (
        (
            "undecided (sessions)",
            "Their values were measured in different sessions, and the intervals allow for "
            "differences between sessions.",
        ),
        (
            "undecided (order)",
            "Their values were measured one after the other, and the intervals allow for a drift "
            "of the machine.",
        ),
    ):
        rows = by_verdict.get(verdict)
        if rows is not None:
            yield f"Undecided: {', '.join(map(str, rows.index))}. {reason}"
    yield (
        f"On held-out points R² is {interactions.regression.r2_held_out:.2f} with interactions and "
        f"{r2_without:.2f} without them."
    )


def _format_interaction(name: str, row: pd.Series) -> str:
    text = f"{name} {row['weight']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
    if pd.notna(row["combined"]):
        low, high = sorted((row["combined_low"], row["combined_high"]))
        text += f", a factor of {row['combined']:.2f} ({low:.2f} to {high:.2f})"
    return text
