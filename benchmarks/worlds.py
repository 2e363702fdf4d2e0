"""Planted worlds, asked as a user asks: how often a command says what is not so, and how often what is.

    python -m benchmarks.worlds [--draws 200] [--only hosts tiles]

Each world plants runs with NumPy and gives their frame to the commands themselves. The figures are those of the table
"Planted worlds" in docs/analysis.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.analyses.compare import CompareOptions, compare
from analysis.analyses.figure_of_merit import FigureOfMeritOptions, figure_of_merit
from analysis.analyses.frontier import FrontierOptions, frontier
from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.analyses.software import SoftwareOptions, software
from analysis.analyses.speedup import SpeedupOptions, SpeedupResult, speedup
from analysis.claims.evaluate import Data, judge
from analysis.claims.kinds import Answer
from analysis.claims.load import parse_claims

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


def together(sides: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The frame of both sides."""
    return pd.concat(sides, ignore_index=True)


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
        return together(sides)

    return draw


def one_sweep(true: float = 0.0, size: float = 0.01, replicates: int = 3, spread: float = 0.0) -> World:
    """Sides mixed at random in one sweep; single points differ by `spread`."""

    def draw(random: Random) -> pd.DataFrame:
        hours, logs = mixed(random, replicates=replicates), noise(random, replicates=replicates, size=size)
        logs[0] += true + random.normal(0, spread, (27, 1))
        return together([plant(side, logs[n], hours[n]) for n, side in enumerate("AB")])

    return draw


def hosts(random: Random) -> pd.DataFrame:
    """One sweep, each side on a host of its own, and hosts 8% apart."""
    hours, logs, shift = mixed(random), noise(random), random.normal(0, 0.08, 2)
    return together([plant(side, shift[n] + logs[n], hours[n], host=f"h{side}") for n, side in enumerate("AB")])


def late(random: Random) -> pd.DataFrame:
    """Five points of A measured in a later sweep on a machine that was 8% slower then."""
    hours, logs = mixed(random), noise(random)
    some = np.isin(np.arange(27), random.choice(27, 5, replace=False))
    logs[0][some] -= 0.08
    hours[0][some] += 5
    label = np.repeat(np.where(some, "t", "s"), 3)
    return together([plant("A", logs[0], hours[0], sweep_id=label), plant("B", logs[1], hours[1])])


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
        return together([plant(side, logs[n], hours[n]) for n, side in enumerate("AB")])

    return draw


def out_of_memory(random: Random) -> pd.DataFrame:
    """Equal on average, but A is out of memory in most points where it wins."""
    hours, logs = mixed(random), noise(random)
    ratio = random.normal(0, 0.3, (27, 1))
    logs[0] += ratio - ratio.mean()
    failed = np.repeat((ratio.ravel() > ratio.mean()) & (random.random(27) < 0.8), 3)
    a = plant("A", logs[0], hours[0], outcome=np.where(failed, "oom_device", "ok"))
    a.loc[failed, "examples_per_second"] = np.nan
    return together([a, plant("B", logs[1], hours[1])])


def choices(random: Random) -> pd.DataFrame:
    """Six equal batch sizes of inference, each in a session of its own that shifts it by 3%; four runs each."""
    parts = []
    for number in range(6):
        logs = random.normal(0, 0.03) + noise(random, 1, 4)[0]
        more = {"mode": "inference", "batch_size": 2**number, "sweep_id": f"s{number}", "platform.name": "gpu"}
        one = plant("A", logs, 10 * number + np.arange(4) / 60, {"model.nodes": 1}, **more)
        parts.append(one.assign(run_id=one["run_id"] + f"c{number}", latency_p50_ms=1e5 / one["examples_per_second"]))
    return together(parts)


def protocols(random: Random) -> pd.DataFrame:
    """A was timed by a short protocol that is 3% off."""
    hours, logs = mixed(random), noise(random)
    return together([plant("A", logs[0] - 0.03, hours[0], protocol_id="quick"), plant("B", logs[1], hours[1])])


def tiles(random: Random) -> pd.DataFrame:
    """Every value of nodes moves the ratio by 10%; on average of such values the sides are equal."""
    axes = {"model.nodes": 8, "model.layers": 4, "batch_size": 3}
    hours, logs = mixed(random, 96, 1), noise(random, 96, 1)
    logs[0] += np.repeat(random.normal(0, 0.1, 8), 12)[:, None]
    return together([plant(side, logs[n], hours[n], axes) for n, side in enumerate("AB")])


def nothing(families: int = 3, devices: int = 4) -> World:
    """A page of comparisons of equal sides."""

    def draw(random: Random) -> pd.DataFrame:
        parts = []
        for family in range(families):
            for device in range(devices):
                hours, logs = mixed(random), noise(random)
                logs[0] += random.normal(0, 0.1, (27, 1))
                where = {"family": f"fc{family}", "device": f"D{device}", "environment_id": f"e{device}"}
                for n, side in enumerate("AB"):
                    one = plant(side, logs[n], hours[n], **where)
                    parts.append(one.assign(run_id=one["run_id"] + f"d{device}"))
        return together(parts)

    return draw


def all_won(missed: int) -> World:
    """144 points of which A wins all but some, by far and whatever the model."""

    def draw(random: Random) -> pd.DataFrame:
        axes = {"model.nodes": 16, "batch_size": 9}
        hours, logs = mixed(random, 144, 1), noise(random, 144, 1)
        ratio = np.exp(random.normal(0, 0.2, 144)) * 0.3
        ratio[:missed] = -0.1
        logs[0] += ratio[:, None]
        return together([plant(side, logs[n], hours[n], axes) for n, side in enumerate("AB")])

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


def _compare(frame: pd.DataFrame) -> pd.DataFrame:
    return compare(frame, CompareOptions(a="precision=bfloat16", b="precision=float32", pool=True)).families


def family(frame: pd.DataFrame) -> str:
    """What compare says of the family."""
    return str(_compare(frame)["verdict"].iloc[0])


def differs(frame: pd.DataFrame) -> bool:
    """Whether compare finds a difference of a family."""
    return bool(_compare(frame)["verdict"].isin(["A better", "B better"]).any())


def any_cell(frame: pd.DataFrame) -> bool:
    """Whether compare finds a cell that differs."""
    found = _compare(frame)
    return bool((found["a_better"] + found["b_better"]).any())


def by_software(frame: pd.DataFrame) -> bool:
    """Whether software finds a difference."""
    text = software(frame, SoftwareOptions(by=("precision",), baseline="float32", pool=True)).text()
    return ": faster." in text or ": slower." in text


def misses(frame: pd.DataFrame) -> bool:
    """Whether speedup's interval of the mean does not hold 1."""
    options = SpeedupOptions(a=("precision=bfloat16",), b=("precision=float32",), pool=True)
    found = speedup(frame, options)
    assert isinstance(found, SpeedupResult)
    row = found.families.iloc[0]
    return bool(row["geometric_mean_low"] > 1 or row["geometric_mean_high"] < 1)


def merit(frame: pd.DataFrame) -> bool:
    """Whether the interval of a figure of merit does not hold 1, where it is not said to lack time's part."""
    result = figure_of_merit(frame, FigureOfMeritOptions(by="precision", baseline="float32", pool=True))
    row = result.table.iloc[1]
    silent = "No interval of" in result.text()
    return bool((row["merit_low"] > 1 or row["merit_high"] < 1) and not silent)


def beaten(frame: pd.DataFrame) -> bool:
    """Whether frontier calls a choice beaten."""
    return bool(frontier(frame, FrontierOptions()).table["standing"].eq("beaten").any())


def claim(kind: str, bound: str, wanted: Answer | None = None) -> Callable[[pd.DataFrame], bool]:
    """Whether a claim of both sides is decided, or has the answer that is wanted."""

    def ask(frame: pd.DataFrame) -> bool:
        text = f"- {{id: a, says: b, checks: [{{kind: {kind}, a: {{precision: bfloat16}}, b: {{precision: float32}}, "
        claims = parse_claims(f"{text}{bound}}}]}}", "worlds")
        answer = judge(claims, Data(frame, pool=True))[0].answer
        return answer is wanted if wanted is not None else answer is not Answer.NOT_ENOUGH

    return ask


def depends(frame: pd.DataFrame) -> bool:
    """Whether sensitivity says that the rate depends on anything."""
    found = sensitivity(frame, SensitivityOptions(metric="examples_per_second", pool=True))
    return "It depends on" in found.text()


def most(frame: pd.DataFrame) -> bool:
    """Whether sensitivity says what the rate depends on most."""
    found = sensitivity(frame, SensitivityOptions(metric="examples_per_second", log_scale="both", pool=True))
    return "depends most on" in (found.headline() or ("", ""))[1]


def _slow_first(random: Random) -> np.ndarray:
    return np.array([-0.08, 0, 0, 0])


#: name -> (what is planted, what is right, world, commands).
WORLDS: dict[str, tuple[str, str, World, dict[str, Callable[[pd.DataFrame], object]]]] = {
    "sessions": (
        "three sessions a side, each +-5%",
        "equal",
        sessions(0.05),
        {
            "software gives a verdict": by_software,
            "speedup's interval misses 1": misses,
            "compare gives a verdict": differs,
            "figure-of-merit misses 1": merit,
            "claim of a ratio decides": claim("ratio", "at_least: 1.0"),
            "claim of a share decides": claim("compare", "at_least: 0.5"),
        },
    ),
    "hosts": (
        "one sweep, each side on a host of its own, +-8%",
        "equal",
        hosts,
        {"compare": differs, "software": by_software, "figure-of-merit": merit},
    ),
    "late": (
        "5 of 27 points of a side later, 8% slower",
        "equal",
        late,
        {"family": differs, "any cell": any_cell, "software": by_software},
    ),
    "slow block": (
        "A B B A, the first block 8% slower",
        "equal",
        blocks(_slow_first),
        {"compare": differs, "any cell": any_cell, "software": by_software},
    ),
    "blocks": ("A B B A, blocks +-4%", "equal", blocks(lambda random: random.normal(0, 0.04, 4)), {"compare": differs}),
    "turns": (
        "A and B in 8 blocks in turn, blocks +-4%",
        "equal",
        blocks(lambda random: random.normal(0, 0.04, 8), "ABABABAB"),
        {"compare": differs, "any cell": any_cell},
    ),
    "memory": ("out of memory where A wins", "mean 1", out_of_memory, {"compare": differs, "speedup misses 1": misses}),
    "choices": ("six choices, each in a session of +-3%", "equal", choices, {"frontier, any beaten": beaten}),
    "protocols": ("quick (3% off) against standard", "equal", protocols, {"compare": differs, "software": by_software}),
    "tiles": ("every value of nodes +-10%", "equal on average", tiles, {"compare": differs, "speedup": misses}),
    "nothing": ("4 devices x 3 families", "equal", nothing(), {"software, any sentence": by_software}),
    "nothing small": ("2 devices x 1 family", "equal", nothing(1, 2), {"software, any sentence": by_software}),
    "small": (
        "B 0.5% faster",
        "the same within 5%",
        one_sweep(-0.005),
        {"compare: a difference": differs, "compare: the same": lambda frame: "same" in family(frame)},
    ),
    "all won": (
        "144 of 144 won",
        "at least 0.9",
        all_won(0),
        {"supported": claim("compare", "at_least: 0.9", Answer.SUPPORTED)},
    ),
    "one lost": (
        "143 of 144 won",
        "at least 0.9",
        all_won(1),
        {"supported": claim("compare", "at_least: 0.9", Answer.SUPPORTED)},
    ),
    "levels": ("values of nodes, layers, 5 batch sizes vary", "no slope", levels, {"depends on": depends}),
    "resumed": ("a sweep resumed, 8% off, sizes apart", "no slope", resumed, {"depends on": depends}),
    "even": ("two slopes of 1.3 a doubling", "weights equal", even, {"depends most on": most}),
    "sloped": ("1.3 a doubling of 4 batch sizes", "a slope", sloped, {"depends on": depends}),
    "power": ("A 8% faster, one sweep", "A faster", one_sweep(0.08, spread=0.03), {"found": differs}),
    "power, sessions": (
        "A 25% faster, three sessions of +-5%",
        "A faster",
        sessions(0.05, 3, 0.22),
        {"found": differs},
    ),
}


def rates(names: Sequence[str], draws: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """A row for each world and command: how often."""
    for name in names:
        planted, truth, world, commands = WORLDS[name]
        counts = dict.fromkeys(commands, 0)
        for child in np.random.default_rng(seed).spawn(draws):
            frame = world(child)
            for command, ask in commands.items():
                counts[command] += bool(ask(frame))
        for command, count in counts.items():
            yield {"world": name, "planted": planted, "truth": truth, "said": command, "rate": count / draws}


def main() -> None:
    """Print every rate, in per cent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=list(WORLDS))
    given = parser.parse_args()
    for row in rates(given.only, given.draws):
        print(f"| {row['planted']} | {row['truth']} | {row['said']} | {row['rate']:.0%} |", flush=True)


if __name__ == "__main__":
    main()
