"""Choice between two hardware upgrades of the same points: which one helps each point more.

A point is one measured configuration. The errors of both predictions are correlated: they share the
fit of the present device, and much of the difference between specified and reached gains. The
interval of the ratio is therefore narrower than the intervals of the speedups suggest. A choice is
undecided if the 95% interval of the ratio includes 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from analysis.format import format_number, format_with_interval
from analysis.lazy import drawing, np, pd
from analysis.point_names import with_point_names
from analysis.result import AnalysisAnswer
from analysis.store.frame import families
from paradnn.core.words import counted

UNDECIDED = "undecided"
#: Largest number of points that are drawn with interval bars.
_MAX_BARS = 150
_MAX_FAMILIES = 6


class Alternative(NamedTuple):
    """One of two hardware upgrades, with its predicted speedups.

    Attributes:
        name: The upgrade as the subject of a sentence.
        log_speedups: (p, draws) sampled logarithms of the predicted speedups of p points (measured
            configurations).
        measured: (p,) measured speedups of the same points; NaN for points that were not measured
            on the upgraded device.
    """

    name: str
    log_speedups: np.ndarray
    measured: np.ndarray


@dataclass(frozen=True, eq=False)
class UpgradeChoice:
    """Two hardware upgrades of p points, to be compared.

    Attributes:
        points: The p points (measured configurations), one row each.
        first: The first upgrade.
        second: The second upgrade. Its sampled speedups and those of the first upgrade use the same
            sample of the model's parameters at the same position.
    """

    points: pd.DataFrame
    first: Alternative
    second: Alternative

    @property
    def log_ratios(self) -> np.ndarray:
        """(p, draws) sampled logarithms of the first upgrade's speedup relative to the second's."""
        return np.asarray(self.first.log_speedups - self.second.log_speedups)

    def table(self) -> pd.DataFrame:
        """Return a row per point, sorted by the ratio of the speedups, the highest first.

        A point is one measured configuration. The columns are:

        - the name of the point, its family and its device;
        - `ratio`: the first speedup relative to the second, with its interval;
        - `better`: the better upgrade, or that it is undecided;
        - `probability`: the probability that the first upgrade is better;
        - both speedups with their intervals;
        - `measured_ratio`: the ratio of the measured speedups, if any point has one;
        - `step_time_ms`, `parameters`: the size of the point;
        - `run_id`.
        """
        points = self.points
        ratio, low, high = interval(self.log_ratios)
        table = pd.DataFrame(
            {
                "family": points["family"],
                "device": points["device"],
                "ratio": ratio,
                "ratio_low": low,
                "ratio_high": high,
                "better": self._better(low, high),
                "probability": (self.log_ratios > 0).mean(axis=-1),
            }
        )
        for place, each in (("first", self.first), ("second", self.second)):
            middle, least, most = interval(each.log_speedups)
            table[f"{place}_speedup"] = middle
            table[f"{place}_speedup_low"] = least
            table[f"{place}_speedup_high"] = most
        measured = self.first.measured / self.second.measured
        if np.isfinite(measured).any():
            table["measured_ratio"] = measured
        table = table.assign(
            step_time_ms=points["step_time_ms"],
            parameters=points.get("parameters", pd.Series(np.nan, index=points.index)),
            run_id=points["run_id"],
        )
        table = with_point_names(table, points)
        return table.sort_values("ratio", ascending=False, kind="stable", ignore_index=True)

    def _better(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        names = [self.first.name, self.second.name]
        return np.select([low > 1, high < 1], names, UNDECIDED)

    def answer(self) -> AnalysisAnswer:
        """State which upgrade makes the points faster on average, or that it is undecided."""
        ratio, low, high = interval(self.log_ratios.mean(axis=0))
        table = self.table()
        count = len(table)
        names = ", ".join(families(self.points))
        devices = ", ".join(dict.fromkeys(self.points["device"].astype(str)))
        subject = f"{counted(count, 'point')} of {names} on {devices}"
        better = self.first
        other = self.second
        shown = (ratio, low, high)
        if ratio < 1:
            better, other = other, better
            shown = (1 / ratio, 1 / high, 1 / low)
        if low > 1 or high < 1:
            head = f"{better.name} would help {subject} more than {other.name}"
        else:
            share = (self.log_ratios.mean(axis=0) > 0).mean()
            probability = max(share, 1 - share)
            head = (
                f"It is undecided whether {better.name} or {other.name} would help {subject} more "
                f"({better.name} with a probability of {probability:.0%})"
            )
        gain = format_with_interval(shown, _times)
        sentence = f"{head}: {better.name} makes them {gain} as fast as {other.name}"
        if count > 1:
            sentence += f"; {self._describe_counts(table)}"
        return AnalysisAnswer(
            sentence=f"{sentence}.",
            ratio=float(ratio),
            low=float(low),
            high=float(high),
            ahead=int(table["better"].eq(self.first.name).sum()),
            points=count,
            basis="the fit of operation times, and gains reached by earlier upgrades",
        )

    def _describe_counts(self, table: pd.DataFrame) -> str:
        counts = table["better"].value_counts()
        parts = [
            f"{name} is better for {counts.get(name, 0):,}"
            for name in (self.first.name, self.second.name)
        ]
        return ", ".join([*parts, f"undecided: {counts.get(UNDECIDED, 0):,}"])

    def sentences(self) -> Iterator[str]:
        """Yield the findings: both speedups, the better upgrade by model family, and a check.

        The check compares the prediction with the points that were measured with both upgrades.
        """
        for each in (self.first, self.second):
            middle, low, high = interval(each.log_speedups.mean(axis=0))
            speedup = format_with_interval((middle, low, high), _times)
            yield f"{each.name}: {speedup} as fast as now in the geometric mean."
        yield from self._describe_families()
        yield from self._describe_check()

    def _describe_families(self) -> Iterator[str]:
        keys = self.points[["family", "device"]].astype("object")
        groups = keys.groupby(["family", "device"], sort=False).indices
        if len(groups) == 1:
            return
        for key, index in list(groups.items())[:_MAX_FAMILIES]:
            family, device = map(str, cast("tuple[Any, Any]", key))
            ratio, low, high = interval(self.log_ratios[index].mean(axis=0))
            better = self._better(np.array([low]), np.array([high]))[0]
            shown = format_with_interval((ratio, low, high), _times)
            verdict = f"{better} is better" if better != UNDECIDED else UNDECIDED
            yield (
                f"{family} on {device}, {counted(len(index), 'point')}: {verdict}. "
                f"{self.first.name} relative to {self.second.name}: {shown}."
            )
        if len(groups) > _MAX_FAMILIES:
            yield f"{counted(len(groups) - _MAX_FAMILIES, 'further group')}: see --csv."

    def _describe_check(self) -> Iterator[str]:
        table = self.table()
        if "measured_ratio" not in table:
            return
        known = table[table["measured_ratio"].notna()]
        decided = known[known["better"].ne(UNDECIDED)]
        truth = np.where(decided["measured_ratio"] > 1, self.first.name, self.second.name)
        right = int((decided["better"] == truth).sum())
        inside = known["measured_ratio"].between(known["ratio_low"], known["ratio_high"])
        yield (
            f"{counted(len(known), 'point')} measured on both: {len(decided):,} decided, {right:,} "
            f"of them correctly. The predicted 95% interval includes the measured ratio for "
            f"{int(inside.sum()):,}."
        )

    def draw(self) -> drawing.Figure:
        """Draw the ratio of both speedups over the model size, colored by the better upgrade."""
        table = self.table()
        figure, panels = drawing.panels(1, 6.0, 4.4)
        axes = panels[0]
        names = [self.first.name, self.second.name, UNDECIDED]
        _, x_label, shown = mark_points(axes, table, column="ratio", by="better", names=names)
        axes.axhline(1, color="#333333", linewidth=1)
        drawing.finish(
            axes,
            f"{self.first.name} or {self.second.name}: {counted(len(table), 'point')}",
            x_label,
            f"speedup by {self.first.name} relative to {self.second.name}",
            logs={"x": format_number, "y": drawing.times},
        )
        handles = [drawing.handle(name, **drawing.look(name, names)) for name in shown]
        drawing.legend(figure, handles, "better upgrade")
        return figure


def interval(log_values: np.ndarray) -> np.ndarray:
    """Return the median and the 95% interval of sampled logarithms, after exponentiation.

    Args:
        log_values: (..., draws) the samples.

    Returns:
        (3, ...) median, lower end and upper end.
    """
    return np.asarray(np.exp(np.quantile(log_values, (0.5, 0.025, 0.975), axis=-1)))


def _times(value: float) -> str:
    return f"{value:.3g}x"


def mark_points(
    axes: Any, table: pd.DataFrame, *, column: str, by: str, names: Sequence[str]
) -> tuple[pd.Series, str, list[str]]:
    """Mark each point (measured configuration) over its size.

    Up to 150 points get interval bars.

    Args:
        axes: Matplotlib axes.
        table: A row per point with `parameters`, `step_time_ms`, the given column, and the ends of
            its interval, `<column>_low` and `<column>_high`.
        column: The column to draw on the vertical axis.
        by: The column that colors the marks.
        names: The values of the column `by`, in the order of the colors.

    Returns:
        Three values:

        - the size of each point: its trainable parameters, or its step time in ms if no point has
          any;
        - the label of the size;
        - the names that were drawn.
    """
    x = table["parameters"]
    x_label = "trainable parameters"
    if not x.gt(0).any():
        x = table["step_time_ms"]
        x_label = "step time (ms)"
    shown = [name for name in names if table[by].eq(name).any()]
    for name in shown:
        is_part = table[by].eq(name) & x.gt(0)
        part = table[is_part]
        ends: Sequence[Any] = ()
        if len(table) <= _MAX_BARS:
            ends = (part[f"{column}_low"], part[f"{column}_high"])
        drawing.marks(
            axes,
            x[is_part],
            part[column],
            y_ends=ends,
            markersize=4,
            elinewidth=0.4,
            capsize=0,
            alpha=0.75,
            **drawing.look(name, names),
        )
    return x, x_label, shown
