"""`compare`: two platforms, environments, versions or sweeps, cell by cell, with a verdict for each
family.

A and B are conditions as in --where, several joined by ' & '. Every ratio has an interval and its
source. A cell is tested only if both sides have three replicates, and the false discovery rate of
all tests is controlled. Each family gets one verdict: A faster, B faster, the same within the
margin, no difference shown, or not enough data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import option
from analysis.pairing import pair
from analysis.registry import analysis
from analysis.sides import (
    Compared,
    PairedOptions,
    Sides,
    choose_sides,
    describe_interval_sources,
    describe_mean,
    describe_missing_verdicts,
    is_speed,
)
from analysis.store.frame import families
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast, Verdict, judge
from paradnn.statistics.decision import MARGIN, adjust_p_values, equivalent
from paradnn.statistics.dependence import MINIMUM_POINTS, Unit

#: Replicates on each side that a test needs. With two, a t test of one degree of freedom finds next
#: to nothing, and a single outlier cannot be recognized.
REPLICATES = 3
_KEPT = ("a_count", "b_count", "p_value", "p_adjusted", "verdict")
#: What a verdict rests on, or why there is none.
_BASIS_TEXTS = {
    "tests": ", by the tests of its points",
    "nothing": (
        f" (a verdict needs {MINIMUM_POINTS} points, or {REPLICATES} replicates of each on both "
        "sides)"
    ),
    "page": (
        " (by itself this would be a verdict, but not with those of the other families at once, "
        "Holm)"
    ),
    "missing": " (the points that ran on one side alone could turn it)",
}
#: Color (an index into the palette, or a gray) and marker of a cell's verdict.
_LOOKS: dict[Verdict, tuple[int | str, str]] = {
    Verdict.A_BETTER: (0, "^"),
    Verdict.B_BETTER: (1, "v"),
    Verdict.NOT_SHOWN: ("#777777", "s"),
    Verdict.UNTESTED: ("#999999", "o"),
}
#: Fractional part of the golden ratio: its multiples modulo 1 are a low-discrepancy sequence.
_GOLDEN_RATIO = 0.6180339887


@dataclass(frozen=True, kw_only=True)
class CompareOptions(PairedOptions):
    """Two sides, and how to test them."""

    a: str = option(
        text="condition of side A's runs, such as 'device=TPU v2'",
        metavar="A",
        positional=True,
        names="conditions",
    )
    b: str = option(
        text="condition of side B's runs, such as sweep_id=... or environment_id=...",
        metavar="B",
        positional=True,
        names="conditions",
    )
    rate: float = option(
        0.05, "share of false ones among the differences found", metavar="Q", above=0, below=1
    )


class ComparedPoints(NamedTuple):
    """Two sides compared point by point.

    Attributes:
        cells: A row per pair of points, with the columns of `pairing.pair` (`p_value` only if
            tested), `tested`, `p_adjusted` (Benjamini-Hochberg over all tested cells) and
            `verdict`, any but NOT_ENOUGH.
        families: A row per family that either side measured, with the columns of `Contrast.row` and
            `judge` (any verdict but UNTESTED), and `tested`, `a_better`, `b_better` and `same`, the
            numbers of cells.
    """

    cells: pd.DataFrame
    families: pd.DataFrame


@analysis(
    CompareOptions,
    summary="A against B: each cell with interval and test, and a verdict for each family",
    example=(
        "python -m analysis compare version.tensorflow=2.21.0 version.tensorflow=2.20.0 "
        "--figure compare.png"
    ),
    section="pair",
    order=160,
    title="Cell by cell",
    reading=(
        "Each mark is a point that both measured; the bar is the geometric mean with its 95% "
        "interval."
    ),
)
def compare(frame: pd.DataFrame, options: CompareOptions) -> Compared:
    """Compare A with B, cell by cell and per family.

    Raises:
        ConfigError: If a side has no runs, or the metric has no direction.
        SchemaError: If the runs of a side are heterogeneous.
    """
    sides = choose_sides(frame, [options.a], [options.b], ("A", "B"), options.pool)
    compared = compare_points(
        sides.a,
        sides.b,
        options.metric,
        sides.join_on(options.on),
        rate=options.rate,
        margin=options.margin,
        unit=options.unit,
    )
    return sides.compared(
        cells=compared.cells,
        families=compared.families,
        options=options,
        sentences=_describe(compared, sides, options),
        picture=lambda: _draw(compared, sides, options.metric),
        keep=_KEPT,
    )


def _describe(compared: ComparedPoints, sides: Sides, options: CompareOptions) -> Iterator[str]:
    word = "faster" if is_speed(options.metric) else "better"
    names = sides.display_names
    yield (
        f"{sides.explain_names()}Ratios are {names[0]} over {names[1]} in {options.metric}, "
        f"above 1 where {names[0]} is {word}."
    )
    for row in compared.families.to_dict("records"):
        yield _describe_family(row, word, options.margin, names)
    yield from describe_missing_verdicts(compared.cells)
    if len(compared.cells):
        yield _describe_tests(compared.cells, options, word, names)
        has_points = compared.families["points"] > 0
        samples = "; ".join(dict.fromkeys(compared.families.loc[has_points, "sample"]))
        yield (
            f"Intervals are 95%; those of means are over {samples}. "
            f"{describe_interval_sources(compared.cells)}"
        )
    yield from sides.describe_differences(compared.cells)


def _describe_family(row: dict[Any, Any], word: str, margin: float, names: tuple[str, str]) -> str:
    """Describe the verdict of one family from the side of the winner."""
    family = row["family"]
    count = row["points"]
    verdict = row["verdict"]
    if not count:
        return f"{family}: not enough data, no point was measured on both sides."
    inverted = verdict == Verdict.B_BETTER
    if inverted:
        leader = names[1]
        least, most = 1 / row["maximum"], 1 / row["minimum"]
        ahead = count - row["wins"]
    else:
        leader = names[0]
        least, most = row["minimum"], row["maximum"]
        ahead = row["wins"]
    if verdict in (Verdict.A_BETTER, Verdict.B_BETTER):
        outcome = f"{leader} {word}"
    elif verdict == Verdict.SAME:
        outcome = f"the same within {margin:.0%}"
    else:
        outcome = verdict
    mean = describe_mean(row, names, inverted)
    if inverted:
        mean += f" of {names[1]} over {names[0]}"
    basis = _BASIS_TEXTS.get(row["basis"], "")
    return (
        f"{family}: {outcome}{basis}: {mean}, single points {least:.3g} to {most:.3g}; "
        f"{leader} is ahead in {ahead}."
    )


def _describe_tests(
    cells: pd.DataFrame, options: CompareOptions, word: str, names: tuple[str, str]
) -> str:
    """Say how many cells were tested, and what the tests found."""
    tested = int(cells["tested"].sum())
    if not tested and not cells["comparable"].any():
        return "No cell is tested, since the sessions of the sides carry no verdict."
    if not tested:
        return (
            f"No cell is tested: that takes {REPLICATES} replicates of a point on both sides "
            "(replicate=0,1,2)."
        )
    counts = _verdict_counts(cells)
    text = (
        f"Of {counted(tested, 'cell')} tested (Welch's t on logarithms) {names[0]} is {word} in "
        f"{counts['a_better']}, {names[1]} in {counts['b_better']}, "
        f"{counts['same']} are the same within {options.margin:.0%}; at most {options.rate:.0%} "
        "of these are expected to be false (Benjamini-Hochberg)."
    )
    untested = len(cells) - tested
    if untested:
        text += (
            f" {untested} of {counted(len(cells), 'cell')} are not tested: a test takes "
            f"{REPLICATES} replicates on both sides."
        )
    return text


def compare_points(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    *,
    rate: float = 0.05,
    margin: float = MARGIN,
    unit: Unit = "crossed",
) -> ComparedPoints:
    """Compare A with B point by point, and give each family a verdict (`contrast.judge`).

    Nothing is tested, and no verdict given, where the sessions of the sides do not allow it. A cell
    is tested (Welch's t on logarithms, see `pairing.pair`) if both sides have REPLICATES
    independent measurements. It counts as the same if the adjusted p of the two one-sided tests
    against `margin` is at most `rate`. Otherwise it counts as different if the adjusted p of no
    difference is at most `rate`. A family with too few points for a mean has the verdict of its
    cells if all of them are tested and agree.

    Args:
        a: Runs of A.
        b: Runs of B.
        metric: The metric to compare.
        on: Columns that identify a point; None for the default of `pair`.
        rate: False discovery rate of the cells.
        margin: Largest relative difference that counts as the same.
        unit: What is taken as a sample.
    """
    cells = pair(a, b, metric, on)
    # pandas copies attrs with every slice.
    attrs = cells.attrs
    cells.attrs = {}
    _test_cells(cells, rate, margin)
    cells.attrs = attrs
    family_values = [*a["family"].dropna().unique(), *b["family"].dropna().unique()]
    names = families(pd.DataFrame({"family": family_values}))
    contrasts = [{"family": name} | Contrast.of(cells, name, unit).row() for name in names]
    summaries = [_summarize_cells(cells[cells["family"] == name]) for name in names]
    rows = pd.concat([judge(pd.DataFrame(contrasts), margin), pd.DataFrame(summaries)], axis=1)
    few = rows["basis"] == "few"
    by_tests = rows.loc[few, "by_tests"]
    rows.loc[few, "basis"] = np.where(by_tests.notna(), "tests", "nothing")
    rows.loc[few, "verdict"] = by_tests.fillna(Verdict.NOT_ENOUGH.value)
    return ComparedPoints(cells, rows.drop(columns="by_tests"))


def _test_cells(cells: pd.DataFrame, rate: float, margin: float) -> None:
    """Add `tested`, `p_adjusted` and `verdict` to the cells, in place."""
    has_replicates = (cells["a_units"] >= REPLICATES) & (cells["b_units"] >= REPLICATES)
    tested = cells["comparable"] & has_replicates & cells["p_value"].notna()
    cells["p_value"] = cells["p_value"].where(tested)
    cells["tested"] = tested
    cells["p_adjusted"] = adjust_p_values(cells["p_value"].to_numpy(), discoveries=True)
    logs = np.log(cells["speedup"].to_numpy(dtype="float64"))
    p_equivalent = equivalent(
        logs, logs, cells["log_error"].to_numpy(), cells["degrees"].to_numpy(), margin
    )
    p_equivalent = adjust_p_values(np.where(tested, p_equivalent, np.nan), discoveries=True)
    leader = np.where(logs > 0, Verdict.A_BETTER, Verdict.B_BETTER)
    cells["verdict"] = np.select(
        [
            ~cells["comparable"].astype(bool),
            ~tested,
            p_equivalent <= rate,
            cells["p_adjusted"] <= rate,
        ],
        [Verdict.WITHHELD, Verdict.UNTESTED, Verdict.SAME, leader],
        Verdict.NOT_SHOWN,
    )


def _verdict_counts(cells: pd.DataFrame) -> dict[str, int]:
    """Count the cells of each verdict that a test can show."""
    counts = cells["verdict"].value_counts()
    return {
        "a_better": int(counts.get(Verdict.A_BETTER, 0)),
        "b_better": int(counts.get(Verdict.B_BETTER, 0)),
        "same": int(counts.get(Verdict.SAME, 0)),
    }


def _summarize_cells(cells: pd.DataFrame) -> dict[str, Any]:
    """Count the tested cells of a family and their verdicts.

    `by_tests` is the verdict of a family all of whose cells are tested; None for another.
    """
    by_tests = None
    if len(cells) and cells["tested"].all():
        verdicts = cells["verdict"].unique()
        by_tests = verdicts[0] if len(verdicts) == 1 else Verdict.NOT_SHOWN.value
    return {
        "tested": int(cells["tested"].sum()),
        **_verdict_counts(cells),
        "by_tests": by_tests,
    }


def _draw(compared: ComparedPoints, sides: Sides, metric: str) -> drawing.Figure:
    """Draw a row per family: a mark per cell by its verdict, and the geometric mean in black.

    Right of 1, A is better. Marks are spread in height so that similar ratios stay apart.
    """
    rows = compared.families
    verdict_names = {
        Verdict.A_BETTER: f"{sides.name_a} better",
        Verdict.B_BETTER: f"{sides.name_b} better",
    }
    figure, (axes,) = drawing.panels(1, 8.0, 1.2 + 0.8 * len(rows))
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    row_numbers = {name: number for number, name in enumerate(rows["family"])}
    cells = compared.cells.assign(height=compared.cells["family"].map(row_numbers))
    cells = cells.sort_values(["height", "speedup"])
    # Neighbors in ratio become far apart in height.
    cells["height"] += (cells.groupby("height").cumcount() * _GOLDEN_RATIO % 1 - 0.5) * 0.6
    for verdict, (color, marker) in _LOOKS.items():
        part = cells[cells["verdict"] == verdict]
        if len(part):
            axes.scatter(
                part["speedup"],
                part["height"],
                s=18,
                color=drawing.COLOURS[color] if isinstance(color, int) else color,
                marker=marker,
                alpha=0.7,
                linewidths=0,
                label=f"cell: {verdict_names.get(verdict, verdict)}",
            )
    means = drawing.ends_of(rows.set_index("family"), "geometric_mean")
    labels = {
        row["family"]: f"{row['family']}\n{verdict_names.get(row['verdict'], row['verdict'])}"
        for row in rows.to_dict("records")
    }
    mean = "geometric mean, 95% interval"
    look = {"marker": "D", "color": "#000000", "zorder": 4}
    drawing.forest(axes, labels, {mean: means}, {mean: look})
    drawing.finish(
        axes,
        f"{label(metric)}: {sides.name_a} against {sides.name_b}",
        f"speedup of {sides.name_a} over {sides.name_b}",
        logs={"x": drawing.times},
        grid="x",
    )
    drawing.legend(figure)
    return figure
