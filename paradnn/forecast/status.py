"""The points of a sweep against a store, before any prediction: what is done, what is out of memory by arithmetic."""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point, Settings
from paradnn.execution.environments import current_environments
from paradnn.execution.workers import WorkerKey
from paradnn.forecast.history import History
from paradnn.forecast.regression import Array
from paradnn.forecast.table import Rates, cost_columns
from paradnn.platform.environment import Environment, describe_environment, memory_limit
from paradnn.platform.specifications import find_hardware
from paradnn.session.hardware_peaks import Ceilings, below_ceilings, ceilings_identity
from paradnn.store.runs import Finished, ResumePolicy, first_accepted, outcome_of

Found = TypeVar("Found")
#: What decides which worker measures a point.
_WORKER = ("software", "framework", "platform")
#: A status and an outcome.
_MISSING, _TOO_LARGE, _REPEATED = ("missing", "ok"), ("oom_predicted", "oom_predicted"), ("repeated", "")
#: FLOP/s and B/s where nothing is known: of a CPU's core, of another device.
_UNKNOWN = {"cpu": (5e10, 1e10), "gpu": (1e13, 5e11), "tpu": (5e13, 6e11)}


@dataclass(frozen=True)
class SweepStatus:
    """Points in the order of the sweep, with an entry each in the columns.

    status: done, repeated, oom_predicted or missing. outcomes: the stored one, or the one that arithmetic expects.
    costs: of every field of `Costs`, (points,). unmade: software stacks that would be made first. limits: bytes that
    points may take. ceilings: the measured ones of every environment with points below them, None where there are none.
    """

    points: Sequence[Point]
    status: Sequence[str]
    outcomes: Sequence[str]
    costs: Mapping[str, Array]
    environments: Sequence[Environment]
    workers: Sequence[WorkerKey]
    unmade: Sequence[str]
    limits: Sequence[int]
    ceilings: Mapping[Identity, Ceilings | None]

    @cached_property
    def states(self) -> NDArray[np.str_]:
        """(points,) `status` as an array."""
        return np.array(self.status, dtype="U13")

    @cached_property
    def to_run(self) -> NDArray[np.bool_]:
        """(points,) which are still to be run, if only to be recorded as out of memory."""
        return np.isin(self.states, ("missing", "oom_predicted"))

    @cached_property
    def identities(self) -> list[Identity]:
        """Of which measurement each is."""
        return [identity_of(*pair) for pair in zip(self.points, self.environments, strict=True)]


def identity_of(point: Point, environment: Environment) -> Identity:
    """Of which measurement a point is where it would be measured."""
    return Identity(point_id(point), environment.environment_id, point.replicate)


def sweep_status(points: Sequence[Point], settings: Settings, history: History) -> SweepStatus:
    """How `points` stand, by the rules of a session that would measure them now.

    Raises ParadnnError as the session would before its first point.
    """
    workers = [*map(by_parts(WorkerKey.of, *_WORKER), points)]
    samples = {id(key): (key, point) for key, point in zip(workers, points, strict=True)}.values()
    made = current_environments(point for _, point in samples)
    places = {key: environment or _unmade(key) for key, environment in made.items()}
    environments = [*map(by_parts(lambda point: places[WorkerKey.of(point)], *_WORKER), points)]
    # An unmade stack has no environment yet, and so no runs.
    known = history.finished({places[key].environment_id for key, environment in made.items() if environment})
    # One look at the free memory for all that take what is free.
    limits = {limit: memory_limit(point) for limit, point in {p.measure.memory_limit: p for p in points}.items()}
    costs = cost_columns(points)
    large = _exceeding(points, costs["memory_lower_bound_bytes"], limits)
    policy, seen = ResumePolicy(settings.resume, settings.retry), defaultdict[tuple[str, int], set[str]](set)
    states: list[tuple[str, str]] = []
    ids = {id(place): place.environment_id for place in places.values()}
    for point, place, exceeds in zip(points, environments, large, strict=True):
        name, others = point_id(point), seen[ids[id(place)], point.replicate]
        runs = known.get(Identity(name, ids[id(place)], point.replicate), ()) if known and policy.looks else ()
        if done := first_accepted(point, runs, policy):
            states.append(("done", done.tags["outcome"]))
        elif name in others:
            states.append(_REPEATED)
        else:
            states.append(_TOO_LARGE if exceeds else _MISSING)
        others.add(name)
    return SweepStatus(
        points=points,
        status=[status for status, _ in states],
        outcomes=[outcome for _, outcome in states],
        costs=costs,
        environments=environments,
        workers=workers,
        unmade=sorted({point.software.name for key, point in samples if not made[key]}),
        limits=sorted(set(limits.values())),
        ceilings=_ceilings(points, costs["flops_per_step"], environments, known, history),
    )


def by_parts(make: Callable[[Point], Found], *names: str) -> Callable[[Point], Found]:
    """`make`, once for points whose parts of these names are the same objects; these are kept, so that they stay so."""
    known: dict[tuple[int, ...], tuple[Any, Found]] = {}

    def of(point: Point) -> Found:
        parts = [getattr(point, name) for name in names]
        key = tuple(map(id, parts))
        if key not in known:
            known[key] = parts, make(point)
        return known[key][1]

    return of


def _exceeding(points: Sequence[Point], bounds: Array, limits: Mapping[str | int, int]) -> NDArray[np.bool_]:
    """(points,) which are out of memory by arithmetic (`paradnn.platform.environment.exceeds_memory`)."""
    most = [limits[p.measure.memory_limit] * p.hosts if p.measure.predict_oom else math.inf for p in points]
    return np.array([point.platform.name == "cpu" for point in points]) & (bounds > np.array(most))


def _unmade(key: WorkerKey) -> Environment:
    """A stack that is not made: this machine, with software that no run has."""
    return describe_environment(key.platform, {"stack": f"not made: {key.python}"})


def _ceilings(
    points: Sequence[Point],
    flops: Array,
    environments: Sequence[Environment],
    known: Mapping[Identity, Sequence[Finished]],
    history: History,
) -> dict[Identity, Ceilings | None]:
    # Few points differ in what ceilings depend on; what only sends is below none.
    like = by_parts(lambda point: point, *_WORKER, "devices")
    under = [below_ceilings(point, each) for point, each in zip(points, flops, strict=True)]
    below = zip(map(like, itertools.compress(points, under)), itertools.compress(environments, under), strict=True)
    distinct = {(id(point), id(environment)): (point, environment) for point, environment in below}
    ceilings: dict[Identity, Ceilings | None] = {}
    for identity in (ceilings_identity(point, environment) for point, environment in distinct.values()):
        run = next((run for run in known.get(identity, ()) if outcome_of(run.tags) == "ok"), None)
        ceilings[identity] = Ceilings.of(run.run_id, history.metrics(run.run_id)) if run else None
    return ceilings


def rates_of(status: SweepStatus) -> Rates:
    """What devices can do at most, those of past runs too: measured ceilings, else the specification, else a guess."""
    kinds: dict[str, tuple[str, int]] = {}
    measured: dict[tuple[str, str], Ceilings] = {}
    places: dict[str, tuple[str, str]] = {}
    pairs = zip(status.workers, status.environments, strict=True)
    for worker, environment in {(id(one), id(other)): (one, other) for one, other in pairs}.values():
        kinds[environment.device] = (worker.platform, int(environment.hardware["cores"]))
        places[environment.environment_id] = (environment.device, worker.framework)
    for identity, ceilings in status.ceilings.items():
        if ceilings:
            device, framework = places[identity.environment_id]
            measured.setdefault((device, framework), ceilings)
            measured.setdefault((device, ""), ceilings)

    @functools.cache
    def rates(device: str, framework: str, precision: str) -> tuple[float, float, float]:
        kind, cores = kinds.get(device, ("cpu", 1))
        flops, traffic = (rate * (cores if kind == "cpu" else 1) for rate in _UNKNOWN[kind])
        if hardware := find_hardware(device):
            flops = hardware.peak_flops.get(precision) or hardware.peak_flops.get("float32") or flops
            traffic = hardware.bandwidth or traffic
        if ceilings := measured.get((device, framework)) or measured.get((device, "")):
            flops = ceilings.flops_per_second.get(precision) or flops
            traffic = ceilings.bytes_per_second or traffic
        return flops, traffic, float(cores)

    return rates
