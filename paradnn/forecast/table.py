"""Tables of planned points and of past runs, from which predictions are computed."""

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

#: Function that returns the highest FLOP/s and B/s of one device, and the number of cores of its
#: host. The arguments are the names of the device, the framework and the precision.
Rates = Callable[[str, str, str], tuple[float, float, float]]
#: The session id of planned points.
PLANNED_SESSION = "planned"
_COSTS = ("flops_per_step", "bytes_per_step", "parameters")
#: Keys that may affect the time of a step, in addition to the model's keys and the batch size.
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
#: Groups of keys that do not affect a step.
_IGNORED_GROUPS = ("measure", "software", "replicate", "seed", "scenario", "task")

#: Keys of the group `measure` that affect the duration of a point: seconds, or counts of blocks.
MEASURE_KEYS = (
    "min_seconds",
    "min_blocks",
    "max_seconds",
    "block_seconds",
    "warmup_seconds",
    "timeout",
)
#: Phases that occur in each process of a point. Only the first process is profiled, and all
#: processes are recorded together.
PHASES_PER_PROCESS = tuple(name for name in PHASES if name not in ("profile", "record"))
#: Minimum seconds of the first start of a worker, which imports the framework. The forecast counts
#: this import separately.
IMPORT_SECONDS = 0.5
#: Maximum seconds of the start of each further process of a point.
_FURTHER_START_SECONDS = 0.1
#: Metrics of runs that are the arguments of `stated_noise`, in this order.
NOISE_METRICS = ("step_time_low_ms", "step_time_high_ms", "processes", "blocks", "step_time_error")
#: Assumed number of blocks of a single process if the run does not record it.
_DEFAULT_BLOCKS = 20.0
#: Assumed number of layers, and sizes of an example's input and target, of a model that this
#: version does not know.
_UNKNOWN_LAYERS = 10
_UNKNOWN_SIZES = (1000, 10)


@dataclass(frozen=True)
class Table:
    """A table of n configurations to measure (planned points) or n past runs.

    Every column has one entry per row.

    Attributes:
        rows: Keys and values of the configuration, as stored in MLflow params.
        environments: Ids of the environments (hardware and software).
        sessions: Id of the sweep that measured the run; `PLANNED_SESSION` for a planned point.
        costs: Array (n, 3) of FLOPs per step, bytes per step and number of parameters.
        peaks: Array (n, 3) of peak FLOP/s and peak B/s of one device, and cores of the host.
        load: Numbers (n,) of runnable threads on the host during the run, NaN where unknown.
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
        """Return the values (n,) of a key, such as "model.name", as text; "null" if missing."""
        return np.array([row.get(key, "null") for row in self.rows], dtype=str)

    def number(self, key: str) -> Array:
        """Return the values (n,) of a key as numbers; NaN if missing or not a number."""
        values = [_parse_value(row.get(key, "null")) for row in self.rows]
        return np.array(
            [value if isinstance(value, (int, float)) else np.nan for value in values], dtype=float
        )

    def count(self, key: str) -> Array:
        """Return the values (n,) of a key as numbers of at least 1; 1 if not a number."""
        return np.asarray(np.fmax(self.number(key), 1.0))

    @cached_property
    def model_keys(self) -> list[str]:
        """Sorted keys of the model options that occur in any row, except `model.name`."""
        keys = {key for row in self.rows for key in row if key.startswith("model.")}
        return sorted(keys - {"model.name"})

    @cached_property
    def families(self) -> list[str]:
        """The model family of each row, such as "fc"; "" if unknown."""
        return [row.get("model.name", "") for row in self.rows]

    @cached_property
    def layers(self) -> Array:
        """Numbers of layers (n,); 10 for a model that this version does not know."""
        return np.array(self._for_models(Model.layer_count, _UNKNOWN_LAYERS), dtype=float)

    @cached_property
    def examples(self) -> Array:
        """Numbers of input values of an example, and of outputs per target, as an array (n, 2).

        For a classifier, the latter is the number of classes (`Model.example_sizes`). A model that
        this version does not know gets 1000 and 10.
        """
        sizes = self._for_models(Model.example_sizes, _UNKNOWN_SIZES)
        return np.array(sizes, dtype=float).reshape(-1, 2)

    def _for_models(self, function: Callable[[Model], Any], default: Any) -> list[Any]:
        """Return the results of a function that is called with the model of each row.

        Args:
            function: Its argument is the model.
            default: The result for a model that this version does not know.
        """
        results = []
        for row in self.rows:
            items = tuple(item for item in row.items() if item[0].startswith("model."))
            results.append(call_with_model(items, function, default))
        return results

    @cached_property
    def settings(self) -> list[frozenset[tuple[str, str]]]:
        """For each row, the set of its settings that may affect the time of a step.

        A setting is a pair (key, value). Default values, model keys and the batch size are
        excluded.
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
        """Text that identifies each row's step; rows with the same step have equal texts."""
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
        """Mask (n,) of the rows whose steps are profiled."""
        has_profile = self.text("measure.profile") == "true"
        keeps_trace = self.text("measure.keep_trace") == "true"
        return np.asarray(has_profile | keeps_trace)


def _at_least_one(costs: Array, rows: Sequence[Mapping[str, str]]) -> Array:
    """Return the costs (n, 3), raised to at least 1, because predictions use their logarithms.

    The costs of some model families are counted only during a measurement. They become 1.
    """
    counted = {name for name, family in FAMILIES.items() if family.options.is_counted}
    is_counted = np.array([[row.get("model.name") in counted] for row in rows], dtype=bool)
    return np.asarray(np.where(is_counted.reshape(-1, 1), 1.0, np.maximum(costs, 1.0)))


@functools.lru_cache(maxsize=65536)
def call_with_model(
    items: tuple[tuple[str, str], ...], function: Callable[..., Any], default: Any
) -> Any:
    """Call a function with the model that a recorded configuration describes.

    Args:
        items: Keys and values of the configuration, as stored in MLflow params.
        function: Receives the model, and as keyword arguments the keys that are not model options.
        default: The result for a model that this version does not know or cannot use.

    Returns:
        The result of the function, or the default.
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


#: Largest absolute value of a param that counts as a number.
_LARGEST_SIZE = 10**18


@functools.lru_cache(maxsize=65536)
def _parse_value(text: str) -> Any:
    """Return the JSON value of a param; its text if it is invalid JSON or too large a number."""
    try:
        value = read_json(text)
    except ValueError:
        return text
    if isinstance(value, (int, float)) and not abs(value) <= _LARGEST_SIZE:
        return text
    return value


def cost_columns(points: Sequence[Point]) -> dict[str, NDArray[np.float64]]:
    """Return the costs of one step of n configurations (points).

    Returns:
        Name of a field of `Costs`, such as "flops_per_step" -> array (n,).
    """
    names = [entry.name for entry in fields(Costs)]
    costs = np.empty((len(points), len(names)))
    for index, point in enumerate(points):
        costs[index] = tuple(vars(step_costs(point)).values())
    return dict(zip(names, costs.T, strict=True))


def point_params(point: Point) -> dict[str, str]:
    """Return the keys and values of a configuration, as they are stored in MLflow params."""
    return as_params(point_request(point))


def make_table(
    points: Sequence[Point], environments: Sequence[str], devices: Sequence[str], rates: Rates
) -> Table:
    """Return a table of planned configurations (points), from which predictions are computed.

    Args:
        points: The points.
        environments: For each point, the id of the environment that would measure it.
        devices: For each point, the name of its device.
        rates: Returns the peak FLOP/s, the peak B/s and the cores of the host, given the names of
            device, framework and precision.
    """
    columns = cost_columns(points)
    costs = np.stack([columns[name] for name in _COSTS], axis=1)
    # Stored runs contain keys that points no longer have. Planned points also get these keys, so
    # that they match past runs.
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
    """Return peak FLOP/s, peak B/s and cores of the devices of n rows, as an array (n, 3).

    Args:
        rows: Keys and values of each configuration, which include framework and precision.
        devices: Name of the device of each row.
        rates: Returns the three numbers, given the names of device, framework and precision.
    """
    peaks = [
        rates(device, row.get("framework.name", ""), row.get("precision", ""))
        for device, row in zip(devices, rows, strict=True)
    ]
    return np.array(peaks, dtype=float).reshape(-1, 3)


@dataclass(frozen=True)
class RunHistory:
    """Measured times of n past runs. Entries of arrays are NaN where a run has no value.

    A block is a number of steps that are timed together.

    Attributes:
        table: The configurations and environments of the runs, one row per run.
        step: Step times (n,) in seconds.
        phases: Phase of a measurement, such as "compile" -> its seconds (n,). The phases in
            `PHASES_PER_PROCESS` are per process.
        warmup_blocks: Number (n,) of blocks per process before the measured blocks, including
            calibration.
        steady: 1 if the run reached a steady state, else 0; (n,).
        gaps: Seconds (n,) from the start of the run to the start of the next point in its session.
            NaN if either point was measured in several processes.
        noise: Standard deviations (n,) of the logarithm of `step`, as the runs recorded them.
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
        """Collect the times of those runs that a prediction can use.

        A usable run succeeded, and its metrics and params are valid.

        Args:
            runs: Completed runs, in any order.
            rates: Returns the peak FLOP/s, the peak B/s and the cores of the host, given the names
                of device, framework and precision.
        """
        ordered = sorted(runs, key=lambda run: run.start)
        gaps = _gaps(ordered)
        usable = [run for run in ordered if _is_usable(run)]

        def metric(name: str) -> Array:
            return np.array([run.metrics.get(name, np.nan) for run in usable], dtype=float)

        # A run that was recorded before a key existed gets the value of its behavior at that time.
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
        # An import would be hidden in the mean over several processes, so it is detected here.
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
    """Return whether a run succeeded and has valid metrics and params for a prediction."""
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
    """Return the seconds from the start of each run to the start of the next run in its session.

    If one of the two points was measured in several processes, there is no gap.

    Args:
        runs: Runs in the order of their starts.

    Returns:
        Gaps in seconds, by run id.
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
    """Return the standard deviations (n,) of the log step times of n runs, as they recorded them.

    For a run of several processes, this is the recorded standard error. For a single process, it is
    h / t, where h is 1.96 recorded standard errors and t is the 97.5% quantile of Student's t with
    `stated_freedom` degrees of freedom. For a run without a recorded standard error, it is h / t
    with half the width of the recorded interval (in logarithms) as h.

    Args:
        low: Lower ends (n,) of the 95% intervals of step times, in any unit.
        high: Upper ends (n,) of these intervals, in the same unit.
        processes: Number (n,) of processes in which each run was measured.
        blocks: Number (n,) of measured blocks of steps in each run, NaN where unknown.
        error: Standard errors (n,) of the log step times, NaN where unknown.
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
    """Return the degrees of freedom (n,) of the confidence intervals that n runs recorded.

    For several processes, this is their number minus one. For a single process, it is a quarter of
    its number of blocks, and at least 2: the interval is based on blocks, which are correlated in
    time. The quarter was chosen by simulating the figure of merit (a harmonic mean) of 12 points.
    With 6 to 40 blocks per point and AR(1) coefficients of 0 to 0.7, the intervals covered the
    truth in 92% to 100% of the cases.

    Args:
        processes: Number (n,) of processes in which each run was measured.
        blocks: Number (n,) of measured blocks of steps in each run, NaN where unknown.
    """
    known_blocks = np.where(np.isfinite(blocks), blocks, _DEFAULT_BLOCKS)
    of_blocks = np.maximum(known_blocks / 4, 2.0)
    return np.asarray(np.where(processes > 1, processes - 1, of_blocks))
