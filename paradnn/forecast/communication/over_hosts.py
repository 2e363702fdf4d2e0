"""A training step over numbers of hosts, on paper: its own time as past runs predict it, its messages as measured.

Every host has one device and is like this one; the channel's link is each host's own (`data_parallel`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.table import Table

from paradnn.cli.console import standard_output
from paradnn.core.words import counted
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.families import FAMILIES
from paradnn.forecast.communication.channels import (
    FittedLink,
    RingCheck,
    channels,
    check_rings,
    choose_channel,
    link_of,
)
from paradnn.forecast.communication.data_parallel import Exchange
from paradnn.forecast.forecast import MOST_RUNS, table_of
from paradnn.forecast.history import History, Past
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import Array
from paradnn.forecast.status import SweepStatus, rates_of
from paradnn.forecast.table import PastRuns, table_of_points
from paradnn.store.runs import LATER_PARAMS

if TYPE_CHECKING:
    import pandas as pd

    from paradnn.config.point import Point

Scaling = Literal["weak", "strong"]
_TITLES: Mapping[Scaling, str] = {
    "weak": "Weak scaling: every host has the batch of its point",
    "strong": "Strong scaling: all hosts share the batch of a point",
}
_KEY = "plan.channel"
_DRAWS = 400
#: Standard deviations from the middle of a normal distribution to the end of its 95% interval.
_END = 1.96


@dataclass(frozen=True)
class HostStep:
    """A point on so many hosts: `index` of the point, weak (every host has its batch) or strong (all share it).

    seconds: (draws,) of the step. efficiency: (draws,) speed as a share of `hosts` times one host's. waiting: (draws,)
    share of the step in which the device waits for gradients.
    """

    index: int
    scaling: Scaling
    hosts: int
    seconds: Array
    efficiency: Array
    waiting: Array


@dataclass(frozen=True)
class OverHosts:
    """`largest`: bytes of the largest message. checks: the channel on other numbers of processes. too_many: points and
    numbers of hosts left out of strong scaling, for some host would have had no example."""

    link: FittedLink
    exchange: Exchange
    steps: tuple[HostStep, ...]
    largest: float
    checks: tuple[RingCheck, ...]
    too_many: int

    def columns(self) -> dict[int, dict[str, float]]:
        """Index of each point -> the medians of its step in ms and its efficiency on every number of hosts."""
        found: dict[int, dict[str, float]] = {}
        for step in self.steps:
            end, row = f"{step.scaling}_{step.hosts}", found.setdefault(step.index, {})
            row[f"step_ms_{end}"] = float(np.median(step.seconds)) * 1e3
            row[f"efficiency_{end}"] = float(np.median(step.efficiency))
        return found


def over_hosts(status: SweepStatus, history: History, hosts: Sequence[int], exchange: Exchange) -> OverHosts:
    """The points of `status` that train on one device, on each number of `hosts`.

    ConfigError where none does, or the store has no such channel.
    """
    where = [
        index
        for index, (point, state) in enumerate(zip(status.points, status.status, strict=True))
        if _is_training(point) and state in ("done", "missing")
    ]
    if not where:
        reason = "none of these points is a training step on one device"
        raise ConfigError(_KEY, exchange.channel, reason, "plan some, with mode=train devices=1")
    link, checks = _measured(status, history, exchange.channel)
    # The batch of one host; the one with most to do is waited for.
    parts = {
        (index, scaling, count): batch if scaling == "weak" else -(-batch // count)
        for index in where
        for batch in (status.points[index].batch_size,)
        for scaling in _TITLES
        for count in hosts
        if scaling == "weak" or count <= batch
    }
    wanted = {(index, part) for (index, _, _), part in parts.items()}
    alone = _alone(status, history, sorted(wanted | {(index, status.points[index].batch_size) for index in where}))
    errors = np.random.default_rng(2).standard_normal(_DRAWS)  # of the fitted line: one a draw, at every size

    def drawn(size: float) -> Array:
        middle, low, high = (end(size) for end in link.links)
        return np.asarray(np.maximum(middle + errors * (high - low) / (2 * _END), 0.0))

    steps, largest = [], 0.0
    for (index, scaling, count), part in parts.items():
        layers = status.points[index].model.layer_work()
        step = exchange.step(layers, alone[index, part], count, drawn)
        whole = alone[index, status.points[index].batch_size] / (1 if scaling == "weak" else count)
        waiting = 1 - step.computing / step.overlapped
        steps.append(HostStep(index, scaling, count, step.overlapped, whole / step.overlapped, waiting))
        largest = max(largest, exchange.largest_message(layers, count))
    return OverHosts(link, exchange, tuple(steps), largest, checks, 2 * len(where) * len(hosts) - len(parts))


def _is_training(point: Point) -> bool:
    layered = FAMILIES[point.model.name].has_layers
    return layered and point.workload.mode == "train" and point.devices == 1 and point.workload.repeatable


def _alone(status: SweepStatus, history: History, wanted: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], Array]:
    """Point and batch -> (draws,) seconds of the step on one device."""
    rates = rates_of(status)
    points = [replace(status.points[index], batch_size=batch) for index, batch in wanted]
    places = [status.environments[index] for index, _ in wanted]
    ids, devices = [place.environment_id for place in places], [place.device for place in places]
    model = StepTimeModel.fit(PastRuns.of(history.past({*devices}, MOST_RUNS), rates))
    table = table_of_points(points, ids, devices, rates)
    seconds = np.exp(model.predict(table).draws(_DRAWS, np.random.default_rng(1)))
    return dict(zip(wanted, seconds, strict=True))


def _measured(status: SweepStatus, history: History, name: str) -> tuple[FittedLink, tuple[RingCheck, ...]]:
    """The channel of that name as a link, and how it holds on other numbers of processes."""
    try:
        found = channels(_frame(history.messages()))
    except NotEnoughData as error:
        raise ConfigError(_KEY, name, f"{history.where} has none", str(error)) from None
    chosen = choose_channel(found, name, _KEY, {environment.device for environment in status.environments})
    link = link_of(chosen)
    return link, check_rings(found, chosen, link)


def _frame(runs: Sequence[Past]) -> pd.DataFrame:
    """Runs as rows, their params typed, as fits of channels take them."""
    import pandas as pd

    rows = [
        {
            "run_id": run.run_id,
            **{name: run.tags.get(name) for name in ("device", "outcome", "sweep_id")},
            **run.metrics,
            **{key: _value(text) for key, text in {**LATER_PARAMS, **run.params}.items()},
        }
        for run in runs
    ]
    return pd.DataFrame(rows).convert_dtypes() if rows else pd.DataFrame({"outcome": []})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def describe_steps(found: OverHosts, status: SweepStatus) -> None:
    """Print a table for weak and one for strong scaling, by family and number of hosts, and what it rests on."""
    console = standard_output()
    console.print()
    console.print(f"A training step over hosts of one device each, by {found.exchange.words}: on paper", markup=False)
    for scaling in _TITLES:
        console.print()
        console.print(_table(found, status, scaling))
    console.print()
    for line in _reservations(found):
        console.print(line, style="dim", soft_wrap=True, markup=False)


def _table(found: OverHosts, status: SweepStatus, scaling: Scaling) -> Table:
    """Of several points of a family the median over them, in each draw."""
    table = table_of("family", "points", "hosts", "step", "95%", "speed kept", "95%", "waits")
    table.title = _TITLES[scaling]
    groups: dict[str, dict[int, list[HostStep]]] = {}
    for step in found.steps:
        counts = groups.setdefault(status.points[step.index].model.name, {})
        if step.scaling == scaling:
            counts.setdefault(step.hosts, []).append(step)
    for family, counts in groups.items():
        for place, (count, own) in enumerate(sorted(counts.items())):
            seconds, kept, waiting = (
                np.median([getattr(step, what) for step in own], axis=0)
                for what in ("seconds", "efficiency", "waiting")
            )
            step_time, speed = _quantiles(1e3 * seconds, _milliseconds), _quantiles(kept, "{:.0%}".format)
            words = (str(len(own)), f"{count:,}", *step_time, *speed, f"{np.median(waiting):.0%}")
            table.add_row("" if place else family, *words)
    return table


def _quantiles(draws: Array, shown: Callable[[float], str]) -> list[str]:
    low, middle, high = (shown(value) for value in np.quantile(draws, [0.025, 0.5, 0.975]))
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
