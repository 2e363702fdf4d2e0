"""What was not measured, predicted from what was: every point of a space with a value, an interval, and draws.

The one model of step time of this project (`paradnn.forecast.predict`) is fitted to the runs of a device, and asked for
all points of their space. Its draws are joint: a conclusion over the whole space is drawn by drawing it from each, so
that its interval holds what was not measured. How good the model is here is measured, not assumed: points are left
out, and what it says of them is held against what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.labels import not_recorded
from analysis.methods.columns import Group, groups
from analysis.methods.regression import Lacking
from analysis.methods.space import EXCLUDED, Space, fill, space_of
from analysis.store.frame import aggregate_replicates, is_ok
from analysis.store.past import costs_of, past_runs, rates_of, table_of
from paradnn.core.words import counted
from paradnn.errors import ConfigError, NotEnoughData, ParadnnError
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.process import LeftOut

__all__ = ["LEAST", "PREDICTABLE", "Completed", "Trust", "complete", "every_point", "is_sparse"]

#: Measured points that a prediction takes.
LEAST = 5
#: Metrics that follow from the time of a step -> what a step does of it: examples, FLOP, or nothing (the time itself).
PREDICTABLE = {
    "examples_per_second": "batch_size",
    "flops_per_second": "flops_per_step",
    "flops_utilization": "flops_per_step",
    "flops_utilization_spec": "flops_per_step",
    "step_time_ms": "",
}
#: Draws of a conclusion: ends of a 95% interval are then known to a tenth of its width.
_DRAWS = 400
_SPARSE = 0.1
#: A chance of running out of memory from which a point has no prediction, and how many frontiers draws distinguish.
_SURE, _LEVELS = 0.99, 20


@dataclass(frozen=True)
class Trust:
    """What was predicted of measured points that were left out: the median relative `error`, the share of them that lay
    `inside` their 95% interval, and how many `points` were left out."""

    error: float
    inside: float
    points: int


@dataclass(frozen=True)
class Completed:
    """Runs of a frame with a row for every point of their spaces that none of them measured.

    `frame` is `space.fill` of them; `places` (m,) are the positions of its rows that have a prediction, `draws` (m, d)
    the metric in each draw, `low` and `high` (m,) its 95% interval. In a draw those points fit into memory whose chance
    of running out of it is below that draw's `luck` (d,). `lacking` says which groups have none.
    """

    metric: str
    frame: pd.DataFrame
    spaces: tuple[Space, ...]
    trust: dict[str, Trust]
    lacking: tuple[Lacking, ...]
    places: np.ndarray
    draws: np.ndarray
    low: np.ndarray
    high: np.ndarray
    luck: np.ndarray

    def drawn(self, number: int | None = None) -> pd.DataFrame:
        """The frame as one draw completes it; without a number, with the median of the draws."""
        values = np.median(self.draws, axis=1) if number is None else self.draws[:, number]
        column = self.frame[self.metric].to_numpy(dtype="float64", copy=True)
        outcome = self.frame["outcome"].to_numpy(dtype=object, copy=True)
        fits = self.fits(0.5 if number is None else self.luck[number])
        column[self.places] = np.where(fits, values, np.nan)
        outcome[self.places] = np.where(fits, "ok", EXCLUDED)
        found = self.frame.assign(**{self.metric: column, "outcome": outcome})
        found.attrs = dict(self.frame.attrs)
        return found

    def fits(self, luck: float) -> np.ndarray:
        """Which of the rows that have a prediction fit into memory (m,)."""
        fits: np.ndarray = self.frame["chance"].to_numpy(dtype="float64")[self.places] <= luck
        return fits

    def values(self, points: pd.DataFrame) -> np.ndarray:
        """The metric (n, d) of some rows of the frame, or of medians over them, in each draw."""
        found = np.repeat(points[self.metric].to_numpy(dtype="float64")[:, None], self.draws.shape[1], axis=1)
        where = {run: number for number, run in enumerate(self.frame["run_id"].to_numpy()[self.places])}
        numbers = np.array([where.get(run, -1) for run in points["run_id"]], dtype=np.intp)
        found[numbers >= 0] = self.draws[numbers[numbers >= 0]]
        return found

    def measured(self, run_ids: Sequence[str]) -> tuple[str, ...]:
        """Those of some rows that are runs."""
        runs = set(self.frame.loc[~self.frame["predicted"], "run_id"])
        return tuple(run for run in run_ids if run in runs)


def complete(
    frame: pd.DataFrame, metric: str, given: pd.DataFrame | None = None, pool: bool = False, draws: int = _DRAWS
) -> Completed:
    """Predict `metric` at every point of the spaces (`space.space_of`) of a frame's families on its devices.

    A model is fitted for each device. ConfigError for a metric that does not follow from the time of a step,
    NotEnoughData where no group has `LEAST` measured points and two of the space, SchemaError for heterogeneous runs.
    """
    if metric not in PREDICTABLE:
        known = ", ".join(PREDICTABLE)
        raise ConfigError("--metric", metric, "does not follow from the time of a step", f"predicted are {known}")
    spaces, lacking = _spaces(frame, metric, given, pool)
    if not spaces:
        raise NotEnoughData(f"not enough data to predict {metric}", lacking, "measure more points, or name --space")
    whole = fill(pd.concat([space.runs for space in spaces]), [space.others for space in spaces])
    whole.attrs = dict(frame.attrs)
    places, parts, trust = [], [], {}
    random = np.random.default_rng(0)
    for device in dict.fromkeys(space.device for space in spaces):
        mine = [space for space in spaces if space.device == device]
        named = whole["device"].astype("object").fillna(not_recorded("device"))
        here = whole["predicted"] & (whole["chance"] < _SURE) & (named == device)
        model = _Model.of(pd.concat([space.known for space in mine]), metric)
        for space in mine:
            trust[space.name] = model.trust(space.family)
        places.append(np.flatnonzero(here))
        parts.append(model.predicted(whole[here], draws, random))
    low, high, drawn = (np.concatenate([part[number] for part in parts]) for number in range(3))
    luck = random.permutation((np.arange(draws) % min(draws, _LEVELS) + 0.5) / min(draws, _LEVELS))
    where = np.concatenate(places)
    return Completed(metric, whole, tuple(spaces), trust, tuple(lacking), where, drawn, low, high, luck)


def is_sparse(frame: pd.DataFrame) -> bool:
    """Whether a tenth or more of a space that some of these runs span was not tried, and can be predicted."""
    for group in groups(frame):
        try:
            space = space_of(group)
        except ParadnnError:
            continue
        if space.measured >= LEAST and len(space.others) >= _SPARSE * space.total:
            return True
    return False


def every_point(completed: Completed) -> pd.DataFrame:
    """A row for each point of the spaces: the keys in which points differ, `status` (measured, predicted, or the
    outcome of what did not run or is taken not to), the metric, and its 95% interval where it is predicted."""
    whole = completed.drawn()
    whole[["low", "high"]] = np.nan
    whole.loc[completed.places, "low"], whole.loc[completed.places, "high"] = completed.low, completed.high
    rows = aggregate_replicates(whole)
    status = rows["outcome"].astype("object")
    ok = is_ok(rows)
    rows["status"] = status.where(~ok, rows["predicted"].map({True: "predicted", False: "measured"}))
    keys = list(dict.fromkeys(name for space in completed.spaces for name in space.keys))
    found = rows[["family", "device", *keys, "status", completed.metric, "low", "high"]]
    shown = {name: found[name].astype("float64").where(ok) for name in (completed.metric, "low", "high")}
    found = found.assign(**shown)
    found = found.sort_values(["family", "device", *keys], ignore_index=True)
    found.attrs = {"units": completed.frame.attrs.get("units", {})}
    return found


def _spaces(
    frame: pd.DataFrame, metric: str, given: pd.DataFrame | None, pool: bool
) -> tuple[list[Space], list[Lacking]]:
    found: list[Space] = []
    lacking: list[Lacking] = []
    for group in groups(frame):
        try:
            found.append(_space(group, metric, given, pool))
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, problem.problem))
    return found, lacking


def _space(group: Group, metric: str, given: pd.DataFrame | None, pool: bool) -> Space:
    space = space_of(group, given, pool)
    ok = space.known[is_ok(space.known)]
    if metric not in ok or not (ok[metric] > 0).any():
        raise NotEnoughData(f"no measured run has {metric}")
    if space.total < 3:
        raise NotEnoughData(f"the space is {space.total} points, there is nothing between them to predict")
    if (points := ok["point_id"].nunique()) < LEAST:
        raise NotEnoughData(f"{counted(points, 'measured point')}, a prediction takes {LEAST}")
    return space


@dataclass(frozen=True)
class _Model:
    """The fit to runs of one device. `work` is what `PREDICTABLE` says, `per` what turns it over the metric into
    seconds, roughly: the roofline that the model begins with is in seconds."""

    runs: pd.DataFrame
    metric: str
    per: float
    rates: tuple[float, float]
    seconds: np.ndarray
    fitted: StepTimeModel

    @classmethod
    def of(cls, runs: pd.DataFrame, metric: str) -> _Model:
        values = runs[metric].astype("float64")
        runs = runs[is_ok(runs) & (values > 0) & np.isfinite(values)]
        raw = _raw(runs, metric)
        per = 1.0
        if "step_time_ms" in runs and runs["step_time_ms"].gt(0).any():
            per = float(np.nanmedian(runs["step_time_ms"].to_numpy(dtype="float64") / 1e3 / raw))
        seconds = raw * per
        rates = rates_of(runs, seconds)
        return cls(runs, metric, per, rates, seconds, StepTimeModel.fit(past_runs(runs, seconds, rates)))

    def predicted(
        self, rows: pd.DataFrame, draws: int, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(low, high, draws) of the metric at some rows (n,), of which none was measured."""
        if rows.empty:
            return np.empty(0), np.empty(0), np.empty((0, draws))
        found = self.fitted.predict(table_of(rows, self.rates))
        spread = np.sqrt((found.root**2).sum(axis=1) + found.own + found.noise**2)
        reach = stats.t.ppf(0.975, found.freedom) * spread
        ends = [self._metric(rows, np.exp(found.mean + sign * reach)) for sign in (-1, 1)]
        low, high = np.minimum(*ends), np.maximum(*ends)
        return low, high, self._metric(rows, np.exp(found.draws(draws, random)))

    def _metric(self, rows: pd.DataFrame, seconds: np.ndarray) -> np.ndarray:
        """The metric of points whose "seconds" (n,) or (n, d) these are."""
        raw = seconds / self.per
        if not PREDICTABLE[self.metric]:
            return raw
        work = _work(rows, PREDICTABLE[self.metric])
        found: np.ndarray = (work if raw.ndim == 1 else work[:, None]) / raw
        return found

    def trust(self, family: str) -> Trust:
        """What is predicted of each measured point of a family from all others of the device."""
        table = table_of(self.runs, self.rates)
        # The model has an observation for each step, in the order in which they first appear.
        families = dict(zip(zip(table.environments, table.steps, strict=True), table.families, strict=True)).values()
        left = self.fitted.left_out
        mine = np.array([name == family for name in families])
        found = LeftOut(left.error[mine], left.spread[mine], left.freedom)
        return Trust(found.median_error, found.coverage(), int(mine.sum()))


def _raw(rows: pd.DataFrame, metric: str) -> np.ndarray:
    """Work over the metric (n,): the seconds of a step but for a factor."""
    values: np.ndarray = rows[metric].to_numpy(dtype="float64")
    return _work(rows, PREDICTABLE[metric]) / values if PREDICTABLE[metric] else values


def _work(rows: pd.DataFrame, name: str) -> np.ndarray:
    """What a step of each row does (n,): examples or FLOP, by arithmetic where the model is known."""
    if name == "batch_size":
        return rows["batch_size"].to_numpy(dtype="float64")
    work = costs_of(rows)[name]
    if name in rows:
        work = work.fillna(rows[name].astype("float64"))
    if work.isna().any():
        raise NotEnoughData(f"{name} of {int(work.isna().sum())} points is not known")
    return work.to_numpy(dtype="float64")
