"""Reader of MLPerf Tiny's results, which become inference runs.

    python -m benchmarks.published tiny=DIR
    python -m analysis boxplot --experiment mlperf-tiny --by device --metric examples_per_second

DIR is a clone of github.com/mlcommons/tiny_results_v1.3. A run is a benchmark on a system: the
rate of its performance file (for the streaming wake word the estimated one), otherwise of its
energy file, and the energy per inference. The energy of the streaming wake word covers a whole
recording and is omitted.
"""

import re
from pathlib import Path
from typing import Any

from analysis.published.source import ImportedFolder, Publication, PublishedRun, read_text
from benchmarks.published.common import published_run
from paradnn.store.files import read_json

#: 17 September 2025, when the results were published, in Unix milliseconds.
_PUBLISHED = 1_758_067_200_000
#: Reference model by benchmark.
_MODELS = {
    "ad": "autoencoder (anomaly detection)",
    "ic": "ResNet-8 (image classification)",
    "kws": "DS-CNN (keyword spotting)",
    "sww": "1D DS-CNN (streaming wake word)",
    "vww": "MobileNet 0.25x 96px (visual wake words)",
}
_RATE = re.compile(r"(?:Median throughput is|Estimated throughput:)\s*([0-9.]+) inf\./sec")
_ENERGY = re.compile(r"Median energy cost is\s*([0-9.]+) uJ/inf")
_ABOUT = (
    "{} results of MLPerf Tiny v1.3, closed division "
    "(github.com/mlcommons/tiny_results_v1.3, Apache-2.0)."
)


def read_tiny(folder: Path) -> ImportedFolder:
    """Return the results of all submitters that report a throughput."""
    runs = []
    damaged = []
    for path in sorted(folder.glob("closed/*/results/*/*")):
        if path.is_dir() and path.name in _MODELS:
            try:
                runs.append(_run(path))
            except ValueError as error:
                damaged.append(f"{path.parent.name}, {path.name}: {error}")
    return ImportedFolder(
        [Publication("published, MLPerf Tiny v1.3", _ABOUT.format(len(runs)), _PUBLISHED, runs)],
        damaged,
    )


def _run(path: Path) -> PublishedRun:
    """Return the run of a benchmark (the folder's name) on a system (its parent folder).

    Raises:
        ValueError: If no rate is reported.
    """
    system = path.parent.name
    submitter = path.parents[2].name
    texts = {
        each: "\n".join(map(read_text, sorted(path.glob(f"{each}/*.txt"))))
        for each in ("performance", "energy")
    }
    rate = _RATE.search(texts["performance"]) or _RATE.search(texts["energy"])
    if rate is None or not float(rate[1]):
        raise ValueError("gives no throughput")
    description = path.parents[2] / "systems" / f"{system}.json"
    about: dict[str, Any] = {}
    if description.is_file():
        about = read_json(read_text(description))
    keys = ("Board Name", "Processor(s) Name", "Processor(s) Frequencies")
    board, processor, clock = (str(about.get(key) or "").strip() for key in keys)
    inside = ", ".join(word for word in (processor, clock) if word)
    if inside:
        device = f"{board or system} ({inside})"
    else:
        device = board or system
    if path.name != "sww":
        energy = _ENERGY.search(texts["energy"])
    else:
        energy = None
    metrics = {"examples_per_second": float(rate[1]), "step_time_ms": 1e3 / float(rate[1])}
    if energy:
        metrics["energy_per_example_joules"] = float(energy[1]) / 1e6
    params = {
        "model.name": _MODELS[path.name],
        "mode": "inference",
        "batch_size": "1",
        "precision": "int8",
    }
    params["framework.name"] = str(about.get("Inference Framework") or "(not said)")
    note = f"MLPerf Tiny v1.3, {path.name} on {system} by {submitter}."
    point = ("tiny", system, path.name)
    return published_run(point, point[:2], device, note, f"{path.name} {system}", params, metrics)
