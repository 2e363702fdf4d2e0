"""`time-to-accuracy`: how long training to an accuracy takes, over seeds, batch sizes and
platforms.

The score is that of MLPerf Training: the mean of the runs without the fastest and the slowest. A
run that did not reach its target is slower than any that did. One or two runs are averaged as they
are. Platforms are compared over the settings that both have. With --price the table has the cost.

The target is evaluated after whole epochs. If all runs reached it in the first epoch, their times
are upper bounds, and so is the score.
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
from analysis.format import format_number
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options
from analysis.prices import PRICE, price_option, read_prices, with_costs
from analysis.registry import analysis
from analysis.result import Paragraph, Result
from analysis.store.frame import families
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted
from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.sessions import ALLOWANCE, arrange
from paradnn.store.metrics import COST_TO_TARGET

_SETTING_PREFIXES = ("optimizer.", "data.", "learn.", "platform.")
#: Columns that do not change a score, or repeat which machine it was.
_IGNORED_SETTINGS = (PRICE, "learn.epochs_after", "platform.name", "platform.index")
_TARGET_METRICS = (
    "seconds_to_target",
    "epochs_to_target",
    "examples_to_target",
    "epochs_below_target",
)
_SERIES = ["family", "platform", "choice"]
#: Normal values that the simulation of `_interval_factor` draws.
_SIMULATED_VALUES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TimeToAccuracyOptions(Options):
    """Prices of the platforms."""

    price: tuple[str, ...] = price_option("adds the cost to the target")


@analysis(
    TimeToAccuracyOptions,
    summary="time, epochs and cost to an accuracy, over seeds, batch sizes and platforms",
    example="python -m analysis time-to-accuracy --family fc --figure accuracy.png",
)
def time_to_accuracy(frame: pd.DataFrame, options: TimeToAccuracyOptions) -> Result:
    """Score every setting of the runs that learn.

    A setting is everything but seed and replicate. The table has a row per setting and platform:

    - `family`, `platform`, `choice`, `batch_size`: the setting.
    - `runs`, `reached`: the number of runs, and of those that reached the target.
    - `seconds`, `epochs`: the score, with its 95% interval (`_low`, `_high`).
    - `is_upper_bound`: whether all runs that reached the target did so in their first epoch. Then
      the intervals begin at 0.
    - `examples_per_second`, `best_accuracy`: medians.
    - `below`: runs that fell below the target after reaching it.
    - `joules`, `cost`, `currency`: where known.
    - `speedup`: over the smallest batch size that has a score; missing for upper bounds.

    Raises:
        NotEnoughData: If no run trains to an accuracy.
    """
    frame = with_costs(frame, read_prices(options.price, frame))
    if "best_accuracy" not in frame:
        runs = frame.iloc[:0]
    else:
        runs = _without_interrupted(frame[frame["best_accuracy"].notna()])
    if runs.empty:
        raise NotEnoughData(
            "no run trains to an accuracy; measure one: python -m paradnn.train task=learn"
        )
    missing = [name for name in (*_TARGET_METRICS, "batch_size") if name not in runs]
    runs = runs.assign(**dict.fromkeys(missing, math.nan))
    runs["batch_size"] = pd.to_numeric(runs["batch_size"], errors="coerce")
    scores = _scores(runs)
    drawable = (np.isfinite(scores["seconds"]) & scores["batch_size"].notna()).any()
    sentences: list[Paragraph | str] = [
        _describe(series, rows)
        for series, rows in scores.groupby(["family", "platform"], sort=False)
    ]
    sentences.extend(_compare_platforms(scores, runs))
    sentences.append(
        "A score is the mean over seeds without the fastest and the slowest (of fewer than three: "
        "of all); a run that did not reach its target is the slowest. Intervals are 95%, over "
        "seeds."
    )
    if scores["is_upper_bound"].any():
        sentences.append(
            "The target is evaluated after whole epochs: a score is an upper bound (at most) if all "
            "runs reached it in the first epoch. Raise learn.target to tell such settings apart."
        )
    return Result(
        numbers=scores.drop(columns="_platform"),
        sentences=sentences,
        picture=(lambda: _draw(scores)) if drawable else None,
        sources=tuple(runs["run_id"]),
    )


def _scores(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting and platform.

    The further column `_platform` is a tuple that identifies the platform.
    """
    settings = [
        name
        for name in runs.columns
        if str(name).startswith(_SETTING_PREFIXES) and name not in _IGNORED_SETTINGS
    ]
    keys = [
        name
        for name in dict.fromkeys((*PLATFORM, "family", *hyperparameters(runs), *settings))
        if name in runs
    ]
    choices = [name for name in keys if name not in (*PLATFORM, "batch_size", "family")]
    distinguishing = {
        family: _distinguishing_columns(rows, choices) for family, rows in runs.groupby("family")
    }
    platform_columns = [name for name in PLATFORM if name in runs]
    varying = [
        name
        for name in platform_columns
        if name != "environment_id" and runs[name].nunique(dropna=False) > 1
    ]
    rows = []
    for _, group in runs.groupby(keys, dropna=False, sort=False):
        first = group.iloc[0]
        shown = [name for name in dict.fromkeys(["device", *varying]) if name in runs]
        columns = distinguishing[first["family"]]
        row = {
            "family": first["family"],
            "platform": ", ".join(str(first[name]) for name in shown),
            "choice": words_of(first, columns) if columns else "",
        }
        row |= _score(group)
        row |= {
            "batch_size": first.get("batch_size"),
            "_platform": tuple(map(str, first[platform_columns])),
        }
        rows.append(row)
    scores = pd.DataFrame(rows)
    family_order = {name: place for place, name in enumerate(families(scores))}
    scores = scores.sort_values(
        [*_SERIES, "batch_size"],
        key=lambda column: column.map(family_order) if column.name == "family" else column,
        ignore_index=True,
    )
    return scores.assign(speedup=_speedups(scores))


def _speedups(scores: pd.DataFrame) -> pd.Series:
    """Return the speedup of each setting over its smallest batch size that has a score."""
    known = np.isfinite(scores["seconds"]) & scores["batch_size"].notna()
    exact = scores[known & ~scores["is_upper_bound"]].sort_values("batch_size")
    smallest = exact.groupby(["family", "_platform", "choice"])["seconds"].transform("first")
    speedups: pd.Series = smallest / exact["seconds"]
    return speedups


def _describe(series: Sequence[Hashable], rows: pd.DataFrame) -> Paragraph:
    """Describe the scores of one family on one platform."""
    name = " on ".join(map(str, series))
    runs = counted(int(rows["runs"].sum()), "run")
    settings = counted(len(rows), "setting")
    reached = rows[np.isfinite(rows["seconds"])]
    if len(reached):
        best = reached.loc[reached["seconds"].idxmin()]
        outcome = f"fastest to the target {_format_setting(best)}, in {_format_score(best)}"
    else:
        outcome = "none has a score"
    points = [f"{_format_setting(row)}: {_format_score(row)}" for _, row in rows.iterrows()]
    below = int(rows["below"].sum())
    if below:
        points.append(f"{counted(below, 'run')} fell below the target after reaching it.")
    return Paragraph(f"{name}: {runs} of {settings}; {outcome}.", tuple(points))


def _format_setting(row: pd.Series) -> str:
    parts = []
    if pd.notna(row["batch_size"]):
        parts.append(f"batch size {row['batch_size']:g}")
    if row["choice"]:
        parts.append(str(row["choice"]))
    return ", ".join(parts) or "the only setting"


def _format_score(row: pd.Series) -> str:
    """Format the seconds with their interval, the epochs and the cost of a setting.

    A setting without a score has the number of runs that reached the target.
    """
    reached = f"{row['reached']} of {row['runs']} reached it"
    if not np.isfinite(row["seconds"]):
        return f"no score, {reached}; best {row['best_accuracy']:.4f} in the median"
    seconds = f"{row['seconds']:.4g} s"
    if np.isfinite(row["seconds_low"]):
        seconds += f" ({row['seconds_low']:.4g} to {row['seconds_high']:.4g})"
    if row["is_upper_bound"]:
        parts = [f"at most {seconds}", "reached in the first epoch"]
    else:
        unit = "epoch" if row["epochs"] == 1 else "epochs"
        parts = [seconds, f"{row['epochs']:.3g} {unit}"]
    if pd.notna(row["speedup"]) and row["speedup"] != 1:
        parts.append(f"{row['speedup']:.3g}x as fast as the smallest batch size")
    if row["reached"] < row["runs"]:
        parts.append(reached)
    if pd.notna(row.get("cost")):
        parts.append(f"cost {format_number(row['cost'], row['currency'], digits=3)}")
    if pd.notna(row.get("joules")) and math.isfinite(row["joules"]):
        parts.append(format_number(row["joules"], "J"))
    return ", ".join(parts)


def olympic_mean(values: Sequence[float], grain: float = 0.0) -> Estimate:
    """Compute the mean without the smallest and the largest value, with its 95% interval.

    The mean of fewer than three values is that of all. The interval reaches as many sample standard
    deviations to either side as are needed to hold the mean of 95% of normal samples
    (`_interval_factor`), but not below 0.

    Args:
        values: Times or epochs. An infinite value is a run that did not reach its target. It counts
            as the slowest that did in the standard deviation.
        grain: Unit of which the values are whole multiples, such as 1 for epochs. The variance of
            rounding, grain^2 / 12 (Sheppard), is added.

    Returns:
        The mean with its interval. The ends are NaN for one or three values, if the mean is
        infinite, and if all values are equal without a grain: then they do not show how they
        scatter.
    """
    ordered = np.sort(np.asarray(values, dtype="float64"))
    count = len(ordered)
    unfinished = int(np.isinf(ordered).sum())
    # Cuts one value at each end.
    cut = 1.5 / count if count > 2 else 0.0
    mean = float(stats.trim_mean(ordered, cut))
    if count in (1, 3) or not math.isfinite(mean):
        return Estimate(mean, math.nan, math.nan)
    ordered[count - unfinished :] = ordered[count - unfinished - 1]
    deviation = math.hypot(float(ordered.std(ddof=1)), grain / math.sqrt(12))
    if deviation == 0:
        return Estimate(mean, math.nan, math.nan)
    half = _interval_factor(count, unfinished, cut) * deviation
    return Estimate(mean, max(0.0, mean - half), mean + half)


@functools.cache
def _interval_factor(count: int, unfinished: int, cut: float) -> float:
    """Return the half width of the interval of a trimmed mean, in sample standard deviations.

    It is the 95% quantile of |trimmed mean| / standard deviation over samples of `count` standard
    normal values, whose `unfinished` largest are replaced by the next. It is simulated, since
    Student's t (Tukey and McLaughlin, Sankhya A 25, 1963) holds in 91% for four values.
    """
    random = np.random.default_rng(0)
    samples = np.sort(random.normal(size=(_SIMULATED_VALUES // count, count)), axis=1)
    samples[:, count - unfinished :] = samples[:, [count - unfinished - 1]]
    means = stats.trim_mean(samples, cut, axis=1)
    return float(np.quantile(np.abs(means) / samples.std(axis=1, ddof=1), LEVEL))


def _without_interrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """Drop the runs, in the order of their starts, that were interrupted and measured again.

    The later run continued from the checkpoint of the earlier one, so both are one training.
    """
    if not {"point_id", "epochs", "learn.epochs"} <= set(runs):
        return runs
    identity = [name for name in ("point_id", "environment_id", "replicate") if name in runs]
    has_all_epochs = runs["epochs"].ge(runs["learn.epochs"].astype("float64"))
    is_complete = has_all_epochs | runs["outcome"].isin(("ok", "nan"))
    return runs[is_complete | ~runs.duplicated(identity, keep="last")]


def _distinguishing_columns(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns that tell settings apart beyond what earlier columns do.

    The name of an optimizer comes first, so that the defaults it implies are not repeated.
    """
    kept: list[str] = []
    settings = 1
    for name in sorted(names, key=lambda name: not name.endswith(".name")):
        count = len(rows[[*kept, name]].drop_duplicates())
        if count > settings:
            kept.append(name)
            settings = count
    return [name for name in names if name in kept]


def _score(group: pd.DataFrame) -> dict[str, Any]:
    """Score the runs of one setting on one platform."""
    seconds = group["seconds_to_target"].fillna(math.inf)
    epochs = group["epochs_to_target"].fillna(math.inf)
    reached = group[np.isfinite(seconds)]
    # The target is evaluated after whole epochs, which rounds the times too.
    grain = float(all(float(value).is_integer() for value in epochs if math.isfinite(value)))
    seconds_per_epoch = 0.0
    if len(reached):
        ratios = reached["seconds_to_target"] / reached["epochs_to_target"]
        seconds_per_epoch = float(ratios.median())
    if not math.isfinite(seconds_per_epoch):
        seconds_per_epoch = 0.0
    score = olympic_mean(seconds.tolist(), grain * seconds_per_epoch)
    epoch_score = olympic_mean(epochs.tolist(), grain)
    is_upper_bound = len(reached) > 0 and bool(reached["epochs_to_target"].le(1).all())
    if is_upper_bound:
        # The first epoch may have passed the target at any time before its end.
        score = _from_zero(score, score.high)
        epoch_score = _from_zero(epoch_score, epoch_score.value)
    rates = reached["examples_to_target"] / reached["seconds_to_target"]
    row: dict[str, Any] = {
        "runs": len(group),
        "reached": len(reached),
        "seconds": score.value,
        "seconds_low": score.low,
        "seconds_high": score.high,
        "epochs": epoch_score.value,
        "epochs_low": epoch_score.low,
        "epochs_high": epoch_score.high,
        "is_upper_bound": is_upper_bound,
        "examples_per_second": rates.median(),
        "best_accuracy": float(group["best_accuracy"].median()),
        "below": int((reached["epochs_below_target"] > 0).sum()),
    }
    if "energy_to_target_joules" in group and group["energy_to_target_joules"].notna().any():
        joules = group["energy_to_target_joules"].fillna(math.inf).tolist()
        row["joules"] = olympic_mean(joules).value
    paid = group[group[PRICE].notna()]
    if len(paid):
        currency = paid["price_currency"].iloc[0]
        row["cost"] = COST_TO_TARGET.value(float(paid[PRICE].iloc[0]), score.value)
        row["currency"] = "" if pd.isna(currency) else str(currency)
    return row


def _from_zero(score: Estimate, high: float) -> Estimate:
    """Return a score whose interval, if there is one, reaches from 0 to `high`."""
    if not math.isfinite(score.high):
        return score
    return Estimate(score.value, 0.0, high)


def _compare_platforms(scores: pd.DataFrame, runs: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per pair of platforms, over the settings that both have."""
    sides = dict(iter(scores[np.isfinite(scores["seconds"])].groupby("_platform")))
    columns = [name for name in PLATFORM if name in runs]
    platforms = runs[columns].map(str).apply(tuple, axis=1)
    for (platform_a, a), (platform_b, b) in itertools.combinations(sides.items(), 2):
        both = a.merge(b, on=["family", "choice", "batch_size"], suffixes=("_a", "_b"))
        if both.empty:
            continue
        names = (str(both["platform_a"].iloc[0]), str(both["platform_b"].iloc[0]))
        exact = both[~(both["is_upper_bound_a"] | both["is_upper_bound_b"])]
        if exact.empty:
            yield (
                f"{names[0]} and {names[1]}: no verdict, the target was reached in the first "
                "epoch, so times are upper bounds; raise learn.target."
            )
            continue
        design = arrange(runs[platforms == platform_a], runs[platforms == platform_b]).design
        yield _compare_scores(exact, names, design.comparable)


def _compare_scores(both: pd.DataFrame, names: tuple[str, str], comparable: bool) -> str:
    """Compare two platforms over the settings that both have.

    Args:
        both: A row per setting, with the scores of both (`_a`, `_b`).
        names: The names of the platforms.
        comparable: Whether their sessions can be told from the platforms. Otherwise the sessions
            may have moved either platform by ALLOWANCE.
    """
    logs = pd.Series(np.log(both["seconds_b"] / both["seconds_a"]))
    epoch_ratio = math.exp(np.log(both["epochs_b"] / both["epochs_a"]).mean())
    settings = counted(len(both), "setting")
    half = _half_width(both, logs)
    if not np.isfinite(half):
        return (
            f"{names[0]} and {names[1]}: no verdict, a setting has too few seeds for an interval; "
            "measure four."
        )
    reach = half
    allowance = ""
    if not comparable:
        reach += math.log(ALLOWANCE)
        allowance = f", {ALLOWANCE - 1:.0%} of it for their sessions"
    mean = float(logs.mean())
    ratio, low, high = math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)
    if low <= 1 <= high:
        return (
            f"Which of {names[0]} and {names[1]} reaches the target first is not shown: the first "
            f"is {low:.3g}x to {high:.3g}x as fast (95% interval{allowance}, geometric mean over "
            f"{settings})."
        )
    faster, slower = names
    if high < 1:
        faster, slower = slower, faster
        epoch_ratio = 1 / epoch_ratio
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    return (
        f"{faster} reaches the target {ratio:.3g}x as fast as {slower} (95% interval {low:.3g} to "
        f"{high:.3g}{allowance}), which takes {epoch_ratio:.3g}x its epochs (geometric means over "
        f"{settings})."
    )


def _half_width(both: pd.DataFrame, logs: pd.Series) -> float:
    """Return the half width of the interval of the mean log ratio; NaN if unknown.

    It combines what the seeds of each setting show. For several settings it is at least the width
    that their differences show.
    """
    variances = pd.Series(0.0, both.index)
    for side in "ab":
        widths = np.log(both[f"seconds_high_{side}"] / both[f"seconds_low_{side}"])
        variances += widths**2 / 4
    if not np.isfinite(variances).all():
        return math.nan
    half = math.sqrt(float(variances.sum())) / len(both)
    if len(both) > 1:
        quantile = stats.t.ppf((1 + LEVEL) / 2, len(both) - 1)
        half = max(half, float(quantile * stats.sem(logs)))
    return half


def _draw(scores: pd.DataFrame) -> drawing.Figure:
    """Draw the score and the epochs to the target over the batch size, with 95% intervals."""
    figure, panels = drawing.panels(2, 5.5, 4.4, across=2)
    series = {
        ", ".join(str(part) for part in key if part): rows
        for key, rows in scores.groupby(_SERIES, sort=False)
    }
    batches = sorted({int(size) for size in scores["batch_size"].dropna()})
    titles = {"seconds": "Time to the target", "epochs": "Epochs to the target"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for label, rows in series.items():
            known = rows[np.isfinite(rows[name]) & rows["batch_size"].notna()]
            # An interval of few seeds may reach below the range of a logarithmic axis.
            low = np.maximum(known[f"{name}_low"], 0.1 * known[name])
            look = drawing.look(label, list(series)) | {
                "linestyle": "-",
                "linewidth": 1.4,
                "label": label,
            }
            drawing.marks(
                axes,
                known["batch_size"].astype("float64"),
                known[name],
                y_ends=(low, known[f"{name}_high"]),
                **look,
            )
        axes.set_xscale("log")
        drawing.finish(axes, title, "batch size", name, logs={"y": drawing.plain})
        axes.set_xticks(batches, [str(size) for size in batches])
        axes.set_xticks([], minor=True)
    drawing.legend(figure)
    return figure
