"""How well times are predicted from kernels: operations cross-validated on published timings, and published models.

    python -m benchmarks.extrapolation --store DB [--device V100]    # kernels in a store, such as DeepBench's imported
    python -m benchmarks.extrapolation --neusight DIR                # a clone of github.com/sitar-lab/NeuSight
    python -m benchmarks.extrapolation --models DIR                  # its language models, from its operations alone

Every operation is predicted by a fit of nine tenths of the shapes, of which it is none: replicates and directions of a
shape are left out together. NeuSight's own errors of products are 14% to 26%, as its paper has them; what it predicts
for each model lies beside the time that was measured.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import save
from benchmarks.neusight import GPU, Timed, labelled_models, timed_operations
from paradnn.forecast.operation_times import LEAST, OperationTimes

FOLDS, SEED = 10, 0


def stored(store: str, device: str, precision: str) -> Mapping[str, Sequence[Timed]]:
    """Kernels of a device in a store, by kind."""
    from analysis import load
    from analysis.atlas.expect import model_in
    from analysis.store.frame import is_ok
    from paradnn.families import FAMILIES

    frame = load(store)
    kernels = [name for name, family in FAMILIES.items() if family.is_kernel]
    rows = frame[is_ok(frame) & frame["family"].isin(kernels) & frame["precision"].eq(precision)]
    rows = rows[rows["device"].str.contains(device, regex=False)]
    found: defaultdict[str, list[Timed]] = defaultdict(list)
    for row in rows.to_dict("records"):
        operation = model_in(row).as_operation(int(row["batch_size"]), precision)
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
        fit = _fitted([timed[index] for index in np.flatnonzero(fold != left_out)])
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


def _fitted(timed: Sequence[Timed]) -> OperationTimes:
    return OperationTimes.fit([one for one, _ in timed], np.array([seconds for _, seconds in timed]))


def sampled(timed: Sequence[Timed], most: int) -> Sequence[Timed]:
    """So many of them at random."""
    return [timed[index] for index in np.random.default_rng(SEED).permutation(len(timed))[:most]]


def operations(sources: Mapping[str, Mapping[str, Sequence[Timed]]], most: int) -> list[dict[str, object]]:
    """Prints how well each kind of each source is predicted, of at most so many timings."""
    rows: list[dict[str, object]] = []
    for source, kinds in sources.items():
        for kind, timed in kinds.items():
            if len(timed) < LEAST * FOLDS / (FOLDS - 1) + 1:
                continue
            row = {"source": source, "kind": kind, **cross_validated(sampled(timed, most))}
            rows.append(row)
            print(
                f"{source}, {kind}: {row['operations']} operations of {row['shapes']} shapes; "
                f"median error {row['median_error']:.1%}, mean {row['mean_error']:.1%}, "
                f"nine of ten within {row['upper_error']:.1%}; {row['coverage']:.1%} in their 95% interval",
                flush=True,
            )
    return rows


def models(folder: Path, gpu: str, most: int) -> list[dict[str, object]]:
    """Prints how well the steps of labelled models are predicted from at most so many operations a kind."""
    from analysis.atlas import Group
    from analysis.atlas.expect import StepPart, ends_of, summed

    timed = timed_operations(folder, gpu)
    fits = {kind: _fitted(sampled(group, most)) for kind, group in timed.items()}
    call, about = min(fit.dispatch for fit in fits.values()), {"source": "", "commit": "", "engine": "", "version": ""}
    groups = {
        kind: Group(
            **about, device=gpu, precision="float32", kind=kind, timings=pd.DataFrame(), call=True, start=call,
            before=fit.dispatch - call, fit=fit,
        )
        for kind, fit in fits.items()
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    for model in labelled_models(folder, gpu):
        named = (("products", model.products, ""), ("others", model.others, "are taken for kernels alone"))
        parts = [
            StepPart(name, group, mine, instead)
            for name, counted, instead in named
            for kind, group in groups.items()
            if (mine := [each for each in counted if each.operation.kind == kind])
        ]
        seconds, low, high = ends_of(summed(parts)[0])
        row = {
            "model": model.name,
            "seconds": model.seconds,
            "predicted": seconds,
            "ratio": seconds / model.seconds,
            "held": low <= model.seconds <= high,
            "published": model.published / model.seconds,
        }
        rows.append(row)
        print(
            f"{gpu}, {model.name}: {model.seconds:.3f} s; predicted {seconds:.3f} s ({low:.3f} to "
            f"{high:.3f}), predicted / measured {row['ratio']:.3f}; NeuSight's {row['published']:.3f}",
            flush=True,
        )
    errors, published = (np.abs(np.array([row[name] for row in rows]) - 1) for name in ("ratio", "published"))
    held = np.mean([row["held"] for row in rows])
    print(
        f"{gpu}: {len(rows)} models; median error {np.median(errors):.1%}, greatest {errors.max():.1%}; {held:.0%} in "
        f"their 95% interval; NeuSight's median error {np.nanmedian(published):.1%}, "
        f"greatest {np.nanmax(published):.1%}"
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a tracking store with runs of kernels")
    parser.add_argument("--device", default="V100", help="part of the device's name")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--neusight", type=Path, help="a clone of NeuSight's repository: its operations")
    parser.add_argument("--models", type=Path, help="a clone of NeuSight's repository: its models")
    parser.add_argument("--gpu", default=GPU, help="a file among NeuSight's timings")
    parser.add_argument("--most", type=int, default=10**9, help="so many timings of a kind at most, at random")
    given = parser.parse_args()
    if not (given.store or given.neusight or given.models):
        sys.exit("no timings: name a --store with kernels of the device, --neusight or --models")
    if given.models:
        save("extrapolation_models", models(given.models, given.gpu, given.most))
    sources: dict[str, Mapping[str, Sequence[Timed]]] = {}
    if given.store:
        sources[f"{given.device} {given.precision}"] = stored(given.store, given.device, given.precision)
    if given.neusight:
        timed = timed_operations(given.neusight, given.gpu)
        sources[f"NeuSight {given.gpu}"] = {kind: timed[kind] for kind in ("linear", "bmm")}
    if sources:
        save("extrapolation", operations(sources, given.most))


if __name__ == "__main__":
    main()
