"""The points of a sweep against a store, before any prediction: what is done, what is out of memory by arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradnn.config.costs import costs_of
from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point, Settings
from paradnn.execution.environments import current_environments
from paradnn.execution.worker_key import WorkerKey
from paradnn.families.layers import Costs
from paradnn.forecast.history import History
from paradnn.forecast.table import Rates
from paradnn.platform.environment import Environment, describe_environment
from paradnn.platform.memory import exceeds_memory, memory_limit
from paradnn.platform.specifications import find_hardware
from paradnn.session.hardware_peaks import Ceilings, below_ceilings, ceilings_identity
from paradnn.store.resume import ResumePolicy, first_accepted, point_statuses
from paradnn.store.runs import Finished
from paradnn.store.schema import outcome_of

__all__ = ["SweepStatus", "rates_of", "sweep_status"]

#: FLOP/s and B/s where nothing is known: of a CPU's core, of another device.
_UNKNOWN = {"cpu": (5e10, 1e10), "gpu": (1e13, 5e11), "tpu": (5e13, 6e11)}


@dataclass(frozen=True)
class SweepStatus:
    """Points in the order of the sweep, with an entry each in the columns.

    identities: of which measurement each is. status: done, repeated, oom_predicted or missing. outcomes: the stored
    one, or the one that arithmetic expects. unmade: software stacks that would be made first. limits: bytes that points
    may take. ceilings: the measured ones of every environment with points below them, None where there are none.
    """

    points: Sequence[Point]
    identities: Sequence[Identity]
    status: Sequence[str]
    outcomes: Sequence[str]
    costs: Sequence[Costs]
    environments: Sequence[Environment]
    workers: Sequence[WorkerKey]
    unmade: Sequence[str]
    limits: Sequence[int]
    ceilings: Mapping[Identity, Ceilings | None]

    @property
    def to_run(self) -> NDArray[np.bool_]:
        """(points,) which are still to be run, if only to be recorded as out of memory."""
        return np.array([status in ("missing", "oom_predicted") for status in self.status], dtype=bool)


def sweep_status(points: Sequence[Point], settings: Settings, history: History) -> SweepStatus:
    """How `points` stand, by the rules of a session that would measure them now.

    Raises ParadnnError as the session would before its first point.
    """
    made = current_environments(points)
    places = {key: environment or _unmade(key) for key, environment in made.items()}
    workers = [WorkerKey.of(point) for point in points]
    # An unmade stack has no environment yet, and so no runs.
    known = history.finished({places[key].environment_id for key, environment in made.items() if environment})
    costs = [costs_of(point) for point in points]
    # One look at the free memory for all that take what is free.
    limits = {limit: memory_limit(point) for limit, point in {p.measure.memory_limit: p for p in points}.items()}
    policy = ResumePolicy(settings.resume, settings.retry)

    def identity_of(point: Point) -> Identity:
        return Identity(point_id(point), places[WorkerKey.of(point)].environment_id, point.replicate)

    def done_of(point: Point, identity: Identity) -> Finished | None:
        return first_accepted(point, known.get(identity, ()), policy) if policy.looks else None

    states, found = [], list(point_statuses(points, identity_of, done_of))
    for point_status, cost in zip(found, costs, strict=True):
        if point_status.done:
            states.append(("done", point_status.done.tags["outcome"]))
        elif point_status.repeated:
            states.append(("repeated", ""))
        elif exceeds_memory(point_status.point, cost, limits[point_status.point.measure.memory_limit]):
            states.append(("oom_predicted", "oom_predicted"))
        else:
            states.append(("missing", "ok"))
    environments = [places[key] for key in workers]
    return SweepStatus(
        points=points,
        identities=[point_status.identity for point_status in found],
        status=[status for status, _ in states],
        outcomes=[outcome for _, outcome in states],
        costs=costs,
        environments=environments,
        workers=workers,
        unmade=sorted({point.software.name for point, key in zip(points, workers, strict=True) if not made[key]}),
        limits=sorted(set(limits.values())),
        ceilings=_ceilings(points, costs, environments, known, history),
    )


def _unmade(key: WorkerKey) -> Environment:
    """A stack that is not made: this machine, with software that no run has."""
    return describe_environment(key.platform, {"stack": f"not made: {key.python}"})


def _ceilings(
    points: Sequence[Point],
    costs: Sequence[Costs],
    environments: Sequence[Environment],
    known: Mapping[Identity, Sequence[Finished]],
    history: History,
) -> dict[Identity, Ceilings | None]:
    # Few points differ in what ceilings depend on.
    distinct = {
        (WorkerKey.of(point), point.platform, point.devices, environment.environment_id): (point, environment)
        for point, cost, environment in zip(points, costs, environments, strict=True)
        if below_ceilings(cost)
    }
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
    for point, environment in zip(status.points, status.environments, strict=True):
        kinds[environment.device] = (point.platform.name, int(environment.hardware["cores"]))
        places[environment.environment_id] = (environment.device, point.framework.name)
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
