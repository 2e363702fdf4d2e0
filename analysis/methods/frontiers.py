"""Frontiers of measured choices: cost, latency, accuracy or throughput of each, how it stands, and which to choose.

All intervals of a task hold at once with 95% (Bonferroni), so no verdict of the task is wrong more often than that,
however many choices it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods.choices import PLATFORM, Kind, Task, estimate, tasks, words_of
from analysis.methods.frontier import Box, Standing, efficient, standings
from analysis.methods.regression import Lacking
from analysis.store.frame import is_ok, require_homogeneous
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.forecast.estimate import LEVEL
from paradnn.store.metrics import METRICS

__all__ = ["Advice", "Axes", "Frontier", "frontiers", "less_is_better"]

#: No goals in themselves, but what a choice serves, and how long it learns.
_BETTER = {"scheduled_queries_per_second": "higher", "learning_seconds": "lower"}
#: Cost, what takes its place without prices, and what is to be had for it.
_AXES = {
    Kind.SERVES: ("cost_per_million_queries", "scheduled_queries_per_second", "latency_p99_ms"),
    Kind.STEPS: ("cost_per_million_examples", "examples_per_second", "latency_p50_ms"),
    Kind.GENERATES: ("cost_per_million_tokens", "tokens_per_second", "time_per_output_token_ms"),
    Kind.LEARNS: ("cost_of_learning", "learning_seconds", "best_accuracy"),
}


@dataclass(frozen=True)
class Axes:
    """The two quantities of a frontier, names of metrics."""

    x: str
    y: str


@dataclass(frozen=True)
class Advice:
    """Which choice to take: `best` surely keeps all limits and is best in `by`; `rivals` keep them too and are not
    surely worse; `unsure` would be better but may break a limit; `nearest` comes nearest where no choice keeps them at
    all.

    Names of choices; `best` is empty where none surely keeps them.
    """

    by: str
    best: str = ""
    rivals: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    nearest: str = ""


@dataclass(frozen=True)
class Frontier:
    """One task. `table` has a row for each choice, cheapest first: `choice`, `platform`, `runs`, the quantities with
    `_low` and `_high`, `standing`, and whether it is `efficient` at its values. `incomplete` counts choices without
    one of the quantities."""

    task: str
    axes: Axes
    table: pd.DataFrame
    incomplete: int
    advice: Advice | None = None
    pooled: str = ""

    def count(self, standing: Standing) -> int:
        """How many choices stand so."""
        return int(self.table["standing"].eq(standing.value).sum())


def less_is_better(metric: str, option: str = "metric") -> bool:
    """Whether less of a metric is better; ConfigError, of the `option`, where neither is, and for what is no metric."""
    known = METRICS.get(metric)
    better = _BETTER.get(metric, known.better if known else None)
    if better is None:
        problem = "is neither better high nor low" if known else "is no metric"
        remedy = "choose one that python -m paradnn list metrics names, such as latency_p99_ms"
        raise ConfigError(option, metric, problem, remedy)
    return better == "lower"


def frontiers(
    frame: pd.DataFrame,
    x: str | None = None,
    y: str | None = None,
    limits: Mapping[str, float] | None = None,
    pool: bool = False,
) -> list[Frontier]:
    """A frontier for each task with two choices or more; `x` and `y` are metrics in place of cost (where there are
    prices, else throughput or time) and of latency or accuracy. `limits` are metrics with what they may be at most, or
    at least, whichever is better.

    ConfigError for a metric that cannot be compared, NotEnoughData where no task has two choices with both quantities.
    """
    limits = limits or {}
    for option, name in (("--x", x), ("--y", y), *(("--limit", name) for name in limits)):
        if name is not None:
            less_is_better(name, option)
    found, lacking = [], []
    for task in tasks(frame[is_ok(frame) | _learnt(frame)]):
        axes = _axes(task, x, y)
        try:
            found.append(_frontier(task, axes, limits, pool))
        except NotEnoughData as problem:
            lacking.append(Lacking(task.name, str(problem)))
    if not found:
        raise NotEnoughData(
            "no task has two choices to compare",
            lacking or [Lacking("all runs", "none is ok")],
            "measure more, such as python -m paradnn.train -m mode=inference batch_size=1,8,64",
        )
    return found


def _learnt(frame: pd.DataFrame) -> pd.Series:
    """Trainings count whether or not they reached their target: they have an accuracy at a cost."""
    if "best_accuracy" not in frame:
        return pd.Series(False, index=frame.index)
    return frame["best_accuracy"].notna() & frame["outcome"].eq("timeout").fillna(False)


def _axes(task: Task, x: str | None, y: str | None) -> Axes:
    cost, rate, gain = _AXES[task.kind]
    # Only a schedule asks for a rate.
    known = [name for name in (cost, rate) if name in task.rows and task.rows[name].notna().any()]
    return Axes(x or next(iter(known), "queries_per_second" if task.kind is Kind.SERVES else rate), y or gain)


def _frontier(task: Task, axes: Axes, limits: Mapping[str, float], pool: bool) -> Frontier:
    rows = require_homogeneous(task.rows, ("protocol_id", "schema_version"), pool=pool)
    metrics = list(dict.fromkeys([axes.x, axes.y, *limits]))
    lacking = [name for name in metrics if name not in rows or not rows[name].notna().any()]
    if lacking:
        raise NotEnoughData(f"no run has {', '.join(lacking)}")
    columns = [name for name in task.varies if name in rows]
    groups = [part for _, part in rows.groupby(columns, dropna=False, sort=False)] if columns else [rows]
    error = (1 - LEVEL) / (len(groups) * len(metrics))
    shown = [name for name in columns if name != "environment_id"]
    table = pd.DataFrame([_row(part, shown, metrics, error) for part in groups])
    whole = table[metrics].notna().all(axis=1)
    table, incomplete = table[whole].reset_index(drop=True), int((~whole).sum())
    if len(table) < 2:
        raise NotEnoughData(f"{len(table)} choice{'s'[: len(table) != 1]} with {' and '.join(metrics)}, it takes two")
    table = _named_apart(table)
    pair = [axes.x, axes.y] if axes.x != axes.y else [axes.x]
    box = Box.of([_column(table, name) for name in pair], [less_is_better(name) for name in pair])
    table["standing"] = [standing.value for standing in standings(box)]
    table["efficient"] = efficient(box)
    table = table.sort_values(axes.x, ascending=less_is_better(axes.x), kind="stable", ignore_index=True)
    advice = _advice(table, axes, limits) if limits else None
    return Frontier(task.name, axes, table, incomplete, advice, rows.attrs.get("pooled", ""))


def _row(part: pd.DataFrame, columns: Sequence[str], metrics: Sequence[str], error: float) -> dict[str, object]:
    first = part.iloc[0]
    platform = [str(first[name]) for name in PLATFORM if name in columns and name != "device" and pd.notna(first[name])]
    row: dict[str, object] = {
        "choice": words_of(first, columns),
        "platform": ", ".join([str(first["device"]), *platform]),
        "runs": len(part),
        "run_ids": tuple(part["run_id"]),
    }
    for name in metrics:
        row[name], row[f"{name}_low"], row[f"{name}_high"] = estimate(part, name, error)
    return row


def _named_apart(table: pd.DataFrame) -> pd.DataFrame:
    """Choices that differ in their environment alone are numbered."""
    same = table.groupby("choice").cumcount()
    several = table["choice"].map(table["choice"].value_counts()) > 1
    names = [
        f"{name}, environment {number + 1}" if more else name
        for name, number, more in zip(table["choice"], same, several, strict=True)
    ]
    return table.assign(choice=names)


def _column(table: pd.DataFrame, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    value, low, high = (table[column].to_numpy(dtype="float64") for column in (name, f"{name}_low", f"{name}_high"))
    return value, low, high


def _advice(table: pd.DataFrame, axes: Axes, limits: Mapping[str, float]) -> Advice:
    by = next((name for name in (axes.x, axes.y) if name not in limits), axes.x)
    count = len(table)
    kept, sure = np.ones(count, dtype=bool), np.ones(count, dtype=bool)
    excess = np.zeros(count)
    for name, limit in limits.items():
        sign = 1.0 if less_is_better(name) else -1.0
        value, low, high = _column(table, name)
        worst = high if sign > 0 else low
        kept &= sign * value <= sign * limit
        sure &= sign * worst <= sign * limit  # an unknown end is no sure one
        excess += np.maximum(0, sign * (value - limit)) / max(abs(limit), 1e-12)
    sign = 1.0 if less_is_better(by) else -1.0
    value, low, high = (sign * entry for entry in _column(table, by))
    low, high = (low, high) if sign > 0 else (high, low)
    names = table["choice"].to_numpy()
    if not kept.any():
        return Advice(by, nearest=str(names[int(excess.argmin())]))
    order = np.argsort(value, kind="stable")
    first = next((int(place) for place in order if sure[place]), None)
    bound = value[first] if first is not None else math.inf
    unsure = [str(names[place]) for place in order if kept[place] and not sure[place] and value[place] < bound]
    if first is None:
        return Advice(by, unsure=tuple(unsure))
    reach = high[first] if math.isfinite(high[first]) else math.inf
    rivals = [
        str(names[place])
        for place in order
        if sure[place] and place != first and (math.isnan(low[place]) or low[place] <= reach)
    ]
    return Advice(by, str(names[first]), tuple(rivals), tuple(unsure))
