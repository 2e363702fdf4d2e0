"""One number for a platform over a stated suite: the harmonic mean of its rates, and how many times another's that is.

Work done one unit after the other at rates x_1 .. x_n takes sum(1 / x_i), so that n / sum(1 / x_i) is the rate of the
whole; the arithmetic mean of rates, or of ratios, is the rate of nothing (Smith, Characterizing computer performance
with a single number, CACM 31(10), 1988). CANDLE's figure of merit is the ratio of two harmonic means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis.methods.joining import join_columns
from analysis.methods.pairing import direction
from analysis.store.frame import is_ok
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.forecast.past_runs import NOISE_METRICS, stated_noise

__all__ = ["Merit", "figure_of_merit", "harmonic_mean"]

_DRAWS = 4000
_SEED = 0


def harmonic_mean(rates: ArrayLike, axis: int = 0) -> np.ndarray:
    """n / sum(1 / x) of positive rates."""
    values = np.asarray(rates, dtype="float64")
    return np.asarray(values.shape[axis] / (1 / values).sum(axis=axis))


@dataclass(frozen=True)
class Merit:
    """The result. `table`: a row for each side, the baseline first: side, points, harmonic and arithmetic mean of the
    rates, merit (harmonic mean / the baseline's) and mean_ratio (mean of the points' ratios to the baseline), the
    harmonic mean and the merit with the ends of their 95% intervals, NaN where runs have none.
    `suite`: a row for each point of the suite, the rate of each side beside its keys; `left_out`: points that one side
    or more has not, by side; `run_ids`: the runs of the suite.
    """

    metric: str
    by: str
    table: pd.DataFrame
    suite: pd.DataFrame
    left_out: Mapping[str, int]
    run_ids: tuple[str, ...]


def figure_of_merit(
    frame: pd.DataFrame, metric: str, by: str, baseline: str | None, work: Mapping[str, float]
) -> Merit:
    """Compare the groups of column `by` over the points that all of them measured, which are the suite.

    A point's rate is the median over its runs, divided by the examples that a unit of `work` of its family has (one
    where none is given). Intervals hold the error of each measurement as its runs state it, not the choice of the
    suite. Without `baseline` the first side by name is it.

    ConfigError for a metric that is no rate, a column or a baseline that is not there, a family of `work` that no point
    is of; NotEnoughData where no point was measured on all sides.
    """
    if direction(metric) != "higher":
        raise ConfigError("--metric", metric, "is no rate", "choose one that is better high, as examples_per_second")
    runs = frame[is_ok(frame) & frame[by].notna() & (frame[metric] > 0)] if metric in frame else frame[:0]
    sides = {str(name): rows for name, rows in runs.groupby(by)}
    if not sides:
        raise NotEnoughData(f"no measured run has {metric} and {by}")
    first = baseline if baseline is not None else next(iter(sides))
    if first not in sides:
        raise ConfigError("--baseline", first, f"no run has this {by}", f"choose of {', '.join(sides)}")
    _check_work(work, runs)
    names = [first, *(name for name in sides if name != first)]
    keys = _keys([sides[name] for name in names], by)
    rates = {name: _rates(sides[name], keys, metric, work) for name in names}
    suite = pd.concat({name: each["rate"] for name, each in rates.items()}, axis=1, join="inner")
    if suite.empty:
        raise NotEnoughData(f"no point was measured with every {by} of {', '.join(names)}; choose some with --where")
    draws = _drawn([each.loc[suite.index] for each in rates.values()])
    used = [run for each in rates.values() for listed in each.loc[suite.index, "run_ids"] for run in listed]
    left_out = {name: len(each) - len(suite) for name, each in rates.items() if len(each) > len(suite)}
    return Merit(metric, by, _table(names, suite.to_numpy(), draws), suite.reset_index(), left_out, tuple(used))


def _check_work(work: Mapping[str, float], runs: pd.DataFrame) -> None:
    for family, count in work.items():
        if family not in set(runs["family"]):
            present = ", ".join(sorted(set(runs["family"])))
            raise ConfigError("--work", f"{family}={count:g}", "no run is of this family", f"there are {present}")
        if not 0 < count < float("inf"):
            raise ConfigError("--work", f"{family}={count:g}", "is no amount of work", "give a number above 0")


def _keys(sides: Sequence[pd.DataFrame], by: str) -> list[str]:
    """What identifies a point on every side."""
    keys = join_columns(sides[0], sides[0])[0]
    for other in sides[1:]:
        shared = join_columns(sides[0], other)[0]
        keys = [name for name in keys if name in shared]
    return [name for name in keys if name != by]


def _rates(runs: pd.DataFrame, keys: list[str], metric: str, work: Mapping[str, float]) -> pd.DataFrame:
    """By point: rate, in units of work; error, the standard error of its logarithm, NaN where unknown; run_ids."""
    stated = [_numbers(runs, name) for name in NOISE_METRICS]
    units = runs["family"].map(lambda name: work.get(str(name), 1.0)).astype("float64")
    table = runs[keys].assign(
        rate=runs[metric].astype("float64") / units, own=stated_noise(*stated), run_ids=runs["run_id"]
    )
    grouped = table.groupby(keys, dropna=False, sort=True)
    found = grouped.agg(rate=("rate", "median"), own=("own", "mean"), count=("rate", "size"), run_ids=("run_ids", list))
    spread = grouped["rate"].agg(lambda rates: np.log(rates).std(ddof=1))
    # Replicates say more than the runs do of themselves.
    error = spread.where(found["count"] > 1, found["own"]) / np.sqrt(found["count"])
    return found.assign(error=error)


def _numbers(runs: pd.DataFrame, name: str) -> np.ndarray:
    missing = pd.Series(np.nan, index=runs.index)
    return np.asarray(runs.get(name, missing).to_numpy(dtype="float64", na_value=np.nan))


def _drawn(sides: Sequence[pd.DataFrame]) -> np.ndarray:
    """(sides, points, draws) of rates; NaN where a point's error is unknown."""
    random = np.random.default_rng(_SEED)
    logs = [np.log(each["rate"].to_numpy())[:, None] for each in sides]
    errors = [each["error"].to_numpy()[:, None] for each in sides]
    return np.array(
        [
            np.exp(log + error * random.standard_normal((len(log), _DRAWS)))
            for log, error in zip(logs, errors, strict=True)
        ]
    )


def _table(names: Sequence[str], rates: np.ndarray, draws: np.ndarray) -> pd.DataFrame:
    """rates: (points, sides); draws: (sides, points, draws)."""
    means, drawn = harmonic_mean(rates), harmonic_mean(draws, axis=1)
    harmonic, merit = (np.percentile(each, (2.5, 97.5), axis=1) for each in (drawn, drawn / drawn[0]))
    return pd.DataFrame(
        {
            "side": names,
            "points": len(rates),
            "harmonic": means,
            "harmonic_low": harmonic[0],
            "harmonic_high": harmonic[1],
            "arithmetic": rates.mean(axis=0),
            "merit": means / means[0],
            "merit_low": merit[0],
            "merit_high": merit[1],
            "mean_ratio": (rates / rates[:, :1]).mean(axis=0),
        }
    )
