"""DeepBench's published timings as runs, so that one's own kernels stand beside eighteen files of other platforms.

    python -m analysis import-deepbench DIR

Each timing of `analysis.store.deepbench_sheets` becomes one run of `model=gemm`, `conv2d`, `rnn_kernel`, `sparse_gemm`
or `channel`, with the params of one's own, so that `compare`, `roofline` and `channel` find the same point in both.
docs/published-data.md says what the figures mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.store.deepbench_sheets import Platform, Timing, read_workbook
from analysis.store.publication import Imported, Publication, PublishedRun, digest, log_publications
from analysis.store.transfers import Transfer
from paradnn.config.identity import request_of, texts
from paradnn.config.point import Point
from paradnn.costs.point import costs_of
from paradnn.errors import ConfigError, DataError
from paradnn.families import FAMILIES
from paradnn.platform.specifications import find_hardware
from paradnn.store.protocols import DEEPBENCH

__all__ = ["import_deepbench", "read_deepbench"]

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


def import_deepbench(
    folder: Path,
    tracking_uri: str | None = None,
    experiment: str = "paradnn",
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the timings of a folder's spreadsheets that the store does not hold yet, one run each.

    Raises as `read_deepbench`, before the first run is logged, and StoreError.
    """
    return log_publications(read_deepbench(folder), tracking_uri, experiment, progress=progress)


def read_deepbench(folder: Path) -> list[Publication]:
    """A publication for each spreadsheet below a folder, in the order of their paths.

    Raises DataError where there is none, or where one of them is damaged or no such file.
    """
    paths = sorted(folder.rglob("DeepBench_*.xlsx"))
    if not paths:
        where = "github.com/baidu-research/DeepBench, folder results"
        raise DataError(f"{folder}: holds no DeepBench_*.xlsx; they are in {where}")
    return [_publication(path) for path in paths]


def _publication(path: Path) -> Publication:
    platform, timings = read_workbook(path)
    use = "training" if path.parent.name == "train" else "inference"
    device = _DEVICES.get(platform.device, platform.device)
    name = f"published, DeepBench {use} {device}"
    source = "github.com/baidu-research/DeepBench, Baidu Research, Apache-2.0"
    about = f"{len(timings):,} timings of {path.name} ({source}); see docs/published-data.md."
    return Publication(name, about, _PUBLISHED, list(_runs(f"{use}/{path.name}", device, platform, timings)))


def _runs(file: str, device: str, platform: Platform, timings: Sequence[Timing]) -> Iterator[PublishedRun]:
    """A problem that a file lists twice is measured twice: the second is a replicate."""
    seen: Counter[str] = Counter()
    tags = _platform_tags(device, platform)
    library = _LIBRARIES.get(device.partition(" ")[0], "arm")
    for timing in timings:
        name, params, metrics = _described(timing, file, device)
        params |= {"platform.name": platform.kind, "framework.name": library}
        known = digest("deepbench", file, *(f"{key}={value}" for key, value in sorted(params.items())))
        replicate = str(seen[known])
        seen[known] += 1
        note = f"Published timing of DeepBench on {device}, {file}, sheet {timing.sheet}, cell {timing.cell}; "
        yield PublishedRun(
            point_id=digest(known, replicate),
            name=f"{name} {device}",
            params=params | {"replicate": replicate},
            tags={
                **tags,
                **timing.notes,
                "replicate": replicate,
                "archive_label": f"{file}, {timing.sheet}, {timing.cell}",
                "mlflow.note.content": note + "see docs/published-data.md.",
            },
            metrics=metrics,
        )


def _described(timing: Timing, file: str, device: str) -> tuple[str, dict[str, str], dict[str, float]]:
    """Name, params and metrics of one's own run of the same."""
    if timing.kernel == "channel":
        transfer = Transfer(**timing.options, precision=timing.precision, seconds=timing.seconds)
        return transfer.name, transfer.params, transfer.metrics
    point = _point(timing, file)
    name = f"{timing.kernel} {point.model.size} b{timing.batch_size} {timing.precision}"
    return name, _params(point), _metrics(timing, point, device)


def _point(timing: Timing, file: str) -> Point:
    """One's own point of the same operation; DataError where its sizes make none."""
    try:
        model = FAMILIES[timing.kernel].options(name=timing.kernel, **timing.options)
    except ConfigError as error:
        raise DataError(f"{file}, sheet {timing.sheet!r}, cell {timing.cell}: {error}") from error
    return Point(model=model, batch_size=timing.batch_size, precision=timing.precision, mode="inference")


def _params(point: Point) -> dict[str, str]:
    """What identifies one's own run of the point. There was no compiler: none has `compile`."""
    params = texts(request_of(point))
    return {key: text for key, text in params.items() if key in _SHARED or key.startswith(_SHARED_GROUPS)}


def _metrics(timing: Timing, point: Point, device: str) -> dict[str, float]:
    """Time and rates. FLOPs are counted here; the sheet's rate stands beside them as printed. Of int8 the width of the
    result is not stated, and so no traffic."""
    counted = replace(point, precision="float32") if point.precision == "int8" else point
    costs = costs_of(counted)
    rate = costs.flops_per_step / timing.seconds
    metrics: dict[str, float] = {
        "step_time_ms": timing.seconds * 1e3,
        "examples_per_second": timing.batch_size / timing.seconds,
        "flops_per_step": costs.flops_per_step,
        "flops_per_second": rate,
        "parameters": costs.parameters,
    }
    if counted is point:
        metrics |= {
            "bytes_per_step": costs.bytes_per_step,
            "arithmetic_intensity": costs.flops_per_step / costs.bytes_per_step,
        }
    if timing.stated is not None:
        metrics["published_flops_per_second"] = timing.stated
    hardware = find_hardware(device)
    peak = hardware.peak_flops.get(timing.precision) if hardware else None
    return metrics | ({"flops_utilization_spec": rate / peak} if peak else {})


def _platform_tags(device: str, platform: Platform) -> dict[str, str]:
    """Device, environment and the versions of its software."""
    specs = platform.specs
    versions = {
        f"version.{key.lower().removesuffix(' version').replace(' ', '-')}": text
        for key, text in specs.items()
        if key.lower().endswith(" version")
    }
    environment = digest(device, *(f"{key}={text}" for key, text in sorted(specs.items())))
    return {"device": device, "environment_id": environment, "protocol_id": DEEPBENCH, **versions}
