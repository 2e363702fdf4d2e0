"""The points of a sweep against a store, before any prediction: what is done, what is out of memory by arithmetic."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point, Settings
from paradnn.forecast.history import History
from paradnn.forecast.regression import Array
from paradnn.forecast.table import Rates, cost_columns
from paradnn.platform.environment import Environment, describe_environment, memory_limit
from paradnn.platform.specifications import find_hardware
from paradnn.session.environments import current_environments
from paradnn.session.hardware_peaks import Ceilings, below_ceilings, ceilings_identity
from paradnn.session.workers import WorkerKey
from paradnn.store.runs import Finished, ResumePolicy, first_accepted, outcome_of

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
    status: NDArray[np.str_]
    outcomes: Sequence[str]
    costs: Mapping[str, Array]
    environments: Sequence[Environment]
    workers: Sequence[WorkerKey]
    unmade: Sequence[str]
    limits: Sequence[int]
    ceilings: Mapping[Identity, Ceilings | None]

    @cached_property
    def to_run(self) -> NDArray[np.bool_]:
        """(points,) which are still to be run, if only to be recorded as out of memory."""
        return np.isin(self.status, ("missing", "oom_predicted"))

    @cached_property
    def identities(self) -> list[Identity]:
        """Of which measurement each is, where it would be measured."""
        pairs = zip(self.points, self.environments, strict=True)
        return [Identity(point_id(point), place.environment_id, point.replicate) for point, place in pairs]


def sweep_status(points: Sequence[Point], settings: Settings, history: History) -> SweepStatus:
    """How `points` stand, by the rules of a session that would measure them now.

    Raises ParadnnError as the session would before its first point.
    """
    points = list(points)
    workers = _workers(points)
    samples = {id(key): (key, point) for key, point in zip(workers, points, strict=True)}.values()
    made = current_environments(point for _, point in samples)
    # A stack that is not made: this machine, with software that no run has.
    places = {
        key: environment or describe_environment(key.platform, {"stack": f"not made: {key.python}"})
        for key, environment in made.items()
    }
    of_worker = {id(key): (places[key], places[key].environment_id) for key, _ in samples}
    # An unmade stack has no environment yet, and so no runs.
    known = history.finished({places[key].environment_id for key, environment in made.items() if environment})
    # One look at the free memory for all that take what is free.
    limits = {limit: memory_limit(point) for limit, point in {p.measure.memory_limit: p for p in points}.items()}
    costs = cost_columns(points)
    policy, seen = ResumePolicy(settings.resume, settings.retry), defaultdict[tuple[str, int], set[str]](set)
    states: list[tuple[str, str]] = []
    for point, worker, bound in zip(points, workers, costs["memory_lower_bound_bytes"].tolist(), strict=True):
        name, (_, place) = point_id(point), of_worker[id(worker)]
        others = seen[place, point.replicate]
        runs = known.get(Identity(name, place, point.replicate), ()) if known and policy.looks else ()
        limit = limits[point.measure.memory_limit] * point.hosts if point.measure.predict_oom else math.inf
        if done := first_accepted(point, runs, policy):
            states.append(("done", done.tags["outcome"]))
        elif name in others:
            states.append(("repeated", ""))
        elif point.platform.name == "cpu" and bound > limit:  # `paradnn.platform.environment.exceeds_memory`
            states.append(("oom_predicted", "oom_predicted"))
        else:
            states.append(("missing", "ok"))
        others.add(name)
    return SweepStatus(
        points=points,
        status=np.array([status for status, _ in states], dtype="U13"),
        outcomes=[outcome for _, outcome in states],
        costs=costs,
        environments=[of_worker[id(worker)][0] for worker in workers],
        workers=workers,
        unmade=sorted({point.software.name for key, point in samples if not made[key]}),
        limits=sorted(set(limits.values())),
        ceilings=_ceilings(points, workers, costs["flops_per_step"], places, known, history),
    )


def _ceilings(
    points: Sequence[Point],
    workers: Sequence[WorkerKey],
    flops: Array,
    places: Mapping[WorkerKey, Environment],
    known: Mapping[Identity, Sequence[Finished]],
    history: History,
) -> dict[Identity, Ceilings | None]:
    # Few points differ in what ceilings depend on; what only sends is below none.
    below = {
        (id(worker), point.devices): (point, places[worker])
        for point, worker, each in zip(points, workers, flops, strict=True)
        if below_ceilings(point, each)
    }
    ceilings: dict[Identity, Ceilings | None] = {}
    for identity in (ceilings_identity(point, environment) for point, environment in below.values()):
        run = next((run for run in known.get(identity, ()) if outcome_of(run.tags) == "ok"), None)
        ceilings[identity] = Ceilings.of(run.run_id, history.metrics(run.run_id)) if run else None
    return ceilings


def _workers(points: Sequence[Point]) -> list[WorkerKey]:
    """The worker that measures each point: one object for those whose parts are the same objects."""
    known: dict[tuple[int, ...], WorkerKey] = {}
    keys = [(id(point.software), id(point.framework), id(point.platform)) for point in points]
    for key, point in zip(keys, points, strict=True):
        if key not in known:
            known[key] = WorkerKey.of(point)
    return [known[key] for key in keys]


def rates_of(status: SweepStatus) -> Rates:
    """What devices can do at most, those of past runs too: measured ceilings, else the specification, else a guess."""
    kinds: dict[str, tuple[str, int]] = {}
    measured: dict[tuple[str, str], Ceilings] = {}
    pairs = zip(status.workers, status.environments, strict=True)
    for worker, environment in {(id(one), id(other)): (one, other) for one, other in pairs}.values():
        kinds[environment.device] = (worker.platform, int(environment.hardware["cores"]))
        for identity, ceilings in status.ceilings.items():
            if ceilings and identity.environment_id == environment.environment_id:
                measured.setdefault((environment.device, worker.framework), ceilings)
                measured.setdefault((environment.device, ""), ceilings)

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
