"""The layers of a stack: what of a session's wall clock each of them took, from the scheduler's queue to recording.

A session is one process that measures points one after the other: a task of a launched sweep, else a whole sweep, else
a single point. Its wall clock begins when it was submitted and ends when its last point was recorded. Layers divide it
without overlap, and what no layer took is a layer too: the sum is the wall clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from analysis.analyses.overhead import MEASURING_PHASES
from analysis.methods.quantiles import bootstrap_ratio
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL, Estimate
from paradnn.store.metrics import PHASES

__all__ = ["LAYERS", "LOCAL", "SCHEDULER", "By", "Layers", "layers", "share_of"]

#: In the order in which a session passes through them.
LAYERS = (
    "queue",
    "task start",
    "import",
    "fork",
    "build",
    "compile",
    "warm-up",
    "communication",
    "input",
    "computation",
    "profile",
    "recording",
    "rest",
)
#: What a launcher adds to a sweep of one process.
SCHEDULER = ("queue", "task start")
#: What a session without a launcher is called.
LOCAL = "local"
By = Literal["launcher", "sweep"]

#: What distinguishes the sessions of a sweep whose runs name none.
_KEYS = ("launched_task", "job_id", "restarts", "host")
_FEWEST = 3  # sessions, for an interval over them
#: From so many points on a bootstrap draws less often, so many numbers in all, but so often at least.
_MANY, _DRAWN, _DRAWS = 2_000, 4_000_000, 200


@dataclass(frozen=True)
class Layers:
    """Where the wall clock of sessions went.

    `sessions` has a row each: group (the launcher, or the sweep), session, points, wall (s), and every layer (s), which
    add up to `wall`. `points` has a row a point: group, session, wall (s, the sum of its layers) and the layers that
    points have. `shares` has a row for each group and layer that took any time: group, layer, seconds (mean of a
    session), share (of the group's wall clock) with its 95% interval low, high (NaN where there is none), sample (what
    that is over). `without` runs say nothing of their phases, `restarted` ones are of tasks whose wait is not known.
    """

    sessions: pd.DataFrame
    points: pd.DataFrame
    shares: pd.DataFrame
    run_ids: tuple[str, ...]
    without: int
    restarted: int


def layers(frame: pd.DataFrame, by: By = "launcher") -> Layers:
    """The layers of every session of a frame, one row a run; every outcome counts, since a failed point costs time.

    queue, task start: `queue_seconds` and `task_start_seconds` of the session. import: the phase `start` of its first
    point, which waits for the framework; fork: that of the others. communication and input: of the measured steps the
    share that a profile (`category_share.communication`) and the pipeline (`infeed_fraction`) say, all of it with
    model=channel; input also the phase of that name; computation: the rest of the measured steps. recording: the phases
    `schedule` and `record`. rest: wall clock that no phase of a recorded point covers, such as ceilings. Wall clock:
    queue, task start, and `session_seconds` of the last point; of runs recorded before that was, the last end less the
    first start and the first point's schedule.

    NotEnoughData where no run reports its phases.
    """
    phases = [f"phase_{name}_seconds" for name in PHASES]
    has = frame.reindex(columns=phases).notna().any(axis=1)
    again = _number(frame, "restarts") > 0
    runs = frame[has & ~again]
    if "start_time" in runs:
        runs = runs.sort_values("start_time", kind="stable")
    if runs.empty:
        raise NotEnoughData("no run reports its phases; those that this tool measures do")
    points = _of_points(runs, by)
    sessions, ids = _of_sessions(runs, points), tuple(runs["run_id"])
    found = Layers(sessions, points, pd.DataFrame(), ids, int((~has).sum()), int((has & again).sum()))
    shares = [_shares(found, group) for group in dict.fromkeys(sessions["group"])]
    return replace(found, shares=pd.concat(shares, ignore_index=True))


def share_of(
    found: Layers, names: Collection[str], group: str | None = None, level: float = LEVEL
) -> tuple[Estimate, str]:
    """The share of the wall clock of a group, or of all, that some layers took together, and what its interval is over.

    That is sessions where there are three or more; else points, where these layers are of points alone; else nothing,
    and the ends are NaN.
    """
    sessions, points = found.sessions, found.points
    if group is not None:
        sessions, points = (table[table["group"] == group] for table in (sessions, points))
    wall = float(sessions["wall"].sum())
    if len(sessions) >= _FEWEST:
        return _ratio(sessions[[*names]].sum(axis=1), sessions["wall"], level), "sessions"
    value = float(sessions[[*names]].to_numpy().sum()) / wall
    # A point alone waits for the import.
    if not set(names) <= set(points.columns) - {"import"} or len(points) < _FEWEST:
        return Estimate(value, np.nan, np.nan), ""
    # The points' part of the wall clock is taken as given: how it divides is what varies with the points.
    part = float(points["wall"].sum()) / wall
    found_share = _ratio(points[[*names]].sum(axis=1), points["wall"], level)
    return Estimate(value, found_share.low * part, found_share.high * part), "points"


def _of_points(runs: pd.DataFrame, by: By) -> pd.DataFrame:
    """A row a run, with its group, its session, and the layers that a point has (s)."""
    phase = {name: _number(runs, f"phase_{name}_seconds") for name in PHASES}
    measured = sum((phase[name] for name in MEASURING_PHASES), pd.Series(0.0, index=runs.index))
    talking = _number(runs, "category_share.communication").clip(0.0, 1.0)
    if "model.transport" in runs:  # model=channel: its steps are messages
        talking = talking.where(runs["model.transport"].isna(), 1.0)
    fed = _number(runs, "infeed_fraction").clip(0.0, 1.0 - talking)
    launcher = runs["launcher"].fillna(LOCAL).astype(str) if "launcher" in runs else pd.Series(LOCAL, index=runs.index)
    session = _sessions(runs)
    started = phase["start"] > 0
    first = started & ~session.where(started, runs["run_id"]).duplicated()
    parts = {
        "import": phase["start"].where(first, 0.0),
        "fork": phase["start"].where(~first, 0.0),
        "build": phase["build"],
        "compile": phase["compile"],
        "warm-up": phase["warmup"],
        "communication": measured * talking,
        "input": phase["input"] + measured * fed,
        "computation": measured * (1.0 - talking - fed),
        "profile": phase["profile"] + phase["balance"],
        "recording": phase["schedule"] + phase["record"],
    }
    table = pd.DataFrame(parts, index=runs.index)
    if by == "sweep" and "sweep_id" in runs:
        group = launcher.where(runs["sweep_id"].isna(), launcher + " " + runs["sweep_id"].astype(str))
    else:
        group = launcher
    table.insert(0, "wall", table.sum(axis=1))
    table.insert(0, "session", session)
    table.insert(0, "group", group)
    return table


def _sessions(runs: pd.DataFrame) -> pd.Series:
    """The session of each run, as text: the one it names; else one for each task of its sweep; else it is alone."""
    session = runs["run_id"].astype(str)
    if "sweep_id" in runs:
        named = runs["sweep_id"].astype("object").fillna("").astype(str)
        for name in _KEYS:
            if name in runs:
                named = named + "/" + runs[name].astype("object").fillna("").astype(str)
        session = session.where(runs["sweep_id"].isna(), named)
    if "session_id" in runs:
        session = session.where(runs["session_id"].isna(), runs["session_id"].astype("object").astype(str))
    return session


def _of_sessions(runs: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """A row a session: its layers (s), the rest among them, add up to its wall clock."""
    own = [name for name in points if name in LAYERS]
    waits = {"queue": _number(runs, "queue_seconds"), "task start": _number(runs, "task_start_seconds")}
    schedule = _number(runs, "phase_schedule_seconds")
    given = runs["session_seconds"] if "session_seconds" in runs else pd.Series(np.nan, index=runs.index)
    begin, end = (_time(runs, name) for name in ("start_time", "end_time"))
    grouped = points.groupby("session", sort=False)
    table = grouped[own].sum()
    for name, values in waits.items():
        table[name] = values.groupby(points["session"], sort=False).first()
    by_session = points["session"]
    span = (end.groupby(by_session, sort=False).max() - begin.groupby(by_session, sort=False).min()).dt.total_seconds()
    span += schedule.groupby(by_session, sort=False).first()
    elapsed = given.groupby(by_session, sort=False).max().fillna(span).fillna(grouped["wall"].sum())
    table["wall"] = elapsed + table["queue"] + table["task start"]
    table["rest"] = table["wall"] - table[[name for name in LAYERS if name != "rest"]].sum(axis=1)
    table.insert(0, "points", grouped.size())
    table.insert(0, "group", grouped["group"].first())
    return table.reset_index()[["group", "session", "points", "wall", *LAYERS]]


def _shares(found: Layers, group: str) -> pd.DataFrame:
    own = found.sessions[found.sessions["group"] == group]
    rows = []
    for layer in LAYERS:
        if own[layer].any():
            share, sample = share_of(found, (layer,), group)
            rows.append([group, layer, float(own[layer].mean()), *share, sample])
    return pd.DataFrame(rows, columns=["group", "layer", "seconds", "share", "low", "high", "sample"])


def _ratio(part: pd.Series, whole: pd.Series, level: float) -> Estimate:
    """The share of sums; a part of a whole is never beyond 0 and 1, whatever the bootstrap says."""
    draws = max(_DRAWS, _DRAWN // len(part)) if len(part) > _MANY else None
    return Estimate(*(float(np.clip(end, 0.0, 1.0)) for end in bootstrap_ratio(part, whole, level, draws)))


def _time(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column of times; NaT where runs have none."""
    return pd.to_datetime(runs[name] if name in runs else pd.Series(pd.NaT, index=runs.index), utc=True)


def _number(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column as numbers, 0 where a run has none."""
    if name not in runs:
        return pd.Series(0.0, index=runs.index)
    return pd.to_numeric(runs[name], errors="coerce").astype("float64").fillna(0.0)
