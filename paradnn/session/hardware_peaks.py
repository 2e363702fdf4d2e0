"""What a machine can do at most: read from the store, or measured once and recorded as a run of its
own. A point's utilisation is stated against ceilings of the same framework, with the same threads,
in the same environment.
"""

import contextlib
import json
import random
import shlex
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from paradnn.config.identity import (
    Identity,
    as_params,
    digest,
    without_added_defaults,
    without_price,
)
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.core.channel import plain
from paradnn.core.messages import PeakRates, ProductRate
from paradnn.platform.environment import Environment, available_memory
from paradnn.platform.load import LoadMonitor, slow_tags
from paradnn.platform.specifications import find_hardware
from paradnn.session.measured import mean_interval
from paradnn.session.record import run_tags
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.store.journal import Journal
from paradnn.store.metrics import rounded_measurement
from paradnn.store.runs import CEILINGS_OUTCOME, Claim, Finished, Record, outcome_of

_VERSION = 1  # changes with what is measured: ceilings of another version are not used
_TIMEOUT = 600.0
#: Processes that measure ceilings: so many, and more, at most so many, until each kernel was
#: undisturbed in two.
PROCESSES = 3
MOST_PROCESSES = 6
QUIET = 2
_LOOK = 1.0  # seconds between two looks while another driver measures the ceilings
#: How far measurements of one quantity, each sound, may be apart: what is more has a cause, such as
#: a busy machine.
_MARGIN = 0.05


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one environment: precision -> FLOP/s, and B/s of main memory. contended: what
    disturbed them, None where nothing did. references: metric -> ms of a call of each reference
    kernel, the best of the environment.
    """

    run_id: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: float | None
    contended: str | None = None
    references: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, str] | None = None
    ) -> Self:
        """The ceilings in a run's metrics and tags."""
        prefix = "peak_flops_per_second."
        peaks = {
            key.removeprefix(prefix): value
            for key, value in metrics.items()
            if key.startswith(prefix)
        }
        references = {
            key: value for key, value in metrics.items() if key.startswith("best_reference_")
        }
        contended = (tags or {}).get("contended_reason")
        return cls(run_id, peaks, metrics.get("peak_bytes_per_second"), contended, references)

    def emulated(self, precision: str) -> float | None:
        """How fast 16-bit products are against float32's where they are slower: the platform
        emulates them.
        """
        ours = self.flops_per_second.get(precision)
        full = self.flops_per_second.get("float32")
        return ours / full if ours and full and ours < full else None

    def tags(self, precision: str) -> dict[str, str]:
        """Tags of a point that is compared with them."""
        tags = {"ceilings_run": self.run_id}
        if self.contended:
            tags["ceilings_contended"] = f"the ceilings are too low: {self.contended}"
        share = self.emulated(precision)
        if share:
            tags["emulation_note"] = (
                f"{precision} products are emulated here: {share:.2f} of float32's rate"
            )
        return tags


def below_ceilings(point: Point, flops: float) -> bool:
    """Whether ceilings say anything about a point with so many FLOPs: what only sends is below
    none.
    """
    return flops > 0 or point.model.is_counted


def ceilings_identity(point: Point, environment: Environment) -> Identity:
    """What the ceilings for `point` are called: they depend on device, threads and framework
    settings alone.
    """
    point = single_device(without_price(point), environment)
    parts = {
        "ceilings": _VERSION,
        "platform": asdict(point.platform),
        "framework": asdict(point.framework),
    }
    return Identity(digest(without_added_defaults(parts)), environment.environment_id, 0)


def single_device(point: Point, environment: Environment) -> Point:
    """The point on one device, for which ceilings are measured: those of a CPU are together one of
    all their cores.
    """
    if point.devices == 1:
        return point
    platform = point.platform
    if platform.name == "cpu" and platform.threads:
        threads = point.devices * platform.threads
        platform = replace(
            platform, threads=threads if threads < int(environment.hardware["cores"]) else None
        )
    return replace(point, devices=1, platform=platform)


def device_peaks(
    point: Point, environment: Environment, ceilings: Ceilings | None
) -> dict[str, float]:
    """What the point's devices can do together at its precision, given the ceilings of one, as far
    as it is known.
    """
    measured = ceilings or Ceilings("", {}, None)
    chips = 1 if point.platform.name == "cpu" else point.devices
    sheet = find_hardware(environment.device, int(environment.hardware["cores"]))
    peaks = {
        "peak_flops_per_second": measured.flops_per_second.get(point.precision),
        "peak_bytes_per_second": measured.bytes_per_second,
        "spec_flops_per_second": sheet.peak_flops.get(point.precision) if sheet else None,
        "spec_bytes_per_second": sheet.bandwidth if sheet else None,
    }
    return {key: chips * value for key, value in peaks.items() if value} | dict(measured.references)


def overrun_tags(
    point: Point, environment: Environment, metrics: Mapping[str, float]
) -> dict[str, str]:
    """Tags of a run that was faster than the peak it is compared with; none of one that was not.
    `ceilings_note` says by how much, `ceilings_remedy` is the command that re-measures the
    ceilings.
    """
    platform = single_device(point, environment).platform
    framework = point.framework
    software = point.software
    ratio = metrics.get("flops_utilization", 0.0)
    if ratio <= 1 + _MARGIN:
        return {}
    given = {
        "platform": platform.name,
        "platform.threads": platform.threads,
        "platform.cores": platform.cores and f"'{platform.cores}'",
        "platform.index": platform.index,
        "framework": framework.name if framework.name != "tensorflow" else None,
        **{f"+framework.env.{key}": json.dumps(value) for key, value in framework.env.items()},
        "software.python": software.python and json.dumps(software.python),
        "software": software.name if software.name != "current" else None,
        "software.requirements": software.name == "current"
        and json.dumps(list(software.requirements or ())),
    }
    words = (f"{key}={value}" for key, value in given.items() if value and value != "[]")
    note = f"{ratio:.2f} times the measured matmul peak, which is too low: was the machine busy?"
    return {
        "ceilings_note": note,
        "ceilings_remedy": shlex.join(["python", "-m", "paradnn.ceilings", *words]),
    }


class CeilingsKeeper:
    """Finds or measures ceilings, each once a session."""

    def __init__(self, pool: WorkerPool, tracker: Journal, say: Callable[[str], None]) -> None:
        self._pool = pool
        self._tracker = tracker
        self._say = say
        self._known: dict[Identity, Ceilings | None] = {}

    def of(self, point: Point, environment: Environment, *, again: bool = False) -> Ceilings | None:
        """The ceilings for `point`; None where they cannot be measured, which is reported once.
        `again` re-measures.
        """
        point = single_device(point, environment)
        identity = ceilings_identity(point, environment)
        if again or identity not in self._known:
            self._known[identity] = self._obtain(point, environment, identity, again)
        return self._known[identity]

    def _obtain(
        self, point: Point, environment: Environment, identity: Identity, again: bool
    ) -> Ceilings | None:
        if point.software.name == "current":
            stack = ""
        else:
            stack = f" {point.software.name}"
        name = f"ceilings {point.framework.name} {point.platform.name}{stack}"
        tags = run_tags("ceilings", identity, environment)
        deadline = time.monotonic() + _TIMEOUT
        accepts = None if again else self._sound(identity)
        while not (claim := self._tracker.begin(identity, name, tags, _TIMEOUT, accepts)):
            if time.monotonic() > deadline:
                problem = f"another driver has been measuring them for over {_TIMEOUT:.0f} s"
                self._say(f"no ceilings: {problem}; no utilisation is reported")
                return None
            # Two drivers that claimed at once both withdrew: they must not claim again at the same
            # moment.
            time.sleep(random.uniform(0.5, 1.5) * _LOOK)
        if isinstance(claim, Finished):
            metrics, stored = self._tracker.fetch(claim.run_id)
            return replace(
                Ceilings.of(claim.run_id, metrics, stored), references=self._best(identity, metrics)
            )
        what = f"{environment.device} ({point.framework.name}{stack})"
        self._say(f"measuring the ceilings of {what}, once: about half a minute")
        try:
            result, rates = self._measure(point)
            record = make_ceilings_record(claim, name, point, environment, result, rates)
            best = self._best(identity, record.metrics)
            speeds = {
                key.split("_")[2]: ms / record.metrics.get(key, ms) for key, ms in best.items()
            }
            record = replace(record, tags={**record.tags, **slow_tags(speeds, record.tags)})
            run_id = self._tracker.record(claim, record, dict)
        except BaseException:
            with contextlib.suppress(Exception):
                self._tracker.abandon(claim, "interrupted before its end")
            raise
        if result.outcome != "ok":
            self._say(
                f"no ceilings ({result.outcome}: {result.reason}): no utilisation is reported"
            )
            return None
        measured = replace(Ceilings.of(run_id, record.metrics, record.tags), references=best)
        if measured.contended:
            self._say(
                f"these ceilings are too low: {measured.contended}; a quiet session measures them again"
            )
        return measured

    def _best(self, identity: Identity, own: Mapping[str, float]) -> dict[str, float]:
        """The best time of each reference kernel in the metrics `own` and in all ceilings so far,
        as metrics.
        """
        best: dict[str, float] = {}
        runs = self._tracker.finished_anywhere(identity)
        for metrics in (own, *(self._tracker.fetch(run.run_id)[0] for run in runs)):
            for name, value in Ceilings.of("", metrics).references.items():
                best[name] = min(value, best.get(name, value))
        return best

    def _sound(self, identity: Identity) -> Callable[[Mapping[str, str]], bool]:
        """Which stored ceilings are used: such as nothing disturbed; where there are none, on a
        busy machine any.
        """
        known = self._tracker.finished_anywhere(identity)
        found = [
            run.tags.get("contended") == "true" for run in known if outcome_of(run.tags) == "ok"
        ]
        any_will_do = bool(found) and all(found) and LoadMonitor().look().is_busy
        return lambda tags: (
            outcome_of(tags) == "ok" and (any_will_do or tags.get("contended") != "true")
        )

    def _measure(self, point: Point) -> tuple[PointResult, list[PeakRates]]:
        """All kernels in one process, then the fastest in further ones, until so many were
        undisturbed. What the first one came to, and the rates of all.
        """
        request = _request(point)
        limits = Limits(_TIMEOUT, int(0.9 * available_memory()))
        first = None
        found = list[PeakRates]()
        for _ in range(MOST_PROCESSES):
            result = self._pool.measure(WorkerKey.of(point), request, limits, lambda _: None)
            first = first or result
            if result.outcome != "ok" or result.answer is None or result.answer.peak_rates is None:
                break
            found.append(result.answer.peak_rates)
            if len(found) >= PROCESSES and not _disturbed(found):
                break
            request["only"] = {
                "matmul": plain(_fastest(found[0])),
                "bandwidth": plain(found[0].bandwidth),
            }
        assert first
        return first, found


def _request(point: Point) -> dict[str, Any]:
    """A quarter of the free memory bounds the arrays: what does not fit a cache is large enough."""
    return {
        "task": "ceilings",
        "platform": asdict(point.platform),
        "memory_bytes": available_memory() // 4,
    }


def make_ceilings_record(
    claim: Claim,
    name: str,
    point: Point,
    environment: Environment,
    result: PointResult,
    processes: Sequence[PeakRates],
) -> Record:
    """What is stored of the rates that processes measured; `result` is that of the first one."""
    metrics, reason = (_metrics(processes), _disturbed(processes)) if processes else ({}, None)
    artifacts: dict[str, Any] = {"environment.json": environment.as_dict()}
    tags = run_tags("ceilings", claim.identity, environment) | {CEILINGS_OUTCOME: result.outcome}
    tags |= {"reason": result.reason} if result.reason else {}
    if processes:
        tags |= {"contended": str(bool(reason)).lower()} | (
            {"contended_reason": reason} if reason else {}
        )
    for key in ("matmul", "bandwidth"):
        rows = [_rounded(plain(row)) for each in processes for row in getattr(each, key)]
        if rows:
            artifacts[f"{key}.json"] = {
                "columns": list(rows[0]),
                "data": [list(row.values()) for row in rows],
            }
    peaks = Ceilings.of("", metrics)
    rates = ", ".join(
        f"{rate / 1e9:,.1f} GFLOP/s in {key}" for key, rate in peaks.flops_per_second.items()
    )
    if peaks.bytes_per_second:
        memory = f" Main memory: {peaks.bytes_per_second / 1e9:,.1f} GB/s."
    else:
        memory = ""
    params = as_params({"platform": asdict(point.platform), "framework": asdict(point.framework)})
    said = f"Ceilings of {environment.device}, measured in the framework. Matrix products: {rates}.{memory}"
    times = claim.start_time, int(time.time() * 1000)
    return Record(
        name, result.outcome, result.reason, params, metrics, tags, artifacts, *times, said
    )


def _fastest(rates: PeakRates) -> list[ProductRate]:
    """The fastest product of each precision."""
    ordered = sorted(rates.matmul, key=lambda row: row.flops_per_second)
    return list({row.precision: row for row in ordered}.values())


def _kernels(processes: Sequence[PeakRates]) -> dict[str, list[tuple[float, str | None]]]:
    """Rates of each ceiling's kernel by the name of its metric, one a process, and what disturbed
    each.
    """
    found: dict[str, list[tuple[float, str | None]]] = defaultdict(list)
    best = {(row.size, row.compile, row.precision) for row in _fastest(processes[0])}
    for each in processes:
        for row in each.matmul:
            if (row.size, row.compile, row.precision) in best:
                found[f"peak_flops_per_second.{row.precision}"].append(
                    (row.flops_per_second, row.disturbed)
                )
        for array in each.bandwidth:
            found["peak_bytes_per_second"].append((array.bytes_per_second, array.disturbed))
    return found


def _disturbed(processes: Sequence[PeakRates]) -> str | None:
    """What disturbed a kernel so often that fewer than two processes are left of it; None where
    nothing did.
    """
    for name, rows in _kernels(processes).items():
        reasons = [disturbed for _, disturbed in rows if disturbed]
        if reasons and len(rows) - len(reasons) < QUIET:
            return (
                f"{name.split('_per_')[0].replace('_', ' ')} {name.partition('.')[2]}".rstrip()
                + f": {reasons[0]}"
            )
    return None


def _metrics(processes: Sequence[PeakRates]) -> dict[str, float]:
    """The fastest product of each precision and the bandwidth of main memory: geometric mean and
    95% interval of the processes in which nothing disturbed it, or of all; and the best time of
    each reference kernel.
    """
    metrics: dict[str, float] = {}
    for name, rows in _kernels(processes).items():
        rates = [rate for rate, disturbed in rows if disturbed is None] or [
            rate for rate, _ in rows
        ]
        # Clamped, since the logarithms' rounding errors may put a mean beyond equal rates.
        metrics[name] = min(max(statistics.geometric_mean(rates), min(rates)), max(rates))
        if len(rates) > 1:
            base, dot, precision = name.partition(".")
            low, high = mean_interval(rates)
            metrics |= {f"{base}_low{dot}{precision}": low, f"{base}_high{dot}{precision}": high}
    for name in processes[0].references:
        metrics[f"best_reference_{name}_ms"] = (
            min(each.references[name] for each in processes) * 1e3
        )
    return _rounded(metrics) | {"processes": float(len(processes))}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with floats rounded as stores round metrics."""
    return {
        name: rounded_measurement(value) if isinstance(value, float) else value
        for name, value in values.items()
    }
