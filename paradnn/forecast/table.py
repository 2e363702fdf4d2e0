"""Planned points and past runs as columns: the inputs of a prediction."""

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

#: Returns the highest FLOP/s and B/s of one device, and the number of cores of its host. The
#: arguments are the device, the framework and the precision.
Rates = Callable[[str, str, str], tuple[float, float, float]]
#: The session id of planned points.
PLANNED_SESSION = "planned"
_COSTS = ("flops_per_step", "bytes_per_step", "parameters")
#: Keys that may change a step's time, apart from the model's keys and the batch size.
_SETTINGS = (
    "mode",
    "precision",
    "compile",
    "optimizer.name",
    "devices",
    "parallel",
    "transport",
    "hosts",
    "data.name",
)
#: Prefixes of further such keys.
_SETTING_GROUPS = ("framework.", "platform.")
#: Groups of keys that do not change a step.
_IGNORED_GROUPS = ("measure", "software", "replicate", "seed", "scenario", "task")

#: Keys of the group `measure` that the time of a point depends on: seconds, or counts of blocks.
MEASURE_KEYS = (
    "min_seconds",
    "min_blocks",
    "max_seconds",
    "block_seconds",
    "warmup_seconds",
    "timeout",
)
#: Phases that each process of a point has. Only the first process has a profile, and all processes
#: are recorded at once.
PHASES_PER_PROCESS = tuple(name for name in PHASES if name not in ("profile", "record"))
#: The first start of a worker takes longer than this, since it imports the framework. The forecast
#: counts that import separately.
IMPORT_SECONDS = 0.5
#: The start of each further process of a point takes less than this.
_FURTHER_START_SECONDS = 0.1
#: The metrics of runs that `stated_noise` takes.
NOISE_METRICS = ("step_time_low_ms", "step_time_high_ms", "processes", "blocks", "step_time_error")
#: Blocks of a single process if the run does not state them.
_DEFAULT_BLOCKS = 20.0
#: Layers, and numbers of an example's input and target, of a model that this version does not know.
_UNKNOWN_LAYERS = 10
_UNKNOWN_SIZES = (1000, 10)


@dataclass(frozen=True)
class Table:
    """n points or runs. Every column has one entry per row.

    Attributes:
        rows: Params by key, as the store keeps them.
        environments: Ids of the environments.
        sessions: The sweep that measured the run, or `PLANNED_SESSION`.
        costs: FLOPs per step, bytes per step and parameters (n, 3).
        peaks: FLOP/s and B/s of one device, and cores of the host (n, 3).
        load: Runnable threads on the host during the run (n,), NaN where unknown.
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
        """Return the values (n,) of a key as text, "null" where a row lacks it."""
        return np.array([row.get(key, "null") for row in self.rows], dtype=str)

    def number(self, key: str) -> Array:
        """Return the values (n,) of a key as numbers, NaN where they are not numbers."""
        values = [_parse_value(row.get(key, "null")) for row in self.rows]
        return np.array(
            [value if isinstance(value, (int, float)) else np.nan for value in values], dtype=float
        )

    def count(self, key: str) -> Array:
        """Return the values (n,) of a key as numbers of at least 1; missing values become 1."""
        return np.asarray(np.fmax(self.number(key), 1.0))

    @cached_property
    def model_keys(self) -> list[str]:
        """The keys of model options that any row has, without the name."""
        keys = {key for row in self.rows for key in row if key.startswith("model.")}
        return sorted(keys - {"model.name"})

    @cached_property
    def families(self) -> list[str]:
        """The family of every row."""
        return [row.get("model.name", "") for row in self.rows]

    @cached_property
    def layers(self) -> Array:
        """Numbers of layers (n,); 10 for a model that this version does not know."""
        return np.array(self._for_models(Model.layer_count, _UNKNOWN_LAYERS), dtype=float)

    @cached_property
    def examples(self) -> Array:
        """Sizes of an example's input and of its target (n, 2).

        A class counts as one number. A model that this version does not know counts as 1000 and 10.
        """
        sizes = self._for_models(Model.example_sizes, _UNKNOWN_SIZES)
        return np.array(sizes, dtype=float).reshape(-1, 2)

    def _for_models(self, function: Callable[[Model], Any], default: Any) -> list[Any]:
        """Call a function with the model of each row."""
        results = []
        for row in self.rows:
            items = tuple(item for item in row.items() if item[0].startswith("model."))
            results.append(call_with_model(items, function, default))
        return results

    @cached_property
    def settings(self) -> list[frozenset[tuple[str, str]]]:
        """The settings of each row that may change a step's time, without default values.

        A setting is a pair of key and value.
        """
        point = as_params(point_request(Point(model=None)))  # type: ignore[arg-type]
        point.pop("model", None)
        defaults = {**ADDED_PARAMS, **point}.items()
        return [
            frozenset(
                (key, value)
                for key, value in row.items() - defaults
                if key in _SETTINGS or key.startswith(_SETTING_GROUPS)
            )
            for row in self.rows
        ]

    @cached_property
    def steps(self) -> list[str]:
        """Texts that identify the step of each row: rows with the same step have equal texts."""
        ignored = {*_IGNORED_GROUPS}
        ignored |= {work.group for work in WORKLOADS.values() if work.step_ignores_keys}
        steps = []
        for row in self.rows:
            items = [
                f"{key}={value}"
                for key, value in sorted(row.items())
                if value != "null" and key.split(".")[0] not in ignored
            ]
            steps.append("|".join(items))
        return steps

    @property
    def profiled(self) -> NDArray[np.bool_]:
        """Whether the steps of each row are profiled after they are timed (n,)."""
        has_profile = self.text("measure.profile") == "true"
        keeps_trace = self.text("measure.keep_trace") == "true"
        return np.asarray(has_profile | keeps_trace)


def _at_least_one(costs: Array, rows: Sequence[Mapping[str, str]]) -> Array:
    """Return the costs (n, 3), at least 1 each, because the model takes their logarithms.

    The costs of a family that counts them during a measurement are replaced by 1.
    """
    counted = {name for name, family in FAMILIES.items() if family.options.is_counted}
    is_counted = np.array([[row.get("model.name") in counted] for row in rows], dtype=bool)
    return np.asarray(np.where(is_counted.reshape(-1, 1), 1.0, np.maximum(costs, 1.0)))


@functools.lru_cache(maxsize=65536)
def call_with_model(
    items: tuple[tuple[str, str], ...], function: Callable[..., Any], default: Any
) -> Any:
    """Call a function with the model of a row.

    Args:
        items: Keys and values of the row, as the store keeps them.
        function: Its arguments are the model, and the keys of `items` that are not the model's.
        default: The result for a model that this version does not know or cannot use.
    """
    row = {key: _parse_value(text) for key, text in items}
    options = {}
    for key in list(row):
        if key.startswith("model."):
            options[key.removeprefix("model.")] = row.pop(key)
    try:
        return function(make_model(options), **row)
    except (KeyError, TypeError, ValueError, ArithmeticError, ConfigError):
        return default


#: A larger number in a store is not a size.
_LARGEST_SIZE = 10**18


@functools.lru_cache(maxsize=65536)
def _parse_value(text: str) -> Any:
    """Return the value of a param, or its text if it is not valid JSON or too large."""
    try:
        value = read_json(text)
    except ValueError:
        return text
    if isinstance(value, (int, float)) and not abs(value) <= _LARGEST_SIZE:
        return text
    return value


def cost_columns(points: Sequence[Point]) -> dict[str, NDArray[np.float64]]:
    """Return every field of the points' `Costs` as a column (n,)."""
    names = [entry.name for entry in fields(Costs)]
    costs = np.empty((len(points), len(names)))
    for index, point in enumerate(points):
        costs[index] = tuple(vars(step_costs(point)).values())
    return dict(zip(names, costs.T, strict=True))


def point_params(point: Point) -> dict[str, str]:
    """Return the keys and values of a point as the store keeps them."""
    return as_params(point_request(point))


def make_table(
    points: Sequence[Point], environments: Sequence[str], devices: Sequence[str], rates: Rates
) -> Table:
    """Return the table of planned points.

    Args:
        points: The n points.
        environments: The ids of their environments.
        devices: The names of the devices of these environments.
        rates: Returns the highest rates of a device.
    """
    columns = cost_columns(points)
    costs = np.stack([columns[name] for name in _COSTS], axis=1)
    # Past runs have keys that points no longer have. Planned points get them too, so that they
    # match past runs.
    rows = [{**ADDED_PARAMS, **point_params(point)} for point in points]
    return Table(
        rows=rows,
        environments=environments,
        sessions=[PLANNED_SESSION] * len(points),
        costs=_at_least_one(costs, rows),
        peaks=_peaks(rows, devices, rates),
        load=np.full(len(points), np.nan),
    )


def _peaks(rows: Sequence[Mapping[str, str]], devices: Sequence[str], rates: Rates) -> Array:
    """Return the peaks (n, 3) of the devices of some rows."""
    peaks = [
        rates(device, row.get("framework.name", ""), row.get("precision", ""))
        for device, row in zip(devices, rows, strict=True)
    ]
    return np.array(peaks, dtype=float).reshape(-1, 3)


@dataclass(frozen=True)
class RunHistory:
    """n measured runs. Every column has one entry per run, NaN where a run has no value.

    Attributes:
        table: The runs as rows.
        step: Seconds (n,) of a step.
        phases: Seconds (n,) by phase. The phases in `PHASES_PER_PROCESS` are per process.
        warmup_blocks: Blocks (n,) of one process before the measured blocks, with calibration.
        steady: 1 if the run reached a steady state, else 0 (n,).
        gaps: Seconds (n,) between the starts of the run and of the next point in its session. NaN
            if the processes of several points took turns.
        noise: Standard deviations (n,) of the logarithm of `step`, from the intervals of the runs.
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
    def from_runs(cls, runs: Sequence[CompletedRun], rates: Rates) -> RunHistory:
        """Return the history of the runs that a prediction can use.

        Runs without a step time, and runs of a version with other metrics, are skipped.
        """
        ordered = sorted(runs, key=lambda run: run.start)
        gaps = _gaps(ordered)
        usable = [run for run in ordered if _is_usable(run)]

        def metric(name: str) -> Array:
            return np.array([run.metrics.get(name, np.nan) for run in usable], dtype=float)

        # A run that is older than a key counts as having the key's former behavior.
        rows = [{**ADDED_PARAMS, **run.params} for run in usable]
        costs = np.stack([metric(name) for name in _COSTS], axis=1)
        table = Table(
            rows=rows,
            environments=[run.tags.get("environment_id", "") for run in usable],
            sessions=[run.tags.get("sweep_id", run.run_id) for run in usable],
            costs=_at_least_one(costs, rows),
            peaks=_peaks(rows, [run.tags.get("device", "") for run in usable], rates),
            load=metric("load_average"),
        )
        processes = np.nan_to_num(metric("processes"), nan=1.0)
        phases = {name: metric(f"phase_{name}_seconds") for name in PHASES}
        # The mean over several processes would hide an import.
        longest_start = IMPORT_SECONDS + _FURTHER_START_SECONDS * (processes - 1)
        has_import = (processes > 1) & (phases["start"] > longest_start)
        phases["start"] = np.where(has_import, np.nan, phases["start"])
        for name in PHASES_PER_PROCESS:
            phases[name] = phases[name] / processes
        steady_values = {"true": 1.0, "false": 0.0}
        return cls(
            table=table,
            step=metric("step_time_ms") / 1e3,
            phases=phases,
            warmup_blocks=metric("warmup_blocks") / processes,
            steady=np.array(
                [steady_values.get(run.tags.get("steady", ""), np.nan) for run in usable]
            ),
            gaps=np.array([gaps.get(run.run_id, np.nan) for run in usable]),
            noise=stated_noise(*(metric(name) for name in NOISE_METRICS)),
        )


def _is_usable(run: CompletedRun) -> bool:
    """Whether a run succeeded and has the numbers that a prediction needs."""
    if run.tags.get("outcome") != "ok":
        return False
    for name in ("step_time_ms", "flops_per_step", "bytes_per_step"):
        value = run.metrics.get(name, np.nan)
        if not np.isfinite(value) or value <= 0:
            return False
    if not run.metrics.get("parameters", np.nan) >= 0:  # a kernel has 0
        return False
    settings = [run.params.get(f"measure.{name}", "") for name in MEASURE_KEYS]
    return all(text.replace(".", "", 1).replace("e-", "", 1).isdigit() for text in settings)


def _gaps(runs: Sequence[CompletedRun]) -> dict[str, float]:
    """Return the seconds from the start of each run to the start of the next one in its session.

    Omits pairs in which a point was measured in several processes.

    Args:
        runs: Runs in the order of their starts.
    """
    gaps: dict[str, float] = {}
    latest: dict[str, CompletedRun] = {}  # the last run of each session so far
    for run in runs:
        session = run.tags.get("sweep_id")
        if not session:
            continue
        previous = latest.get(session)
        latest[session] = run
        if previous is None:
            continue
        if previous.metrics.get("processes", 1) == 1 and run.metrics.get("processes", 1) == 1:
            gaps[previous.run_id] = run.start - previous.start
    return gaps


def stated_noise(low: Array, high: Array, processes: Array, blocks: Array, error: Array) -> Array:
    """Return the standard deviations (n,) of log step times that the runs recorded.

    For a run of several processes, it is the recorded standard error. For a single process, it is
    the half width of the 95% interval divided by the quantile of Student's t with `stated_freedom`
    degrees of freedom. The half width is 1.96 recorded standard errors. Runs without a recorded
    standard error use the recorded interval in the same way.

    Args:
        low: Lower ends (n,) of the 95% intervals.
        high: Upper ends (n,) of the 95% intervals.
        processes: Numbers (n,) of processes.
        blocks: Numbers (n,) of blocks, NaN where unknown.
        error: Standard errors (n,) of the logarithms, NaN where unknown.
    """
    has_error = np.isfinite(error)
    with np.errstate(invalid="ignore", divide="ignore"):
        half_widths = np.where(
            has_error & (processes <= 1),
            stdtrit(np.inf, 0.975) * error,
            np.log(high / low) / 2,
        )
    is_known = np.isfinite(half_widths) & (half_widths > 0)
    known = np.where(is_known, half_widths, np.nan)
    noise = known / stdtrit(stated_freedom(processes, blocks), 0.975)
    return np.asarray(np.where(has_error & (processes > 1), error, noise))


def stated_freedom(processes: Array, blocks: Array) -> Array:
    """Return the degrees of freedom (n,) of the intervals of runs.

    They are the number of processes minus one. For a single process, they are a quarter of its
    blocks, because the interval is over blocks, which are correlated in time. The quarter comes
    from a simulation of the figure of merit of 12 points. With 6 to 40 blocks each and AR(1)
    coefficients of 0 to 0.7, its intervals covered the truth in 92% to 100% of the cases.
    """
    known_blocks = np.where(np.isfinite(blocks), blocks, _DEFAULT_BLOCKS)
    of_blocks = np.maximum(known_blocks / 4, 2.0)
    return np.asarray(np.where(processes > 1, processes - 1, of_blocks))
