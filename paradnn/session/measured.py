"""A point as it was measured: what its workers answered, what several processes say of one value,
and whether that contradicts itself. Its metrics are its kind of work's (`paradnn.workloads`).
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

LOOKED = 1.1  # by so much wider is the interval of processes whose number it has itself decided


@dataclass(frozen=True)
class Summarised:
    """Location and spread of positive values that one or more processes took, in their own unit.
    `low` and `high`: the 95% interval of `value`, None where there is too little for one, as
    `reason` says; `error`: the standard error of its logarithm. `cv`: standard deviation over mean
    within a process; `process_cv`: standard deviation of the logarithms of their medians;
    `between_cv`: what of it the spread within does not explain.
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
    """Linearly interpolated quantile (type 7); `share` in 0..1."""
    return float(np.quantile(values, share))


#: Values of a process that must say something new for an upper end, where neighbours resemble each
#: other so much.
_SEEN = 20
_ALIKE = 2.0


def quantile_metrics(
    name: str,
    share: float,
    each: Sequence[Sequence[float]],
    of: Callable[[Sequence[float], float], float],
    scale: float = 1.0,
) -> dict[str, float]:
    """A quantile, as `of` takes it of the values of each process, and its 95% interval, in ms
    (values times `scale`): by order statistics of all values, with what neighbours have in common
    taken off their number, and as far as the spread of the processes' own quantiles reaches. An end
    beyond all values is not known, nor the upper one where a process has fewer than `_SEEN` values
    that say something new: a queue that fills slowly has not shown how long it gets.
    """
    values = [of(process, share) for process in each]
    middle = statistics.geometric_mean(values)
    ordered = sorted(value for process in each for value in process)
    factor = statistics.fmean(
        events_factor([*accumulate(entry > middle for entry in process)]) for process in each
    )
    first, last = quantile_ranks(len(ordered), share, factor)
    low = None if first is None else ordered[max(first, 0)]
    high = None if last is None else ordered[last]
    if len(each) > 1:
        ends = mean_interval(values)
        low = None if low is None else min(low, ends[0])
        seen = len(ordered) / len(each) / factor >= _SEEN or factor <= _ALIKE
        high = max(high, ends[1]) if high is not None and seen else None
    found = known_values({f"{name}_ms": middle, f"{name}_low_ms": low, f"{name}_high_ms": high})
    return {key: scale * value for key, value in found.items()}


def t_quantile(degrees: int) -> float:
    """The 97.5% quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def mean_interval(values: Sequence[float], widening: float = 1.0) -> tuple[float, float]:
    """95% interval of the geometric mean of two or more independent positive values: Student's, of
    their logarithms.
    """
    logs = [math.log(value) for value in values]
    middle = statistics.fmean(logs)
    half = widening * t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = (
        math.exp(min(max(end, -700.0), 700.0)) for end in (middle - half, middle + half)
    )  # floats hold them
    return low, high


def narrow_enough(processes: Sequence[Sequence[float]], goal: float) -> bool:
    """Whether no more processes are needed for an interval whose half is the share `goal` of the
    value. The first one that is narrow may be so by chance: it is `LOOKED` times as wide, and its
    half, squared, has what the chance of few processes would add (after Chow and Robbins, Annals of
    Mathematical Statistics 36, 1965): it holds 93.9 to 96.5%.
    """
    found = summarise(processes, looked=True)
    count = len(processes)
    if found.low is None or found.high is None:
        return False
    student = LOOKED * t_quantile(count - 1) / statistics.NormalDist().inv_cdf(0.975)
    return ((found.high - found.low) / 2 / found.value) ** 2 + 2 * (
        student * goal / count
    ) ** 2 <= goal**2


def summarise(processes: Sequence[Sequence[float]], looked: bool = False) -> Summarised:
    """What values say that each process took one after the other. One process: their median with
    `block_interval`. Several: the geometric mean of their medians and the interval that those alone
    give (Kalibera and Jones, ISMM 2013); none where it would go further beyond all blocks than they
    lie apart. `looked`: their number came from it (`narrow_enough`).
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
    # Of the logarithms of medians of values that are correlated in time.
    errors = [
        (ends := widened_interval(values)) and math.log(ends[1] / ends[0]) / (2 * 1.96)
        for values in processes
    ]
    if len(medians) == 1:
        low, high = block_interval(processes[0]) or (None, None)
        reason = missing_interval_reason(processes[0]) if low is None else None
        return Summarised(medians[0], low, high, minimum, maximum, cv, errors[0], reason=reason)
    low, high = mean_interval(medians, LOOKED if looked else 1.0)
    reason = None
    if low < minimum / (maximum / minimum) or high > maximum * (maximum / minimum):
        apart = f"{len(medians)} processes lie {max(medians) / min(medians) - 1:.0%} apart"
        low = None
        high = None
        reason = f"{apart}, which says too little of further ones; raise measure.processes"
    process_cv = statistics.stdev(math.log(value) for value in medians)
    known = [error for error in errors if error is not None]
    if len(known) == len(errors):
        within = statistics.fmean(error**2 for error in known)
    else:
        within = None
    if within is None:
        between = None
    else:
        between = math.sqrt(max(0.0, process_cv**2 - within))
    value = statistics.geometric_mean(medians)
    error = process_cv / math.sqrt(len(medians))
    return Summarised(value, low, high, minimum, maximum, cv, error, process_cv, between, reason)


@dataclass(frozen=True)
class Measured:
    """A point as it was measured: `results` of its processes, of which the last may have failed,
    the `tags` its run was begun with, `peaks` of its devices, the host's `load` average at its
    start; times are Unix milliseconds.
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

    @property
    def answers(self) -> list[Answer]:
        """What the processes answered that lived to do so."""
        return [result.answer for result in self.results if result.answer]

    @property
    def timed(self) -> list[Measurement]:
        """What the timed steps of each process gave."""
        return measurements(self.answers)

    @property
    def step(self) -> Summarised:
        """The step times of all processes."""
        measure = self.point.measure
        looked = measure.relative_interval is not None and measure.processes > 1
        return summarise([entry.timing.step_times for entry in self.timed], looked)

    def ending(self) -> tuple[str, str | None]:
        """Outcome and reason: `ok` where all processes are."""
        for number, result in enumerate(self.results, 1):
            if result.outcome != "ok":
                where = f"process {number}: " if number > 1 else ""
                return result.outcome, f"{where}{result.reason}"
        return "ok", self.results[-1].reason


def measurements(answers: Sequence[Answer]) -> list[Measurement]:
    """What the timed steps of each process gave."""
    return [answer.measurement for answer in answers if answer.measurement]
