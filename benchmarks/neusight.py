"""NeuSight's public timings: single operations on five GPUs, and language models on them operation by operation.

Lee, Phanishayee and Mahajan, "NeuSight: Forecasting GPU Performance for Deep Learning Training and Inference", ASPLOS
2025; a clone of github.com/sitar-lab/NeuSight. PyTorch 2.1, float32, every time between two events on the device: of an
operation as it trains its own predictor, of a model (`label`) forward and, in training, backward, without loss or
update.

Its M, N, K are those of an M x N by N x K product: N is what is summed over, K the width of the result.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paradnn.families.operations import Counted, Operation

__all__ = ["GPU", "Labelled", "Timed", "labelled_models", "timed_operations"]

#: A GPU that it has all of.
GPU = "Tesla V100-PCIE-32GB"
_ROOT = Path("scripts", "asplos")
_PRODUCTS = {"linear": "nt", "bmm": "nn"}
#: Operations without products, and how many tensors of the size of the result each reads and writes.
_OTHERS = {
    **dict.fromkeys(("add", "mul", "div", "pow"), 3),
    **dict.fromkeys(("addu", "mulu", "divu", "powu", "tanh", "relu", "gelu", "softmax", "ln"), 2),
}
#: The first and the last operation of the layer that a graph holds once, by the beginning of a model's name.
_LAYER = {
    "bert": ("bert_encoder_layer_0_attention_self_query", "bert_encoder_layer_0_output_layer_norm"),
    "gpt": ("transformer_h_0_ln_1", "add_15"),
    "opt": ("model_decoder_layers_0_self_attn_layer_norm", "view_11"),
}
_WIDTH = 4
Timed = tuple[Operation, float]


@dataclass(frozen=True)
class Labelled:
    """A model that was timed. seconds: its step, published: what NeuSight predicts for it."""

    name: str
    seconds: float
    published: float
    products: Sequence[Counted]
    others: Sequence[Counted]


def timed_operations(folder: Path, gpu: str = GPU) -> Mapping[str, Sequence[Timed]]:
    """Operations and seconds, by kind."""
    found: dict[str, list[Timed]] = {}
    for kind in (*_PRODUCTS, *_OTHERS):
        path = folder / _ROOT / "data/dataset/train/collect" / kind / "p2.1.0" / f"{gpu}.csv"
        with path.open(newline="") as handle:
            found[kind] = [(_timed(kind, row), float(row["Latency"]) / 1e3) for row in csv.DictReader(handle)]
    return found


def _timed(kind: str, row: Mapping[str, str]) -> Operation:
    if kind in _PRODUCTS:
        return _product(kind, *(int(row[name]) for name in "BMNK"))
    return _other(kind, int(row["B"]), int(row["H"]))


def _product(kind: str, batch: int, rows: int, inner: int, columns: int) -> Operation:
    moved = float(_WIDTH * batch * (rows * inner + inner * columns + rows * columns))
    flops = 2.0 * batch * rows * inner * columns
    return Operation(kind, _PRODUCTS[kind], rows, columns, inner, flops, moved, batch=batch)


def _other(kind: str, rows: int, width: int) -> Operation:
    """What goes along rows, as softmax does, has their number as its batch."""
    elements = rows * width
    moved = float(_WIDTH * elements * _OTHERS[kind])
    return Operation(kind, "", elements, 1, 1, float(elements), moved, batch=rows if kind in ("softmax", "ln") else 1)


def labelled_models(folder: Path, gpu: str = GPU) -> Iterator[Labelled]:
    """Models that ran on this one GPU as they are, not fused, of which there is a list of operations."""
    root, device = folder / _ROOT, gpu.replace(" ", "_")
    for label in sorted((root / "label" / device).glob("*.json")):
        graph = root / "results/opgraph" / f"{label.stem}.csv"
        published = root / "results/prediction" / device / "neusight" / label.name
        if label.stem.count("-") != 3 or not graph.exists():  # a fourth part: fused, or over several GPUs
            continue
        told = json.loads(label.read_text())
        products, others = _operations(graph, int(told["num_layer"]))
        predicted = json.loads(published.read_text())["e2e_latency"] if published.exists() else math.nan
        yield Labelled(label.stem, told["e2e_latency"] / 1e3, predicted / 1e3, products, others)


def _operations(graph: Path, layers: int) -> tuple[list[Counted], list[Counted]]:
    """Products, and all else: forward, backward and the sums of gradients, as NeuSight lists them."""
    with graph.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    names = [row["Name"] for row in rows]
    ends = next((ends for start, ends in _LAYER.items() if graph.stem.startswith(start)), None)
    first, last = (names.index(end) for end in ends) if ends else (0, -1)
    found: tuple[list[Counted], list[Counted]] = [], []
    for place, row in enumerate(rows):
        count = layers if first <= place <= last else 1
        inputs, size = ast.literal_eval(row["InputShapes"]), math.prod(ast.literal_eval(row["OutputShape"]))
        one_tensor = sum(math.prod(shape) == size for shape in inputs) == 1
        for phase in ("FwOps", "BwOps", "AccOps"):
            for kind, shape in ast.literal_eval(row[phase]):
                operation = _listed(kind, shape, one_tensor and phase == "FwOps")
                found[operation.kind not in _PRODUCTS].append(Counted(row["Name"], operation, count))
    return found


def _listed(kind: str, shape: Sequence[int], one_tensor: bool) -> Operation:
    """An operation of a graph; with `one_tensor` its other operand is a number or is repeated."""
    if kind == "Linear":
        return _product("linear", 1, *shape)
    if kind == "BMM":
        return _product("bmm", *shape)
    if kind == "MEM":  # tensors that are read or written, as in adding a number to one
        elements = sum(math.prod(each) for each in shape)
        return Operation("addu", "", max(1, elements // 2), 1, 1, elements / 2, float(_WIDTH * elements))
    name = kind.removeprefix("VEC")
    return _other(f"{name}u" if one_tensor and f"{name}u" in _OTHERS else name, *shape)
