"""`memory`: where memory ends for each family on each device, and which size fills it fastest.

Two descriptions of the same points. The frontier assumes only that memory grows with every size, and says what is known
for certain; a logistic regression says which size fills memory fastest, and how likely it is that a point fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.columns import Group, GroupKey, blocks_of, groups, hyperparameters
from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import Options
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, pooled_within
from analysis.statistics.regression import Lacking, firth, independent_columns, profile_interval
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Outcomes of points that ran out of memory when they were tried.
RAN_OUT = ("oom_device", "oom_host")

_NAMED = 3  # points that contradict the frontier and are named
#: Sizes that take less memory of a device the larger they are, and numbers that are no size.
_FALLING = ("model.patch", "devices")
_NO_SIZE = ("model.dropout", "model.label_smoothing")


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Options):
    """Only what every analysis takes."""

    command = "memory"


@dataclass(frozen=True)
class GroupMemory(GroupKey):
    """One family on one device.

    `points` has a row for each point that fitted or ran out of memory, the smallest first: its hyperparameters,
    `failed`, `side` (what the frontier of the others says, `frontier.Side`) and `edge` (whether it is one of the
    smallest that failed or of the largest that fitted). `sizes` (rows of `points`) are what of these is a size.
    `weights`: a row for each size, with `weight` (what doubling it adds to the log-odds), `low`, `high`; None where all
    fitted or none did. `intercept` is the log-odds at the sizes' geometric means, `collinear` the sizes without a
    weight of their own. `left_out` counts points that say nothing of memory, by outcome.
    """

    points: pd.DataFrame
    sizes: pd.DataFrame
    left_out: Mapping[Any, int]
    weights: pd.DataFrame | None = None
    intercept: float = float("nan")
    collinear: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MemoryResult(Result):
    """Every point that was tried, whether it fitted, and what the others say of it; `lacking` says which groups have no
    answer, and why."""

    groups: tuple[GroupMemory, ...]
    lacking: tuple[Lacking, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each point, those at the edge first."""
        parts = []
        for group in self.groups:
            part = group.points.sort_values("edge", ascending=False, kind="stable")
            part.insert(0, "family", group.family)
            part.insert(1, "device", group.device)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    @property
    def drawable(self) -> bool:
        return any(group.weights is not None for group in self.groups)

    def _paragraphs(self) -> Iterator[Paragraph | str]:
        for group in self.groups:
            others = ", ".join(f"{number} {outcome}" for outcome, number in group.left_out.items())
            yield Paragraph(
                f"{group.name}: {group.points['failed'].sum():,} of {len(group.points):,} points that were tried ran "
                f"out of memory{f'; left out: {others}' if others else ''}.",
                tuple(_describe(group)),
            )
        yield from (f"{lacking}." for lacking in self.lacking)

    def _figure(self) -> Figure:
        """A panel for each group in which some points ran out of memory and some did not.

        A mark stands for the points of two sizes, coloured by the share that ran out. Along the line the regression
        gives even chances, the other sizes at their geometric means.
        """
        drawn_groups = [(group, group.weights) for group in self.groups if group.weights is not None]
        drawn, panels = drawing.panels(len(drawn_groups), 5.2, 3.8, across=2)
        for axes, (group, weights) in zip(panels, drawn_groups, strict=True):
            _panel(axes, group, weights)
        drawing.colour_bar(drawn, panels, drawing.Normalize(0, 100), "points that ran out of memory (%)")
        return drawn


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    """If any point ran out of memory."""
    if rows["outcome"].isin(RAN_OUT).any():
        yield Shown()


@analysis(
    MemoryOptions,
    summary="where memory ends, and which size fills it fastest",
    description="Which points ran out of memory, for each family on each device: the smallest that did, the\n"
    "largest that fitted, what doubling a size adds to the odds, and points that contradict the others.",
    example="python -m analysis memory --device 'TPU v2' --figure memory.png",
    gate="untimed",
    section="system",
    order=30,
    title="Where memory ends",
    reading=(
        "Colour: the share of points of these sizes that ran out of memory. Dashed: even chances, by a regression."
    ),
    shown=_shown,
)
def memory(frame: pd.DataFrame, options: MemoryOptions) -> MemoryResult:
    """Where memory ends, for each family on each device, over points: replicates count once, ok where any is.

    Points compare where they agree in all that is no size, such as the precision. Only what was tried counts: a
    predicted outcome is none. NotEnoughData without a group in which sizes differ, SchemaError for heterogeneous runs
    of one.
    """
    found, lacking, used = [], [], []
    for group in groups(frame):
        try:
            found.append(_group(group, options.pool))
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, str(problem)))
            continue
        used += list(group.rows["run_id"])
    if not found:
        raise NotEnoughData("not enough data", lacking, "measure points of several sizes")
    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    return MemoryResult(groups=tuple(found), lacking=tuple(lacking), sources=tuple(used), pooled=pooled)


def _group(group: Group, pool: bool) -> GroupMemory:
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
    # What some runs lack is a value of its own.
    kind = rows.groupby(words, dropna=False).ngroup().to_numpy() if words else np.zeros(len(rows), dtype="int64")
    side, edge = _frontiers((sizes * [-1.0 if name in _FALLING else 1.0 for name in sizes]).to_numpy(), failed, kind)
    points = rows[names].assign(failed=failed, side=side, edge=edge)
    if not failed.any() or failed.all():
        order = np.argsort(np.log(np.maximum(sizes, 1e-300)).sum(axis=1), kind="stable")
        return GroupMemory(
            group.family, group.device, points.iloc[order].reset_index(drop=True), sizes.iloc[order], left_out
        )
    logs, collinear = independent_columns(pd.DataFrame(np.log2(sizes)))
    design = np.column_stack([np.ones(len(logs)), logs - logs.mean()])
    found, height = firth(design, failed)
    ends = [profile_interval(design, failed, found, height, place) for place in range(1, len(found))]
    weights = pd.DataFrame(ends, index=logs.columns.rename("size"), columns=["low", "high"])
    weights.insert(0, "weight", found[1:])
    order = np.argsort(design @ found, kind="stable")
    points, sizes = (table.iloc[order].reset_index(drop=True) for table in (points, sizes))
    return GroupMemory(group.family, group.device, points, sizes, left_out, weights, float(found[0]), tuple(collinear))


def size_of(column: pd.Series) -> pd.Series | None:
    """A column of numbers above zero or of lists of blocks as float64; None for what is no size."""
    if pd.api.types.is_bool_dtype(column) or column.isna().any():
        return None
    if pd.api.types.is_numeric_dtype(column):
        return column.astype("float64") if (column > 0).all() else None
    totals = {value: blocks_of(value) for value in column.unique()}
    return column.map(lambda value: float(sum(totals[value] or ()))) if all(totals.values()) else None


def _frontiers(sizes: np.ndarray, failed: np.ndarray, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(what the others say of each point, whether it lies at the edge), among points of one kind."""
    from paradnn.designs.frontier import sides

    side, edge = np.full(len(failed), "open", dtype=object), np.zeros(len(failed), dtype=bool)
    for each in np.unique(kind):
        here = np.flatnonzero(kind == each)
        side[here], edge[here] = sides(sizes[here], failed[here])
    return side, edge


def _describe(group: GroupMemory) -> Iterator[str]:
    points = group.points
    edge, failed = points["edge"], points["failed"]
    if failed.any():
        smallest = points[edge & failed]
        yield f"The smallest that did: {_named(smallest.iloc[0])}{_of(smallest, 'that none smaller is below')}."
    if not failed.all():
        largest = points[edge & ~failed]
        yield f"The largest that fitted: {_named(largest.iloc[-1])}{_of(largest, 'that none larger is above')}."
    if group.weights is not None:
        yield from _regression(group, group.weights)
    contradicting = points[~failed & points["side"].isin(["contradicted", "fails"])]
    if len(contradicting):
        listed = "; ".join(_named(row) for _, row in contradicting.head(_NAMED).iterrows())
        more = f"; and {len(contradicting) - _NAMED} more" if len(contradicting) > _NAMED else ""
        yield (
            f"{counted(len(contradicting), 'point')} fitted though others that are no larger in any size did not: "
            f"{listed}{more}. Memory does not grow with every size there, or what is free differs from run to run."
        )


def _regression(group: GroupMemory, weights: pd.DataFrame) -> Iterator[str]:
    rows = weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable").round(6) + 0.0
    of_first = rows["weight"] / rows["weight"].iloc[0]
    listed = "; ".join(
        f"{name} {row['weight']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g})"
        + (f", {of_first[name]:.2g} of the first" if name != rows.index[0] and row["weight"] else "")
        for name, row in rows.iterrows()
    )
    yield f"Doubling a size adds to the log-odds of running out (95% intervals by profile likelihood): {listed}."
    if group.collinear:
        yield f"Without a weight of their own, since they go with other sizes: {', '.join(group.collinear)}."


def _named(row: pd.Series) -> str:
    """Such as "batch_size 64, nodes 8192"."""
    names = [name for name in row.index if name not in ("failed", "side", "edge")]
    return ", ".join(f"{str(name).removeprefix('model.')} {row[name]}" for name in names)


def _of(points: pd.DataFrame, what: str) -> str:
    return f" (one of {len(points)} {what})" if len(points) > 1 else ""


def _panel(axes: Axes, group: GroupMemory, weights: pd.DataFrame) -> None:
    order = weights["weight"].abs().sort_values(ascending=False, kind="stable").index
    x, *others = [str(name) for name in order[:2]][::-1]
    places = group.sizes[[x]].assign(y=group.sizes[others[0]] if others else 0.0, failed=group.points["failed"])
    share = places.groupby([x, "y"])["failed"].mean().reset_index()
    colours = drawing.colormaps[drawing.SEQUENTIAL](share["failed"])
    axes.scatter(share[x], share["y"], c=colours, s=70, marker="s", edgecolor="#666666", linewidth=0.6, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_yticks([])
    if others:
        axes.set_yscale("log", base=2)
        # Where the log-odds are zero, in the range of the points; the regression's columns are about their means.
        logs, (y,) = np.log2(group.sizes), others
        along = np.linspace(logs[x].min(), logs[x].max(), 50)
        odds = group.intercept + weights.loc[x, "weight"] * (along - logs[x].mean())
        up = logs[y].mean() - odds / weights.loc[y, "weight"]
        inside = (up >= logs[y].min() - 0.5) & (up <= logs[y].max() + 0.5)
        axes.plot(2.0 ** along[inside], 2.0 ** up[inside], color="#333333", linewidth=1.2, linestyle="--", zorder=4)
        drawing.log_ticks(axes.yaxis)
    drawing.log_ticks(axes.xaxis)
    title = f"{group.name}: {len(group.points):,} points"
    drawing.finish(axes, title, label(x), label(others[0]) if others else "")
