"""Report how well times are predicted from kernels, for operations and for published models.

    python -m benchmarks.extrapolation DIR [--gpu NAME] [--most 1500]

DIR is a clone of sitar-lab/NeuSight. The program uses NeuSight's kernels and those of DeepBench on
a V100 (part of the package). Each operation is predicted by a fit to nine tenths of the shapes;
replicates and directions of a shape are omitted together. NeuSight's language models are predicted
only from its operations. NeuSight's paper reports errors of 14 to 26% for products.

NeuSight (Lee, Phanishayee and Mahajan, "NeuSight: Forecasting GPU Performance for Deep Learning
Training and Inference", ASPLOS 2025) has PyTorch 2.1 in float32 on five GPUs. A `label` holds the
forward and, in training, backward time of a model without loss and update. Its M, N, K are those
of an M x N by N x K product: N is the summed dimension, K the width of the result.
"""

import argparse
import ast
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold

from analysis.atlas import TimingGroup, make_operation
from analysis.atlas.estimate import interval_of_draws, sum_parts
from analysis.atlas.kernels import product
from analysis.atlas.parts import StepPart
from analysis.atlas.points import model_from_row
from analysis.published.source import load_shipped
from benchmarks.common import save
from paradnn.families.operations import Operation, RepeatedOperation
from paradnn.forecast.operation_times import OperationTimes
from paradnn.forecast.process import number_groups

FOLDS = 10
SEED = 0
#: The default GPU, with complete data.
GPU = "Tesla V100-PCIE-32GB"
_ROOT = Path("scripts", "asplos")
_PRODUCTS = {"linear": "nt", "bmm": "nn"}
#: Operations without products, and how many tensors of the size of the result each reads and
#: writes.
_OTHERS = {
    **dict.fromkeys(("add", "mul", "div", "pow"), 3),
    **dict.fromkeys(("addu", "mulu", "divu", "powu", "tanh", "relu", "gelu", "softmax", "ln"), 2),
}
#: First and last operation of the layer that a graph contains only once, by the beginning of the
#: model's name.
_LAYER = {
    "bert": ("bert_encoder_layer_0_attention_self_query", "bert_encoder_layer_0_output_layer_norm"),
    "gpt": ("transformer_h_0_ln_1", "add_15"),
    "opt": ("model_decoder_layers_0_self_attn_layer_norm", "view_11"),
}
#: Bytes per value.
_WIDTH = 4
Timed = tuple[Operation, float]


@dataclass(frozen=True)
class Labeled:
    """Timed model of NeuSight.

    Attributes:
        seconds: Measured time of its step.
        published: NeuSight's prediction.
    """

    name: str
    seconds: float
    published: float
    products: Sequence[RepeatedOperation]
    others: Sequence[RepeatedOperation]


def timed_operations(folder: Path, gpu: str = GPU) -> Mapping[str, Sequence[Timed]]:
    """Return operations and seconds by kind."""
    found: dict[str, list[Timed]] = {}
    for kind in (*_PRODUCTS, *_OTHERS):
        path = folder / _ROOT / "data/dataset/train/collect" / kind / "p2.1.0" / f"{gpu}.csv"
        make, sizes = (_product, "BMNK") if kind in _PRODUCTS else (_other, "BH")
        rows = pd.read_csv(path).to_dict("records")
        found[kind] = [
            (make(kind, *(int(row[name]) for name in sizes)), row["Latency"] / 1e3) for row in rows
        ]
    return found


def _product(kind: str, batch: int, rows: int, inner: int, columns: int) -> Operation:
    return make_operation(kind, product(rows, columns, inner, _WIDTH, batch), _PRODUCTS[kind])


def _other(kind: str, rows: int, width: int) -> Operation:
    """Operations along rows, such as softmax, have the number of rows as their batch."""
    elements = rows * width
    moved = float(_WIDTH * elements * _OTHERS[kind])
    return Operation(
        kind,
        "",
        elements,
        1,
        1,
        float(elements),
        moved,
        batch=rows if kind in ("softmax", "ln") else 1,
    )


def labeled_models(folder: Path, gpu: str = GPU) -> Iterator[Labeled]:
    """Yield the unfused models on a single GPU that have a list of operations."""
    root = folder / _ROOT
    device = gpu.replace(" ", "_")
    for label in sorted((root / "label" / device).glob("*.json")):
        graph = root / "results/opgraph" / f"{label.stem}.csv"
        published = root / "results/prediction" / device / "neusight" / label.name
        if (
            label.stem.count("-") != 3 or not graph.exists()
        ):  # a fourth component: fused, or over several GPUs
            continue
        document = json.loads(label.read_text())
        products, others = _operations(graph, int(document["num_layer"]))
        if published.exists():
            predicted = json.loads(published.read_text())["e2e_latency"]
        else:
            predicted = math.nan
        yield Labeled(label.stem, document["e2e_latency"] / 1e3, predicted / 1e3, products, others)


def _operations(
    graph: Path, layers: int
) -> tuple[list[RepeatedOperation], list[RepeatedOperation]]:
    """Return products and other operations: forward, backward and gradient sums, as NeuSight
    lists them.
    """
    rows = pd.read_csv(graph).to_dict("records")
    names = [row["Name"] for row in rows]
    ends = next((ends for start, ends in _LAYER.items() if graph.stem.startswith(start)), None)
    first, last = (names.index(end) for end in ends) if ends else (0, -1)
    found: tuple[list[RepeatedOperation], list[RepeatedOperation]] = [], []
    for place, row in enumerate(rows):
        count = layers if first <= place <= last else 1
        inputs = ast.literal_eval(row["InputShapes"])
        size = math.prod(ast.literal_eval(row["OutputShape"]))
        one_tensor = sum(math.prod(shape) == size for shape in inputs) == 1
        for phase in ("FwOps", "BwOps", "AccOps"):
            for kind, shape in ast.literal_eval(row[phase]):
                one = _listed(kind, shape, one_tensor=one_tensor and phase == "FwOps")
                found[one.kind not in _PRODUCTS].append(RepeatedOperation(row["Name"], one, count))
    return found


def _listed(kind: str, shape: Sequence[int], *, one_tensor: bool) -> Operation:
    """Return an operation of a graph; with `one_tensor` its other operand is a number or is
    repeated.
    """
    if kind == "Linear":
        return _product("linear", 1, *shape)
    if kind == "BMM":
        return _product("bmm", *shape)
    if kind == "MEM":  # tensors that are read or written, as in adding a number to one
        elements = sum(math.prod(each) for each in shape)
        return Operation(
            "addu", "", max(1, elements // 2), 1, 1, elements / 2, float(_WIDTH * elements)
        )
    name = kind.removeprefix("VEC")
    if one_tensor and f"{name}u" in _OTHERS:
        name += "u"
    return _other(name, *shape)


def cross_validated(timed: Sequence[Timed]) -> dict[str, float]:
    """Return medians and quantiles of the relative error, and the coverage of intervals."""
    shapes = number_groups([replace(one, variant="", flops=0.0, bytes=0.0) for one, _ in timed])
    logs = np.log([seconds for _, seconds in timed])
    errors = np.zeros(len(timed))
    covered = np.zeros(len(timed), dtype=bool)
    for known, left in GroupKFold(FOLDS, shuffle=True, random_state=SEED).split(
        logs, groups=shapes
    ):
        found = _fitted([timed[index] for index in known]).predict(
            [timed[index][0] for index in left]
        )
        low, high = found.interval()
        errors[left] = np.abs(np.expm1(found.mean - logs[left]))
        covered[left] = (low <= logs[left]) & (logs[left] <= high)
    return {
        "operations": len(timed),
        "shapes": int(shapes.max()) + 1,
        "median_error": float(np.median(errors)),
        "mean_error": float(errors.mean()),
        "upper_error": float(np.quantile(errors, 0.9)),
        "coverage": float(covered.mean()),
    }


def _fitted(timed: Sequence[Timed]) -> OperationTimes:
    return OperationTimes.fit(
        [one for one, _ in timed], np.array([seconds for _, seconds in timed])
    )


def sampled(timed: Sequence[Timed], most: int) -> Sequence[Timed]:
    """Return a random sample of at most `most` timings."""
    return [timed[index] for index in np.random.default_rng(SEED).permutation(len(timed))[:most]]


def deepbench() -> Mapping[str, Sequence[Timed]]:
    """Return DeepBench's training kernels on a V100 in float32, by kind."""
    found: defaultdict[str, list[Timed]] = defaultdict(list)
    for run in load_shipped("deepbench").runs:
        name = run.params["model.name"]
        precision = run.params["precision"]
        if "V100" in run.tags["device"] and precision == "float32" and name != "channel":
            one = model_from_row({**run.params, "family": name}).as_operation(
                int(run.params["batch_size"]), precision
            )
            found[one.kind].append((one, run.metrics["step_time_ms"] / 1e3))
    return found


def operations(
    source: str, kinds: Mapping[str, Sequence[Timed]], most: int
) -> Iterator[dict[str, object]]:
    """Print how well each kind of a source is predicted, from at most the given number of
    timings.
    """
    for kind, timed in kinds.items():
        row = {"source": source, "kind": kind, **cross_validated(sampled(timed, most))}
        print(
            f"{source}, {kind}: {row['operations']} operations of {row['shapes']} shapes; "
            f"median error {row['median_error']:.1%}, mean {row['mean_error']:.1%}, "
            f"nine of ten within {row['upper_error']:.1%}; {row['coverage']:.1%} in their 95% "
            "interval",
            flush=True,
        )
        yield row


def models(folder: Path, gpu: str, most: int) -> list[dict[str, object]]:
    """Print how well steps of labeled models are predicted, from a limited number of operations
    per kind.
    """
    timed = timed_operations(folder, gpu)
    fits = {kind: _fitted(sampled(group, most)) for kind, group in timed.items()}
    call = min(fit.dispatch for fit in fits.values())
    about = {"source": "", "commit": "", "engine": "", "version": ""}
    groups = {
        kind: TimingGroup(
            **about,
            device=gpu,
            precision="float32",
            kind=kind,
            timings=pd.DataFrame(),
            includes_call=True,
            dispatch_seconds=call,
            overhead_seconds=fit.dispatch - call,
            fit=fit,
        )
        for kind, fit in fits.items()
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    for model in labeled_models(folder, gpu):
        named = (
            ("products", model.products, ""),
            ("others", model.others, "are taken for kernels alone"),
        )
        parts = [
            StepPart(name, group, mine, instead)
            for name, counted, instead in named
            for kind, group in groups.items()
            if (mine := [each for each in counted if each.operation.kind == kind])
        ]
        seconds, low, high = interval_of_draws(sum_parts(parts)[0])
        row = {
            "model": model.name,
            "seconds": model.seconds,
            "predicted": seconds,
            "ratio": seconds / model.seconds,
        }
        row |= {
            "covered": low <= model.seconds <= high,
            "published": model.published / model.seconds,
        }
        rows.append(row)
        print(
            f"{gpu}, {model.name}: {model.seconds:.3f} s; predicted {seconds:.3f} s ({low:.3f} to "
            f"{high:.3f}), predicted / measured {row['ratio']:.3f}; NeuSight's "
            f"{row['published']:.3f}",
            flush=True,
        )
    errors, published = (
        np.abs(np.array([row[name] for row in rows]) - 1) for name in ("ratio", "published")
    )
    coverage = np.mean([row["covered"] for row in rows])
    print(
        f"{gpu}: {len(rows)} models; median error {np.median(errors):.1%}, greatest "
        f"{errors.max():.1%}; {coverage:.0%} in "
        f"their 95% interval; NeuSight's median error {np.nanmedian(published):.1%}, "
        f"greatest {np.nanmax(published):.1%}"
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a clone of NeuSight's repository")
    parser.add_argument("--gpu", default=GPU, help="a file among its timings")
    parser.add_argument(
        "--most", type=int, default=10**9, help="maximum number of random timings per kind"
    )
    given = parser.parse_args()
    timed = timed_operations(given.folder, given.gpu)
    rows = [*operations("DeepBench V100", deepbench(), given.most)]
    rows += operations(
        f"NeuSight {given.gpu}", {kind: timed[kind] for kind in ("linear", "bmm")}, given.most
    )
    save("extrapolation", rows)
    save("extrapolation_models", models(given.folder, given.gpu, given.most))


if __name__ == "__main__":
    main()
