"""The published ParaDnn measurements as runs, so that a new machine stands beside TPU v2 and V100 from the first day.

    python -m analysis import-archive DIR

DIR holds the data files of the paper's artifact (github.com/Emma926/paradnn, folder scripts/data). `read_archive`
turns them into `Row`s and names what is damaged, `import_archive` logs each row once as a run with the tag
source=published. docs/published-data.md says what the figures mean, and where they differ from this
project's own.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.store.load import load
from analysis.store.writer import open_experiment, writing
from paradnn.errors import DataError
from paradnn.store.address import address_of
from paradnn.store.schema import SCHEMA_VERSION

__all__ = [
    "FILES",
    "OPERATION_COLUMNS",
    "TRACE_COLUMNS",
    "Archive",
    "Imported",
    "Row",
    "import_archive",
    "read_archive",
]


@dataclass(frozen=True)
class _Platform:
    """One platform of the archive. `cores`: the archive counts the FLOPs of one of so many cores; `peak` in FLOP/s as
    Table 3 of the paper states it."""

    name: str
    device: str
    precision: str
    compile: str
    cores: int
    peak: float


_TPU = _Platform("tpu", "TPU v2", "bfloat16", "xla", 8, 180e12)
_GPU = _Platform("gpu", "V100", "float16", "graph", 1, 125e12)
_MEASURED = {"tpu_fc.json": _TPU, "gpu_fc.json": _GPU}
_TRACE, _OPERATIONS = "fc_trace_10sec.json", "fc_trace_10sec_opbreakdown.json"

#: The files of the archive that are read.
FILES = (*_MEASURED, _TRACE, _OPERATIONS)

#: Columns of the table operation_types.json, as profiled runs have them; count and seconds were not published.
OPERATION_COLUMNS = ("type", "count", "self_seconds", "share", "flops", "bytes", "flops_per_second",
                     "bytes_per_second", "arithmetic_intensity")  # fmt: skip

#: Columns of the table traces.json: the captures of a traced run in the order of time, counted from 0.
TRACE_COLUMNS = ("capture", "flops_utilization", "infeed_fraction")

# The traces are in percent of the TPU v2 board's peaks; this one is B/s of Table 3 of the paper.
_PEAK_BANDWIDTH = 2400e9

_LABEL = re.compile(r"layer_(\d+)-node_(\d+)-input_(\d+)-output_(\d+)-bs_(\d+)")
_NUMBERS = ("example_per_sec", "step_per_sec", "flops", "fl", "params", "intensity")
_TRACE_NUMBERS = ("flops_perc", "memory_bandwidth", "intensity", "rawMB", "infeed")
_CAPTURES = ("flops_trace", "infeed_trace")
_OPERATION_NUMBERS = ("flops_perc", "memory_bandwidth", "intensity", "rawMB", "time_perc")

#: How the archive's states end here, in the driver's own words; the state itself is kept as the reason.
_OUTCOMES = {
    "OOM": "oom_device",
    "Deadline Exceeded": "timeout",
    "NaN value": "nan",
    "Negative dimension size": "compile_error",
    "not run": "unavailable",
    "no error but not finished": "crash",
}


@dataclass
class Row:
    """One point of the archive: a fully connected model on one platform, measured or not."""

    platform: _Platform
    label: str
    shape: tuple[int, ...]  # layers, nodes, input size, output size, batch size
    outcome: str = "ok"
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    operations: list[list[Any]] = field(default_factory=list)  # rows of OPERATION_COLUMNS
    traces: list[list[float]] = field(default_factory=list)  # rows of TRACE_COLUMNS

    @property
    def point_id(self) -> str:
        """The same for the same row of the archive, whatever else is in it."""
        return _digest(self.platform.device, self.label)


@dataclass(frozen=True)
class Archive:
    """Rows by (platform, label), and one line for each entry that was left out."""

    rows: Mapping[tuple[str, str], Row]
    damaged: Sequence[str]


@dataclass(frozen=True)
class Imported:
    """Runs logged now, runs that were there already, and what was left out."""

    logged: int
    present: int
    damaged: Sequence[str]


def read_archive(folder: Path) -> Archive:
    """The rows of the archive's files in a folder; a file that is absent is passed over.

    Raises DataError when no measurements are there or a file is not what it claims to be.
    """
    if not any((folder / name).is_file() for name in _MEASURED):
        raise DataError(f"{folder}: holds neither of {', '.join(_MEASURED)}; they are in github.com/Emma926/paradnn, "
                        "folder scripts/data")  # fmt: skip
    rows: dict[tuple[str, str], Row] = {}
    damaged: list[str] = []
    for name, platform in _MEASURED.items():
        if (folder / name).is_file():
            _read_measured(folder / name, platform, rows, damaged)
    if (folder / _TRACE).is_file():
        _read_traces(folder / _TRACE, rows, damaged)
    if (folder / _OPERATIONS).is_file():
        _read_operations(folder / _OPERATIONS, rows, damaged)
    return Archive(rows, damaged)


def _read_measured(path: Path, platform: _Platform, rows: dict[tuple[str, str], Row], damaged: list[str]) -> None:
    """`tpu_fc.json` or `gpu_fc.json`: measured labels with their numbers, failed ones with their states."""
    columns = _columns(path, ("labels", *_NUMBERS), ("err_jobs", "states"))
    for where, label, entry in _entries(path, columns, "labels", _NUMBERS, rows, platform, damaged):
        numbers = {name: float(entry[name]) for name in _NUMBERS}
        row = _row(platform, label)
        if not math.isclose(numbers["example_per_sec"], numbers["step_per_sec"] * row.shape[-1], rel_tol=1e-3):
            damaged.append(f"{where}: example_per_sec is not step_per_sec x batch size; left out")
            continue
        row.metrics = _measured_metrics(numbers, platform)
        rows[platform.name, label] = row
    for where, label, entry in _entries(path, columns, "err_jobs", (), rows, platform, damaged):
        state = str(entry["states"]).strip()
        if not state:
            damaged.append(f"{where}: has no state; left out")
            continue
        row = _row(platform, label)
        row.outcome, row.reason = _OUTCOMES.get(state, "crash"), f"{state} (state in the archive)"
        rows[platform.name, label] = row


def _measured_metrics(numbers: Mapping[str, float], platform: _Platform) -> dict[str, float]:
    """The archive's numbers in this project's units: its FLOPs are in 10^9, and of one core on the TPU."""
    rate = numbers["flops"] * 1e9 * platform.cores
    return {
        "examples_per_second": numbers["example_per_sec"],
        "step_time_ms": 1e3 / numbers["step_per_sec"],
        "flops_per_second": rate,
        "flops_utilization_spec": rate / platform.peak,
        "flops_per_step": numbers["fl"] * 1e9 * platform.cores,
        "parameters": numbers["params"],
        "published_flops_per_second": numbers["flops"] * 1e9,
        "published_intensity": numbers["intensity"],
    }


def _read_traces(path: Path, rows: dict[tuple[str, str], Row], damaged: list[str]) -> None:
    """The profiler's traces of TPU v2: the numbers of the capture with the highest FLOP rate, as the archive chose, and
    rate and infeed of all captures of the run."""
    columns = _columns(path, ("labels", *_TRACE_NUMBERS), _CAPTURES)
    for where, label, entry in _entries(path, columns, "labels", _TRACE_NUMBERS, {}, _TPU, damaged, zero=True):
        shares = {name: float(entry[name]) / 100 for name in ("infeed", "flops_perc", "memory_bandwidth")}
        over = [name for name, share in shares.items() if share > 1]
        if over:
            damaged.append(f"{where}: {over[0]}={entry[over[0]]} is over 100%; left out")
            continue
        row = rows.setdefault((_TPU.name, label), _row(_TPU, label))
        row.metrics |= {
            "infeed_fraction": shares["infeed"],
            "trace_flops_utilization": shares["flops_perc"],
            "trace_bandwidth_utilization": shares["memory_bandwidth"],
            "trace_arithmetic_intensity": float(entry["intensity"]),
            "trace_bytes": float(entry["rawMB"]) * 1e6,
        }
        problem = _captures_problem(entry)
        if problem:
            damaged.append(f"{where}: {problem}; its single captures are left out")
            continue
        _add_captures(row, entry)


def _captures_problem(entry: Mapping[str, Any]) -> str | None:
    """What is wrong with the lists of a trace's captures; the best of them must be the one that the archive kept."""
    rates, waits = (entry[name] for name in _CAPTURES)
    if not all(isinstance(values, list) for values in (rates, waits)) or not rates or len(rates) != len(waits):
        return f"{' and '.join(_CAPTURES)} are not two lists of equal length"
    for values, name in ((rates, _CAPTURES[0]), (waits, _CAPTURES[1])):
        for value in values:
            if problem := _problem({name: value}, zero=True):
                return problem
            if value > 100:
                return f"{name}={value} is over 100%"
    if not math.isclose(max(rates), entry["flops_perc"], rel_tol=1e-9):
        return f"flops_perc={entry['flops_perc']} is not the highest of flops_trace"
    return None


def _add_captures(row: Row, entry: Mapping[str, Any]) -> None:
    """All captures of one training run: repeats within a process, so no replicates."""
    rates, waits = ([value / 100 for value in entry[name]] for name in _CAPTURES)
    row.traces = [[number, rate, wait] for number, (rate, wait) in enumerate(zip(rates, waits, strict=True))]
    row.metrics |= {
        "trace_captures": float(len(rates)),
        "trace_flops_utilization_median": statistics.median(rates),
        "trace_flops_utilization_lowest": min(rates),
    }


def _read_operations(path: Path, rows: dict[tuple[str, str], Row], damaged: list[str]) -> None:
    """The operation types of each trace; a label ends in the type's name."""
    columns = _columns(path, ("labels", *_OPERATION_NUMBERS))
    for number, label in enumerate(columns["labels"]):
        entry = {name: columns[name][number] for name in _OPERATION_NUMBERS}
        where = f"{path.name} row {number} ({label})"
        match = re.match(_LABEL.pattern + "-(.+)", str(label))
        # Nothing was moved: the intensity is 0 / 0 and written as NaN.
        if entry["rawMB"] == 0:
            entry["intensity"] = 0.0
        problem = "its label is not of a model and an operation" if match is None else _problem(entry, zero=True)
        if problem or match is None:
            damaged.append(f"{where}: {problem}; left out")
            continue
        kind = match[6]
        row = rows.setdefault((_TPU.name, label[: match.start(6) - 1]), _row(_TPU, label[: match.start(6) - 1]))
        if any(operation[0] == kind for operation in row.operations):
            damaged.append(f"{where}: is there twice; left out")
            continue
        row.operations.append(_operation(kind, {name: float(value) for name, value in entry.items()}))
        row.metrics[f"op_share.{kind}"] = float(entry["time_perc"]) / 100


def _operation(kind: str, entry: Mapping[str, float]) -> list[Any]:
    """A row of OPERATION_COLUMNS: share of the trace, FLOPs and bytes in it, rates while the operation runs."""
    moved = entry["rawMB"] * 1e6
    rates: list[float | None] = [
        entry["flops_perc"] / 100 * _TPU.peak,
        entry["memory_bandwidth"] / 100 * _PEAK_BANDWIDTH,
    ]
    if kind == "while":
        # The training loop: the work of what it contains over its own time, up to 78 times the peak.
        rates = [None, None]
    intensity = entry["intensity"] if moved else None
    return [kind, None, None, entry["time_perc"] / 100, entry["intensity"] * moved, moved, *rates, intensity]


def _columns(path: Path, measured: Sequence[str], failed: Sequence[str] = ()) -> dict[str, list[Any]]:
    """A file's parallel lists; DataError unless it has them all, and of equal lengths within each group."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} is damaged: {' '.join(str(error).split())}; fetch it again") from error
    for group in (measured, failed):
        for name in group:
            if not isinstance(value, dict) or not isinstance(value.get(name), list):
                raise DataError(f"{path.name} is not the published file: it has no list {name!r}")
            if len(value[name]) != len(value[group[0]]):
                raise DataError(f"{path.name} is damaged: {name!r} has {len(value[name])} entries, "
                                f"{group[0]!r} has {len(value[group[0]])}; fetch it again")  # fmt: skip
    return {name: value[name] for name in (*measured, *failed)}


def _entries(
    path: Path, columns: Mapping[str, list[Any]], key: str, numbers: Sequence[str],
    taken: Mapping[tuple[str, str], Row], platform: _Platform, damaged: list[str], zero: bool = False,
) -> Iterator[tuple[str, str, dict[str, Any]]]:  # fmt: skip
    """(where, label, values) of each sound entry of one group of lists; the others are named in `damaged`."""
    seen: set[str] = set()
    for number, label in enumerate(columns[key]):
        where = f"{path.name} {'row' if key == 'labels' else key} {number} ({label})"
        match = _LABEL.fullmatch(str(label))
        entry = {name: values[number] for name, values in columns.items() if len(values) == len(columns[key])}
        if match is None or not all(map(int, match.groups())):
            damaged.append(f"{where}: its label is not of a model; left out")
        elif label in seen or (platform.name, label) in taken:
            damaged.append(f"{where}: is there twice; left out")
        elif problem := _problem({name: entry[name] for name in numbers}, zero):
            damaged.append(f"{where}: {problem}; left out")
        else:
            seen.add(label)
            yield where, label, entry


def _problem(entry: Mapping[str, Any], zero: bool) -> str | None:
    """What is wrong with the numbers of an entry; `zero` allows zeros."""
    for name, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{name}={value!r} is not a number"
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            return f"{name}={value} is not {'zero or ' if zero else ''}positive"
    return None


def _row(platform: _Platform, label: str) -> Row:
    match = _LABEL.fullmatch(label)
    if match is None:
        raise DataError(f"{label!r} is not the label of a model")
    return Row(platform, label, tuple(int(number) for number in match.groups()))


def import_archive(
    folder: Path, tracking_uri: str | None = None, experiment: str = "paradnn",
    progress: Callable[[int, int], None] | None = None,
) -> Imported:  # fmt: skip
    """Log the rows of an archive that the store does not hold yet, one run each.

    `progress` is called with the number of runs logged and to log. Safe to repeat after an interruption: what has an
    outcome is there, the rest is logged.
    """
    archive = read_archive(folder)
    client, experiment_id = open_experiment(tracking_uri, experiment)
    uri = address_of(tracking_uri).uri
    stored = load(uri, experiments=experiment, tags={"source": "published"}, columns=("point_id",))
    present = set(stored["point_id"]) if "point_id" in stored else set()
    todo = [row for row in archive.rows.values() if row.point_id not in present]
    with writing(uri):
        for number, row in enumerate(todo, 1):
            _log(client, experiment_id, row)
            if progress is not None:
                progress(number, len(todo))
    return Imported(len(todo), len(archive.rows) - len(todo), archive.damaged)


def _log(client: Any, experiment_id: str, row: Row) -> None:
    """One run; its outcome is written last, with its numbers."""
    from mlflow.entities import Metric, Param, RunTag

    layers, nodes, _, _, batch = row.shape
    platform, now = row.platform, int(time.time() * 1000)
    name = f"fc {layers}x{nodes} b{batch} {platform.precision} {platform.device}"
    run_id = client.create_run(experiment_id, start_time=now, tags=_tags(row), run_name=name).info.run_id
    if row.operations:
        table = {"columns": list(OPERATION_COLUMNS), "data": row.operations}
        client.log_text(run_id, json.dumps(table), "operation_types.json")
    if row.traces:
        client.log_text(run_id, json.dumps({"columns": list(TRACE_COLUMNS), "data": row.traces}), "traces.json")
    client.log_batch(
        run_id,
        metrics=[Metric(key, value, now, 0) for key, value in row.metrics.items()],
        params=[Param(key, value) for key, value in _params(row).items()],
        tags=[RunTag(key, value) for key, value in (("reason", row.reason), ("outcome", row.outcome)) if value],
    )
    client.set_terminated(run_id, "FINISHED" if row.outcome == "ok" else "FAILED", now)


def _params(row: Row) -> dict[str, str]:
    """What is known of a row's configuration; precision, optimizer and compilation as the artifact's programs say."""
    layers, nodes, inputs, outputs, batch = map(str, row.shape)
    return {
        "model.name": "fc", "model.layers": layers, "model.nodes": nodes, "model.input_size": inputs,
        "model.output_size": outputs, "batch_size": batch, "precision": row.platform.precision,
        "platform.name": row.platform.name, "compile": row.platform.compile, "mode": "train", "replicate": "0",
        "optimizer.name": "rmsprop", "framework.name": "tensorflow",
    }  # fmt: skip


def _tags(row: Row) -> dict[str, str]:
    device = row.platform.device
    return {
        "kind": "point", "schema_version": SCHEMA_VERSION, "source": "published", "point_id": row.point_id,
        "environment_id": _digest(device), "protocol_id": _digest("best logged rate"), "replicate": "0",
        "device": device, "archive_label": row.label,
        "mlflow.note.content": f"Published measurement of ParaDnn (Wang, Wei, Brooks, MLSys 2020) on {device}; "
                               "see docs/published-data.md.",
    }  # fmt: skip


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(["published", *parts]).encode()).hexdigest()[:16]
