"""`time-to-accuracy`: how long training to an accuracy takes, over seeds, batch sizes and platforms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.format import short
from analysis.options import Options
from analysis.prices import price_option, priced, read_prices
from analysis.result import Paragraph, Result
from analysis.summaries.gate import gated
from paradnn.core.words import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.time_to_accuracy import PlatformRatio, TimeToAccuracy

__all__ = ["TimeToAccuracyOptions", "TimeToAccuracyResult", "time_to_accuracy"]


@dataclass(frozen=True, kw_only=True)
class TimeToAccuracyOptions(Options):
    """What an hour costs."""

    command = "time-to-accuracy"

    price: tuple[str, ...] = price_option("adds the cost to the target")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TimeToAccuracyResult(Result):
    """The score of every setting on every platform."""

    found: TimeToAccuracy

    @property
    def table(self) -> pd.DataFrame:
        """A row for each setting on each platform."""
        return self.found.scores

    @property
    def drawable(self) -> bool:
        """Whether any setting with a batch size has a score."""
        scores = self.found.scores
        return bool((np.isfinite(scores["seconds"]) & scores["batch_size"].notna()).any())

    def _figure(self) -> Figure:
        from analysis.figures.time_to_accuracy import draw_time_to_accuracy

        return draw_time_to_accuracy(self.found)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for (family, platform), rows in self.found.scores.groupby(["family", "platform"], sort=False):
            yield _describe(f"{family} on {platform}", rows)
        for ratio in self.found.ratios:
            yield Paragraph(
                f"{ratio.faster} reaches the target {ratio.seconds:.3g}x as fast as {ratio.slower}, which takes "
                f"{ratio.epochs:.3g}x its epochs (geometric means over {counted(ratio.settings, 'setting')})."
                + _verdicts(ratio)
            )
        yield Paragraph(
            "A score is the mean over seeds without the fastest and the slowest (of fewer than three: of all); a run "
            "that did not reach its target is the slowest. Intervals are 95%, over seeds."
        )


@gated
def time_to_accuracy(frame: pd.DataFrame, options: TimeToAccuracyOptions | None = None) -> TimeToAccuracyResult:
    """Score the runs that train to an accuracy. NotEnoughData where none does."""
    from analysis.methods.time_to_accuracy import time_to_accuracy as analyse

    options = options or TimeToAccuracyOptions()
    found = analyse(priced(frame, read_prices(options.price, frame)))
    return TimeToAccuracyResult(found=found, sources=found.run_ids)


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


def _verdicts(ratio: PlatformRatio) -> str:
    """What reference points say of the faster platform's epochs."""
    if not ratio.tested:
        return ""
    if ratio.passed == ratio.tested:
        return " Its epochs pass MLPerf's test of reference points, which are the slower one's."
    failed = counted(ratio.tested - ratio.passed, "setting")
    return (
        f" In {failed} of {ratio.tested} it takes fewer epochs than the slower one's reference points allow (MLPerf's "
        "test): that part of its lead is another training's, or luck."
    )


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
