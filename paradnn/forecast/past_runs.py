"""From past runs to what a prediction needs of them: their table, step times, phases, and the gaps between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from paradnn.forecast.history import Past
from paradnn.forecast.regression import Array
from paradnn.forecast.table import Rates, Table, table_of_runs
from paradnn.forecast.timing import MeasureColumns
from paradnn.store.metrics import PHASES

__all__ = ["EACH_PROCESS", "IMPORT_SECONDS", "NOISE_METRICS", "PastRuns", "stated_freedom", "stated_noise"]

#: Phases that each process of a point has; a profile has the first alone, and all are recorded at once.
EACH_PROCESS = tuple(name for name in PHASES if name not in ("profile", "record"))

#: A worker's first start is longer than this: it waits for the framework's import, which is counted apart. What it is
#: followed by in the further processes of its point is shorter than the second, each.
IMPORT_SECONDS, _FURTHER = 0.5, 0.1
#: What `stated_noise` takes, as metrics of runs.
NOISE_METRICS = ("step_time_low_ms", "step_time_high_ms", "processes", "blocks", "step_time_error")
#: Blocks of a single process where a run does not say.
_USUAL_BLOCKS = 20.0
_NEEDED = ("step_time_ms", "flops_per_step", "bytes_per_step")


@dataclass(frozen=True)
class PastRuns:
    """Measured runs, an entry each in every column; NaN where a run has none.

    step: seconds. phases: name -> seconds; those in `EACH_PROCESS` of one process. warmup_blocks: of one process before
    the measured ones, calibration included. steady: 1 or 0. gaps: seconds until the session's next point began, unless
    the processes of several points took turns. noise: standard deviation of the logarithm of `step`, from its interval.
    """

    table: Table
    step: Array
    phases: Mapping[str, Array]
    warmup_blocks: Array
    steady: Array
    gaps: Array
    noise: Array

    def __len__(self) -> int:
        return len(self.step)

    @classmethod
    def of(cls, runs: Sequence[Past], rates: Rates) -> PastRuns:
        """What measured runs say; those without a step time, or of another version's making, say nothing."""
        ordered = sorted(runs, key=lambda run: run.start)
        gaps = [gap for run, gap in zip(ordered, _gaps(ordered), strict=True) if _is_usable(run)]
        usable = [run for run in ordered if _is_usable(run)]
        processes = np.nan_to_num(_metric(usable, "processes"), nan=1.0)
        phases = {name: _metric(usable, f"phase_{name}_seconds") for name in PHASES}
        # The mean over several processes would hide an import.
        imported = (processes > 1) & (phases["start"] > IMPORT_SECONDS + _FURTHER * (processes - 1))
        phases["start"] = np.where(imported, np.nan, phases["start"])
        return cls(
            table=table_of_runs(usable, rates),
            step=_metric(usable, "step_time_ms") / 1e3,
            phases={name: seconds / processes if name in EACH_PROCESS else seconds for name, seconds in phases.items()},
            warmup_blocks=_metric(usable, "warmup_blocks") / processes,
            steady=np.array([{"true": 1.0, "false": 0.0}.get(run.tags.get("steady", ""), np.nan) for run in usable]),
            gaps=np.array(gaps),
            noise=stated_noise(*(_metric(usable, name) for name in NOISE_METRICS)),
        )


def _is_usable(run: Past) -> bool:
    numbers = [run.metrics.get(name, np.nan) for name in _NEEDED]
    parameters = run.metrics.get("parameters", np.nan)
    settings = [run.params.get(f"measure.{name}", "") for name in MeasureColumns.__dataclass_fields__]
    return (
        run.tags.get("outcome") == "ok"
        and all(np.isfinite(value) and value > 0 for value in numbers)
        and parameters >= 0  # a kernel has none
        and all(text.replace(".", "", 1).replace("e-", "", 1).isdigit() for text in settings)
    )


def _gaps(runs: Sequence[Past]) -> Array:
    """Runs are in the order of their start."""
    gaps = np.full(len(runs), np.nan)
    latest: dict[str, int] = {}  # the index of each session's last run
    for index, run in enumerate(runs):
        session = run.tags.get("sweep_id")
        if session:
            before = latest.get(session)
            if before is not None and all(runs[at].metrics.get("processes", 1) == 1 for at in (before, index)):
                gaps[before] = run.start - runs[before].start
            latest[session] = index
    return gaps


def stated_noise(low: Array, high: Array, processes: Array, blocks: Array, error: Array) -> Array:
    """Standard deviations of the logarithms of step times (n,): their `error`, of a single process as if the interval
    that follows from it were Student's of `stated_freedom`; where a run has none, from its 95% interval."""
    with np.errstate(invalid="ignore", divide="ignore"):
        halves = np.where(np.isfinite(error) & (processes <= 1), stdtrit(np.inf, 0.975) * error, np.log(high / low) / 2)
    known = np.where(np.isfinite(halves) & (halves > 0), halves, np.nan)
    noise = known / stdtrit(stated_freedom(processes, blocks), 0.975)
    return np.asarray(np.where(np.isfinite(error) & (processes > 1), error, noise))


def stated_freedom(processes: Array, blocks: Array) -> Array:
    """(n,) degrees of freedom of runs' intervals: processes less one; of a single process a quarter of its blocks.

    The interval of one process is over its blocks, which are correlated in time. A quarter was found by simulation: the
    figure of merit of 12 points of 6 to 40 blocks each, AR(1) with a coefficient of 0 .. 0.7, is covered by 92 to 100%.
    """
    of_blocks = np.maximum(np.where(np.isfinite(blocks), blocks, _USUAL_BLOCKS) / 4, 2.0)
    return np.asarray(np.where(processes > 1, processes - 1, of_blocks))


def _metric(runs: Sequence[Past], name: str) -> Array:
    return np.array([run.metrics.get(name, np.nan) for run in runs], dtype=float)
