"""`time-to-accuracy`: how long training to an accuracy takes, over seeds, batch sizes and platforms.

A score is MLPerf Training's: the fastest and the slowest of the runs are left out, the rest averaged; a run that did
not reach its target is slower than any that did. Two runs or one are averaged as they are.

What a larger batch or another platform gains in examples a second is no gain where it needs more epochs, and a training
that needs fewer than others of its kind is another training, or luck. MLPerf Training asks so of every submission: its
reference convergence points (RCP) are epochs of repeated trainings at some batch sizes (github.com/mlcommons/logging,
rcp_checker). `judge` is its test, from its definition:

- A point is the mean epochs without the fastest and the slowest run, and the standard deviation s of all.
- Only points on the fast side count: those below the batch size of the fastest one are left out, then in one pass each
  that is slower than a line between its neighbours.
- Between two batch sizes mean and deviation are interpolated; below the smallest, the smallest decides; above the
  largest there is no reference.
- N trainings pass unless a one-sided t-test with a deviation of s on both sides says, at 5%, that their mean (without
  the fastest and slowest) is below the reference: the least that passes is mean - t s sqrt(1 / n + 1 / (N - 2)), t
  being Student's 95% quantile with n + N - 4 degrees of freedom, n the runs behind the reference's mean.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.choices import PLATFORM
from analysis.columns import hyperparameters
from analysis.format import short
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options
from analysis.prices import PRICE, price_option, priced, read_prices
from analysis.registry import analysis
from analysis.result import Paragraph, Result
from analysis.store.frame import families
from paradnn.core.words import counted
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL, Estimate
from paradnn.store.metrics import COST_TO_TARGET

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFIXES = ("optimizer.", "data.", "learn.", "platform.")
#: What is recorded with a setting and leaves its score as it is, or says again which machine it was.
_ASIDE = (PRICE, "learn.epochs_after", "platform.name", "platform.index")
_SERIES = ["family", "platform", "choice"]


@dataclass(frozen=True, kw_only=True)
class TimeToAccuracyOptions(Options):
    """What an hour costs."""

    command = "time-to-accuracy"

    price: tuple[str, ...] = price_option("adds the cost to the target")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TimeToAccuracyResult(Result):
    """The score of every setting on every platform.

    `scores` has a row for each setting on each platform: `family`, `platform`, `choice` (what varies besides the
    batch size, in words), `batch_size`, `runs`, `reached`, `seconds` with `seconds_low` and `seconds_high`, `epochs`,
    `examples_per_second`, `below` (runs that fell below the target later), `joules` where known, `cost` and what it is
    in, `currency`, where there are prices; `speedup` over the smallest batch size, and what reference points say of it,
    which are the other batch sizes of the same setting: `least_epochs` (the fewest that pass, NaN where nothing is
    tested) and `passes`.

    `ratios` has a row for each two platforms, `faster` and `slower`, over the `settings` that reached their target on
    both: geometric means of slower / faster in `seconds` and `epochs`; of the faster one's settings, how many were
    `tested` with the slower's epochs as reference points, and how many `passed`.
    """

    scores: pd.DataFrame
    ratios: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        return self.scores

    @property
    def drawable(self) -> bool:
        """Whether any setting with a batch size has a score."""
        return bool((np.isfinite(self.scores["seconds"]) & self.scores["batch_size"].notna()).any())

    def _paragraphs(self) -> Iterator[Paragraph | str]:
        for (family, platform), rows in self.scores.groupby(["family", "platform"], sort=False):
            yield _describe(f"{family} on {platform}", rows)
        for row in self.ratios.to_dict("records"):
            failed = row["tested"] - row["passed"]
            said = " Its epochs pass MLPerf's test of reference points, which are the slower one's."
            if failed:
                said = (
                    f" In {counted(failed, 'setting')} of {row['tested']} it takes fewer epochs than the slower one's "
                    "reference points allow (MLPerf's test): that part of its lead is another training's, or luck."
                )
            yield (
                f"{row['faster']} reaches the target {row['seconds']:.3g}x as fast as {row['slower']}, which takes "
                f"{row['epochs']:.3g}x its epochs (geometric means over {counted(row['settings'], 'setting')})."
            ) + said * bool(row["tested"])
        yield (
            "A score is the mean over seeds without the fastest and the slowest (of fewer than three: of all); a run "
            "that did not reach its target is the slowest. Intervals are 95%, over seeds."
        )

    def _figure(self) -> Figure:
        """Left the score over the batch size, right the epochs to the target; bars are 95% intervals over seeds."""
        drawn, panels = drawing.panels(2, 5.5, 4.4, across=2)
        series = {
            ", ".join(filter(None, map(str, key))): rows for key, rows in self.scores.groupby(_SERIES, sort=False)
        }
        batches = sorted({int(size) for size in self.scores["batch_size"].dropna()})
        for axes, name in zip(panels, ("seconds", "epochs"), strict=True):
            for label, rows in series.items():
                held = rows[np.isfinite(rows[name]) & rows["batch_size"].notna()]
                # An interval of few seeds may reach below what a logarithmic axis has.
                ends = (np.maximum(held[f"{name}_low"], 0.1 * held[name]), held[f"{name}_high"])
                how = drawing.look(label, list(series)) | {"linestyle": "-", "linewidth": 1.4, "label": label}
                drawing.marks(axes, held["batch_size"].astype("float64"), held[name], y_ends=ends, **how)
            axes.set(xscale="log", yscale="log")
            title = "Time to the target" if name == "seconds" else "Epochs to the target"
            drawing.finish(axes, title, "batch size", name)
            drawing.log_ticks(axes.yaxis)
            axes.set_xticks(batches, [str(size) for size in batches])
            axes.set_xticks([], minor=True)
        drawing.legend(drawn)
        return drawn


@analysis(
    TimeToAccuracyOptions,
    summary="time, epochs and cost to an accuracy, over seeds, batch sizes and platforms",
    description="Score the runs with task=learn as MLPerf does: over seeds, without the fastest and the slowest.\n"
    "Gives time and epochs to the target with intervals for each setting, and platforms against each\n"
    "other over the settings that both have. --price adds what it costs.",
    example="python -m analysis time-to-accuracy --family fc --figure accuracy.png",
)
def time_to_accuracy(frame: pd.DataFrame, options: TimeToAccuracyOptions) -> TimeToAccuracyResult:
    """Score every setting of the runs that learn; a setting is all but seed and replicate.

    It costs what `platform.price_per_hour` says, or the options. NotEnoughData where no run trains to an accuracy.
    """
    frame = priced(frame, read_prices(options.price, frame))
    learns = frame["best_accuracy"].notna() if "best_accuracy" in frame else pd.Series(False, index=frame.index)
    runs = _without_interrupted(frame[learns]).copy()
    if runs.empty:
        raise NotEnoughData("no run trains to an accuracy; measure one: python -m paradnn.train task=learn")
    for name in ("seconds_to_target", "epochs_to_target", "examples_to_target", "epochs_below_target"):
        if name not in runs:
            runs[name] = math.nan
    if "batch_size" in runs:
        runs["batch_size"] = pd.to_numeric(runs["batch_size"], errors="coerce")
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
        said = [name for name in words[first["family"]] if pd.notna(first[name])]
        choice = ", ".join(f"{_word(name)}={first[name]}" for name in said)
        row = {"family": first["family"], "platform": platform, "choice": choice, **_scored(group)}
        rows.append(row | {"batch_size": first.get("batch_size"), "_place": tuple(map(str, first[places]))})
    scores = pd.DataFrame(rows)
    order = {name: place for place, name in enumerate(families(scores))}
    scores = scores.sort_values(
        [*_SERIES, "batch_size"],
        key=lambda column: column.map(order) if column.name == "family" else column,
        ignore_index=True,
    )
    scores = _with_speedups(scores)
    shown_scores = scores.drop(columns=["_place", "_epochs"])
    return TimeToAccuracyResult(scores=shown_scores, ratios=_ratios(scores), sources=tuple(runs["run_id"]))


def _describe(name: str, rows: pd.DataFrame) -> Paragraph:
    reached = rows[np.isfinite(rows["seconds"])]
    runs = counted(int(rows["runs"].sum()), "run")
    head = f"{name}: {runs} of {counted(len(rows), 'setting')}"
    if len(reached):
        best = reached.loc[reached["seconds"].idxmin()]
        head += f"; fastest to the target {_setting(best)}, in {_score(best)}."
    else:
        head += "; none has a score."
    below = int(rows["below"].sum())
    points = [f"{_setting(row)}: {_score(row)}" for _, row in rows.iterrows()]
    for _, row in rows[~rows["passes"].astype(bool)].iterrows():
        points.append(
            f"{_setting(row)} took fewer epochs ({row['epochs']:.3g}) than the batch sizes around it allow "
            f"({row['least_epochs']:.3g}, MLPerf's test of reference points): that is another training, or luck."
        )
    if below:
        points.append(f"{counted(below, 'run')} fell below the target after reaching it.")
    return Paragraph(head, tuple(points))


def _setting(row: pd.Series) -> str:
    known = row["batch_size"] is not None and row["batch_size"] == row["batch_size"]
    batch = [f"batch size {row['batch_size']:g}"] if known else []
    return ", ".join(filter(None, [*batch, str(row["choice"])])) or "as it is"


def _score(row: pd.Series) -> str:
    """Seconds with their interval, epochs, cost; or how many did not get there."""
    if not np.isfinite(row["seconds"]):
        return f"no score, {row['reached']} of {row['runs']} reached it; best {row['best_accuracy']:.4f} in the median"
    interval = f" ({row['seconds_low']:.4g} to {row['seconds_high']:.4g})" if np.isfinite(row["seconds_low"]) else ""
    text = f"{row['seconds']:.4g} s{interval}, {row['epochs']:.3g} epoch{'' if row['epochs'] == 1 else 's'}"
    if row["speedup"] == row["speedup"] and row["speedup"] != 1:
        text += f", {row['speedup']:.3g}x as fast as the smallest batch size"
    if row["reached"] < row["runs"]:
        text += f", {row['reached']} of {row['runs']} reached it"
    if "cost" in row and row["cost"] == row["cost"]:
        text += f", cost {short(row['cost'], row['currency'], digits=3)}"
    if "joules" in row and np.isfinite(row["joules"]):
        text += f", {short(row['joules'], 'J')}"
    return text


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
    half = float(stats.t.ppf(0.975, degrees)) * error
    return Estimate(mean, max(0.0, mean - half), mean + half)


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


def _scored(group: pd.DataFrame) -> dict[str, Any]:
    seconds = group["seconds_to_target"].fillna(math.inf)
    reached = group[np.isfinite(seconds)]
    each = group["epochs_to_target"].fillna(math.inf).tolist()
    # The target is looked for after whole epochs.
    grain = 1.0 if all(not math.isfinite(one) or float(one).is_integer() for one in each) else 0.0
    lasts = float((reached["seconds_to_target"] / reached["epochs_to_target"]).median()) if len(reached) else 0.0
    score = olympic_mean(seconds.tolist(), grain * lasts if math.isfinite(lasts) else 0.0)
    epochs = olympic_mean(each, grain)
    found: dict[str, Any] = {
        "_epochs": tuple(each),
        "runs": len(group),
        "reached": len(reached),
        **dict(zip(("seconds", "seconds_low", "seconds_high"), score, strict=True)),
        **dict(zip(("epochs", "epochs_low", "epochs_high"), epochs, strict=True)),
        "examples_per_second": (reached["examples_to_target"] / reached["seconds_to_target"]).median(),
        "best_accuracy": float(group["best_accuracy"].median()),
        "below": int((reached["epochs_below_target"] > 0).sum()),
    }
    if "energy_to_target_joules" in group and group["energy_to_target_joules"].notna().any():
        found["joules"] = olympic_mean(group["energy_to_target_joules"].fillna(math.inf).tolist()).value
    paid = group[group[PRICE].notna()]
    if len(paid):
        currency = paid["price_currency"].iloc[0]
        found["cost"] = COST_TO_TARGET.value(float(paid[PRICE].iloc[0]), score.value)
        found["currency"] = "" if pd.isna(currency) else str(currency)
    return found


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
                found.loc[place, ["least_epochs", "passes"]] = [verdict.least, verdict.passes]
    return found.astype({"passes": bool})


def _tested(reference: pd.DataFrame, row: pd.Series) -> Verdict:
    """The test of reference points, which are rows of scores, for another row."""
    points = [convergence(float(one["batch_size"]), one["_epochs"]) for _, one in reference.iterrows()]
    finite = [point for point in points if math.isfinite(point.mean)]
    return judge(prune(finite) if finite else [], float(row["batch_size"]), row["_epochs"])


def _ratios(scores: pd.DataFrame) -> pd.DataFrame:
    """Each pair of platforms over the settings that both have."""
    found = []
    sides = dict(iter(scores[np.isfinite(scores["seconds"])].groupby("_place")))
    for one, other in itertools.combinations(sides.values(), 2):
        both = one.merge(other, on=["family", "choice", "batch_size"], suffixes=("_a", "_b"))
        if both.empty:
            continue
        seconds, epochs = (float(np.exp(np.log(both[f"{n}_b"] / both[f"{n}_a"]).mean())) for n in ("seconds", "epochs"))
        names = both["platform_a"].iloc[0], both["platform_b"].iloc[0]
        if seconds < 1:
            names, seconds, epochs, one, other = names[::-1], 1 / seconds, 1 / epochs, other, one
        settings = dict(iter(other[other["batch_size"].notna()].groupby(["family", "choice"])))
        tests = [
            _tested(settings[row["family"], row["choice"]], row)
            for _, row in one[one["batch_size"].notna()].iterrows()
            if (row["family"], row["choice"]) in settings
        ]
        tests = [test for test in tests if math.isfinite(test.least)]
        found.append((*names, len(both), seconds, epochs, len(tests), sum(test.passes for test in tests)))
    columns = ["faster", "slower", "settings", "seconds", "epochs", "tested", "passed"]
    return pd.DataFrame(found, columns=columns)


class Convergence(NamedTuple):
    """Epochs at a batch size: their mean over `kept` of `runs` trainings, and the standard deviation of all."""

    batch_size: float
    mean: float
    deviation: float
    kept: int
    runs: int

    def least(self, submitted: int) -> float:
        """The fewest epochs that the mean of so many trainings may have; NaN for fewer than three."""
        if submitted < 3 or self.kept < 1 or submitted + self.kept < 5:
            return math.nan
        error = self.deviation * math.sqrt(1 / self.kept + 1 / (submitted - 2))
        return max(0.0, self.mean - float(stats.t.ppf(LEVEL, self.kept + submitted - 4)) * error)


class Verdict(NamedTuple):
    """`mean` epochs of the trainings beside the `expected` ones of the reference, and the `least` that pass.

    basis: found, interpolated, smallest (below it), beyond (above the largest: nothing to compare with, it fails),
    unfinished (too many trainings that did not converge) or few (fewer than three trainings: nothing is tested).
    """

    basis: str
    passes: bool
    mean: float
    expected: float = math.nan
    least: float = math.nan


def convergence(batch_size: float, epochs: Sequence[float], dropped: int = 1) -> Convergence:
    """The point of trainings that took so many `epochs`, `dropped` being left out at either end (of fewer: none)."""
    ordered = sorted(epochs)
    kept = ordered[dropped:-dropped] if len(ordered) > 2 * dropped else ordered
    finite = [value for value in ordered if math.isfinite(value)]
    return Convergence(batch_size, math.fsum(kept) / len(kept), float(np.std(finite)), len(kept), len(ordered))


def prune(points: Iterable[Convergence]) -> list[Convergence]:
    """The points on the fast side, by batch size; of several at one batch size the first."""
    ordered = list({point.batch_size: point for point in reversed(list(points))}.values())
    ordered.sort(key=lambda point: point.batch_size)
    fastest = min(ordered, key=lambda point: point.mean).batch_size
    kept = [point for point in ordered if point.batch_size >= fastest]
    place = 1
    while place < len(kept) - 1:
        if kept[place].mean > _between(kept[place].batch_size, kept[place - 1], kept[place + 1]).mean:
            del kept[place]
        else:
            place += 1
    return kept


def judge(
    reference: Sequence[Convergence],
    batch_size: float,
    epochs: Sequence[float],
    dropped: int = 1,
    reference_runs: int | None = None,
) -> Verdict:
    """Whether trainings at a batch size, which took so many `epochs` (infinite: did not converge), pass `reference`.

    `reference` is what `prune` gave. An interpolated point stands for `reference_runs` trainings (in MLPerf twice as
    many as are submitted); None: as many as its neighbours have.
    """
    own = convergence(batch_size, epochs, dropped)
    if not math.isfinite(own.mean):
        return Verdict("unfinished", False, own.mean)
    if own.runs < 3:
        return Verdict("few", True, own.mean)
    sizes = [point.batch_size for point in reference]
    place = bisect.bisect_left(sizes, batch_size)
    if place == len(sizes):
        return Verdict("beyond", False, own.mean)
    if sizes[place] == batch_size:
        basis, point = "found", reference[place]
    elif place == 0:
        basis, point = "smallest", reference[0]
    else:
        basis, point = "interpolated", _between(batch_size, reference[place - 1], reference[place], reference_runs)
    least = point.least(own.runs)
    # Rounding decides nothing where all trainings took the same.
    return Verdict(basis, not own.mean < least * (1 - 1e-9), own.mean, point.mean, least)


def _between(batch_size: float, low: Convergence, high: Convergence, runs: int | None = None) -> Convergence:
    """The point on the line between two others; nothing is left out of the runs that it stands for."""
    sizes = (low.batch_size, high.batch_size)
    mean, deviation = (
        float(np.interp(batch_size, sizes, pair)) for pair in ((low.mean, high.mean), (low.deviation, high.deviation))
    )
    count = min(low.runs, high.runs) if runs is None else runs
    return Convergence(batch_size, mean, deviation, count, count)
