"""`compare`: two platforms, environments, versions or sweeps, cell by cell, with a verdict for each
family.

A and B are conditions as in --where, several joined by ' & '. Every ratio comes with its interval
and its source; a test is made only where there are three replicates on both sides, and over all
tests the share of false discoveries is held. Each family gets one verdict: A faster, B faster, no
difference shown, or not enough data.
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
    is_speed,
    mean_of,
    no_verdict,
    sources_of,
)
from analysis.store.frame import families
from paradnn.statistics.contrast import MARGIN, Contrast, Verdict, adjusted, equivalent, judge
from paradnn.statistics.dependence import MINIMUM_POINTS, Unit

_KEPT = ("a_count", "b_count", "p_value", "p_adjusted", "verdict")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(PairedOptions):
    """Two sides, and what to compare of them."""

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
    """`cells`: a row for each paired point, with the columns of `pairing.pair` (p_value only where
    tested) and `tested`, `p_adjusted` (Benjamini-Hochberg over all tested cells) and `verdict`, any
    but NOT_ENOUGH. `families`: a row for each family that either side measured, as
    `contrast.Contrast.row` and `judge` give it (any verdict but UNTESTED), with `tested`,
    `a_better`, `b_better` and `same`, cells found by the tests.
    """

    cells: pd.DataFrame
    families: pd.DataFrame


@analysis(
    CompareOptions,
    summary="A against B: each cell with interval and test, and a verdict for each family",
    example="python -m analysis compare version.tensorflow=2.21.0 version.tensorflow=2.20.0 --figure compare.png",
    section="pair",
    order=160,
    title="Cell by cell",
    reading=(
        "Each mark is a point that both measured; the bar is the geometric mean with its 95% interval."
    ),
)
def compare(frame: pd.DataFrame, options: CompareOptions) -> Compared:
    """The cells of A and B with interval, test and verdict, and a verdict for each family.

    ConfigError for a side without runs or a metric without direction, SchemaError for heterogeneous
    runs of a side.
    """
    sides = choose_sides(frame, [options.a], [options.b], ("A", "B"), options.pool)
    on = sides.join_on(options.on)
    found = compare_points(
        sides.a, sides.b, options.metric, on, options.rate, options.margin, options.unit
    )
    told = _told(found, sides, options)
    return sides.compared(*found, options, told, lambda: _draw(found, sides, options.metric), _KEPT)


def _told(found: ComparedPoints, sides: Sides, asked: CompareOptions) -> Iterator[str]:
    word = "faster" if is_speed(asked.metric) else "better"
    a, b = names = sides.called
    yield f"{sides.named()}Ratios are {a} over {b} in {asked.metric}, above 1 where {a} is {word}."
    for row in found.families.to_dict("records"):
        yield _sentence(row, word, asked.margin, names)
    yield from no_verdict(found.cells)
    if len(found.cells):
        yield _tests(found.cells, asked, word, names)
        samples = dict.fromkeys(found.families.loc[found.families["points"] > 0, "sample"])
        yield f"Intervals are 95%; those of means are over {'; '.join(samples)}. {sources_of(found.cells)}"
    yield from sides.apart(found.cells)


def _sentence(row: dict[Any, Any], word: str, margin: float, names: tuple[str, str]) -> str:
    """The verdict of one family, with what it rests on."""
    count = row["points"]
    verdict = row["verdict"]
    family = row["family"]
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
    least, most = (
        (1 / row["maximum"], 1 / row["minimum"]) if turned else (row["minimum"], row["maximum"])
    )
    ahead = count - row["wins"] if turned else row["wins"]
    of = f" of {first} over {other}" if turned else ""
    return (
        f"{family}: {said}{why}: {mean_of(row, names, turned)}{of}, single points {least:.3g} to {most:.3g}; {first} "
        f"is ahead in {ahead}."
    )


def _tests(cells: pd.DataFrame, asked: CompareOptions, word: str, names: tuple[str, str]) -> str:
    """What was tested, and what the tests found."""
    tested = int(cells["tested"].sum())
    counts = cells["verdict"].value_counts()
    if not tested and not cells["comparable"].any():
        return "No cell is tested, since the sessions of the sides carry no verdict."
    if not tested:
        return f"No cell is tested: that takes {REPLICATES} replicates of a point on both sides (replicate=0,1,2)."
    a, b, same = (
        counts.get(verdict, 0) for verdict in (Verdict.A_BETTER, Verdict.B_BETTER, Verdict.SAME)
    )
    lacking = len(cells) - tested
    why = f" {lacking} of {len(cells)} cells are not tested: a test takes {REPLICATES} replicates on both sides."
    return (
        f"Of {tested} cells tested (Welch's t on logarithms) {names[0]} is {word} in {a}, {names[1]} in {b}, {same} "
        f"are the same within {asked.margin:.0%}; at most {asked.rate:.0%} of these are expected to be false "
        f"(Benjamini-Hochberg).{why if lacking else ''}"
    )


#: Replicates on each side that a test needs: with two, a t of one degree of freedom finds next to
#: nothing, and a single outlier cannot be recognised.
REPLICATES = 3


def compare_points(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    rate: float = 0.05,
    margin: float = MARGIN,
    unit: Unit = "crossed",
) -> ComparedPoints:
    """Compare A with B point by point and give each family a verdict (`contrast.judge`).

    Nothing is tested, and no verdict given, where the sessions of the sides do not allow it. A cell
    is tested (Welch's t on logarithms, see `pairing.pair`) where both sides have REPLICATES
    independent measurements; it counts as the same where the adjusted p of the two one-sided tests
    against `margin` is at most `rate`, else as different where that of no difference is. A family
    of fewer points than a mean needs has the verdict of its cells, if all are tested and agree.
    """
    cells = pair(a, b, metric, on)
    # pandas copies attrs with every slice.
    attrs = cells.attrs
    cells.attrs = {}
    enough = (cells["a_units"] >= REPLICATES) & (cells["b_units"] >= REPLICATES)
    tested = cells["comparable"] & enough & cells["p_value"].notna()
    cells["p_value"] = cells["p_value"].where(tested)
    cells["tested"] = tested
    cells["p_adjusted"] = adjusted(cells["p_value"].to_numpy(), discoveries=True)
    logs = np.log(cells["speedup"].to_numpy(dtype="float64"))
    same = equivalent(
        logs, logs, cells["log_error"].to_numpy(), cells["degrees"].to_numpy(), margin
    )
    same = adjusted(np.where(tested, same, np.nan), discoveries=True) <= rate
    cells["verdict"] = np.select(
        [~cells["comparable"].astype(bool), ~tested, same, cells["p_adjusted"] <= rate],
        [
            Verdict.WITHHELD,
            Verdict.UNTESTED,
            Verdict.SAME,
            np.where(logs > 0, Verdict.A_BETTER, Verdict.B_BETTER),
        ],
        Verdict.NOT_SHOWN,
    )
    cells.attrs = attrs
    names = families(
        pd.DataFrame({"family": [*a["family"].dropna().unique(), *b["family"].dropna().unique()]})
    )
    contrasts = [Contrast.of(cells, name, unit) for name in names]
    rows = judge(
        pd.DataFrame(
            [{"family": name} | one.row() for name, one in zip(names, contrasts, strict=True)]
        ),
        margin,
    )
    more = [_of_cells(cells[cells["family"] == name]) for name in names]
    rows = pd.concat([rows, pd.DataFrame(more)], axis=1)
    few = rows["basis"] == "few"
    rows.loc[few, "basis"] = np.where(rows.loc[few, "by_tests"].notna(), "tests", "nothing")
    rows.loc[few, "verdict"] = rows.loc[few, "by_tests"].fillna(Verdict.NOT_ENOUGH.value)
    return ComparedPoints(cells, rows.drop(columns="by_tests"))


def _of_cells(cells: pd.DataFrame) -> dict[str, Any]:
    """What the tests of single cells found; `by_tests` is the verdict of a family all of whose
    cells are tested.
    """
    counts = cells["verdict"].value_counts()
    if len(counts) == 1:
        only = counts.index[0]
    else:
        only = Verdict.NOT_SHOWN.value
    found = {"a_better": Verdict.A_BETTER, "b_better": Verdict.B_BETTER, "same": Verdict.SAME}
    return {
        "tested": int(cells["tested"].sum()),
        **{name: int(counts.get(verdict, 0)) for name, verdict in found.items()},
        "by_tests": only if len(cells) and cells["tested"].all() else None,
    }


#: Verdict of a cell -> (colour, by its number or a grey, and marker).
_LOOKS: dict[Verdict, tuple[int | str, str]] = {
    Verdict.A_BETTER: (0, "^"),
    Verdict.B_BETTER: (1, "v"),
    Verdict.NOT_SHOWN: ("#777777", "s"),
    Verdict.UNTESTED: ("#999999", "o"),
}


def _draw(found: ComparedPoints, sides: Sides, metric: str) -> drawing.Figure:
    """A row for each family: a mark for each cell, by its verdict, spread evenly in height so that
    equal ratios are seen apart, and the geometric mean with its 95% interval over points in black.
    Right of 1 `a` is better.
    """
    rows = found.families
    cells = found.cells
    told = {Verdict.A_BETTER: f"{sides.name_a} better", Verdict.B_BETTER: f"{sides.name_b} better"}
    drawn, (axes,) = drawing.panels(1, 8.0, 1.2 + 0.8 * len(rows))
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    place = {name: number for number, name in enumerate(rows["family"])}
    ordered = cells.assign(place=cells["family"].map(place)).sort_values(["place", "speedup"])
    # A low-discrepancy sequence: neighbours in ratio are far apart in height.
    ordered["place"] += (ordered.groupby("place").cumcount() * 0.6180339887 % 1 - 0.5) * 0.6
    for verdict, (colour, marker) in _LOOKS.items():
        part = ordered[ordered["verdict"] == verdict]
        if len(part):
            shade = drawing.COLOURS[colour] if isinstance(colour, int) else colour
            text = f"cell: {told.get(verdict, verdict)}"
            axes.scatter(
                part["speedup"],
                part["place"],
                s=18,
                color=shade,
                marker=marker,
                alpha=0.7,
                linewidths=0,
                label=text,
            )
    means = drawing.ends_of(rows.set_index("family"), "geometric_mean")
    words = {
        row["family"]: f"{row['family']}\n{told.get(row['verdict'], row['verdict'])}"
        for row in rows.to_dict("records")
    }
    mean = "geometric mean, 95% interval"
    drawing.forest(
        axes, words, {mean: means}, {mean: {"marker": "D", "color": "#000000", "zorder": 4}}
    )
    drawing.finish(
        axes,
        f"{label(metric)}: {sides.name_a} against {sides.name_b}",
        f"speedup of {sides.name_a} over {sides.name_b}",
        logs={"x": drawing.times},
        grid="x",
    )
    drawing.legend(drawn)
    return drawn
