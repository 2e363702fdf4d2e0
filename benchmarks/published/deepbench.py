"""Reader of DeepBench's published timings, which become runs.

    python -m benchmarks.published deepbench=DIR

DIR is the folder results of github.com/baidu-research/DeepBench. A file has a sheet `Specs` and
one sheet per precision. Order and spelling of sections differ, so columns are found by their
headings. Each timing becomes one run of `model=gemm`, `conv2d`, `rnn_kernel`, `sparse_gemm` or
`channel` with the params of a measured run, so that analyses pair them.
docs/validation/published-data.md explains the figures and their peculiarities.
"""

import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from openpyxl import load_workbook

from analysis.published.source import ImportedFolder, Publication, PublishedRun, digest
from benchmarks.published.common import device_called, repeated, transfer
from paradnn.config.identity import as_params, point_request
from paradnn.config.point import Point, step_costs
from paradnn.core.workload import requested_workload
from paradnn.families import FAMILIES
from paradnn.platform.specifications import find_hardware
from paradnn.store.runs import DEEPBENCH

#: 7 October 2019, the last change of a spreadsheet, in Unix milliseconds.
_PUBLISHED = 1_570_406_400_000

#: Libraries that are called directly, without a framework, by the first word of a device.
_LIBRARIES = {"NVIDIA": "cuda", "AMD": "rocm", "Intel": "mkl"}

#: Params of measured runs that define a kernel. It has no optimizer; a run records the default.
_SHARED = ("batch_size", "precision", "mode", "devices", "transport")
_SHARED_GROUPS = ("model.", "optimizer.", "data.")


class Machine(NamedTuple):
    """The sheet `Specs`: `device` as printed, `kind` gpu or cpu, and every other line as key and
    text.
    """

    device: str
    kind: str
    specs: Mapping[str, str]


class KernelTiming(NamedTuple):
    """One timing.

    Attributes:
        place: Sheet, row and heading.
        options: Fields of the kernel's dataclass, or for a channel those of `transfer`.
    """

    place: str
    kernel: str
    options: Mapping[str, Any]
    batch_size: int
    precision: str
    seconds: float


#: Options of kernels, sections, precisions and spellings of the sheets, described in the file.
_LAYOUT = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
#: Texts that mark a missing time.
_NO_TIME = ("n/a", "n/a*", "not supported", "-")


def read_workbook(path: Path) -> tuple[Machine, list[KernelTiming]]:
    """Return the platform of a file and its timings, in the file's order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of unsupported extensions, such as colors
        book = load_workbook(path, data_only=True, read_only=True)
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # some sheets declare fewer rows than they have
        sheets = {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in book.worksheets}
    described = next(name for name in sheets if name.strip().lower() == "specs")
    lines = ((_text(row[0]), _text(row[1])) for row in sheets[described] if len(row) > 1)
    specs = {key: text for key, text in lines if key and text not in ("", "-")}
    kind = "gpu" if "GPU Model" in specs else "cpu"
    device = specs.get("GPU Model") or specs.get("CPU Model") or specs["CPU"]
    return Machine(device, kind, specs), [
        timing for name in sheets for timing in _timings(name, sheets[name])
    ]


def _timings(sheet: str, rows: Sequence[Sequence[Any]]) -> Iterator[KernelTiming]:
    """Yield the timings of one sheet, section by section."""
    starts = [number for number, row in enumerate(rows) if _title(row) in _LAYOUT["sections"]]
    stated = " ".join(
        _text(cell) for row in rows[: min(starts, default=0)] for cell in row if cell is not None
    ).lower()
    for start, end in itertools.pairwise([*starts, len(rows)]):
        times = _timed(_title(rows[start]))
        kernel = times[0][1]
        said = (
            (form, own or [kernel]) for words, own, form in _LAYOUT["precisions"] if words in stated
        )
        precision = next(form for form, own in said if kernel in own)
        named = [
            heading for _, kernel, _ in times for heading in _LAYOUT["options"][kernel].values()
        ]
        sizes = {
            part: None for each in named for part in ((each,) if isinstance(each, str) else each)
        }
        if kernel in ("conv2d", "rnn_kernel"):
            sizes["n"] = None
        # Headings are next to the title or in the row below it.
        if any(cell is not None for cell in rows[start][1:]):
            first = start
        else:
            first = start + 1
        columns = _columns(rows[first])
        for place, row in enumerate(rows[first + 1 : end], first + 2):
            cells = {name: row[column] for name, column in columns.items() if column < len(row)}
            # A row with at most one size is a remark.
            if sum(cells.get(name) is not None for name in sizes) > 1:
                read = {name: _size(name, cells[name]) for name in sizes}
                yield from _row(times, cells, read, precision, f"{sheet}, row {place}")


def _timed(section: str) -> list[tuple[str, str, dict[str, str]]]:
    """Return the time columns of a section: heading, kernel, and implied options."""
    cell = section.partition("recurrent layers - ")[2]
    implied = {}
    if cell:
        implied["cell"] = cell
    return [(*column, said | implied) for *column, said in _LAYOUT["sections"][section]]


def _columns(headings: Sequence[Any]) -> dict[str, int]:
    """Map normalized headings to columns."""
    words = (" ".join(re.sub(r"\(.*?\)", "", _text(cell)).lower().split()) for cell in headings)
    found = {heading: column for column, heading in enumerate(words) if column and heading}
    for name, other in _LAYOUT["others"]:
        if name not in found and other in found:
            found[name] = found[other]
    if "processes" in found:  # the number of hosts is next to the cards, without a heading
        found["hosts"] = found["processes"] + ("# nodes" not in found)
    return found


def _row(
    times: Sequence[Any],
    cells: Mapping[str, Any],
    sizes: Mapping[str, Any],
    precision: str,
    place: str,
) -> Iterator[KernelTiming]:
    """Yield the timings of a row."""
    for heading, kernel, said in times:
        milliseconds = cells.get(heading)
        if milliseconds is None or str(milliseconds).strip().lower() in _NO_TIME:
            continue
        options = {
            name: sizes[part] if isinstance(part, str) else tuple(sizes[each] for each in part)
            for name, part in _LAYOUT["options"][kernel].items()
        } | said
        if kernel == "channel":
            transport = _LAYOUT["transports"][
                _text(cells["selected algorithm"]).partition(" ")[0].lower()
            ]
            hosts = cells.get("hosts")
            if not isinstance(hosts, int | float):
                hosts = 1
            options |= {"transport": transport, "hosts": int(hosts)}
        batch = sizes["n"] if kernel in ("conv2d", "rnn_kernel") else 1
        yield KernelTiming(
            f"{place}, {heading}", kernel, options, batch, precision, float(milliseconds) / 1e3
        )


def _size(name: str, value: Any) -> Any:
    """Return a cell as an option: bytes of floats, or the density for a sparsity."""
    if name.endswith("transpose"):
        return value == "T"
    if name == "sparsity":
        return round(1 - value, 9)
    return int(value) * (4 if name == "size # floats" else 1)


def _title(row: Sequence[Any]) -> str:
    return _text(row[0]).lower() if row else ""


def _text(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())


def read_deepbench(folder: Path) -> ImportedFolder:
    """Return a publication per spreadsheet below a folder, ordered by path."""
    return ImportedFolder([_publication(path) for path in sorted(folder.rglob("DeepBench_*.xlsx"))])


def _publication(path: Path) -> Publication:
    platform, timings = read_workbook(path)
    use = "training" if path.parent.name == "train" else "inference"
    device = device_called(platform.device)
    source = "github.com/baidu-research/DeepBench, Baidu Research, Apache-2.0"
    origin = f"{path.name} ({source})"
    about = f"{len(timings):,} timings of {origin}; see docs/validation/published-data.md."
    specs = platform.specs
    file = f"{use}/{path.name}"
    versions = {
        key.lower().removesuffix(" version"): text
        for key, text in specs.items()
        if " version" in key.lower()
    }
    tags = {
        "device": device,
        "environment_id": digest(device, *(f"{key}={text}" for key, text in sorted(specs.items()))),
        "protocol_id": DEEPBENCH,
        **{f"version.{name.replace(' ', '-')}": text for name, text in versions.items()},
    }
    runs = repeated(
        (_run(timing, file, platform.kind, tags) for timing in timings), "deepbench", file
    )
    return Publication(f"published, DeepBench {use} {device}", about, _PUBLISHED, runs)


def _run(timing: KernelTiming, file: str, kind: str, tags: Mapping[str, str]) -> PublishedRun:
    """Return a timing with name, params and metrics of a measured run of the same point."""
    device = tags["device"]
    if timing.kernel == "channel":
        name, params, metrics = transfer(
            **timing.options, precision=timing.precision, seconds=timing.seconds
        )
    else:
        name, params, metrics = _kernel(timing, device)
    library = _LIBRARIES.get(device.partition(" ")[0], "arm")
    note = f"Published timing of DeepBench on {device}, {file}, sheet {timing.place}; "
    own = {
        "archive_label": f"{file}, {timing.place}",
        "mlflow.note.content": note + "see docs/validation/published-data.md.",
    }
    params = {**params, "platform.name": kind, "framework.name": library}
    return PublishedRun("", f"{name} {device}", params, {**tags, **own}, metrics)


def _kernel(timing: KernelTiming, device: str) -> tuple[str, dict[str, str], dict[str, float]]:
    """Return name, params and metrics of a kernel.

    No compiler made it, so it has no `compile`. For int8 the width of the result is not stated,
    so it has no traffic.
    """
    model = FAMILIES[timing.kernel].options(name=timing.kernel, **timing.options)
    work = requested_workload(forward := {"mode": "inference"}).configured(forward)
    point = Point(
        model=model, workload=work, batch_size=timing.batch_size, precision=timing.precision
    )
    integers = timing.precision == "int8"
    costs = step_costs(replace(point, precision="float32") if integers else point)
    metrics: dict[str, float] = {
        "step_time_ms": timing.seconds * 1e3,
        "examples_per_second": timing.batch_size / timing.seconds,
        "flops_per_step": costs.flops_per_step,
        "flops_per_second": (rate := costs.flops_per_step / timing.seconds),
        "parameters": costs.parameters,
    }
    if not integers:
        intensity = costs.flops_per_step / costs.bytes_per_step
        metrics |= {"bytes_per_step": costs.bytes_per_step, "arithmetic_intensity": intensity}
    hardware = find_hardware(device)
    peak = hardware.peak_flops.get(timing.precision) if hardware else None
    if peak:
        metrics["flops_utilization_spec"] = rate / peak
    shared = as_params(point_request(point)).items()
    params = {key: text for key, text in shared if key in _SHARED or key.startswith(_SHARED_GROUPS)}
    return f"{timing.kernel} {model.size} b{timing.batch_size} {timing.precision}", params, metrics
