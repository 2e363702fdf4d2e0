"""Report how well few points predict a space, by replaying designs on fully measured tables.

    python -m benchmarks.few_points --seeds 100  # the paper's archive, part of the package
    python -m benchmarks.few_points --timm FOLDER --table timm  # benchmark-*.csv of timm's results
    python -m benchmarks.few_points --table own  # 630 models measured here, or --own FILE

A design chooses points, the predictor sees only these, and all others are predicted. Designs are
nested: `adaptive` starts with the Sobol points of `first_points` and continues with what `choose`
finds most useful, in batches. All points count as equally expensive, since the tables do not say
how long a measurement took.
"""

import argparse
import csv
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.published.source import load_shipped
from analysis.store.step_inputs import device_rates, make_step_table
from benchmarks.common import RESULTS, save
from paradnn.designs.choice import choose, first_points
from paradnn.designs.frontier import find_failure_proofs, proven_to_fit
from paradnn.forecast.predict import Line, fit_line, roofline, step_inputs
from paradnn.forecast.process import Inputs, LeaveOneOutErrors, Process
from paradnn.statistics.robust_regression import Array, Prediction

SHARES = (0.01, 0.02, 0.05, 0.1)
#: timm's tables that are replayed: other devices, precisions, layouts and modes.
TIMM = (
    "infer-amp-nchw-pt240-cu124-rtx4090",
    "infer-amp-nhwc-pt210-cu121-rtx3090",
    "infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo",
    "infer-amp-nchw-pt291-cu130-5090",
)
_NOISE = 0.02


#: Slots of RMSprop, with which the archive was trained, and bytes of a weight and of an activation
#: on either machine.
_WEIGHT_BYTES = 12
_ACTIVATION_BYTES = 4
_KEYS = ("model.layers", "model.nodes", "model.input_size", "model.output_size", "batch_size")


@dataclass(frozen=True)
class Known:
    """Measured points of a table; n is their number.

    Attributes:
        values: (n,) logarithms of seconds per step.
        at: Model inputs of all points.
        factors: Names and (n, k) logarithms of the factors that speed may depend on.
    """

    name: str
    values: Array
    at: Callable[[Line], Inputs]
    factors: tuple[str, ...]
    logs: Array


@dataclass(frozen=True)
class Sizes:
    """n points with k components of memory each; some points ran out of memory.

    Attributes:
        sizes: (n, k) sizes.
        parts: (n, j) components of memory.
        failed: (n,) whether a point ran out of memory.
    """

    sizes: Array
    parts: Array
    failed: np.ndarray


def archive(device: str) -> Known:
    """Return the paper's fully connected models on a device."""
    rows = [
        row
        for row in load_shipped("archive").runs
        if row.tags["device"] == device and "step_time_ms" in row.metrics
    ]
    points = pd.DataFrame({"family": row.params["model.name"], **row.params} for row in rows)
    seconds = np.array([row.metrics["step_time_ms"] / 1e3 for row in rows])
    return _known(
        device,
        points,
        seconds,
        _KEYS,
        {"TPU v2": (180e12, 2400e9), "V100": (125e12, 900e9)}[device],
    )


def _known(
    name: str,
    points: pd.DataFrame,
    seconds: Array,
    keys: Sequence[str],
    rates: tuple[float, float] | None = None,
) -> Known:
    """Return measured points with the inputs of the predictor; factors are the varying `keys`."""
    axes = [key for key in keys if points[key].nunique() > 1]
    points = points.assign(environment_id="here", sweep_id="one")
    table = make_step_table(points, rates or device_rates(points, seconds))
    names = tuple(key.removeprefix("model.") for key in axes)
    return Known(
        name, np.log(seconds), step_inputs(table), names, np.log(points[axes].to_numpy(dtype=float))
    )


def archive_memory() -> Sizes:
    """Return all points of the archive on TPU v2, including those that ran out of memory."""
    runs = [row for row in load_shipped("archive").runs if row.tags["device"] == "TPU v2"]
    rows = [row for row in runs if row.outcome in ("ok", "oom_device")]
    shapes = np.array([[float(row.params[key]) for key in _KEYS] for row in rows])
    layers, nodes, inputs, outputs, batch = shapes.T
    weights = nodes * (inputs + outputs) + (layers - 1) * nodes**2
    parts = np.stack(
        [_WEIGHT_BYTES * weights, _ACTIVATION_BYTES * batch * (inputs + layers * nodes + outputs)],
        axis=1,
    )
    return Sizes(shapes, parts, np.array([row.outcome == "oom_device" for row in rows]))


def own(path: Path) -> Known:
    """Return a fully measured space from a file with keys and the `seconds` of a step."""
    points = pd.read_csv(path)
    seconds = points.pop("seconds").to_numpy(dtype=float)
    return _known(path.stem, points, seconds, [*map(str, points)])


def timm(path: Path) -> Known:
    """Return one of timm's tables: models at the batch and image size of their row.

    The components of the roofline are multiply-accumulates, activations, weights, and a constant.
    Their rates cancel against the learned factors.
    """
    with path.open() as handle:
        rows = list(csv.DictReader(handle))
    mode = "infer" if "infer_step_time" in rows[0] else "train"
    need = [f"{mode}_{key}" for key in ("gmacs", "macts", "img_size", "batch_size")]
    rows = [
        row for row in rows if all(float(row.get(key) or 0) > 0 for key in (*need, "param_count"))
    ]
    macs, activations, image, batch = (np.array([float(row[key]) for row in rows]) for key in need)
    weights = np.array([float(row["param_count"]) for row in rows])
    seconds = np.array(
        [float(row[f"{mode}_batch_size"]) / float(row[f"{mode}_samples_per_sec"]) for row in rows]
    )
    families = [re.split(r"[_\d]", row["model"].split(".")[0])[0] for row in rows]
    parts = np.stack(
        [batch * macs / 3e4, batch * activations / 2e5, weights / 2e5, np.full(len(rows), 1e-2)]
    )
    logs = np.log10(np.stack([macs, activations, weights, image, batch], axis=1))
    names = ("multiply-accumulates", "activations", "parameters", "image size", "batch size")
    varying = [index for index in range(5) if len(np.unique(logs[:, index])) > 1]
    coordinates = {names[index]: logs[:, index] for index in varying}
    coordinates["macs of an activation"] = logs[:, 0] - logs[:, 1]
    coordinates["family"] = np.array(families, dtype=str)

    def at(line: Line) -> Inputs:
        base, columns = roofline(parts, families, line, (1.0, 1.0, 1.0, 1.0))
        return Inputs(
            base, columns | {"all": (np.ones(len(rows)), 1.0)}, coordinates, range(len(rows))
        )

    name = path.stem.removeprefix("benchmark-").replace("-", " ")
    factors = tuple(names[index] for index in varying)
    return Known(name, np.log(seconds), at, factors, logs[:, varying])


@dataclass(frozen=True)
class Result:
    """Quality of one prediction.

    Attributes:
        error: Median relative error of unmeasured points.
        coverage: Share of unmeasured points inside their 95% intervals.
        left_out: Leave-one-out error of measured points.
        strongest: Whether the two strongest factors are those of all points.
        signs: Whether the signs of weights above 0.1 are those of all points.
        alone: `strongest` and `signs` from the measured points alone.
    """

    error: float
    coverage: float
    left_out_error: float
    left_out_coverage: float
    strongest: bool
    signs: bool
    strongest_alone: bool
    signs_alone: bool


def predicted(known: Known, measured: Sequence[int]) -> tuple[Prediction, LeaveOneOutErrors]:
    """Predict all points from the measured ones."""
    index = np.array(measured)
    line, inputs = fit_line(lambda line: known.at(line).rows(index), known.values[index])
    process = Process.fit(inputs, known.values[index], np.full(len(index), _NOISE), _NOISE)
    return process.predict(known.at(line)), process.leave_one_out


def judged(known: Known, measured: Sequence[int]) -> tuple[Result, Prediction]:
    """Predict all points from the measured ones; return the quality and the prediction."""
    prediction, left_out = predicted(known, measured)
    others = np.setdiff1d(np.arange(len(known.values)), measured)
    low, high = prediction.interval()
    values = known.values[others]
    full = known.values.copy()
    full[others] = prediction.mean[others]
    truth = weights(known.logs, known.values)
    found = weights(known.logs, full)
    alone = weights(known.logs[list(measured)], known.values[list(measured)])
    return Result(
        float(np.median(np.abs(np.expm1(prediction.mean[others] - values)))),
        float(((low[others] <= values) & (values <= high[others])).mean()),
        left_out.median_error,
        left_out.coverage(),
        *(
            agree
            for weight in (found, alone)
            for agree in (_strongest(truth, weight), _signs(truth, weight))
        ),
    ), prediction


def weights(logs: Array, values: Array) -> Array:
    """Return standardized weights of a linear regression on the factors."""
    spread = np.where(logs.std(axis=0) > 0, logs.std(axis=0), 1.0)
    design = np.column_stack([np.ones(len(logs)), (logs - logs.mean(axis=0)) / spread])
    return np.asarray(
        np.linalg.lstsq(design, (values - values.mean()) / values.std(), rcond=None)[0][1:]
    )


def _strongest(truth: Array, found: Array) -> bool:
    return set(np.argsort(-np.abs(truth))[:2]) == set(np.argsort(-np.abs(found))[:2])


def _signs(truth: Array, found: Array) -> bool:
    strong = np.abs(truth) > 0.1
    return bool((np.sign(truth[strong]) == np.sign(found[strong])).all())


def spread(known: Known, count: int, seed: int, design: str) -> list[int]:
    """Return points of a design that uses no values."""
    if design == "random":
        return [
            int(index)
            for index in np.random.default_rng(seed).permutation(len(known.values))[:count]
        ]
    return first_points(known.logs, count, seed)


def adaptive(known: Known, counts: Sequence[int], seed: int) -> dict[int, Result]:
    """Return the quality of the adaptive design by number of points, for the requested numbers."""
    measured = first_points(known.logs, counts[0], seed)
    results: dict[int, Result] = {}
    while True:
        result, prediction = judged(known, measured)
        if len(measured) in counts:
            results[len(measured)] = result
        goal = next((count for count in counts if count > len(measured)), None)
        if goal is None:
            return results
        free = np.ones(len(known.values), dtype=bool)
        free[measured] = False
        batch = min(goal - len(measured), max(4, len(measured) // 3))
        measured += choose(prediction, np.ones(len(free)), batch, free.astype(float), free)


DESIGNS = ("random", "sobol", "adaptive")


def replay(known: Known, seeds: int) -> None:
    """Replay every design on one table; print the results and save a row per seed."""
    counts = sorted({max(10, round(share * len(known.values))) for share in SHARES})
    found: dict[tuple[str, int], list[Result]] = {}
    for seed in range(seeds):
        for design in DESIGNS:
            if design == "adaptive":
                results = adaptive(known, counts, seed)
            else:
                results = {
                    count: judged(known, spread(known, count, seed, design))[0] for count in counts
                }
            for count, result in results.items():
                found.setdefault((design, count), []).append(result)
    print(f"\n{known.name}: {len(known.values)} points, {seeds} seeds")
    print(
        "points  design     error  95% of seeds    within  leave-one-out    within  strongest  "
        "signs  alone"
    )
    for count in counts:
        for design in DESIGNS:
            print(f"{count:6d}  {design:9s}  {_line(found[design, count])}")
        print(f"        {_differences(found, count)}")
    rows = [
        {"table": known.name, "design": design, "points": count, "seed": seed, **vars(result)}
        for (design, count), results in found.items()
        for seed, result in enumerate(results)
    ]
    save(f"few points {known.name}".replace(" ", "_"), rows)
    sys.stdout.flush()


def _line(results: Sequence[Result]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([getattr(result, name) for result in results]))

    low, high = np.quantile([result.error for result in results], [0.025, 0.975])
    return (
        f"{mean('error'):6.1%}  {low:5.1%} .. {high:5.1%}  {mean('coverage'):6.1%}  "
        f"{mean('left_out_error'):15.1%}  "
        f"{mean('left_out_coverage'):6.1%}  {mean('strongest'):9.0%}  {mean('signs'):5.0%}  "
        f"{mean('strongest_alone'):.0%}, {mean('signs_alone'):.0%}"
    )


def _differences(found: dict[tuple[str, int], list[Result]], count: int) -> str:
    """Return by how much the error of `adaptive` is below that of each other design, by seed, with
    95% interval.
    """
    words = []
    ours = np.array([result.error for result in found["adaptive", count]])
    for name in DESIGNS[:-1]:
        gain = np.array([result.error for result in found[name, count]]) - ours
        if len(gain) > 1:
            half = 1.96 * gain.std(ddof=1) / np.sqrt(len(gain))
        else:
            half = np.nan
        mean, low, high = (
            100 * value for value in (gain.mean(), gain.mean() - half, gain.mean() + half)
        )
        words.append(f"{name} {mean:.2f} ({low:.2f} .. {high:.2f})")
    return "adaptive better by (points of error): " + ", ".join(words)


def frontier(known: Sizes, share: float, seeds: int) -> None:
    """Print the share of points on the wrong side of the memory frontier, from a share measured."""
    count = round(share * len(known.failed))
    kinds = [0] * len(known.failed)
    wrong = []
    unproven = []
    for seed in range(seeds):
        tried = np.array(first_points(np.log(known.sizes), count, seed))
        failed = known.failed[tried]
        some = [0] * count
        proofs = find_failure_proofs(
            known.sizes, kinds, known.sizes[tried], some, failed, [str(index) for index in tried]
        )
        fails = np.array([proof is not None for proof in proofs])
        fits = proven_to_fit(known.sizes, kinds, known.sizes[tried], some, failed)
        others = np.setdiff1d(np.arange(len(known.failed)), tried)
        wrong.append((fails != known.failed)[others].mean())
        unproven.append(1 - (fails | fits)[others].mean())
    print(
        f"\nout of memory: {known.failed.sum()} of {len(known.failed)} points; {count} measured, "
        f"{seeds} seeds: "
        f"{np.mean(wrong):.2%} of the others on the wrong side (at most 1% in "
        f"{np.mean(np.array(wrong) <= 0.01):.0%} of seeds, most {np.max(wrong):.2%}), "
        f"{np.mean(unproven):.1%} unproven, and taken as fitting"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timm", type=Path, help="a folder of benchmark-*.csv")
    parser.add_argument(
        "--own", type=Path, default=RESULTS / "fc_cpu.csv", help="keys and seconds of a whole space"
    )
    parser.add_argument("--table", choices=("tpu", "v100", "timm", "own", "memory"), nargs="*")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    tables = options.table
    if not tables:
        tables = ["tpu", "v100", "memory", "own"]
        if options.timm:
            tables.append("timm")
    for name in tables:
        begin = time.monotonic()
        if name == "memory":
            frontier(archive_memory(), 0.05, options.seeds)
        elif name == "own":
            replay(own(options.own), options.seeds)
        elif name == "timm":
            for table in TIMM:
                replay(timm(options.timm / f"benchmark-{table}.csv"), options.seeds)
        else:
            replay(archive({"tpu": "TPU v2", "v100": "V100"}[name]), options.seeds)
        print(f"({time.monotonic() - begin:.0f} s)")


if __name__ == "__main__":
    main()
