"""Attacks on the analysis' verdicts: what is planted, how often a verdict is false, how often an interval covers.

    python -m benchmarks.verdicts [--draws 1000] [--only sessions coverage]

Every attack plants two sides or a population with NumPy, gives them to the analysis as runs, and counts. The figures
are those of docs/analysis.md, section "Verdicts under attack".
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from scipy import stats

from analysis.analyses.boxplot import box_statistics
from analysis.analyses.breakdown import measure_shares
from analysis.analyses.compare import compare_points
from analysis.analyses.infeed import InfeedOptions, input_waits
from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.analyses.speedup import pair_points
from analysis.roofs import place_models
from analysis.roofs import summary as under_roof
from analysis.statistics.contrast import Contrast, Verdict, adjusted
from analysis.statistics.dependence import Unit, crossed_mean, crossed_quantile, crossed_share, levels_of
from analysis.statistics.regression import regress

_POINTS = 27
_DIFFERENT = (Verdict.A_BETTER, Verdict.B_BETTER)


def side(name: str, logs: np.ndarray, hours: np.ndarray, session: np.ndarray | str, **columns: object) -> pd.DataFrame:
    """Runs of one side: `logs` (points, replicates) of the speed, measured at `hours` in a session."""
    points, replicates = logs.shape
    number = np.repeat(np.arange(points), replicates)
    frame = {
        "run_id": [f"{name}{place}" for place in range(logs.size)],
        "family": "fc",
        "device": name,
        "outcome": "ok",
        "model.nodes": number % 9,
        "batch_size": 64 * (1 + number // 9),
        "sweep_id": session if isinstance(session, str) else session.ravel(),
        "start_time": pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(3600 * hours.ravel(), unit="s"),
        "examples_per_second": 100 * np.exp(logs.ravel()),
    }
    return pd.DataFrame(frame | columns)


def sides_in_sessions(
    random: np.random.Generator, sessions: int, replicates: int, effect: float, noise: float, shared: bool, true: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two sides `true` apart, each in so many sessions that shift all of their runs; in the same ones if `shared`."""
    found = []
    shifts = random.normal(0, effect, (2, sessions))
    for number, name in enumerate("AB"):
        which = np.tile(np.arange(replicates) % sessions, (_POINTS, 1))
        shift = shifts[0 if shared else number][which]
        logs = true * (number == 0) + shift + random.normal(0, noise, (_POINTS, replicates))
        hours = 3 * (2 * which + (0 if shared else number)) + random.permutation(which.size).reshape(which.shape) / 100
        label = np.char.add("s" if shared else name, which.astype(str))
        found.append(side(name, logs, hours, label))
    return found[0], found[1]


def drifting(random: np.random.Generator, drift: float, noise: float, mixed: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Equal sides in one sweep on a machine that drifts: in random order, or B after A."""
    count = 2 * _POINTS * 3
    order = random.permutation(count) if mixed else np.arange(count)
    logs = drift * order / count + random.normal(0, noise, count)
    halves = logs.reshape(2, _POINTS, 3), (order / 60).reshape(2, _POINTS, 3)
    return side("A", halves[0][0], halves[1][0], "s"), side("B", halves[0][1], halves[1][1], "s")


def rates(make: Callable[[], tuple[pd.DataFrame, pd.DataFrame]], draws: int) -> str:
    """How often a family is called different, a cell is, and no verdict is given."""
    family = cells = withheld = some = 0.0
    for _ in range(draws):
        found = compare_points(*make())
        verdict = found.families["verdict"].iloc[0]
        family += verdict in _DIFFERENT
        withheld += verdict == Verdict.WITHHELD
        different = found.cells["verdict"].isin(_DIFFERENT)
        cells += different.mean()
        some += different.any()
    return (
        f"family different {family / draws:.1%}, cells different {cells / draws:.2%}, "
        f"any cell {some / draws:.1%}, no verdict {withheld / draws:.1%}"
    )


def session_attacks(random: np.random.Generator, draws: int) -> Iterator[str]:
    """Equal sides, and sides that differ, under sessions and drift."""
    for title, sessions, shared, true in (
        ("equal, one session a side (effect 1%, noise 1%)", 1, False, 0.0),
        ("equal, three sessions a side in turn", 3, False, 0.0),
        ("equal, five sessions a side in turn", 5, False, 0.0),
        ("equal, one session for both", 1, True, 0.0),
        ("equal, three sessions for both", 3, True, 0.0),
        ("A 5% faster, one session a side", 1, False, 0.05),
        ("A 5% faster, three sessions a side in turn", 3, False, 0.05),
        ("A 5% faster, one session for both", 1, True, 0.05),
    ):
        replicates = max(sessions, 3)
        planted = functools.partial(sides_in_sessions, random, sessions, replicates, 0.01, 0.01, shared, true)
        yield f"{title}: {rates(planted, draws)}"
    yield f"equal, drift of 4%, B after A: {rates(lambda: drifting(random, 0.04, 0.01, False), draws)}"
    yield f"equal, drift of 4%, mixed: {rates(lambda: drifting(random, 0.04, 0.01, True), draws)}"


def clear_points(random: np.random.Generator, draws: int, processes: int, true: float) -> str:
    """Points of one run a side: of one process, whose interval is a tenth of the spread between such, or of several,
    whose interval is Student's over them. Which of these do not hold 1?"""
    clear = 0
    for _ in range(draws):
        sides = []
        for name in "AB":
            inside = true * (name == "A") + random.normal(0, 0.03, (_POINTS, processes))
            half = 0.005
            if processes > 1:
                reach = stats.t.ppf(0.975, processes - 1) / np.sqrt(processes)
                half = reach * inside.std(axis=1, ddof=1)
            hours = random.permutation(_POINTS)[:, None] / 60
            one = side(name, inside.mean(axis=1)[:, None], hours, "s", processes=processes)
            for end, sign in (("low", -1), ("high", 1)):
                one[f"examples_per_second_{end}"] = one["examples_per_second"] * np.exp(sign * half)
            sides.append(one)
        pairs = pair_points(*sides).pairs
        known = pairs[pairs["interval_source"].isin(["replicates", "processes"])]
        clear += int(((known["speedup_low"] > 1) | (known["speedup_high"] < 1)).sum())
    return f"points of {processes} processes each, {true:.0%} apart, called clear: {clear / draws / _POINTS:.1%}"


def process_attacks(random: np.random.Generator, draws: int) -> Iterator[str]:
    """What is called clear of points of one process, and of several."""
    yield from (clear_points(random, draws, *how) for how in ((1, 0.0), (5, 0.0), (5, 0.07)))


def coverage(random: np.random.Generator, draws: int) -> Iterator[str]:
    """Models drawn with all their batch sizes, and both drawn: how often the intervals hold the truth."""
    for models, batches, unit in (
        (12, 9, "model"),
        (12, 9, "crossed"),
        (23, 9, "crossed"),
        (6, 9, "crossed"),
        (40, 6, "crossed"),
        (23, 9, "holes"),
    ):
        index = pd.MultiIndex.from_product([range(models), range(batches)], names=["model.nodes", "batch_size"])
        grid = index.to_frame(index=False)
        fixed, drawn = np.linspace(-1.2, 1.2, batches), unit != "model"
        many = 0.5 + random.normal(0, np.hypot(0.9, 0.6), 400_000)
        many += random.normal(0, 0.8, 400_000) if drawn else random.choice(fixed, 400_000)
        truth, hits = (0.5, float((many > 0).mean()), float(np.median(many))), np.zeros(3)
        for _ in range(draws):
            there = random.random(len(grid)) > (0.4 if unit == "holes" else 0.0)
            where = levels_of(grid[there], "crossed" if drawn else "model")
            batch = random.normal(0, 0.8, batches) if drawn else fixed
            values = 0.5 + random.normal(0, 0.9, (models, 1)) + batch + random.normal(0, 0.6, (models, batches))
            flat = values.ravel()[there]
            found = (crossed_mean(flat, where), crossed_share(flat > 0, where), crossed_quantile(flat, where))
            hits += [one.low <= true <= one.high for one, true in zip(found, truth, strict=True)]
        mean, share, median = hits / draws
        told = f"mean {mean:.1%}, share {share:.1%}, median {median:.1%}"
        yield f"{models} models at {batches} batch sizes ({unit}): {told}"


def shared_effects(random: np.random.Generator, models: int = 23, batches: int = 9) -> pd.DataFrame:
    """Models measured at all batch sizes. What is planted of a point has a normal effect of its model (0.9), of its
    batch size (0.8) and of its own (0.6) about 0.5; its size is that of its model, and its nodes have no effect."""
    of_model, nodes = random.normal(0, 0.9, models), random.normal(size=models)
    model, batch = np.repeat(np.arange(models), batches), np.tile(np.arange(batches), models)
    planted = 0.5 + of_model[model] + random.normal(0, 0.8, batches)[batch] + random.normal(0, 0.6, models * batches)
    share = 1 / (1 + np.exp(-planted))
    return pd.DataFrame(
        {
            "run_id": np.arange(models * batches).astype(str),
            "point_id": np.arange(models * batches),
            "family": "fc",
            "device": "D",
            "precision": "float32",
            "outcome": "ok",
            "model.nodes": np.exp(nodes[model]),
            "batch_size": 64 * 2**batch,
            "parameters": np.exp(of_model[model]),
            "examples_per_second": np.exp(planted),
            "infeed_fraction": share,
            "op_share.fusion": share,
            "arithmetic_intensity": np.exp(-planted),
            "flops_per_second": share * np.minimum(1, np.exp(-planted)),
            "peak_flops_per_second": 1.0,
            "peak_bytes_per_second": 1.0,
        }
    )


def found_under(frame: pd.DataFrame, unit: Unit) -> dict[str, tuple[float, float, float]]:
    """What the analyses say of `shared_effects`: (truth, low, high) by what it is of."""
    from scipy import stats

    whole = np.sqrt(0.9**2 + 0.8**2 + 0.6**2)
    share, middle = float(stats.norm.cdf(0.5 / whole)), 1 / (1 + np.exp(-0.5))
    box = box_statistics(frame, "examples_per_second", ["family"], unit=unit).iloc[0]
    part = measure_shares(frame, unit)[0].iloc[0]
    roof = under_roof(place_models(frame, lambda _: None).points, unit).iloc[0]
    waits = input_waits(frame, InfeedOptions(against="parameters", threshold=0.5, unit=unit))[0][0]
    both = SensitivityOptions(metric="examples_per_second", log_scale="both", unit=unit)
    weights = sensitivity(frame, both).table.set_index("term")
    of_nodes, of_batches = (weights.loc[name] for name in ("model.nodes", "batch_size"))
    return {
        "sensitivity, weight of nodes": (0.0, of_nodes["low"], of_nodes["high"]),
        "sensitivity, weight of batch size": (0.0, of_batches["low"], of_batches["high"]),
        "boxplot, median": (np.exp(0.5), box["median_low"], box["median_high"]),
        "roofline, median share of the roof": (middle, roof["median_low"], roof["median_high"]),
        "breakdown, median share": (middle, part["low"], part["high"]),
        "infeed, share of points": (share, *waits.share[1:]),
        "infeed, median wait": (middle, *waits.median[1:]),
    }


def analyses(random: np.random.Generator, draws: int) -> Iterator[str]:
    """How often the intervals of the single analyses hold the truth where points share models and batch sizes."""
    hits: dict[str, dict[str, int]] = {}
    units: tuple[Unit, ...] = ("point", "crossed")
    for _ in range(draws):
        frame = shared_effects(random)
        for unit in units:
            for name, (true, low, high) in found_under(frame, unit).items():
                hits.setdefault(name, dict.fromkeys(units, 0))[unit] += int(low <= true <= high)
    for name, count in hits.items():
        told = f"{count['point'] / draws:.1%} by points alone, {count['crossed'] / draws:.1%} by models and batch sizes"
        yield f"23 models at 9 batch sizes, {name}: {told}"


def selection(random: np.random.Generator, draws: int) -> Iterator[str]:
    """B is as fast as A, but where it is faster it is out of memory in most points: does the bound hold 50%?"""
    held, shown = 0, 0.0
    for _ in range(draws):
        ratio = random.normal(0, 0.3, 200)
        hours = random.permutation(200).reshape(-1, 1) / 60
        a = side("A", ratio[:, None], hours, "s", **{"model.nodes": np.arange(200)})
        b = side("B", np.zeros((200, 1)), hours, "s", **{"model.nodes": np.arange(200)})
        b["outcome"] = np.where((ratio < 0) & (random.random(200) < 0.63), "oom_device", "ok")
        pairs = pair_points(a, b).pairs
        values = pairs["speedup"].to_numpy()
        found = Contrast.of(pairs, "fc").bounds()
        least, most = found["share_least"], found["share_most"]
        truth = float((ratio > 0).mean())
        held += least <= truth <= most
        shown += float((values < 1).mean())
    told = f"B ahead in {shown / draws:.1%} of the pairs, bounds hold the truth in {held / draws:.1%}"
    yield f"B out of memory where it is faster: {told}"


def noise_terms(random: np.random.Generator, draws: int, terms: int = 15, points: int = 120) -> Iterator[str]:
    """Regressions on terms of pure noise: how often any of them is said to matter."""
    alone = together = 0
    for _ in range(draws):
        design = pd.DataFrame(random.normal(size=(points, terms)), columns=[f"x{n}" for n in range(terms)])
        found = regress(design, random.normal(size=points)).weights["p"].to_numpy()
        alone += bool((found <= 0.05).any())
        together += bool((adjusted(found) <= 0.05).any())
    told = f"{alone / draws:.1%} by single tests, {together / draws:.1%} as told"
    yield f"{terms} terms of noise: something matters in {told}"


ATTACKS: dict[str, Callable[[np.random.Generator, int], Iterator[str]]] = {
    "sessions": session_attacks,
    "processes": process_attacks,
    "coverage": coverage,
    "analyses": analyses,
    "selection": selection,
    "terms": noise_terms,
}


def main() -> None:
    """Print every figure, or those of some attacks; each begins with a seed of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    given = parser.parse_args()
    for name in given.only:
        for line in ATTACKS[name](np.random.default_rng(0), given.draws):
            print(line, flush=True)


if __name__ == "__main__":
    main()
