"""Reader of published times by type of layer, which become profiled inference runs.

    python -m benchmarks.published layers=FILE.csv
    python -m analysis breakdown --experiment layers

A row is a model on a device: device, model (a family, or any name), batch_size, forward_ms of the
whole pass, and the milliseconds of each type of layer, measured one by one; blank if a model has
none. layers.csv in this folder is the table of Lu et al., "Modeling the Resource Requirements of
Convolutional Neural Networks on Mobile Devices" (2017): AlexNet and VGG-16 on Jetson TK1 and TX1
with Caffe.
"""

import csv
from pathlib import Path

from analysis.published.source import ImportedFolder, Publication, PublishedRun, read_text
from benchmarks.published.common import published_run
from paradnn.families import FAMILIES, make_model

_KEYS = ("device", "model", "batch_size", "forward_ms")
#: 23 October 2017, the first day of the conference of that paper, in Unix milliseconds.
_PUBLISHED = 1_508_716_800_000


def read_layers(path: Path) -> ImportedFolder:
    """Return the rows of a file."""
    runs = [_run(row) for row in csv.DictReader(read_text(path).splitlines())]
    tables = f"{len(runs)} tables by type of layer from {path.name}"
    about = f"{tables}; see docs/validation/published-data.md."
    return ImportedFolder(
        [Publication(f"published, layers of {path.stem}", about, _PUBLISHED, runs)]
    )


def _run(row: dict[str, str]) -> PublishedRun:
    """Return the run of a model on a device."""
    batch = int(row["batch_size"])
    forward = float(row["forward_ms"])
    spent = {name: float(text) for name, text in row.items() if name not in _KEYS and text}
    model = row["model"]
    device = row["device"]
    params = {
        "model.name": model,
        "mode": "inference",
        "batch_size": str(batch),
        "precision": "float32",
    }
    metrics = {"examples_per_second": 1e3 * batch / forward, "step_time_ms": forward}
    metrics |= {f"op_share.{name}": value / sum(spent.values()) for name, value in spent.items()}
    if model in FAMILIES and FAMILIES[model].has_layers:
        costs = make_model({"name": model}).costs(
            batch_size=batch, precision="float32", mode="inference", optimizer="sgd"
        )
        metrics |= {
            "parameters": float(costs.parameters),
            "flops_per_step": float(costs.flops_per_step),
        }
        metrics["flops_per_second"] = costs.flops_per_step / forward * 1e3
    note = f"Published times by type of layer: {model} on {device}."
    point = ("layers", device, model, str(batch))
    return published_run(
        point, point[:2], device, note, f"{model} b{batch} {device}", params, metrics
    )
