"""DeepBench's published timings, so that one's own kernels stand beside eighteen files of other platforms.

    python -m analysis import-deepbench DIR

DIR is folder results of github.com/baidu-research/DeepBench. A file has a sheet `Specs` and one sheet for each
precision. Such a sheet has sections one below the other, matrix products, sparse products, convolutions, recurrent
layers, each with a row of headings of its own. Their order and spelling differ from file to file, so that columns are
found by their headings.

Each timing becomes one run of `model=gemm`, `conv2d`, `rnn_kernel`, `sparse_gemm` or `channel`, with the params of
one's own, so that `compare`, `roofline` and `channel` find the same point in both. docs/published-data.md says what the
figures mean, and what else is odd.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.published.source import (
    DAMAGED,
    Found,
    Publication,
    PublishedRun,
    digest,
    read_sheets,
    reason,
    repeated,
    transfer,
)
from paradnn.config.costs import costs_of
from paradnn.config.identity import request_of, texts
from paradnn.config.point import Point
from paradnn.core.workload import asked_for
from paradnn.errors import ConfigError, DataError
from paradnn.families import FAMILIES
from paradnn.platform.specifications import find_hardware
from paradnn.store.runs import DEEPBENCH

#: 7 October 2019, the last change of a spreadsheet, in Unix milliseconds.
_PUBLISHED = 1_570_406_400_000

#: A platform's name here where two sheets spell one in two ways, or say what is inside in place of what it is.
_DEVICES = {
    "NVIDIA Tesla P100": "NVIDIA P100",
    "Nvidia Tesla M40": "NVIDIA Tesla M40",
    "Nvidia TitanX": "NVIDIA Titan X (Maxwell)",
    "Nvidia TitanX Pascal": "NVIDIA Titan X (Pascal)",
    "Nvidia TitanXp": "NVIDIA Titan Xp",
    "NVIDIA GTX TitanXp": "NVIDIA Titan Xp",
    "Nvidia 1080Ti": "NVIDIA GTX 1080 Ti",
    "AMD Vega Frontier Edition 16GB": "AMD Vega Frontier Edition",
    "Intel(R) Xeon Phi(TM) 7250F": "Intel Xeon Phi 7250F, 68 cores",
    "1.2 GHZ quad-core ARM Cortex A53": "Raspberry Pi 3, 4 cores",
    "Apple A8 dual core 1.4GHz (ARM v8)": "iPhone 6, 2 cores",
    "Apple A10 quad core 2.3GHz (ARM v8)": "iPhone 7, 4 cores",
}
#: By the first word of a device: whose libraries are called, without a framework above them.
_LIBRARIES = {"NVIDIA": "cuda", "AMD": "rocm", "Intel": "mkl"}

#: Params of one's own runs that say what a kernel computes. It has no optimizer; a run holds the usual one.
_SHARED = ("batch_size", "precision", "mode", "devices", "transport")
_SHARED_GROUPS = ("model.", "optimizer.", "data.")
_SOURCE = "github.com/baidu-research/DeepBench, folder results"
_AGAIN = f"fetch it again ({_SOURCE})"


class Platform(NamedTuple):
    """What the sheet `Specs` says: `device` in its words, `kind` gpu or cpu, and every other line, key -> text."""

    device: str
    kind: str
    specs: Mapping[str, str]


@dataclass(frozen=True)
class Timing:
    """One timing. `place`: sheet, row and heading. `options` are the kernel's own, by the names of its dataclass, of a
    channel those of `transfer`; `stated` is the rate in the sheet, FLOP/s, None where there is none; `notes` are other
    cells of the row that say how it was done."""

    place: str
    kernel: str
    options: Mapping[str, Any]
    batch_size: int
    precision: str
    seconds: float
    stated: float | None
    notes: Mapping[str, str] = field(default_factory=dict)


class _Section(NamedTuple):
    """A section of a sheet: its kernel, the columns of sizes, and of times: heading -> (what it says of the operation,
    heading of its rate)."""

    kernel: str
    sizes: tuple[str, ...]
    times: Mapping[str, tuple[Mapping[str, Any], str]]


def _directions(*headings: tuple[str, str, str]) -> dict[str, tuple[Mapping[str, Any], str]]:
    return {time: ({"direction": direction}, rate) for time, direction, rate in headings}


_PRODUCT = ("m", "n", "k", "a transpose", "b transpose")
_BOTH: dict[str, tuple[Mapping[str, Any], str]] = {
    "sparse time": ({}, "sparse"),
    "dense time": ({"dense": True}, "dense"),
}
_LAYER = _directions(
    ("time forward", "forward", "forward"),
    # Where there is one backward time it is of the inputs' gradient alone: its rate counts one pass.
    ("time backward", "backward_input", "backward"),
    ("time backward wrt inputs", "backward_input", "backward inputs"),
    ("time backward wrt weights", "backward_weights", "backward weights"),
)
_IMAGES = _directions(
    ("forward", "forward", "forward"),
    ("wrt inputs", "backward_input", "backward inputs"),
    ("wrt parameters", "backward_weights", "backward weights"),
)
_CONVOLUTION = ("w", "h", "c", "n", "k", "s", "r", "pad_w", "pad_h", "horizontal stride", "vertical stride")
_SECTIONS = {
    "dense matrix multiplication": _Section("gemm", _PRODUCT, {"time": ({}, "")}),
    "sparse matrix multiplication": _Section("sparse_gemm", (*_PRODUCT, "sparsity"), _BOTH),
    "convolution": _Section("conv2d", _CONVOLUTION, _IMAGES),
    **{
        f"recurrent layers - {cell}": _Section("rnn_kernel", ("hidden units", "n", "timesteps"), _LAYER)
        for cell in ("vanilla", "lstm", "gru")
    },
    "all-reduce": _Section("channel", ("size # floats", "processes"), {"mean all reduce time": ({}, "")}),
}
#: What the line `Precision` says, of which kernels (of all where none is named) -> of their operands.
_PRECISIONS = (
    ("single precision", ("sparse_gemm", "rnn_kernel"), "float32"),
    ("convolution results are still in float", ("conv2d",), "float32"),
    *(("int8", (), "int8"), ("16 bit inputs", (), "float16"), ("float", (), "float32")),
)
#: First word of the algorithm of an all-reduce -> what carries it.
_TRANSPORTS = {"nccl": "nccl", "osu": "mpi", "baidu": "baidu", "intel": "mlsl"}
_UNITS = {"teraflops": 1e12, "gigaflops": 1e9}
#: Texts in place of a time that say that there is none.
_NO_TIME = ("n/a", "n/a*", "not supported", "-")


def read_workbook(path: Path) -> tuple[Platform, list[Timing]]:
    """The platform of a file and its timings, in the file's order. DataError where it is not such a file."""
    try:
        sheets = read_sheets(path)
    except DAMAGED as error:
        raise DataError(f"{path.name} is no spreadsheet: {reason(error)}; {_AGAIN}") from error
    specs = [name for name in sheets if name.strip().lower() == "specs"]
    results = [name for name in sheets if any(_title(row) in _SECTIONS for row in sheets[name])]
    if not specs or not results:
        missing = "a sheet 'Specs'" if not specs else "a sheet of results"
        raise DataError(f"{path.name} is not DeepBench's: it lacks {missing}; {_AGAIN}")
    timings = [timing for name in results for timing in _timings(path.name, name, sheets[name])]
    if not timings:
        raise DataError(f"{path.name}: holds no timing; {_AGAIN}")
    said = {
        _text(row[0]): _text(row[1]) for row in sheets[specs[0]] if len(row) > 1 and _text(row[0]) and _text(row[1])
    }
    for key, kind in (("GPU Model", "gpu"), ("CPU Model", "cpu"), ("CPU", "cpu")):
        if key in said:
            return Platform(said[key], kind, {name: text for name, text in said.items() if text != "-"}), timings
    raise DataError(f"{path.name}, sheet Specs: names neither GPU Model nor CPU; {_AGAIN}")


def _timings(file: str, sheet: str, rows: Sequence[Sequence[Any]]) -> Iterator[Timing]:
    """The timings of one sheet, section by section. DataError for what no such sheet has."""
    starts = [number for number, row in enumerate(rows) if _title(row) in _SECTIONS]
    stated = " ".join(_text(cell) for row in rows[: starts[0]] for cell in row if cell is not None).lower()
    here = 0
    try:
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            title = _title(rows[start])
            section = _SECTIONS[title]
            # Headings stand beside the title or in the row below it.
            here = first = start if any(cell is not None for cell in rows[start][1:]) else start + 1
            columns = _columns(rows[here], section)
            precision = _precision(stated, section.kernel)
            for here in range(first + 1, end):
                cells = {name: _at(rows[here], column) for name, column in columns.items()}
                # A row with one size or none holds a remark.
                if sum(cells[name] is not None for name in section.sizes) > 1:
                    yield from _row(title, section, cells, sheet, here + 1, precision)
    except _WrongError as error:
        raise DataError(f"{file}, sheet {sheet!r}, row {here + 1}: {error}; {_AGAIN}") from None


class _WrongError(Exception):
    """What is wrong with a row."""


def _columns(headings: Sequence[Any], section: _Section) -> dict[str, int]:
    """Heading in one spelling -> its column; those of every size, and of a time at least."""
    found = {_heading(_text(cell)): column for column, cell in enumerate(headings) if column and cell}
    # Two sheets head the hidden units of LSTM with "Input".
    others = (("hidden units", "input"), ("processes", "# chips / accelerator cards"), ("processes", "# nodes"))
    for name, other in others:
        if name not in found and other in found:
            found[name] = found[other]
    if "processes" in found:  # on how many hosts stands beside the cards, without a heading
        found["hosts"] = found["processes"] + ("# nodes" not in found)
    lacking = [name for name in section.sizes if name not in found]
    if lacking or not found.keys() & section.times.keys():
        raise _WrongError(f"the section has no column {lacking[0] if lacking else 'of times'!r}")
    return found


def _precision(stated: str, kernel: str) -> str:
    if kernel == "channel":
        return "float32"
    for words, kernels, precision in _PRECISIONS:
        if words in stated and kernel in (kernels or (kernel,)):
            return precision
    raise _WrongError(f"the precision {stated!r} is not known")


def _row(
    title: str, section: _Section, cells: Mapping[str, Any], sheet: str, number: int, precision: str
) -> Iterator[Timing]:
    """The timings of a row."""
    sizes = {name: _size(name, cells[name]) for name in section.sizes}
    notes = {"padded": "true"} if cells.get("padded kernels") == 1 else {}
    if section.kernel == "channel":
        notes["algorithm"] = _text(cells.get("selected algorithm"))
        sizes["hosts"] = int(cells["hosts"]) if _is_number(cells["hosts"]) else 1
        sizes["transport"] = _TRANSPORTS.get(notes["algorithm"].partition(" ")[0].lower())
        if sizes["transport"] is None:
            raise _WrongError(f"the algorithm {notes['algorithm']!r} is not known")
    for heading, (about, rate) in section.times.items():
        milliseconds = cells.get(heading)
        if milliseconds is None or str(milliseconds).strip().lower() in _NO_TIME:
            continue
        if not _is_number(milliseconds) or not milliseconds > 1e-9:
            raise _WrongError(f"{heading}={repr(milliseconds)[:80]} is no positive number")
        kernel, options = _operation(section.kernel, title, sizes, about)
        used = cells.get("forward algorithm") if heading == "forward" else None
        yield Timing(
            place=f"{sheet}, row {number}, {heading}",
            kernel=kernel,
            options=options,
            batch_size=sizes["n"] if kernel in ("conv2d", "rnn_kernel") else 1,
            precision=precision,
            seconds=float(milliseconds) / 1e3,
            stated=_rate(rate, cells),
            notes=notes if used is None else {**notes, "algorithm": _text(used)},
        )


def _size(name: str, value: Any) -> Any:
    if name.endswith("transpose"):
        if value not in ("N", "T"):
            raise _WrongError(f"{name}={value!r} is neither N nor T")
        return value == "T"
    least = 0 if name.startswith("pad_") else 1e-9
    if not _is_number(value) or value < least or (name != "sparsity" and value != int(value)):
        raise _WrongError(f"{name}={repr(value)[:80]} is no size")
    return value if name == "sparsity" else int(value)


def _rate(rate: str, cells: Mapping[str, Any]) -> float | None:
    # Some sheets head the rate of the inputs' gradient with "BWD" alone.
    for name in (rate, rate.removesuffix(" inputs")):
        for unit, factor in _UNITS.items():
            value: Any = cells.get(f"{name} {unit}".strip())
            if _is_number(value):
                return float(value) * factor
    return None


def _operation(
    kernel: str, title: str, sizes: Mapping[str, Any], about: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The kernel and its options."""
    if kernel in ("gemm", "sparse_gemm"):
        product = {name: sizes[name] for name in "mnk"}
        if kernel == "sparse_gemm" and not about:
            return kernel, product | {"density": round(1 - sizes["sparsity"], 9)}
        return "gemm", product | {f"transpose_{side}": sizes[f"{side} transpose"] for side in "ab"}
    if kernel == "channel":
        reduced = {name: sizes[name] for name in ("transport", "processes", "hosts")}
        return kernel, {**reduced, "pattern": "all_reduce", "size": 4 * sizes["size # floats"]}
    if kernel == "rnn_kernel":
        cell = title.rpartition(" ")[2]
        return kernel, {"cell": cell, "hidden": sizes["hidden units"], "steps": sizes["timesteps"], **about}
    options = {
        "channels": sizes["c"],
        "height": sizes["h"],
        "width": sizes["w"],
        "filters": sizes["k"],
        "kernel": (sizes["r"], sizes["s"]),
        "stride": (sizes["vertical stride"], sizes["horizontal stride"]),
        "padding": (sizes["pad_h"], sizes["pad_w"]),
        "layout": "NCHW",
    }
    return kernel, {**options, **about}


def _heading(text: str) -> str:
    """A heading in one spelling: "S (Fitler width)" is "s", "TERAFLOPS BWD Params" "backward weights teraflops"."""
    words = re.sub(r"\(.*?\)", "", text).lower().split()
    unit = next((unit for word in words for unit in _UNITS if word.endswith(unit)), "")
    if not unit:
        return " ".join(words)
    spelled = {"fwd": "forward", "bwd": "backward", "parms": "weights", "params": "weights"}
    kept = [word.removesuffix(unit) for word in words]
    return " ".join([*(spelled.get(word, word) for word in kept if word), unit])


def _title(row: Sequence[Any]) -> str:
    return _text(row[0]).lower() if row else ""


def _at(row: Sequence[Any], column: int) -> Any:
    return row[column] if 0 <= column < len(row) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -(2**63) < value < 2**63


def _text(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())


def read_deepbench(folder: Path) -> Found:
    """A publication for each spreadsheet below a folder, in the order of their paths.

    Raises DataError where there is none, or where one of them is damaged or no such file.
    """
    paths = sorted(folder.rglob("DeepBench_*.xlsx"))
    if not paths:
        raise DataError(f"{folder}: holds no DeepBench_*.xlsx; they are in {_SOURCE}")
    return Found([_publication(path) for path in paths])


def _publication(path: Path) -> Publication:
    platform, timings = read_workbook(path)
    use = "training" if path.parent.name == "train" else "inference"
    device = _DEVICES.get(platform.device, platform.device)
    source = "github.com/baidu-research/DeepBench, Baidu Research, Apache-2.0"
    about = f"{len(timings):,} timings of {path.name} ({source}); see docs/published-data.md."
    specs, file = platform.specs, f"{use}/{path.name}"
    tags = {
        "device": device,
        "environment_id": digest(device, *(f"{key}={text}" for key, text in sorted(specs.items()))),
        "protocol_id": DEEPBENCH,
        **{
            f"version.{key.lower().removesuffix(' version').replace(' ', '-')}": text
            for key, text in specs.items()
            if key.lower().endswith(" version")
        },
    }
    runs = repeated((_run(timing, file, platform.kind, tags) for timing in timings), "deepbench", file)
    return Publication(f"published, DeepBench {use} {device}", about, _PUBLISHED, runs)


def _run(timing: Timing, file: str, kind: str, tags: Mapping[str, str]) -> PublishedRun:
    """A timing with name, params and metrics of one's own run of the same."""
    device = tags["device"]
    if timing.kernel == "channel":
        name, params, metrics = transfer(**timing.options, precision=timing.precision, seconds=timing.seconds)
    else:
        name, params, metrics = _kernel(timing, file, device)
    library = _LIBRARIES.get(device.partition(" ")[0], "arm")
    note = f"Published timing of DeepBench on {device}, {file}, sheet {timing.place}; "
    own = {"archive_label": f"{file}, {timing.place}", "mlflow.note.content": note + "see docs/published-data.md."}
    params = {**params, "platform.name": kind, "framework.name": library}
    return PublishedRun("", f"{name} {device}", params, {**tags, **timing.notes, **own}, metrics)


def _kernel(timing: Timing, file: str, device: str) -> tuple[str, dict[str, str], dict[str, float]]:
    """Name, params and metrics of a kernel. There was no compiler: no run has `compile`. FLOPs are counted here; the
    sheet's rate stands beside them as printed. Of int8 the width of the result is not stated, and so no traffic."""
    try:
        model = FAMILIES[timing.kernel].options(name=timing.kernel, **timing.options)
    except ConfigError as error:
        raise DataError(f"{file}, sheet {timing.place}: {error}") from error
    work = asked_for(forward := {"mode": "inference"}).of(forward)
    point = Point(model=model, workload=work, batch_size=timing.batch_size, precision=timing.precision)
    integers = timing.precision == "int8"
    costs = costs_of(replace(point, precision="float32") if integers else point)
    rate = costs.flops_per_step / timing.seconds
    metrics: dict[str, float] = {
        "step_time_ms": timing.seconds * 1e3,
        "examples_per_second": timing.batch_size / timing.seconds,
        "flops_per_step": costs.flops_per_step,
        "flops_per_second": rate,
        "parameters": costs.parameters,
    }
    if not integers:
        intensity = costs.flops_per_step / costs.bytes_per_step
        metrics |= {"bytes_per_step": costs.bytes_per_step, "arithmetic_intensity": intensity}
    if timing.stated is not None:
        metrics["published_flops_per_second"] = timing.stated
    hardware = find_hardware(device)
    if peak := hardware.peak_flops.get(timing.precision) if hardware else None:
        metrics["flops_utilization_spec"] = rate / peak
    shared = texts(request_of(point)).items()
    params = {key: text for key, text in shared if key in _SHARED or key.startswith(_SHARED_GROUPS)}
    return f"{timing.kernel} {model.size} b{timing.batch_size} {timing.precision}", params, metrics
