"""Forecast of the duration of a sweep.

The forecast contains the time of each point, the time before the first point, and the wall time on
several hosts. It is printed to the terminal, or written to a CSV file with one row per point.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from paradnn.cli.console import standard_output
from paradnn.config.settings import Settings
from paradnn.forecast.history import History
from paradnn.forecast.phases import PointTimes, point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.status import SweepStatus, rates_of
from paradnn.forecast.table import RunHistory, make_table, point_params
from paradnn.session.record import run_name
from paradnn.statistics.robust_regression import Array
from paradnn.store.files import whole_file

#: Maximum number of past runs that a prediction uses. The newest runs are selected.
MAX_RUNS = 4000
#: Maximum number of predicted points. If a plan has more points to run, a random sample of this
#: size is predicted.
_MAX_POINTS = 5000
#: Approximate number of random draws for all points together.
_DRAWS = 1_000_000
#: A point is expected to time out if it does so in more than this share of the draws.
_LIKELY = 0.5
#: Time from the start of a command to its first point (interpreter, configuration, store, import of
#: the framework): median in seconds, and standard deviation of the logarithm.
_START = (6.5, 0.3)
#: Time to measure the ceilings, once per environment: median in seconds, and standard deviation of
#: the logarithm.
_CEILINGS = (35.0, 0.25)
#: Quantiles of the draws by column name: the ends of a 95% interval, and the median.
_ENDS = {"low": 0.025, "expected": 0.5, "high": 0.975}
#: Phases with a share of the time below this value are not printed.
_MIN_SHOWN_SHARE = 0.03
#: The table of families has a column for each of these values of `SweepStatus.status`.
_STATES = ("done", "oom_predicted", "missing")
_COSTS = (
    "parameters",
    "forward_flops",
    "flops_per_step",
    "bytes_per_step",
    "memory_lower_bound_bytes",
)


@dataclass(frozen=True)
class Forecast:
    """The predicted duration of a sweep, as random draws.

    A point is one configuration of the sweep. An array of draws represents the uncertainty of a
    predicted duration.

    Attributes:
        status: The points of the sweep and their status.
        where: Indices (m,) of the predicted points: all points to run, or a random sample.
        weight: Number of points to run per predicted point; 1 without sampling.
        seconds: Seconds (m, draws) of each predicted point.
        late: Number of points that are likely to time out.
        phases: Phase of a measurement, such as "compile" -> its seconds (draws,), summed over all
            points to run.
        start: Seconds (draws,) before the first point of a worker, the process that imports the
            framework and measures points.
        ceilings: Seconds (draws,) to measure the machine's peak FLOP/s and memory bandwidth, for
            each environment whose peaks the store does not contain.
        runs: Number of past runs by model family in the environments of the sweep. The key ""
            counts runs in other environments.
        times_of: Function that predicts the times of the points with the given indices.
    """

    status: SweepStatus
    where: NDArray[np.intp]
    weight: float
    seconds: Array
    late: int
    phases: Mapping[str, Array]
    start: Array
    ceilings: Array
    runs: Mapping[str, int]
    times_of: Callable[[Sequence[int]], PointTimes]

    def wall(self, hosts: int) -> Array:
        """Return the wall time (draws,) in seconds of the sweep on several hosts.

        The points are divided among the hosts: an idle host takes the next point of the sweep.

        Args:
            hosts: Number of hosts.
        """
        workers = {self.status.workers[index] for index in self.where}
        start = len(workers) * self.start
        if len(workers):
            return wall_seconds(self.weight * self.seconds, hosts, start) + self.ceilings
        return 0 * start


def forecast(status: SweepStatus, settings: Settings, history: History) -> Forecast:
    """Predict the duration of a sweep from past runs and from the costs of its models.

    Args:
        status: The points (configurations) of the sweep and their status.
        settings: The settings of the session that would measure the sweep.
        history: The past runs in the store.
    """
    where = np.flatnonzero(status.to_run)
    total = len(where)
    if total > _MAX_POINTS:
        where = np.sort(np.random.default_rng(0).choice(where, _MAX_POINTS, replace=False))
    rates = rates_of(status)
    environments = {id(each): each for each in status.environments}.values()
    runs = RunHistory.from_runs(
        history.past({environment.device for environment in environments}, MAX_RUNS), rates
    )
    draws = int(np.clip(_DRAWS // max(len(where), 1), 100, 1000))
    model = StepTimeModel.fit(runs.table, runs.step, runs.noise)

    def times_of(indices: Sequence[int]) -> PointTimes:
        chosen = [status.environments[index] for index in indices]
        ids = [environment.environment_id for environment in chosen]
        devices = [environment.device for environment in chosen]
        points = make_table([status.points[index] for index in indices], ids, devices, rates)
        times = point_times(runs, points, draws, model.predict(points))
        # A point that is predicted to run out of memory is only scheduled and recorded.
        is_measured = (status.status[[*indices]] == "missing")[:, None]
        recording_seconds = times.phases["schedule"] + times.phases["record"]
        phases = {name: np.where(is_measured, values, 0.0) for name, values in times.phases.items()}
        seconds = np.where(is_measured, times.seconds, recording_seconds)
        return replace(
            times, phases=phases, seconds=seconds, timed_out=times.timed_out & is_measured
        )

    times = times_of(where.tolist())
    weight = total / max(len(where), 1)
    random = np.random.default_rng(1)
    if settings.ceilings and len(where):
        lacking = sum(ceilings is None for ceilings in status.ceilings.values())
    else:
        lacking = 0
    here = {environment.environment_id for environment in environments}
    families = zip(runs.table.families, runs.table.environments, strict=True)
    return Forecast(
        status=status,
        where=where,
        weight=weight,
        seconds=times.seconds,
        late=round(weight * (times.timed_out.mean(axis=1) > _LIKELY).sum()) if total else 0,
        phases={name: weight * values.sum(axis=0) for name, values in times.phases.items()},
        start=_START[0] * np.exp(_START[1] * random.standard_normal(draws)),
        ceilings=lacking * _CEILINGS[0] * np.exp(_CEILINGS[1] * random.standard_normal(draws)),
        runs=Counter(family if environment in here else "" for family, environment in families),
        times_of=times_of,
    )


def wall_seconds(tasks: Array, hosts: int, start: Array | float = 0.0) -> Array:
    """Return the seconds (draws,) until several hosts have completed all tasks.

    Each host takes the next task as soon as it is idle. The result is at least the mean total time
    per host, and at least the time of the longest task. It is at most 2 - 1/hosts times the time of
    the optimal schedule (Graham 1966).

    Args:
        tasks: Seconds (tasks, draws) of each task, in the order in which hosts take the tasks. Each
            column is one random draw.
        hosts: Number of hosts.
        start: Seconds before the first task of each host: an array (draws,), or one number.
    """
    needed = max(1, min(hosts, len(tasks)))
    every = np.arange(tasks.shape[1])
    busy = np.broadcast_to(start, (needed, len(every))).astype(float)
    for task in tasks:
        busy[busy.argmin(axis=0), every] += task
    return np.asarray(busy.max(axis=0))


def describe(forecast: Forecast, name: str | None, where: str, hosts: Sequence[int]) -> None:
    """Print a forecast: counts and expected times by model family, and wall times by hosts.

    Args:
        forecast: The forecast of the duration of a sweep.
        name: Name of the sweep; None for a single configuration, whose run name is printed.
        where: Address of the tracking store.
        hosts: Numbers of hosts for which to print the wall time.
    """
    console = standard_output()
    status = forecast.status
    for line in _head(forecast, name, where):
        console.print(line, soft_wrap=True, markup=False)
    console.print()
    console.print(_family_table(forecast))
    console.print()
    if not status.to_run.any():
        console.print("Nothing is left to measure.")
        return
    single = forecast.wall(1)
    for line in _duration_lines(forecast, single):
        console.print(line, soft_wrap=True, markup=False)
    console.print()
    console.print(_host_table(forecast, single, hosts))
    console.print(
        "Expected for hosts like this one with nothing else running on them.", style="dim"
    )


def _family_table(forecast: Forecast) -> Table:
    """Return a table with the counts and expected time of each model family, and of all."""
    status = forecast.status
    families = np.array([point.model.name for point in status.points], dtype=str)
    rows = {name: families == name for name in dict.fromkeys(families.tolist())}
    if len(rows) > 1:
        rows["all"] = np.ones(len(families), dtype=bool)
    table = _table("family", "points", "done", "too large", "to measure", "expected", "95%")
    for name, is_chosen in rows.items():
        counts = [is_chosen.sum()]
        counts += [(status.status[is_chosen] == state).sum() for state in _STATES]
        seconds = forecast.weight * forecast.seconds[is_chosen[forecast.where]]
        expected = _quantiles(seconds) if len(seconds) else ("-", "")
        table.add_row(name, *(f"{count:,}" for count in counts), *expected)
    return table


def _duration_lines(forecast: Forecast, single: Array) -> Iterator[str]:
    """Yield lines with the expected time on one host, and the shares of its phases.

    A further line contains the time to measure the peak FLOP/s and bandwidth, if it is needed.

    Args:
        forecast: The forecast to print.
        single: Wall time (draws,) of the sweep on one host, in seconds.
    """
    median, spread = _quantiles(single[None])
    yield f"On one host: {median} (95%: {spread})"
    medians = {name: float(np.median(draws)) for name, draws in forecast.phases.items()}
    total = max(sum(medians.values()), 1e-9)
    shares = [
        f"{name} {medians[name] / total:.0%}"
        for name in sorted(medians, key=lambda name: -medians[name])
        if medians[name] > _MIN_SHOWN_SHARE * total
    ]
    if shares:
        yield f"  phases       {', '.join(shares)}"
    if np.any(forecast.ceilings):
        seconds, spread = _quantiles(forecast.ceilings[None])
        yield (
            f"  ceilings     {seconds} (95%: {spread}), once: "
            "the store has none for this environment"
        )


def _host_table(forecast: Forecast, single: Array, hosts: Sequence[int]) -> Table:
    """Return a table with the expected wall time for each number of hosts.

    Args:
        forecast: The forecast to print.
        single: Wall time (draws,) of the sweep on one host, in seconds.
        hosts: Numbers of hosts, one per row.
    """
    table = _table("hosts", "wall time", "95%", "times faster")
    for count in hosts:
        wall = forecast.wall(count)
        table.add_row(str(count), *_quantiles(wall[None]), f"{np.median(single / wall):.1f}")
    return table


def _head(forecast: Forecast, name: str | None, where: str) -> Iterator[str]:
    status = forecast.status
    counts = Counter(forecast.status.status.tolist())
    yield f"{name or run_name(status.points[0])}; the store is {where}"
    known = ", ".join(f"{family} {count:,}" for family, count in forecast.runs.items() if family)
    others = forecast.runs.get("", 0)
    sources = []
    if known:
        sources.append(f"{known} in this environment")
    if others:
        sources.append(f"{others:,} in other environments on this machine")
    if not sources:
        sources.append("none on this machine: only the cost model is used")
    yield f"  past runs    {' and '.join(sources)}"
    ends = Counter(np.array(status.outcomes)[status.status == "done"].tolist())
    done = ", ".join(f"{count:,} {outcome}" for outcome, count in ends.most_common())
    yield f"  done         {counts['done']:,}" + (f" ({done})" if done else "")
    if counts["repeated"]:
        yield f"  named twice  {counts['repeated']:,}"
    limits = " and ".join(
        f"{limit / 2**30:.1f} GiB" for limit in np.unique(status.limits[np.isfinite(status.limits)])
    )
    yield (
        f"  too large    {counts['oom_predicted']:,} by arithmetic; "
        f"a point may use {limits or 'all memory'} now"
    )
    if forecast.late:
        verb = "is" if forecast.late == 1 else "are"
        late = f"; {forecast.late:,} of these {verb} likely to time out: raise measure.timeout"
    else:
        late = ""
    yield f"  to measure   {counts['missing']:,}{late}"
    if forecast.weight > 1:
        yield (
            f"  predicted    {len(forecast.where):,} random points of these; "
            "times are scaled to all points"
        )
    for stack in status.missing_stacks:
        yield (
            f"  The software stack {stack} is not installed yet: its points have no past runs, "
            "and installing it takes time."
        )


def _table(*headings: str) -> Table:
    """Return an empty table without borders; columns after the first are right-aligned."""
    columns = (
        Column(text, justify="right" if index else "left", no_wrap=True)
        for index, text in enumerate(headings)
    )
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _quantiles(draws: Array) -> tuple[str, str]:
    """Return the median and the 95% interval of the sum of n durations, as two texts.

    Args:
        draws: Random draws (n, draws) of the durations in seconds.
    """
    low, middle, high = map(_duration, np.quantile(draws.sum(axis=0), [*_ENDS.values()]))
    return middle, f"{low} .. {high}"


def _duration(seconds: float) -> str:
    """Return a duration as text in its two largest units: 2 d 3 h, 3 h 20 min, 5 min 12 s, 41 s."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 6000:
        unit, ratio, large, small = 1, 60, "min", "s"
    elif seconds < 172_800:
        unit, ratio, large, small = 60, 60, "h", "min"
    else:
        unit, ratio, large, small = 3600, 24, "d", "h"
    whole, rest = divmod(round(seconds / unit), ratio)
    if rest:
        return f"{whole:,} {large} {rest} {small}"
    return f"{whole:,} {large}"


def write_points(forecast: Forecast, path: Path) -> None:
    """Write a CSV file with one row per point: its keys, costs, status and expected times.

    Args:
        forecast: The forecast of a sweep, whose points are its configurations.
        path: The file to write.

    Raises:
        ConfigError: If the file cannot be written.
    """
    points = forecast.status.points
    shapes = {(type(p.model), type(p.data), type(p.workload)): p for p in points}
    ends = [f"{name}_{unit}" for unit in ("seconds", "step_ms") for name in _ENDS]
    names = ["name", "family", "status", "outcome", *ends, *_COSTS]
    columns = dict.fromkeys(
        [*names, *(key for point in shapes.values() for key in point_params(point))]
    )
    with whole_file(path, "plan.out") as making, making.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(columns), restval="")
        writer.writeheader()
        for first in range(0, len(points), _MAX_POINTS):
            writer.writerows(_rows(forecast, range(first, min(first + _MAX_POINTS, len(points)))))


def _rows(forecast: Forecast, indices: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    status = forecast.status
    where = [index for index in indices if status.to_run[index]]
    times = forecast.times_of(where)
    ends = np.quantile([times.seconds, 1e3 * times.step], [*_ENDS.values()], axis=2)
    late = times.timed_out.mean(axis=1) > _LIKELY
    columns = {index: column for column, index in enumerate(where)}
    for index in indices:
        point = status.points[index]
        column = columns.get(index)
        # A point that is not measured takes no time and has no expected step time.
        shown = [("0.000", "")] * len(_ENDS)
        if column is not None:
            shown = [(f"{seconds:.3f}", f"{step:.6g}") for seconds, step in ends[:, :, column]]
        yield {
            "name": run_name(point),
            "family": point.model.name,
            "status": status.status[index],
            "outcome": status.outcomes[index] if column is None or not late[column] else "timeout",
            **{f"{name}_seconds": seconds for name, (seconds, _) in zip(_ENDS, shown, strict=True)},
            **{f"{name}_step_ms": step for name, (_, step) in zip(_ENDS, shown, strict=True)},
            **{name: int(status.costs[name][index]) for name in _COSTS},
            **point_params(point),
        }
