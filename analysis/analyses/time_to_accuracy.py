"""`time-to-accuracy`: compare the times that trainings need to reach a target accuracy.

The score follows MLPerf Training: the mean over the runs of a setting without the fastest and the
slowest run. These runs differ in their seeds. A run that did not reach its target counts as the
slowest. With one or two runs, the score is the mean of all runs. Two platforms are compared over
the settings that both of them measured. With --price, the table has the cost.

The target is evaluated after whole epochs. If all runs reached it in the first epoch, their times
are upper bounds, and so is the score.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.choices import PLATFORM, describe_choice
from analysis.columns import hyperparameters
from analysis.format import format_number, format_with_interval
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options
from analysis.prices import PRICE, price_option, read_prices, with_costs
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Paragraph, Result
from analysis.store.frame import sort_by_family
from paradnn.core.errors import InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.decision import Decision, decide
from paradnn.statistics.dependence import Component
from paradnn.statistics.effects import Effect, side_effects
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.priors import VariancePrior
from paradnn.statistics.verdict import Verdict
from paradnn.store.metrics import COST_TO_TARGET

_SETTING_PREFIXES = ("optimizer.", "data.", "learn.", "platform.")
#: Columns that do not change a score, or that identify the machine like the columns of `PLATFORM`.
_IGNORED_SETTINGS = (PRICE, "learn.epochs_after", "platform.name", "platform.index")
_TARGET_METRICS = (
    "seconds_to_target",
    "epochs_to_target",
    "examples_to_target",
    "epochs_below_target",
)
_SERIES = ["family", "platform", "choice"]
#: Number of normal values that `_trimmed_error` draws.
_SIMULATED_VALUES = 1_000_000
#: Prior of the scatter between trainings that differ only in the seed.
SEED_PRIOR = VariancePrior(
    scale=0.2,
    freedom=2,
    source=(
        "simulated trainings whose times have two modes, a factor of 2 apart "
        "(docs/validation/calibration.md)"
    ),
)
#: Prior of the scatter between seeds for the score of a single platform. Its few seeds may all have
#: missed one of two modes. In a ratio of platforms this error partly cancels; here it does not.
SCORE_PRIOR = VariancePrior(
    scale=0.4,
    freedom=4,
    source=SEED_PRIOR.source,
    is_floor=True,
)


@dataclass(frozen=True, kw_only=True)
class TimeToAccuracyOptions(Options):
    """Options of the command `time-to-accuracy`: hourly prices of the platforms."""

    price: tuple[str, ...] = price_option("adds the cost to the target")


@analysis(
    TimeToAccuracyOptions,
    summary="time, epochs and cost of training to an accuracy, by batch size and platform",
    example="python -m analysis time-to-accuracy --family fc --figure accuracy.png",
)
def time_to_accuracy(frame: pd.DataFrame, options: TimeToAccuracyOptions) -> Result:
    """Score every setting of the runs that train to a target accuracy.

    The score is the mean time to the target without the fastest and the slowest run, as in MLPerf
    Training. Runs of one setting differ only in seed and replicate.

    Args:
        frame: Runs, one per row.
        options: Hourly prices of the platforms, for the cost to the target.

    Returns:
        The result. Its table has a row per setting and platform:

        - `family`, `platform`, `batch_size`, `choice`: the setting. `choice` is a text with the
          other settings in which the runs of the family differ.
        - `runs`, `reached`: the number of runs, and the number of runs that reached the target.
        - `seconds`, `epochs`: the score, with its 95% interval (`_low`, `_high`).
        - `is_upper_bound`: whether all runs that reached the target did so in their first epoch. If
          so, the intervals begin at 0.
        - `examples_per_second`, `best_accuracy`: medians.
        - `below`: the number of runs that fell below the target after reaching it.
        - `joules`, `cost`, `currency`: energy and cost to the target, if known.
        - `speedup`: relative to the smallest batch size that has a score; missing for upper bounds.

    Raises:
        InsufficientData: If no run trains to an accuracy.
    """
    frame = with_costs(frame, read_prices(options.price, frame))
    if "best_accuracy" not in frame:
        runs = frame.iloc[:0]
    else:
        runs = _without_interrupted(frame[frame["best_accuracy"].notna()])
    if runs.empty:
        raise InsufficientData(
            "no run trains to an accuracy; measure one: python -m paradnn.train task=learn"
        )
    missing = [name for name in (*_TARGET_METRICS, "batch_size") if name not in runs]
    runs = runs.assign(**dict.fromkeys(missing, math.nan))
    runs["batch_size"] = pd.to_numeric(runs["batch_size"], errors="coerce")
    scores = _scores(runs)
    is_drawable = (np.isfinite(scores["seconds"]) & scores["batch_size"].notna()).any()
    sentences: list[Paragraph | str] = [
        _describe(series, rows)
        for series, rows in scores.groupby(["family", "platform"], sort=False)
    ]
    answers = _compare_platforms(scores, runs)
    answer = max(answers, key=lambda each: each.points or 0, default=None)
    sentences.extend(f"{each.sentence}." for each in answers if each is not answer)
    sentences.append(
        "A score is the mean over seeds without the fastest and the slowest; with fewer than three "
        "seeds it is the mean of all. A run that did not reach its target counts as the slowest. "
        "The 95% intervals generalize over seeds. They assume that the times of seeds scatter by "
        f"at least {SCORE_PRIOR.scale:.0%}, since few seeds may miss a slow mode."
    )
    if scores["is_upper_bound"].any():
        sentences.append(
            "The target is evaluated after whole epochs. A score is therefore an upper bound "
            "(at most) if all runs reached the target in the first epoch. Raise learn.target to "
            "distinguish such settings."
        )
    picture = None
    if is_drawable:
        picture = functools.partial(_draw, scores)
    return Result(
        numbers=scores.drop(columns=["_platform", "_logs"]),
        answer=answer or _answer(scores),
        sentences=sentences,
        picture=picture,
        sources=tuple(runs["run_id"]),
    )


def _answer(scores: pd.DataFrame) -> AnalysisAnswer:
    """State the setting with the shortest time to its target accuracy.

    Args:
        scores: The scores that `_scores` returns.
    """
    runs = int(scores["runs"].sum())
    reached = scores[np.isfinite(scores["seconds"])]
    if reached.empty:
        sentence = (
            f"No setting has a score: {scores['reached'].sum()} of {counted(runs, 'run')} reached "
            "the target."
        )
        return AnalysisAnswer(sentence=sentence, points=len(scores))
    best = reached.loc[reached["seconds"].idxmin()]
    ends = (best["seconds"], best["seconds_low"], best["seconds_high"])
    score = format_with_interval(ends, lambda seconds: f"{seconds:.4g} s")
    bound = "at most " if best["is_upper_bound"] else ""
    text = f"{best['family']} on {best['platform']} reaches its target in {bound}{score}"
    if len(scores) > 1:
        text += f" with {_format_setting(best)}, the fastest of {counted(len(scores), 'setting')}"
    return AnalysisAnswer(
        sentence=f"{text}.", points=len(scores), basis="the scatter between seeds"
    )


def _scores(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the score of each setting on each platform, one per row.

    There are two columns in addition to those of `time_to_accuracy`. `_platform` is a tuple that
    identifies the platform. `_logs` contains the natural logarithms of the seconds of all runs that
    reached the target.

    Args:
        runs: Runs that train to a target accuracy.
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
            "choice": "",
        }
        if columns:
            row["choice"] = describe_choice(first, columns)
        row |= _score(group)
        row |= {
            "batch_size": first.get("batch_size"),
            "_platform": tuple(map(str, first[platform_columns])),
        }
        rows.append(row)
    scores = sort_by_family(pd.DataFrame(rows), [*_SERIES, "batch_size"])
    return scores.assign(speedup=_speedups(scores))


def _speedups(scores: pd.DataFrame) -> pd.Series:
    """Return the speedup of each setting relative to the smallest batch size with a score.

    Batch sizes are compared within a family, platform and `choice` (the other settings, as text).
    Upper bounds have no speedup.

    Args:
        scores: The scores, one row per setting and platform.
    """
    known = np.isfinite(scores["seconds"]) & scores["batch_size"].notna()
    exact = scores[known & ~scores["is_upper_bound"]].sort_values("batch_size")
    smallest = exact.groupby(["family", "_platform", "choice"])["seconds"].transform("first")
    speedups: pd.Series = smallest / exact["seconds"]
    return speedups


def _describe(series: Sequence[Hashable], rows: pd.DataFrame) -> Paragraph:
    """Return a paragraph with the scores of one family on one platform.

    Args:
        series: The family and the platform.
        rows: Rows of the table of `time_to_accuracy`.
    """
    name = " on ".join(map(str, series))
    runs = counted(int(rows["runs"].sum()), "run")
    settings = counted(len(rows), "setting")
    reached = rows[np.isfinite(rows["seconds"])]
    if len(reached):
        best = reached.loc[reached["seconds"].idxmin()]
        outcome = f"fastest to the target: {_format_setting(best)}, in {_format_score(best)}"
    else:
        outcome = "no setting has a score"
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
    """Return the seconds with their interval, the epochs and the cost of a setting, as text.

    For a setting without a score, the text states the number of runs that reached the target.

    Args:
        row: Row of the setting in the table of `time_to_accuracy`.
    """
    reached = f"{row['reached']} of {counted(row['runs'], 'run')} reached the target"
    if not np.isfinite(row["seconds"]):
        return f"no score, {reached}; median best accuracy {row['best_accuracy']:.4f}"
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

    With fewer than three values, it is the mean of all. The variance of a value is `SCORE_PRIOR`
    updated with the sample variance. If the times have two modes, trimming may remove the only
    value of one mode. The interval is therefore the union of two Student's intervals: of the
    trimmed mean (Tukey and McLaughlin, Sankhya A 25, 1963) and of the mean of all logarithms.

    Args:
        values: Times or epochs, at least one, all positive. An infinite value represents a run that
            did not reach its target. For the standard deviation, the largest finite value replaces
            it.
        grain: Unit to which the values are rounded, such as 1 for epochs; 0 without rounding. The
            variance of rounding, grain^2 / 12 (Sheppard), is added.

    Returns:
        The mean with its interval. The ends are NaN if the mean is infinite.
    """
    ordered = np.sort(np.asarray(values, dtype="float64"))
    count = len(ordered)
    unfinished = int(np.isinf(ordered).sum())
    # The share to trim from each end; 1.5 values are rounded down to one.
    cut = 1.5 / count if count > 2 else 0.0
    mean = float(stats.trim_mean(ordered, cut))
    if not math.isfinite(mean):
        return Estimate(mean, math.nan, math.nan)
    ordered[count - unfinished :] = ordered[count - unfinished - 1]
    logs = np.log(ordered)
    rounding = (grain / mean) ** 2 / 12
    relative = _seed_variance([ordered / mean], rounding, SCORE_PRIOR)
    half = mean * _trimmed_error(count, unfinished, cut) * relative.half_width
    center = float(logs.mean())
    log_half = _seed_variance([logs], rounding, SCORE_PRIOR).half_width / math.sqrt(count)
    low = math.exp(center - log_half)
    if mean > half:
        low = min(mean - half, low)
    return Estimate(
        value=mean,
        low=low,
        high=max(mean + half, math.exp(center + log_half)),
    )


def _seed_variance(
    samples: Sequence[np.ndarray], rounding: float = 0.0, prior: VariancePrior = SEED_PRIOR
) -> Component:
    """Return the posterior variance of the logarithm of a run's time.

    Args:
        samples: Logarithms of times, or times relative to their mean, per setting and platform.
        rounding: Variance of rounding to whole epochs.
        prior: Prior of the variance.
    """
    squares = sum(float(((sample - sample.mean()) ** 2).sum()) for sample in samples)
    freedom = sum(len(sample) - 1 for sample in samples)
    if freedom == 0:
        return prior.update()
    return prior.update(squares / freedom + rounding, freedom)


@functools.cache
def _trimmed_error(count: int, unfinished: int, cut: float) -> float:
    """Return the standard error of a trimmed mean, in units of the sample standard deviation.

    The function simulates samples of standard normal values. As in `olympic_mean`, the next smaller
    value replaces the largest `unfinished` values of a sample. The result corrects for the
    reduction of the sample standard deviation by this replacement.

    Args:
        count: Number of values in a sample.
        unfinished: Number of infinite values.
        cut: Share of the values to trim from each end.
    """
    if count == 1:
        return 1.0
    random = np.random.default_rng(0)
    samples = np.sort(random.normal(size=(_SIMULATED_VALUES // count, count)), axis=1)
    samples[:, count - unfinished :] = samples[:, [count - unfinished - 1]]
    means = stats.trim_mean(samples, cut, axis=1)
    return float(np.sqrt(np.mean(means**2) / samples.var(axis=1, ddof=1).mean()))


def _without_interrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs without interrupted runs that a later run continued.

    The later run started from the checkpoint of the interrupted one, so it represents the whole
    training.

    Args:
        runs: The runs in the order of their starts.
    """
    if not {"point_id", "epochs", "learn.epochs"} <= set(runs):
        return runs
    identity = [name for name in ("point_id", "environment_id", "replicate") if name in runs]
    has_all_epochs = runs["epochs"].ge(runs["learn.epochs"].astype("float64"))
    is_complete = has_all_epochs | runs["outcome"].isin(("ok", "nan"))
    return runs[is_complete | ~runs.duplicated(identity, keep="last")]


def _distinguishing_columns(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return a subset of some columns that still distinguishes all settings of the runs.

    Columns of names, such as `optimizer.name`, have precedence. A column whose value follows from
    such a name, such as a default of the optimizer, is then omitted.

    Args:
        rows: The runs of a family.
        names: The columns to choose from.
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
    """Return the score of one setting on one platform as a row of the table of `time_to_accuracy`.

    Args:
        group: The runs of the setting on the platform.
    """
    seconds = group["seconds_to_target"].fillna(math.inf)
    epochs = group["epochs_to_target"].fillna(math.inf)
    reached = group[np.isfinite(seconds)]
    # The target is evaluated after whole epochs, so times are rounded to whole epochs, too.
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
        "_logs": np.log(reached["seconds_to_target"].to_numpy(dtype="float64")),
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
    """Return a score with the interval from 0 to `high`, or unchanged if it has no interval.

    Args:
        score: The score, whose ends are NaN without an interval.
        high: Upper end of the new interval.
    """
    if not math.isfinite(score.high):
        return score
    return Estimate(score.value, 0.0, high)


def _compare_platforms(scores: pd.DataFrame, runs: pd.DataFrame) -> list[AnalysisAnswer]:
    """Compare each pair of platforms over the settings that both platforms have.

    Args:
        scores: The scores that `_scores` returns.
        runs: Runs that train to a target accuracy.

    Returns:
        An answer for each pair of platforms with common settings.
    """
    sides = dict(iter(scores[np.isfinite(scores["seconds"])].groupby("_platform")))
    columns = [name for name in PLATFORM if name in runs]
    platforms = runs[columns].map(str).apply(tuple, axis=1)
    answers = []
    for (platform_a, a), (platform_b, b) in itertools.combinations(sides.items(), 2):
        both = a.merge(b, on=["family", "choice", "batch_size"], suffixes=("_a", "_b"))
        if both.empty:
            continue
        names = (str(both["platform_a"].iloc[0]), str(both["platform_b"].iloc[0]))
        exact = both[~(both["is_upper_bound_a"] | both["is_upper_bound_b"])]
        if exact.empty:
            answers.append(
                AnalysisAnswer(
                    sentence=(
                        f"{names[0]} and {names[1]}: undecided, because the target was reached in "
                        "the first epoch and the times are upper bounds; raise learn.target"
                    ),
                    verdict="undecided",
                    points=len(both),
                )
            )
            continue
        effects = side_effects(runs[platforms == platform_a], runs[platforms == platform_b])
        answers.append(_compare_scores(exact, names, effects))
    return answers


def _compare_scores(
    both: pd.DataFrame, names: tuple[str, str], effects: Sequence[Effect]
) -> AnalysisAnswer:
    """Compare two platforms over the settings that both platforms have.

    The times of a setting are compared by their geometric means over seeds, because their interval
    also holds for times with two modes. If a run missed the target, the scores are compared.

    Args:
        both: A row per setting, with the scores on both platforms (`_a`, `_b`).
        names: The names of the platforms.
        effects: Components that the sessions of the platforms add to the variance of the log ratio.
    """
    means = {side: both[f"_logs_{side}"].map(np.mean).astype("float64") for side in "ab"}
    has_all = both["runs_a"].eq(both["reached_a"]) & both["runs_b"].eq(both["reached_b"])
    score_logs = np.log((both["seconds_b"] / both["seconds_a"]).to_numpy())
    logs = np.where(has_all, (means["b"] - means["a"]).to_numpy(), score_logs)
    epoch_ratio = math.exp(np.log(both["epochs_b"] / both["epochs_a"]).mean())
    samples = [*both["_logs_a"], *both["_logs_b"]]
    variance = _seed_variance(samples)
    weight = sum(1 / len(sample) for sample in samples) / len(both) ** 2
    seeds = Component(weight * variance.variance, variance.freedom)
    found = decide(float(logs.mean()), [seeds, *(effect.component for effect in effects)])
    settings = counted(len(both), "setting")
    interval = f"95% CI {found.low:.3g}x to {found.high:.3g}x"
    basis = ["seeds", *(effect.name for effect in effects)]
    sentence = _verdict_sentence(found, names, interval, epoch_ratio)
    return AnalysisAnswer(
        sentence=f"{sentence}, geometric mean over {settings}",
        verdict=found.verdict.value,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        ahead=int((logs > 0).sum()),
        points=len(both),
        basis=f"{', '.join(basis)}, with priors of their scatter",
    )


def _verdict_sentence(
    found: Decision, names: tuple[str, str], interval: str, epoch_ratio: float
) -> str:
    """State which of two platforms reaches the target first.

    Args:
        found: The decision on the first platform relative to the second.
        names: The names of the platforms.
        interval: The interval of the ratio, as text.
        epoch_ratio: Epochs of the second platform divided by epochs of the first.
    """
    first, second = names
    if found.verdict is Verdict.EQUAL:
        return (
            f"{first} and {second} reach the target equally fast, {found.ratio:.3g}x ({interval})"
        )
    if found.verdict is Verdict.UNDECIDED:
        return (
            f"{first} reaches the target {found.ratio:.3g}x as fast as {second} ({interval}): "
            "undecided, train more seeds on each platform"
        )
    if found.verdict is Verdict.SLOWER:
        first, second = second, first
        epoch_ratio = 1 / epoch_ratio
        found_ratio = 1 / found.ratio
        interval = f"95% CI {1 / found.high:.3g}x to {1 / found.low:.3g}x"
    else:
        found_ratio = found.ratio
    return (
        f"{first} reaches the target {found_ratio:.3g}x as fast as {second} ({interval}), which "
        f"takes {epoch_ratio:.3g}x the number of epochs"
    )


def _draw(scores: pd.DataFrame) -> drawing.Figure:
    """Draw the score and the epochs to the target over the batch size, with 95% intervals.

    Args:
        scores: The scores, one row per setting and platform.
    """
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
            style = drawing.look(label, list(series)) | {
                "linestyle": "-",
                "linewidth": 1.4,
                "label": label,
            }
            drawing.marks(
                axes,
                known["batch_size"].astype("float64"),
                known[name],
                y_ends=(low, known[f"{name}_high"]),
                **style,
            )
        axes.set_xscale("log")
        drawing.finish(axes, title, "batch size", name, logs={"y": drawing.plain})
        axes.set_xticks(batches, [str(size) for size in batches])
        axes.set_xticks([], minor=True)
    drawing.legend(figure)
    return figure
