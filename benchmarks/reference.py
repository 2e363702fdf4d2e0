"""Whether reference kernels between the blocks bias the step, and what they explain of its scatter.

    python -m benchmarks.reference [--pairs 20]

In one process the step is measured with and without them by turns: the geometric mean of the ratios with its 95%
interval, and the correlation of log step and kernel times over the blocks.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

CELLS: dict[str, tuple[dict[str, object], int, str]] = {
    "fc 4x512 b64 train": (
        {"name": "fc", "layers": 4, "nodes": 512, "input_size": 2000, "output_size": 1000},
        64,
        "train",
    ),
    "fc 4x2048 b1 inference": (
        {"name": "fc", "layers": 4, "nodes": 2048, "input_size": 2000, "output_size": 1000},
        1,
        "inference",
    ),
    "fc 2x16 b1 inference": (
        {"name": "fc", "layers": 2, "nodes": 16, "input_size": 20, "output_size": 10},
        1,
        "inference",
    ),
    "lstm 200 b32 inference": (
        {"name": "lstm", "layers": 1, "embedding_size": 200, "sequence_length": 20, "vocab_size": 100},
        32,
        "inference",
    ),
    "residual b16 inference": (
        {"name": "residual", "blocks": [1, 1], "filters": 16, "image_size": 64, "output_size": 10},
        16,
        "inference",
    ),
    "residual b16 train": (
        {"name": "residual", "blocks": [1, 1], "filters": 16, "image_size": 64, "output_size": 10},
        16,
        "train",
    ),
}


def main() -> None:
    """Print a line a cell."""
    from paradnn.session.measured import mean_interval, step_times
    from paradnn.session.reference import KERNELS, _slope, _slowness, _step_logs
    from paradnn.worker.fork_server import Phases
    from paradnn.worker.frameworks import load
    from paradnn.worker.measure import Protocol, measure_steps
    from paradnn.worker.reference import Reference
    from paradnn.worker.step import prepare_step

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    framework, phases = load("tensorflow"), Phases(lambda *_: None)
    framework.open_device({"name": "cpu", "index": 0, "threads": None})
    reference = Reference("cpu", 0.05, 0.2)
    optimizer = {"name": "sgd", "learning_rate": 0.001, "decay": 0.9, "momentum": 0.0, "epsilon": 1.0}
    for name, (model, batch, mode) in CELLS.items():
        own = {"model": model, "batch_size": batch, "mode": mode, "seed": 0, "precision": "float32"}
        _, step = prepare_step({**own, "compile": "graph", "optimizer": optimizer}, framework)
        protocol = Protocol(0.5, 6, 20.0, 0.05, 0.5, reference=True)
        taken: dict[bool, list[float]] = {True: [], False: []}
        timings = []
        for turn, with_it in itertools.product(range(pairs), (True, False)):
            timing = measure_steps(step.run, protocol, phases, reference=reference if with_it != turn % 2 else None)
            taken[bool(timing.references)].append(statistics.median(step_times(timing)))
            timings += [timing] if timing.references else []
        ratios = [one / other for one, other in zip(taken[True], taken[False], strict=True)]
        low, high = mean_interval(ratios)
        steps = _step_logs(timings)
        explained = {kernel: _slope(steps, _slowness(timings, kernel)) for kernel in KERNELS}
        kernels = ", ".join(f"{kernel} {found[2]:.2f} (slope {found[0]:.2f})" for kernel, found in explained.items())
        scatter = float(np.nanstd(steps))
        print(
            f"{name:24} {taken[False][0] * 1e3:8.3f} ms, with / without {statistics.geometric_mean(ratios):.3f} "
            f"({low:.3f} .. {high:.3f}); sd {scatter:.3f}; correlation: {kernels}",
            flush=True,
        )


if __name__ == "__main__":
    main()
