"""Ceilings: peak rates of a machine, read from the store, or measured once and recorded as a run.

The ceilings are the peak FLOP/s and the memory bandwidth that a framework reaches. They determine
the utilization of a point, which is one configuration to measure. Point and ceilings must have the
same framework, the same number of threads and the same environment.
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
from paradnn.core.metric import interval_metrics
from paradnn.platform.environment import Environment, available_memory, separate_hosts
from paradnn.platform.load import LoadMonitor, slow_tags
from paradnn.platform.specifications import find_hardware
from paradnn.session.measured import mean_interval
from paradnn.session.record import run_tags
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.store.journal import Journal
from paradnn.store.metrics import rounded_measurement
from paradnn.store.runs import CEILINGS_OUTCOME, Claim, Claimed, Finished, Record, outcome_of

_VERSION = 1  # increment if the measurement changes: ceilings of another version are ignored
#: Time limit in seconds of a process that measures ceilings, and of the wait for another driver.
_TIMEOUT = 600.0
#: Number of processes that measure ceilings. Further processes follow, up to MAX_PROCESSES, until
#: at least QUIET processes have measured each kernel undisturbed.
PROCESSES = 3
MAX_PROCESSES = 6
QUIET = 2
_CHECK_SECONDS = 1.0  # mean seconds between two checks while another driver measures the ceilings
#: Tolerated relative difference between two sound measurements of one quantity. A larger difference
#: has a cause, such as a busy machine.
_MARGIN = 0.05


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of one environment, best times of its reference kernels, and its idle power.

    The rates are those of one device. A reference kernel is a short computation whose time shows
    how fast the machine currently is.

    Attributes:
        run_id: Id of the run that stores these values.
        flops_per_second: Precision -> FLOP/s of the fastest matrix product.
        bytes_per_second: Bandwidth of main memory in B/s; None if unknown.
        contended: Description of the disturbance during the measurement; None if undisturbed.
        references: Name of a metric -> best time of one call of a reference kernel, in ms.
        idle_watts: Power in watts while nothing runs; None if unknown.
        idle_source: Counter that measured the idle power, or why it is unavailable; None if an
            earlier version recorded the ceilings and did not measure it.
    """

    run_id: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: float | None
    contended: str | None = None
    references: Mapping[str, float] = field(default_factory=dict)
    idle_watts: float | None = None
    idle_source: str | None = None

    @classmethod
    def of(
        cls, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, str] | None = None
    ) -> Self:
        """Return the ceilings (peak rates of a machine) from the values of a stored run.

        Args:
            run_id: Id of the run.
            metrics: Metrics of the run by name.
            tags: Tags of the run by name; None means no tags.
        """
        prefix = "peak_flops_per_second."
        peaks = {
            key.removeprefix(prefix): value
            for key, value in metrics.items()
            if key.startswith(prefix)
        }
        references = {
            key: value for key, value in metrics.items() if key.startswith("best_reference_")
        }
        tags = tags or {}
        return cls(
            run_id=run_id,
            flops_per_second=peaks,
            bytes_per_second=metrics.get("peak_bytes_per_second"),
            contended=tags.get("contended_reason"),
            references=references,
            idle_watts=metrics.get("power_idle_watts"),
            idle_source=tags.get("idle_power_source"),
        )

    def emulated_share(self, precision: str) -> float | None:
        """Return the matmul rate of an emulated precision as a share of the float32 rate.

        A precision counts as emulated if its matrix products are slower than those in float32.

        Args:
            precision: Name of the precision, such as "bfloat16".

        Returns:
            The share, below 1; None if a rate is unknown or the precision is not emulated.
        """
        rate = self.flops_per_second.get(precision)
        float32_rate = self.flops_per_second.get("float32")
        if not rate or not float32_rate or rate >= float32_rate:
            return None
        return rate / float32_rate

    def tags(self, precision: str) -> dict[str, str]:
        """Return the tags about these ceilings (peak rates) for the run of a measured point.

        `ceilings_run` is the id of the run that stores the ceilings. If other work disturbed their
        measurement, `ceilings_contended` says that they are too low. If the precision is emulated,
        `emulation_note` says so.

        Args:
            precision: Precision of the point, such as "bfloat16".
        """
        tags = {"ceilings_run": self.run_id}
        if self.contended:
            tags["ceilings_contended"] = f"the ceilings are too low: {self.contended}"
        share = self.emulated_share(precision)
        if share:
            tags["emulation_note"] = (
                f"{precision} products are emulated here: {share:.2f} of float32's rate"
            )
        return tags


def below_ceilings(point: Point, flops: float) -> bool:
    """Return whether the peak rates of a machine bound the speed of a point.

    They do not bound a point that only transfers data. If the worker counts the costs of a model
    during the measurement, `flops` is still 0, but the peak rates bound the point.

    Args:
        point: The configuration to measure.
        flops: Analytic number of FLOPs per step.
    """
    return flops > 0 or point.model.is_counted


def ceilings_identity(point: Point, environment: Environment) -> Identity:
    """Return the identity under which the store holds the ceilings (peak rates) for `point`.

    Ceilings depend only on the device, the threads and the framework's settings.

    Args:
        point: A configuration to measure.
        environment: Hardware and software versions under which it is measured.
    """
    point = single_device(without_price(point), environment)
    parts = {
        "ceilings": _VERSION,
        "platform": asdict(point.platform),
        "framework": asdict(point.framework),
    }
    environment_id = environment.as_one_host().environment_id
    return Identity(digest(without_added_defaults(parts)), environment_id, 0)


def single_device(point: Point, environment: Environment) -> Point:
    """Return a copy of the point that uses one device.

    Ceilings (peak rates) are measured for this copy. Several CPU devices of a host are merged into
    one device with all their threads.

    Args:
        point: The configuration to measure.
        environment: Environment of the point, from which the number of cores is read.
    """
    if point.device_count == 1:
        return point
    platform = point.platform
    if platform.name == "cpu" and platform.threads:
        threads: int | None = point.device_count // separate_hosts(point) * platform.threads
        if threads and threads >= int(environment.hardware["cores"]):
            threads = None
        platform = replace(platform, threads=threads)
    return replace(point, devices=1, hosts=1, platform=platform)


def device_peaks(
    point: Point, environment: Environment, ceilings: Ceilings | None
) -> dict[str, float]:
    """Return the known peak rates for a point's precision, summed over its devices.

    Args:
        point: The configuration to measure.
        environment: Environment in which the point runs.
        ceilings: Measured peak rates of one device; None if unknown.

    Returns:
        The known measured (`peak_`) and specified (`spec_`) rates in FLOP/s and B/s, and the best
        times of the reference kernels in ms.
    """
    measured = ceilings or Ceilings("", {}, None)
    peaks = {
        "peak_flops_per_second": measured.flops_per_second.get(point.precision),
        "peak_bytes_per_second": measured.bytes_per_second,
    }
    sheet = find_hardware(environment.device, int(environment.hardware["cores"]))
    if sheet:
        peaks["spec_flops_per_second"] = sheet.peak_flops.get(point.precision)
        peaks["spec_bytes_per_second"] = sheet.bandwidth
    chips = point.device_count
    if point.platform.name == "cpu" and chips > 1:
        chips = separate_hosts(point)
    return {key: chips * value for key, value in peaks.items() if value} | dict(measured.references)


def overrun_tags(
    point: Point, environment: Environment, metrics: Mapping[str, float]
) -> dict[str, str]:
    """Return tags about a run that exceeds the measured matmul peak by more than 5%.

    Args:
        point: The configuration that was measured.
        environment: Hardware and software versions under which it was measured.
        metrics: Metrics of the run.

    Returns:
        `ceilings_note`, which states the ratio, and `ceilings_remedy`, the command that
        measures the ceilings again. Empty for any other run.
    """
    ratio = metrics.get("flops_utilization", 0.0)
    if ratio <= 1 + _MARGIN:
        return {}
    note = f"{ratio:.2f} times the measured matmul peak, which is too low: was the machine busy?"
    return {"ceilings_note": note, "ceilings_remedy": _ceilings_command(point, environment)}


def idle_power_tags(
    point: Point,
    environment: Environment,
    ceilings: Ceilings | None,
    metrics: Mapping[str, float],
) -> dict[str, str]:
    """Return the tag that explains why the energy above idle is missing from a run's metrics.

    Args:
        point: The configuration that was measured.
        environment: Hardware and software versions under which it was measured.
        ceilings: Peak rates and idle power of the point's platform; None if not measured.
        metrics: Metrics of the run.

    Returns:
        `idle_power_note` with the reason and the remedy. Empty if the run has no power metric, if
        `ceilings` is None, or if the energy above idle is known.
    """
    watts = metrics.get("power_watts")
    if watts is None or ceilings is None:
        return {}
    if ceilings.idle_watts is None:
        reason = "the version that recorded the ceilings did not measure it."
        if ceilings.idle_source:
            reason = ceilings.idle_source.removeprefix("unavailable: ") + "."
        problem = f"no idle power: {reason}"
    elif watts <= ceilings.idle_watts:
        problem = (
            f"the steps drew {watts:.3g} W, no more than the idle power of "
            f"{ceilings.idle_watts:.3g} W: was the machine busy when idle power was measured?"
        )
    else:
        return {}
    command = _ceilings_command(point, environment)
    return {"idle_power_note": f"{problem} Measure it on a quiet machine: {command}"}


def _ceilings_command(point: Point, environment: Environment) -> str:
    """Return a shell command that measures the peak rates of a point's platform again."""
    platform = single_device(point, environment).platform
    framework = point.framework
    software = point.software
    overrides: dict[str, object] = {
        "platform": platform.name,
        "platform.threads": platform.threads,
        "platform.cores": platform.cores and f"'{platform.cores}'",
        "platform.index": platform.index,
    }
    if framework.name != "tensorflow":
        overrides["framework"] = framework.name
    for key, value in framework.env.items():
        overrides[f"+framework.env.{key}"] = json.dumps(value)
    if software.python:
        overrides["software.python"] = json.dumps(software.python)
    if software.name != "current":
        overrides["software"] = software.name
    elif software.requirements:
        overrides["software.requirements"] = json.dumps(list(software.requirements))
    arguments = (f"{key}={value}" for key, value in overrides.items() if value)
    return shlex.join(["python", "-m", "paradnn.ceilings", *arguments])


class CeilingsKeeper:
    """Finds ceilings (peak rates) in the store or measures them, each at most once per session.

    Args:
        pool: Workers that measure the ceilings.
        tracker: Journal that stores them.
        say: Prints a message to the user.
    """

    def __init__(self, pool: WorkerPool, tracker: Journal, say: Callable[[str], None]) -> None:
        self._pool = pool
        self._tracker = tracker
        self._say = say
        self._known: dict[Identity, Ceilings | None] = {}

    def of(self, point: Point, environment: Environment, *, again: bool = False) -> Ceilings | None:
        """Return the ceilings (peak rates) for `point`; measure them if no usable ones are stored.

        Args:
            point: The configuration to measure.
            environment: Environment in which the point runs.
            again: Whether to measure the ceilings even if they are known.

        Returns:
            The ceilings; None if they cannot be measured. The user then gets a message with the
            reason, once per session.
        """
        point = single_device(point, environment)
        environment = environment.as_one_host()
        identity = ceilings_identity(point, environment)
        if again or identity not in self._known:
            self._known[identity] = self._obtain(point, environment, identity, again=again)
        return self._known[identity]

    def _obtain(
        self, point: Point, environment: Environment, identity: Identity, *, again: bool
    ) -> Ceilings | None:
        if point.software.name == "current":
            stack = ""
        else:
            stack = f" {point.software.name}"
        name = f"ceilings {point.framework.name} {point.platform.name}{stack}"
        claim = self._claim(
            identity, name, run_tags("ceilings", identity, environment), again=again
        )
        if claim is None:
            self._say(
                "no utilization is reported, because another driver has been measuring the peak "
                f"performance for over {_TIMEOUT:.0f} s"
            )
            return None
        if isinstance(claim, Finished):
            metrics, stored = self._tracker.fetch(claim.run_id)
            return replace(
                Ceilings.of(claim.run_id, metrics, stored),
                references=self._best_references(identity, metrics),
            )
        subject = f"{environment.device} ({point.framework.name}{stack})"
        self._say(f"measuring the peak performance of {subject} once, for about half a minute")
        try:
            result, rates = self._measure(point)
            record = make_ceilings_record(claim, name, point, environment, result, rates)
            best = self._best_references(identity, record.metrics)
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
                "no utilization is reported, because the peak performance could not be measured "
                f"({result.outcome}: {result.reason})"
            )
            return None
        measured = replace(Ceilings.of(run_id, record.metrics, record.tags), references=best)
        if measured.contended:
            self._say(
                f"the measured peak performance is too low ({measured.contended}); "
                "a session on a quiet machine measures it again"
            )
        return measured

    def _claim(
        self, identity: Identity, name: str, tags: Mapping[str, str], *, again: bool
    ) -> Claimed:
        """Claim (reserve) the measurement of ceilings (peak rates), or find usable stored ones.

        Args:
            identity: Identity of the ceilings.
            name: Name of the run.
            tags: Tags of the run.
            again: Whether to measure even if the store has usable ceilings.

        Returns:
            The claim or the finished run. None if another driver is still measuring the ceilings
            when this function has waited for `_TIMEOUT` seconds.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            # Query the store in every attempt: another driver may have recorded ceilings by then.
            accepts = None if again else self._accept_usable(identity)
            claim = self._tracker.begin(identity, name, tags, accepts)
            if claim:
                return claim
            if time.monotonic() > deadline:
                return None
            # Two drivers that claim at the same moment both withdraw. The random wait keeps them
            # from claiming at the same moment again.
            time.sleep(random.uniform(0.5, 1.5) * _CHECK_SECONDS)

    def _best_references(
        self, identity: Identity, metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the best time of each reference kernel, as metrics in ms.

        A reference kernel is a short computation that shows how fast the machine is. Its best time
        is the minimum over `metrics` and all stored ceilings (peak rates) of the same identity.

        Args:
            identity: Identity under which the store holds the ceilings.
            metrics: Metrics of one measurement of the ceilings.
        """
        best: dict[str, float] = {}
        runs = self._tracker.finished_anywhere(identity)
        for each in (metrics, *(self._tracker.fetch(run.run_id)[0] for run in runs)):
            for name, value in Ceilings.of("", each).references.items():
                best[name] = min(value, best.get(name, value))
        return best

    def _accept_usable(self, identity: Identity) -> Callable[[Mapping[str, str]], bool]:
        """Return a function that decides, from a run's tags, whether its ceilings are usable.

        Ceilings are peak rates of a machine, and such a run stores them.

        Undisturbed ceilings are usable. Contended ceilings, which other work on the machine
        disturbed, are usable only if the store holds no others and the machine is busy now.
        """
        known = self._tracker.finished_anywhere(identity)
        is_contended = [
            run.tags.get("contended") == "true" for run in known if outcome_of(run.tags) == "ok"
        ]
        accepts_contended = (
            bool(is_contended) and all(is_contended) and LoadMonitor().look().is_busy
        )
        return lambda tags: (
            outcome_of(tags) == "ok" and (accepts_contended or tags.get("contended") != "true")
        )

    def _measure(self, point: Point) -> tuple[PointResult, list[PeakRates]]:
        """Measure the ceilings (peak rates) of a platform in several processes.

        The first process measures all kernels. Further processes measure only the fastest ones,
        until enough processes were undisturbed or `MAX_PROCESSES` is reached.

        Returns:
            The result of the first process, and the rates of each process. The rates end at the
            first process that failed.
        """
        request = _request(point)
        limits = Limits(_TIMEOUT, int(0.9 * available_memory()))
        first = None
        rates = list[PeakRates]()
        for _ in range(MAX_PROCESSES):
            result = self._pool.measure(WorkerKey.of(point), request, limits, lambda _: None)
            first = first or result
            if result.outcome != "ok" or result.answer is None or result.answer.peak_rates is None:
                break
            rates.append(result.answer.peak_rates)
            if len(rates) >= PROCESSES and not _disturbance(rates):
                break
            request["only"] = {
                "matmul": plain(_fastest(rates[0])),
                "bandwidth": plain(rates[0].bandwidth),
            }
        assert first
        return first, rates


def _request(point: Point) -> dict[str, Any]:
    """Return the request that makes a worker measure the peak rates of a point's platform.

    The arrays of the measurement may use a quarter of the free memory, since they need only exceed
    the caches.
    """
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
    """Return the record of a run with ceilings: peak rates of a machine, and its idle power.

    Args:
        claim: Reservation of the measurement, with its identity and start time.
        name: Name of the run.
        point: Configuration with one device, whose platform and framework were measured.
        environment: Environment of the measurement.
        result: Result of the first process. The record gets its outcome.
        processes: Rates that each process measured; empty if the first process failed.
    """
    tags = run_tags("ceilings", claim.identity, environment) | {CEILINGS_OUTCOME: result.outcome}
    if result.reason:
        tags["reason"] = result.reason
    metrics: dict[str, float] = {}
    if processes:
        metrics = _metrics(processes)
        contended_reason = _disturbance(processes)
        tags["contended"] = str(bool(contended_reason)).lower()
        if contended_reason:
            tags["contended_reason"] = contended_reason
        idle_source = _idle_source(processes)
        if idle_source:
            tags["idle_power_source"] = idle_source
    return Record(
        name=name,
        outcome=result.outcome,
        reason=result.reason,
        params=as_params(
            {"platform": asdict(point.platform), "framework": asdict(point.framework)}
        ),
        metrics=metrics,
        tags=tags,
        artifacts={"environment.json": environment.as_dict(), **_rate_tables(processes)},
        start_time=claim.start_time,
        end_time=int(time.time() * 1000),
        description=_describe_ceilings(environment.device, Ceilings.of("", metrics)),
    )


def _rate_tables(processes: Sequence[PeakRates]) -> dict[str, Any]:
    """Return two tables by file name: all measured matrix products, and all bandwidths.

    Empty tables are omitted.
    """
    tables: dict[str, Any] = {}
    for kind in ("matmul", "bandwidth"):
        rows = [_rounded(plain(row)) for rates in processes for row in getattr(rates, kind)]
        if rows:
            tables[f"{kind}.json"] = {
                "columns": list(rows[0]),
                "data": [list(row.values()) for row in rows],
            }
    return tables


def _describe_ceilings(device: str, ceilings: Ceilings) -> str:
    rates = ", ".join(
        f"{rate / 1e9:,.1f} GFLOP/s in {key}" for key, rate in ceilings.flops_per_second.items()
    )
    text = f"Ceilings of {device}, measured in the framework. Matrix products: {rates}."
    if ceilings.bytes_per_second:
        text += f" Main memory: {ceilings.bytes_per_second / 1e9:,.1f} GB/s."
    if ceilings.idle_watts:
        text += f" Idle power: {ceilings.idle_watts:.3g} W."
    return text


def _fastest(rates: PeakRates) -> list[ProductRate]:
    """Return the fastest matrix product of each precision."""
    ordered = sorted(rates.matmul, key=lambda row: row.flops_per_second)
    return list({row.precision: row for row in ordered}.values())


def _kernels(processes: Sequence[PeakRates]) -> dict[str, list[tuple[float, str | None]]]:
    """Return the rates of the kernels that define the ceilings (peak rates), by metric name.

    The kernels are the fastest matrix product of each precision, and the memory kernels. Each
    process contributes pairs of two values: the rate in FLOP/s or B/s, and the description of a
    disturbance. The description is None if nothing disturbed the kernel.
    """
    rates: dict[str, list[tuple[float, str | None]]] = defaultdict(list)
    best = {(row.size, row.compile, row.precision) for row in _fastest(processes[0])}
    for each in processes:
        for row in each.matmul:
            if (row.size, row.compile, row.precision) in best:
                rates[f"peak_flops_per_second.{row.precision}"].append(
                    (row.flops_per_second, row.disturbed)
                )
        for array in each.bandwidth:
            rates["peak_bytes_per_second"].append((array.bytes_per_second, array.disturbed))
    return rates


def _disturbance(processes: Sequence[PeakRates]) -> str | None:
    """Return why a kernel has too few undisturbed measurements; None if every kernel has enough."""
    for name, rows in _kernels(processes).items():
        reasons = [disturbed for _, disturbed in rows if disturbed]
        if reasons and len(rows) - len(reasons) < QUIET:
            quantity = name.partition("_per_")[0].replace("_", " ")
            precision = name.partition(".")[2]
            return f"{f'{quantity} {precision}'.rstrip()}: {reasons[0]}"
    return None


def _metrics(processes: Sequence[PeakRates]) -> dict[str, float]:
    """Return the ceilings (peak rates) of a machine as metrics.

    These are the rate of the fastest product of each precision and the bandwidth of main memory.
    The idle power and the best time of each reference kernel follow. Rates are geometric means
    with 95% intervals over the undisturbed processes. If every process was disturbed, they are
    means over all processes.
    """
    metrics: dict[str, float] = {}
    for name, rows in _kernels(processes).items():
        rates = [rate for rate, disturbed in rows if disturbed is None]
        if not rates:
            rates = [rate for rate, _ in rows]
        # Clamp the mean: rounding errors of logarithms can put it outside the range of equal rates.
        metrics[name] = min(max(statistics.geometric_mean(rates), min(rates)), max(rates))
        if len(rates) > 1:
            base, dot, precision = name.partition(".")
            low, high = mean_interval(rates)
            metrics |= {f"{base}_low{dot}{precision}": low, f"{base}_high{dot}{precision}": high}
    metrics |= _idle_metrics(processes)
    for name in processes[0].references:
        metrics[f"best_reference_{name}_ms"] = (
            min(each.references[name] for each in processes) * 1e3
        )
    return _rounded(metrics) | {"processes": float(len(processes))}


def _idle_metrics(processes: Sequence[PeakRates]) -> dict[str, float]:
    """Return the idle power in watts and its 95% interval, as metrics.

    The value is the geometric mean over undisturbed processes. Disturbed processes never count,
    because other load raises the power above idle. The result is empty if every process was
    disturbed or power could not be measured.
    """
    watts = [
        each.idle.watts
        for each in processes
        if each.idle and each.idle.watts is not None and each.idle.disturbed is None
    ]
    if not watts:
        return {}
    interval = mean_interval(watts) if len(watts) > 1 else None
    return {
        "power_idle_watts": statistics.geometric_mean(watts),
        **interval_metrics("power_idle_watts", interval),
    }


def _idle_source(processes: Sequence[PeakRates]) -> str | None:
    """Return the name of the counter that measured idle power, or why the power is unavailable.

    None if no process tried to measure the idle power.
    """
    attempts = [each.idle for each in processes if each.idle]
    if not attempts:
        return None
    for idle in attempts:
        if idle.watts is not None and idle.disturbed is None:
            return idle.source
    if attempts[0].disturbed:
        return f"unavailable: {attempts[0].disturbed}"
    return attempts[0].source


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with floats rounded by `rounded_measurement`."""
    rounded = dict(values)
    for name, value in values.items():
        if isinstance(value, float):
            rounded[name] = rounded_measurement(value)
    return rounded
