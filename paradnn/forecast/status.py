"""The status of the points of a sweep: done, repeated, predicted to be too large, or missing.

A point is one configuration of the sweep.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point
from paradnn.config.settings import Settings
from paradnn.forecast.history import History
from paradnn.forecast.table import Rates, cost_columns
from paradnn.platform.environment import (
    Environment,
    describe_environment,
    memory_limit,
    separate_hosts,
)
from paradnn.platform.specifications import find_hardware
from paradnn.session.environments import current_environments
from paradnn.session.hardware_peaks import Ceilings, below_ceilings, ceilings_identity
from paradnn.session.workers import WorkerKey
from paradnn.statistics.robust_regression import Array
from paradnn.store.runs import Finished, ResumePolicy, outcome_of

#: Assumed FLOP/s and B/s of a device without known specification or measurement; per core for a
#: CPU.
_TYPICAL_PEAKS = {"cpu": (5e10, 1e10), "gpu": (1e13, 5e11), "tpu": (5e13, 6e11)}


@dataclass(frozen=True)
class SweepStatus:
    """The points of a sweep and their status, in the order of the sweep.

    A point is one configuration of the sweep. All attributes except `missing_stacks` and `ceilings`
    have one entry per point.

    Attributes:
        points: The points.
        identities: The identity of each point's measurement: configuration, environment that would
            measure it, and number of the replicate.
        status: "done" (has an outcome), "repeated" (equals an earlier point of the sweep),
            "oom_predicted" (too large for the memory), or "missing" (to be measured).
        outcomes: The stored outcome of a done point, "" for a repeated point, "oom_predicted", or
            "ok" as the expected outcome of a missing point.
        costs: Arrays (points,) of every field of `Costs`, by name.
        limits: Bytes of memory (points,) that a point may use; infinite without a memory check.
        environments: The environments (hardware and software) that would measure the points.
        workers: The keys of the worker processes that would measure the points.
        missing_stacks: Names of the software stacks that are not installed yet.
        ceilings: Measured peak FLOP/s and memory bandwidth of the machine, for each environment in
            which points need them. The key is the identity of the measurement of these peaks. None
            if the store does not contain the measurement.
    """

    points: Sequence[Point]
    identities: Sequence[Identity]
    status: NDArray[np.str_]
    outcomes: Sequence[str]
    costs: Mapping[str, Array]
    limits: Array
    environments: Sequence[Environment]
    workers: Sequence[WorkerKey]
    missing_stacks: Sequence[str]
    ceilings: Mapping[Identity, Ceilings | None]

    @cached_property
    def to_run(self) -> NDArray[np.bool_]:
        """Mask (points,) of the points to run, including points to record as too large."""
        return np.isin(self.status, ("missing", "oom_predicted"))


def sweep_status(points: Sequence[Point], settings: Settings, history: History) -> SweepStatus:
    """Return the status that the points of a sweep would have in a session that starts now.

    The status of a point says whether the session would measure it, or why not.

    Args:
        points: The points (configurations) of the sweep.
        settings: The settings of the session.
        history: The past runs in the store.

    Raises:
        ParadnnError: If such a session would fail before its first point.
    """
    points = list(points)
    kinds = _number_kinds(points)
    samples = dict(zip(kinds, points, strict=True))
    workers = {kind: WorkerKey.of(point) for kind, point in samples.items()}
    installed = current_environments(samples.values())
    described = {
        worker: environment or _describe_missing_stack(worker)
        for worker, environment in installed.items()
    }
    environments = {kind: described[worker] for kind, worker in workers.items()}
    ids = {kind: environment.environment_id for kind, environment in environments.items()}
    # A stack that is not installed has no environment yet, and therefore no runs.
    known = history.finished({ids[kind] for kind, worker in workers.items() if installed[worker]})
    missing_stacks = {
        samples[kind].software.name for kind, worker in workers.items() if not installed[worker]
    }
    costs = cost_columns(points)
    limits = _limits(points)
    identities = [
        Identity(point_id(point), ids[kind], point.replicate)
        for point, kind in zip(points, kinds, strict=True)
    ]
    policy = ResumePolicy(settings.resume, settings.retry)
    is_too_large = costs["memory_lower_bound_bytes"] > limits
    states = list(_states(points, identities, known, policy, is_too_large))
    return SweepStatus(
        points=points,
        identities=identities,
        status=np.array([status for status, _ in states], dtype="U13"),
        outcomes=[outcome for _, outcome in states],
        costs=costs,
        limits=limits,
        environments=[environments[kind] for kind in kinds],
        workers=[workers[kind] for kind in kinds],
        missing_stacks=sorted(missing_stacks),
        ceilings={
            identity: _ceilings(history.finished_anywhere(identity), history)
            for identity in _needed_ceilings(points, kinds, costs["flops_per_step"], environments)
        },
    )


def _describe_missing_stack(worker: WorkerKey) -> Environment:
    """Return a placeholder environment for a software stack that is not installed.

    It has the hardware of this machine, and a software entry that no run has.
    """
    return describe_environment(worker.platform, {"stack": f"not installed: {worker.python}"})


def _needed_ceilings(
    points: Sequence[Point],
    kinds: Sequence[int],
    flops: Array,
    environments: Mapping[int, Environment],
) -> list[Identity]:
    """Return which measurements of the machine's peak performance the points need.

    The peaks are FLOP/s and memory bandwidth. `below_ceilings` decides whether a point needs them.

    Args:
        points: The points.
        kinds: The kind of each point, as `_number_kinds` returns it.
        flops: FLOPs (points,) per step.
        environments: Environments by kind.

    Returns:
        The identities of these measurements.
    """
    points_below_ceilings = {
        (kind, point.devices, point.hosts): point
        for point, kind, count in zip(points, kinds, flops.tolist(), strict=True)
        if below_ceilings(point, count)
    }
    return [
        ceilings_identity(point, environments[kind])
        for (kind, *_), point in points_below_ceilings.items()
    ]


def _number_kinds(points: Sequence[Point]) -> list[int]:
    """Number the points such that points with the same number share worker and environment.

    The identity of the settings objects is compared rather than their values, because this is fast
    and most points share these objects. Equal settings may therefore have different numbers.
    """
    numbers = dict[Any, int]()
    kinds = []
    for point in points:
        emulates_hosts = separate_hosts(point) < point.hosts
        key = (id(point.software), id(point.framework), id(point.platform), emulates_hosts)
        kinds.append(numbers.setdefault(key, len(numbers)))
    return kinds


def _limits(points: Sequence[Point]) -> Array:
    """Return the memory limits (points,) in bytes; infinite for points without a memory check.

    `paradnn.platform.environment.exceeds_memory` applies the same limits.
    """
    # The free memory is read once per setting, because it changes between two readings.
    free = {
        limit: memory_limit(point)
        for limit, point in {point.measure.memory_limit: point for point in points}.items()
    }
    limits = np.full(len(points), math.inf)
    for index, point in enumerate(points):
        if point.platform.name == "cpu" and point.measure.predict_oom:
            limits[index] = free[point.measure.memory_limit] * separate_hosts(point)
    return limits


def _states(
    points: Sequence[Point],
    identities: Sequence[Identity],
    known: Mapping[Identity, Sequence[Finished]],
    policy: ResumePolicy,
    too_large: NDArray[np.bool_],
) -> Iterator[tuple[str, str]]:
    """Yield the status and the outcome of each point, as `SweepStatus` describes them.

    Args:
        points: The points.
        identities: The identity of each point's measurement.
        known: Runs with an outcome, by identity.
        policy: Decides which of these runs are reused.
        too_large: Mask (points,) of the points that exceed their memory limit.
    """
    seen = set[Identity]()
    for point, identity, is_too_large in zip(points, identities, too_large.tolist(), strict=True):
        runs = known.get(identity, ()) if policy.queries_store else ()
        done = policy.first(point, runs)
        if done:
            yield "done", done.tags["outcome"]
        elif identity in seen:
            yield "repeated", ""
        else:
            yield ("oom_predicted", "oom_predicted") if is_too_large else ("missing", "ok")
        seen.add(identity)


def _ceilings(runs: Sequence[Finished], history: History) -> Ceilings | None:
    for run in runs:
        if outcome_of(run.tags) == "ok":
            return Ceilings.of(run.run_id, history.metrics(run.run_id))
    return None


def rates_of(status: SweepStatus) -> Rates:
    """Return a function that looks up the highest rates of a device.

    It uses measured peak rates if available, else the specification, else a typical value.

    Args:
        status: The status of a sweep, with the measured peak rates of its environments.

    Returns:
        The function. Its arguments are the names of the device, the framework and the precision. It
        returns the highest FLOP/s and B/s of one device, and the number of cores of its host.
    """
    kinds: dict[str, tuple[str, int]] = {}
    measured: dict[tuple[str, str], Ceilings] = {}
    for worker, environment in dict(zip(status.workers, status.environments, strict=True)).items():
        kinds[environment.device] = (worker.platform, int(environment.hardware["cores"]))
        for identity, ceilings in status.ceilings.items():
            if ceilings and identity.environment_id == environment.environment_id:
                measured.setdefault((environment.device, worker.framework), ceilings)
                measured.setdefault((environment.device, ""), ceilings)

    @functools.cache
    def rates(device: str, framework: str, precision: str) -> tuple[float, float, float]:
        kind, cores = kinds.get(device, ("cpu", 1))
        flops, traffic = (rate * (cores if kind == "cpu" else 1) for rate in _TYPICAL_PEAKS[kind])
        hardware = find_hardware(device)
        if hardware:
            flops = (
                hardware.peak_flops.get(precision) or hardware.peak_flops.get("float32") or flops
            )
            traffic = hardware.bandwidth or traffic
        ceilings = measured.get((device, framework)) or measured.get((device, ""))
        if ceilings:
            flops = ceilings.flops_per_second.get(precision) or flops
            traffic = ceilings.bytes_per_second or traffic
        return flops, traffic, float(cores)

    return rates
