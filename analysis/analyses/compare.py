"""`compare`: two platforms, environments, versions or sweeps, cell by cell, with a verdict for each family.

Every ratio comes with its interval and its source; a test is made only where the replicates can carry one, and over
all tests the share of false discoveries is held. Each family gets one verdict, which may be that nothing is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import option
from analysis.registry import analysis
from analysis.result import Result
from analysis.sides import (
    KEPT,
    PairedOptions,
    Sides,
    apart,
    choose_sides,
    is_speed,
    join_on,
    mean_of,
    no_verdict,
    sources_of,
    tidy,
)
from analysis.statistics.contrast import MARGIN, Contrast, Verdict, adjusted, equivalent, judge
from analysis.statistics.dependence import MINIMUM_POINTS, Unit
from analysis.statistics.pairing import pair
from analysis.store.frame import families

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_KEPT = (*KEPT, "a_count", "b_count", "p_value", "p_adjusted", "verdict")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(PairedOptions):
    """Two sides, and what to compare of them."""

    command = "compare"

    a: str = option(
        text="condition of side A's runs, such as 'device=TPU v2'", metavar="A", positional=True, names="conditions"
    )
    b: str = option(
        text="condition of side B's runs, such as sweep_id=... or environment_id=...",
        metavar="B",
        positional=True,
        names="conditions",
    )
    rate: float = option(
        0.05, "share of false ones among the differences found (default: 0.05)", metavar="Q", above=0, below=1
    )


class Comparison(NamedTuple):
    """`cells`: a row for each paired point, with the columns of `pairing.pair` (p_value only where tested) and
    `tested`, `p_adjusted` (Benjamini-Hochberg over all tested cells) and `verdict`, any but NOT_ENOUGH. `families`: a
    row for each family that either side measured, as `contrast.Contrast.row` and `judge` give it (any verdict but
    UNTESTED), with `tested`, `a_better`, `b_better` and `same`, cells found by the tests."""

    cells: pd.DataFrame
    families: pd.DataFrame


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompareResult(Result):
    """The cells of both sides and the families (`Comparison`), and what was asked."""

    cells: pd.DataFrame
    families: pd.DataFrame
    sides: Sides
    asked: CompareOptions

    @property
    def table(self) -> pd.DataFrame:
        return tidy(self.cells, _KEPT)

    def _figure(self) -> Figure:
        return _draw(self)

    def _paragraphs(self) -> Iterator[str]:
        metric, cells = self.asked.metric, self.cells
        word = "faster" if is_speed(metric) else "better"
        a, b = names = self.sides.called
        yield f"{self.sides.named()}Ratios are {a} over {b} in {metric}, above 1 where {a} is {word}."
        for row in self.families.to_dict("records"):
            yield _sentence(row, word, self.asked.margin, names)
        yield from no_verdict(cells)
        if len(cells):
            yield _tests(cells, self.asked, word, names)
            samples = dict.fromkeys(self.families.loc[self.families["points"] > 0, "sample"])
            yield f"Intervals are 95%; those of means are over {'; '.join(samples)}. {sources_of(cells)}"
        yield from apart(cells, self.sides)


@analysis(
    CompareOptions,
    summary="A against B: each cell with interval and test, and a verdict for each family",
    description="Pair the points that two sides both measured: platforms, environments, versions or sweeps.\n"
    "A and B are conditions as in --where, several joined by ' & '. Each ratio has its interval,\n"
    "a test where there are three replicates on both sides, false discoveries held over all cells;\n"
    "each family has a verdict: A faster, B faster, no difference shown, or not enough data.",
    example="python -m analysis compare version.tensorflow=2.21.0 version.tensorflow=2.20.0 --figure compare.png",
    section="pair",
    order=160,
    title="Cell by cell",
    reading=("Each mark is a point that both measured; the bar is the geometric mean with its 95% interval."),
)
def compare(frame: pd.DataFrame, options: CompareOptions) -> CompareResult:
    """The cells of A and B with interval, test and verdict, and a verdict for each family.

    ConfigError for a side without runs or a metric without direction, SchemaError for heterogeneous runs of a side.
    """
    sides = choose_sides(frame, [options.a], [options.b], ("A", "B"), options.pool)
    on = join_on(options.on, sides)
    found = compare_points(sides.a, sides.b, options.metric, on, options.rate, options.margin, options.unit)
    return CompareResult(**found._asdict(), sides=sides, asked=options, sources=sides.sources, pooled=sides.pooled)


def _sentence(row: dict[Any, Any], word: str, margin: float, names: tuple[str, str]) -> str:
    """The verdict of one family, with what it rests on."""
    count, verdict, family = row["points"], row["verdict"], row["family"]
    if not count:
        return f"{family}: not enough data, no point was measured on both sides."
    # Said from the winner's side: how many times faster B is.
    turned = verdict == Verdict.B_BETTER
    first, other = names[::-1] if turned else names
    said = {
        Verdict.A_BETTER: f"{first} {word}",
        Verdict.B_BETTER: f"{first} {word}",
        Verdict.SAME: f"the same within {margin:.0%}",
    }.get(verdict, verdict)
    why = {
        "tests": ", by the tests of its points",
        "nothing": f" (a verdict needs {MINIMUM_POINTS} points, or {REPLICATES} replicates of each on both sides)",
        "page": " (by itself this would be a verdict, but not with those of the other families at once, Holm)",
        "missing": " (the points that ran on one side alone could turn it)",
    }.get(row["basis"], "")
    least, most = (1 / row["maximum"], 1 / row["minimum"]) if turned else (row["minimum"], row["maximum"])
    ahead = count - row["wins"] if turned else row["wins"]
    of = f" of {first} over {other}" if turned else ""
    return (
        f"{family}: {said}{why}: {mean_of(row, names, turned)}{of}, single points {least:.3g} to {most:.3g}; {first} "
        f"is ahead in {ahead}."
    )


def _tests(cells: pd.DataFrame, asked: CompareOptions, word: str, names: tuple[str, str]) -> str:
    """What was tested, and what the tests found."""
    tested, counts = int(cells["tested"].sum()), cells["verdict"].value_counts()
    if not tested and not cells["comparable"].any():
        return "No cell is tested, since the sessions of the sides carry no verdict."
    if not tested:
        return f"No cell is tested: that takes {REPLICATES} replicates of a point on both sides (replicate=0,1,2)."
    a, b, same = (counts.get(verdict, 0) for verdict in (Verdict.A_BETTER, Verdict.B_BETTER, Verdict.SAME))
    lacking = len(cells) - tested
    why = f" {lacking} of {len(cells)} cells are not tested: a test takes {REPLICATES} replicates on both sides."
    return (
        f"Of {tested} cells tested (Welch's t on logarithms) {names[0]} is {word} in {a}, {names[1]} in {b}, {same} "
        f"are the same within {asked.margin:.0%}; at most {asked.rate:.0%} of these are expected to be false "
        f"(Benjamini-Hochberg).{why if lacking else ''}"
    )


#: Replicates on each side that a test needs: with two, a t of one degree of freedom finds next to nothing, and a
#: single outlier cannot be recognised.
REPLICATES = 3


def compare_points(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    rate: float = 0.05,
    margin: float = MARGIN,
    unit: Unit = "crossed",
) -> Comparison:
    """Compare A with B point by point and give each family a verdict (`contrast.judge`).

    Nothing is tested, and no verdict given, where the sessions of the sides do not allow it. A cell is tested (Welch's
    t on logarithms, see `pairing.pair`) where both sides have REPLICATES independent measurements; it counts as the
    same where the adjusted p of the two one-sided tests against `margin` is at most `rate`, else as different where
    that of no difference is. A family of fewer points than a mean needs has the verdict of its cells, if all are tested
    and agree.
    """
    cells = pair(a, b, metric, on)
    # pandas copies attrs with every slice.
    attrs, cells.attrs = cells.attrs, {}
    enough = (cells["a_units"] >= REPLICATES) & (cells["b_units"] >= REPLICATES)
    tested = cells["comparable"] & enough & cells["p_value"].notna()
    cells["p_value"] = cells["p_value"].where(tested)
    cells["tested"] = tested
    cells["p_adjusted"] = adjusted(cells["p_value"].to_numpy(), discoveries=True)
    logs = np.log(cells["speedup"].to_numpy(dtype="float64"))
    same = equivalent(logs, logs, cells["log_error"].to_numpy(), cells["degrees"].to_numpy(), margin)
    same = adjusted(np.where(tested, same, np.nan), discoveries=True) <= rate
    cells["verdict"] = np.select(
        [~cells["comparable"].astype(bool), ~tested, same, cells["p_adjusted"] <= rate],
        [Verdict.WITHHELD, Verdict.UNTESTED, Verdict.SAME, np.where(logs > 0, Verdict.A_BETTER, Verdict.B_BETTER)],
        Verdict.NOT_SHOWN,
    )
    cells.attrs = attrs
    names = families(pd.DataFrame({"family": [*a["family"].dropna().unique(), *b["family"].dropna().unique()]}))
    contrasts = [Contrast.of(cells, name, unit) for name in names]
    rows = judge(
        pd.DataFrame([{"family": name} | one.row() for name, one in zip(names, contrasts, strict=True)]), margin
    )
    more = [_of_cells(cells[cells["family"] == name]) for name in names]
    rows = pd.concat([rows, pd.DataFrame(more)], axis=1)
    few = rows["basis"] == "few"
    rows.loc[few, "basis"] = np.where(rows.loc[few, "by_tests"].notna(), "tests", "nothing")
    rows.loc[few, "verdict"] = rows.loc[few, "by_tests"].fillna(Verdict.NOT_ENOUGH.value)
    return Comparison(cells, rows.drop(columns="by_tests"))


def _of_cells(cells: pd.DataFrame) -> dict[str, Any]:
    """What the tests of single cells found; `by_tests` is the verdict of a family all of whose cells are tested."""
    counts = cells["verdict"].value_counts()
    only = counts.index[0] if len(counts) == 1 else Verdict.NOT_SHOWN.value
    return {
        "tested": int(cells["tested"].sum()),
        "a_better": int(counts.get(Verdict.A_BETTER, 0)),
        "b_better": int(counts.get(Verdict.B_BETTER, 0)),
        "same": int(counts.get(Verdict.SAME, 0)),
        "by_tests": only if len(cells) and cells["tested"].all() else None,
    }


def _looks() -> dict[Verdict, tuple[str, str]]:
    """Verdict of a cell -> (colour, marker)."""
    return {
        Verdict.A_BETTER: (drawing.COLOURS[0], "^"),
        Verdict.B_BETTER: (drawing.COLOURS[1], "v"),
        Verdict.NOT_SHOWN: ("#777777", "s"),
        Verdict.UNTESTED: ("#999999", "o"),
    }


def _draw(found: CompareResult) -> Figure:
    """A row for each family: a mark for each cell, coloured by its verdict, and the geometric mean with its 95%
    interval over points in black. Right of 1 `a` is better."""
    a, b = found.sides.name_a, found.sides.name_b
    families = [str(family) for family in found.families["family"]]
    drawn, (axes,) = drawing.panels(1, 8.0, 1.2 + 0.8 * len(families))
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    present = set()
    for place, row in enumerate(found.families.to_dict("records")):
        cells = found.cells[found.cells["family"] == row["family"]]
        present |= _marks(axes, cells, place)
        if row["points"]:
            mean = row["geometric_mean"]
            reach = [[mean - row["geometric_mean_low"]], [row["geometric_mean_high"] - mean]]
            ends = reach if np.isfinite(reach).all() else None
            axes.errorbar([mean], [place], xerr=ends, fmt="D", color="#000000", capsize=4, linewidth=1.6, zorder=4)
    told = {Verdict.A_BETTER: f"{a} better", Verdict.B_BETTER: f"{b} better"}
    words = [
        f"{row['family']}\n{told.get(row['verdict'], row['verdict'])}" for row in found.families.to_dict("records")
    ]
    drawing.names(axes.yaxis, words)
    axes.set_ylim(len(families) - 0.45, -0.55)
    drawing.finish(axes, f"{label(found.asked.metric)}: {a} against {b}", f"speedup of {a} over {b}")
    axes.grid(axis="y", visible=False)
    drawing.ratio_axis(axes.xaxis)
    handles: list[Any] = [
        axes.scatter([], [], color=colour, marker=marker, s=28, label=f"cell: {told.get(verdict, verdict)}")
        for verdict, (colour, marker) in _looks().items()
        if verdict in present
    ]
    handles.append(axes.errorbar([], [], xerr=[], fmt="D", color="#000000", label="geometric mean, 95% interval"))
    drawing.legend(drawn, handles)
    return drawn


def _marks(axes: Axes, cells: pd.DataFrame, place: int) -> set[str]:
    """A family's cells, spread evenly in height so that equal ratios are seen apart; returns the verdicts drawn."""
    ordered = cells.sort_values("speedup")
    count = len(ordered)
    # A low-discrepancy sequence: neighbours in ratio are far apart in height.
    height = pd.Series(place + (np.arange(count) * 0.6180339887 % 1 - 0.5) * 0.6, index=ordered.index)
    for verdict, (colour, marker) in _looks().items():
        rows = ordered[ordered["verdict"] == verdict]
        axes.scatter(rows["speedup"], height[rows.index], s=18, color=colour, marker=marker, alpha=0.7, linewidths=0)
    return set(ordered["verdict"])
