"""The stack's own overhead: where the wall time of a sweep goes, phase by phase, and how much of it is measuring.

Out come a table of phases, a table of phases by family, and the shares of wall time with their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis.methods.quantiles import bootstrap_ratio
from paradnn.forecast.estimate import Estimate
from paradnn.store.metrics import PHASES

__all__ = ["MEASURING_PHASES", "OVERHEAD_PHASES", "Overhead", "phase_overhead"]

#: What a point is run for: its speed, and in inference the latency of single steps.
MEASURING_PHASES = ("prefill", "measure", "latency", "load", "learn")
#: What this tool itself costs; the rest is the model's own (build, compile, warm-up) or asked for (profile).
OVERHEAD_PHASES = ("schedule", "start", "record")


@dataclass(frozen=True)
class Overhead:
    """Where wall time went.

    `phases` has one row a phase that any run has, in the order of a point: phase, runs, q25, median, q75 (s), total
    (s), share (of all wall time). `families` has one row a family and phase: family, phase, points, seconds (mean of
    a point), share (of the family's wall time). `wall` is the sum of all phases of all runs in s; `measuring` and
    `stack` are the shares of MEASURING_PHASES and OVERHEAD_PHASES, with 95% intervals over points, which end at 0 and
    1. `runs` have phases, `without` have none. `launches` has one row a launcher that had tasks of points: launcher,
    tasks, points, and of its tasks the medians in s of queue (the scheduler), task_start (interpreter and driver) and
    framework (the rest of its import, in the task's first point); they come on top of `wall`, but for the last.
    """

    phases: pd.DataFrame
    families: pd.DataFrame
    wall: float
    measuring: Estimate
    stack: Estimate
    runs: int
    without: int
    launches: pd.DataFrame


def phase_overhead(frame: pd.DataFrame, families: Sequence[str] = ()) -> Overhead:
    """The phases of all runs of a frame, one row a run; every outcome counts, since a failed point costs time as well.

    Wall time of a run is the sum of its `phase_<name>_seconds`; a phase that a run has not is no time in the sums and
    no row in the quartiles. `families` orders the families.
    """
    seconds = pd.DataFrame(
        {
            name: frame[f"phase_{name}_seconds"].astype("float64") if f"phase_{name}_seconds" in frame else np.nan
            for name in PHASES
        },
        index=frame.index,
    )
    has = seconds.notna().any(axis=1)
    seconds = seconds[has]
    present = [name for name in PHASES if seconds[name].notna().any()]
    spent = seconds[present].fillna(0.0)
    wall = spent.sum(axis=1).to_numpy()
    total = float(wall.sum())
    rows = []
    for name in present:
        known = seconds[name].dropna()
        low, middle, high = np.percentile(known, [25, 50, 75])
        whole = float(known.sum())
        rows.append(
            {
                "phase": name,
                "runs": len(known),
                "q25": low,
                "median": middle,
                "q75": high,
                "total": whole,
                "share": whole / total if total else math.nan,
            }
        )
    measuring, stack = (
        spent[[name for name in names if name in spent]].sum(axis=1).to_numpy()
        for names in (MEASURING_PHASES, OVERHEAD_PHASES)
    )
    return Overhead(
        phases=pd.DataFrame(rows, columns=["phase", "runs", "q25", "median", "q75", "total", "share"]),
        families=_by_family(spent, frame.loc[has, "family"].fillna("(none)"), families),
        wall=total,
        measuring=_share(measuring, wall),
        stack=_share(stack, wall),
        runs=int(has.sum()),
        without=int((~has).sum()),
        launches=_launches(frame[has]),
    )


def _share(part: ArrayLike, whole: ArrayLike) -> Estimate:
    """The share of sums; the bootstrap knows nothing of 0 and 1, and a part of the whole is never beyond them."""
    return Estimate(*(float(np.clip(end, 0.0, 1.0)) for end in bootstrap_ratio(part, whole)))


def _launches(frame: pd.DataFrame) -> pd.DataFrame:
    """What the tasks of launched sweeps waited for, by launcher; a task's waits stand on each of its runs."""
    columns = ["launcher", "tasks", "points", "queue", "task_start", "framework"]
    if "queue_seconds" not in frame:
        return pd.DataFrame(columns=columns)
    known = frame[frame["queue_seconds"].notna()].sort_values("start_time", kind="stable")
    rows = []
    for launcher, runs in known.groupby("launcher", sort=True):
        first = runs.drop_duplicates([name for name in ("sweep_id", "launched_task") if name in runs])
        waits = (first[name].median() for name in ("queue_seconds", "task_start_seconds", "phase_start_seconds"))
        rows.append([launcher, len(first), len(runs), *map(float, waits)])
    return pd.DataFrame(rows, columns=columns)


def _by_family(spent: pd.DataFrame, family: pd.Series, order: Sequence[str]) -> pd.DataFrame:
    present = set(family)
    ordered = [name for name in order if name in present] + sorted(present.difference(order))
    rows = []
    for name in ordered:
        group = spent[family == name]
        whole = float(group.to_numpy().sum())
        for phase in group:
            seconds = float(group[phase].sum())
            rows.append(
                {
                    "family": name,
                    "phase": phase,
                    "points": len(group),
                    "seconds": seconds / len(group),
                    "share": seconds / whole if whole else math.nan,
                }
            )
    return pd.DataFrame(rows, columns=["family", "phase", "points", "seconds", "share"])
