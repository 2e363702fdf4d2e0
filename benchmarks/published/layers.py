"""Times by type of layer, as papers print them, as profiled runs of inference.

    python -m benchmarks.published layers=FILE.csv
    python -m analysis breakdown --experiment layers

A row is a model on a device: device, model (a family of the suite, or any name), batch_size, forward_ms of the whole
pass, and the milliseconds of each type of layer, measured one by one; blank where a model has none. The table beside
this module, layers.csv, is that of Lu et al., "Modeling the Resource Requirements of Convolutional Neural Networks on
Mobile Devices" (2017): AlexNet and VGG-16 on Jetson TK1 and TX1, Caffe.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from analysis.published.source import DAMAGED, Found, Publication, PublishedRun, digest, read_text, reason
from paradnn.core.errors import DataError
from paradnn.families import FAMILIES, model_of
from paradnn.store.runs import PUBLISHED

_KEYS = ("device", "model", "batch_size", "forward_ms")
#: 23 October 2017, the first day of the conference of that paper, in Unix milliseconds.
_PUBLISHED = 1_508_716_800_000
_FORM = f"columns {', '.join(_KEYS)}, and one for each type of layer, in ms"


def read_layers(path: Path) -> Found:
    """The rows of a file. DataError for a file of another kind."""
    try:
        table = csv.DictReader(read_text(path).splitlines())
        rows, names = list(table), table.fieldnames or ()
    except DAMAGED as error:
        raise DataError(f"{path}: {reason(error)}; give a CSV file with {_FORM}") from None
    if not rows or not set(_KEYS) < set(names):
        raise DataError(f"{path}: is no table by type of layer; give a CSV file with {_FORM}")
    runs, damaged = [], []
    for number, row in enumerate(rows, 2):
        try:
            runs.append(_run(row, [name for name in names if name not in _KEYS]))
        except DAMAGED as error:
            damaged.append(f"{path.name}, line {number}: {reason(error)}")
    about = f"{len(runs)} tables by type of layer from {path.name}; see docs/published-data.md."
    return Found([Publication(f"published, layers of {path.stem}", about, _PUBLISHED, runs)] if runs else [], damaged)


def _run(row: dict[str, str], types: list[str]) -> PublishedRun:
    """A model on a device. ValueError where a number is none."""
    batch, forward = int(row["batch_size"]), float(row["forward_ms"])
    spent = {name: float(row[name]) for name in types if row[name]}
    if not (batch > 0 and spent and all(0 < value < math.inf for value in (forward, *spent.values()))):
        raise ValueError("its numbers are not all above zero")
    model, device = row["model"], row["device"]
    params = {"model.name": model, "mode": "inference", "batch_size": str(batch), "precision": "float32"}
    metrics = {"examples_per_second": 1e3 * batch / forward, "step_time_ms": forward}
    metrics |= {f"op_share.{name}": value / sum(spent.values()) for name, value in spent.items()}
    if model in FAMILIES and FAMILIES[model].has_layers:
        costs = model_of({"name": model}).costs(
            batch_size=batch, precision="float32", mode="inference", optimizer="sgd"
        )
        metrics |= {"parameters": float(costs.parameters), "flops_per_step": float(costs.flops_per_step)}
        metrics["flops_per_second"] = costs.flops_per_step / forward * 1e3
    tags = {
        "environment_id": digest("layers", device),
        "protocol_id": PUBLISHED,
        "replicate": "0",
        "device": device,
        "mlflow.note.content": f"Published times by type of layer: {model} on {device}.",
    }
    return PublishedRun(
        digest("layers", device, model, str(batch)), f"{model} b{batch} {device}", params, tags, metrics
    )
