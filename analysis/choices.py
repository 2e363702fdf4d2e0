"""Competing choices for a task: the runs of each choice, and its quantities with intervals.

Runs compete if they do the same work. Runs that time steps or queries do the same work if they have
the same model, data, mode and scenario. Trainings toward an accuracy do the same work if they have
the same data set and accuracy metric, whatever model they train. A choice is one combination of the
platform and the other settings, without seed and replicate.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.columns import CONFIGURATION_COLUMNS, CONFIGURATION_PREFIXES, PLATFORM_PREFIXES
from analysis.format import format_setting
from analysis.lazy import np, pd, stats
from analysis.point_names import model_name
from analysis.prices import PRICE
from paradnn.core.metric import interval_names
from paradnn.core.workload import Workload, requested_workload
from paradnn.statistics.dependence import Component
from paradnn.statistics.sessions import MIN_SESSIONS, assign_sessions

#: Largest factor between a mean and the ends of its interval. A wider interval is open: its ends
#: are NaN.
_OPEN_FACTOR = 100.0
#: Columns that identify a platform.
PLATFORM = ("device", "environment_id", "framework.name", "software.name")
_WORK_COLUMNS = (
    "family",
    "mode",
    "task",
    "scenario",
    "model.",
    "generate.",
    "data.",
    "learn.metric",
)
_LEARN = "learn"
_CLOSED = "closed"
_LEARNING_COLUMNS = ("data.", "learn.metric")
_DISTINGUISHING_COLUMNS = ("model.", "generate.", *_LEARNING_COLUMNS)
#: Configuration columns: whole names, and prefixes of groups of keys.
_KEYS = ("family", *CONFIGURATION_COLUMNS)
_GROUPS = (*CONFIGURATION_PREFIXES, *PLATFORM_PREFIXES)
#: Configuration columns that do not belong to a choice: they state how it is measured, or repeat
#: what another key states.
_EXCLUDED_COLUMNS = (
    PRICE,
    "platform.index",
    "model.name",
    "server.batch",
    *(f"software.{name}" for name in ("python", "requirements", "python_version")),
)
#: Configuration columns that state how long, or how precisely, a choice is measured.
_MEASURING_EFFORT = re.compile(
    r"(server|single_stream|multi_stream|offline)\.(min_\w+|seed|confidence|precision)|learn\.epochs"
)


@dataclass(frozen=True)
class Task:
    """A task, such as training one model family, with the runs that compete for it.

    Attributes:
        name: Description of the work, such as "fc train".
        work: The kind of workload, such as timed steps or a training toward an accuracy.
        rows: The runs, one row each.
        varies: The columns in which the runs differ. Each combination of their values is one
            choice.
    """

    name: str
    work: Workload
    rows: pd.DataFrame
    varies: tuple[str, ...]

    @property
    def has_step_times(self) -> bool:
        """Whether the compared quantities are computed from step times.

        Only the scatter of step times has a prior distribution. Latencies of served queries and
        times to an accuracy may scatter by any factor.
        """
        if self.work.name == _LEARN:
            return False
        if "scenario" not in self.rows:
            return True
        return bool(self.rows["scenario"].fillna(_CLOSED).eq(_CLOSED).all())


def tasks(frame: pd.DataFrame) -> list[Task]:
    """Group the runs of a frame into tasks: sets of runs that do the same work.

    If several tasks have the same name, the model and the settings that distinguish their work are
    added to the names.

    Args:
        frame: One row per run.
    """
    if "task" in frame:
        learns = frame["task"].eq(_LEARN).fillna(False)
    else:
        learns = frame["family"].isna()
    if "best_accuracy" in frame:
        learns = learns | frame["best_accuracy"].notna()
    all_tasks = []
    for learning, rows in frame.groupby(learns.to_numpy(dtype=bool)):
        work = _LEARNING_COLUMNS if learning else _WORK_COLUMNS
        keys = [name for name in _configured(rows) if name.startswith(work)]
        for values, part in rows.groupby(keys, dropna=False, sort=True) if keys else [((), rows)]:
            known = dict(zip(keys, values, strict=True))
            varies = [
                name
                for name in (*PLATFORM, *_configured(part))
                if name in part and name not in keys
            ]
            varies = [
                name for name in dict.fromkeys(varies) if part[name].nunique(dropna=False) > 1
            ]
            all_tasks.append(Task(*_name_task(known, learning=bool(learning)), part, tuple(varies)))
    all_tasks = _rename_equal(all_tasks, _with_model)
    distinguishing = [
        name
        for name in _configured(frame)
        if name.startswith(_DISTINGUISHING_COLUMNS) and frame[name].nunique(False) > 1
    ]
    return _rename_equal(all_tasks, lambda task: _with_settings(task, distinguishing))


def _rename_equal(tasks: Sequence[Task], rename: Callable[[Task], Task]) -> list[Task]:
    counts = Counter(task.name for task in tasks)
    return [rename(task) if counts[task.name] > 1 else task for task in tasks]


def _with_model(task: Task) -> Task:
    """Return the task with its model in the name, such as "fc 4x128 train" for "fc train"."""
    family = str(task.rows["family"].iloc[0]) if "family" in task.rows else ""
    if not family or not task.name.startswith(family):
        return task
    name = model_name(task.rows.iloc[0].to_dict())
    return replace(task, name=f"{name}{task.name.removeprefix(family)}")


def _with_settings(task: Task, distinguishing: Sequence[str]) -> Task:
    first = task.rows.iloc[0]
    words = [f"{_word(name)}={first[name]}" for name in distinguishing if pd.notna(first[name])]
    if task.work.name == _LEARN or not words:
        return task
    return replace(task, name=f"{task.name} ({', '.join(words)})")


def _name_task(known: Mapping[str, object], *, learning: bool) -> tuple[str, Workload]:
    """Return the name of a task and its kind of workload.

    Args:
        known: Value by column, for the columns that define the task.
        learning: Whether the runs train toward an accuracy.
    """
    if learning:
        return f"learning {known.get('data.name') or 'its data'}", requested_workload(
            {"task": _LEARN}
        )
    scenario = known.get("scenario")
    mode = known.get("mode")
    name = str(known.get("family"))
    if isinstance(mode, str):
        name += f" {mode}"
    if isinstance(scenario, str) and scenario != _CLOSED:
        name += f", {scenario}"
    return name, requested_workload({"scenario": scenario, "mode": mode})


def _configured(rows: pd.DataFrame) -> list[str]:
    """Return the configuration and platform columns in which any run has a value.

    Columns that only state how a run is measured, or that repeat another column, are omitted.
    """
    named = [name for name in map(str, rows.columns) if name in _KEYS or name.startswith(_GROUPS)]
    kept = [
        name
        for name in named
        if name not in _EXCLUDED_COLUMNS and not _MEASURING_EFFORT.fullmatch(name)
    ]
    return [name for name in kept if rows[name].notna().any()]


def describe_choice(row: pd.Series, columns: Sequence[str]) -> str:
    """Describe a run by its settings, such as "V100, batch size 8, server.delay_ms=2".

    Args:
        row: The run.
        columns: The columns to state. `environment_id` and columns without a value are omitted.

    Returns:
        The description; "the only choice" if no column remains.
    """
    known = {
        name: row[name] for name in columns if name != "environment_id" and not pd.isna(row[name])
    }
    self_explanatory = ("device", "family", "precision", "framework.name", "software.name")
    words = []
    for name, value in known.items():
        shown = format_setting(value)
        if name in self_explanatory:
            begin = ""
        elif name == "batch_size":
            begin = "batch size "
        else:
            begin = f"{_word(name)}="
        words.append(f"{begin}{shown}")
    return ", ".join(words) or "the only choice"


def _word(name: str) -> str:
    return (
        name.removesuffix(".name")
        .removeprefix("model.")
        .removeprefix("optimizer.")
        .removeprefix("platform.")
    )


def estimate(
    rows: pd.DataFrame,
    metric: str,
    error: float,
    run: Component | None = None,
    session: Component | None = None,
) -> tuple[float, float, float]:
    """Estimate a metric of one choice, and its confidence interval.

    The runs of a choice share a platform and all settings. For several runs with different values,
    the interval is Student's interval of their mean:

    - If the runs are from at least MIN_SESSIONS sessions (series of runs in one go), the mean is
      taken over the means of the sessions.
    - If all values are positive and the metric is not a share, the mean and the interval are
      computed from logarithms. An interval whose ends differ from the mean by more than a factor of
      _OPEN_FACTOR is open: its ends are NaN.

    For one run, or runs with equal values, the interval is the recorded 95% interval. The distance
    of each end is scaled from 95% to 1 - `error`, as for a normal distribution. If the schedule of
    the queries fixed the value, both ends are equal to it.

    Args:
        rows: The runs of the choice, one row each.
        metric: Column of the metric.
        error: Probability that the interval misses the true value, such as 0.05.
        run: Variance of the logarithm of the metric in one run, estimated from more data than
            `rows`; None to estimate it from `rows`.
        session: Variance of the logarithm of the mean of a session, estimated in the same way as
            `run`; None to estimate it from `rows`.

    Returns:
        The value, and the lower and upper end of its interval. The value is NaN if no run has one.
        An end is NaN if it is unknown or the interval is open.
    """
    if metric in rows:
        values = rows[metric].to_numpy(dtype="float64", na_value=np.nan)
    else:
        values = np.array([])
    is_known = np.isfinite(values)
    values = values[is_known]
    sessions = assign_sessions(rows)[is_known] if is_known.sum() > MIN_SESSIONS else []
    if not len(values):
        return math.nan, math.nan, math.nan
    known = run
    if None not in sessions and len(set(sessions)) >= MIN_SESSIONS:
        values = pd.Series(values).groupby(sessions).mean().to_numpy()
        known = session
    is_share = metric.endswith(("accuracy", "fraction"))
    log = bool((values > 0).all()) and not is_share
    if (values != values[0]).any():
        if log:
            return _log_mean(np.log(values), error, known)
        middle = float(values.mean())
        half = _half_width(_sample_variance(values), len(values), error)
        low, high = middle - half, middle + half
        if is_share:
            low, high = max(low, 0.0), min(high, 1.0)
        return middle, low, high
    value = float(values[0])
    factor = float(stats.norm.ppf(1 - error / 2) / stats.norm.ppf(0.975))
    low, high = (
        value * (end / value) ** factor if log and end > 0 else value + factor * (end - value)
        for end in recorded_interval(metric, rows[is_known].iloc[0])
    )
    return value, low, high


def _log_mean(
    logs: np.ndarray, error: float, known: Component | None
) -> tuple[float, float, float]:
    """Return the geometric mean and its interval, whose ends are NaN if they are too far apart.

    Args:
        logs: (n,) logarithms of the values.
        error: Probability that the interval misses the true mean.
        known: Variance of a logarithm, from other data; None to use the sample variance.
    """
    value = math.exp(logs.mean())
    half = _half_width(known or _sample_variance(logs), len(logs), error)
    if half > math.log(_OPEN_FACTOR):
        return value, math.nan, math.nan
    return value, value * math.exp(-half), value * math.exp(half)


def _sample_variance(values: np.ndarray) -> Component:
    return Component(float(values.var(ddof=1)), len(values) - 1)


def _half_width(variance: Component, count: int, error: float) -> float:
    """Return the half width of Student's interval of the mean of `count` values.

    Args:
        variance: Variance of one value, with its degrees of freedom.
        count: Number of values.
        error: Probability that the interval misses the true mean.
    """
    quantile = float(stats.t.ppf(1 - error / 2, variance.freedom))
    return quantile * math.sqrt(float(variance.variance) / count)


def recorded_interval(metric: str, run: pd.Series) -> tuple[float, float]:
    """Return the ends of a run's recorded 95% interval of a metric; NaN if unknown.

    If a schedule fixes the query rate of a run, the rate and its cost per query are exact. Both
    ends then equal the value. A run may instead have searched for the highest rate within a latency
    limit. The interval of that rate lies between the rates that kept the limit and those that
    exceeded it.

    Args:
        metric: Name of the metric.
        run: A row of a frame of runs.
    """

    def number(name: str) -> float:
        value = run.get(name)
        return math.nan if pd.isna(value) else float(value)

    if metric in ("scheduled_queries_per_second", "cost_per_million_queries"):
        peak = number("peak_queries_per_second")
        if number("scheduled_queries_per_second") > 0 and not peak > 0:
            return number(metric), number(metric)
        if peak > 0 and metric == "scheduled_queries_per_second":
            return number("peak_queries_per_second_low"), number("peak_queries_per_second_high")
    low, high = interval_names(metric)
    return number(low), number(high)
