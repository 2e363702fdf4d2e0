"""Planted worlds: generators of runs whose truth is known, and the store that holds them.

`benchmarks.calibration` asks the commands about these worlds and reports how often they are right.
A generator takes a random generator and returns a frame with a row per run. Its column `TRUTH` is
the logarithm of the run's true speed, without sessions, hosts and noise; it is not stored.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.cli import make_parser
from analysis.cli.answer import answer, load_selection
from analysis.cli.commands import SubCommand
from analysis.options import Options, Selection, read_arguments
from analysis.result import Result
from benchmarks.common import Planted, fill
from benchmarks.steadiness import ar1
from paradnn.store.metrics import METRICS
from paradnn.store.runs import protocol_names

Random = np.random.Generator
World = Callable[[Random], pd.DataFrame]
_START = pd.Timestamp("2026-01-01", tz="UTC")
_GRID = {"model.nodes": 9, "batch_size": 3}  # 27 points
#: Column with the logarithm of a run's true speed.
TRUTH = "true_log"
_PROTOCOLS = {name: identity for identity, name in protocol_names().items()}
_FIXED = {
    "family": "fc",
    "device": "D",
    "outcome": "ok",
    "environment_id": "e",
    "protocol_id": "p",
    "host": "h",
    "platform.name": "cpu",
    "schema_version": "1",
    "sweep_id": "s",
}


def plant(
    side: str,
    logs: np.ndarray,
    hours: np.ndarray,
    axes: dict[str, int] | None = None,
    true: np.ndarray | float = 0.0,
    **columns: object,
) -> pd.DataFrame:
    """Return the runs of a side.

    Args:
        side: "A" or "B".
        logs: (points, replicates) logarithms of the measured speed.
        hours: (points, replicates) start times.
        axes: Hyperparameters with their numbers of values; points are their grid.
        true: (points,) or (points, 1) logarithms of the true speed.
        columns: Further columns, which override the defaults.
    """
    index = pd.MultiIndex.from_product(
        [range(count) for count in (axes or _GRID).values()], names=list(axes or _GRID)
    )
    points = 2 ** (5 + index.to_frame(index=False))
    frame = points.loc[points.index.repeat(logs.shape[1])].reset_index(drop=True)
    name = f"{side}{columns.get('family', 'fc')}"
    of_run = {
        "run_id": [f"{name}{n}" for n in range(logs.size)],
        "point_id": np.repeat([f"{name}{n}" for n in range(len(logs))], logs.shape[1]),
        "precision": {"A": "bfloat16", "B": "float32"}[side],
        "start_time": _START + pd.to_timedelta(3600 * np.ravel(hours), unit="s"),
        "examples_per_second": 100 * np.exp(logs.ravel()),
        TRUTH: np.repeat(np.broadcast_to(np.ravel(true), len(logs)), logs.shape[1]),
    }
    return frame.assign(**(_FIXED | of_run | columns))


def mixed(random: Random, points: int = 27, replicates: int = 3) -> np.ndarray:
    """Return hours of two sides (2, points, replicates) in one random order."""
    return random.permutation(2 * points * replicates).reshape(2, points, replicates) / 60


def noise(random: Random, points: int = 27, replicates: int = 3, size: float = 0.01) -> np.ndarray:
    """Return the noise of single runs, (2, points, replicates)."""
    return random.normal(0, size, (2, points, replicates))


def both(
    logs: np.ndarray | Sequence[np.ndarray],
    hours: np.ndarray | Sequence[np.ndarray],
    axes: dict[str, int] | None = None,
    true: np.ndarray | float = 0.0,
) -> pd.DataFrame:
    """Return A and B with (points, replicates) each; `true` is A's true speed."""
    truths = (true, 0.0)
    return pd.concat(
        [plant(side, logs[n], hours[n], axes, truths[n]) for n, side in enumerate("AB")]
    )


def centered(random: Random, size: float, points: int = 27) -> np.ndarray:
    """Return effects of points, (points, 1), whose mean is zero."""
    effects = random.normal(0, size, (points, 1))
    return np.asarray(effects - effects.mean())


def timed(
    random: Random,
    logs: np.ndarray,
    processes: int = 5,
    scatter: float = 0.05,
    within: float = 0.005,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Measure a speed in short processes, as `train` does.

    Args:
        random: Source of the noise.
        logs: (points, replicates) logarithms of the speed in this session.
        processes: Processes of a run: one for the quick protocol, five for the standard one.
        scatter: Standard deviation between processes, in logarithms.
        within: Standard error of the median of a process.

    Returns:
        The measured logarithms, and the columns that the protocol records.
    """
    size = (*logs.shape, processes)
    return summarized(logs[..., None] + random.normal(0, math.hypot(scatter, within), size), within)


def summarized(medians: np.ndarray, within: float = 0.005) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the mean of processes, and the columns that a protocol records of them.

    Args:
        medians: (..., processes) logarithms of the speed of each process.
        within: Standard error of the median of a process.
    """
    measured = np.atleast_2d(medians.mean(axis=-1))
    if medians.ndim == 2:
        measured = measured.T
    count = medians.shape[-1]
    columns: dict[str, Any] = {"processes": float(count), "measure.processes": count}
    if count == 1:
        columns["protocol_id"] = _PROTOCOLS["quick"]
        error = np.full(measured.size, within)
        half = stats.t.ppf(0.975, 9) * error
    else:
        columns["protocol_id"] = _PROTOCOLS["standard"]
        spread = medians.std(axis=-1, ddof=1).ravel()
        error = spread / math.sqrt(count)
        half = stats.t.ppf(0.975, count - 1) * error
        columns["process_cv"] = spread
        columns["between_process_cv"] = np.sqrt((spread**2 - within**2).clip(0))
    columns["step_time_error"] = error
    columns["examples_per_second_low"] = 100 * np.exp(measured.ravel() - half)
    columns["examples_per_second_high"] = 100 * np.exp(measured.ravel() + half)
    return measured, columns


def without(frame: pd.DataFrame, failed: Any) -> pd.DataFrame:
    """Return the frame with these runs out of memory."""
    speed = frame["examples_per_second"].mask(failed)
    return frame.assign(outcome=np.where(failed, "oom_device", "ok"), examples_per_second=speed)


def sessions(effect: float, random: Random, count: int = 3, true: float = 0.0) -> pd.DataFrame:
    """Sides with the given number of alternating sessions each, which shift them; points differ
    by 3%.
    """
    base = noise(random, replicates=count)
    truths = (true + centered(random, 0.03), np.zeros((27, 1)))
    sides = []
    for number, side in enumerate("AB"):
        logs = base[number] + random.normal(0, effect, count) + truths[number]
        hours = 10.0 * (2 * np.arange(count) + number) + np.arange(27)[:, None] / 60
        label = np.tile([f"{side}{n}" for n in range(count)], 27)
        sides.append(plant(side, logs, hours, true=truths[number], sweep_id=label))
    return pd.concat(sides)


def one_sweep(
    random: Random, true: float = 0.0, size: float = 0.01, spread: float = 0.0
) -> pd.DataFrame:
    """Return two sides mixed at random in one sweep; points differ by `spread`."""
    hours = mixed(random)
    logs = noise(random, size=size)
    truth = true + centered(random, spread)
    logs[0] += truth
    return both(logs, hours, true=truth)


def hosts(random: Random) -> pd.DataFrame:
    """Return one sweep with each side on a separate host; hosts differ by 8%."""
    hours = mixed(random)
    logs = noise(random)
    shift = random.normal(0, 0.08, 2)
    return pd.concat(
        [plant(side, shift[n] + logs[n], hours[n], host=f"h{side}") for n, side in enumerate("AB")]
    )


def late(random: Random) -> pd.DataFrame:
    """Return two sides; five points of A are from a later sweep on an 8% slower machine."""
    hours = mixed(random)
    logs = noise(random)
    some = np.isin(np.arange(27), random.choice(27, 5, replace=False))
    logs[0][some] -= 0.08
    hours[0][some] += 5
    label = np.repeat(np.where(some, "t", "s"), 3)
    return pd.concat([plant("A", logs[0], hours[0], sweep_id=label), plant("B", logs[1], hours[1])])


def blocks(
    shifts: Callable[[Random], np.ndarray], random: Random, order: str = "ABBA"
) -> pd.DataFrame:
    """One sweep in blocks: each measures all points of a side once, under its own shift."""
    per_side = len(order) // 2
    logs = noise(random, 27, per_side)
    hours = np.zeros((2, 27, per_side))
    shift = shifts(random)
    seen = [0, 0]
    for place, side in enumerate(order):
        number = "AB".index(side)
        logs[number, :, seen[number]] += shift[place]
        hours[number, :, seen[number]] = place + np.arange(27) / 60
        seen[number] += 1
    return both(logs, hours)


def out_of_memory(random: Random) -> pd.DataFrame:
    """Return equal sides on average; A is out of memory in most points where it is faster."""
    hours = mixed(random)
    logs = noise(random)
    truth = centered(random, 0.3)
    logs[0] += truth
    failed = np.repeat((truth.ravel() > 0) & (random.random(27) < 0.8), 3)
    return pd.concat(
        [without(plant("A", logs[0], hours[0], true=truth), failed), plant("B", logs[1], hours[1])]
    )


def choices(random: Random, effect: float = 0.03) -> pd.DataFrame:
    """Six equal batch sizes of inference, each in a separate session that shifts it; four runs
    each.
    """
    parts = []
    for number in range(6):
        logs = random.normal(0, effect) + noise(random, 1, 4)[0]
        more = {
            "mode": "inference",
            "batch_size": 2**number,
            "sweep_id": f"s{number}",
            "platform.name": "gpu",
        }
        one = plant("A", logs, 10 * number + np.arange(4) / 60, {"model.nodes": 1}, **more)
        parts.append(
            one.assign(
                run_id=one["run_id"] + f"c{number}", latency_p50_ms=1e5 / one["examples_per_second"]
            )
        )
    return pd.concat(parts)


def protocols(random: Random) -> pd.DataFrame:
    """Return equal sides; A was timed with a short protocol that is 3% off."""
    hours = mixed(random)
    logs = noise(random)
    return pd.concat(
        [plant("A", logs[0] - 0.03, hours[0], protocol_id="quick"), plant("B", logs[1], hours[1])]
    )


def tiles(random: Random) -> pd.DataFrame:
    """Return sides that are equal on average; every value of nodes changes the ratio by 10%."""
    axes = {"model.nodes": 8, "model.layers": 4, "batch_size": 3}
    hours = mixed(random, 96, 1)
    logs = noise(random, 96, 1)
    truth = np.repeat(centered(random, 0.1, 8), 12, axis=0)
    logs[0] += truth
    return both(logs, hours, axes, truth)


def nothing(
    random: Random, families: int = 3, devices: int = 4, spread: float = 0.1
) -> pd.DataFrame:
    """Return several comparisons of equal sides whose points differ by `spread`."""
    parts = []
    for family in range(families):
        for device in range(devices):
            hours = mixed(random)
            logs = noise(random)
            truths = (centered(random, spread), np.zeros((27, 1)))
            logs[0] += truths[0]
            where = {
                "family": f"fc{family}",
                "device": f"D{device}",
                "environment_id": f"e{device}",
            }
            for n, side in enumerate("AB"):
                one = plant(side, logs[n], hours[n], true=truths[n], **where)
                parts.append(one.assign(run_id=one["run_id"] + f"d{device}"))
    return pd.concat(parts)


def all_won(missed: int, random: Random) -> pd.DataFrame:
    """Return 144 points; A is much faster in all of them except for `missed` points."""
    axes = {"model.nodes": 16, "batch_size": 9}
    hours = mixed(random, 144, 1)
    logs = noise(random, 144, 1)
    ratio = np.exp(random.normal(0, 0.2, 144)) * 0.3
    ratio[:missed] = -0.1
    logs[0] += ratio[:, None]
    return both(logs, hours, axes, ratio)


def levels(random: Random, count: int = 8, batches: int = 5) -> pd.DataFrame:
    """One device: every value of nodes, layers and batch size has an effect of 20%; none is a
    slope.
    """
    axes = {"model.nodes": count, "model.layers": 4, "batch_size": batches}
    effects = np.meshgrid(*(random.normal(0, 0.2, n) for n in axes.values()), indexing="ij")
    logs = sum(effects).reshape(-1, 1) + random.normal(0, 0.02, (effects[0].size, 1))
    return plant("B", logs, random.permutation(logs.size) / 60, axes)


def resumed(random: Random) -> pd.DataFrame:
    """One device: the larger half of layers was measured after a resume, on a machine 8% off."""
    axes = {"model.nodes": 5, "model.layers": 6, "batch_size": 4}
    later = np.tile(np.repeat(np.arange(6) >= 3, 4), 5)
    logs = random.normal(0, 0.03, (120, 1)) + 0.08 * random.choice([-1, 1]) * later[:, None]
    hours = random.permutation(120) / 60 + 10 * later
    return plant("B", logs, hours, axes, session_id=np.where(later, "two", "one"))


def sloped(random: Random) -> pd.DataFrame:
    """One device: doubling the batch size (four values) is a factor of 1.3; nothing else matters."""
    axes = {"model.nodes": 5, "model.layers": 4, "batch_size": 4}
    logs = np.tile(math.log(1.3) * np.arange(4), 20) + random.normal(0, 0.03, 80)
    return plant("B", logs[:, None], random.permutation(80) / 60, axes)


def even(random: Random) -> pd.DataFrame:
    """The world `sloped`, in which doubling the layers is also a factor of 1.3."""
    frame = sloped(random)
    return frame.assign(
        examples_per_second=frame["examples_per_second"] * frame["model.layers"] ** math.log2(1.3)
    )


def seeds(random: Random) -> pd.DataFrame:
    """Two platforms that learn equally fast at both batch sizes, five seeds of +-10% each."""
    sides = []
    for place, side in enumerate("AB"):
        logs = random.normal(0, 0.1, (2, 5))
        hours = 5 * place + np.arange(10).reshape(2, 5) / 60
        one = plant(
            side,
            logs,
            hours,
            {"batch_size": 2},
            device=side,
            environment_id=side,
            precision="float32",
        )
        epochs = {"epochs_to_target": 5.0, "epochs_below_target": 0.0}
        steps = {"examples_to_target": 1e4}
        learned = {
            "seed": np.tile(range(5), 2),
            "task": "learn",
            "learn.target": 0.97,
            "best_accuracy": 0.98,
        }
        sides.append(
            one.assign(
                **learned, **epochs, **steps, seconds_to_target=1e4 / one["examples_per_second"]
            )
        )
    return pd.concat(sides)


def in_sessions(
    order: str, shifts: Callable[[Random], np.ndarray], hosts: str, apart: float, random: Random
) -> pd.DataFrame:
    """Sessions `apart` hours from each other, each with all points of one side, a shift and a
    host.
    """
    parts = []
    for place, (side, shift) in enumerate(zip(order, shifts(random), strict=True)):
        where = {"sweep_id": f"s{place}", "host": hosts[place : place + 1] or "h"}
        hours = apart * place + random.uniform(0, 1) + np.arange(27)[:, None] / 60
        one = plant(side, random.normal(shift, 0.01, (27, 1)), hours, **where)
        parts.append(one.assign(run_id=one["run_id"] + f"s{place}"))
    return pd.concat(parts)


def unlike(random: Random) -> pd.DataFrame:
    """Equal sides: A in two runs per point with 1% noise, B in seven with 5%, mixed in one sweep."""
    hours = random.permutation(27 * 9).reshape(27, 9) / 60
    return both(
        (random.normal(0, 0.01, (27, 2)), random.normal(0, 0.05, (27, 7))),
        (hours[:, :2], hours[:, 2:]),
    )


def in_time(
    effect: Callable[[Random, np.ndarray], np.ndarray | float], random: Random
) -> pd.DataFrame:
    """Equal sides mixed in one sweep of 162 runs; `effect` shifts a run by its position, 0 to
    161.
    """
    hours = mixed(random)
    return both(noise(random) + effect(random, np.rint(60 * hours).astype(int)), hours)


def noisy(random: Random) -> pd.DataFrame:
    """Equal sides mixed in one sweep; noise of 10% at the smallest batch size, 3% and 1% at
    others.
    """
    return both(random.normal(0, np.tile([0.1, 0.03, 0.01], 9)[:, None], (2, 27, 3)), mixed(random))


def copied(world: World, whole: bool, random: Random) -> pd.DataFrame:
    """A world with every run twice, or one run eleven times, under other ids."""
    runs = world(random).reset_index(drop=True)
    if whole:
        copies = [runs]
    else:
        copies = [runs.iloc[[int(random.integers(len(runs)))]]] * 10
    return pd.concat(
        [runs, *(one.assign(run_id=one["run_id"] + f"copy{n}") for n, one in enumerate(copies))]
    )


def grids(random: Random) -> pd.DataFrame:
    """Equal sides; B has batch sizes twice as large. Sizes differ by 50%."""
    hours = mixed(random)
    logs = noise(random)
    of_batch = random.normal(0, 0.5, 4)
    logs += np.array([np.tile(of_batch[n : n + 3], 9) for n in (0, 1)])[:, :, None]
    a, b = (plant(side, logs[n], hours[n]) for n, side in enumerate("AB"))
    return pd.concat([a, b.assign(batch_size=2 * b["batch_size"])])


def restarted(random: Random) -> pd.DataFrame:
    """Equal sides mixed in one sweep that resumed on another day on a machine 8% slower."""
    hours = mixed(random)
    later = hours > random.uniform(0.3, 0.7) * hours.max()
    sides = both(noise(random) - 0.08 * later, hours + 20 * later)
    return sides.assign(session_id=np.where(later.ravel(), "two", "one"))


def days(random: Random) -> pd.DataFrame:
    """Equal sides: A on one day, half of B on each of two other days; days differ by 5%."""
    logs = noise(random)
    of_day = random.normal(0, 0.05, 3)
    half = np.arange(27)[:, None] < 13
    logs += np.array([np.full((27, 1), of_day[0]), np.where(half, of_day[1], of_day[2])])
    day = np.array([np.zeros((27, 1)), np.where(half, 1, 2)])
    hours = 24 * day + mixed(random) / 3
    names = np.char.add("s", np.broadcast_to(day, (2, 27, 3)).astype(int).astype(str))
    return both(logs, hours).assign(sweep_id=names.ravel())


def dropped(random: Random) -> pd.DataFrame:
    """Equal sides with 4% noise; A is out of memory in a third of the runs of the three largest
    models.
    """
    sides = both(noise(random, size=0.04), mixed(random))
    failed = (
        (sides["precision"] == "bfloat16")
        & (sides["model.nodes"] > 2**10)
        & (random.random(len(sides)) < 0.33)
    )
    return without(sides, failed)


def large(random: Random) -> pd.DataFrame:
    """Equal on average: the larger the model, the slower A, which is out of memory in the largest
    third.
    """
    logs = noise(random)
    size = np.repeat(np.arange(9), 3)
    truth = 0.05 * (4 - size)[:, None] + random.normal(0, 0.03, (27, 1))
    logs[0] += truth
    found = both(logs, mixed(random), true=truth)
    return without(found, (found["precision"] == "bfloat16") & (found["model.nodes"] > 2**10))


def scattered(random: Random) -> pd.DataFrame:
    """Sides whose points differ by 30% around a mean of 1."""
    logs = noise(random, 60, 3)
    truth = centered(random, 0.3, 60)
    logs[0] += truth
    return both(logs, mixed(random, 60, 3), {"model.nodes": 20, "batch_size": 3}, truth)


_AXES = {"model.nodes": 6, "model.layers": 4, "batch_size": 4}


def in_order(random: Random) -> pd.DataFrame:
    """One device, measured in the order of nodes while the machine slowed by 8%; nothing has an
    effect.
    """
    place = np.arange(96)[:, None]
    return plant("B", random.normal(-0.08 * place / 96, 0.01), place / 60, _AXES)


def corner(random: Random) -> pd.DataFrame:
    """One device without effects, except that one run of the largest model is ten times as slow."""
    logs = random.normal(0, 0.03, (96, 1))
    logs[-1] -= math.log(10)
    return plant("B", logs, random.permutation(96)[:, None] / 60, _AXES)


def channel(count: int, random: Random) -> pd.DataFrame:
    """Messages of 12 sizes with a start-up of 20 us and 1 GB/s, in sessions that shift all times
    by 8%.
    """
    session = np.tile(np.repeat(np.arange(count), 4), 12)
    sizes = np.repeat(4 ** np.arange(12), 4 * count)
    us = (20 + sizes / 1000) * np.exp(
        random.normal(0, 0.08, count)[session] + random.normal(0, 0.01, len(sizes))
    )
    hours = 10.0 * session + np.arange(len(sizes)) / 600
    one = plant("A", np.zeros((len(sizes), 1)), hours, {"seed": len(sizes)}, family="channel").drop(
        columns="seed"
    )
    description = {
        "model.bytes": sizes,
        "transfer_us": us,
        "model.transport": "tcp",
        "model.pattern": "latency",
    }
    return one.assign(sweep_id=[f"s{n}" for n in session], **description)


_PARAMS = (
    "model.",
    "batch_size",
    "precision",
    "mode",
    "platform.",
    "task",
    "learn.",
    "seed",
    "measure.",
    "devices",
)


def planted_runs(frame: pd.DataFrame) -> Iterator[Planted]:
    """Return the rows of a frame as runs; NaN was not recorded."""
    for number, row in enumerate(frame.to_dict("records")):
        start = int(row.pop("start_time").timestamp() * 1000)
        end = row.pop("end_time", None)
        if end is not None:
            end = int(end.timestamp() * 1000)
        named = {
            "model.name": row.pop("family"),
            "kind": "point",
            "source": "measured",
            "steady": "true",
        }
        held: dict[str, Any] = {
            str(key): value for key, value in (named | row).items() if value == value
        }
        del held["run_id"]
        held.pop(TRUTH, None)
        metrics = {key: held.pop(key) for key in [*held] if key in METRICS}
        params = {key: held.pop(key) for key in [*held] if key.startswith(_PARAMS)}
        yield Planted(f"{number:032x}", start, params, held, metrics, end)


@cache
def parsed(words: tuple[str, ...]) -> tuple[SubCommand, Options, Selection]:
    """Return a command with its options and selection, as `python -m analysis` parses its
    arguments.
    """
    args = make_parser().parse_args(words)
    return (
        args.sub_command,
        read_arguments(args.sub_command.options, args),
        read_arguments(Selection, args),
    )


class Store:
    """A SQLite store whose runs are replaced, and the results of commands on it.

    Attributes:
        path: The database.
        uri: Its address.
        planted: The rows that were planted, with their truth.
        frame: The runs as loaded from the store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"sqlite:///{path}"
        self.planted = pd.DataFrame()
        self.frame = pd.DataFrame()
        self._empty = path.read_bytes()
        self._results = dict[tuple[str, ...], Result]()

    def plant(self, runs: pd.DataFrame) -> None:
        """Make these the only runs."""
        self.path.write_bytes(self._empty)
        fill(self.path, planted_runs(runs))
        self.planted = runs.reset_index(drop=True)
        self.frame = load_selection(Selection(store=(self.uri,)))
        self._results = {}

    def words(self, *words: str) -> tuple[str, ...]:
        """Return the words of a command line on this store.

        The last word of `claims` is the text of a file of claims, which is written.
        """
        if words[0] == "claims":
            file = self.path.with_name(f"{zlib.crc32(words[-1].encode())}.yaml")
            file.write_text(words[-1], encoding="utf-8")
            words = (*words[:-1], "--file", str(file))
        return (*words, "--store", self.uri)

    def result(self, *words: str) -> Result:
        """Return the result of a command.

        Raises:
            ParadnnError: If the command cannot answer.
        """
        line = self.words(*words)
        if line not in self._results:
            command, options, selection = parsed(line)
            assert command.analysis is not None
            self._results[line] = answer(command.analysis, self.frame, options, selection)
        return self._results[line]


def one_run(
    random: Random, ratio: float = 1.0, points: int = 1, processes: int = 5, scatter: float = 0.05
) -> pd.DataFrame:
    """One sweep with one run per point and side, A `ratio` times as fast as B."""
    hours = mixed(random, points, 1)
    sides = []
    for number, side in enumerate("AB"):
        true = true_of(side, ratio)
        logs, columns = timed(random, np.full((points, 1), true), processes, scatter)
        sides.append(plant(side, logs, hours[number], _SHAPES[points], true, **columns))
    return pd.concat(sides)


def true_of(side: str, ratio: float) -> float:
    """Return the logarithm of a side's true speed, if A is `ratio` times as fast as B."""
    return math.log(ratio) if side == "A" else 0.0


def in_session(frame: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return runs as a separate sweep and session."""
    return frame.assign(sweep_id=label, session_id=label, run_id=frame["run_id"] + label)


def apart(
    random: Random,
    ratio: float = 1.0,
    effect: float = 0.06,
    points: int = 27,
    processes: int = 5,
    sessions: int = 1,
    own_hosts: bool = False,
    spread: float = 0.0,
) -> pd.DataFrame:
    """Each side in separate sessions, in turn, which shift all of its points.

    Args:
        random: Source of the noise.
        ratio: How many times A is as fast as B, as the geometric mean over points.
        effect: Standard deviation of the shifts, in logarithms.
        points: Number of points.
        processes: Processes of a run.
        sessions: Sessions per side; each measures every point once.
        own_hosts: Whether each side has a separate host and device.
        spread: Standard deviation of the points' true ratios.
    """
    ratios = centered(random, spread, points)
    parts = []
    for number, side in enumerate("AB"):
        true = true_of(side, ratio) + ratios * (side == "A")
        where = {}
        if own_hosts:
            where = {"host": f"host{side}", "device": f"Device {side}", "environment_id": side}
        for session in range(sessions):
            logs, columns = timed(random, true + random.normal(0, effect), processes)
            hours = 10.0 * (2 * session + number) + np.arange(points)[:, None] / 60
            one = plant(side, logs, hours, _SHAPES[points], true, **columns, **where)
            parts.append(in_session(one, f"{side}{session}"))
    return pd.concat(parts)


def on_gpus(world: World, random: Random) -> pd.DataFrame:
    """Runs of another world, as measured on GPUs."""
    return world(random).assign(**{"platform.name": "gpu"})


def known_machine(random: Random, effect: float, earlier: int) -> pd.DataFrame:
    """Equal sides in one session each, on a machine that measured another point before.

    Args:
        random: Source of the noise.
        effect: Standard deviation of the shifts of sessions, in logarithms.
        earlier: Sessions of the other point, which has another precision.
    """
    parts = [apart(random, effect=effect)]
    for session in range(earlier):
        logs, columns = timed(random, np.full((1, 1), random.normal(0, effect)))
        hours = np.array([[-10.0 * (session + 1)]])
        one = plant("B", logs, hours, {"model.nodes": 1}, **columns, precision="float16")
        one = one.assign(point_id="other", run_id=f"other{session}")
        parts.append(in_session(one, f"E{session}"))
    return pd.concat(parts)


def shared_sessions(
    random: Random, ratio: float = 1.0, effect: float = 0.06, sessions: int = 3
) -> pd.DataFrame:
    """Sessions that each measure both sides, mixed, once per point, in five processes."""
    parts = []
    for session in range(sessions):
        shift = random.normal(0, effect)
        hours = 24.0 * session + mixed(random, 27, 1)
        for number, side in enumerate("AB"):
            true = true_of(side, ratio)
            logs, columns = timed(random, np.full((27, 1), true + shift))
            one = plant(side, logs, hours[number], None, true, **columns)
            parts.append(in_session(one, f"s{session}"))
    return pd.concat(parts)


def mornings(random: Random, orders: Sequence[str], ratio: float = 1.0) -> pd.DataFrame:
    """Mornings of two hours, one per side in the given order.

    The machine slows by 25% within the first hour of every morning and recovers overnight.
    """
    parts = []
    for day, order in enumerate(orders):
        for place, side in enumerate(order):
            true = true_of(side, ratio)
            since = place + np.arange(27)[:, None] / 28
            slowdown = math.log(0.75) * np.minimum(since, 1)
            logs = true + slowdown + random.normal(0, 0.01, (27, 1))
            one = plant(side, logs, 24.0 * day + since, None, true)
            parts.append(in_session(one, f"{day}{place}"))
    return pd.concat(parts)


def lost_at_random(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep of three replicates; B lacks a fifth of its points and of its replicates."""
    hours = mixed(random)
    truth = math.log(ratio)
    logs = noise(random, size=0.02)
    logs[0] += truth
    b = plant("B", logs[1], hours[1])
    points = b["point_id"].unique()
    lost_points = random.choice(points, len(points) // 5, replace=False)
    is_lost = b["point_id"].isin(lost_points) | (random.random(len(b)) < 0.2)
    return pd.concat([plant("A", logs[0], hours[0], true=truth), b[~is_lost]])


def two_tasks(random: Random, named: bool) -> pd.DataFrame:
    """Two tasks of one sweep at the same time, each 4% off, with a side each.

    A run takes a minute; those of B begin half a minute after those of A.

    Args:
        random: Source of the noise.
        named: Whether the runs record the session of their task.
    """
    logs = noise(random) + random.normal(0, 0.04, (2, 1, 1))
    sides = []
    for number, side in enumerate("AB"):
        hours = (random.permutation(81).reshape(27, 3) + number / 2) / 60
        one = plant(side, logs[number], hours)
        if named:
            one = one.assign(session_id=side)
        sides.append(one.assign(end_time=one["start_time"] + pd.Timedelta("1min")))
    return pd.concat(sides)


def devices(random: Random, fraction: float, effect: float = 0.08) -> pd.DataFrame:
    """One, two, four and eight devices, each count in a separate session.

    Args:
        random: Source of the noise.
        fraction: Amdahl's non-parallel fraction.
        effect: Standard deviation of the sessions' shifts, in logarithms.
    """
    parts = []
    for place, count in enumerate(random.permutation([1, 2, 4, 8])):
        true = -math.log(fraction + (1 - fraction) / count)
        logs = true + random.normal(0, effect) + noise(random, 12, 2)[0]
        hours = 10.0 * place + np.arange(24).reshape(12, 2) / 60
        axes = {"model.nodes": 6, "batch_size": 2}
        one = in_session(plant("B", logs, hours, axes, true, devices=int(count)), f"s{place}")
        parts.append(one.assign(point_id=one["point_id"] + f"d{count}"))
    return pd.concat(parts)


def node_effects(random: Random, effect: float = 0.06) -> pd.DataFrame:
    """One device in one session, which shifts it; every value of nodes has an effect of 20%."""
    axes = {"model.nodes": 8, "model.layers": 4, "batch_size": 3}
    truth = np.repeat(random.normal(0, 0.2, 8), 12)[:, None]
    logs = truth + random.normal(0, effect) + random.normal(0, 0.02, (96, 1))
    return plant("B", logs, random.permutation(96).reshape(96, 1) / 60, axes, truth)


def one_better(
    random: Random, choices: int = 4, better: float = 1.2, effect: float = 0.06
) -> pd.DataFrame:
    """Batch sizes of inference in three sessions each; size 2 is better in both quantities.

    Every session measures one choice twice and shifts it.
    """
    parts = []
    for session in range(3):
        for number in range(choices):
            true = math.log(better) if number == 1 else 0.0
            logs = true + random.normal(0, effect) + noise(random, 1, 2)[0]
            hours = 10 * (choices * session + number) + np.arange(2)[None] / 60
            more = {"mode": "inference", "batch_size": 2**number}
            one = plant("A", logs, hours, {"model.nodes": 1}, true, **more)
            one = in_session(one, f"s{session}-{number}")
            latency = 1e5 / one["examples_per_second"]
            parts.append(one.assign(point_id=f"point{number}", latency_p50_ms=latency))
    return pd.concat(parts)


def two_modes(random: Random, seeds: int) -> pd.DataFrame:
    """Two platforms in one sweep that train to a target; a third of the seeds take twice as long.

    A is exp(0.3) times as fast as B in every seed.
    """
    sides = []
    hours = mixed(random, 1, seeds)
    for number, side in enumerate("AB"):
        true = true_of(side, math.exp(0.3))
        slow = random.random((1, seeds)) < 1 / 3
        logs = true - math.log(2) * slow + random.normal(0, 0.05, (1, seeds))
        where = {"device": side, "environment_id": side, "precision": "float32"}
        one = plant(side, logs, hours[number], {"batch_size": 1}, true, **where)
        examples = 1e4 * np.exp(-logs.ravel())
        learned = {
            "seed": range(seeds),
            "task": "learn",
            "learn.target": 0.97,
            "best_accuracy": 0.98,
            "examples_per_second": 1000.0,
            "epochs_to_target": examples / 1000,
            "epochs_below_target": 0.0,
            "examples_to_target": examples,
            "seconds_to_target": examples / 1000,
        }
        sides.append(one.assign(**learned))
    return pd.concat(sides)


def preferred(random: Random) -> pd.DataFrame:
    """One device; large models were mostly measured with small batches.

    Each doubling of nodes is 0.8x, each doubling of the batch size 1.5x.
    """
    axes = {"model.nodes": 6, "model.layers": 4, "batch_size": 5}
    index = np.indices(tuple(axes.values())).reshape(3, -1)
    is_chosen = random.random(index.shape[1]) < np.exp(-0.35 * np.abs(index[0] + index[2] - 4))
    truth = math.log(0.8) * index[0] + math.log(1.5) * index[2]
    layers = random.normal(0, 0.1, 4)[index[1]]
    logs = truth + layers + random.normal(0, 0.1, index.shape[1])
    hours = random.permutation(len(logs)) / 60
    return plant("B", logs[:, None], hours[:, None], axes, truth)[is_chosen]


def six_points(random: Random) -> pd.DataFrame:
    """The six fully connected points of the quick experiment; doubling nodes is 0.5x."""
    index = np.indices((3, 2)).reshape(2, -1)
    truth = -2 * math.log(2) * index[0] + 0.3 * index[1]
    logs = truth + random.normal(0, 0.05, 6)
    hours = random.permutation(6) / 60
    frame = plant("B", logs[:, None], hours[:, None], _SHAPES[6], truth)
    return frame.assign(**{"model.nodes": 128 * 4 ** index[0], "batch_size": 64 * 8 ** index[1]})


def equal_points(random: Random, points: int = 50) -> pd.DataFrame:
    """Fifty equally fast points of one sweep, one run of five processes each."""
    logs, columns = timed(random, np.zeros((points, 1)))
    hours = random.permutation(points)[:, None] / 60
    return plant("B", logs, hours, {"model.nodes": 10, "batch_size": 5}, **columns)


def two_kernels(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep; each run takes one of two kernels, 15% apart, by chance."""
    truth = math.log(ratio)
    logs = noise(random) - 0.15 * (random.random((2, 27, 3)) < 0.5)
    logs[0] += truth
    return both(logs, mixed(random), true=truth)


def outlier_process(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep of standard runs; in every tenth run one of five processes is half as fast."""
    hours = mixed(random, 27, 1)
    sides = []
    for number, side in enumerate("AB"):
        true = true_of(side, ratio)
        processes = true + random.normal(0, 0.02, (27, 5))
        processes[:, 0] += math.log(0.5) * (random.random(27) < 0.1)
        logs, columns = summarized(processes)
        sides.append(plant(side, logs, hours[number], None, true, **columns))
    return pd.concat(sides)


def heavy_tails(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep of three replicates with noise of Student's t, three degrees of freedom, 3%."""
    truth = math.log(ratio)
    logs = 0.03 * random.standard_t(3, (2, 27, 3))
    logs[0] += truth
    return both(logs, mixed(random), true=truth)


def heating(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep in random order; the machine slows by 15% as it heats up, within 40 runs."""
    hours = mixed(random)
    truth = math.log(ratio)
    logs = noise(random) + math.log(0.85) * (1 - np.exp(-60 * hours / 40))
    logs[0] += truth
    return both(logs, hours, true=truth)


def noisy_large_batches(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep; a neighbor adds noise of 1, 4 and 15% at growing batch sizes."""
    truth = math.log(ratio)
    logs = random.normal(0, np.tile([0.01, 0.04, 0.15], 9)[:, None], (2, 27, 3))
    logs[0] += truth
    return both(logs, mixed(random), true=truth)


def unequal_replicates(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep; A has one quick run per point, B has six."""
    hours = random.permutation(27 * 7).reshape(27, 7) / 60
    parts = []
    for side, columns_of_side in (("A", [0]), ("B", [1, 2, 3, 4, 5, 6])):
        true = true_of(side, ratio)
        logs, columns = timed(random, np.full((27, len(columns_of_side)), true), 1)
        parts.append(plant(side, logs, hours[:, columns_of_side], None, true, **columns))
    return pd.concat(parts)


def lucky_layout(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """Two hosts, both with both sides; each pair of host and side has a layout of +-3%."""
    parts = []
    for host in range(2):
        hours = 24.0 * host + mixed(random, 27, 2)
        shift = random.normal(0, 0.08)
        for number, side in enumerate("AB"):
            true = true_of(side, ratio)
            logs = true + shift + random.normal(0, 0.03) + noise(random, 27, 2)[0]
            one = plant(side, logs, hours[number], None, true, host=f"host{host}")
            parts.append(in_session(one, f"h{host}"))
    return pd.concat(parts)


def few_of_many(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One session per side; A measured nine of B's 27 points, which differ by 30% in speed."""
    speeds = random.normal(0, 0.3, (27, 1))
    parts = []
    for number, side in enumerate("AB"):
        true = speeds + true_of(side, ratio)
        logs, columns = timed(random, true + random.normal(0, 0.06))
        hours = 10.0 * number + np.arange(27)[:, None] / 60
        one = in_session(plant(side, logs, hours, None, true, **columns), side)
        if side == "A":
            one = one.iloc[np.sort(random.choice(27, 9, replace=False))]
        parts.append(one)
    return pd.concat(parts)


def grows_with_size(random: Random, ratio: float = 1.0) -> pd.DataFrame:
    """One sweep; A's advantage grows from a loss in small models to a gain in large ones."""
    size = np.repeat(np.arange(9.0), 3)[:, None]
    truth = math.log(ratio) + 0.1 * (size - 4)
    logs = noise(random)
    logs[0] += truth
    return both(logs, mixed(random), true=truth)


def unequal_sessions(random: Random, ratio: float = 1.0, effect: float = 0.06) -> pd.DataFrame:
    """Sessions of A, B, A and B; the middle two measure only three of the 27 points."""
    parts = []
    for place, side in enumerate("ABAB"):
        true = true_of(side, ratio)
        logs, columns = timed(random, np.full((27, 1), true + random.normal(0, effect)))
        hours = 10.0 * place + np.arange(27)[:, None] / 60
        one = in_session(plant(side, logs, hours, None, true, **columns), f"s{place}")
        if place in (1, 2):
            one = one.iloc[:3]
        parts.append(one)
    return pd.concat(parts)


#: Axes of a grid by its number of points.
_SHAPES = {
    1: {"model.nodes": 1},
    3: {"model.nodes": 3},
    6: {"model.nodes": 3, "batch_size": 2},
    9: {"model.nodes": 3, "batch_size": 3},
    12: {"model.nodes": 4, "batch_size": 3},
    27: _GRID,
}


#: Equal sides mixed in one sweep, for `in_time`. Name: (description, effect of the position 0 to
#: 161 on a run).
PLACES: dict[str, tuple[str, Callable[[Random, np.ndarray], np.ndarray | float]]] = {
    "stepped": ("8% slower from the middle of a sweep on", lambda _, place: -0.08 * (place > 80)),
    "warm-up": ("the first four runs of a sweep 30% slow", lambda _, place: -0.3 * (place < 4)),
    "throttled": (
        "12% slower after the first third of a sweep",
        lambda _, place: -0.12 * (place > 54),
    ),
    "neighbor": (
        "20% slower for a quarter of a sweep",
        lambda random, place: -0.2 * (np.abs(place - random.integers(20, 142)) <= 20),
    ),
    "clock": (
        "a clock of two levels, 7% apart, for ten runs each",
        lambda random, place: -0.07 * random.integers(0, 2, 17)[place // 10],
    ),
    "wander": (
        "noise of 4% that correlates by 0.9 from run to run",
        lambda random, place: 0.04 * np.array(ar1(162, 0.9, random))[place],
    ),
    "waves": (
        "6% up and down, twelve runs a period",
        lambda random, place: 0.06 * np.sin(2 * np.pi * place / 12 + random.uniform(0, 7)),
    ),
    "creep": ("a sweep in which the machine slows by 10%", lambda _, place: -0.1 * place / 161),
    "stragglers": (
        "one run of twenty takes three times as long",
        lambda random, place: -math.log(3) * (random.random(place.shape) < 0.05),
    ),
}

_MOSTLY_HOSTS = "".join("hi"[(n // 2 % 4 == 0) ^ (n % 2)] for n in range(16))
#: Equal sides, for `in_sessions`. Name: (description, side of each session, shifts, hosts, hours
#: between sessions).
ORDERS: dict[str, tuple[str, str, Callable[[Random], np.ndarray], str, float]] = {
    "mostly": (
        "eight sessions each, A mostly on one host, B on another, 8% apart",
        "AB" * 8,
        lambda random: (
            0.08 * np.array([host == "h" for host in _MOSTLY_HOSTS]) + random.normal(0, 0.005, 16)
        ),
        _MOSTLY_HOSTS,
        4.0,
    ),
    "walk": (
        "sessions A A B B A A B B of a random walk of 3% each",
        "AABBAABB",
        lambda random: np.cumsum(random.normal(0, 0.03, 8)),
        "",
        4.0,
    ),
    "daily": (
        "A in five mornings, B in the evenings, 8% apart",
        "AB" * 5,
        lambda random: np.tile([0, -0.08], 5) + random.normal(0, 0.005, 10),
        "",
        12.0,
    ),
    "two users": (
        "sessions A A A B A B B B of +-1%, on a host 6% faster but for the first and third B",
        "AAABABBB",
        lambda random: 0.06 * (np.arange(8) % 4 != 3) + random.normal(0, 0.01, 8),
        "hhhihhhi",
        5.0,
    ),
    "replaced": (
        "sessions A B A A B A B B, the machine replaced by one 15% faster, same host",
        "ABAABABB",
        lambda random: 0.15 * (np.arange(8) > 3) + random.normal(0, 0.02, 8),
        "",
        5.0,
    ),
    "unequal": (
        "five sessions of A, two of B, +-4%",
        "AABAABA",
        lambda random: random.normal(0, 0.04, 7),
        "",
        5.0,
    ),
    "ageing": (
        "four sessions a side in turn, each 5% slower than the last",
        "AB" * 4,
        lambda random: -0.05 * np.arange(8) + random.normal(0, 0.01, 8),
        "",
        5.0,
    ),
    "swapped": (
        "A on hosts h and i, B on i and j, hosts +-6%",
        "AB" * 4,
        lambda random: random.normal(0, 0.06, 3)[[0, 1, 1, 2, 0, 1, 1, 2]],
        "hiijhiij",
        5.0,
    ),
}
