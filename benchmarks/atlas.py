"""Report how accurate the atlas is for devices with little or no data, from its shipped timings.

    python -m benchmarks.atlas

Prints the atlas's size and load time, and three kinds of errors:

- Normal results: how often `paradnn normal` calls published steps slow, unchanged and slowed down.
- Transfer: the remaining timings of a device are predicted from 20 of its timings, from these 20
  combined with the fit of another device, and from 200 of its timings.
- Omitted devices: each device is predicted from the device with the most similar specifications,
  scaled by the ratios of peaks.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from analysis.atlas import DATA, Atlas, TimingGroup, load, operations_from_rows
from analysis.atlas.normal import check_run
from analysis.atlas.scaling import scaled_atlas
from paradnn.forecast.operation_times import OperationTimes

#: Source device, target device, and the kind, precision and engine of their tables.
_PAIRS = (
    ("H100", "H200", "gemm", "bfloat16", "vLLM"),
    ("H200", "B200", "gemm", "bfloat16", "vLLM"),
    ("A100", "H100", "gemm", "bfloat16", "SGLang"),
    ("L40S", "RTX PRO 6000", "gemm", "bfloat16", "vLLM"),
    ("H200", "B300", "gemm", "fp8_block", "TensorRT-LLM"),
    ("H100", "H200", "decode", "bfloat16", "vLLM"),
    ("H100", "B200", "attention", "bfloat16", "vLLM"),
    ("H200", "B200", "experts", "bfloat16", "vLLM"),
)
_FEW = 20
_MANY = 200
_WHOLE = (
    ("bfloat16", "vLLM", "gemm", "attention", "decode"),
    ("float32", "PyTorch", "gemm", "bmm"),
)
#: Keys of a fully connected model and their columns in published steps.
_FC = {
    "model.layers": "calls",
    "model.nodes": "n",
    "model.input_size": "images",
    "model.output_size": "window",
}


def held(fit: OperationTimes, group: TimingGroup, left: np.ndarray) -> tuple[float, float]:
    """Return the median relative error and the coverage for the timings at positions `left`."""
    rows = group.timings.iloc[left]
    found = fit.predict(operations_from_rows(rows, group.kind))
    logs = np.log(rows["seconds"].to_numpy(dtype=float))
    low, high = found.interval()
    return float(np.median(np.abs(np.expm1(found.mean - logs)))), float(
        np.mean((low <= logs) & (logs <= high))
    )


def transfer(other: TimingGroup, group: TimingGroup, draws: int) -> str:
    """Return a line with errors from few timings, few plus another device, and many timings."""
    rows = operations_from_rows(group.timings, group.kind)
    seconds = group.timings["seconds"].to_numpy(dtype=float)
    found = []
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(rows))
        left = order[_MANY:]
        few = order[:_FEW]
        many = order[:_MANY]
        own, whole = (
            OperationTimes.fit([rows[place] for place in chosen], seconds[chosen])
            for chosen in (few, many)
        )
        beside = own.select_better(other.predictor(), [rows[place] for place in few], seconds[few])
        found += [held(fit, group, left) for fit in (own, beside, whole)]
    errors, coverages = np.array(found).reshape(draws, 3, 2).mean(axis=0).T
    said = ", ".join(
        f"{error:.1%} ({coverage:.0%})" for error, coverage in zip(errors, coverages, strict=True)
    )
    names = f"{other.device} -> {group.device}, {group.kind} in {group.precision}, {group.engine}"
    return f"{names}: {_FEW} alone, {_FEW} with the other, {_MANY} alone: {said}"


def left_out(group: TimingGroup) -> str | None:
    """Return the error of a table that is predicted from the most similar device, as a line."""
    rest = Atlas(
        tuple(
            one
            for one in load().groups
            if one.device != group.device and one.engine == group.engine
        )
    )
    beside = scaled_atlas(rest, group.device, group.precision)
    if beside is None:
        return None
    name, others = beside
    there = others.find_group(name, group.kind, group.precision, group.engine)
    if there is None:
        return None
    logs = np.log(group.timings["seconds"].to_numpy(dtype=float))
    off = there.predict(operations_from_rows(group.timings, group.kind)).mean - logs
    error = np.median(np.abs(np.expm1(off)))
    shift = math.exp(float(np.median(off)))
    return (
        f"{group.device} from {name}, {group.kind} in {group.precision}: {error:.1%}, "
        f"{shift:.2f} times as long"
    )


def planted(device: str, factors: Sequence[float], count: int) -> dict[float, Counter[str]]:
    """Print what `paradnn normal` says of `count` published steps that no fit used, and of slowed
    ones.
    """
    [group] = (one for one in load().groups if (one.device, one.kind) == (device, "fc"))
    called: dict[float, Counter[str]] = {factor: Counter() for factor in (1.0, *factors)}
    for place, row in enumerate(
        group.timings.iloc[300 : 300 + count * len(called)].to_dict("records")
    ):
        point = {key: row[name] for key, name in _FC.items()} | {
            "family": "fc",
            "batch_size": row["m"],
        }
        factor = [*called][place % len(called)]
        about = {"precision": group.precision, "run_id": str(place), "device": device}
        found = check_run({**point, **about, "step_time_ms": row["seconds"] * 1e3 * factor})
        assert bool(found.look_at) == (found.verdict != "normal"), "it says what to look at"
        called[factor][found.verdict] += 1
    return called


def main() -> None:
    """Print all results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5, help="of the twenty timings")
    given = parser.parse_args()
    start = time.perf_counter()
    size = sum(path.stat().st_size for path in DATA.iterdir())
    print(
        f"{len(load().groups)} tables, {size / 1e6:.1f} MB, loaded in "
        f"{time.perf_counter() - start:.2f} s"
    )
    print(
        "called by how many times as long they took: "
        f"{planted('TPU v2', (1.25, 1.5, 2.0, 5.0), 100)}"
    )
    for first, second, *about in _PAIRS:
        pair = [found for name in (first, second) if (found := load().find_group(name, *about))]
        print(transfer(pair[0], pair[1], given.draws), flush=True)
    for precision, engine, *kinds in _WHOLE:
        groups = [
            load().find_group(device, kind, precision, engine)
            for kind in kinds
            for device in load().devices
        ]
        print(*filter(None, (left_out(group) for group in groups if group)), sep="\n", flush=True)


if __name__ == "__main__":
    main()
