"""A sweep's forecast in the terminal, and as a CSV file with a row a point."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from paradnn.cli.console import standard_output
from paradnn.config.point import Point
from paradnn.core.words import counted
from paradnn.forecast.forecast import LIKELY, MOST_POINTS, Forecast
from paradnn.forecast.regression import Array
from paradnn.forecast.status import by_parts
from paradnn.forecast.table import row_of
from paradnn.record.record import run_name
from paradnn.store.files import whole_file

__all__ = ["describe", "duration", "table_of", "write_points"]

#: An axis of more values than this is shown by its ends.
_MOST_LEVELS = 12
_ENDS = tuple(f"{name}_{unit}" for unit in ("seconds", "step_ms") for name in ("low", "expected", "high"))
_COSTS = ("parameters", "forward_flops", "flops_per_step", "bytes_per_step", "memory_lower_bound_bytes")

_COLUMNS = ("name", "family", "status", "outcome", *_ENDS, *_COSTS)


def describe(forecast: Forecast, name: str | None, where: str, hosts: Sequence[int], chunk: int | None) -> None:
    """Print counts, expected times by family and axis, and the wall time for each number of hosts.

    `name` is the sweep's; a single point has its own.
    """
    console = standard_output()
    for line in _head(forecast, name, where):
        console.print(line, soft_wrap=True, markup=False)
    console.print()
    console.print(_family_table(forecast))
    console.print()
    if axes := _axes(forecast):
        console.print(_axis_table(forecast, axes))
        console.print()
    if forecast.status.to_run.any():
        for line in _times(forecast):
            console.print(line, soft_wrap=True, markup=False)
        console.print()
        console.print(_host_table(forecast, hosts, chunk))
        console.print("Expected for hosts like this one with nothing else running on them.", style="dim")
    else:
        console.print("Nothing is left to measure.")


def _head(forecast: Forecast, name: str | None, where: str) -> Iterator[str]:
    status = forecast.status
    counts = Counter(status.status)
    yield f"{name or run_name(status.points[0])}; the store is {where}"
    known = ", ".join(f"{family} {count:,}" for family, count in forecast.runs.items() if family)
    others = forecast.runs.get("", 0)
    base = [f"{known} in this environment"] if known else []
    base += [f"{others:,} in others on this machine"] if others else []
    yield f"  past runs    {' and '.join(base) or 'none on this machine: the cost model alone'}"
    ends = Counter(zip(status.status, status.outcomes, strict=True))
    done = ", ".join(f"{count:,} {outcome}" for (state, outcome), count in ends.most_common() if state == "done")
    yield f"  done         {counts['done']:,}" + (f" ({done})" if done else "")
    if counts["repeated"]:
        yield f"  named twice  {counts['repeated']:,}"
    limits = " and ".join(f"{limit / 2**30:.1f} GiB" for limit in status.limits)
    yield f"  too large    {counts['oom_predicted']:,} by arithmetic; a point may take {limits} now"
    late = f", of which {forecast.late:,} are likely to time out" if forecast.late else ""
    yield f"  to measure   {counts['missing']:,}{late}"
    if forecast.weight > 1:
        yield f"  predicted    {len(forecast.where):,} of these, drawn at random; times are scaled to all"
    for stack in status.unmade:
        yield f"  The software stack {stack} is not made yet: its points have no past runs, and making it takes time."


def _times(forecast: Forecast) -> Iterator[str]:
    wall, spread = _quantiles(forecast.wall(1))
    yield f"On one host: {wall} (95%: {spread})"
    medians = {name: float(np.median(draws)) for name, draws in forecast.phases.items()}
    largest = sorted(medians, key=lambda name: -medians[name])
    shares = {name: medians[name] / max(sum(medians.values()), 1e-9) for name in largest}
    if shown := [f"{name} {share:.0%}" for name, share in shares.items() if share > 0.03]:
        yield f"  goes to      {', '.join(shown)}"
    if np.any(forecast.ceilings):
        seconds, spread = _quantiles(forecast.ceilings)
        yield f"  ceilings     {seconds} (95%: {spread}), once: the store has none for this environment"


def _family_table(forecast: Forecast) -> Table:
    table = table_of("family", "points", "done", "too large", "to measure", "expected", "95%")
    families = np.array([point.model.name for point in forecast.status.points], dtype=str)
    names = list(dict.fromkeys(families.tolist()))
    for name in names:
        table.add_row(name, *_summary(forecast, families == name))
    if len(names) > 1:
        table.add_row("all", *_summary(forecast, families != ""))
    return table


def _axes(forecast: Forecast) -> dict[str, list[str]]:
    """The keys that the points differ in, each with the points' values as text ("" where a point lacks the key)."""
    found = {}
    for name in (entry.name for entry in fields(Point)):
        if len({id(getattr(point, name)) for point in forecast.status.points}) == 1:
            continue
        parts = [*map(by_parts(partial(_texts_of, name), name), forecast.status.points)]
        distinct = {id(part): part for part in parts}.values()
        for key in dict.fromkeys(key for part in distinct for key in part if key != "model.name"):
            if len({part[key] for part in distinct if key in part}) > 1:
                found[key] = [part.get(key, "") for part in parts]
    return found


def _texts_of(name: str, point: Point) -> dict[str, str]:
    """The keys of one part of a point as the store keeps them."""
    heads = point.workload.keys() if name == "workload" else (name,)
    return {key: text for key, text in row_of(point).items() if key.partition(".")[0] in heads}


def _axis_table(forecast: Forecast, axes: Mapping[str, Sequence[str]]) -> Table:
    table = table_of("axis", "value", "points", "done", "too large", "to measure", "expected", "95%")
    for key, values in axes.items():
        levels = sorted({*values} - {""}, key=_natural)
        if len(levels) > _MOST_LEVELS:
            table.add_row(key, f"{levels[0]} .. {levels[-1]}, {len(levels)} values")
            continue
        for level in levels:
            chosen = np.array(values, dtype=str) == level
            table.add_row(key if level == levels[0] else "", level, *_summary(forecast, chosen))
    return table


def _natural(text: str) -> tuple[int, float, str]:
    """Numbers in their order, then words in theirs."""
    try:
        return 0, float(text), ""
    except ValueError:
        return 1, 0.0, text


def _summary(forecast: Forecast, chosen: NDArray[np.bool_]) -> list[str]:
    """The cells of some of the points: how many there are and in which state, and their expected time."""
    states = forecast.status.states[chosen]
    numbers = (len(states), *(int((states == name).sum()) for name in ("done", "oom_predicted", "missing")))
    some = forecast.seconds[chosen[forecast.where]]
    times = _quantiles(forecast.weight * some.sum(axis=0)) if len(some) else ["-", ""]
    return [*(f"{number:,}" for number in numbers), *times]


def _host_table(forecast: Forecast, hosts: Sequence[int], chunk: int | None) -> Table:
    table = table_of("hosts", "wall time", "95%", "times faster")
    single = forecast.wall(1, chunk)
    for count in hosts:
        wall = forecast.wall(count, chunk)
        table.add_row(str(count), *_quantiles(wall), f"{np.median(single / wall):.1f}")
    table.title = f"tasks of {counted(chunk, 'point')} each" if chunk else None
    return table


def table_of(*headings: str) -> Table:
    """A table without lines, whose first column stands to the left and the others to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _quantiles(draws: Array) -> list[str]:
    """Median and 95% interval of draws of a duration."""
    low, middle, high = np.quantile(draws, [0.025, 0.5, 0.975])
    return [duration(middle), f"{duration(low)} .. {duration(high)}"]


def duration(seconds: float) -> str:
    """A duration in its two largest units: 2 d 3 h, 3 h 20 min, 5 min 12 s, 41 s."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 6000:
        count, ratio, large, small = round(seconds), 60, "min", "s"
    elif seconds < 48 * 3600:
        count, ratio, large, small = round(seconds / 60), 60, "h", "min"
    else:
        count, ratio, large, small = round(seconds / 3600), 24, "d", "h"
    whole, rest = divmod(count, ratio)
    return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"


def write_points(forecast: Forecast, path: Path, more: Mapping[int, Mapping[str, float]] | None = None) -> None:
    """Write a row a point: its keys, costs, status, expected times, and `more` numbers by its index; raises ConfigError
    where it cannot."""
    more = more or {}
    shapes = {(type(p.model), type(p.data), type(p.workload)): p for p in forecast.status.points}
    indices = range(len(forecast.status.points))
    further = dict.fromkeys(key for row in more.values() for key in row)
    columns = dict.fromkeys([*_COLUMNS, *(key for point in shapes.values() for key in row_of(point)), *further])
    with whole_file(path, "plan.out") as making, making.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(columns), restval="")
        writer.writeheader()
        for first in indices[::MOST_POINTS]:
            for index, row in _rows(forecast, indices[first : first + MOST_POINTS]):
                writer.writerow({**row, **{name: f"{value:.6g}" for name, value in more.get(index, {}).items()}})


def _rows(forecast: Forecast, indices: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Of each point its index and its row."""
    status, names = forecast.status, ("low", "expected", "high")
    where = [index for index in indices if status.to_run[index]]
    times = forecast.times_of(where)
    seconds, steps = (np.quantile(draws, [0.025, 0.5, 0.975], axis=1).T for draws in (times.seconds, 1e3 * times.step))
    ends = times.timed_out.mean(axis=1) > LIKELY
    places = {index: place for place, index in enumerate(where)}
    for index in indices:
        point, place = status.points[index], places.get(index)
        # A point that needs no measuring takes no time and has no step to expect.
        shown = ["0.000"] * 3 if place is None else [f"{value:.3f}" for value in seconds[place]]
        step = [""] * 3 if place is None else [f"{value:.6g}" for value in steps[place]]
        row = {
            "name": run_name(point),
            "family": point.model.name,
            "status": status.status[index],
            "outcome": status.outcomes[index] if place is None or not ends[place] else "timeout",
            **{f"{name}_seconds": text for name, text in zip(names, shown, strict=True)},
            **{f"{name}_step_ms": text for name, text in zip(names, step, strict=True)},
            **{name: int(status.costs[name][index]) for name in _COSTS},
            **row_of(point),
        }
        yield index, row
