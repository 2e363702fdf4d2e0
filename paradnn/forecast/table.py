"""Planned points and past runs side by side, as columns: what a prediction is made from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from paradnn.config.identity import as_params, point_request
from paradnn.config.point import Point, step_costs
from paradnn.core.errors import ConfigError
from paradnn.core.layers import Costs
from paradnn.core.workload import WORKLOADS
from paradnn.families import FAMILIES, Model, make_model
from paradnn.forecast.history import CompletedRun
from paradnn.statistics.robust_regression import Array
from paradnn.store.files import read_json
from paradnn.store.metrics import PHASES
from paradnn.store.runs import ADDED_PARAMS

#: FLOP/s and B/s that one of these devices can do at most, and cores of its host: of a device,
#: framework and precision.
Rates = Callable[[str, str, str], tuple[float, float, float]]
#: The session that is to come.
PLANNED = "planned"
_COSTS = ("flops_per_step", "bytes_per_step", "parameters")
#: Keys that may change a step's time beside the model's and the batch.
_WORDS = (
    "mode",
    "precision",
    "compile",
    "optimizer.name",
    "devices",
    "transport",
    "hosts",
    "data.name",
)
_WORD_GROUPS = ("framework.", "platform.")
#: Groups of keys that do not change what a step is.
_ASIDE = ("measure", "software", "replicate", "seed", "scenario", "task")

#: What the time of a point depends on, of the group `measure`: seconds, or counts of blocks.
MEASURE_KEYS = (
    "min_seconds",
    "min_blocks",
    "max_seconds",
    "block_seconds",
    "warmup_seconds",
    "timeout",
)
#: Phases that each process of a point has; a profile has the first alone, and all are recorded at
#: once.
EACH_PROCESS = tuple(name for name in PHASES if name not in ("profile", "record"))
#: A worker's first start is longer than this: it waits for the framework's import, which is counted
#: apart. What it is followed by in the further processes of its point is shorter than the second,
#: each.
IMPORT_SECONDS = 0.5
_FURTHER = 0.1
#: What `stated_noise` takes, as metrics of runs.
NOISE_METRICS = ("step_time_low_ms", "step_time_high_ms", "processes", "blocks", "step_time_error")
#: Blocks of a single process where a run does not say.
_USUAL_BLOCKS = 20.0


@dataclass(frozen=True)
class Table:
    """n points or runs, an entry each in every column.

    rows: keys as the store keeps them. sessions: the sweep that measured it, or is to. costs: (n,
    3) FLOPs and bytes of a step, parameters. peaks: (n, 3) FLOP/s and B/s of one device, cores of
    the host. load: runnable threads of the host beside it, NaN where unknown.
    """

    rows: Sequence[Mapping[str, str]]
    environments: Sequence[str]
    sessions: Sequence[str]
    costs: Array
    peaks: Array
    load: Array

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, key: str) -> NDArray[np.str_]:
        """(n,) values of one key as text, "null" where a row lacks it."""
        return np.array([row.get(key, "null") for row in self.rows], dtype=str)

    def number(self, key: str) -> Array:
        """(n,) values of one key as numbers, NaN where they are none."""
        values = (_value(row.get(key, "null")) for row in self.rows)
        return np.array(
            [value if isinstance(value, (int, float)) else np.nan for value in values], dtype=float
        )

    def count(self, key: str) -> Array:
        """(n,) values of one key that counts from one, which what says nothing is taken for."""
        return np.asarray(np.fmax(self.number(key), 1.0))

    @cached_property
    def model_keys(self) -> list[str]:
        """The keys of models that any row has, but for the name."""
        return sorted(
            {key for row in self.rows for key in row if key.startswith("model.")} - {"model.name"}
        )

    @cached_property
    def families(self) -> list[str]:
        """The family of every row."""
        return [row.get("model.name", "") for row in self.rows]

    @cached_property
    def layers(self) -> Array:
        """(n,) layers; ten for a model that this version does not know."""
        return np.array(self._of_models(Model.layer_count, 10), dtype=float)

    @cached_property
    def examples(self) -> Array:
        """(n, 2) numbers of an example's input and of its target, a one for each class; of a model
        that this version does not know a thousand and ten.
        """
        return np.array(self._of_models(Model.example_sizes, (1000, 10)), dtype=float).reshape(
            -1, 2
        )

    def _of_models(self, figure: Callable[[Model], Any], unknown: Any) -> list[Any]:
        models = (
            tuple(item for item in row.items() if item[0].startswith("model.")) for row in self.rows
        )
        return [of_model(items, figure, unknown) for items in models]

    @cached_property
    def words(self) -> list[frozenset[tuple[str, str]]]:
        """What may change a step's time and is not at its default, as (key, value)."""
        point = as_params(point_request(Point(model=None)))  # type: ignore[arg-type]
        usual = {
            **ADDED_PARAMS,
            **{key: value for key, value in point.items() if key != "model"},
        }.items()
        return [
            frozenset(
                item
                for item in row.items() - usual
                if item[0] in _WORDS or item[0].startswith(_WORD_GROUPS)
            )
            for row in self.rows
        ]

    @cached_property
    def steps(self) -> list[str]:
        """What distinguishes one step from another."""
        items = (
            ((key, value) for key, value in sorted(row.items()) if value != "null")
            for row in self.rows
        )
        aside = {*_ASIDE, *(work.group for work in WORKLOADS.values() if work.step_ignores_keys)}
        return [
            "|".join(f"{key}={value}" for key, value in row if key.split(".")[0] not in aside)
            for row in items
        ]

    @property
    def profiled(self) -> NDArray[np.bool_]:
        """(n,) whether its steps are profiled after they are timed."""
        return np.asarray(
            (self.text("measure.profile") == "true") | (self.text("measure.keep_trace") == "true")
        )


def _known(costs: Array, rows: Sequence[Mapping[str, str]]) -> Array:
    """(n, 3) costs of 1 at least, by which they are divided; of 1 where they are known once the row
    was measured.
    """
    names = {name for name, family in FAMILIES.items() if family.options.is_counted}
    counted = np.array([[row.get("model.name") in names] for row in rows], dtype=bool).reshape(
        -1, 1
    )
    return np.asarray(np.where(counted, 1.0, np.maximum(costs, 1.0)))


@functools.lru_cache(maxsize=65536)
def of_model(items: tuple[tuple[str, str], ...], figure: Callable[..., Any], unknown: Any) -> Any:
    """`figure` of the model that items of a row say as the store keeps them, and of the row's other
    keys by name; `unknown` of a model that this version does not know.
    """
    row = {key: _value(text) for key, text in items}
    model = {key.removeprefix("model."): row.pop(key) for key in [*row] if key.startswith("model.")}
    try:
        return figure(make_model(model), **row)
    except (KeyError, TypeError, ValueError, ArithmeticError, ConfigError):
        return unknown


_LARGEST_SIZE = 10**18  # a number in a store that is larger is no size of anything


@functools.lru_cache(maxsize=65536)
def _value(text: str) -> Any:
    try:
        value = read_json(text)
    except ValueError:
        return text
    if isinstance(value, (int, float)) and not abs(value) <= _LARGEST_SIZE:
        return text
    return value


def cost_columns(points: Sequence[Point]) -> dict[str, NDArray[np.float64]]:
    """Every field of the points' `Costs`, (n,) each."""
    found = np.empty((len(points), len(fields(Costs))))
    for index, point in enumerate(points):
        found[index] = tuple(vars(step_costs(point)).values())
    return dict(zip((entry.name for entry in fields(Costs)), found.T, strict=True))


def row_of(point: Point) -> dict[str, str]:
    """The keys of `point` as the store keeps them."""
    return as_params(point_request(point))


def table_of_points(
    points: Sequence[Point], environments: Sequence[str], devices: Sequence[str], rates: Rates
) -> Table:
    """The table of planned points, from the ids and devices of their environments."""
    columns = cost_columns(points)
    costs = np.stack([columns[name] for name in _COSTS], axis=1)
    load = np.full(len(points), np.nan)
    # As past runs have them, with keys that points no longer have: else nothing planned is like
    # anything measured.
    rows = [{**ADDED_PARAMS, **row_of(point)} for point in points]
    peaks = _peaks(rows, devices, rates)
    return Table(rows, environments, [PLANNED] * len(points), _known(costs, rows), peaks, load)


def _peaks(rows: Sequence[Mapping[str, str]], devices: Sequence[str], rates: Rates) -> Array:
    names = ((row.get("framework.name", ""), row.get("precision", "")) for row in rows)
    peaks = [rates(device, *name) for device, name in zip(devices, names, strict=True)]
    return np.array(peaks, dtype=float).reshape(-1, 3)


@dataclass(frozen=True)
class RunHistory:
    """Measured runs, an entry each in every column; NaN where a run has none.

    step: seconds. phases: name -> seconds; those in `EACH_PROCESS` of one process. warmup_blocks:
    of one process before the measured ones, calibration included. steady: 1 or 0. gaps: seconds
    until the session's next point began, unless the processes of several points took turns. noise:
    standard deviation of the logarithm of `step`, from its interval.
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
    def of(cls, runs: Sequence[CompletedRun], rates: Rates) -> RunHistory:
        """What measured runs say; those without a step time, or of another version's making, say
        nothing.
        """
        ordered = sorted(runs, key=lambda run: run.start)
        gaps = _gaps(ordered)
        usable = [run for run in ordered if _is_usable(run)]

        def metric(name: str) -> Array:
            return np.array([run.metrics.get(name, np.nan) for run in usable], dtype=float)

        # A key that came later than a run counts as what it had.
        rows = [{**ADDED_PARAMS, **run.params} for run in usable]
        table = Table(
            rows,
            environments=[run.tags.get("environment_id", "") for run in usable],
            sessions=[run.tags.get("sweep_id", run.run_id) for run in usable],
            costs=_known(np.stack([metric(name) for name in _COSTS], axis=1), rows),
            peaks=_peaks(rows, [run.tags.get("device", "") for run in usable], rates),
            load=metric("load_average"),
        )
        processes = np.nan_to_num(metric("processes"), nan=1.0)
        phases = {name: metric(f"phase_{name}_seconds") for name in PHASES}
        # The mean over several processes would hide an import.
        imported = (processes > 1) & (phases["start"] > IMPORT_SECONDS + _FURTHER * (processes - 1))
        phases["start"] = np.where(imported, np.nan, phases["start"])
        return cls(
            table=table,
            step=metric("step_time_ms") / 1e3,
            phases={
                name: seconds / processes if name in EACH_PROCESS else seconds
                for name, seconds in phases.items()
            },
            warmup_blocks=metric("warmup_blocks") / processes,
            steady=np.array(
                [
                    {"true": 1.0, "false": 0.0}.get(run.tags.get("steady", ""), np.nan)
                    for run in usable
                ]
            ),
            gaps=np.array([gaps.get(run.run_id, np.nan) for run in usable]),
            noise=stated_noise(*map(metric, NOISE_METRICS)),
        )


def _is_usable(run: CompletedRun) -> bool:
    numbers = [
        run.metrics.get(name, np.nan)
        for name in ("step_time_ms", "flops_per_step", "bytes_per_step")
    ]
    settings = [run.params.get(f"measure.{name}", "") for name in MEASURE_KEYS]
    return (
        run.tags.get("outcome") == "ok"
        and all(np.isfinite(value) and value > 0 for value in numbers)
        and run.metrics.get("parameters", np.nan) >= 0  # a kernel has none
        and all(text.replace(".", "", 1).replace("e-", "", 1).isdigit() for text in settings)
    )


def _gaps(runs: Sequence[CompletedRun]) -> dict[str, float]:
    """By run, in the order of their start, the seconds until the next of its session, both of one
    process.
    """
    gaps: dict[str, float] = {}
    latest: dict[str, CompletedRun] = {}  # the last run of each session
    for run in runs:
        session = run.tags.get("sweep_id")
        if session:
            before = latest.get(session)
            if before and all(one.metrics.get("processes", 1) == 1 for one in (before, run)):
                gaps[before.run_id] = run.start - before.start
            latest[session] = run
    return gaps


def stated_noise(low: Array, high: Array, processes: Array, blocks: Array, error: Array) -> Array:
    """Standard deviations of the logarithms of step times (n,): their `error`, of a single process
    as if the interval that follows from it were Student's of `stated_freedom`; where a run has
    none, from its 95% interval.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        halves = np.where(
            np.isfinite(error) & (processes <= 1),
            stdtrit(np.inf, 0.975) * error,
            np.log(high / low) / 2,
        )
    known = np.where(np.isfinite(halves) & (halves > 0), halves, np.nan)
    noise = known / stdtrit(stated_freedom(processes, blocks), 0.975)
    return np.asarray(np.where(np.isfinite(error) & (processes > 1), error, noise))


def stated_freedom(processes: Array, blocks: Array) -> Array:
    """(n,) degrees of freedom of runs' intervals: processes less one; of a single process a quarter
    of its blocks.

    The interval of one process is over its blocks, which are correlated in time. A quarter was
    found by simulation: the figure of merit of 12 points of 6 to 40 blocks each, AR(1) with a
    coefficient of 0 .. 0.7, is covered by 92 to 100%.
    """
    of_blocks = np.maximum(np.where(np.isfinite(blocks), blocks, _USUAL_BLOCKS) / 4, 2.0)
    return np.asarray(np.where(processes > 1, processes - 1, of_blocks))
