"""A plan's outlook in the terminal, and as a CSV file with a row a point."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from paradnn.errors import StoreError
from paradnn.forecast.forecast import Outlook
from paradnn.record.record import run_name

__all__ = ["describe", "interval", "span", "write_points"]

Array = NDArray[np.float64]

#: An axis of more values than this is told by its ends.
_MOST_VALUES = 12
#: Keys of a point that are no axis of the design space.
_NO_AXES = ("model.name",)
_COSTS = ("parameters", "forward_flops", "flops_per_step", "bytes_per_step", "memory_lower_bound_bytes")


def span(seconds: float) -> str:
    """A duration in its two largest units: 2 d 3 h, 3 h 20 min, 5 min 12 s, 41 s."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    for small, large, ratio, size in (("s", "min", 60, 1), ("min", "h", 60, 60), ("h", "d", 24, 3600)):
        count = round(seconds / size)
        if count < (100 * ratio if large == "min" else 48 * ratio) or large == "d":
            whole, rest = divmod(count, ratio)
            return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"
    return ""


def interval(draws: Array) -> str:
    """The median of draws of a duration with its 95% interval."""
    low, middle, high = np.quantile(draws, [0.025, 0.5, 0.975])
    return f"{span(middle)} (95%: {span(low)} .. {span(high)})"


def describe(outlook: Outlook, name: str, where: str, hosts: Sequence[int], chunk: int | None) -> None:
    """Print counts, expected times by family and axis, and the wall time for each number of hosts."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    for line in _head(outlook, name, where):
        console.print(line, soft_wrap=True, markup=False)
    console.print()
    console.print(_families(outlook))
    if axes := list(_axes(outlook)):
        console.print()
        console.print(_axis_table(outlook, axes))
    console.print()
    if outlook.open.any():
        for line in _times(outlook):
            console.print(line, soft_wrap=True, markup=False)
        console.print(_host_table(outlook, hosts, chunk))
        console.print("Reckoned for hosts like this one with nothing else running on them.", style="dim")
    else:
        console.print("Nothing is left to measure.")


def _head(outlook: Outlook, name: str, where: str) -> Iterator[str]:
    survey = outlook.survey
    counts = Counter(survey.status)
    yield f"{name}; the store is {where}"
    known = ", ".join(f"{family} {count:,}" for family, count in outlook.runs.items() if family)
    others = outlook.runs.get("", 0)
    base = [f"{known} in this environment"] if known else []
    base += [f"{others:,} in others on this machine"] if others else []
    yield f"  knows        {' and '.join(base) or 'no runs on this machine: the cost model alone speaks'}"
    done = Counter(outcome for status, outcome in zip(survey.status, outlook.outcomes, strict=True) if status == "done")
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in done.most_common())
    yield f"  done         {counts['done']:,}" + (f" ({told})" if told else "")
    if counts["repeated"]:
        yield f"  named twice  {counts['repeated']:,}"
    limits = " and ".join(f"{limit / 2**30:.1f} GiB" for limit in survey.limits)
    yield f"  too large    {counts['oom_predicted']:,} by arithmetic; a point may take {limits} now"
    late = sum(outcome == "timeout" for outcome, is_open in zip(outlook.outcomes, outlook.open, strict=True) if is_open)
    yield f"  to measure   {counts['missing']:,}" + (f", of which {late:,} are likely to time out" if late else "")
    for stack in survey.unmade:
        yield f"  The software stack {stack} is not made yet: nothing is known of its points, nor of its making's time."


def _times(outlook: Outlook) -> Iterator[str]:
    yield f"On one host: {interval(outlook.wall(1))}"
    total = sum(np.median(draws) for draws in outlook.phases.values())
    shares = sorted(outlook.phases.items(), key=lambda item: -np.median(item[1]))
    told = [f"{name} {np.median(draws) / total:.0%}" for name, draws in shares if np.median(draws) > 0.03 * total]
    if told:
        yield f"  goes to      {', '.join(told)}"
    if np.any(outlook.ceilings):
        yield f"  ceilings     {interval(outlook.ceilings)}, once: the store has none for this environment"
    yield ""


def _families(outlook: Outlook) -> Table:
    table = _table("family", "points", "done", "too large", "to measure", "expected", "95%")
    families = [point.model.name for point in outlook.survey.points]
    for family in dict.fromkeys(families):
        on = np.array([name == family for name in families], dtype=bool)
        table.add_row(family, *_counts(outlook, on), *_expected(outlook, on))
    if len(set(families)) > 1:
        everything = np.ones(len(families), dtype=bool)
        table.add_row("all", *_counts(outlook, everything), *_expected(outlook, everything))
    return table


def _axes(outlook: Outlook) -> Iterator[tuple[str, list[str]]]:
    """The keys that the points differ in, each with the points' values as text ("" where a point lacks the key)."""
    rows = outlook.survey.rows
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(key, "") for row in rows]
        if key not in _NO_AXES and len(set(values) - {""}) > 1:
            yield key, values


def _axis_table(outlook: Outlook, axes: Sequence[tuple[str, list[str]]]) -> Table:
    table = _table("axis", "value", "points", "done", "too large", "to measure", "expected", "95%")
    for key, values in axes:
        levels = sorted(set(values) - {""}, key=_natural)
        if len(levels) > _MOST_VALUES:
            table.add_row(key, f"{levels[0]} .. {levels[-1]}, {len(levels)} values")
            continue
        for index, level in enumerate(levels):
            on = np.array([value == level for value in values], dtype=bool)
            table.add_row(key if index == 0 else "", level, *_counts(outlook, on), *_expected(outlook, on))
    return table


def _host_table(outlook: Outlook, hosts: Sequence[int], chunk: int | None) -> Table:
    table = _table("hosts", "wall time", "95%", "times faster")
    single = outlook.wall(1, chunk)
    for count in hosts:
        wall = outlook.wall(count, chunk)
        table.add_row(str(count), *_quantiles(wall), f"{np.median(single / wall):.1f}")
    table.title = f"tasks of {chunk} points each" if chunk else None
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _counts(outlook: Outlook, on: NDArray[np.bool_]) -> list[str]:
    counts = Counter(status for status, chosen in zip(outlook.survey.status, on, strict=True) if chosen)
    return [f"{int(on.sum()):,}", *(f"{counts[name]:,}" for name in ("done", "oom_predicted", "missing"))]


def _expected(outlook: Outlook, on: NDArray[np.bool_]) -> list[str]:
    if not (on & outlook.open).any():
        return ["-", ""]
    return _quantiles(outlook.seconds[on].sum(axis=0))


def _quantiles(draws: Array) -> list[str]:
    low, middle, high = np.quantile(draws, [0.025, 0.5, 0.975])
    return [span(middle), f"{span(low)} .. {span(high)}"]


def write_points(outlook: Outlook, path: Path) -> None:
    """Write a row a point: its keys, costs, status, and expected times; raises StoreError where it cannot."""
    rows = list(_rows(outlook))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    try:
        with path.open("w", newline="") as handle:
            writer = csv.DictWriter(handle, fieldnames=columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise StoreError(f"plan.out={path}: cannot be written ({error.strerror}); give another") from None


def _rows(outlook: Outlook) -> Iterator[Mapping[str, Any]]:
    survey = outlook.survey
    # A point that needs no measuring takes no time and has no step to expect.
    low, middle, high = np.quantile(outlook.seconds, [0.025, 0.5, 0.975], axis=1)
    steps = np.quantile(outlook.step, [0.025, 0.5, 0.975], axis=1).T * 1e3
    for index, point in enumerate(survey.points):
        costs = survey.costs[index]
        is_open = survey.status[index] in ("missing", "oom_predicted")
        expected = {
            "expected_step_ms": steps[index][1],
            "low_step_ms": steps[index][0],
            "high_step_ms": steps[index][2],
        }
        yield {
            "name": run_name(point),
            "family": point.model.name,
            "status": survey.status[index],
            "outcome": outlook.outcomes[index],
            "expected_seconds": f"{middle[index]:.3f}",
            "low_seconds": f"{low[index]:.3f}",
            "high_seconds": f"{high[index]:.3f}",
            **{key: f"{value:.6g}" if is_open else "" for key, value in expected.items()},
            **{name: getattr(costs, name) for name in _COSTS},
            **survey.rows[index],
        }


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), ""
    except ValueError:
        return 1, 0.0, text
