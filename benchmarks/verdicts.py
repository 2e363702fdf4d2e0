"""Attacks on the analysis' verdicts: what is planted, how often a verdict is false, how often an interval covers.

    python -m benchmarks.verdicts [--draws 1000]

Every attack plants two sides or a population with NumPy, gives them to the analysis as runs, and counts. The figures
are those of docs/analysis.md, section "Verdicts under attack".
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from analysis.methods.compare import Verdict, compare
from analysis.methods.dependence import crossed_mean, crossed_quantile, crossed_share, levels_of
from analysis.methods.pairing import sampling
from analysis.methods.regression import regress
from analysis.methods.sensitivity import adjusted
from analysis.methods.speedup import bounds, speedup

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
        found = compare(*make())
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


def single_processes(random: np.random.Generator, draws: int) -> str:
    """Equal sides of one process a point, whose interval within it is a tenth of the spread between processes."""
    clear = 0
    for _ in range(draws):
        sides = []
        for name in "AB":
            logs = random.normal(0, 0.03, (_POINTS, 1))
            hours = random.permutation(_POINTS)[:, None] / 60
            one = side(name, logs, hours, "s", processes=1)
            for end, factor in (("low", 0.995), ("high", 1.005)):
                one[f"examples_per_second_{end}"] = factor * one["examples_per_second"]
            sides.append(one)
        row = speedup(*sides).summary.iloc[0]
        clear += row["clear_wins"] + row["clear_losses"]
    return f"equal points of single processes called clear: {clear / draws / _POINTS:.1%}"


def several_processes(random: np.random.Generator, draws: int, true: float) -> str:
    """Points of one run of five processes each, whose interval is Student's over them."""
    from scipy import stats

    clear = 0
    for _ in range(draws):
        sides = []
        for name in "AB":
            inside = true * (name == "A") + random.normal(0, 0.03, (_POINTS, 5))
            half = stats.t.ppf(0.975, 4) * inside.std(axis=1, ddof=1) / np.sqrt(5)
            one = side(name, inside.mean(axis=1)[:, None], random.permutation(_POINTS)[:, None] / 60, "s", processes=5)
            for end, sign in (("low", -1), ("high", 1)):
                one[f"examples_per_second_{end}"] = one["examples_per_second"] * np.exp(sign * half)
            sides.append(one)
        row = speedup(*sides).summary.iloc[0]
        clear += row["clear_wins"] + row["clear_losses"]
    return f"points of five processes each, {true:.0%} apart, called clear: {clear / draws / _POINTS:.1%}"


def process_attacks(random: np.random.Generator, draws: int) -> Iterator[str]:
    """What is called clear of points of one process, and of several."""
    yield single_processes(random, draws)
    yield several_processes(random, draws, 0.0)
    yield several_processes(random, draws, 0.07)


def coverage(random: np.random.Generator, draws: int) -> Iterator[str]:
    """Models drawn with all their batch sizes, and both drawn: how often the intervals hold the truth."""
    for models, batches, unit in ((12, 9, "model"), (12, 9, "crossed"), (23, 9, "crossed"), (6, 1, "crossed")):
        index = pd.MultiIndex.from_product([range(models), range(batches)], names=["model.nodes", "batch_size"])
        where = levels_of(index.to_frame(index=False), unit)  # type: ignore[arg-type]
        fixed = np.linspace(-1.2, 1.2, batches) if batches > 1 else np.zeros(1)
        of_batches = batches > 1 and unit == "crossed"
        many = 0.5 + random.normal(0, np.hypot(0.9, 0.6), 400_000)
        many += random.normal(0, 0.8, 400_000) if of_batches else random.choice(fixed, 400_000)
        truth, hits = (0.5, float((many > 0).mean()), float(np.median(many))), np.zeros(3)
        for _ in range(draws):
            batch = random.normal(0, 0.8, batches) if of_batches else fixed
            values = 0.5 + random.normal(0, 0.9, (models, 1)) + batch + random.normal(0, 0.6, (models, batches))
            flat = values.ravel()
            found = (crossed_mean(flat, where), crossed_share(flat > 0, where), crossed_quantile(flat, where))
            hits += [one.low <= true <= one.high for one, true in zip(found, truth, strict=True)]
        mean, share, median = hits / draws
        told = f"mean {mean:.1%}, share {share:.1%}, median {median:.1%}"
        yield f"{models} models at {batches} batch sizes, over {where.words}: {told}"


def selection(random: np.random.Generator, draws: int) -> str:
    """B is as fast as A, but where it is faster it is out of memory in most points: does the bound hold 50%?"""
    held, shown = 0, 0.0
    for _ in range(draws):
        ratio = random.normal(0, 0.3, 200)
        hours = random.permutation(200).reshape(-1, 1) / 60
        a = side("A", ratio[:, None], hours, "s", **{"model.nodes": np.arange(200)})
        b = side("B", np.zeros((200, 1)), hours, "s", **{"model.nodes": np.arange(200)})
        b["outcome"] = np.where((ratio < 0) & (random.random(200) < 0.63), "oom_device", "ok")
        pairs = speedup(a, b).pairs
        values = pairs["speedup"].to_numpy()
        least, most = bounds(values, sampling(pairs, "fc").missing).share
        truth = float((ratio > 0).mean())
        held += least <= truth <= most
        shown += float((values < 1).mean())
    told = f"B ahead in {shown / draws:.1%} of the pairs, bounds hold the truth in {held / draws:.1%}"
    return f"B out of memory where it is faster: {told}"


def noise_terms(random: np.random.Generator, draws: int, terms: int = 15, points: int = 120) -> str:
    """Regressions on terms of pure noise: how often any of them is said to matter."""
    alone = together = 0
    for _ in range(draws):
        design = pd.DataFrame(random.normal(size=(points, terms)), columns=[f"x{n}" for n in range(terms)])
        found = regress(design, random.normal(size=points)).weights["p"].to_numpy()
        alone += bool((found <= 0.05).any())
        together += bool((adjusted(found) <= 0.05).any())
    told = f"{alone / draws:.1%} by single tests, {together / draws:.1%} as told"
    return f"{terms} terms of noise: something matters in {told}"


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    draws, random = parser.parse_args().draws, np.random.default_rng(0)
    for lines in (session_attacks(random, draws), process_attacks(random, draws), coverage(random, draws)):
        for line in lines:
            print(line, flush=True)
    print(selection(random, draws), flush=True)
    print(noise_terms(random, draws))


if __name__ == "__main__":
    main()
