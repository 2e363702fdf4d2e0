"""`memory`: where memory ends for each family on each device, and which size fills it fastest.

Two descriptions of the same points. The frontier assumes only that memory grows with every size: the smallest points
that failed, the largest that fitted, and those that contradict the others. A logistic regression says what doubling a
size adds to the odds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.columns import Group, blocks_of, groups, hyperparameters
from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import Options
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, pooled_within
from analysis.statistics.regression import Lacking, firth, independent_columns, profile_interval
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted

#: Outcomes of points that ran out of memory when they were tried.
RAN_OUT = ("oom_device", "oom_host")

_NAMED = 3  # points that contradict the frontier and are named
#: Sizes that take less memory of a device the larger they are, and numbers that are no size.
_FALLING = ("model.patch", "devices")
_NO_SIZE = ("model.dropout", "model.label_smoothing")


class MemoryOptions(Options):
    """Only what every analysis takes."""

    command = "memory"


class Limit(NamedTuple):
    """One family on one device.

    `points` that were tried, the smallest first: hyperparameters, `failed`, `side` (what the frontier of the others
    says), `edge` (one of the smallest that failed or of the largest that fitted). `sizes`: what of these is a size.
    `weights`: for each size `weight` (what doubling it adds to the log-odds), `low`, `high`; None where all fitted or
    none did. `intercept` is the log-odds at the sizes' geometric means, `collinear` are sizes without a weight of their
    own. `left_out` counts points that say nothing of memory, by outcome.
    """

    of: Group
    points: pd.DataFrame
    sizes: pd.DataFrame
    left_out: Mapping[Any, int]
    weights: pd.DataFrame | None = None
    intercept: float = float("nan")
    collinear: tuple[str, ...] = ()


@analysis(
    MemoryOptions,
    summary="where memory ends, and which size fills it fastest",
    example="python -m analysis memory --device 'TPU v2' --figure memory.png",
    gate="untimed",
    section="system",
    order=30,
    title="Where memory ends",
    reading=(
        "Colour: the share of points of these sizes that ran out of memory. Dashed: even chances, by a regression."
    ),
    shown=lambda rows: [Shown()] if rows["outcome"].isin(RAN_OUT).any() else [],
)
def memory(frame: pd.DataFrame, options: MemoryOptions) -> Result:
    """A row for each point that was tried, those at the edge first; replicates count once, ok where any is.

    Points compare where they agree in all that is no size, such as the precision. NotEnoughData without a group in
    which sizes differ, SchemaError for heterogeneous runs of one.
    """
    found, lacking = memory_limits(frame, options.pool)
    parts = [limit.points.sort_values("edge", ascending=False, kind="stable") for limit in found]
    for part, limit in zip(parts, found, strict=True):
        part.insert(0, "family", limit.of.family)
        part.insert(1, "device", limit.of.device)
    return Result(
        numbers=pd.concat(parts, ignore_index=True),
        sentences=[*_sentences(found), *(f"{each}." for each in lacking)],
        picture=(lambda: draw_memory(found)) if any(limit.weights is not None for limit in found) else None,
        sources=tuple(run for limit in found for run in limit.of.rows["run_id"]),
        pooled=pooled_within(frame, ["family", "device"], pool=True) if options.pool else "",
    )


def memory_limits(frame: pd.DataFrame, pool: bool = False) -> tuple[list[Limit], list[Lacking]]:
    """The limit of each family on each device, and which groups have no answer, and why."""
    found, lacking = [], []
    for group in groups(frame):
        try:
            found.append(_limit(group, pool))
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, str(problem)))
    if not found:
        raise NotEnoughData("not enough data", lacking, "measure points of several sizes")
    return found, lacking


def _limit(group: Group, pool: bool) -> Limit:
    from paradnn.designs.frontier import sides

    rows = aggregate_replicates(require_homogeneous(group.rows, pool=pool))
    tells = is_ok(rows) | rows["outcome"].isin(RAN_OUT)
    left_out = rows.loc[~tells, "outcome"].fillna("unfinished").value_counts().to_dict()
    rows = rows[tells].reset_index(drop=True)
    names = [name for name in hyperparameters(rows) if rows[name].nunique(dropna=False) > 1]
    numbers = {name: size for name in names if (size := size_of(rows[name])) is not None and name not in _NO_SIZE}
    if not numbers:
        raise NotEnoughData("no size varies among the points that were tried" if len(rows) else "no point was tried")
    sizes, failed = pd.DataFrame(numbers), (~is_ok(rows)).to_numpy(dtype=bool)
    words = [name for name in names if name not in numbers]
    # Points of one kind say something of each other; what some runs lack is a value of its own.
    kinds = rows.groupby(words, dropna=False).indices.values() if words else [np.arange(len(rows))]
    side, edge = np.full(len(rows), "open", dtype=object), np.zeros(len(rows), dtype=bool)
    growing = (sizes * [-1.0 if name in _FALLING else 1.0 for name in sizes]).to_numpy()
    for here in kinds:
        side[here], edge[here] = sides(growing[here], failed[here])
    points = rows[names].assign(failed=failed, side=side, edge=edge)
    if not failed.any() or failed.all():
        order = np.argsort(np.log(np.maximum(sizes, 1e-300)).sum(axis=1), kind="stable")
        return Limit(group, points.iloc[order], sizes.iloc[order], left_out)
    logs, collinear = independent_columns(pd.DataFrame(np.log2(sizes)))
    design = np.column_stack([np.ones(len(logs)), logs - logs.mean()])
    found, height = firth(design, failed)
    ends = [profile_interval(design, failed, found, height, place) for place in range(1, len(found))]
    weights = pd.DataFrame(ends, index=logs.columns.rename("size"), columns=["low", "high"])
    weights.insert(0, "weight", found[1:])
    order = np.argsort(design @ found, kind="stable")
    return Limit(group, points.iloc[order], sizes.iloc[order], left_out, weights, float(found[0]), tuple(collinear))


def size_of(column: pd.Series) -> pd.Series | None:
    """A column of numbers above zero or of lists of blocks as float64; None for what is no size."""
    if pd.api.types.is_bool_dtype(column) or column.isna().any():
        return None
    if pd.api.types.is_numeric_dtype(column):
        return column.astype("float64") if (column > 0).all() else None
    totals = {value: blocks_of(value) for value in column.unique()}
    return column.map(lambda value: float(sum(totals[value] or ()))) if all(totals.values()) else None


def _sentences(found: Sequence[Limit]) -> Iterator[Paragraph]:
    for limit in found:
        others = ", ".join(f"{number} {outcome}" for outcome, number in limit.left_out.items())
        head = (
            f"{limit.of.name}: {limit.points['failed'].sum():,} of {len(limit.points):,} points that were tried ran "
            f"out of memory{f'; left out: {others}' if others else ''}."
        )
        yield Paragraph(head, tuple(_describe(limit)))


def _describe(limit: Limit) -> Iterator[str]:
    points = limit.points
    edge, failed = points["edge"], points["failed"]
    for rows, place, what, such in (
        (points[edge & failed], 0, "The smallest that did", "that none smaller is below"),
        (points[edge & ~failed], -1, "The largest that fitted", "that none larger is above"),
    ):
        if len(rows):
            several = f" (one of {len(rows)} {such})" if len(rows) > 1 else ""
            yield f"{what}: {_named(rows.iloc[place])}{several}."
    if limit.weights is not None:
        yield from _regression(limit, limit.weights)
    contradicting = points[~failed & points["side"].isin(["contradicted", "fails"])]
    if len(contradicting):
        listed = "; ".join(_named(row) for _, row in contradicting.head(_NAMED).iterrows())
        more = f"; and {len(contradicting) - _NAMED} more" if len(contradicting) > _NAMED else ""
        yield (
            f"{counted(len(contradicting), 'point')} fitted though others that are no larger in any size did not: "
            f"{listed}{more}. Memory does not grow with every size there, or what is free differs from run to run."
        )


def _regression(limit: Limit, weights: pd.DataFrame) -> Iterator[str]:
    rows = weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable").round(6) + 0.0
    of_first = rows["weight"] / rows["weight"].iloc[0]
    listed = "; ".join(
        f"{name} {row['weight']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g})"
        + (f", {of_first[name]:.2g} of the first" if name != rows.index[0] and row["weight"] else "")
        for name, row in rows.iterrows()
    )
    yield f"Doubling a size adds to the log-odds of running out (95% intervals by profile likelihood): {listed}."
    if limit.collinear:
        yield f"Without a weight of their own, since they go with other sizes: {', '.join(limit.collinear)}."


def _named(row: pd.Series) -> str:
    """Such as "batch_size 64, nodes 8192"."""
    names = [name for name in row.index if name not in ("failed", "side", "edge")]
    return ", ".join(f"{str(name).removeprefix('model.')} {row[name]}" for name in names)


def draw_memory(found: Sequence[Limit]) -> drawing.Figure:
    """A panel for each group in which some points ran out of memory and some did not.

    A mark stands for the points of two sizes, coloured by the share that ran out. Along the line the regression
    gives even chances, the other sizes at their geometric means.
    """
    known = [(limit, limit.weights) for limit in found if limit.weights is not None]
    drawn, panels = drawing.panels(len(known), 5.2, 3.8, across=2)
    for axes, (limit, weights) in zip(panels, known, strict=True):
        _panel(axes, limit, weights)
    drawing.colour_bar(drawn, panels, drawing.Normalize(0, 100), "points that ran out of memory (%)")
    return drawn


def _panel(axes: drawing.Axes, limit: Limit, weights: pd.DataFrame) -> None:
    order = weights["weight"].abs().sort_values(ascending=False, kind="stable").index
    x, *others = [str(name) for name in order[:2]][::-1]
    sizes = limit.sizes
    places = sizes[[x]].assign(y=sizes[others[0]] if others else 0.0, failed=limit.points["failed"])
    share = places.groupby([x, "y"])["failed"].mean().reset_index()
    colours = drawing.colormaps[drawing.SEQUENTIAL](share["failed"])
    axes.scatter(share[x], share["y"], c=colours, s=70, marker="s", edgecolor="#666666", linewidth=0.6, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_yticks([])
    if others:
        axes.set_yscale("log", base=2)
        # Where the log-odds are zero, in the range of the points; the regression's columns are about their means.
        logs, (y,) = np.log2(sizes), others
        along = np.linspace(logs[x].min(), logs[x].max(), 50)
        odds = limit.intercept + weights.loc[x, "weight"] * (along - logs[x].mean())
        up = logs[y].mean() - odds / weights.loc[y, "weight"]
        inside = (up >= logs[y].min() - 0.5) & (up <= logs[y].max() + 0.5)
        axes.plot(2.0 ** along[inside], 2.0 ** up[inside], color="#333333", linewidth=1.2, linestyle="--", zorder=4)
        drawing.log_ticks(axes.yaxis)
    drawing.log_ticks(axes.xaxis)
    title = f"{limit.of.name}: {len(limit.points):,} points"
    drawing.finish(axes, title, label(x), label(others[0]) if others else "")
