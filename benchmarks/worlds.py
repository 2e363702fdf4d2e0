"""Planted worlds, asked as a user asks: how often a command says what is not so, and how often what is.

    PARADNN_DRAWS=200 python -m pytest -m long -s tests/analysis/test_worlds.py     [-k hosts]

Each world plants runs with NumPy, writes them into a SQLite store as runs, and reads what the commands print of it. A
rate comes with its 95% interval (Clopper and Pearson). The figures are those of "Planted worlds" in docs/analysis.md.
"""

from __future__ import annotations

import io
import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.cli import main as analysis
from analysis.store.load import load
from paradnn.store.metrics import METRICS

Random = np.random.Generator
World = Callable[[Random], pd.DataFrame]
_START = pd.Timestamp("2026-01-01", tz="UTC")
_GRID = {"model.nodes": 9, "batch_size": 3}  # 27 points


def plant(
    side: str, logs: np.ndarray, hours: np.ndarray, axes: dict[str, int] | None = None, **columns: object
) -> pd.DataFrame:
    """Runs of a side: `logs` (points, replicates) of the speed at `hours`; the points are the grid of `axes`."""
    index = pd.MultiIndex.from_product([range(count) for count in (axes or _GRID).values()], names=list(axes or _GRID))
    points = 2 ** (5 + index.to_frame(index=False))
    frame = points.loc[points.index.repeat(logs.shape[1])].reset_index(drop=True)
    name = f"{side}{columns.get('family', 'fc')}"
    fixed = {
        "run_id": [f"{name}{n}" for n in range(logs.size)],
        "point_id": np.repeat([f"{name}{n}" for n in range(len(logs))], logs.shape[1]),
        "family": "fc",
        "device": "D",
        "precision": {"A": "bfloat16", "B": "float32"}[side],
        "outcome": "ok",
        "environment_id": "e",
        "protocol_id": "p",
        "schema_version": "1",
        "sweep_id": "s",
        "host": "h",
        "start_time": _START + pd.to_timedelta(3600 * np.ravel(hours), unit="s"),
        "examples_per_second": 100 * np.exp(logs.ravel()),
    }
    return frame.assign(**(fixed | columns))


def mixed(random: Random, points: int = 27, replicates: int = 3) -> np.ndarray:
    """Hours of two sides (2, points, replicates) in one random order."""
    return random.permutation(2 * points * replicates).reshape(2, points, replicates) / 60


def noise(random: Random, points: int = 27, replicates: int = 3, size: float = 0.01) -> np.ndarray:
    """What single runs scatter, (2, points, replicates)."""
    return random.normal(0, size, (2, points, replicates))


def sessions(effect: float, count: int = 3, true: float = 0.0) -> World:
    """Sides in so many sessions each, in turn, which shift them; single points differ by 3% as well."""

    def draw(random: Random) -> pd.DataFrame:
        base, of_point = noise(random, replicates=count), random.normal(0, 0.03, (27, 1))
        sides = []
        for number, side in enumerate("AB"):
            logs = base[number] + random.normal(0, effect, count) + (number == 0) * (true + of_point)
            hours = 10.0 * (2 * np.arange(count) + number) + np.arange(27)[:, None] / 60
            label = np.tile([f"{side}{n}" for n in range(count)], 27)
            sides.append(plant(side, logs, hours, sweep_id=label))
        return pd.concat(sides)

    return draw


def one_sweep(true: float = 0.0, size: float = 0.01, replicates: int = 3, spread: float = 0.0) -> World:
    """Sides mixed at random in one sweep; single points differ by `spread`."""

    def draw(random: Random) -> pd.DataFrame:
        hours, logs = mixed(random, replicates=replicates), noise(random, replicates=replicates, size=size)
        logs[0] += true + random.normal(0, spread, (27, 1))
        return pd.concat([plant(side, logs[n], hours[n]) for n, side in enumerate("AB")])

    return draw


def hosts(random: Random) -> pd.DataFrame:
    """One sweep, each side on a host of its own, and hosts 8% apart."""
    hours, logs, shift = mixed(random), noise(random), random.normal(0, 0.08, 2)
    return pd.concat([plant(side, shift[n] + logs[n], hours[n], host=f"h{side}") for n, side in enumerate("AB")])


def late(random: Random) -> pd.DataFrame:
    """Five points of A measured in a later sweep on a machine that was 8% slower then."""
    hours, logs = mixed(random), noise(random)
    some = np.isin(np.arange(27), random.choice(27, 5, replace=False))
    logs[0][some] -= 0.08
    hours[0][some] += 5
    label = np.repeat(np.where(some, "t", "s"), 3)
    return pd.concat([plant("A", logs[0], hours[0], sweep_id=label), plant("B", logs[1], hours[1])])


def blocks(shifts: Callable[[Random], np.ndarray], order: str = "ABBA") -> World:
    """One sweep in blocks: each measures all points of a side once, under a shift of its own."""

    def draw(random: Random) -> pd.DataFrame:
        per_side = len(order) // 2
        logs, hours, shift, seen = noise(random, 27, per_side), np.zeros((2, 27, per_side)), shifts(random), [0, 0]
        for place, side in enumerate(order):
            number = "AB".index(side)
            logs[number, :, seen[number]] += shift[place]
            hours[number, :, seen[number]] = place + np.arange(27) / 60
            seen[number] += 1
        return pd.concat([plant(side, logs[n], hours[n]) for n, side in enumerate("AB")])

    return draw


def out_of_memory(random: Random) -> pd.DataFrame:
    """Equal on average, but A is out of memory in most points where it wins."""
    hours, logs = mixed(random), noise(random)
    ratio = random.normal(0, 0.3, (27, 1))
    logs[0] += ratio - ratio.mean()
    failed = np.repeat((ratio.ravel() > ratio.mean()) & (random.random(27) < 0.8), 3)
    a = plant("A", logs[0], hours[0], outcome=np.where(failed, "oom_device", "ok"))
    a.loc[failed, "examples_per_second"] = np.nan
    return pd.concat([a, plant("B", logs[1], hours[1])])


def choices(random: Random) -> pd.DataFrame:
    """Six equal batch sizes of inference, each in a session of its own that shifts it by 3%; four runs each."""
    parts = []
    for number in range(6):
        logs = random.normal(0, 0.03) + noise(random, 1, 4)[0]
        more = {"mode": "inference", "batch_size": 2**number, "sweep_id": f"s{number}", "platform.name": "gpu"}
        one = plant("A", logs, 10 * number + np.arange(4) / 60, {"model.nodes": 1}, **more)
        parts.append(one.assign(run_id=one["run_id"] + f"c{number}", latency_p50_ms=1e5 / one["examples_per_second"]))
    return pd.concat(parts)


def protocols(random: Random) -> pd.DataFrame:
    """A was timed by a short protocol that is 3% off."""
    hours, logs = mixed(random), noise(random)
    return pd.concat([plant("A", logs[0] - 0.03, hours[0], protocol_id="quick"), plant("B", logs[1], hours[1])])


def tiles(random: Random) -> pd.DataFrame:
    """Every value of nodes moves the ratio by 10%; on average of such values the sides are equal."""
    axes = {"model.nodes": 8, "model.layers": 4, "batch_size": 3}
    hours, logs = mixed(random, 96, 1), noise(random, 96, 1)
    logs[0] += np.repeat(random.normal(0, 0.1, 8), 12)[:, None]
    return pd.concat([plant(side, logs[n], hours[n], axes) for n, side in enumerate("AB")])


def nothing(families: int = 3, devices: int = 4, spread: float = 0.1) -> World:
    """A page of comparisons of equal sides, whose single points differ by `spread`."""

    def draw(random: Random) -> pd.DataFrame:
        parts = []
        for family in range(families):
            for device in range(devices):
                hours, logs = mixed(random), noise(random)
                logs[0] += random.normal(0, spread, (27, 1))
                where = {"family": f"fc{family}", "device": f"D{device}", "environment_id": f"e{device}"}
                for n, side in enumerate("AB"):
                    one = plant(side, logs[n], hours[n], **where)
                    parts.append(one.assign(run_id=one["run_id"] + f"d{device}"))
        return pd.concat(parts)

    return draw


def all_won(missed: int) -> World:
    """144 points of which A wins all but some, by far and whatever the model."""

    def draw(random: Random) -> pd.DataFrame:
        axes = {"model.nodes": 16, "batch_size": 9}
        hours, logs = mixed(random, 144, 1), noise(random, 144, 1)
        ratio = np.exp(random.normal(0, 0.2, 144)) * 0.3
        ratio[:missed] = -0.1
        logs[0] += ratio[:, None]
        return pd.concat([plant(side, logs[n], hours[n], axes) for n, side in enumerate("AB")])

    return draw


def levels(random: Random, count: int = 8, batches: int = 5) -> pd.DataFrame:
    """One device: every value of nodes, layers and batch size has its own 20%, none a slope."""
    axes = {"model.nodes": count, "model.layers": 4, "batch_size": batches}
    effects = np.meshgrid(*(random.normal(0, 0.2, n) for n in axes.values()), indexing="ij")
    logs = sum(effects).reshape(-1, 1) + random.normal(0, 0.02, (effects[0].size, 1))
    return plant("B", logs, random.permutation(logs.size) / 60, axes)


def resumed(random: Random) -> pd.DataFrame:
    """One device: the larger half of layers measured when the sweep went on, on a machine 8% off by then."""
    axes = {"model.nodes": 5, "model.layers": 6, "batch_size": 4}
    later = np.tile(np.repeat(np.arange(6) >= 3, 4), 5)
    logs = random.normal(0, 0.03, (120, 1)) + 0.08 * random.choice([-1, 1]) * later[:, None]
    hours = random.permutation(120) / 60 + 10 * later
    return plant("B", logs, hours, axes, session_id=np.where(later, "two", "one"))


def sloped(random: Random) -> pd.DataFrame:
    """One device: a doubling of the batch size, of which there are four, is a factor of 1.3; nothing else matters."""
    axes = {"model.nodes": 5, "model.layers": 4, "batch_size": 4}
    logs = np.tile(math.log(1.3) * np.arange(4), 20) + random.normal(0, 0.03, 80)
    return plant("B", logs[:, None], random.permutation(80) / 60, axes)


def even(random: Random) -> pd.DataFrame:
    """The same where layers weigh as much as the batch size."""
    frame = sloped(random)
    return frame.assign(examples_per_second=frame["examples_per_second"] * frame["model.layers"] ** math.log2(1.3))


def seeds(random: Random) -> pd.DataFrame:
    """Two platforms that learn equally fast at both batch sizes, five seeds of +-10% each."""
    sides = []
    for place, side in enumerate("AB"):
        logs, hours = random.normal(0, 0.1, (2, 5)), 5 * place + np.arange(10).reshape(2, 5) / 60
        one = plant(side, logs, hours, {"batch_size": 2}, device=side, environment_id=side, precision="float32")
        epochs, steps = {"epochs_to_target": 5.0, "epochs_below_target": 0.0}, {"examples_to_target": 1e4}
        learned = {"seed": np.tile(range(5), 2), "task": "learn", "learn.target": 0.97, "best_accuracy": 0.98}
        sides.append(one.assign(**learned, **epochs, **steps, seconds_to_target=1e4 / one["examples_per_second"]))
    return pd.concat(sides)


_PARAMS = ("model.", "batch_size", "precision", "mode", "platform.", "task", "learn.", "seed")


def write(frame: pd.DataFrame, path: Path) -> None:
    """The runs of a frame as the only runs of a SQLite store."""
    tables: dict[str, list[tuple[object, ...]]] = {name: [] for name in ("params", "tags", "latest_metrics")}
    runs = []
    for number, row in enumerate(frame.to_dict("records")):
        name, start = f"{number:032x}", int(row.pop("start_time").timestamp() * 1000)
        runs.append((name, row.pop("run_id"), start, start + 1000))
        held = {"model.name": row.pop("family"), "kind": "point", "source": "measured", "steady": "true", **row}
        for key, value in ((str(key), value) for key, value in held.items() if value == value):
            if key in METRICS:
                tables["latest_metrics"].append((name, key, float(value), start, 0, False))
            else:
                tables["params" if key.startswith(_PARAMS) else "tags"].append((name, key, str(value)))
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("PRAGMA synchronous=OFF")
        for table in (*tables, "runs"):
            store.execute(f"DELETE FROM {table}")
        store.execute(
            "INSERT OR IGNORE INTO experiments (experiment_id, name, artifact_location, lifecycle_stage) "
            "VALUES (7, 'paradnn', '/nowhere', 'active')"
        )
        store.executemany(
            "INSERT INTO runs (run_uuid, name, start_time, end_time, status, lifecycle_stage, artifact_uri, "
            "experiment_id) VALUES (?, ?, ?, ?, 'FINISHED', 'active', '', 7)",
            runs,
        )
        for table in ("params", "tags"):
            store.executemany(f"INSERT INTO {table} (run_uuid, key, value) VALUES (?, ?, ?)", tables[table])
        columns = "(run_uuid, key, value, timestamp, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
        store.executemany(f"INSERT INTO latest_metrics {columns}", tables["latest_metrics"])


def ask(store: Path, command: Sequence[str]) -> str:
    """What a command says of a store: what it prints, or the page that a report writes. The last word of `claims` is
    the text of its file."""
    words, page = [*command, "--store", f"sqlite:///{store}"], store.with_name("report.html")
    if command[0] == "claims":
        file = store.with_name("claims.yaml")
        file.write_text(command[-1])
        words[2] = str(file)
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = analysis([*words, "--out", str(page)] if command[0] == "report" else words)
    if code:
        raise RuntimeError(f"{command[0]}: {out.getvalue()}")
    if command[0] != "report":
        return out.getvalue()
    return re.sub(r"\s*<[^>]+>\s*", "\n", re.sub(r"(?s)<(script|style|svg).*?</\1>", "", page.read_text()))


def _headline(store: Path) -> str:
    """What sensitivity says first, on a page."""
    options = SensitivityOptions(metric="examples_per_second", log_scale="both")
    return (sensitivity(load(f"sqlite:///{store}"), options).headline() or ("", ""))[1]


class Question(NamedTuple):
    """What is asked of a store, what may be said then, as a pattern or what finds it in the text, and whether it is
    so."""

    of: Callable[[Path], str]
    said: str | Callable[[str], bool]
    true: bool = False

    def hears(self, store: Path) -> bool:
        """Whether it is said."""
        text = self.of(store)
        return bool(re.search(self.said, text, re.MULTILINE)) if isinstance(self.said, str) else self.said(text)


def command(*words: str) -> Callable[[Path], str]:
    """What asks a command."""
    return lambda store: ask(store, words)


def beyond(pattern: str, silent: str) -> Callable[[str], bool]:
    """Whether an interval in the words does not hold 1, and it is not said that it cannot."""

    def misses(text: str) -> bool:
        found = re.search(pattern + r" \(([\d.]+) to ([\d.]+)\)", text)
        assert found, text
        low, high = map(float, found.groups())
        return silent not in text and not low <= 1 <= high

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
#: What is said, as a table shows it -> what is asked.
COMPARE = {"`compare`: a difference": Question(command("compare", *_SIDES), r"^fc\d*: precision=\w+ faster")}
SAME = {"`compare`: the same": Question(command("compare", *_SIDES), "^fc: the same within")}
CELLS = {"`compare`: any cell": Question(command("compare", *_SIDES), r"is faster in (?!0, precision=float32 in 0,)")}
SOFTWARE = {"`software`: a difference": Question(_SOFTWARE, r": (faster|slower)\.")}
SPEEDUP = {"`speedup`: an interval without 1": Question(_SPEEDUP, beyond(_RATIO, "No verdict"))}
MERIT = {"`figure-of-merit`: an interval without 1": Question(_MERIT, beyond("times float32", "No interval of"))}
DEPENDS = {"`sensitivity`: it depends on": Question(_RATES, "It depends on")}
MOST = {"`sensitivity`: depends most on": Question(_headline, "depends most on")}
BEATEN = {"`frontier`: any beaten": Question(command("frontier"), r"[1-9]\d* beaten")}
LEARNS = {
    "`time-to-accuracy`: one is faster": Question(command("time-to-accuracy"), "reaches the target .* as fast as")
}
PAGE = {"`report`: any difference": Question(command("report"), _PAGE)}


def claim(kind: str, bound: str, answer: str = "(SUPPORTED|REFUTED)") -> dict[str, Question]:
    """Whether a claim of both sides is decided, or has the answer that is wanted."""
    text = f"- {{id: a, says: b, checks: [{{kind: {kind}, a: {{precision: bfloat16}}, b: {{precision: float32}}, "
    asked = Question(command("claims", "--file", f"{text}{bound}}}]}}"), f"^a. b: {answer}")
    return {f"claim of a {'share' if kind == 'compare' else kind}": asked}


def so(questions: dict[str, Question]) -> dict[str, Question]:
    """Questions of what is there."""
    return {said: question._replace(true=True) for said, question in questions.items()}


_ANY = COMPARE | SOFTWARE | SPEEDUP | MERIT | claim("ratio", "at_least: 1.0") | claim("compare", "at_least: 0.5")
_MOSTLY = so(claim("compare", "at_least: 0.9", "SUPPORTED"))
_SLOW = np.array([-0.08, 0, 0, 0])
#: name -> (what is planted, world, what may be said).
WORLDS: dict[str, tuple[str, World, dict[str, Question]]] = {
    "sessions 5": ("three sessions a side, each +-5%: equal", sessions(0.05), _ANY),
    "sessions 8": ("three sessions a side, each +-8%: equal", sessions(0.08), _ANY),
    "hosts": ("each side on a host of its own, +-8%: equal", hosts, COMPARE | SOFTWARE | SPEEDUP | MERIT),
    "late": ("5 of 27 points of a side later, 8% slower: equal", late, COMPARE | CELLS | SOFTWARE),
    "slow block": ("A B B A, the first 8% slower: equal", blocks(lambda _: _SLOW), COMPARE | CELLS | SOFTWARE),
    "blocks": ("A B B A, blocks +-4%: equal", blocks(lambda random: random.normal(0, 0.04, 4)), COMPARE),
    "turns": (
        "A and B in 8 blocks in turn, blocks +-4%: equal",
        blocks(lambda random: random.normal(0, 0.04, 8), "ABABABAB"),
        COMPARE | CELLS,
    ),
    "memory": ("out of memory where A wins: mean 1", out_of_memory, COMPARE | SPEEDUP),
    "choices": ("six choices, each in a session of +-3%: equal", choices, BEATEN),
    "protocols": ("quick (3% off) against standard: equal", protocols, COMPARE | SOFTWARE),
    "tiles": ("every value of nodes +-10%: equal on average", tiles, COMPARE | SPEEDUP),
    "nothing": ("4 devices x 3 families: equal", nothing(), SOFTWARE),
    "nothing small": ("2 devices x 1 family: equal", nothing(1, 2), SOFTWARE),
    "page": ("2 devices x 1 family, no effect of anything", nothing(1, 2, 0.0), PAGE),
    "seeds": ("two platforms, five seeds of +-10%, two settings: equal", seeds, LEARNS),
    "small": ("B 0.5% faster: the same within 5%", one_sweep(-0.005), COMPARE | so(SAME)),
    "all won": ("144 of 144 won: at least 0.9", all_won(0), _MOSTLY),
    "one lost": ("143 of 144 won: at least 0.9", all_won(1), _MOSTLY),
    "levels": ("values of nodes, layers, 5 batch sizes vary: no slope", levels, DEPENDS),
    "resumed": ("a sweep resumed, 8% off, sizes apart: no slope", resumed, DEPENDS),
    "even": ("two slopes of 1.3 a doubling: weights equal", even, MOST),
    "sloped": ("1.3 a doubling of 4 batch sizes: a slope", sloped, so(DEPENDS)),
    "power": ("A 8% faster, one sweep", one_sweep(0.08, spread=0.03), so(COMPARE | CELLS | SOFTWARE | SPEEDUP | MERIT)),
    "power, sessions": ("A 25% faster, three sessions of +-5%", sessions(0.05, 3, 0.22), so(COMPARE)),
}


class Rate(NamedTuple):
    """How often something was said in so many draws, and whether it is so."""

    planted: str
    said: str
    times: int
    draws: int
    true: bool

    def __str__(self) -> str:
        ends = stats.binomtest(self.times, self.draws).proportion_ci(method="exact")
        rate = f"{self.times / self.draws:.0%} ({ends.low:.1%} to {ends.high:.1%})"
        return f"| {self.planted} | {self.said} | {rate} |"


def rates(name: str, draws: int, database: Path, seed: int = 0) -> Iterator[Rate]:
    """How often each thing is said of a world. `database` is a store that MLflow made, which is overwritten; a page
    takes seconds and is drawn a tenth as often."""
    planted, world, questions = WORLDS[name]
    draws = max(draws // 10, 1) if name == "page" else draws
    counts = dict.fromkeys(questions, 0)
    for child in np.random.default_rng(seed).spawn(draws):
        write(world(child), database)
        for said, question in questions.items():
            counts[said] += question.hears(database)
    for said, count in counts.items():
        yield Rate(planted, said, count, draws, questions[said].true)
