"""How well operation times are predicted: cross-validated on published timings, and on kernels of one's own.

    python -m benchmarks.extrapolation --store DB [--device V100]    # kernels in a store, such as DeepBench's imported
    python -m benchmarks.extrapolation --neusight DIR                # a clone of github.com/sitar-lab/NeuSight

Every operation is predicted by a fit of nine tenths of the shapes, of which it is none: replicates and directions of a
shape are left out together. NeuSight's data are of PyTorch 2.1 in float32, times of training its own predictor;
`linear` and `bmm`, whose own errors its paper gives as 14% to 26%.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import save
from paradnn.costs.operations import Operation, kernel_operation
from paradnn.forecast.operation_times import LEAST, OperationTimes

FOLDS, SEED = 10, 0
#: Where NeuSight keeps what its predictor is trained on, by operation, and a GPU that it has all of.
NEUSIGHT, GPU = "scripts/asplos/data/dataset/train/collect/{operation}/p2.1.0/{gpu}.csv", "Tesla V100-PCIE-32GB"
Timed = tuple[Operation, float]


def neusight(folder: Path, gpu: str) -> Mapping[str, Sequence[Timed]]:
    """Its timings by operation; B products of M x K by K x N, in milliseconds."""
    found = {}
    for operation, variant in (("linear", "nt"), ("bmm", "nn")):
        with (folder / NEUSIGHT.format(operation=operation, gpu=gpu)).open(newline="") as handle:
            found[operation] = [_neusight(row, variant) for row in csv.DictReader(handle)]
    return found


def _neusight(row: Mapping[str, str], variant: str) -> Timed:
    b, m, n, k = (int(row[name]) for name in "BMNK")
    flops, moved = 2.0 * b * m * n * k, 4.0 * b * (m * k + k * n + m * n)
    return Operation("gemm", variant, m, n, k, flops, moved, batch=b), float(row["Latency"]) / 1e3


def stored(store: str, device: str, precision: str) -> Mapping[str, Sequence[Timed]]:
    """Kernels of a device in a store, by kind."""
    from analysis import load
    from analysis.methods.extrapolation import model_of
    from analysis.store.frame import is_ok
    from paradnn.config.families import FAMILIES

    frame = load(store)
    kernels = [name for name, family in FAMILIES.items() if family.is_kernel]
    rows = frame[is_ok(frame) & frame["family"].isin(kernels) & frame["precision"].eq(precision)]
    rows = rows[rows["device"].str.contains(device, regex=False)]
    found: defaultdict[str, list[Timed]] = defaultdict(list)
    for row in rows.to_dict("records"):
        operation = kernel_operation(model_of(row), int(row["batch_size"]), precision)
        found[operation.kind].append((operation, float(row["step_time_ms"]) / 1e3))
    return found


def cross_validated(timed: Sequence[Timed]) -> dict[str, float]:
    """Medians and quantiles of the relative error, and how many intervals hold the time."""
    shapes = [(one.m, one.n, one.k, one.batch, one.calls, one.images, one.window, one.stride) for one, _ in timed]
    distinct = sorted(set(shapes))
    folds = np.random.default_rng(SEED).permutation(len(distinct)) % FOLDS
    place = dict(zip(distinct, folds, strict=True))
    fold = np.array([place[shape] for shape in shapes])
    logs = np.log([seconds for _, seconds in timed])
    errors, held = np.zeros(len(timed)), np.zeros(len(timed), dtype=bool)
    for left_out in range(FOLDS):
        test = np.flatnonzero(fold == left_out)
        known = [timed[index] for index in np.flatnonzero(fold != left_out)]
        fit = OperationTimes.fit([one for one, _ in known], np.array([seconds for _, seconds in known]))
        found = fit.predict([timed[index][0] for index in test])
        low, high = found.interval()
        errors[test] = np.abs(np.expm1(found.mean - logs[test]))
        held[test] = (low <= logs[test]) & (logs[test] <= high)
    return {
        "operations": len(timed),
        "shapes": len(distinct),
        "median_error": float(np.median(errors)),
        "mean_error": float(errors.mean()),
        "upper_error": float(np.quantile(errors, 0.9)),
        "coverage": float(held.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a tracking store with runs of kernels")
    parser.add_argument("--device", default="V100", help="part of the device's name")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--neusight", type=Path, help="a clone of NeuSight's repository")
    parser.add_argument("--gpu", default=GPU, help="a file among NeuSight's timings")
    given = parser.parse_args()
    sources: dict[str, Mapping[str, Sequence[Timed]]] = {}
    if given.store:
        sources[f"{given.device} {given.precision}"] = stored(given.store, given.device, given.precision)
    if given.neusight:
        sources[f"NeuSight {given.gpu}"] = neusight(given.neusight, given.gpu)
    if not any(sources.values()):
        sys.exit("no timings: name a --store with kernels of the device, or --neusight")
    rows = []
    for source, kinds in sources.items():
        for kind, timed in kinds.items():
            if len(timed) < LEAST * FOLDS / (FOLDS - 1) + 1:
                continue
            row = {"source": source, "kind": kind, **cross_validated(timed)}
            rows.append(row)
            print(
                f"{source}, {kind}: {row['operations']} operations of {row['shapes']} shapes; "
                f"median error {row['median_error']:.1%}, mean {row['mean_error']:.1%}, "
                f"nine of ten within {row['upper_error']:.1%}; {row['coverage']:.1%} in their 95% interval",
                flush=True,
            )
    save("extrapolation", rows)


if __name__ == "__main__":
    main()
