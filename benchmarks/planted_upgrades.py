"""Compare predicted speedups with those of upgrades that are simulated on this machine.

    python -m benchmarks.planted_upgrades measure --out DIR [--rounds 8] [--block 0.12]
    python -m benchmarks.planted_upgrades predict DIR [--figure FILE]

The same models and kernels run under conditions that change the hardware in a known way:

- `one thread`: one thread on core 0. It is the newer device of the last two pairs.
- `two threads`: two threads on cores 0 and 1.
- `memory hog`: one thread on core 0, while a process on core 1 streams through memory.
- `half the time`: one thread on core 0 with a CPU quota of half of each 10 ms, like half the clock.

Blocks of all conditions alternate in a random order per round, so that they share drift. Kernels of
the ceilings are measured in the same way. `predict` asks the analysis `whatif` for the speedups
from the slower condition's times and the ratio of the measured ceilings alone. Overhead is
predicted twice: with the planted factor (1, or half with the quota), and with the ratio of the
smallest kernel's times, which is then a third measured ceiling.

The quota needs a writable cgroup of version 1 (/sys/fs/cgroup/cpu); it is omitted without one.
"""

import argparse
import contextlib
import csv
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.analyses.whatif import WhatifOptions, whatif
from analysis.ceilings import BANDWIDTH, PEAK
from analysis.point_work import measured_work
from benchmarks.common import ROOT
from benchmarks.turns import Failed, Program, Stage
from paradnn.config.identity import point_request
from paradnn.config.point import Point
from paradnn.config.reading import read_point
from paradnn.families import FAMILIES
from paradnn.session.workers import WorkerKey
from paradnn.worker.peak_rates import REPEATS
from paradnn.worker.series import block_interval

#: Folder of the CPU controller of version 1 of control groups.
_CGROUPS = Path("/sys/fs/cgroup/cpu")
#: Period of the quota in microseconds, and the share of each period in which processes may run.
_PERIOD_US = 10_000
_QUOTA_SHARE = 0.5
#: Program that adds arrays of 128 MiB in place until its parent dies (PR_SET_PDEATHSIG is 1).
_HOG = """
import ctypes
import signal
import numpy as np
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
total, other = np.zeros(2**25, np.float32), np.ones(2**25, np.float32)
while True:
    np.add(total, other, out=total)
"""
#: Sizes of the ceilings' products, and the bytes of each array of the ceilings' sum.
_MATMUL_SIZES = (512, 1024, 2048)
_ARRAY_BYTES = 2**26
_CEILINGS = (*(f"matmul {size}" for size in _MATMUL_SIZES), f"add {_ARRAY_BYTES // 4}")
#: Number of elements of the kernel whose time consists only of overhead.
_OVERHEAD_ELEMENTS = 1000
_FILE = "planted_upgrades.csv"


@dataclass(frozen=True)
class Condition:
    """Planted state of the machine.

    Attributes:
        program: Process that runs: "one" or "two", by its number of threads.
        has_hog: Whether another process streams through memory.
        has_quota: Whether the process may run only for a part of the time.
    """

    program: str = "one"
    has_hog: bool = False
    has_quota: bool = False


CONDITIONS = {
    "one thread": Condition(),
    "two threads": Condition(program="two"),
    "memory hog": Condition(has_hog=True),
    "half the time": Condition(has_quota=True),
}


class PlantedPair(NamedTuple):
    """An upgrade from a slower condition to a faster one.

    Attributes:
        older: The slower condition.
        newer: The faster condition.
        overhead: Planted factor on the overhead of an operation.
    """

    older: str
    newer: str
    overhead: float = 1.0


PAIRS = (
    PlantedPair("one thread", "two threads"),
    PlantedPair("memory hog", "one thread"),
    PlantedPair("half the time", "one thread", overhead=_QUOTA_SHARE),
)


def _grid(name: str, batch_size: str = "1", **options: str) -> Iterator[dict[str, Any]]:
    """Yield the configurations of all combinations of comma-separated options."""
    mode = "inference" if FAMILIES[name].options.is_kernel else "train"
    values = [[int(value) for value in text.split(",")] for text in options.values()]
    for chosen in itertools.product(*values):
        model = {"name": name, **dict(zip(options, chosen, strict=True))}
        for batch in batch_size.split(","):
            yield {"model": model, "batch_size": int(batch), "mode": mode}


def configurations() -> list[dict[str, Any]]:
    """Return the measured points: kernels, and small models of the six families."""
    kernels = [
        *(next(_grid("gemm", m=size, n=size, k=size)) for size in ("64", "128", "256", "512", "1024", "2048")),
        *_grid("gemm", m="4096", n="1,8,64", k="4096"),
        *_grid("elementwise", elements="1000,10000,100000,1000000,10000000", operations="1"),
        *_grid("elementwise", elements="1000,100000,10000000", operations="16"),
        *_grid("conv2d", "4", channels="16,64", filters="16,64", height="28", width="28", kernel="3", padding="1"),
        *_grid("conv2d", "16", channels="256", filters="64", height="14", width="14", kernel="1", padding="0"),
        *_grid("rnn_kernel", "16,64", hidden="128,512", steps="10"),
    ]  # fmt: skip
    models = [
        *_grid("fc", "16,128", layers="4", nodes="128,512,1024"),
        *_grid("residual", "4,16", blocks="1", filters="8,16", image_size="32,64"),
        *_grid("bottleneck", "4,16", blocks="1", filters="8,16", image_size="32"),
        *(
            configuration
            for name in ("rnn", "lstm", "gru")
            for configuration in _grid(
                name, "16,64", embedding_size="50,200", sequence_length="10", vocab_size="1024"
            )
        ),
    ]
    return [*kernels, *models]


def _steps(program: Program, block_seconds: float) -> int:
    """Return the number of steps that fill a block."""
    steps = 1
    for _ in range(3):
        seconds = program.block(steps) / steps
        steps = max(1, math.ceil(block_seconds / seconds))
    return steps


class _Hog:
    """Process on core 1 that streams through memory unless it is stopped."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", _HOG])
        os.sched_setaffinity(self._process.pid, {1})
        time.sleep(3.0)
        self.stop()

    def start(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class _Quota:
    """A cgroup whose processes may run for a share of each period, while it is limited."""

    def __init__(self) -> None:
        self.folder = _CGROUPS / f"paradnn-planted-{os.getpid()}"
        self.folder.mkdir()
        self._write("cpu.cfs_period_us", _PERIOD_US)

    def limit(self) -> None:
        self._write("cpu.cfs_quota_us", round(_QUOTA_SHARE * _PERIOD_US))

    def lift(self) -> None:
        self._write("cpu.cfs_quota_us", -1)

    def end(self) -> None:
        for _ in range(50):  # Killed processes may leave the group a moment later.
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.1)

    def _write(self, name: str, value: int) -> None:
        (self.folder / name).write_text(str(value), encoding="utf-8")


def _open_quota() -> _Quota | None:
    """Return a cgroup with a quota; None if this machine or user cannot have one."""
    try:
        return _Quota()
    except OSError as error:
        print(f"no CPU quota: {error}", flush=True)
        return None


class _Machine:
    """The conditions of this machine, and the programs that run under them."""

    def __init__(self) -> None:
        self._hog = _Hog()
        self._quota = _open_quota()
        environ = WorkerKey.of(read_point(configurations()[0])).environ()
        one = ["benchmarks.planted_program", "--cores", "0"]
        if self._quota is not None:
            one += ["--cgroup", str(self._quota.folder)]
        two = ["benchmarks.planted_program", "--cores", "0-1"]
        self._stage = Stage({"one": one, "two": two}, environ, ROOT)

    def __enter__(self) -> "_Machine":
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.__exit__()
        self._hog.end()
        if self._quota is not None:
            self._quota.end()

    @property
    def conditions(self) -> dict[str, Condition]:
        """Conditions that are possible on this machine, by name."""
        return {
            name: condition
            for name, condition in CONDITIONS.items()
            if self._quota is not None or not condition.has_quota
        }

    def open(self, model: str) -> dict[str, Program]:
        """Return the programs by name, compiled one after the other. Raises Failed."""
        programs = self._stage.open(model)
        for program in programs:
            program.ready()
        return {program.name: program for program in programs}

    @contextlib.contextmanager
    def planted(self, condition: Condition) -> Iterator[None]:
        """Put the machine into a condition for the duration of a block."""
        try:
            if condition.has_hog:
                self._hog.start()
            if condition.has_quota and self._quota is not None:
                self._quota.limit()
            yield
        finally:
            if condition.has_hog:
                self._hog.stop()
            if condition.has_quota and self._quota is not None:
                self._quota.lift()

    def take_turns(
        self, model: str, rounds: int, block_seconds: float, order: random.Random
    ) -> Iterator[dict[str, Any]]:
        """Yield the seconds of a step of every round and condition. Raises Failed."""
        programs = self.open(model)
        conditions = self.conditions
        steps = _steps(programs["one"], block_seconds)
        for number in range(-1, rounds):
            for name in order.sample(list(conditions), len(conditions)):
                condition = conditions[name]
                with self.planted(condition):
                    program = programs[condition.program]
                    seconds = program.block(steps, lead=max(1, steps // 10)) / steps
                if number >= 0:
                    yield {"condition": name, "round": number, "steps": steps, "seconds": seconds}
        for program in programs.values():
            program.close()


def measure(given: argparse.Namespace) -> None:
    """Measure all points and ceilings, and write each as soon as it is complete."""
    # A signal to this process must also end the processes and the cgroup of the conditions.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    given.out.mkdir(parents=True, exist_ok=True)
    order = random.Random(0)
    points = [json.dumps(each) for each in configurations()[:: given.every]]
    # The ceilings are measured at the beginning and at the end.
    models = [*_CEILINGS, *points, *_CEILINGS]
    begin = time.monotonic()
    with _Machine() as machine, (given.out / _FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, ["model", "condition", "round", "steps", "seconds"])
        writer.writeheader()
        for number, model in enumerate(models, 1):
            try:
                rows = [*machine.take_turns(model, given.rounds, given.block, order)]
            except Failed as error:
                print(f"{model}: {error}", flush=True)
                continue
            writer.writerows({"model": model, **row} for row in rows)
            file.flush()
            by_condition = median_seconds(pd.DataFrame(rows).assign(model=model)).loc[model]
            times = ", ".join(f"{1e3 * value:.4g}" for value in by_condition)
            passed = time.monotonic() - begin
            print(f"{passed:5.0f} s  {number} of {len(models)}  {model}: {times} ms", flush=True)


def median_seconds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median seconds of a step: a row per model, a column per condition."""
    table = rows.pivot_table("seconds", "model", "condition", aggfunc="median")
    return table[[name for name in CONDITIONS if name in table]]


class Ceilings(NamedTuple):
    """Measured ceilings of a condition, in FLOP/s, B/s, and seconds of the smallest kernel."""

    peak: float
    bandwidth: float
    overhead: float


def ceilings(medians: pd.DataFrame) -> dict[str, Ceilings]:
    """Return the ceilings of each condition: the fastest product, the sum, the smallest kernel."""
    found = {}
    (smallest,) = (name for name in medians.index if _is_smallest(name))
    for condition in medians:
        seconds = medians[condition]
        rates = [2.0 * size**3 / seconds[f"matmul {size}"] for size in _MATMUL_SIZES]
        moved = 3.0 * _ARRAY_BYTES * REPEATS
        bandwidth = moved / seconds[f"add {_ARRAY_BYTES // 4}"]
        found[str(condition)] = Ceilings(max(rates), bandwidth, seconds[smallest])
    return found


def _is_smallest(model: str) -> bool:
    """Return whether a measured model is the kernel whose time is all overhead."""
    if not model.startswith("{"):
        return False
    keys = json.loads(model)["model"]
    return (keys.get("elements"), keys.get("operations")) == (_OVERHEAD_ELEMENTS, 1)


def frame_of(medians: pd.DataFrame) -> pd.DataFrame:
    """Return the measured times as a frame of runs, with the condition as the device."""
    limits = ceilings(medians)
    rows = []
    for model in medians.index.drop(list(_CEILINGS)):
        columns = _columns(read_point(json.loads(model)))
        for condition, peaks in limits.items():
            identity = f"{condition}: {model}"
            row = {"run_id": identity, "point_id": identity, "device": condition}
            row |= {"outcome": "ok", "step_time_ms": 1e3 * medians.loc[model, condition]}
            rows.append(columns | row | {PEAK: peaks.peak, BANDWIDTH: peaks.bandwidth})
    return pd.DataFrame(rows)


def _columns(point: Point) -> dict[str, Any]:
    """Return the settings of a point as columns of a frame."""
    request = point_request(point)
    columns = {
        f"model.{name}": tuple(value) if isinstance(value, list) else value
        for name, value in request["model"].items()
    }
    columns |= {name: request[name] for name in ("batch_size", "precision", "mode", "compile")}
    return columns | {
        "family": point.model.name,
        "framework.name": request["framework"]["name"],
        "optimizer.name": request["optimizer"]["name"],
    }


def predicted(
    frame: pd.DataFrame, pair: PlantedPair, limits: Mapping[str, Ceilings]
) -> pd.DataFrame:
    """Return the speedups of a pair by three predictions, with the measured ones.

    There are two rows per point: for the planted factor on the overhead and the measured one.

    `device` is `whatif --from --to`, `factor` is `whatif --peak --bandwidth --overhead`, and
    `roofline` is the maximum of arithmetic and traffic per operation under the measured ceilings.
    """
    old, new = (frame[frame["device"].eq(name)].reset_index(drop=True) for name in pair[:2])
    both = pd.concat([old, new], ignore_index=True)
    before, after = (limits[name] for name in pair[:2])
    roofline = _roofline(old, before, after)
    tables = []
    factors = {"planted": pair.overhead, "measured": after.overhead / before.overhead}
    for name, overhead in factors.items():
        options = WhatifOptions(from_=pair.older, to=(pair.newer,), overhead=overhead)
        by_device = whatif(both, options).table.set_index("run_id")
        options = WhatifOptions(
            peak=after.peak / before.peak,
            bandwidth=after.bandwidth / before.bandwidth,
            overhead=overhead,
        )
        by_factor = whatif(old, options).table.set_index("run_id")
        tables.append(_joined(old, by_device, by_factor).assign(overhead=name))
    table = pd.concat(tables)
    table = table.assign(older=pair.older, newer=pair.newer, roofline=roofline[table.index])
    return table.reset_index(drop=True)


def _joined(points: pd.DataFrame, by_device: pd.DataFrame, by_factor: pd.DataFrame) -> pd.DataFrame:
    """Return both predictions by `whatif`, with the measured speedups."""
    found = points.set_index("run_id")[["family"]].loc[by_device.index]
    table = found.assign(
        model=[run_id.partition(": ")[2] for run_id in found.index],
        measured=by_device["measured_speedup"],
        limit=by_device["limit"],
    )
    for name, prediction in (("device", by_device), ("factor", by_factor)):
        for column in ("speedup", "speedup_low", "speedup_high"):
            table[column.replace("speedup", name)] = prediction[column]
        low = table[f"{name}_low"]
        high = table[f"{name}_high"]
        table[f"{name}_inside"] = table["measured"].between(low, high)
    return table


def _roofline(points: pd.DataFrame, old: Ceilings, new: Ceilings) -> pd.Series:
    """Return the speedups by run of a roofline, summed over the operations of a point."""
    found = measured_work(points, ())
    work = found.work
    seconds = []
    for limits in (old, new):
        each = np.maximum(work.flops / limits.peak, work.bytes / limits.bandwidth)
        seconds.append(work.sum_by_owner(each))
    return pd.Series(seconds[0] / seconds[1], index=found.points["run_id"])


def with_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add the 95% interval of the measured speedups, from the ratios of single rounds."""
    seconds = rows.pivot_table("seconds", ["model", "round"], "condition")
    ends = []
    for older, newer, model in table[["older", "newer", "model"]].itertuples(index=False):
        own = seconds.loc[model]
        ends.append(block_interval([*(own[older] / own[newer]).dropna()]) or (math.nan, math.nan))
    low, high = zip(*ends, strict=True)
    return table.assign(measured_low=low, measured_high=high)


def summary(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return points, measured speedup, median errors, coverage and widths by some columns."""
    errors = {
        f"{name}_error": (table[name] / table["measured"] - 1).abs()
        for name in ("device", "factor", "roofline")
    }
    widths = {
        f"{name}_width": np.sqrt(table[f"{name}_high"] / table[f"{name}_low"])
        for name in ("device", "factor")
    }
    wanted = {
        "points": ("measured", "size"),
        "measured": ("measured", "median"),
        "device": ("device", "median"),
        "factor": ("factor", "median"),
    }
    wanted |= {name: (name, "median") for name in errors}
    wanted |= {f"{name}_inside": (f"{name}_inside", "mean") for name in ("device", "factor")}
    wanted |= {name: (name, "median") for name in widths}
    columns = table.assign(**errors, **widths)
    return columns.groupby(list(by), sort=False).agg(**wanted)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw predicted over measured speedups, a panel per pair."""
    from analysis.lazy import drawing

    table = table[table["overhead"].eq("measured")]
    pairs = [pair for pair in PAIRS if (table["older"] == pair.older).any()]
    figure, panels = drawing.panels(len(pairs), 4.2, 4.2, across=len(pairs))
    kinds = list(dict.fromkeys(table["family"]))
    for axes, pair in zip(panels, pairs, strict=True):
        part = table[table["older"].eq(pair.older)]
        for kind in kinds:
            own = part[part["family"].eq(kind)]
            drawing.marks(
                axes,
                own["measured"],
                own["device"],
                y_ends=(own["device_low"], own["device_high"]),
                markersize=4,
                elinewidth=0.4,
                capsize=0,
                alpha=0.75,
                **drawing.look(kind, kinds),
            )
        ends = [part["measured"].min() / 1.1, part["measured"].max() * 1.1]
        axes.plot(ends, ends, color="#333333", linewidth=1)
        drawing.finish(
            axes,
            f"{pair.older} to {pair.newer}",
            "measured speedup",
            "predicted speedup",
            logs={"x": drawing.times, "y": drawing.times},
        )
    handles = [drawing.handle(kind, **drawing.look(kind, kinds)) for kind in kinds]
    drawing.legend(figure, handles, "family")
    figure.savefig(path, bbox_inches="tight", dpi=150)


def predict(given: argparse.Namespace) -> None:
    """Predict the measured pairs, and print the tables."""
    rows = pd.read_csv(given.folder / _FILE)
    medians = median_seconds(rows)
    limits = ceilings(medians)
    for condition, found in limits.items():
        rates = f"{found.peak:.4g} FLOP/s, {found.bandwidth:.4g} B/s"
        print(f"{condition}: {rates}, {1e6 * found.overhead:.4g} us of overhead")
    frame = frame_of(medians)
    pairs = [pair for pair in PAIRS if {pair.older, pair.newer} <= set(medians)]
    table = pd.concat([predicted(frame, pair, limits) for pair in pairs], ignore_index=True)
    table = with_intervals(table, rows)
    table.to_csv(given.folder / "planted_predictions.csv", index=False)
    for by in (["older"], ["older", "family"], ["older", "limit"]):
        by = [by[0], "overhead", *by[1:]]
        print(f"\n{summary(table, by).round(3).to_string()}")
    if given.figure is not None:
        draw(table, given.figure)


def main() -> None:
    """Measure the conditions, or predict their speedups."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure the conditions in turns")
    measuring.add_argument("--out", type=Path, required=True, help="folder of the CSV file")
    measuring.add_argument("--rounds", type=int, default=8)
    measuring.add_argument("--block", type=float, default=0.12, help="seconds of a turn")
    measuring.add_argument("--every", type=int, default=1, help="take every N-th point")
    measuring.set_defaults(run=measure)
    predicting = commands.add_parser("predict", help="predict the measured conditions")
    predicting.add_argument("folder", type=Path)
    predicting.add_argument("--figure", type=Path)
    predicting.set_defaults(run=predict)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
