"""`time-to-accuracy`: how long training to an accuracy takes, over seeds, batch sizes and
platforms.

A score is MLPerf Training's: the fastest and the slowest of the runs are left out, the rest
averaged; a run that did not reach its target is slower than any that did. Two runs or one are
averaged as they are. Platforms are set against each other over the settings that both have; --price
adds what it costs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.choices import PLATFORM, words_of
from analysis.columns import hyperparameters
from analysis.format import short
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options
from analysis.prices import PRICE, price_option, priced, read_prices
from analysis.registry import analysis
from analysis.result import Paragraph, Result
from analysis.store.frame import families
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted
from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.sessions import ALLOWANCE, arrange
from paradnn.store.metrics import COST_TO_TARGET

_PREFIXES = ("optimizer.", "data.", "learn.", "platform.")
#: What is recorded with a setting and leaves its score as it is, or says again which machine it
#: was.
_ASIDE = (PRICE, "learn.epochs_after", "platform.name", "platform.index")
_TARGETS = ("seconds_to_target", "epochs_to_target", "examples_to_target", "epochs_below_target")
_SERIES = ["family", "platform", "choice"]


@dataclass(frozen=True, kw_only=True)
class TimeToAccuracyOptions(Options):
    """What an hour costs."""

    price: tuple[str, ...] = price_option("adds the cost to the target")


def _draw(scores: pd.DataFrame) -> drawing.Figure:
    """Left the score over the batch size, right the epochs to the target; bars are 95% intervals
    over seeds.
    """
    drawn, panels = drawing.panels(2, 5.5, 4.4, across=2)
    series = {
        ", ".join(filter(None, map(str, key))): rows
        for key, rows in scores.groupby(_SERIES, sort=False)
    }
    batches = sorted({int(size) for size in scores["batch_size"].dropna()})
    for axes, name in zip(panels, ("seconds", "epochs"), strict=True):
        for label, rows in series.items():
            held = rows[np.isfinite(rows[name]) & rows["batch_size"].notna()]
            # An interval of few seeds may reach below what a logarithmic axis has.
            ends = (np.maximum(held[f"{name}_low"], 0.1 * held[name]), held[f"{name}_high"])
            how = drawing.look(label, list(series)) | {
                "linestyle": "-",
                "linewidth": 1.4,
                "label": label,
            }
            drawing.marks(
                axes, held["batch_size"].astype("float64"), held[name], y_ends=ends, **how
            )
        axes.set_xscale("log")
        if name == "seconds":
            title = "Time to the target"
        else:
            title = "Epochs to the target"
        drawing.finish(axes, title, "batch size", name, logs={"y": drawing.plain})
        axes.set_xticks(batches, [str(size) for size in batches])
        axes.set_xticks([], minor=True)
    drawing.legend(drawn)
    return drawn


@analysis(
    TimeToAccuracyOptions,
    summary="time, epochs and cost to an accuracy, over seeds, batch sizes and platforms",
    example="python -m analysis time-to-accuracy --family fc --figure accuracy.png",
)
def time_to_accuracy(frame: pd.DataFrame, options: TimeToAccuracyOptions) -> Result:
    """Score every setting of the runs that learn, a row for each on each platform; a setting is all
    but seed and replicate.

    Columns: family, platform, choice, batch_size, runs, reached, seconds and epochs with _low and
    _high, examples_per_second, below (runs that fell below the target later), is_upper_bound (all
    runs reached the target in their first epoch), joules, cost and currency where known, and speedup over the smallest batch size. NotEnoughData where no run
    trains to an accuracy.
    """
    frame = priced(frame, read_prices(options.price, frame))
    if "best_accuracy" in frame:
        learns = frame["best_accuracy"].notna()
    else:
        learns = pd.Series(False, index=frame.index)
    runs = _without_interrupted(frame[learns])
    if runs.empty:
        raise NotEnoughData(
            "no run trains to an accuracy; measure one: python -m paradnn.train task=learn"
        )
    lacking = {name: math.nan for name in (*_TARGETS, "batch_size") if name not in runs}
    runs = runs.assign(**lacking)
    runs["batch_size"] = pd.to_numeric(runs["batch_size"], errors="coerce")
    scores = _scores(runs)
    drawable = (np.isfinite(scores["seconds"]) & scores["batch_size"].notna()).any()
    return Result(
        numbers=scores.drop(columns="_place"),
        sentences=[
            *(_describe(*series) for series in scores.groupby(["family", "platform"], sort=False)),
            *_ratios(scores, runs),
            "A score is the mean over seeds without the fastest and the slowest (of fewer than three: of all); a run "
            "that did not reach its target is the slowest. Intervals are 95%, over seeds.",
        ],
        picture=(lambda: _draw(scores)) if drawable else None,
        sources=tuple(runs["run_id"]),
    )


def _scores(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting on each platform, with `_place`, which tells platforms apart."""
    named = [
        name for name in runs.columns if str(name).startswith(_PREFIXES) and name not in _ASIDE
    ]
    keys = [
        name
        for name in dict.fromkeys((*PLATFORM, "family", *hyperparameters(runs), *named))
        if name in runs
    ]
    choices = [name for name in keys if name not in (*PLATFORM, "batch_size", "family")]
    words = {family: _telling(rows, choices) for family, rows in runs.groupby("family")}
    places = [name for name in PLATFORM if name in runs]
    shown = [
        name for name in places if name != "environment_id" and runs[name].nunique(dropna=False) > 1
    ]
    rows = []
    for _, group in runs.groupby(keys, dropna=False, sort=False):
        first = group.iloc[0]
        platform = ", ".join(
            str(first[name]) for name in dict.fromkeys(["device", *shown]) if name in runs
        )
        if words[first["family"]]:
            choice = words_of(first, words[first["family"]])
        else:
            choice = ""
        row = {"family": first["family"], "platform": platform, "choice": choice, **_scored(group)}
        rows.append(
            row | {"batch_size": first.get("batch_size"), "_place": tuple(map(str, first[places]))}
        )
    scores = pd.DataFrame(rows)
    order = {name: place for place, name in enumerate(families(scores))}
    scores = scores.sort_values(
        [*_SERIES, "batch_size"],
        key=lambda column: column.map(order) if column.name == "family" else column,
        ignore_index=True,
    )
    # Of each setting beside its smallest batch size that has a score.
    whole = scores[np.isfinite(scores["seconds"]) & scores["batch_size"].notna()].sort_values(
        "batch_size"
    )
    smallest = whole.groupby(["family", "_place", "choice"])["seconds"].transform("first")
    return scores.assign(speedup=smallest / whole["seconds"])


def _describe(of: Sequence[Hashable], rows: pd.DataFrame) -> Paragraph:
    reached = rows[np.isfinite(rows["seconds"])]
    runs = counted(int(rows["runs"].sum()), "run")
    head = (
        f"{' on '.join(map(str, of))}: {runs} of {counted(len(rows), 'setting')}; none has a score."
    )
    if len(reached):
        best = reached.loc[reached["seconds"].idxmin()]
        head = head.replace(
            "none has a score", f"fastest to the target {_setting(best)}, in {_score(best)}"
        )
    points = [f"{_setting(row)}: {_score(row)}" for _, row in rows.iterrows()]
    below = int(rows["below"].sum())
    if below:
        points.append(f"{counted(below, 'run')} fell below the target after reaching it.")
    return Paragraph(head, tuple(points))


def _setting(row: pd.Series) -> str:
    if pd.notna(row["batch_size"]):
        batch = f"batch size {row['batch_size']:g}"
    else:
        batch = ""
    return ", ".join(filter(None, [batch, str(row["choice"])])) or "as it is"


def _score(row: pd.Series) -> str:
    """Seconds with their interval, epochs, cost; or how many did not get there."""
    if not np.isfinite(row["seconds"]):
        return f"no score, {row['reached']} of {row['runs']} reached it; best {row['best_accuracy']:.4f} in the median"
    if np.isfinite(row["seconds_low"]):
        interval = f" ({row['seconds_low']:.4g} to {row['seconds_high']:.4g})"
    else:
        interval = ""
    if row["is_upper_bound"]:
        text = f"at most {row['seconds']:.4g} s{interval}, reached in the first epoch"
    else:
        epochs = f"{row['epochs']:.3g} epoch{'' if row['epochs'] == 1 else 's'}"
        text = f"{row['seconds']:.4g} s{interval}, {epochs}"
    if row["speedup"] == row["speedup"] and row["speedup"] != 1:
        text += f", {row['speedup']:.3g}x as fast as the smallest batch size"
    if row["reached"] < row["runs"]:
        text += f", {row['reached']} of {row['runs']} reached it"
    if row.get("cost", math.nan) == row.get("cost"):
        text += f", cost {short(row['cost'], row['currency'], digits=3)}"
    if math.isfinite(row.get("joules", math.nan)):
        text += f", {short(row['joules'], 'J')}"
    return text


def olympic_mean(values: Sequence[float], grain: float = 0.0) -> Estimate:
    """The mean without the smallest and the largest value (of fewer than three: of all), and its
    95% interval.

    Infinite values are runs that never ended. The interval reaches as many sample standard
    deviations (in which such a run counts as the slowest that ended) to either side as hold the
    mean of 95% of normal samples (`_reach`), but not below 0; NaN below four values, and where none
    is left. `grain`: values are whole multiples of it, such as epochs, and the variance of
    rounding, grain^2 / 12 (Sheppard), is added.
    """
    ordered = np.sort(np.asarray(values, dtype="float64"))
    count = len(ordered)
    lost = int(np.isinf(ordered).sum())
    cut = 1.5 / count if count > 2 else 0.0  # one of each end
    mean = float(stats.trim_mean(ordered, cut))
    if count in (1, 3) or not math.isfinite(mean):
        return Estimate(mean, math.nan, math.nan)
    ordered[count - lost :] = ordered[count - lost - 1]
    half = _reach(count, lost, cut) * math.hypot(float(ordered.std(ddof=1)), grain / math.sqrt(12))
    return Estimate(mean, max(0.0, mean - half), mean + half)


@functools.cache
def _reach(count: int, lost: int, cut: float) -> float:
    """How many standard deviations of so many normal values, of which the `lost` largest are not
    known, their trimmed mean is off in 5%: simulated, since Student's t (Tukey and McLaughlin,
    Sankhya A 25, 1963) of four holds in 91%.
    """
    ordered = np.sort(np.random.default_rng(0).normal(size=(1_000_000 // count, count)), axis=1)
    ordered[:, count - lost :] = ordered[:, [count - lost - 1]]
    return float(
        np.quantile(
            np.abs(stats.trim_mean(ordered, cut, axis=1)) / ordered.std(axis=1, ddof=1), LEVEL
        )
    )


def _without_interrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs`, in the order of their starts, without those that were cut short and measured again
    since.

    The later run went on from the checkpoint of the earlier one, so that both are one training.
    """
    if not {"point_id", "epochs", "learn.epochs"} <= set(runs):
        return runs
    identity = [name for name in ("point_id", "environment_id", "replicate") if name in runs]
    whole = runs["epochs"].ge(runs["learn.epochs"].astype("float64")) | runs["outcome"].isin(
        ("ok", "nan")
    )
    return runs[whole | ~runs.duplicated(identity, keep="last")]


def _telling(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Those of `names` that tell settings apart which the others do not: an optimizer's name, not
    what it implies.
    """
    kept: list[str] = []
    for name in sorted(names, key=lambda name: not name.endswith(".name")):
        more = [*kept, name]
        if len(rows[more].drop_duplicates()) > (len(rows[kept].drop_duplicates()) if kept else 1):
            kept = more
        else:
            kept = kept
    return [name for name in names if name in kept]


def _scored(group: pd.DataFrame) -> dict[str, Any]:
    seconds = group["seconds_to_target"].fillna(math.inf)
    reached = group[np.isfinite(seconds)]
    each = group["epochs_to_target"].fillna(math.inf).tolist()
    # The target is looked for after whole epochs.
    if all(not math.isfinite(one) or float(one).is_integer() for one in each):
        grain = 1.0
    else:
        grain = 0.0
    if len(reached):
        lasts = float((reached["seconds_to_target"] / reached["epochs_to_target"]).median())
    else:
        lasts = 0.0
    score = olympic_mean(seconds.tolist(), grain * lasts if math.isfinite(lasts) else 0.0)
    epochs = olympic_mean(each, grain)
    found: dict[str, Any] = {
        "runs": len(group),
        "reached": len(reached),
        **dict(zip(("seconds", "seconds_low", "seconds_high"), score, strict=True)),
        **dict(zip(("epochs", "epochs_low", "epochs_high"), epochs, strict=True)),
        "examples_per_second": (
            reached["examples_to_target"] / reached["seconds_to_target"]
        ).median(),
        "best_accuracy": float(group["best_accuracy"].median()),
        "below": int((reached["epochs_below_target"] > 0).sum()),
        "is_upper_bound": False,
    }
    if "energy_to_target_joules" in group and group["energy_to_target_joules"].notna().any():
        found["joules"] = olympic_mean(
            group["energy_to_target_joules"].fillna(math.inf).tolist()
        ).value
    if len(reached) and reached["epochs_to_target"].le(1).all():
        found |= _upper_bound(found)
    paid = group[group[PRICE].notna()]
    if len(paid):
        currency = paid["price_currency"].iloc[0]
        found["cost"] = COST_TO_TARGET.value(float(paid[PRICE].iloc[0]), score.value)
        found["currency"] = "" if pd.isna(currency) else str(currency)
    return found


def _upper_bound(score: dict[str, Any]) -> dict[str, Any]:
    """Return the changes to a score whose runs all reached the target in their first epoch.

    The accuracy is evaluated after whole epochs, so the first may have passed the target at any
    time before its end: intervals begin at 0, and no run took more than one epoch.
    """
    changes: dict[str, Any] = {"is_upper_bound": True}
    if math.isfinite(score["seconds_high"]):
        changes["seconds_low"] = 0.0
    if math.isfinite(score["epochs_high"]):
        changes["epochs_low"] = 0.0
        changes["epochs_high"] = score["epochs"]
    return changes


def _ratios(scores: pd.DataFrame, runs: pd.DataFrame) -> Iterator[str]:
    """Each pair of platforms over the settings of both; sessions of their own may have moved either
    by ALLOWANCE.
    """
    sides = dict(iter(scores[np.isfinite(scores["seconds"])].groupby("_place")))
    places = runs[[name for name in PLATFORM if name in runs]].map(str).apply(tuple, axis=1)
    for (here, one), (there, other) in itertools.combinations(sides.items(), 2):
        both = one.merge(other, on=["family", "choice", "batch_size"], suffixes=("_a", "_b"))
        if both.empty:
            continue
        logs, epochs = (
            np.log(both[f"{name}_b"] / both[f"{name}_a"]) for name in ("seconds", "epochs")
        )
        names = [both[f"platform_{side}"].iloc[0] for side in "ab"]
        over = counted(len(both), "setting")
        # Of each setting what its seeds say, and of several at least what they differ by.
        seeds = sum(
            np.log(both[f"seconds_high_{side}"] / both[f"seconds_low_{side}"]) ** 2 / 4
            for side in "ab"
        )
        if np.isfinite(seeds).all():
            half = math.sqrt(float(np.sum(seeds))) / len(both)
        else:
            half = math.nan
        if len(both) > 1:
            half = np.maximum(half, stats.t.ppf(0.975, len(both) - 1) * stats.sem(logs))
        alike = arrange(runs[places == here], runs[places == there]).design.comparable
        reach, more = (
            (half, "")
            if alike
            else (half + math.log(ALLOWANCE), f", {ALLOWANCE - 1:.0%} of it for their sessions")
        )
        ratio, low, high = (float(np.exp(logs.mean() + sign * reach)) for sign in (0, -1, 1))
        if not low <= 1 <= high and np.isfinite(half):
            if high < 1:
                names, epochs, ratio, low, high = names[::-1], -epochs, 1 / ratio, 1 / high, 1 / low
            first = f"{names[0]} reaches the target {ratio:.3g}x as fast as {names[1]}"
            first += f" (95% interval {low:.3g} to {high:.3g}{more})"
            yield (
                f"{first}, which takes {math.exp(epochs.mean()):.3g}x its epochs (geometric means over {over})."
            )
        elif np.isfinite(half):
            between = f"{low:.3g}x to {high:.3g}x as fast (95% interval{more}, geometric mean over {over})"
            yield f"Which of {names[0]} and {names[1]} reaches the target first is not shown: the first is {between}."
        else:
            yield f"{names[0]} and {names[1]}: no verdict, a setting has too few seeds for an interval; measure four."
