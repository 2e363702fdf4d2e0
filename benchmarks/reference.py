"""Measure whether reference kernels disturb a step, and how much variation they explain.

    python -m benchmarks.reference [--processes 6] [--seconds 6] [--cells "fc train" ...] [--settle 0.01]
    python -m benchmarks.reference --disturbed [--points 4] [--seconds 2]  # neighbors, a quota

Each process builds its model again and times it as a point. Then it alternates two kinds of blocks
in the order ABBA: blocks that follow the kernels (and untimed steps for --settle seconds), and
blocks that do not. The median ratio of neighboring blocks is the bias, with its 95% interval. A
line per cell reports:

- the bias;
- the variation between processes as measured, and at one speed of the machine;
- the correlation of log step and kernel times, and the slope;
- half of the 95% interval before and after the correction;
- in how many divisions of the processes into halves the intervals of the halves agree;
- the share of the time that the kernels take.

Each process is saved to --file as it ends, so an interrupted program can continue. With --disturbed
a line per disturbance reports the contended points and the kernels' times.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import RESULTS
from paradnn.worker.measure import SETTLE_SECONDS, Protocol, measure_steps

_RNN = {"layers": 1, "embedding_size": 200, "sequence_length": 20, "vocab_size": 100}
_CNN = {"blocks": [1, 1, 1, 1], "filters": 16, "image_size": 64, "output_size": 10}
#: Model and batch size by family.
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "fc": ({"layers": 4, "nodes": 512, "input_size": 2000, "output_size": 1000}, 64),
    **dict.fromkeys(("rnn", "lstm", "gru"), (_RNN, 32)),
    **dict.fromkeys(("residual", "bottleneck"), (_CNN, 16)),
}
CELLS = [f"{family} {mode}" for family in FAMILIES for mode in ("train", "inference")]
BLOCK_SECONDS = 0.05
#: Programs of neighbors: one streams through more memory than any cache has, one only computes.
_MEMORY = "import numpy as n; a = n.ones(2**25)\nwhile True: a += 1"
_SPIN = "while True: pass"


def measured(name: str, seconds: float, settle: float, framework_name: str) -> dict[str, Any]:
    """Time the point, then return time ratios of blocks with and without preceding kernels."""
    from paradnn.core.channel import plain
    from paradnn.core.messages import References
    from paradnn.worker.fork_server import Phases
    from paradnn.worker.frameworks import load
    from paradnn.worker.reference import Reference
    from paradnn.worker.step import prepare_step

    framework = load(framework_name)
    phases = Phases(lambda *_: None)
    framework.open_device({"name": "cpu", "index": 0, "threads": None})
    (family, mode), protocol = (
        name.split(),
        Protocol(1.0, 6, 60.0, BLOCK_SECONDS, 1.0, reference=True),
    )
    reference = Reference("cpu", BLOCK_SECONDS, protocol.reference_share)
    model, batch = FAMILIES[family]
    optimizer = {
        "name": "sgd",
        "learning_rate": 0.001,
        "decay": 0.9,
        "momentum": 0.0,
        "epsilon": 1.0,
    }
    point = {
        "model": {"name": family, **model},
        "batch_size": batch,
        "mode": mode,
        "seed": 0,
        "precision": "float32",
    }
    _, step = prepare_step({**point, "compile": "graph", "optimizer": optimizer}, framework)
    timing = measure_steps(step.run, protocol, phases, reference=reference)
    timing.references[:0] = [References(-1, each) for each in reference.before]

    def block(*, behind: bool) -> float:
        if behind:
            reference()
            step.run(math.ceil(timing.steps_per_block * settle / BLOCK_SECONDS) or 1)
        begin = time.perf_counter()
        step.run(timing.steps_per_block)
        return time.perf_counter() - begin

    ratios: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        first = len(ratios) % 2 == 0
        taken = {behind: block(behind=behind) for behind in (first, not first)}
        ratios.append(taken[True] / taken[False])
    return {"ratios": ratios, "timing": plain(timing)}


def cell(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the line of a cell, computed from its processes so far."""
    import numpy as np

    from paradnn.core.channel import read_message
    from paradnn.core.messages import Timing
    from paradnn.session.measured import mean_interval
    from paradnn.session.reference import reference_metrics
    from paradnn.worker.series import KERNELS, adjusted_times, block_interval, chosen_kernel

    timings = [read_message(Timing, each["timing"], "timing") for each in found]
    ratios = [ratio for each in found for ratio in each["ratios"]]
    low, high = block_interval(ratios) or (math.nan, math.nan)
    words = [
        f"{len(found)} x  step with over without {statistics.median(ratios):.4f} ({low:.4f} .. "
        f"{high:.4f})"
    ]
    medians = [
        [math.log(statistics.median(times)) for times in table]
        for table in (
            [np.array(timing.blocks) / timing.steps_per_block for timing in timings],
            adjusted_times(timings),
        )
    ]
    words += ["sd of processes " + " -> ".join(f"{statistics.stdev(each):.3f}" for each in medians)]
    calls = [each["call"] for each in found]
    if len(set(calls)) > 1:
        means = [
            [
                statistics.fmean(log for log, one in zip(each, calls, strict=True) if one == call)
                for call in set(calls)
            ]
            for each in medians
        ]
        words += ["of calls " + " -> ".join(f"{statistics.stdev(each):.3f}" for each in means)]
    best = {
        f"best_reference_{k}_ms": 1e3
        * min(statistics.median(e.seconds[k] for e in t.references) for t in timings)
        for k in KERNELS
    }

    def intervals(chosen: Sequence[int]) -> list[tuple[float, float]]:
        """Return logarithms and half intervals before and after; NaN if there is no interval."""
        raw = [math.exp(medians[0][number]) for number in chosen]
        of = reference_metrics([timings[number] for number in chosen], best, 1)
        after = [of.get(f"step_time_at_reference{end}_ms", math.nan) for end in ("_low", "_high")]
        return [
            (math.log(one * other) / 2, math.log(other / one) / 2)
            for one, other in (mean_interval(raw), after)
            if not math.isnan(one)
        ]

    whole = reference_metrics(timings, best, 1)
    words += [
        f"{chosen_kernel(timings)} r {whole['reference_correlation']:.2f} slope "
        f"{whole['reference_slope']:.2f}"
    ]
    words += ["half " + " -> ".join(f"{half:.1%}" for _, half in intervals(range(len(found))))]
    agree: tuple[list[bool], list[bool]] = [], []
    rests: Iterable[tuple[int, ...]] = ()
    if len(found) > 3:
        rests = itertools.combinations(range(1, len(found)), len(found) // 2 - 1)
    for rest in rests:
        one = [0, *rest]
        halves = [
            intervals(part)
            for part in (one, [number for number in range(len(found)) if number not in one])
        ]
        for into, pair in zip(agree, zip(*halves, strict=False), strict=False):
            into.append(abs(pair[0][0] - pair[1][0]) <= math.hypot(pair[0][1], pair[1][1]))
    words += ["halves agree " + " -> ".join(f"{sum(each)} of {len(each)}" for each in agree)]
    shares = [
        timing.reference_seconds / (timing.reference_seconds + sum(timing.blocks))
        for timing in timings
    ]
    return "  ".join([*words, f"share {statistics.fmean(shares):.0%}"])


@contextmanager
def _beside(program: str, count: int) -> Iterator[None]:
    """Run `count` processes with a program while the context is open."""
    others = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    time.sleep(1.0 if others else 0.0)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def _capped(share: float) -> Iterator[bool]:
    """Limit this process and its children to a share of a core; return whether that succeeded."""
    group = Path("/sys/fs/cgroup/cpu")
    if not group.is_dir():
        group = Path("/sys/fs/cgroup")
    mine = group / f"reference-{os.getpid()}"
    done = False
    with suppress(OSError):
        mine.mkdir()
        quota = mine / "cpu.cfs_quota_us"
        if not quota.exists():
            quota = mine / "cpu.max"
        quota.write_text(str(round(1e5 * share)))
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            (mine / "cgroup.procs").write_text(str(process.pid))
        done = True
    try:
        yield done
    finally:
        with suppress(OSError):
            for number in (mine / "cgroup.procs").read_text().split():
                (group / "cgroup.procs").write_text(number)
            mine.rmdir()


def disturbed(points: int, seconds: float, framework: str) -> None:
    """Measure points next to each disturbance, in random order.

    Prints a line per disturbance: how many points were contended, and the step and every kernel,
    before the model existed and between the blocks, relative to the undisturbed medians.
    """
    from paradnn.config.identity import point_request
    from paradnn.config.reading import read_point
    from paradnn.session.workers import Limits, WorkerKey, WorkerPool

    protocol = {
        "min_seconds": seconds,
        "min_blocks": 6,
        "max_seconds": 20.0,
        "block_seconds": BLOCK_SECONDS,
    }
    config = {
        "model": {"name": "fc", **FAMILIES["fc"][0]},
        "batch_size": 64,
        "framework": {"name": framework},
    }
    point = read_point(
        {**config, "measure": {**protocol, "warmup_seconds": 2.0, "reference": True}}
    )
    cores = os.cpu_count() or 1
    ways: dict[str, Callable[[], Any]] = {
        "nothing": lambda: _beside(_SPIN, 0),
        "one that spins": lambda: _beside(_SPIN, 1),
        "as many as cores": lambda: _beside(_SPIN, cores),
        "a memory hog": lambda: _beside(_MEMORY, 1),
        "memory hogs on all cores": lambda: _beside(_MEMORY, cores),
        "half of the cores' time": lambda: _capped(cores / 2),
    }
    found = defaultdict[str, list[Any]](list)
    with WorkerPool() as pool:
        for turn in range(points + 1):  # The first point of the worker is a warm-up.
            names = ["nothing"]
            if turn:
                names = random.sample(list(ways), len(ways))
            for name in names:
                with ways[name]() as could:
                    if could is not False:
                        result = pool.measure(
                            WorkerKey.of(point),
                            point_request(point),
                            Limits(120, None),
                            lambda _: None,
                        )
                        if turn and result.answer:
                            found[name].append(result.answer.measurement)
    usual: dict[str, float] = {}
    for name in ways:
        values = defaultdict[str, list[float]](list)
        for measurement in found[name]:
            timing = measurement.timing
            values["step"].append(statistics.median(timing.blocks) / timing.steps_per_block)
            values["foreign"].append(measurement.contention.foreign_cpu_fraction or 0.0)
            for when in ("before", "between"):
                seen = [
                    each.seconds
                    for each in timing.references
                    if (each.blocks < 0) is (when == "before")
                ]
                for kernel in seen[0]:
                    values[f"{kernel} {when}"].append(
                        statistics.median(each[kernel] for each in seen)
                    )
        medians = {key: statistics.median(each) for key, each in values.items()}
        foreign = medians.pop("foreign", 0.0)
        usual = usual or medians
        contended = sum(measurement.contention.reason is not None for measurement in found[name])
        words = "  ".join(f"{key} {value / usual[key]:.2f}" for key, value in medians.items())
        if words:
            line = f"{contended} of {len(found[name])} contended  foreign {foreign:.2f}  {words}"
        else:
            line = "cannot be set here"
        print(f"{name:24} {line}", flush=True)


def main() -> None:
    """Print a line per cell after each of its processes, or lines per disturbance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, default=6, help="processes of each cell, minutes apart"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=6.0,
        help="seconds of interleaved blocks in each process, or of a point",
    )
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS)
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_SECONDS,
        help="seconds of untimed steps behind kernels",
    )
    parser.add_argument("--framework", default="tensorflow")
    parser.add_argument(
        "--file", type=Path, default=RESULTS / "reference.jsonl", help="where every process is kept"
    )
    parser.add_argument("--disturbed", action="store_true")
    parser.add_argument(
        "--points", type=int, default=4, help="points measured under each disturbance"
    )
    given = parser.parse_args()
    if given.disturbed:
        disturbed(given.points, given.seconds, given.framework)
        return
    os.environ["KERAS_BACKEND"] = given.framework
    from paradnn.worker.frameworks import load

    load(given.framework)  # imported once; each process is a fork, as in a sweep

    def fresh(*task: Any) -> Any:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(measured, (*task, given.framework))

    given.file.parent.mkdir(exist_ok=True)
    if given.file.exists():
        known = [json.loads(line) for line in given.file.read_text().splitlines()]
    else:
        known = []
    call = time.strftime("%F %T")
    kept = defaultdict[str, list[Any]](list)
    for each in known:
        kept[each["cell"]].append(each)
    for _ in range(given.processes):
        for cell_name in random.sample(given.cells, len(given.cells)):
            name = f"{given.framework} {cell_name}"
            kept[name].append(
                {"cell": name, "call": call, **fresh(cell_name, given.seconds, given.settle)}
            )
            with given.file.open("a") as file:
                file.write(json.dumps(kept[name][-1]) + "\n")
            if len(kept[name]) > 1:
                print(f"{name:32} {cell(kept[name])}", flush=True)
    print(
        "\n".join(
            [
                "",
                *(
                    f"{name:32} {cell(each)}"
                    for name, each in sorted(kept.items())
                    if len(each) > 1
                ),
            ]
        )
    )


if __name__ == "__main__":
    main()
