"""The published ParaDnn measurements, so that a new machine stands beside TPU v2 and V100 from the first day.

    python -m analysis import-archive DIR

The data files are those of the paper's artifact (github.com/Emma926/paradnn, folder scripts/data): parallel lists with
a label a model. docs/published-data.md says what the figures mean, and where they differ from this project's own.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.published.source import DAMAGED, Found, Publication, PublishedRun, digest, read_json, reason
from analysis.store.load import NUMBERS
from paradnn.errors import DataError
from paradnn.store.runs import PUBLISHED

#: 2 March 2020, the first day of MLSys, in Unix milliseconds.
_PUBLISHED = 1_583_107_200_000


class _Platform(NamedTuple):
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
# The traces are in percent of the TPU v2 board's peaks; this one is B/s of Table 3 of the paper.
_PEAK_BANDWIDTH = 2400e9
_LEAST = 1e-150  # a smaller number has no inverse that is one
_MODEL = re.compile(r"layer_(\d{1,9})-node_(\d{1,9})-input_(\d{1,9})-output_(\d{1,9})-bs_(\d{1,9})", re.ASCII)
_OPERATION = re.compile(f"(?:{_MODEL.pattern})-(.+)", re.ASCII)
_RATES = ("example_per_sec", "step_per_sec", "flops", "fl", "params", "intensity")
_TRACED = ("flops_perc", "memory_bandwidth", "intensity", "rawMB")
#: The lists that hold a value for each capture of a trace: FLOP rate and infeed, in percent.
_CAPTURES = ("flops_trace", "infeed_trace")
#: How the archive's states end here, in the driver's own words; the state itself is kept as the reason.
_OUTCOMES = {
    "OOM": "oom_device",
    "Deadline Exceeded": "timeout",
    "NaN value": "nan",
    "Negative dimension size": "compile_error",
    "not run": "unavailable",
    "no error but not finished": "crash",
}
_NOTE = "Published measurement of ParaDnn (Wang, Wei, Brooks, MLSys 2020) on {}; see docs/published-data.md."


def read_archive(folder: Path) -> Found:
    """The runs of the archive's files in a folder; a file that is absent is passed over.

    `left_out` names damaged entries. DataError when no measurements are there or a file is not what it claims to be.
    """
    if not any((folder / name).is_file() for name in _MEASURED):
        where = "they are in github.com/Emma926/paradnn, folder scripts/data"
        raise DataError(f"{folder}: holds neither of {', '.join(_MEASURED)}; {where}")
    archive = _Archive()
    for name in (*_MEASURED, _TRACE, _OPERATIONS):
        if (folder / name).is_file():
            archive.read(folder / name)
    runs = [*archive.runs.values()]
    about = f"{len(runs):,} published measurements of ParaDnn (Wang, Wei, Brooks, MLSys 2020); "
    about += "see docs/published-data.md."
    return Found([Publication("published, MLSys 2020", about, _PUBLISHED, runs)], archive.left_out)


class _Odd(Exception):
    """What is wrong with an entry, and what is left out for it."""


class _Archive:
    """The runs by platform and label, as one file after the other adds to them."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], PublishedRun] = {}
        self.left_out: list[str] = []

    def read(self, path: Path) -> None:
        """One of the files."""
        try:
            value = read_json(path)
        except DAMAGED as error:
            raise DataError(f"{path.name} is damaged: {reason(error)}; fetch it again") from error
        if platform := _MEASURED.get(path.name):
            self._each(path, value, ("labels", *_RATES), lambda *entry: self._measured(platform, *entry))
            self._each(path, value, ("err_jobs", "states"), lambda *entry: self._failed(platform, *entry))
        elif path.name == _TRACE:
            self._each(path, value, ("labels", *_TRACED, "infeed", *_CAPTURES), self._traced)
        else:
            self._each(path, value, ("labels", *_TRACED, "time_perc"), self._operation, _OPERATION)

    def _each(
        self,
        path: Path,
        value: Any,
        names: Sequence[str],
        take: Callable[[re.Match[str], dict[str, Any]], None],
        pattern: re.Pattern[str] = _MODEL,
    ) -> None:
        """Take each sound entry of parallel lists of equal length; name the others in `left_out`."""
        for name in names:
            if not isinstance(value, dict) or not isinstance(value.get(name), list):
                raise DataError(f"{path.name} is not the published file: it has no list {name!r}")
            if len(value[name]) != len(value[names[0]]):
                raise DataError(
                    f"{path.name} is damaged: {name!r} has {len(value[name])} entries, "
                    f"{names[0]!r} has {len(value[names[0]])}; fetch it again"
                )
        seen: set[str] = set()
        for number, (label, *cells) in enumerate(zip(*(value[name] for name in names), strict=True)):
            match = pattern.fullmatch(str(label))
            try:
                if match is None or not all(map(int, match.groups()[:5])):
                    raise _Odd(f"its label is not of a model{' and an operation' * (pattern is _OPERATION)}; left out")
                if label in seen:
                    raise _Odd("is there twice; left out")
                seen.add(label)
                take(match, dict(zip(names[1:], cells, strict=True)))
            except _Odd as problem:
                place = "row" if names[0] == "labels" else names[0]
                self.left_out.append(f"{path.name} {place} {number} ({str(label)[:200]}): {problem}")

    def _run(self, platform: _Platform, match: re.Match[str], outcome: str = "ok", reason: str = "") -> PublishedRun:
        """The run of a label, made unless it is there."""
        layers, nodes, inputs, outputs, batch = (str(int(size)) for size in match.groups()[:5])
        label = match[0] if match.re is _MODEL else match[0][: match.start(6) - 1]
        params = {
            "model.name": "fc",
            "model.layers": layers,
            "model.nodes": nodes,
            "model.input_size": inputs,
            "model.output_size": outputs,
            "batch_size": batch,
            "precision": platform.precision,
            "platform.name": platform.name,
            "compile": platform.compile,
            "mode": "train",
            "replicate": "0",
            "optimizer.name": "rmsprop",
            "framework.name": "tensorflow",
        }
        tags = {
            "environment_id": digest(platform.device),
            "protocol_id": PUBLISHED,
            "replicate": "0",
            "device": platform.device,
            "archive_label": label,
            "mlflow.note.content": _NOTE.format(platform.device),
        }
        name = f"fc {layers}x{nodes} b{batch} {platform.precision} {platform.device}"
        made = PublishedRun(digest(platform.device, label), name, params, tags, {}, outcome, reason)
        return self.runs.setdefault((platform.name, label), made)

    def _new(self, platform: _Platform, match: re.Match[str], outcome: str = "ok", reason: str = "") -> PublishedRun:
        if (platform.name, match[0]) in self.runs:
            raise _Odd("is there twice; left out")
        return self._run(platform, match, outcome, reason)

    def _measured(self, platform: _Platform, match: re.Match[str], entry: Mapping[str, Any]) -> None:
        """The archive's numbers in this project's units: its FLOPs are in 10^9, and of one core on the TPU."""
        number = _numbers(entry)
        if not math.isclose(number["example_per_sec"], number["step_per_sec"] * int(match[5]), rel_tol=1e-3):
            raise _Odd("example_per_sec is not step_per_sec x batch size; left out")
        rate = number["flops"] * 1e9 * platform.cores
        self._new(platform, match).metrics.update(
            examples_per_second=number["example_per_sec"],
            step_time_ms=1e3 / number["step_per_sec"],
            flops_per_second=rate,
            flops_utilization_spec=rate / platform.peak,
            flops_per_step=number["fl"] * 1e9 * platform.cores,
            parameters=number["params"],
            published_flops_per_second=number["flops"] * 1e9,
            published_intensity=number["intensity"],
        )

    def _failed(self, platform: _Platform, match: re.Match[str], entry: Mapping[str, Any]) -> None:
        state = str(entry["states"]).strip()
        if not state:
            raise _Odd("has no state; left out")
        outcome = _OUTCOMES.get(state, "crash")
        self._new(platform, match, outcome, f"{state} (state in the archive)")

    def _traced(self, match: re.Match[str], entry: Mapping[str, Any]) -> None:
        """A trace of a run on TPU v2: the numbers of the capture with the highest FLOP rate, as the archive chose, and
        rate and infeed of all captures, which are repeats within a process and so no replicates."""
        number = _numbers({name: entry[name] for name in (*_TRACED, "infeed")}, zero=True)
        share = {name: number[name] / 100 for name in ("infeed", "flops_perc", "memory_bandwidth")}
        for name in (name for name in share if share[name] > 1):
            raise _Odd(f"{name}={entry[name]} is over 100%; left out")
        run = self._run(_TPU, match)
        run.metrics.update(
            infeed_fraction=share["infeed"],
            trace_flops_utilization=share["flops_perc"],
            trace_bandwidth_utilization=share["memory_bandwidth"],
            trace_arithmetic_intensity=number["intensity"],
            trace_bytes=number["rawMB"] * 1e6,
        )
        if problem := _wrong_captures(entry):
            raise _Odd(f"{problem}; its single captures are left out")
        rates, waits = ([value / 100 for value in entry[name]] for name in _CAPTURES)
        rows: list[list[Any]] = [[place, *pair] for place, pair in enumerate(zip(rates, waits, strict=True))]
        run.tables["traces.json"] = ("capture", "flops_utilization", "infeed_fraction"), rows
        run.metrics.update(
            trace_captures=float(len(rates)),
            trace_flops_utilization_median=statistics.median(rates),
            trace_flops_utilization_lowest=min(rates),
        )

    def _operation(self, match: re.Match[str], entry: dict[str, Any]) -> None:
        """An operation type of a trace: its share, FLOPs and bytes in it, rates while it runs. Count and seconds were
        not published; the training loop's rates are of what it contains over its own time, up to 78 times the peak."""
        if entry["rawMB"] == 0:
            entry["intensity"] = 0.0  # nothing was moved: 0 / 0, and written as NaN
        number = _numbers(entry, zero=True)
        run, kind, moved = self._run(_TPU, match), match[6], number["rawMB"] * 1e6
        rates = [number["flops_perc"] / 100 * _TPU.peak, number["memory_bandwidth"] / 100 * _PEAK_BANDWIDTH]
        share, intensity = number["time_perc"] / 100, number["intensity"]
        _, rows = run.tables.setdefault("operation_types.json", (("type", *NUMBERS), []))
        own = [None, None] if kind == "while" else rates
        rows.append([kind, None, None, share, intensity * moved, moved, *own, intensity if moved else None])
        run.metrics[f"op_share.{kind}"] = share


def _numbers(entry: Mapping[str, Any], zero: bool = False) -> dict[str, float]:
    """The numbers of an entry; `zero` allows zeros."""
    for name, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _Odd(f"{name}={repr(value)[:80]} is not a number; left out")
        if not math.isfinite(value) or (value < _LEAST and not (zero and value == 0)):
            raise _Odd(f"{name}={value} is not {'zero or ' if zero else ''}positive; left out")
    return {name: float(value) for name, value in entry.items()}


def _wrong_captures(entry: Mapping[str, Any]) -> str:
    """What is wrong with the lists of a trace's captures; the best of them must be the one that the archive kept."""
    rates, waits = (entry[name] for name in _CAPTURES)
    if not all(isinstance(values, list) for values in (rates, waits)) or not rates or len(rates) != len(waits):
        return f"{' and '.join(_CAPTURES)} are not two lists of equal length"
    for name, value in [*((_CAPTURES[0], rate) for rate in rates), *((_CAPTURES[1], wait) for wait in waits)]:
        try:
            _numbers({name: value}, zero=True)
        except _Odd as problem:
            return str(problem).removesuffix("; left out")
        if value > 100:
            return f"{name}={value} is over 100%"
    if not math.isclose(max(rates), entry["flops_perc"], rel_tol=1e-9):
        return f"flops_perc={entry['flops_perc']} is not the highest of flops_trace"
    return ""
