"""Which models wait for their input: the share of the step spent in infeed against the size of the model.

The paper's Figure 5 shows that larger models wait less, since what the host does for an example is fixed while the
device's work grows. Here each point gets a verdict and a bound on what a faster input pipeline could bring, and each
family on each device the share of its models that are input-bound and how strongly waiting falls with size. Runs of
this suite with a real input also measured what input free of charge brings and what the pipeline costs the host, from
which follows how many cores would feed a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.methods.columns import Group, GroupKey, groups, hyperparameters, settings
from analysis.methods.dependence import Levels, Unit, crossed_quantile, crossed_share, jackknifed, levels_of
from analysis.methods.regression import Lacking
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.forecast.estimate import LEVEL, Estimate

__all__ = ["SIZES", "THRESHOLD", "GroupInfeed", "Infeed", "infeed", "rank_correlation"]

#: What may stand for the size of a model. FLOPs for an example are flops_per_step / batch_size: what the host does for
#: an example is fixed, so that this is what the wait should fall with.
SIZES = ("flops_per_example", "flops_per_step", "parameters")
#: A model that waits for more than this share of the step is input-bound.
THRESHOLD = 0.1
#: The first of these that a run has is its utilisation.
_UTILIZATION = ("flops_utilization", "trace_flops_utilization", "flops_utilization_spec")
_FREE, _COST = "input_free_examples_per_second", "input_cpu_ms_per_example"
_BALANCE = [f"{name}{end}" for name in ("infeed_gain", _FREE, _COST) for end in ("", "_low", "_high")]

#: Times that a rank correlation is computed at most for the jackknife: the interval's width is then known to 2%.
_LEFT_OUT = 1_000


@dataclass(frozen=True)
class GroupInfeed(GroupKey):
    """One family on one device: how many points are input-bound, the typical wait, and its rank correlation with size.

    `share` is of points with a wait above the threshold, `median` of `infeed_fraction`. `gain` is the median of
    `infeed_gain` and `cores` that of the cores that would feed a model, of points that measured them; else None.
    `sample` says what intervals are over.
    """

    points: int
    bound: int
    share: Estimate
    median: Estimate
    correlation: Estimate
    sample: str
    gain: Estimate | None = None
    cores: Estimate | None = None


@dataclass(frozen=True)
class Infeed:
    """`points` has a row for each point, the longest wait first: family, device, its hyperparameters, `size` (the
    column `against`), `infeed_fraction`, `headroom` (the speedup that an input without cost would bring at most),
    `input_bound`, and where any point has them `utilization` (of FLOPS), `gain` (measured: what input free of charge
    brings) and `cores` (that the pipeline would need to feed the step at the speed it has then), each of the last two
    with `_low` and `_high`. `lacking` says in words which groups have nothing, `run_ids` are the runs used,
    `pooled` says what differed among runs that were pooled.
    """

    against: str
    threshold: float
    points: pd.DataFrame
    groups: tuple[GroupInfeed, ...]
    lacking: tuple[Lacking, ...]
    run_ids: tuple[str, ...]
    pooled: tuple[str, ...] = ()


def infeed(
    frame: pd.DataFrame,
    against: str = "flops_per_example",
    threshold: float = THRESHOLD,
    pool: bool = False,
    unit: Unit = "crossed",
) -> Infeed:
    """Judge every point with an `infeed_fraction` f: input-bound above the threshold, headroom 1 / (1 - f).

    The headroom is Amdahl's bound: the rest of the step stays as it is. Intervals are over the models and batch sizes
    that points share (`dependence.crossed_share`, `crossed_quantile`, `rank_correlation`). Only ok runs count;
    replicates become their median. ConfigError for another size or threshold, NotEnoughData where no run has both
    columns, SchemaError for heterogeneous runs of one group.
    """
    if against not in SIZES:
        raise ConfigError("--against", against, "is no size of a model", f"choose {' or '.join(SIZES)}")
    if not 0 < threshold < 1:
        raise ConfigError("--threshold", threshold, "is no share of the step", "give one between 0 and 1, such as 0.1")
    parts, found, lacking, used, pooled = [], [], [], [], []
    if {"flops_per_step", "batch_size"} <= set(frame.columns):
        frame = frame.assign(flops_per_example=frame["flops_per_step"] / frame["batch_size"].astype("Float64"))
    for group in groups(frame):
        rows = _measured(group, against)
        if rows.empty:
            lacking.append(Lacking(group.name, f"no measured run has both infeed_fraction and {against}"))
            continue
        used += list(rows["run_id"])
        rows = require_homogeneous(rows, pool=pool)
        pooled += [rows.attrs["pooled"]] if rows.attrs.get("pooled") else []
        points = _judged(aggregate_replicates(rows), group, against, threshold)
        parts.append(points)
        found.append(_summary(group, points, unit))
    if not parts:
        raise NotEnoughData("not enough data", lacking, "measure with a real input pipeline, such as data=images")
    table = pd.concat(parts, ignore_index=True).sort_values("infeed_fraction", ascending=False, kind="stable")
    return Infeed(
        against, threshold, table.reset_index(drop=True), tuple(found), tuple(lacking), tuple(used), tuple(pooled)
    )


def rank_correlation(x: pd.Series, y: pd.Series, levels: Levels) -> Estimate:
    """Spearman's correlation with its 95% interval, that of Fisher's z.

    Of points that share nothing z has the variance (1 + r^2 / 2) / (n - 3) (Bonett and Wright, Psychometrika 65, 2000),
    of others the jackknife's over their levels. NaN where either does not vary; ends NaN below five points.
    """
    if x.nunique() < 2 or y.nunique() < 2:
        return Estimate(np.nan, np.nan, np.nan)
    value = float(stats.spearmanr(x, y).statistic)
    if len(x) < 5:
        return Estimate(value, np.nan, np.nan)
    # At a perfect correlation z is infinite.
    bounded = float(np.clip(value, -1 + 1e-12, 1 - 1e-12))
    reach = stats.norm.ppf((1 + LEVEL) / 2) * np.sqrt((1 + bounded**2 / 2) / (len(x) - 3))
    if not levels.independent:
        ranks = np.array([stats.rankdata(one) for one in (x, y)])
        found = jackknifed(np.arctanh([bounded]), lambda code: _fisher(ranks, code), levels)
        reach = stats.t.ppf((1 + LEVEL) / 2, found.freedom[0]) * np.sqrt(found.variance[0])
    low, high = np.tanh(np.arctanh(bounded) + np.array([-reach, reach]))
    return Estimate(value, float(low), float(high))


def _fisher(values: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Fisher's z (levels, 1) of the rank correlation of two rows (2, n) with each level left out.

    Of very many levels, such as points, some are left out together, drawn at random: z moves by the sum of what each
    would move it by, and the expectation of the squares' sum is the same.
    """
    if code.max() >= _LEFT_OUT:
        code = (np.random.default_rng(0).permutation(code.max() + 1) % _LEFT_OUT)[code]
    # Sorted once: what is left of a sorted sample is sorted.
    places = [np.unique(row, return_inverse=True)[1] for row in values]
    found = []
    for level in range(code.max() + 1):
        one, two = (_ranks(row[code != level]) for row in places)
        alike = np.ptp(one) == 0 or np.ptp(two) == 0
        found.append([0.0 if alike else np.clip(np.corrcoef(one, two)[0, 1], -1 + 1e-12, 1 - 1e-12)])
    return np.arctanh(found)


def _ranks(places: np.ndarray) -> np.ndarray:
    """The mean rank (n,) of each of some whole numbers from 0 on (n,)."""
    counts = np.bincount(places)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


def _measured(group: Group, against: str) -> pd.DataFrame:
    rows = group.rows
    if "infeed_fraction" not in rows or against not in rows:
        return rows.iloc[:0]
    ok = is_ok(rows)
    return rows[ok & rows["infeed_fraction"].between(0, 1) & (rows[against] > 0)]


def _judged(rows: pd.DataFrame, group: Group, against: str, threshold: float) -> pd.DataFrame:
    names = [name for name in hyperparameters(rows) if name in rows]
    waiting = rows["infeed_fraction"].astype("float64")
    with np.errstate(divide="ignore"):
        headroom = 1 / (1 - waiting)
    names += [name for name in settings(rows) if name.startswith("data.") and name not in names]
    found = rows[names].assign(
        size=rows[against].astype("float64"),
        infeed_fraction=waiting,
        headroom=headroom,
        input_bound=waiting > threshold,
    )
    found = found.join(_measured_balance(rows))
    found.insert(0, "family", group.family)
    found.insert(1, "device", group.device)
    return found


def _measured_balance(rows: pd.DataFrame) -> pd.DataFrame:
    """What is known of each point beside its wait; columns that no point has a value in are left out.

    Cores: examples a second that the step takes when its input is free of charge, times the processor time of the
    pipeline for an example. The ends pair the slowest step with the cheapest input and the reverse, so that they
    cover at least as often as each of the two does.
    """
    given = {name: rows[name].astype("float64") for name in _BALANCE if name in rows}
    empty = pd.Series(np.nan, index=rows.index)
    found = pd.DataFrame(index=rows.index)
    found["utilization"] = empty
    for name in _UTILIZATION:
        found["utilization"] = found["utilization"].fillna(rows[name].astype("float64") if name in rows else empty)
    for end in ("", "_low", "_high"):
        found[f"gain{end}"] = given.get(f"infeed_gain{end}", empty)
        rate, cost = (given.get(f"{name}{end}", empty) for name in (_FREE, _COST))
        found[f"cores{end}"] = rate * cost / 1e3
    return found.dropna(axis="columns", how="all")


def _median_of(points: pd.DataFrame, name: str, unit: Unit) -> Estimate | None:
    known = points[points[name].notna()] if name in points else points.iloc[:0]
    return crossed_quantile(known[name], levels_of(known, unit)) if len(known) else None


def _summary(group: Group, points: pd.DataFrame, unit: Unit) -> GroupInfeed:
    levels = levels_of(points, unit)
    bound = int(points["input_bound"].sum())
    return GroupInfeed(
        family=group.family,
        device=group.device,
        points=len(points),
        bound=bound,
        share=crossed_share(points["input_bound"], levels),
        median=crossed_quantile(points["infeed_fraction"], levels),
        correlation=rank_correlation(points["size"], points["infeed_fraction"], levels),
        sample=levels.words,
        gain=_median_of(points, "gain", unit),
        cores=_median_of(points, "cores", unit),
    )
