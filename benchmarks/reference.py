"""Reference kernels between the blocks: do they bias the step, what of its scatter do they explain, what do they see.

    python -m benchmarks.reference [--processes 8] [--pairs 4] [--seconds 0.3]   # twelve cells: families x modes
    python -m benchmarks.reference --disturbed [--seconds 4]                     # a hog, a cap, a memory hog

Each process builds its model anew and measures it with and without kernels by turns: the ratio of the step times is the
bias, with its 95% interval over the processes. Then once as a point is: the processes' scatter as measured and at one
speed of the machine, the correlation of log step and kernel times over all blocks, the slope, what the intervals of
two halves of the processes say of each other, and seconds a process.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

_RNN = {"layers": 1, "embedding_size": 200, "sequence_length": 20, "vocab_size": 100}
_CNN = {"blocks": [1, 1, 1, 1], "filters": 16, "image_size": 64, "output_size": 10}
#: Family -> its model and batch size.
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "fc": ({"layers": 4, "nodes": 512, "input_size": 2000, "output_size": 1000}, 64),
    **dict.fromkeys(("rnn", "lstm", "gru"), (_RNN, 32)),
    **dict.fromkeys(("residual", "bottleneck"), (_CNN, 16)),
}
CELLS = [(family, mode) for family in FAMILIES for mode in ("train", "inference")]
#: A process that streams through more memory than a cache holds, and one that only computes.
_MEMORY = "import numpy as n; a = n.ones(2**25)\nwhile True: a += 1"
_SPIN = "while True: pass"


def measured(family: str, mode: str, pairs: int, seconds: float) -> dict[str, Any]:
    """In this process: log ratios of the step with over without kernels, then a timing with them as a point has it."""
    from paradnn.core.messages import References
    from paradnn.session.measured import step_times
    from paradnn.worker.fork_server import Phases
    from paradnn.worker.frameworks import load
    from paradnn.worker.measure import Protocol, measure_steps
    from paradnn.worker.reference import Reference
    from paradnn.worker.step import prepare_step

    begun = time.perf_counter()
    framework, phases = load("tensorflow"), Phases(lambda *_: None)
    framework.open_device({"name": "cpu", "index": 0, "threads": None})
    reference = Reference("cpu", 0.05, 0.2)
    model, batch = FAMILIES[family]
    optimizer = {"name": "sgd", "learning_rate": 0.001, "decay": 0.9, "momentum": 0.0, "epsilon": 1.0}
    point = {"model": {"name": family, **model}, "batch_size": batch, "mode": mode, "seed": 0, "precision": "float32"}
    _, step = prepare_step({**point, "compile": "graph", "optimizer": optimizer}, framework)

    def timed(length: float, with_it: bool) -> Any:
        protocol = Protocol(length, 6, 60.0, 0.05, 0.3, reference=True)
        return measure_steps(step.run, protocol, phases, reference=reference if with_it else None)

    timed(0.2, True)
    ratios = []
    for turn in range(pairs):
        taken = {
            with_it: statistics.median(step_times(timed(seconds, with_it))) for with_it in (turn % 2, not turn % 2)
        }
        ratios.append(math.log(taken[True] / taken[False]))
    timing = timed(max(1.0, seconds), True)
    timing.references[:0] = [References(-1, each) for each in reference.before]
    return {"ratios": ratios, "timing": timing, "seconds": time.perf_counter() - begun}


def cell(name: str, found: list[dict[str, Any]]) -> str:
    """A line of the table."""
    import numpy as np

    from paradnn.session.measured import mean_interval, step_times
    from paradnn.session.reference import KERNELS, adjusted_times, chosen_kernel, reference_metrics

    timings = [each["timing"] for each in found]
    low, high = mean_interval([math.exp(statistics.fmean(each["ratios"])) for each in found])
    bias, kernel = statistics.geometric_mean((low, high)), chosen_kernel(timings)
    raw, after = (
        np.std([math.log(statistics.median(times)) for times in table], ddof=1)
        for table in ([step_times(timing) for timing in timings], adjusted_times(timings))
    )
    best = {
        f"best_reference_{k}_ms": 1e3 * min(statistics.median(e.seconds[k] for e in t.references) for t in timings)
        for k in KERNELS
    }
    whole, *halves = (reference_metrics(part, best, 1) for part in (timings, timings[::2], timings[1::2]))
    logs, ends = [], []
    for half in halves:
        step, *limits = (half.get(f"step_time_at_reference{end}_ms", math.nan) for end in ("", "_low", "_high"))
        logs.append(math.log(step))
        ends.append(math.log(limits[1] / limits[0]) / 2)
    agree = "yes" if abs(logs[0] - logs[1]) <= math.hypot(*ends) else "no"
    return (
        f"{name:22} {1e3 * statistics.median(step_times(timings[0])):8.3f} ms  "
        f"bias {bias:.4f} ({low:.4f} .. {high:.4f})  "
        f"sd between {raw:.3f} -> {after:.3f}  {kernel} r {whole['reference_correlation']:.2f} "
        f"slope {whole['reference_slope']:.2f}  halves agree: {agree} ({logs[0] - logs[1]:+.3f}, "
        f"{math.hypot(*ends):.3f})  {statistics.fmean(each['seconds'] for each in found):.1f} s a process"
    )


@contextmanager
def _beside(program: str | None, count: int) -> Iterator[None]:
    """So many other processes that run a program."""
    others = [subprocess.Popen([sys.executable, "-c", program or ""]) for _ in range(count if program else 0)]
    time.sleep(1.0 if others else 0.0)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def _capped(share: float) -> Iterator[bool]:
    """This process and its children have so much of a core; whether that could be set, in either kind of group."""
    group = Path("/sys/fs/cgroup/cpu" if Path("/sys/fs/cgroup/cpu").is_dir() else "/sys/fs/cgroup")
    mine, done = group / f"reference-{os.getpid()}", False
    with suppress(OSError):
        mine.mkdir()
        quota = mine / "cpu.cfs_quota_us"
        (quota if quota.exists() else mine / "cpu.max").write_text(str(round(1e5 * share)))
        (mine / "cgroup.procs").write_text(str(os.getpid()))
        done = True
    try:
        yield done
    finally:
        with suppress(OSError):
            (group / "cgroup.procs").write_text(str(os.getpid()))
            mine.rmdir()


def disturbed(fresh: Callable[..., Any], seconds: float) -> None:
    """A line for each disturbance: the step and every kernel as multiples of those before."""
    cores, quiet = os.cpu_count() or 1, dict[str, float]()
    for name, program, count, share in (
        ("nothing", None, 0, 0.0),
        ("one that spins", _SPIN, 1, 0.0),
        ("as many as cores", _SPIN, cores, 0.0),
        ("a memory hog", _MEMORY, 1, 0.0),
        ("half of the cores' time", None, 0, cores / 2),
    ):
        with _beside(program, count), _capped(share) if share else _beside(None, 0) as could:
            timing = fresh("fc", "train", 0, seconds)["timing"]
        beside = [entry.seconds for entry in timing.references if entry.blocks >= 0]
        found = {kernel: statistics.median(entry[kernel] for entry in beside) for kernel in beside[0]}
        found["step"] = statistics.median(timing.blocks) / timing.steps_per_block
        quiet = quiet or found
        words = "  ".join(f"{kernel} {value / quiet[kernel]:.2f}" for kernel, value in found.items())
        print(f"{name:24} {words if could is not False else 'no control group can be made here'}", flush=True)


def main() -> None:
    """Print a line a cell, or a line a disturbance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8, help="of each cell, minutes apart")
    parser.add_argument("--pairs", type=int, default=4, help="measurements with and without in each")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a measurement")
    parser.add_argument("--cells", type=int, default=len(CELLS))
    parser.add_argument("--disturbed", action="store_true")
    given = parser.parse_args()
    from paradnn.worker.frameworks import load

    load("tensorflow")  # imported once; each process is a fork, as the suite's own are

    def fresh(*task: Any) -> Any:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(measured, task)

    if given.disturbed:
        disturbed(fresh, given.seconds)
        return
    cells = CELLS[: given.cells]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {each: [] for each in cells}
    for _ in range(given.processes):
        for each in random.sample(cells, len(cells)):
            found[each].append(fresh(*each, given.pairs, given.seconds))
    for (family, mode), results in found.items():
        print(cell(f"{family} {mode}", results), flush=True)


if __name__ == "__main__":
    main()
