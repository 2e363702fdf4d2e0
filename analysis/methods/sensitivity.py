"""What performance depends on: standardised linear regression of a metric on the hyperparameters.

The paper (section 4.1, Figures 2 d-f, 8 a, 9 a, 10) fits metric = w0 x layers + w1 x nodes + ... with everything on one
scale and reads the signed weights as sensitivities. Here each weight comes with an interval that allows for unequal
scatter, a variance inflation factor, and the error of the fit on points that it has not seen. One fit for each family
and device; columns that cannot have a weight (constant, or a combination of others) are named instead of weighed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods.columns import (
    Group,
    GroupKey,
    blocks_of,
    choose_metric,
    find_column,
    find_metric,
    groups,
    hyperparameters,
)
from analysis.methods.columns import settings as varying_settings
from analysis.methods.dependence import Levels, Unit, levels_of
from analysis.methods.regression import Lacking, Regression, regress
from analysis.methods.shares import Shares, variance_shares
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.errors import ConfigError, NotEnoughData

#: Columns of `Shares.table` -> what they are called in the table of weights.
_SHARE_COLUMNS = {"share": "share", "low": "share_low", "high": "share_high", "alone": "share_alone"}

__all__ = [
    "Fit",
    "Prepared",
    "Sensitivity",
    "Settings",
    "adjusted",
    "choose_columns",
    "encode",
    "prepare",
    "response",
    "sensitivity",
]


@dataclass(frozen=True)
class Settings:
    """How to fit.

    `log_hyperparameters` and `log_metric` take natural logarithms of either side, `interactions` adds all products of
    two terms, `keep_replicates` leaves a point's runs apart, `pool` pools heterogeneous runs, `unit` is what is taken
    as a sample, `shares` adds the shares of the variance.
    """

    log_hyperparameters: bool = False
    log_metric: bool = False
    interactions: bool = False
    keep_replicates: bool = False
    pool: bool = False
    unit: Unit = "crossed"
    shares: bool = False
    level: float = 0.95


@dataclass(frozen=True)
class Fit(GroupKey):
    """The regression of one family on one device, and what it leaves out.

    `constant` maps every column without variation to its value in words, `baselines` a column of words to the value its
    indicators are against, `left_out` outcomes to runs. `without_metric` and `incomplete` count ok runs that lack the
    metric, and points that lack a hyperparameter. `unfitted` names what varies but has no term, `logarithms` the terms
    that are logarithms of a hyperparameter, `columns` maps terms to the columns they are made of. `sample` says what
    intervals are over. `shares` are those of the variance, where they were asked for, or why there are none.
    """

    regression: Regression
    constant: Mapping[str, str]
    baselines: Mapping[str, str]
    left_out: Mapping[str, int]
    without_metric: int
    incomplete: int
    unfitted: tuple[str, ...]
    logarithms: tuple[str, ...]
    columns: Mapping[str, str]
    sample: str
    shares: Shares | Lacking | None = None


@dataclass(frozen=True)
class Sensitivity:
    """All fits of a frame; `lacking` says in words why other groups have none; `run_ids` are the runs used."""

    metric: str
    unit: str
    settings: Settings
    fits: tuple[Fit, ...]
    lacking: tuple[Lacking, ...]
    run_ids: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each weight, the most important of each fit first."""
        parts = []
        for fit in self.fits:
            found = fit.regression
            weights = found.weights.assign(p_adjusted=adjusted(found.weights["p"].to_numpy()))
            part = weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
            part = part.join(found.unseen)
            if isinstance(fit.shares, Shares):
                shares = fit.shares.table.rename(columns=_SHARE_COLUMNS)
                part = part.assign(of=part.index.map(fit.columns)).join(shares, on="of").drop(columns="of")
            part = part.rename_axis("term").reset_index()
            part.insert(0, "family", fit.family)
            part.insert(1, "device", fit.device)
            part.insert(2, "metric", self.metric)
            parts.append(part.assign(points=found.clusters, r2=found.r2, r2_held_out=found.r2_held_out))
        return pd.concat(parts, ignore_index=True)


def sensitivity(
    frame: pd.DataFrame, metric: str | None = None, on: Sequence[str] | None = None, settings: Settings | None = None
) -> Sensitivity:
    """Fit each family on each device by itself; see `regress` for the formulas. Only ok runs are fitted.

    `metric` defaults to what `choose_metric` finds, `on` to all hyperparameters that vary:
    numbers as they are, `model.blocks` as the total of its list, words as 0/1 indicators. Replicates of a point
    become their median unless they are kept. ConfigError when no group can be fitted, naming why; SchemaError when
    runs of a group are heterogeneous.
    """
    settings = settings or Settings()
    metric = find_metric(frame, metric) if metric else choose_metric(frame)
    chosen = choose_columns(frame, on)
    fits: list[Fit] = []
    lacking: list[Lacking] = []
    used: list[str] = []
    for group in groups(frame):
        try:
            fit, run_ids = _fit(group, metric, chosen, settings)
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, str(problem)))
            continue
        fits.append(fit)
        used += run_ids
    if not fits:
        raise NotEnoughData(
            f"not enough data to explain {metric}",
            lacking,
            "measure more points, or choose fewer hyperparameters with --on",
        )
    unit = frame.attrs.get("units", {}).get(metric, "")
    return Sensitivity(metric, unit, settings, tuple(fits), tuple(lacking), tuple(used))


def choose_columns(frame: pd.DataFrame, on: Sequence[str] | None) -> list[str] | None:
    """The columns that `on` names; None for all that vary."""
    return None if on is None else list(dict.fromkeys(find_column(frame, name, "--on") for name in on))


def adjusted(p_values: np.ndarray) -> np.ndarray:
    """p of n terms such that with no effect at all any of them falls below 0.05 in at most 5% of fits (Holm,
    Scandinavian J. Statistics 6, 1979): the i-th smallest becomes the largest of (n - j) p_j over j <= i, from 0."""
    order = np.argsort(p_values, kind="stable")
    count = len(order)
    found = np.empty(count)
    found[order] = np.minimum(np.maximum.accumulate((count - np.arange(count)) * np.asarray(p_values)[order]), 1)
    return found


def encode(frame: pd.DataFrame, names: Sequence[str], log: bool = False) -> tuple[pd.DataFrame, dict[str, str]]:
    """Hyperparameters as numbers: (rows x terms, column -> the value its indicators are against).

    `attrs["columns"]` of the terms maps each to the column it is made of.

    Numbers stay (their natural logarithms with `log`), truth values are 0/1, lists of blocks become their total, and a
    column of words becomes an indicator `column=value` for each value but one: float32, else the commonest.
    ConfigError for a logarithm of what is not positive.
    """
    terms: dict[str, pd.Series] = {}
    columns: dict[str, str] = {}
    baselines: dict[str, str] = {}
    for name in names:
        column = frame[name]
        number = _number(column)
        if number is None:
            words = column.astype("object")
            counts = words.value_counts().sort_index().sort_values(ascending=False, kind="stable")
            base = "float32" if "float32" in counts else str(counts.index[0])
            baselines |= {name: base} if len(counts) > 1 else {}
            others = [value for value in counts.index if value != base] or [base]
            indicators = {f"{name}={value}": words.eq(value).astype("float64") for value in others}
            terms |= {term: indicator.mask(words.isna()) for term, indicator in indicators.items()}
            columns |= dict.fromkeys(indicators, name)
            continue
        if log and _takes_logarithm(column):
            if (number <= 0).any():
                raise ConfigError(
                    "--log-scale",
                    name,
                    f"holds {number.min():g}, which has no logarithm",
                    "leave it out with --on, or those runs with --where",
                )
            number = np.log(number)
        terms[name] = number
        columns[name] = name
    design = pd.DataFrame(terms, index=frame.index)
    design.attrs["columns"] = columns
    return design, baselines


@dataclass(frozen=True)
class Prepared:
    """What a fit is made of: its `rows`, the `design` on their `varying` columns, and what that leaves out."""

    measured: pd.DataFrame
    rows: pd.DataFrame
    design: pd.DataFrame
    varying: tuple[str, ...]
    constant: Mapping[str, str]
    baselines: Mapping[str, str]
    incomplete: int


def prepare(group: Group, metric: str, chosen: list[str] | None, settings: Settings) -> Prepared:
    """The rows and terms of one group; NotEnoughData without a run that has the metric."""
    ok = is_ok(group.rows)
    measured = group.rows[ok & group.rows[metric].notna()]
    if measured.empty:
        raise NotEnoughData(f"no measured run has {metric}")
    measured = require_homogeneous(measured, pool=settings.pool)
    names = [name for name in chosen or hyperparameters(measured) if measured[name].notna().any()]
    rows = measured if settings.keep_replicates else aggregate_replicates(measured)
    complete = rows[names].notna().all(axis=1) if names else pd.Series(True, index=rows.index)
    rows = rows[complete]
    constant = {name: str(rows[name].iloc[0]) for name in names if rows[name].nunique() == 1}
    varying = tuple(name for name in names if name not in constant)
    design, baselines = encode(rows, varying, settings.log_hyperparameters)
    return Prepared(measured, rows, design, varying, constant, baselines, int((~complete).sum()))


def _fit(group: Group, metric: str, chosen: list[str] | None, settings: Settings) -> tuple[Fit, list[str]]:
    """The fit of one group and the ids of the runs it rests on."""
    found = prepare(group, metric, chosen, settings)
    rows, ok = found.rows, is_ok(group.rows)
    values = response(rows[metric].to_numpy(dtype="float64"), metric, settings.log_metric)
    clusters = rows["point_id"].to_numpy(dtype=object) if settings.keep_replicates else None
    levels = levels_of(rows, settings.unit, settings.keep_replicates)
    fitted = regress(
        found.design,
        values,
        clusters,
        levels=None if settings.unit == "point" else levels,
        interactions=settings.interactions,
        unseen=True,
        level=settings.level,
    )
    totals = {name: f"{value:g} in total" for name, value in fitted.constant.items()}
    left_out = group.rows.loc[~ok, "outcome"].fillna("unfinished").value_counts()
    named = (*found.varying, *found.constant)
    others = [name for name in hyperparameters(rows) if name not in named and rows[name].nunique() > 1]
    others += [name for name in varying_settings(rows) if name not in named]
    fit = Fit(
        group.family,
        group.device,
        fitted,
        {**found.constant, **totals},
        found.baselines,
        {str(outcome): int(count) for outcome, count in left_out.items()},
        int(ok.sum()) - len(found.measured),
        found.incomplete,
        tuple(others),
        tuple(name for name in found.varying if settings.log_hyperparameters and _takes_logarithm(rows[name])),
        found.design.attrs["columns"],
        levels.words,
        _shares(rows, found.varying, values, levels, settings, group.name) if settings.shares else None,
    )
    return fit, list(found.measured["run_id"])


def _shares(
    rows: pd.DataFrame, names: Sequence[str], values: np.ndarray, levels: Levels, settings: Settings, of: str
) -> Shares | Lacking:
    numbers = {name: _number(rows[name]) for name in names}
    columns = {name: rows[name].astype("str") if number is None else number for name, number in numbers.items()}
    try:
        return variance_shares(pd.DataFrame(columns), values, levels, settings.level)
    except NotEnoughData as problem:
        return Lacking(of, str(problem))


def response(values: np.ndarray, metric: str, log: bool) -> np.ndarray:
    """A metric's values, or their natural logarithms; ConfigError where one has none."""
    if log and (values <= 0).any():
        raise ConfigError(
            "--log-scale",
            metric,
            f"holds {values.min():g}, which has no logarithm",
            "leave those runs out with --where",
        )
    return np.log(values) if log else values


def _takes_logarithm(column: pd.Series) -> bool:
    """Whether a column becomes a logarithm on a log scale: numbers and totals of lists do, words and truth do not."""
    return not pd.api.types.is_bool_dtype(column) and _number(column) is not None


def _number(column: pd.Series) -> pd.Series | None:
    """A column as float64; None if it holds words."""
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column.astype("Float64").astype("float64")
    totals = {value: blocks_of(value) for value in column.dropna().unique()}
    if totals and all(totals.values()):
        return column.map({value: float(sum(counts or ())) for value, counts in totals.items()}).astype("float64")
    return None
