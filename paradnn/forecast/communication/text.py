"""Steps over numbers of hosts in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from rich.table import Table

from paradnn.cli.console import standard_output
from paradnn.core.words import counted
from paradnn.forecast.communication.over_hosts import SCALINGS, OverHosts, Scaling
from paradnn.forecast.regression import Array
from paradnn.forecast.status import SweepStatus
from paradnn.forecast.text import table_of

__all__ = ["describe_steps"]

_TITLES = {
    "weak": "Weak scaling: every host has the batch of its point",
    "strong": "Strong scaling: all hosts share the batch of a point",
}


def describe_steps(found: OverHosts, status: SweepStatus) -> None:
    """Print a table for weak and one for strong scaling, by family and number of hosts, and what it rests on."""
    console = standard_output()
    console.print()
    console.print(f"A training step over hosts of one device each, by {found.exchange.words}: on paper", markup=False)
    for scaling in SCALINGS:
        console.print()
        console.print(_table(found, status, scaling))
    console.print()
    for line in _reservations(found):
        console.print(line, style="dim", soft_wrap=True, markup=False)


def _table(found: OverHosts, status: SweepStatus, scaling: Scaling) -> Table:
    """Of several points of a family the median over them, in each draw."""
    table = table_of("family", "points", "hosts", "step", "95%", "speed kept", "95%", "waits")
    table.title = _TITLES[scaling]
    families = dict.fromkeys(status.points[step.index].model.name for step in found.steps)
    for family in families:
        steps = [
            step for step in found.steps if step.scaling == scaling and status.points[step.index].model.name == family
        ]
        name = family
        for count in sorted({step.hosts for step in steps}):
            own = [step for step in steps if step.hosts == count]
            seconds, efficiency, waiting = (
                np.median([getattr(step, what) for step in own], axis=0)
                for what in ("seconds", "efficiency", "waiting")
            )
            step_time, speed = _quantiles(1e3 * seconds, _milliseconds), _quantiles(efficiency, "{:.0%}".format)
            table.add_row(name, str(len(own)), f"{count:,}", *step_time, *speed, f"{np.median(waiting):.0%}")
            name = ""
    return table


def _quantiles(draws: Array, told: Callable[[float], str]) -> list[str]:
    low, middle, high = (told(value) for value in np.quantile(draws, [0.025, 0.5, 0.975]))
    return [middle, f"{low} .. {high}"]


def _milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _reservations(found: OverHosts) -> Iterator[str]:
    yield "Speed kept is that of a host as a share of one alone; waits is the share of the step in which it waits"
    yield "for gradients. Every host is like this one, with a link of its own; none is late."
    for check in found.checks:
        small, large = (f"{ratio:.2f} times as long at {size:,.0f} B" for size, ratio in check.ratios)
        yield f"On {check.processes} processes {check.channel} takes {small} and {large} as predicted."
    if found.largest > found.link.largest:
        yield (
            f"Messages of up to {found.largest:,.0f} B are asked for, the channel was measured to "
            f"{found.link.largest:,.0f} B: its last line is drawn on."
        )
    if found.too_many:
        yield f"Left out of strong scaling: {counted(found.too_many, 'step')} with fewer examples than hosts."
