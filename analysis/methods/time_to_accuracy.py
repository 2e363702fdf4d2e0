"""How long it takes to train to an accuracy: scores over seeds, epochs over batch sizes, platforms against each other.

A score is MLPerf Training's: the fastest and the slowest of the runs are left out, the rest averaged; a run that did
not reach its target is slower than any that did. Two runs or one are averaged as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

from analysis.methods.columns import hyperparameters
from analysis.methods.reference_points import Verdict, convergence, judge, prune
from analysis.prices import PRICE
from analysis.store.frame import families
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import Estimate
from paradnn.store.prices import COST_TO_TARGET

__all__ = ["PLATFORM", "PlatformRatio", "TimeToAccuracy", "olympic_mean", "time_to_accuracy"]

#: What makes a platform of two runs: the machine, and the software on it.
PLATFORM = ("device", "environment_id", "framework.name", "software.name")
_PREFIXES = ("optimizer.", "data.", "learn.", "platform.")
#: What is recorded with a setting and leaves its score as it is, or says again which machine it was.
_ASIDE = (PRICE, "learn.epochs_after", "platform.name", "platform.index")


@dataclass(frozen=True)
class PlatformRatio:
    """Two platforms over the settings that reached their target on both: geometric means of slower / faster.

    tested: settings of the faster one whose epochs were put to the test of reference points, which are the slower's;
    passed: those that passed, the others took fewer epochs than chance explains.
    """

    faster: str
    slower: str
    settings: int
    seconds: float
    epochs: float
    tested: int
    passed: int


@dataclass(frozen=True)
class TimeToAccuracy:
    """`scores` has a row for each setting on each platform: `family`, `platform`, `choice` (what varies besides the
    batch size, in words), `batch_size`, `runs`, `reached`, `seconds` with `seconds_low` and `seconds_high`, `epochs`,
    `examples_per_second`, `below` (runs that fell below the target later), `joules` where known, `cost` and what it is
    in, `currency`, where there are prices; `speedup` over the smallest batch size, and what reference points say of it,
    which are the other batch sizes of the same setting: `least_epochs` (the fewest that pass, NaN where nothing is
    tested) and `passes`.
    """

    scores: pd.DataFrame
    ratios: tuple[PlatformRatio, ...]
    run_ids: tuple[str, ...]


def olympic_mean(values: Sequence[float], grain: float = 0.0) -> Estimate:
    """The mean without the smallest and the largest value (of fewer than three: of all), and its 95% interval.

    Infinite values are runs that never ended: more than one of them leaves the mean infinite. The interval is Tukey
    and McLaughlin's for a trimmed mean (Sankhya A 25, 1963): the standard deviation is that of the winsorised values,
    s / ((1 - 2/n) sqrt(n)), with n - 3 degrees of freedom; NaN where none are left, so it takes four values, or two
    where none is dropped. It reaches no lower than 0, where no time does.

    `grain`: values are whole multiples of it, such as epochs. That some agree does not show that they do not scatter:
    the variance of rounding, grain^2 / 12 (Sheppard), is added.
    """
    ordered = sorted(values)
    count = len(ordered)
    dropped = 1 if count >= 3 else 0
    kept = ordered[dropped : count - dropped]
    mean = math.fsum(kept) / len(kept) if math.isfinite(kept[-1]) else math.inf
    degrees = len(kept) - 1
    if degrees < 1 or not math.isfinite(mean):
        return Estimate(mean, math.nan, math.nan)
    winsorised = [kept[0]] * dropped + kept + [kept[-1]] * dropped
    error = math.hypot(float(np.std(winsorised, ddof=1)), grain / math.sqrt(12)) / (
        (1 - 2 * dropped / count) * math.sqrt(count)
    )
    half = float(t.ppf(0.975, degrees)) * error
    return Estimate(mean, max(0.0, mean - half), mean + half)


def time_to_accuracy(frame: pd.DataFrame) -> TimeToAccuracy:
    """Score every setting of the runs that learn; a setting is all but seed and replicate.

    It costs what `platform.price_per_hour` says. Raises NotEnoughData where no run learns.
    """
    learns = frame["best_accuracy"].notna() if "best_accuracy" in frame else pd.Series(False, index=frame.index)
    runs = _without_interrupted(frame[learns]).copy()
    if runs.empty:
        raise NotEnoughData("no run trains to an accuracy; measure one: python -m paradnn.train task=learn")
    for name in ("seconds_to_target", "epochs_to_target", "examples_to_target", "epochs_below_target"):
        if name not in runs:
            runs[name] = math.nan
    named = [name for name in runs.columns if str(name).startswith(_PREFIXES) and name not in _ASIDE]
    keys = [name for name in (*PLATFORM, "family", *hyperparameters(runs), *named) if name in runs]
    keys = list(dict.fromkeys(keys))
    choices = [name for name in keys if name not in (*PLATFORM, "batch_size", "family")]
    words = {family: _telling(rows, choices) for family, rows in runs.groupby("family")}
    places = [name for name in PLATFORM if name in runs]
    shown = [name for name in places if name != "environment_id" and runs[name].nunique(dropna=False) > 1]
    rows = []
    for _, group in runs.groupby(keys, dropna=False, sort=False):
        first = group.iloc[0]
        platform = ", ".join(str(first[name]) for name in dict.fromkeys(["device", *shown]) if name in runs)
        told = [name for name in words[first["family"]] if pd.notna(first[name])]
        choice = ", ".join(f"{_word(name)}={first[name]}" for name in told)
        row = {"family": first["family"], "platform": platform, "choice": choice, **_score(group)}
        rows.append(row | {"batch_size": first.get("batch_size"), "_place": tuple(map(str, first[places]))})
    scores = pd.DataFrame(rows)
    order = {name: place for place, name in enumerate(families(scores))}
    scores = scores.sort_values(
        ["family", "platform", "choice", "batch_size"],
        key=lambda column: column.map(order) if column.name == "family" else column,
        ignore_index=True,
    )
    scores = _with_speedups(scores)
    return TimeToAccuracy(scores.drop(columns=["_place", "_epochs"]), _ratios(scores), tuple(runs["run_id"]))


def _without_interrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs`, in the order of their starts, without those that were cut short and measured again since.

    The later run went on from the checkpoint of the earlier one, so that both are one training.
    """
    if not {"point_id", "epochs", "learn.epochs"} <= set(runs):
        return runs
    identity = [name for name in ("point_id", "environment_id", "replicate") if name in runs]
    whole = runs["epochs"].ge(runs["learn.epochs"].astype("float64")) | runs["outcome"].isin(("ok", "nan"))
    return runs[whole | ~runs.duplicated(identity, keep="last")]


def _telling(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Those of `names` that tell settings apart which the others do not: an optimizer's name, not what it implies."""
    kept: list[str] = []
    count = 1
    for name in sorted(names, key=lambda name: not name.endswith(".name")):
        more = len(rows[[*kept, name]].drop_duplicates())
        if more > count:
            kept.append(name)
            count = more
    return [name for name in names if name in kept]


def _word(name: str) -> str:
    """A column as it is said: data for data.name, nodes for model.nodes."""
    group, _, key = name.rpartition(".")
    return group if key == "name" else key


def _score(group: pd.DataFrame) -> dict[str, Any]:
    seconds = group["seconds_to_target"].fillna(math.inf)
    reached = group[np.isfinite(seconds)]
    each = group["epochs_to_target"].fillna(math.inf).tolist()
    # The target is looked for after whole epochs.
    grain = 1.0 if all(not math.isfinite(one) or float(one).is_integer() for one in each) else 0.0
    lasts = float((reached["seconds_to_target"] / reached["epochs_to_target"]).median()) if len(reached) else 0.0
    score = olympic_mean(seconds.tolist(), grain * lasts if math.isfinite(lasts) else 0.0)
    epochs = olympic_mean(each, grain)
    rates = reached["examples_to_target"] / reached["seconds_to_target"]
    found: dict[str, Any] = {
        "_epochs": tuple(each),
        "runs": len(group),
        "reached": len(reached),
        "seconds": score.value,
        "seconds_low": score.low,
        "seconds_high": score.high,
        "epochs": epochs.value,
        "epochs_low": epochs.low,
        "epochs_high": epochs.high,
        "examples_per_second": float(rates.median()) if len(rates) else math.nan,
        "best_accuracy": float(group["best_accuracy"].median()),
        "below": int((reached["epochs_below_target"] > 0).sum()),
    }
    if "energy_to_target_joules" in group and group["energy_to_target_joules"].notna().any():
        found["joules"] = olympic_mean(group["energy_to_target_joules"].fillna(math.inf).tolist()).value
    return found | _cost(group, score.value)


def _cost(group: pd.DataFrame, seconds: float) -> dict[str, Any]:
    """What so many seconds cost, and in what currency; nothing where no run has a price."""
    paid = group[group[PRICE].notna()] if PRICE in group else group.head(0)
    if paid.empty:
        return {}
    first = paid.iloc[0]
    currency = first.get("price_currency")
    return {
        "cost": COST_TO_TARGET.value(float(first[PRICE]), seconds),
        "currency": "" if pd.isna(currency) else str(currency),
    }


def _with_speedups(scores: pd.DataFrame) -> pd.DataFrame:
    """`scores` with each batch size's speedup over the smallest, and whether its epochs pass beside those around it."""
    found = scores.assign(speedup=math.nan, least_epochs=math.nan, passes=True)
    for _, rows in scores.groupby(["family", "_place", "choice"], sort=False):
        whole = rows[np.isfinite(rows["seconds"]) & rows["batch_size"].notna()].sort_values("batch_size")
        if whole.empty:
            continue
        found.loc[whole.index, "speedup"] = whole["seconds"].iloc[0] / whole["seconds"]
        for place in whole.index[1:]:
            verdict = _tested(whole.drop(index=place), whole.loc[place])
            if verdict.basis == "interpolated":  # of the largest nothing is known beyond it
                found.loc[place, "least_epochs"] = verdict.least
                found.loc[place, "passes"] = verdict.passes
    return found


def _tested(reference: pd.DataFrame, row: pd.Series) -> Verdict:
    """The test of reference points, which are rows of scores, for another row."""
    points = [convergence(float(one["batch_size"]), one["_epochs"]) for _, one in reference.iterrows()]
    finite = [point for point in points if math.isfinite(point.mean)]
    return judge(prune(finite) if finite else [], float(row["batch_size"]), row["_epochs"])


def _ratios(scores: pd.DataFrame) -> tuple[PlatformRatio, ...]:
    """Each pair of platforms over the settings that both have."""
    whole = scores[np.isfinite(scores["seconds"])]
    found = []
    sides = dict(iter(whole.groupby("_place")))
    for one, other in itertools.combinations(sides, 2):
        both = sides[one].merge(sides[other], on=["family", "choice", "batch_size"], suffixes=("_a", "_b"))
        if both.empty:
            continue
        seconds, epochs = (float(np.exp(np.log(both[f"{n}_b"] / both[f"{n}_a"]).mean())) for n in ("seconds", "epochs"))
        names = both["platform_a"].iloc[0], both["platform_b"].iloc[0]
        if seconds < 1:
            names, seconds, epochs = (names[1], names[0]), 1 / seconds, 1 / epochs
            one, other = other, one
        tests = _comparisons(sides[other], sides[one])
        found.append(PlatformRatio(*names, len(both), seconds, epochs, len(tests), sum(test.passes for test in tests)))
    return tuple(found)


def _comparisons(reference: pd.DataFrame, rows: pd.DataFrame) -> list[Verdict]:
    """The tests of all rows that have a batch size and reference points of the same setting to be tested with."""
    settings = dict(iter(reference[reference["batch_size"].notna()].groupby(["family", "choice"])))
    tests = [
        _tested(settings[key], row)
        for _, row in rows[rows["batch_size"].notna()].iterrows()
        if (key := (row["family"], row["choice"])) in settings
    ]
    return [test for test in tests if math.isfinite(test.least)]
