"""Measured points: workers' answers, summaries over processes, and the outcome of a point.

A point is one configuration, measured in one or more processes. Each kind of work derives metrics
from measured points (`paradnn.workloads`).
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.core.layers import Costs
from paradnn.core.messages import Answer, Measurement
from paradnn.core.metric import known_values
from paradnn.platform.environment import Environment
from paradnn.worker.chance import events_factor, quantile_ranks
from paradnn.worker.series import block_interval, missing_interval_reason, widened_interval

#: Factor that widens the interval if the interval itself decided the number of processes.
STOPPING_FACTOR = 1.1
#: Value of `events_factor` above which neighboring values are strongly dependent.
_STRONG_DEPENDENCE = 2.0
#: With strong dependence, the minimum number of effectively independent values per process for the
#: upper end of a quantile's interval.
_MIN_INDEPENDENT = 20
#: With strong dependence, the minimum number for both ends if there is a single process. One
#: process may look steady because its queue happened to stay short.
_MIN_INDEPENDENT_ALONE = 50


@dataclass(frozen=True)
class Summarized:
    """Location and spread of positive values, such as step times, from one or more processes.

    `value`, `low`, `high`, `minimum` and `maximum` have the unit of the values. All other numbers
    are ratios.

    Attributes:
        value: Median of one process, or geometric mean of the processes' medians.
        low: Lower end of the 95% interval of `value`; None if there is too little data.
        high: Upper end of the 95% interval of `value`; None if there is too little data.
        minimum: Smallest value of all processes.
        maximum: Largest value of all processes.
        cv: Coefficient of variation (standard deviation over mean) within a process, as the root
            mean square over the processes. None if every process has a single value.
        error: Standard error of the logarithm of `value`; None if unknown.
        process_cv: Standard deviation of the logarithms of the processes' medians; None for a
            single process.
        between_cv: Part of `process_cv` that the spread within processes does not explain; None
            if unknown.
        reason: Why there is no interval; None if there is one.
    """

    value: float
    low: float | None
    high: float | None
    minimum: float
    maximum: float
    cv: float | None
    error: float | None = None
    process_cv: float | None = None
    between_cv: float | None = None
    reason: str | None = None


def quantile(values: Sequence[float], share: float) -> float:
    """Return a linearly interpolated quantile (type 7 of Hyndman and Fan).

    Args:
        values: At least one value, in any order.
        share: Share of the values below the quantile, in 0..1.
    """
    return float(np.quantile(values, share))


def quantile_metrics(
    name: str,
    share: float,
    each: Sequence[Sequence[float]],
    of: Callable[[Sequence[float], float], float],
    scale: float = 1.0,
) -> dict[str, float]:
    """Return a quantile of latencies and its 95% interval, as metrics in ms.

    The quantile is the geometric mean of the processes' quantiles. The ends of the interval are
    order statistics of all values. If neighboring values are dependent, the interval is computed
    for a smaller, effective number of values. With several processes, the interval also covers the
    95% interval of that geometric mean.

    An end that would lie beyond all values is omitted. If neighboring values are strongly
    dependent, a queue may still be growing. The upper end is then omitted if processes have fewer
    than 20 effectively independent values (`_MIN_INDEPENDENT`). Both ends are omitted if a single
    process has fewer than 50 (`_MIN_INDEPENDENT_ALONE`).

    Args:
        name: Prefix of the metrics' names.
        share: Share of the values below the quantile, in 0..1.
        each: Positive values of each process, in the order in which they were measured.
        of: Function that returns the quantile of a process, given its values and `share`.
        scale: Factor that converts a value to ms.

    Returns:
        The metrics `{name}_ms`, `{name}_low_ms` and `{name}_high_ms`, the last two if known.
    """
    values = [of(process, share) for process in each]
    middle = statistics.geometric_mean(values)
    ordered = sorted(value for process in each for value in process)
    factor = statistics.fmean(
        events_factor([*accumulate(entry > middle for entry in process)]) for process in each
    )
    first, last = quantile_ranks(len(ordered), share, factor)
    low: float | None = None
    high: float | None = None
    needed = _MIN_INDEPENDENT if len(each) > 1 else _MIN_INDEPENDENT_ALONE
    has_enough = len(ordered) / len(each) / factor >= needed or factor <= _STRONG_DEPENDENCE
    if first is not None and (has_enough or len(each) > 1):
        low = ordered[max(first, 0)]
    if last is not None and has_enough:
        high = ordered[last]
    if len(each) > 1:
        lowest_mean, highest_mean = mean_interval(values)
        if low is not None:
            low = min(low, lowest_mean)
        if high is not None:
            high = max(high, highest_mean)
    found = known_values({f"{name}_ms": middle, f"{name}_low_ms": low, f"{name}_high_ms": high})
    return {key: scale * value for key, value in found.items()}


def t_quantile(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t distribution with `degrees` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def mean_interval(values: Sequence[float], widening: float = 1.0) -> tuple[float, float]:
    """Return the 95% interval of the geometric mean of independent positive values.

    This is Student's interval of the mean logarithm.

    Args:
        values: At least two values.
        widening: Factor by which the half-width of the logarithmic interval is multiplied.

    Returns:
        The lower and the upper end, in the unit of the values.
    """
    logs = [math.log(value) for value in values]
    middle = statistics.fmean(logs)
    half = widening * t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    # Limit the exponents to the range of floats.
    low, high = (math.exp(min(max(end, -700.0), 700.0)) for end in (middle - half, middle + half))
    return low, high


def narrow_enough(processes: Sequence[Sequence[float]], goal: float) -> bool:
    """Return whether the 95% interval over processes is narrow enough to stop measuring.

    The relative half-width of the interval must be at most `goal`. Stopping at the first narrow
    interval would favor intervals that are narrow by chance. The interval is therefore widened by
    the factor `STOPPING_FACTOR`. A term that decreases with the number of processes is also added
    to its squared half-width (Chow and Robbins, Annals of Mathematical Statistics 36, 1965). The
    resulting coverage is 93.9 to 96.5%.

    Args:
        processes: Values of each process, such as step times; at least two processes.
        goal: Largest half-width of the interval, as a share of the value.
    """
    found = summarize(processes, stopped_by_interval=True)
    count = len(processes)
    if found.low is None or found.high is None:
        return False
    student = STOPPING_FACTOR * t_quantile(count - 1) / statistics.NormalDist().inv_cdf(0.975)
    half_width = (found.high - found.low) / 2 / found.value
    chance = 2 * (student * goal / count) ** 2
    return half_width**2 + chance <= goal**2


def summarize(
    processes: Sequence[Sequence[float]], *, stopped_by_interval: bool = False
) -> Summarized:
    """Summarize the values of one or more processes.

    For one process, the value is the median, and `paradnn.worker.series.block_interval` computes
    the interval. For several processes, the value is the geometric mean of their medians, with the
    interval of that mean (Kalibera and Jones, ISMM 2013). That interval is omitted if it extends
    beyond the range of all values by more than the length of that range, on a logarithmic scale.

    Args:
        processes: Positive values of each process, in the order in which they were measured.
        stopped_by_interval: Whether processes were added until the interval was narrow enough
            (`narrow_enough`). The interval is then widened by `STOPPING_FACTOR`.
    """
    medians = [statistics.median(values) for values in processes]
    spreads = [
        statistics.stdev(values) / statistics.fmean(values)
        for values in processes
        if len(values) > 1
    ]
    if spreads:
        cv = math.sqrt(statistics.fmean(spread**2 for spread in spreads))
    else:
        cv = None
    minimum = min(map(min, processes))
    maximum = max(map(max, processes))
    # Standard errors of the logarithms of medians; the values are correlated in time.
    errors = [_log_error(values) for values in processes]
    reason = None
    if len(medians) == 1:
        low, high = block_interval(processes[0]) or (None, None)
        if low is None:
            reason = missing_interval_reason(processes[0])
        return Summarized(medians[0], low, high, minimum, maximum, cv, errors[0], reason=reason)
    widening = 1.0
    if stopped_by_interval:
        widening = STOPPING_FACTOR
    low, high = mean_interval(medians, widening)
    if low < minimum / (maximum / minimum) or high > maximum * (maximum / minimum):
        difference = max(medians) / min(medians) - 1
        low = None
        high = None
        reason = (
            f"the medians of {len(medians)} processes differ by up to {difference:.0%}, too much "
            "for an interval from so few processes; raise measure.processes"
        )
    process_cv = statistics.stdev(math.log(value) for value in medians)
    known = [error for error in errors if error is not None]
    between = None
    if len(known) == len(errors):
        within = statistics.fmean(error**2 for error in known)
        between = math.sqrt(max(0.0, process_cv**2 - within))
    value = statistics.geometric_mean(medians)
    error = process_cv / math.sqrt(len(medians))
    return Summarized(value, low, high, minimum, maximum, cv, error, process_cv, between, reason)


def _log_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the logarithm of the median of a process's values.

    None if there are too few values for an interval of the median.
    """
    ends = widened_interval(values)
    if ends is None:
        return None
    return math.log(ends[1] / ends[0]) / (2 * 1.96)


@dataclass(frozen=True)
class Measured:
    """A measured point (configuration): everything from which its MLflow run is computed.

    Attributes:
        point: The measured configuration.
        environment: Hardware and software versions under which it was measured.
        costs: FLOPs, bytes and parameters of a step.
        results: Results of its processes; the last one may be a failure.
        tags: Tags with which its run began.
        peaks: Peak FLOP/s and memory bandwidth of its devices, as metrics
            (`hardware_peaks.device_peaks`).
        load: Load average of the host at the start; None if unknown.
        start_time: Start in Unix milliseconds.
        end_time: End in Unix milliseconds.
        memory_limit: Limit of the host memory in bytes; None if no process was started.
        idle_watts: Power of its platform in watts while nothing runs; None if unknown.
    """

    point: Point
    environment: Environment
    costs: Costs
    results: Sequence[PointResult]
    tags: Mapping[str, str]
    peaks: Mapping[str, float]
    load: float | None
    start_time: int
    end_time: int
    memory_limit: int | None = None
    idle_watts: float | None = None

    @property
    def answers(self) -> list[Answer]:
        """Messages with results, from those processes that returned one."""
        return [result.answer for result in self.results if result.answer]

    @property
    def timed(self) -> list[Measurement]:
        """Measurements of the processes that timed steps."""
        return measurements(self.answers)

    @property
    def step(self) -> Summarized:
        """Summary of the step times of all processes, in seconds; at least one must be timed."""
        measure = self.point.measure
        stopped_by_interval = measure.relative_interval is not None and measure.processes > 1
        return summarize(
            [entry.timing.step_times for entry in self.timed],
            stopped_by_interval=stopped_by_interval,
        )

    def ending(self) -> tuple[str, str | None]:
        """Return the outcome of the point and its reason.

        The outcome is that of the first process that did not end with `ok`; otherwise `ok`. The
        reason is None if the outcome needs none.
        """
        for number, result in enumerate(self.results, 1):
            if result.outcome != "ok":
                where = f"process {number}: " if number > 1 else ""
                return result.outcome, f"{where}{result.reason}"
        return "ok", self.results[-1].reason


def measurements(answers: Sequence[Answer]) -> list[Measurement]:
    """Return the measurements of timed steps from the results of a point's processes.

    Args:
        answers: The result message of each process. Those without timed steps are skipped.
    """
    return [answer.measurement for answer in answers if answer.measurement]
