"""Reader of the published ParaDnn measurements of TPU v2 and V100.

    python -m benchmarks.published archive=DIR

The data files are those of the paper's artifact (github.com/Emma926/paradnn, folder
scripts/data): parallel lists with a label per model. docs/validation/published-data.md explains
the figures and how they differ from ParaDnn's.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.published.source import ImportedFolder, Publication, PublishedRun, read_text
from analysis.store.load import OPERATION_NUMBERS
from benchmarks.published.common import published_run
from paradnn.store.files import read_json

#: 2 March 2020, the first day of MLSys, in Unix milliseconds.
_PUBLISHED = 1_583_107_200_000


class _Platform(NamedTuple):
    """Platform of the archive.

    Attributes:
        cores: Number of cores; the archive counts the FLOPs of one.
        peak: FLOP/s, from Table 3 of the paper.
    """

    device: str
    cores: int
    peak: float
    params: Mapping[str, str]


_TPU = _Platform(
    "TPU v2", 8, 180e12, {"platform.name": "tpu", "precision": "bfloat16", "compile": "xla"}
)
_GPU = _Platform(
    "V100", 1, 125e12, {"platform.name": "gpu", "precision": "float16", "compile": "graph"}
)
_MEASURED = {"tpu_fc.json": _TPU, "gpu_fc.json": _GPU}
_TRACE = "fc_trace_10sec.json"
_OPERATIONS = "fc_trace_10sec_opbreakdown.json"
# The traces are in percent of the TPU v2 board's peaks; this one is B/s of Table 3 of the paper.
_PEAK_BANDWIDTH = 2400e9
_MODEL = re.compile(
    r"layer_(\d{1,9})-node_(\d{1,9})-input_(\d{1,9})-output_(\d{1,9})-bs_(\d{1,9})(?:-(.+))?",
    re.ASCII,
)
_SIZES = ("model.layers", "model.nodes", "model.input_size", "model.output_size", "batch_size")
_RATES = ("example_per_sec", "step_per_sec", "flops", "fl", "params", "intensity")
_TRACED = ("flops_perc", "memory_bandwidth", "intensity", "rawMB")
#: The lists that hold a value for each capture of a trace: FLOP rate and infeed, in percent.
_CAPTURES = ("flops_trace", "infeed_trace")
#: Outcome of a run by the state in the archive. The state itself is kept as the reason.
_OUTCOMES = {
    "OOM": "oom_device",
    "Deadline Exceeded": "timeout",
    "NaN value": "nan",
    "Negative dimension size": "compile_error",
    "not run": "unavailable",
    "no error but not finished": "crash",
}
_NOTE = (
    "Published measurement of ParaDnn (Wang, Wei, Brooks, MLSys 2020) on {}; "
    "see docs/validation/published-data.md."
)


def read_archive(folder: Path) -> ImportedFolder:
    """Return the runs of the archive's files in a folder; absent files are skipped."""
    runs: dict[tuple[str, str], PublishedRun] = {}
    for name, platform in (*_MEASURED.items(), (_TRACE, _TPU), (_OPERATIONS, _TPU)):
        if (folder / name).is_file():
            for label, entry in _entries(folder / name):
                _take(runs, platform, label, entry)
    about = f"{len(runs):,} published measurements of ParaDnn (Wang, Wei, Brooks, MLSys 2020); "
    about += "see docs/validation/published-data.md."
    return ImportedFolder(
        [Publication("published, MLSys 2020", about, _PUBLISHED, [*runs.values()])]
    )


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield label and values of each entry of a file's parallel lists."""
    traced = {_TRACE: ("infeed", *_CAPTURES), _OPERATIONS: ("time_perc",)}.get(path.name)
    if traced is None:
        lists = [("labels", *_RATES), ("err_jobs", "states")]
    else:
        lists = [("labels", *_TRACED, *traced)]
    value = read_json(read_text(path))
    for names in lists:
        for label, *cells in zip(*(value[name] for name in names), strict=True):
            yield str(label), dict(zip(names[1:], cells, strict=True))


def _take(
    runs: dict[tuple[str, str], PublishedRun],
    platform: _Platform,
    label: str,
    entry: dict[str, Any],
) -> None:
    """Create the run of an entry, or add the values of a trace to it."""
    match = _MODEL.fullmatch(label)
    assert match is not None, label
    point = label if match[6] is None else label[: match.start(6) - 1]
    key = platform.device, point
    known = runs.get(key) or _run(platform, match.groups()[:5], point)
    if "rawMB" in entry:
        _traced(known, match[6], entry)
    elif "states" in entry:
        state = str(entry["states"]).strip()
        known = replace(
            known, outcome=_OUTCOMES.get(state, "crash"), reason=f"{state} (state in the archive)"
        )
    else:
        known.metrics.update(_measured(platform, entry))
    runs[key] = known


def _run(platform: _Platform, sizes: Sequence[str], label: str) -> PublishedRun:
    """Return the run of a label, without metrics."""
    device = platform.device
    known = {name: str(int(size)) for name, size in zip(_SIZES, sizes, strict=True)}
    params = {
        "model.name": "fc",
        "optimizer.name": "rmsprop",
        "framework.name": "tensorflow",
        "mode": "train",
    }
    params |= {**known, **platform.params, "replicate": "0"}
    layers = params["model.layers"]
    nodes = params["model.nodes"]
    batch = params["batch_size"]
    name = f"fc {layers}x{nodes} b{batch} {params['precision']} {device}"
    run = published_run((device, label), (device,), device, _NOTE.format(device), name, params, {})
    tags = dict(run.tags)
    note = {"mlflow.note.content": tags.pop("mlflow.note.content")}
    return replace(run, tags=tags | {"archive_label": label} | note)


def _measured(platform: _Platform, entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the archive's values in ParaDnn's units; its FLOPs are in 10^9, and of one core on
    the TPU.
    """
    number = {name: float(value) for name, value in entry.items()}
    rate = number["flops"] * 1e9 * platform.cores
    return {
        "examples_per_second": number["example_per_sec"],
        "step_time_ms": 1e3 / number["step_per_sec"],
        "flops_per_second": rate,
        "flops_utilization_spec": rate / platform.peak,
        "flops_per_step": number["fl"] * 1e9 * platform.cores,
        "parameters": number["params"],
        "published_flops_per_second": number["flops"] * 1e9,
        "published_intensity": number["intensity"],
    }


def _traced(run: PublishedRun, kind: str | None, entry: dict[str, Any]) -> None:
    """Return the metrics of a trace on TPU v2.

    They are those of the capture with the highest FLOP rate, plus rate and infeed of all
    captures, which are repeats within one process. An operation (`kind`) has share, FLOPs, bytes
    and rates. Rates of the training loop are omitted: they divide its contents by its own time
    and reach 78 times the peak.
    """
    captures = [entry.pop(name, []) for name in _CAPTURES]
    if entry["rawMB"] == 0:
        entry["intensity"] = 0.0  # nothing was moved: 0 / 0, and written as NaN
    number = {name: float(value) for name, value in entry.items()}
    moved = number["rawMB"] * 1e6
    intensity = number["intensity"]
    shares = {name: number[name] / 100 for name in ("flops_perc", "memory_bandwidth")}
    if kind is not None:
        share = number["time_perc"] / 100
        known_rates: list[float | None] = [None, None]
        if kind != "while":
            bandwidth = shares["memory_bandwidth"] * _PEAK_BANDWIDTH
            known_rates = [shares["flops_perc"] * _TPU.peak, bandwidth]
        _, rows = run.tables.setdefault("operation_types.json", (("type", *OPERATION_NUMBERS), []))
        known_intensity = intensity if moved else None
        rows.append(
            [kind, None, None, share, intensity * moved, moved, *known_rates, known_intensity]
        )
        run.metrics[f"op_share.{kind}"] = share
        return
    rates, waits = ([float(value) / 100 for value in each] for each in captures)
    table: list[list[Any]] = [
        [place, *pair] for place, pair in enumerate(zip(rates, waits, strict=True))
    ]
    run.tables["traces.json"] = ("capture", "flops_utilization", "infeed_fraction"), table
    run.metrics.update(
        infeed_fraction=number["infeed"] / 100,
        trace_flops_utilization=shares["flops_perc"],
        trace_bandwidth_utilization=shares["memory_bandwidth"],
        trace_arithmetic_intensity=intensity,
        trace_bytes=moved,
        trace_captures=float(len(rates)),
        trace_flops_utilization_median=statistics.median(rates),
        trace_flops_utilization_lowest=min(rates),
    )
