"""Planted worlds, queried through the commands: how often are answers false, and how often is the
truth found?

    python -m benchmarks.worlds [--draws 200] [--only hosts late ...]

Each world plants runs with NumPy, writes them to a SQLite store, and reads what the commands
print. Rates have 95% intervals (Clopper and Pearson). The printed rows are those of
docs/validation/verdicts.md, section "Planted worlds".
"""

import argparse
import io
import math
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from mlflow import MlflowClient
from scipy import stats

from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.cli import main as analysis
from analysis.cli import make_parser
from analysis.cli.answer import answer, load_selection
from analysis.cli.commands import SubCommand
from analysis.options import Options, Selection, read_arguments
from benchmarks.common import Planted, fill
from benchmarks.steadiness import ar1
from paradnn.store.metrics import METRICS

Random = np.random.Generator
World = Callable[[Random], pd.DataFrame]
_START = pd.Timestamp("2026-01-01", tz="UTC")
_GRID = {"model.nodes": 9, "batch_size": 3}  # 27 points
_FIXED = {
    "family": "fc",
    "device": "D",
    "outcome": "ok",
    "environment_id": "e",
    "protocol_id": "p",
    "host": "h",
}
_FIXED |= {"schema_version": "1", "sweep_id": "s"}


def plant(
    side: str,
    logs: np.ndarray,
    hours: np.ndarray,
    axes: dict[str, int] | None = None,
    **columns: object,
) -> pd.DataFrame:
    """Return runs of a side: `logs` (points, replicates) of the speed at `hours`; points are the
    grid of `axes`.
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
    }
    return frame.assign(**(_FIXED | of_run | columns))


def mixed(random: Random, points: int = 27, replicates: int = 3) -> np.ndarray:
    """Return hours of two sides (2, points, replicates) in one random order."""
    return random.permutation(2 * points * replicates).reshape(2, points, replicates) / 60


def noise(random: Random, points: int = 27, replicates: int = 3, size: float = 0.01) -> np.ndarray:
    """Return the noise of single runs, (2, points, replicates)."""
    return random.normal(0, size, (2, points, replicates))


def both(
    logs: Sequence[np.ndarray], hours: Sequence[np.ndarray], axes: dict[str, int] | None = None
) -> pd.DataFrame:
    """Return A and B with (points, replicates) each."""
    return pd.concat([plant(side, logs[n], hours[n], axes) for n, side in enumerate("AB")])


def without(frame: pd.DataFrame, failed: Any) -> pd.DataFrame:
    """Return the same with these runs out of memory."""
    speed = frame["examples_per_second"].mask(failed)
    return frame.assign(outcome=np.where(failed, "oom_device", "ok"), examples_per_second=speed)


def sessions(effect: float, random: Random, count: int = 3, true: float = 0.0) -> pd.DataFrame:
    """Sides with the given number of alternating sessions each, which shift them; points differ
    by 3%.
    """
    base = noise(random, replicates=count)
    of_point = random.normal(0, 0.03, (27, 1))
    sides = []
    for number, side in enumerate("AB"):
        logs = base[number] + random.normal(0, effect, count) + (number == 0) * (true + of_point)
        hours = 10.0 * (2 * np.arange(count) + number) + np.arange(27)[:, None] / 60
        label = np.tile([f"{side}{n}" for n in range(count)], 27)
        sides.append(plant(side, logs, hours, sweep_id=label))
    return pd.concat(sides)


def one_sweep(
    random: Random, true: float = 0.0, size: float = 0.01, spread: float = 0.0
) -> pd.DataFrame:
    """Sides mixed at random in one sweep; points differ by `spread`."""
    hours = mixed(random)
    logs = noise(random, size=size)
    logs[0] += true + random.normal(0, spread, (27, 1))
    return both(logs, hours)


def hosts(random: Random) -> pd.DataFrame:
    """One sweep with each side on a separate host; hosts differ by 8%."""
    hours = mixed(random)
    logs = noise(random)
    shift = random.normal(0, 0.08, 2)
    return pd.concat(
        [plant(side, shift[n] + logs[n], hours[n], host=f"h{side}") for n, side in enumerate("AB")]
    )


def late(random: Random) -> pd.DataFrame:
    """Five points of A measured in a later sweep, on a machine that was 8% slower."""
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
    """Equal on average, but A is out of memory in most points where it wins."""
    hours = mixed(random)
    logs = noise(random)
    ratio = random.normal(0, 0.3, (27, 1))
    logs[0] += ratio - ratio.mean()
    failed = np.repeat((ratio.ravel() > ratio.mean()) & (random.random(27) < 0.8), 3)
    return pd.concat(
        [without(plant("A", logs[0], hours[0]), failed), plant("B", logs[1], hours[1])]
    )


def choices(random: Random) -> pd.DataFrame:
    """Six equal batch sizes of inference, each in a separate session that shifts it by 3%; four
    runs each.
    """
    parts = []
    for number in range(6):
        logs = random.normal(0, 0.03) + noise(random, 1, 4)[0]
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
    """A was timed with a short protocol that is 3% off."""
    hours = mixed(random)
    logs = noise(random)
    return pd.concat(
        [plant("A", logs[0] - 0.03, hours[0], protocol_id="quick"), plant("B", logs[1], hours[1])]
    )


def tiles(random: Random) -> pd.DataFrame:
    """Every value of nodes moves the ratio by 10%; the sides are equal on average over such
    values.
    """
    axes = {"model.nodes": 8, "model.layers": 4, "batch_size": 3}
    hours = mixed(random, 96, 1)
    logs = noise(random, 96, 1)
    logs[0] += np.repeat(random.normal(0, 0.1, 8), 12)[:, None]
    return both(logs, hours, axes)


def nothing(
    random: Random, families: int = 3, devices: int = 4, spread: float = 0.1
) -> pd.DataFrame:
    """A page of comparisons of equal sides whose points differ by `spread`."""
    parts = []
    for family in range(families):
        for device in range(devices):
            hours = mixed(random)
            logs = noise(random)
            logs[0] += random.normal(0, spread, (27, 1))
            where = {
                "family": f"fc{family}",
                "device": f"D{device}",
                "environment_id": f"e{device}",
            }
            for n, side in enumerate("AB"):
                one = plant(side, logs[n], hours[n], **where)
                parts.append(one.assign(run_id=one["run_id"] + f"d{device}"))
    return pd.concat(parts)


def all_won(missed: int, random: Random) -> pd.DataFrame:
    """144 points of which A wins nearly all by a wide margin, for every model."""
    axes = {"model.nodes": 16, "batch_size": 9}
    hours = mixed(random, 144, 1)
    logs = noise(random, 144, 1)
    ratio = np.exp(random.normal(0, 0.2, 144)) * 0.3
    ratio[:missed] = -0.1
    logs[0] += ratio[:, None]
    return both(logs, hours, axes)


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
    """The same with an equal weight of layers and batch size."""
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
    """The same with every run twice, or one run eleven times, under other ids."""
    runs = world(random).reset_index(drop=True)
    if whole:
        copies = [runs]
    else:
        copies = [runs.iloc[[int(random.integers(len(runs)))]]] * 10
    return pd.concat(
        [runs, *(one.assign(run_id=one["run_id"] + f"copy{n}") for n, one in enumerate(copies))]
    )


def grids(random: Random) -> pd.DataFrame:
    """Equal sides of which B has batch sizes twice as large; sizes differ by 50%."""
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
    """Equal sides: A on one day, the halves of B on two others; days differ by 5%."""
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
    logs[0] += 0.05 * (4 - size)[:, None] + random.normal(0, 0.03, (27, 1))
    found = both(logs, mixed(random))
    return without(found, (found["precision"] == "bfloat16") & (found["model.nodes"] > 2**10))


def scattered(random: Random) -> pd.DataFrame:
    """Sides whose points differ by 30% around a mean of 1; half of them are ahead."""
    logs = noise(random, 60, 3)
    logs[0] += random.normal(0, 0.3, (60, 1))
    return both(logs, mixed(random, 60, 3), {"model.nodes": 20, "batch_size": 3})


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


_PARAMS = ("model.", "batch_size", "precision", "mode", "platform.", "task", "learn.", "seed")


def planted_runs(frame: pd.DataFrame) -> Iterator[Planted]:
    """Return the rows of a frame as runs; NaN was not recorded."""
    for number, row in enumerate(frame.to_dict("records")):
        start = int(row.pop("start_time").timestamp() * 1000)
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
        metrics = {key: held.pop(key) for key in [*held] if key in METRICS}
        params = {key: held.pop(key) for key in [*held] if key.startswith(_PARAMS)}
        yield Planted(f"{number:032x}", start, params, held, metrics)


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
    """A store whose runs are replaced, and the output of commands on it; runs are read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"sqlite:///{path}"
        self.empty = path.read_bytes()
        self.frame = pd.DataFrame()
        self.said = dict[tuple[str, ...], str]()

    def plant(self, runs: pd.DataFrame) -> None:
        """Make these the only runs."""
        self.path.write_bytes(self.empty)
        fill(self.path, planted_runs(runs))
        self.frame, self.said = load_selection(Selection(store=(self.uri,))), {}

    def asked(self, words: tuple[str, ...]) -> str:
        """Return the sentences of a command, or the page of a report; the last argument of
        `claims` is its file.
        """
        if words not in self.said:
            self.said[words] = self._page(words) if words[0] == "report" else self._sentences(words)
        return self.said[words]

    def _sentences(self, words: tuple[str, ...]) -> str:
        if words[0] == "claims":
            file = self.path.with_name(f"{zlib.crc32(words[-1].encode())}.yaml")
            file.write_text(words[-1])
            words = (*words[:2], str(file))
        command, options, selection = parsed((*words, "--store", self.uri))
        assert command.analysis is not None
        return answer(command.analysis, self.frame, options, selection).text()

    def _page(self, words: tuple[str, ...]) -> str:
        page = self.path.with_name("report.html")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert analysis([*words, "--store", self.uri, "--out", str(page)]) == 0
        return re.sub(
            r"\s*<[^>]+>\s*", "\n", re.sub(r"(?s)<(script|style|svg).*?</\1>", "", page.read_text())
        )


class Question(NamedTuple):
    """A question to a store: the possible answers, as patterns or functions of the text, and the
    truth.
    """

    of: Callable[[Store], str]
    said: str | Callable[[str], bool]
    true: bool = False

    def hears(self, store: Store) -> bool:
        """Whether the answer is given."""
        text = self.of(store)
        if isinstance(self.said, str):
            return bool(re.search(self.said, text, re.MULTILINE))
        return self.said(text)


def command(*words: str) -> Callable[[Store], str]:
    """Return the function that runs a command."""
    return lambda store: store.asked(words)


def _headline(store: Store) -> str:
    """Return the first statement of sensitivity on a page."""
    options = SensitivityOptions(metric="examples_per_second", log_scale="both")
    return (sensitivity(store.frame, options).headline() or ("", ""))[1]


def beyond(pattern: str, silent: str = "", true: float = 1.0) -> Callable[[str], bool]:
    """Whether the interval after a pattern misses the truth and `silent` is not stated."""

    def misses(text: str) -> bool:
        found = re.search(pattern + r" \(([-+\d.]+)[^\d(]* to ([-+\d.]+)", text)
        assert found, text
        low, high = map(float, found.groups())
        return not (silent and silent in text) and not low <= true <= high

    return misses


_SIDES = "precision=bfloat16", "precision=float32"
_RATIO = r"geometric mean [\d.]+"
_SPEEDUP = command("speedup", "--a", _SIDES[0], "--b", _SIDES[1])
_MERIT = command("figure-of-merit", "--by", "precision", "--baseline", "float32")
_SOFTWARE = command("software", "--by", "precision", "--baseline", "float32")
_RATES = command("sensitivity", "--metric", "examples_per_second")
_PAGE = (
    r"It depends on|depends (most )?on |: (faster|slower)\.| is faster on |"
    r"What to change next\n+(?!\n|(\w+: )?(No other setting|Nothing but))"
)
#: Questions by their label in the table.
_COMPARE = command("compare", *_SIDES)
COMPARE = {"`compare`: a difference": Question(_COMPARE, r"^fc\d*: precision=\w+ faster")}
SAME = {"`compare`: the same": Question(_COMPARE, "^fc: the same within")}
CELLS = {"`compare`: any cell": Question(_COMPARE, r"is faster in (?!0, precision=float32 in 0,)")}
SOFTWARE = {"`software`: a difference": Question(_SOFTWARE, r": (faster|slower)\.")}
SPEEDUP = {"`speedup`: an interval without 1": Question(_SPEEDUP, beyond(_RATIO, "No verdict"))}
MERIT = {
    "`figure-of-merit`: an interval without 1": Question(
        _MERIT, beyond("times float32", "No interval of")
    )
}
DEPENDS = {"`sensitivity`: it depends on": Question(_RATES, "It depends on")}
MOST = {"`sensitivity`: depends most on": Question(_headline, "depends most on")}
BEATEN = {"`frontier`: any beaten": Question(command("frontier"), r"[1-9]\d* beaten")}
LEARNS = {
    "`time-to-accuracy`: one is faster": Question(
        command("time-to-accuracy"), "reaches the target .* as fast as"
    )
}
CHANNEL = {
    "`channel`: start-up misses it": Question(
        command("channel"), beyond(r"start-up [\d.]+ us", "of one session", 20)
    )
}
TIMES = {
    f"`software`: the {name} misses it": Question(_SOFTWARE, beyond(f"{name} [\\d.]+x"))
    for name in ("mean", "median")
}
HALF = {"`speedup`: the share misses it": Question(_SPEEDUP, beyond(r"points, [\d.]+%", true=50))}
TESTED = {"`compare`: most of the cells": Question(_COMPARE, r"is faster in (1[4-9]|2\d),")}
PAGE = {"`report`: any difference": Question(command("report"), _PAGE)}


def trend(of: str) -> dict[str, Question]:
    """Whether a claim that speed rises, or falls, with a hyperparameter is supported."""
    check = f"- {{id: a, says: b, checks: [{{kind: trend, metric: examples_per_second, of: {of}, direction: "
    asked = {way: command("claims", "--file", f"{check}{way}}}]}}") for way in ("rises", "falls")}
    return {
        f"claim: it {way} with {of}": Question(one, "^a. b: SUPPORTED")
        for way, one in asked.items()
    }


def claim(kind: str, bound: str, answer: str = "(SUPPORTED|REFUTED)") -> dict[str, Question]:
    """Whether a claim about both sides is decided, or has the given answer."""
    text = f"- {{id: a, says: b, checks: [{{kind: {kind}, a: {{precision: bfloat16}}, b: {{precision: float32}}, "
    asked = Question(command("claims", "--file", f"{text}{bound}}}]}}"), f"^a. b: {answer}")
    return {f"claim of a {'share' if kind == 'compare' else kind}": asked}


def so(questions: dict[str, Question]) -> dict[str, Question]:
    """Return questions about a true effect."""
    return {said: question._replace(true=True) for said, question in questions.items()}


_ANY = (
    COMPARE
    | SOFTWARE
    | SPEEDUP
    | MERIT
    | claim("ratio", "at_least: 1.0")
    | claim("compare", "at_least: 0.5")
)
_COVERED = {
    "`speedup`: the mean misses it": Question(_SPEEDUP, beyond(_RATIO, true=math.exp(0.08))),
    "`software`: the mean misses it": Question(
        _SOFTWARE, beyond(r"mean [\d.]+x", true=math.exp(0.08))
    ),
}
FITS = {"`speedup`: it depends on": Question(_SPEEDUP, "weights on log speedup")}
_SIDE = COMPARE | CELLS | SPEEDUP
_MOSTLY = so(claim("compare", "at_least: 0.9", "SUPPORTED"))
_FASTER = partial(one_sweep, true=0.08, spread=0.03)
#: Name: (description, world, possible answers).
WORLDS: dict[str, tuple[str, World, dict[str, Question]]] = {
    "sessions 5": ("three sessions a side, each +-5%: equal", partial(sessions, 0.05), _ANY),
    "hosts": (
        "each side on a separate host, +-8%: equal",
        hosts,
        COMPARE | SOFTWARE | SPEEDUP | MERIT,
    ),
    "late": ("5 of 27 points of a side later, 8% slower: equal", late, COMPARE | CELLS | SOFTWARE),
    "slow block": (
        "A B B A, the first 8% slower: equal",
        partial(blocks, lambda _: np.array([-0.08, 0, 0, 0])),
        COMPARE | CELLS | SOFTWARE,
    ),
    "blocks": (
        "A B B A, blocks +-4%: equal",
        partial(blocks, lambda random: random.normal(0, 0.04, 4)),
        COMPARE,
    ),
    "turns": (
        "A and B in 8 blocks in turn, blocks +-4%: equal",
        partial(blocks, lambda random: random.normal(0, 0.04, 8), order="ABABABAB"),
        COMPARE | CELLS,
    ),
    "memory": ("out of memory where A wins: mean 1", out_of_memory, COMPARE | SPEEDUP),
    "choices": ("six choices, each in a session of +-3%: equal", choices, BEATEN),
    "protocols": ("quick (3% off) against standard: equal", protocols, COMPARE | SOFTWARE),
    "tiles": ("every value of nodes +-10%: equal on average", tiles, COMPARE | SPEEDUP),
    "nothing": ("4 devices x 3 families: equal", nothing, SOFTWARE),
    "nothing small": (
        "2 devices x 1 family: equal",
        partial(nothing, families=1, devices=2),
        SOFTWARE,
    ),
    "page": (
        "2 devices x 1 family, no effect of anything",
        partial(nothing, families=1, devices=2, spread=0.0),
        PAGE,
    ),
    "seeds": ("two platforms, five seeds of +-10%, two settings: equal", seeds, LEARNS),
    "small": (
        "B 0.5% faster: the same within 5%",
        partial(one_sweep, true=-0.005),
        COMPARE | so(SAME),
    ),
    "all won": ("144 of 144 won: at least 0.9", partial(all_won, 0), _MOSTLY),
    "one lost": ("143 of 144 won: at least 0.9", partial(all_won, 1), _MOSTLY),
    "levels": ("values of nodes, layers, 5 batch sizes vary: no slope", levels, DEPENDS),
    "resumed": ("a sweep resumed, 8% off, sizes apart: no slope", resumed, DEPENDS),
    "even": ("two slopes of 1.3 a doubling: weights equal", even, MOST),
    "sloped": ("1.3 a doubling of 4 batch sizes: a slope", sloped, so(DEPENDS)),
    "unlike": (
        "A twice with 1% of noise, B seven times with 5%: equal",
        unlike,
        COMPARE | CELLS | SPEEDUP,
    ),
    "noisy": ("noise of 10, 3, 1% by batch size: equal", noisy, _SIDE),
    "twice": (
        "three sessions of +-4% a side, all imported twice: equal",
        partial(copied, partial(sessions, 0.04), True),
        _SIDE,
    ),
    "one copied": ("one run ten times more: equal", partial(copied, one_sweep, False), _SIDE),
    "grids": ("B's batch sizes twice as large, +-50% by size: equal", grids, _SIDE),
    "restarted": ("mixed in a sweep that was resumed on a day of 8% less: equal", restarted, _SIDE),
    "days": ("A on one day, halves of B on two, days +-5%: equal", days, _SIDE | FITS),
    "dropped": ("noise of 4%, a third of A's large runs out of memory: equal", dropped, _SIDE),
    "large": ("A slower the larger, the largest out of memory: mean 1", large, COMPARE | SPEEDUP),
    "in order": (
        "measured in the order of nodes, drift of 8%: no slope",
        in_order,
        DEPENDS | trend("model.nodes"),
    ),
    "corner": (
        "one run of the largest model ten times as slow: no slope",
        corner,
        DEPENDS | trend("model.nodes"),
    ),
    "resumed, claim": (
        "a sweep resumed, 8% off, sizes apart: no slope",
        resumed,
        trend("model.layers"),
    ),
    "levels, claim": (
        "values of nodes, layers, 5 batch sizes vary: no slope",
        levels,
        trend("model.nodes"),
    ),
    "scattered": ("points differ by 30%, half ahead: mean 1, share 50%", scattered, HALF | TIMES),
    "channel, one": ("a channel's one session 8% off: 20 us", partial(channel, 1), CHANNEL),
    "channel, three": ("a channel's three sessions 8% off: 20 us", partial(channel, 3), CHANNEL),
    "cells": ("A 5% faster, noise 2%", partial(one_sweep, true=0.05, size=0.02), so(TESTED)),
    "power": ("A 8% faster, one sweep", _FASTER, so(COMPARE | CELLS | SOFTWARE | SPEEDUP | MERIT)),
    "covered": ("A 8% faster, points +-3%: 1.083", _FASTER, _COVERED),
    "power, sessions": (
        "A 25% faster, three sessions of +-5%",
        partial(sessions, 0.05, true=0.22),
        so(COMPARE),
    ),
}


#: Equal sides mixed in one sweep. Name: (description, effect of the position 0 to 161 on a run).
_PLACES: dict[str, tuple[str, Callable[[Random, np.ndarray], np.ndarray | float]]] = {
    "stepped": ("8% slower from the middle of a sweep on", lambda _, place: -0.08 * (place > 80)),
    "warm-up": ("the first four runs of a sweep 30% slow", lambda _, place: -0.3 * (place < 4)),
    "throttled": (
        "12% slower after the first third of a sweep",
        lambda _, place: -0.12 * (place > 54),
    ),
    "neighbour": (
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
WORLDS |= {
    name: (f"{description}: equal", partial(in_time, effect), _SIDE)
    for name, (description, effect) in _PLACES.items()
}

_MOSTLY_HOSTS = "".join("hi"[(n // 2 % 4 == 0) ^ (n % 2)] for n in range(16))
#: Equal sides. Name: (description, side of each session, shifts, hosts, hours between sessions).
_ORDERS: dict[str, tuple[str, str, Callable[[Random], np.ndarray], str, float]] = {
    "mostly": (
        "eight sessions each, A mostly on one host, B on another, 8% apart",
        "AB" * 8,
        lambda random: (
            0.08 * np.array([host == "h" for host in _MOSTLY_HOSTS]) + random.normal(0, 0.005, 16)
        ),
        *(_MOSTLY_HOSTS, 4.0),
    ),
    "walk": (
        "sessions A A B B A A B B of a random walk of 3% each",
        *("AABBAABB", lambda random: np.cumsum(random.normal(0, 0.03, 8)), "", 4.0),
    ),
    "daily": (
        "A in five mornings, B in the evenings, 8% apart",
        *("AB" * 5, lambda random: np.tile([0, -0.08], 5) + random.normal(0, 0.005, 10), "", 12.0),
    ),
    "two users": (
        "sessions A A A B A B B B of +-1%, on a host 6% faster but for the first and third B",
        *(
            "AAABABBB",
            lambda random: 0.06 * (np.arange(8) % 4 != 3) + random.normal(0, 0.01, 8),
            "hhhihhhi",
            5.0,
        ),
    ),
    "replaced": (
        "sessions A B A A B A B B, the machine replaced by one 15% faster, same host",
        *(
            "ABAABABB",
            lambda random: 0.15 * (np.arange(8) > 3) + random.normal(0, 0.02, 8),
            "",
            5.0,
        ),
    ),
    "unequal": (
        "five sessions of A, two of B, +-4%",
        *("AABAABA", lambda random: random.normal(0, 0.04, 7), "", 5.0),
    ),
    "ageing": (
        "four sessions a side in turn, each 5% slower than the last",
        *("AB" * 4, lambda random: -0.05 * np.arange(8) + random.normal(0, 0.01, 8), "", 5.0),
    ),
    "swapped": (
        "A on hosts h and i, B on i and j, hosts +-6%",
        *(
            "AB" * 4,
            lambda random: random.normal(0, 0.06, 3)[[0, 1, 1, 2, 0, 1, 1, 2]],
            "hiijhiij",
            5.0,
        ),
    ),
}
WORLDS |= {
    name: (f"{description}: equal", partial(in_sessions, *how), _SIDE | SOFTWARE | MERIT)
    for name, (description, *how) in _ORDERS.items()
}


def ends_of(times: int, draws: int) -> Any:
    """Return the 95% interval of a rate."""
    return stats.binomtest(times, draws).proportion_ci(method="exact")


class Rate(NamedTuple):
    """How often an answer was given, and whether it is true."""

    planted: str
    said: str
    times: int
    draws: int
    true: bool

    def __str__(self) -> str:
        ends = ends_of(self.times, self.draws)
        rate = f"{self.times / self.draws:.0%} ({ends.low:.1%} to {ends.high:.1%})"
        return f"| {self.planted} | {self.said} | {rate} of {self.draws} |"


def rates(name: str, draws: int, database: Path, seed: int = 0, most: int = 0) -> Iterator[Rate]:
    """Return how often each answer is given for a world.

    `database` is a store that MLflow made, which is overwritten. A page takes seconds and is
    drawn a tenth as often. If a world has no true effect, it ends at 45 draws without a false
    answer: the upper end is then 7.9%. It continues from `draws` to `most` while an upper end is
    8% or more and its rate less.
    """
    planted, world, questions = WORLDS[name]
    draws = max(draws // 10, 1) if name == "page" else draws
    counts = dict.fromkeys(questions, 0)
    store = Store(database)
    drawn = 0
    false = [said for said, question in questions.items() if not question.true]
    for child in np.random.default_rng(seed).spawn(max(draws, most)):
        if drawn == 45 and len(false) == len(counts) and not any(counts.values()):
            break
        if drawn == draws and not any(
            counts[said] < 0.08 * drawn <= drawn * ends_of(counts[said], drawn).high
            for said in false
        ):
            break
        store.plant(world(child))
        for said, question in questions.items():
            counts[said] += question.hears(store)
        drawn += 1
    for said, count in counts.items():
        yield Rate(planted, said, count, drawn, questions[said].true)


def main() -> None:
    """Print a row per question of each world."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=list(WORLDS), metavar="WORLD")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlflow.db"
        MlflowClient(f"sqlite:///{path}").search_experiments()
        empty = path.read_bytes()
        for name in given.only:
            path.write_bytes(empty)
            for row in rates(name, given.draws, path, most=3 * given.draws):
                print(row, flush=True)


if __name__ == "__main__":
    main()
