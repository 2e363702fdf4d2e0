"""The published ParaDnn measurements as runs, so that a new machine stands beside TPU v2 and V100 from the first day.

    python -m analysis import-archive DIR

The data files are those of the paper's artifact (github.com/Emma926/paradnn, folder scripts/data). `read_archive` turns
them into `Row`s and names what is damaged; each row becomes one run with the tag source=published.
docs/published-data.md says what the figures mean, and where they differ from this project's own.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.published.files import DAMAGED, read_json, reason
from analysis.published.runs import Imported, Publication, PublishedRun, Table, digest, log_publications
from analysis.store.operations import NUMBERS
from paradnn.errors import DataError
from paradnn.store.runs import PUBLISHED

__all__ = ["FILES", "OPERATION_COLUMNS", "TRACE_COLUMNS", "Archive", "Row", "import_archive", "read_archive"]

#: 2 March 2020, the first day of MLSys, in Unix milliseconds.
_PUBLISHED = 1_583_107_200_000
#: The lists that hold a value for each capture of a trace: FLOP rate and infeed, in percent.
_CAPTURES = ("flops_trace", "infeed_trace")


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
OPERATION_COLUMNS = ("type", *NUMBERS)

#: Columns of the table traces.json: the captures of a traced run in the order of time, counted from 0.
TRACE_COLUMNS = ("capture", "flops_utilization", "infeed_fraction")

# The traces are in percent of the TPU v2 board's peaks; this one is B/s of Table 3 of the paper.
_PEAK_BANDWIDTH = 2400e9

_LEAST = 1e-150  # a smaller number has no inverse that is one
_LABEL = re.compile(r"layer_(\d{1,9})-node_(\d{1,9})-input_(\d{1,9})-output_(\d{1,9})-bs_(\d{1,9})", re.ASCII)
_NUMBERS = ("example_per_sec", "step_per_sec", "flops", "fl", "params", "intensity")
_TRACE_NUMBERS = ("flops_perc", "memory_bandwidth", "intensity", "rawMB", "infeed")
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
        return digest(self.platform.device, self.label)


@dataclass(frozen=True)
class Archive:
    """Rows by (platform, label), and one line for each entry that was left out."""

    rows: Mapping[tuple[str, str], Row]
    damaged: Sequence[str]


def read_archive(folder: Path) -> Archive:
    """The rows of the archive's files in a folder; a file that is absent is passed over.

    Raises DataError when no measurements are there or a file is not what it claims to be.
    """
    if not any((folder / name).is_file() for name in _MEASURED):
        where = "they are in github.com/Emma926/paradnn, folder scripts/data"
        raise DataError(f"{folder}: holds neither of {', '.join(_MEASURED)}; {where}")
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
        problem = _wrong_captures(entry)
        if problem:
            damaged.append(f"{where}: {problem}; its single captures are left out")
            continue
        _add_captures(row, entry)


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
        problem = "its label is not of a model and an operation" if match is None else _wrong_number(entry, zero=True)
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


def _entries(
    path: Path,
    columns: Mapping[str, list[Any]],
    key: str,
    numbers: Sequence[str],
    taken: Mapping[tuple[str, str], Row],
    platform: _Platform,
    damaged: list[str],
    zero: bool = False,
) -> Iterator[tuple[str, str, dict[str, Any]]]:
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
        elif problem := _wrong_number({name: entry[name] for name in numbers}, zero):
            damaged.append(f"{where}: {problem}; left out")
        else:
            seen.add(label)
            yield where, label, entry


def _row(platform: _Platform, label: str) -> Row:
    match = _LABEL.fullmatch(label)
    if match is None:
        raise DataError(f"{label!r} is not the label of a model")
    return Row(platform, label, tuple(int(number) for number in match.groups()))


def _columns(path: Path, measured: Sequence[str], failed: Sequence[str] = ()) -> dict[str, list[Any]]:
    """A file's parallel lists; DataError unless it has them all, and of equal lengths within each group."""
    try:
        value = read_json(path)
    except DAMAGED as error:
        raise DataError(f"{path.name} is damaged: {reason(error)}; fetch it again") from error
    for group in (measured, failed):
        for name in group:
            if not isinstance(value, dict) or not isinstance(value.get(name), list):
                raise DataError(f"{path.name} is not the published file: it has no list {name!r}")
            if len(value[name]) != len(value[group[0]]):
                raise DataError(
                    f"{path.name} is damaged: {name!r} has {len(value[name])} entries, "
                    f"{group[0]!r} has {len(value[group[0]])}; fetch it again"
                )
    return {name: value[name] for name in (*measured, *failed)}


def _wrong_number(entry: Mapping[str, Any], zero: bool) -> str | None:
    """What is wrong with the numbers of an entry; `zero` allows zeros."""
    for name, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{name}={repr(value)[:80]} is not a number"
        if not math.isfinite(value) or (value < _LEAST and not (zero and value == 0)):
            return f"{name}={value} is not {'zero or ' if zero else ''}positive"
    return None


def _wrong_captures(entry: Mapping[str, Any]) -> str | None:
    """What is wrong with the lists of a trace's captures; the best of them must be the one that the archive kept."""
    rates, waits = (entry[name] for name in _CAPTURES)
    if not all(isinstance(values, list) for values in (rates, waits)) or not rates or len(rates) != len(waits):
        return f"{' and '.join(_CAPTURES)} are not two lists of equal length"
    for values, name in ((rates, _CAPTURES[0]), (waits, _CAPTURES[1])):
        for value in values:
            if wrong := _wrong_number({name: value}, zero=True):
                return wrong
            if value > 100:
                return f"{name}={value} is over 100%"
    if not math.isclose(max(rates), entry["flops_perc"], rel_tol=1e-9):
        return f"flops_perc={entry['flops_perc']} is not the highest of flops_trace"
    return None


def import_archive(
    folder: Path,
    tracking_uri: str | None = None,
    experiment: str = "paradnn",
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the rows of an archive that the store does not hold yet, one run each, and complete those that lack metrics.

    `left_out` of the result names damaged entries. Raises as `read_archive`, and StoreError.
    """
    archive = read_archive(folder)
    about = f"{len(archive.rows):,} published measurements of ParaDnn (Wang, Wei, Brooks, MLSys 2020); "
    about += "see docs/published-data.md."
    runs = [_run(row) for row in archive.rows.values()]
    publication = Publication("published, MLSys 2020", about, _PUBLISHED, runs)
    return log_publications([publication], tracking_uri, experiment, archive.damaged, progress)


def _run(row: Row) -> PublishedRun:
    layers, nodes, _, _, batch = row.shape
    tables = {}
    if row.operations:
        tables["operation_types.json"] = Table(OPERATION_COLUMNS, row.operations)
    if row.traces:
        tables["traces.json"] = Table(TRACE_COLUMNS, row.traces)
    name = f"fc {layers}x{nodes} b{batch} {row.platform.precision} {row.platform.device}"
    return PublishedRun(row.point_id, name, _params(row), _tags(row), row.metrics, row.outcome, row.reason, tables)


def _params(row: Row) -> dict[str, str]:
    """What is known of a row's configuration; precision, optimizer and compilation as the artifact's programs say."""
    layers, nodes, inputs, outputs, batch = map(str, row.shape)
    return {
        "model.name": "fc",
        "model.layers": layers,
        "model.nodes": nodes,
        "model.input_size": inputs,
        "model.output_size": outputs,
        "batch_size": batch,
        "precision": row.platform.precision,
        "platform.name": row.platform.name,
        "compile": row.platform.compile,
        "mode": "train",
        "replicate": "0",
        "optimizer.name": "rmsprop",
        "framework.name": "tensorflow",
    }


def _tags(row: Row) -> dict[str, str]:
    device = row.platform.device
    return {
        "environment_id": digest(device),
        "protocol_id": PUBLISHED,
        "replicate": "0",
        "device": device,
        "archive_label": row.label,
        "mlflow.note.content": f"Published measurement of ParaDnn (Wang, Wei, Brooks, MLSys 2020) on {device}; "
        "see docs/published-data.md.",
    }
