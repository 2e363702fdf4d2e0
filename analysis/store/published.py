"""The published ParaDnn measurements as runs, so that a new machine stands beside TPU v2 and V100 from the first day.

The data files are those of the paper's artifact (github.com/Emma926/paradnn, folder scripts/data). `read_archive` turns
them into `Row`s and names what is damaged; `analysis.store.archive` logs them. docs/published-data.md says what the
figures mean, and where they differ from this project's own.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.store.operations import NUMBERS
from analysis.store.publication import digest
from analysis.store.published_files import CAPTURES, read_columns, wrong_captures, wrong_number
from paradnn.errors import DataError

__all__ = ["FILES", "OPERATION_COLUMNS", "TRACE_COLUMNS", "Archive", "Row", "read_archive"]


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

_LABEL = re.compile(r"layer_(\d+)-node_(\d+)-input_(\d+)-output_(\d+)-bs_(\d+)")
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
    columns = read_columns(path, ("labels", *_NUMBERS), ("err_jobs", "states"))
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
    columns = read_columns(path, ("labels", *_TRACE_NUMBERS), CAPTURES)
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
        problem = wrong_captures(entry)
        if problem:
            damaged.append(f"{where}: {problem}; its single captures are left out")
            continue
        _add_captures(row, entry)


def _add_captures(row: Row, entry: Mapping[str, Any]) -> None:
    """All captures of one training run: repeats within a process, so no replicates."""
    rates, waits = ([value / 100 for value in entry[name]] for name in CAPTURES)
    row.traces = [[number, rate, wait] for number, (rate, wait) in enumerate(zip(rates, waits, strict=True))]
    row.metrics |= {
        "trace_captures": float(len(rates)),
        "trace_flops_utilization_median": statistics.median(rates),
        "trace_flops_utilization_lowest": min(rates),
    }


def _read_operations(path: Path, rows: dict[tuple[str, str], Row], damaged: list[str]) -> None:
    """The operation types of each trace; a label ends in the type's name."""
    columns = read_columns(path, ("labels", *_OPERATION_NUMBERS))
    for number, label in enumerate(columns["labels"]):
        entry = {name: columns[name][number] for name in _OPERATION_NUMBERS}
        where = f"{path.name} row {number} ({label})"
        match = re.match(_LABEL.pattern + "-(.+)", str(label))
        # Nothing was moved: the intensity is 0 / 0 and written as NaN.
        if entry["rawMB"] == 0:
            entry["intensity"] = 0.0
        problem = "its label is not of a model and an operation" if match is None else wrong_number(entry, zero=True)
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
        elif problem := wrong_number({name: entry[name] for name in numbers}, zero):
            damaged.append(f"{where}: {problem}; left out")
        else:
            seen.add(label)
            yield where, label, entry


def _row(platform: _Platform, label: str) -> Row:
    match = _LABEL.fullmatch(label)
    if match is None:
        raise DataError(f"{label!r} is not the label of a model")
    return Row(platform, label, tuple(int(number) for number in match.groups()))
