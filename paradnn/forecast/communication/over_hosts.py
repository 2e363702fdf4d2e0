"""A training step over numbers of hosts, on paper: its own time as past runs predict it, its messages as measured.

Every host has one device and is like this one; the channel's link is each host's own (`data_parallel`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from paradnn.errors import ConfigError, NotEnoughData
from paradnn.families import FAMILIES
from paradnn.forecast.communication.channels import channels
from paradnn.forecast.communication.data_parallel import Exchange, Link
from paradnn.forecast.communication.link import FittedLink, RingCheck, check_rings, choose_channel, link_of
from paradnn.forecast.forecast import MOST_RUNS
from paradnn.forecast.history import History, Past
from paradnn.forecast.past_runs import PastRuns
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import Array
from paradnn.forecast.status import SweepStatus, rates_of
from paradnn.forecast.table import table_of_points
from paradnn.store.runs import LATER_PARAMS

if TYPE_CHECKING:
    import pandas as pd

    from paradnn.config.point import Point

__all__ = ["SCALINGS", "HostStep", "OverHosts", "over_hosts"]

Scaling = Literal["weak", "strong"]
SCALINGS: tuple[Scaling, ...] = ("weak", "strong")
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

    def columns(self, index: int) -> dict[str, float]:
        """Of one point the medians of its step in ms and its efficiency on every number of hosts; none if left out."""
        found = {}
        for step in self._by_point.get(index, ()):
            end = f"{step.scaling}_{step.hosts}"
            found[f"step_ms_{end}"] = float(np.median(step.seconds)) * 1e3
            found[f"efficiency_{end}"] = float(np.median(step.efficiency))
        return found

    @cached_property
    def _by_point(self) -> Mapping[int, Sequence[HostStep]]:
        steps = sorted(self.steps, key=lambda step: step.index)
        return {index: list(own) for index, own in itertools.groupby(steps, key=lambda step: step.index)}


def over_hosts(status: SweepStatus, history: History, hosts: Sequence[int], exchange: Exchange) -> OverHosts:
    """The points of `status` that train on one device, on each number of `hosts`.

    ConfigError where none does, or the store has no such channel.
    """
    left_out = ("repeated", "oom_predicted")
    states = zip(status.points, status.status, strict=True)
    where = [index for index, (point, state) in enumerate(states) if _is_training(point) and state not in left_out]
    if not where:
        reason = "none of these points is a training step on one device"
        raise ConfigError(_KEY, exchange.channel, reason, "plan some, with mode=train devices=1")
    link, checks = _measured(status, history, exchange.channel)
    # The batch of one host; the one with most to do is waited for.
    parts = {
        (index, scaling, count): batch if scaling == "weak" else -(-batch // count)
        for index in where
        for batch in (status.points[index].batch_size,)
        for scaling in SCALINGS
        for count in hosts
        if scaling == "weak" or count <= batch
    }
    wanted = {(index, part) for (index, _, _), part in parts.items()}
    wanted |= {(index, status.points[index].batch_size) for index in where}
    alone = _alone(status, history, sorted(wanted))
    drawn = _drawn(link)
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
    layered = not FAMILIES[point.model.name].is_kernel
    return layered and point.workload.mode == "train" and point.devices == 1 and point.workload.repeatable


def _alone(status: SweepStatus, history: History, wanted: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], Array]:
    """Point and batch -> (draws,) seconds of the step on one device."""
    rates = rates_of(status)
    points = [replace(status.points[index], batch_size=batch) for index, batch in wanted]
    environments = [status.environments[index] for index, _ in wanted]
    devices = {environment.device for environment in environments}
    model = StepTimeModel.fit(PastRuns.of(history.past(devices, MOST_RUNS), rates))
    table = table_of_points(
        points, [place.environment_id for place in environments], [place.device for place in environments], rates
    )
    seconds = np.exp(model.predict(table).draws(_DRAWS, np.random.default_rng(1)))
    return dict(zip(wanted, seconds, strict=True))


def _measured(status: SweepStatus, history: History, name: str) -> tuple[FittedLink, tuple[RingCheck, ...]]:
    """The channel of that name as a link, and how it holds on other numbers of processes."""
    try:
        found = channels(_frame(history.messages()))
    except NotEnoughData as error:
        raise ConfigError(_KEY, name, f"{history.where} has none", str(error)) from None
    here = {environment.device for environment in status.environments}
    chosen = choose_channel(found, name, _KEY, here)
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


def _drawn(link: FittedLink) -> Link:
    """Bytes -> (draws,) seconds: one error of the fitted line a draw, at every size."""
    errors = np.random.default_rng(2).standard_normal(_DRAWS)

    def seconds(size: float) -> Array:
        middle, low, high = (end(size) for end in link.links)
        return np.asarray(np.maximum(middle + errors * (high - low) / (2 * _END), 0.0))

    return seconds
