"""`compare`: compare two platforms, environments, versions or sweeps point by point.

Two conditions, A and B, select the runs of the two sides. They have the form of --where; ' & '
joins several conditions. A point is one combination of hyperparameter values. A point that both
sides measured is a cell. There is a verdict for all cells together, for each family, and for each
cell: faster, slower, equal within the margin, or undecided. The interval of every ratio allows for
the scatter of processes and for the effects of sessions, hosts and order on one side
(`paradnn.statistics.contrast`). The false discovery rate of all cells is controlled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import option
from analysis.pairing import pair
from analysis.ratio_figure import draw_ratios
from analysis.registry import analysis
from analysis.sides import (
    Compared,
    PairedOptions,
    Sides,
    choose_sides,
    describe_bounds,
    describe_confounding,
    describe_interval_sources,
    describe_population,
    describe_share,
    format_ratio,
    make_answer,
    speed_word,
)
from analysis.store.frame import families
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast, judge
from paradnn.statistics.decision import MARGIN, adjust_p_values, equivalent
from paradnn.statistics.dependence import Unit
from paradnn.statistics.verdict import Verdict

_ALWAYS_SHOWN = ("a_count", "b_count", "p_adjusted", "verdict")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(PairedOptions):
    """Options of the command `compare`: the two sides, and the false discovery rate."""

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
        0.05,
        "false discovery rate: expected share of false findings among single points",
        metavar="Q",
        above=0,
        below=1,
    )


class ComparedPoints(NamedTuple):
    """Result of a comparison of two sides, A and B, point by point.

    Attributes:
        cells: A row per point that both sides measured, with the columns of `pairing.pair`,
            `p_adjusted` (Benjamini-Hochberg over all cells) and `verdict`.
        families: A row per family that either side measured, with the columns of `Contrast.row` and
            `judge`, and the numbers of cells with each verdict: `a_better`, `b_better`, `same`.
        total: The row for all families together, without the numbers of cells.
    """

    cells: pd.DataFrame
    families: pd.DataFrame
    total: dict[Any, Any]


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
        "Each mark is a point that both sides measured, with the 95% interval of its ratio. The "
        "dashed line and the band are the geometric mean with its interval."
    ),
)
def compare(frame: pd.DataFrame, options: CompareOptions) -> Compared:
    """Compare side A with side B, per cell and per family.

    A cell is a point (a combination of hyperparameter values) that both sides measured.

    Args:
        frame: Runs of both sides, one per row.
        options: The conditions that select each side's runs, the metric, the margin of equality,
            and the false discovery rate.

    Raises:
        ConfigError: If a side has no runs, or neither high nor low values of the metric are better.
        SchemaError: If the runs of a side differ in their environment or timing protocol, and the
            option `pool` is not set.
    """
    sides = choose_sides(frame, [options.a], [options.b], ("A", "B"), pool=options.pool)
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
        answer=make_answer(
            compared.total,
            Contrast.of(compared.cells, "all", options.unit),
            sides,
            metric=options.metric,
            margin=options.margin,
        ),
        sentences=_describe(compared, sides, options),
        picture=lambda: _draw(compared, sides, options.metric),
        keep=_ALWAYS_SHOWN,
    )


def _describe(compared: ComparedPoints, sides: Sides, options: CompareOptions) -> Iterator[str]:
    word = speed_word(options.metric)
    names = sides.display_names
    explanation = sides.explain_names()
    if explanation:
        yield explanation.strip()
    if len(compared.cells):
        total = compared.total
        yield f"{describe_share(total, names, word)}."
        yield from describe_population(total, inverted=total["verdict"] == Verdict.SLOWER)
        yield from describe_confounding(Contrast.of(compared.cells, "all", options.unit))
        yield from describe_bounds(total, names)
    yield from sides.describe_differences(compared.cells)
    if len(compared.families) > 1:
        for row in compared.families.to_dict("records"):
            yield _describe_family(row, word, options.margin, names)
    if len(compared.cells):
        yield _describe_cells(compared.cells, options, word, names)
        yield describe_interval_sources(compared.cells)


def _describe_family(row: dict[Any, Any], word: str, margin: float, names: tuple[str, str]) -> str:
    """Return the verdict on one family as text. The ratio is A to B, or B to A if A is slower.

    Args:
        row: Row of the family in `ComparedPoints.families`.
        word: Comparative for the better side, such as "faster".
        margin: Largest relative difference that counts as equal.
        names: Names of sides A and B.
    """
    family = row["family"]
    count = row["points"]
    verdict = row["verdict"]
    if not count:
        return f"{family}: no point was measured on both sides."
    value, low, high = (row[f"geometric_mean{end}"] for end in ("", "_low", "_high"))
    leader = names[0]
    ahead = row["wins"]
    if verdict == Verdict.SLOWER:
        leader = names[1]
        value, low, high = 1 / value, 1 / high, 1 / low
        ahead = count - ahead
    ratio, interval = format_ratio(value, low, high)
    if verdict == Verdict.EQUAL:
        outcome = f"equal within {margin:.0%}, {ratio}"
    elif verdict == Verdict.UNDECIDED:
        outcome = f"undecided, {ratio}"
        if row["by_itself"] != Verdict.UNDECIDED:
            outcome = f"undecided after a correction for the number of families (Holm), {ratio}"
    else:
        outcome = f"{leader} {ratio} {word}"
    return (
        f"{family}: {outcome} ({interval}); {leader} is ahead on {ahead} of "
        f"{counted(count, 'point')}."
    )


def _describe_cells(
    cells: pd.DataFrame, options: CompareOptions, word: str, names: tuple[str, str]
) -> str:
    """State the number of cells (points that both sides measured) with each verdict.

    Args:
        cells: A row per point that both sides measured, from `ComparedPoints.cells`.
        options: The options of the command.
        word: Comparative for the better side, such as "faster".
        names: Names of sides A and B.
    """
    counts = _verdict_counts(cells)
    return (
        f"Single points: {names[0]} is {word} on {counts['a_better']}, {names[1]} on "
        f"{counts['b_better']}, {counts['same']} are equal within {options.margin:.0%}; at most "
        f"{options.rate:.0%} of these verdicts are expected to be false (Benjamini-Hochberg)."
    )


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
    """Compare sides A and B: a verdict for each cell, for each family, and for all points.

    A cell is a point (a combination of hyperparameter values) that both sides measured. It is equal
    if the adjusted p-value of the two one-sided tests against `margin` is at most `rate`. Otherwise
    it is faster or slower if the adjusted p-value of the test for no difference is at most `rate`,
    else undecided.

    Args:
        a: Runs of A, one per row.
        b: Runs of B, one per row.
        metric: The metric to compare.
        on: Columns that identify a point; None for the default of `pair`.
        rate: False discovery rate of the verdicts on cells, from 0 to 1.
        margin: Largest relative difference that counts as equal, such as 0.05.
        unit: Sampling unit of the confidence intervals: "crossed" (models and batch sizes),
            "model" (models, at fixed batch sizes) or "point" (single configurations).
    """
    cells = pair(a, b, metric, on)
    # Remove the attrs while judging, because pandas would copy them with every slice.
    attrs = cells.attrs
    cells.attrs = {}
    _judge_cells(cells, rate, margin)
    cells.attrs = attrs
    family_values = [*a["family"].dropna().unique(), *b["family"].dropna().unique()]
    names = families(pd.DataFrame({"family": family_values}))
    contrasts = [{"family": name} | Contrast.of(cells, name, unit).row() for name in names]
    counts = [_verdict_counts(cells[cells["family"] == name]) for name in names]
    rows = pd.concat([judge(pd.DataFrame(contrasts), margin), pd.DataFrame(counts)], axis=1)
    total = {"family": "all"} | Contrast.of(cells, "all", unit).row()
    (judged,) = judge(pd.DataFrame([total]), margin).to_dict("records")
    return ComparedPoints(cells, rows, judged)


def _judge_cells(cells: pd.DataFrame, rate: float, margin: float) -> None:
    """Add the columns `p_adjusted` and `verdict` to the cells, in place.

    A cell is a point (a combination of hyperparameter values) that both sides measured.

    Args:
        cells: Pairs of points, as `pair` returns them.
        rate: False discovery rate.
        margin: Largest relative difference that counts as equal.
    """
    p_values = cells["p_value"].to_numpy(dtype="float64")
    cells["p_adjusted"] = adjust_p_values(p_values, discoveries=True)
    logs = np.log(cells["speedup"].to_numpy(dtype="float64"))
    p_equivalent = equivalent(
        logs, logs, cells["log_error"].to_numpy(), cells["degrees"].to_numpy(), margin
    )
    p_equivalent = adjust_p_values(p_equivalent, discoveries=True)
    leader = np.where(logs > 0, Verdict.FASTER, Verdict.SLOWER)
    cells["verdict"] = np.select(
        [p_equivalent <= rate, cells["p_adjusted"] <= rate],
        [Verdict.EQUAL, leader],
        Verdict.UNDECIDED,
    )


def _verdict_counts(cells: pd.DataFrame) -> dict[str, int]:
    counts = cells["verdict"].value_counts()
    return {
        "a_better": int(counts.get(Verdict.FASTER, 0)),
        "b_better": int(counts.get(Verdict.SLOWER, 0)),
        "same": int(counts.get(Verdict.EQUAL, 0)),
    }


def _draw(compared: ComparedPoints, sides: Sides, metric: str) -> drawing.Figure:
    ends = ("geometric_mean", "geometric_mean_low", "geometric_mean_high")
    return draw_ratios(
        compared.cells,
        title=f"{label(metric)}: {sides.name_a} against {sides.name_b}",
        label=f"{sides.name_a} over {sides.name_b}",
        mean=[float(compared.total[name]) for name in ends],
        differing=compared.cells.attrs["differ"],
    )
