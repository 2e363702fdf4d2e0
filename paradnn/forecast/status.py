"""A plan of points against a store, before any prediction: what is done, what is out of memory by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point, Settings
from paradnn.costs import Costs
from paradnn.costs.point import costs_of, exceeds_memory, memory_limit
from paradnn.execution.environments import environments_now
from paradnn.execution.worker_process import WorkerKey
from paradnn.forecast.history import History
from paradnn.forecast.table import row_of
from paradnn.hardware.environment import Environment, describe_environment
from paradnn.session.hardware_peaks import Ceilings, ceilings_identity
from paradnn.store.schema import outcome_of
from paradnn.tracking.base import Finished
from paradnn.tracking.resume import ResumePolicy, first_accepted, point_statuses

__all__ = ["Survey", "survey"]


@dataclass(frozen=True)
class Survey:
    """Points in the order of the sweep, with an entry each in the columns.

    rows: its keys as the store keeps them. status: done, repeated, oom_predicted or missing. outcomes: the stored one,
    or the one that arithmetic expects. unmade: software stacks that would be made first. limits: bytes that points may
    take. ceilings: the measured ones of every environment, None where there are none.
    """

    points: Sequence[Point]
    rows: Sequence[Mapping[str, str]]
    status: Sequence[str]
    outcomes: Sequence[str]
    costs: Sequence[Costs]
    environments: Sequence[Environment]
    workers: Sequence[WorkerKey]
    unmade: Sequence[str]
    limits: Sequence[int]
    ceilings: Mapping[Identity, Ceilings | None]


def survey(points: Sequence[Point], settings: Settings, history: History) -> Survey:
    """How `points` stand, by the rules of a session that would measure them now.

    Raises ParadnnError as the session would before its first point.
    """
    found = environments_now(points)
    places = {key: environment or _unmade(key) for key, environment in found.items()}
    workers = [WorkerKey.of(point) for point in points]
    environments = [places[key] for key in workers]
    # An unmade stack has no environment yet, and so no runs.
    known = history.finished({places[key].environment_id for key, environment in found.items() if environment})
    costs = _costs(points)
    # One look at the free memory for all that take what is free.
    limits = {limit: memory_limit(point) for limit, point in {p.measure.memory_limit: p for p in points}.items()}
    states = _states(points, environments, costs, limits, settings, known)
    return Survey(
        points=points,
        rows=[row_of(point) for point in points],
        status=[status for status, _ in states],
        outcomes=[outcome for _, outcome in states],
        costs=costs,
        environments=environments,
        workers=workers,
        unmade=sorted({point.software.name for point, key in zip(points, workers, strict=True) if not found[key]}),
        limits=sorted(set(limits.values())),
        ceilings=_ceilings(points, environments, known, history),
    )


def _states(
    points: Sequence[Point],
    environments: Sequence[Environment],
    costs: Sequence[Costs],
    limits: Mapping[str | int, int],
    settings: Settings,
    known: Mapping[Identity, Sequence[Finished]],
) -> list[tuple[str, str]]:
    """Status and outcome of every point."""
    policy = ResumePolicy(settings.resume, settings.retry)
    identities = {
        id(point): Identity(point_id(point), environment.environment_id, point.replicate)
        for point, environment in zip(points, environments, strict=True)
    }

    def done(point: Point, identity: Identity) -> Finished | None:
        return first_accepted(point, known.get(identity, ()), policy) if policy.looks else None

    statuses = point_statuses(points, lambda point: identities[id(point)], done)
    found = []
    for status, cost in zip(statuses, costs, strict=True):
        if status.done:
            found.append(("done", status.done.tags["outcome"]))
        elif status.repeated:
            found.append(("repeated", ""))
        elif exceeds_memory(status.point, cost, limits[status.point.measure.memory_limit]):
            found.append(("oom_predicted", "oom_predicted"))
        else:
            found.append(("missing", "ok"))
    return found


def _costs(points: Sequence[Point]) -> list[Costs]:
    """The costs of every point, reckoned once for points that differ in nothing that costs."""
    seen: dict[tuple[object, ...], Costs] = {}
    found = []
    for point in points:
        key = (point.model, point.batch_size, point.precision, point.mode, point.optimizer)
        if key not in seen:
            seen[key] = costs_of(point)
        found.append(seen[key])
    return found


def _unmade(key: WorkerKey) -> Environment:
    """A stack that is not made: this machine, with software that no run has."""
    return describe_environment(key.platform, {"stack": f"not made: {key.python}"})


def _ceilings(
    points: Sequence[Point],
    environments: Sequence[Environment],
    known: Mapping[Identity, Sequence[Finished]],
    history: History,
) -> dict[Identity, Ceilings | None]:
    found: dict[Identity, Ceilings | None] = {}
    seen: set[tuple[object, ...]] = set()
    for point, environment in zip(points, environments, strict=True):
        key = (WorkerKey.of(point), point.platform, environment.environment_id)
        if key not in seen:
            seen.add(key)
            identity = ceilings_identity(point, environment)
            run = next((run for run in known.get(identity, ()) if outcome_of(run.tags) == "ok"), None)
            found[identity] = Ceilings.of(run.run_id, history.metrics(run.run_id)) if run else None
    return found
