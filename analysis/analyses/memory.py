"""`memory`: where memory ends, and which size fills it fastest.

Out of memory as an outcome: where memory ends, for each family on each device.

Two descriptions of the same points. The frontier assumes only that memory grows with every size, and says what is known
for certain; a logistic regression says which size fills memory fastest, and how likely it is that a point fits.

Where memory ends, over the two sizes that fill it fastest: how many points failed, and the line of even chances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.columns import Group, GroupKey, blocks_of, groups, hyperparameters
from analysis.labels import label
from analysis.lazy import drawing, np, pd, special
from analysis.options import Options
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, pooled_within
from analysis.statistics.dependence import levels_of
from analysis.statistics.logistic import firth, profile_interval
from analysis.statistics.regression import Lacking, independent_columns
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.errors import NotEnoughData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_NAMED = 3  # points that contradict the frontier and are named


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Options):
    """Only what every analysis takes."""

    command = "memory"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MemoryResult(Result):
    """Every point that was tried, whether it fitted, and what the others say of it."""

    memory: Memory

    @property
    def table(self) -> pd.DataFrame:
        return self.memory.table

    @property
    def drawable(self) -> bool:
        return any(group.weights is not None for group in self.memory.groups)

    def _figure(self) -> Figure:
        return draw_memory(self.memory)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for group in self.memory.groups:
            failed, count = int(group.points["failed"].sum()), len(group.points)
            others = ", ".join(f"{number} {outcome}" for outcome, number in group.left_out.items())
            without = f"; left out: {others}" if others else ""
            head = f"{group.name}: {failed:,} of {count:,} points that were tried ran out of memory{without}."
            yield Paragraph(head, tuple(_describe(group)))
        for lacking in self.memory.lacking:
            yield Paragraph(f"{lacking}.")


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
    """Where memory ends, for each family on each device.

    NotEnoughData where no sizes differ, SchemaError for heterogeneous runs of a group.
    """
    found = memory_limits(frame, options.pool)
    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    return MemoryResult(memory=found, sources=found.run_ids, pooled=pooled)


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
        yield from _regression(group)
    contradicting = points[~failed & points["side"].isin(["contradicted", "fails"])]
    if len(contradicting):
        listed = "; ".join(_named(row) for _, row in contradicting.head(_NAMED).iterrows())
        more = f"; and {len(contradicting) - _NAMED} more" if len(contradicting) > _NAMED else ""
        yield (
            f"{_points(len(contradicting))} fitted though others that are no larger in any size did not: "
            f"{listed}{more}. Memory does not grow with every size there, or what is free differs from run to run."
        )


def _regression(group: GroupMemory) -> Iterator[str]:
    assert group.weights is not None
    rows = group.weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
    first = float(rows["weight"].iloc[0])
    listed = "; ".join(
        f"{name} {row['weight']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g})"
        + (f", {row['weight'] / first:.2g} of the first" if number and row["weight"] else "")
        for number, (name, row) in enumerate((rows.round(6) + 0.0).iterrows())
    )
    yield f"Doubling a size adds to the log-odds of running out (95% intervals by profile likelihood): {listed}."
    if group.collinear:
        yield f"Without a weight of their own, since they go with other sizes: {', '.join(group.collinear)}."
    said, missed, share = group.wrong
    yield (
        f"By the other points' frontier {said:,} of {len(group.points):,} are known, {missed} of these wrongly; the "
        f"regression has {100 * share:.2g}% on the wrong side, each model judged by the others."
    )


def _named(row: pd.Series) -> str:
    """Such as "batch_size 64, nodes 8192"."""
    names = [name for name in row.index if name not in ("failed", "side", "edge", "chance")]
    return ", ".join(f"{str(name).removeprefix('model.')} {row[name]}" for name in names)


def _of(points: pd.DataFrame, what: str) -> str:
    return f" (one of {len(points)} {what})" if len(points) > 1 else ""


def _points(count: int) -> str:
    return f"{count} point{'s'[: count != 1]}"


#: Outcomes of points that ran out of memory when they were tried.
RAN_OUT = ("oom_device", "oom_host")

#: Sizes that take less memory of a device the larger they are, and numbers that are no size.
_FALLING = ("model.patch", "devices")
_NO_SIZE = ("model.dropout", "model.label_smoothing")


@dataclass(frozen=True)
class GroupMemory(GroupKey):
    """One family on one device.

    `points` has a row for each point that fitted or ran out of memory: its hyperparameters, `failed`, `side` (what the
    frontier of the others says, `frontier.Side`), `edge` (whether it is one of the smallest that failed or of the
    largest that fitted) and `chance` (of running out, by the regression of the other models; NaN without one), the
    smallest first. `weights`: a row for each size, with `weight` (what doubling it adds to the log-odds), `low`,
    `high`; None where all fitted or none did. `left_out` counts points
    that say nothing of memory, by outcome; `numbers` (rows of `points`, in order) are the sizes that they differ in,
    `collinear` those that have no weight of their own. `intercept` is the log-odds at the sizes' geometric means.
    """

    points: pd.DataFrame
    numbers: pd.DataFrame
    weights: pd.DataFrame | None
    intercept: float
    left_out: Mapping[str, int]
    collinear: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[int, int, float]:
        """(points on whose side the others agree, how many of these are on the other one, the share of all points that
        the regression without their model has on the wrong side)."""
        from paradnn.designs.frontier import Side

        said = self.points["side"].isin([Side.FITS, Side.FAILS])
        missed = said & (self.points["side"].eq(Side.FAILS) != self.points["failed"])
        false = (self.points["chance"] > 0.5) != self.points["failed"]
        return int(said.sum()), int(missed.sum()), float(false.mean())


@dataclass(frozen=True)
class Memory:
    """Every group; `lacking` says why others have none, `run_ids` are the runs used."""

    groups: tuple[GroupMemory, ...]
    lacking: tuple[Lacking, ...]
    run_ids: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each point, those at the edge first."""
        parts = []
        for group in self.groups:
            part = group.points.copy()
            part.insert(0, "family", group.family)
            part.insert(1, "device", group.device)
            parts.append(part.sort_values("edge", ascending=False, kind="stable"))
        return pd.concat(parts, ignore_index=True)


def memory_limits(frame: pd.DataFrame, pool: bool = False) -> Memory:
    """Where memory ends, for each family on each device, over points: replicates count once, ok where any is.

    Points compare where they agree in all that is no size, such as the precision. Only what was tried counts: a
    predicted outcome is none. NotEnoughData without a group in which sizes differ, SchemaError for heterogeneous runs
    of one.
    """
    found, lacking, used = [], [], []
    for group in groups(frame):
        try:
            found.append(_group(group, pool))
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, str(problem)))
            continue
        used += list(group.rows["run_id"])
    if not found:
        raise NotEnoughData("not enough data", lacking, "measure points of several sizes")
    return Memory(tuple(found), tuple(lacking), tuple(used))


def _group(group: Group, pool: bool) -> GroupMemory:
    rows = aggregate_replicates(require_homogeneous(group.rows, pool=pool))
    tells = is_ok(rows) | rows["outcome"].isin(RAN_OUT)
    left_out = rows.loc[~tells, "outcome"].fillna("unfinished").value_counts()
    rows = rows[tells].reset_index(drop=True)
    names = [name for name in hyperparameters(rows) if rows[name].nunique(dropna=False) > 1]
    numbers = {name: size for name in names if (size := size_of(rows[name])) is not None and name not in _NO_SIZE}
    if not numbers:
        raise NotEnoughData("no size varies among the points that were tried" if len(rows) else "no point was tried")
    sizes, failed = pd.DataFrame(numbers), (~is_ok(rows)).to_numpy(dtype=bool)
    rising = sizes * [-1.0 if name in _FALLING else 1.0 for name in sizes]
    words = [name for name in names if name not in numbers]
    # What some runs lack is a value of its own.
    kinds = rows[words].astype("object").fillna("-").astype("str").agg(" ".join, axis=1) if words else None
    side, edge = _frontiers(rising.to_numpy(), failed, kinds)
    fit = _Regression.of(sizes, rows, failed) if failed.any() and not failed.all() else None
    points = rows[names].assign(failed=failed, side=side, edge=edge)
    score = np.log(np.maximum(sizes, 1e-300)).sum(axis=1) if fit is None else fit.odds
    points["chance"] = np.nan if fit is None else fit.chance
    order = np.argsort(score, kind="stable")
    return GroupMemory(
        group.family,
        group.device,
        points.iloc[order].reset_index(drop=True),
        sizes.iloc[order].reset_index(drop=True),
        None if fit is None else fit.weights,
        np.nan if fit is None else fit.intercept,
        {str(outcome): int(count) for outcome, count in left_out.items()},
        () if fit is None else fit.collinear,
    )


def size_of(column: pd.Series) -> pd.Series | None:
    """A column of numbers above zero or of lists of blocks as float64; None for what is no size."""
    if pd.api.types.is_bool_dtype(column) or column.isna().any():
        return None
    if pd.api.types.is_numeric_dtype(column):
        return column.astype("float64") if (column > 0).all() else None
    totals = {value: blocks_of(value) for value in column.unique()}
    return column.map(lambda value: float(sum(totals[value] or ()))) if all(totals.values()) else None


def _frontiers(sizes: np.ndarray, failed: np.ndarray, words: pd.Series | None) -> tuple[np.ndarray, np.ndarray]:
    """(what the others say of each point, whether it lies at the edge), among points that agree in `words`."""
    from paradnn.designs.frontier import Frontier, Side

    side, edge = np.full(len(failed), Side.OPEN.value, dtype=object), np.zeros(len(failed), dtype=bool)
    kinds = np.zeros(len(failed), dtype="int64") if words is None else words.astype("category").cat.codes.to_numpy()
    for kind in np.unique(kinds):
        here = np.flatnonzero(kinds == kind)
        side[here] = Frontier.sides_by_others(sizes[here], failed[here])
        found = Frontier.fit(sizes[here], failed[here])
        for outcome, ends in ((True, found.failed), (False, found.fitted)):
            at = (sizes[here][:, None] == ends[None]).all(axis=2).any(axis=1)
            edge[here] |= at & (failed[here] == outcome)
    return side, edge


@dataclass(frozen=True)
class _Regression:
    weights: pd.DataFrame
    intercept: float
    odds: np.ndarray
    chance: np.ndarray
    collinear: tuple[str, ...]

    @classmethod
    def of(cls, sizes: pd.DataFrame, rows: pd.DataFrame, failed: np.ndarray) -> _Regression:
        """The log-odds on binary logarithms of the sizes, and of each point by the other models."""
        logs = np.log2(sizes.to_numpy(dtype="float64"))
        kept, collinear = independent_columns(logs, list(map(str, sizes)))
        design = np.column_stack([np.ones(len(logs)), logs[:, kept] - logs[:, kept].mean(axis=0)])
        found, height = firth(design, failed)
        ends = [profile_interval(design, failed, found, height, place) for place in range(1, len(found))]
        weights = pd.DataFrame(
            ends, index=pd.Index([sizes.columns[i] for i in kept], name="size"), columns=["low", "high"]
        )
        weights.insert(0, "weight", found[1:])
        codes = levels_of(rows, "model").codes[0]
        chance = _by_others(design, failed, found, codes)
        return cls(weights, float(found[0]), design @ found, chance, tuple(collinear))


def _by_others(design: np.ndarray, failed: np.ndarray, start: np.ndarray, code: np.ndarray) -> np.ndarray:
    """The chance of each point with all points of its level left out of the fit, (n,)."""
    chance = np.empty(len(failed))
    for level in np.unique(code):
        held = code == level
        chance[held] = special.expit(design[held] @ firth(design[~held], failed[~held], start)[0])
    return chance


_COLUMNS = 2  # panels side by side


def draw_memory(result: Memory) -> Figure:
    """A panel for each family and device in which some points ran out of memory and some did not.

    A mark stands for the points of two sizes, coloured by the share that ran out. Along the line the regression gives
    even chances, the other sizes at their geometric means.
    """
    groups = [group for group in result.groups if group.weights is not None]
    across = min(_COLUMNS, len(groups))
    down = -(-len(groups) // across)
    figure, panels = drawing.figure(4.6 * across + 1.2, 3.6 * down + 0.4, down, across)
    every: Sequence[Axes] = list(np.atleast_1d(panels).flat)
    for axes, group in zip(every, groups, strict=False):
        _panel(axes, group)
    for axes in every[len(groups) :]:
        axes.set_visible(False)
    mapped = drawing.ScalarMappable(drawing.Normalize(0, 100), drawing.SEQUENTIAL)
    bar = figure.colorbar(mapped, ax=list(every[: len(groups)]), fraction=0.04, pad=0.02, aspect=30)
    bar.set_label("points that ran out of memory (%)")
    return figure


def _panel(axes: Axes, group: GroupMemory) -> None:
    assert group.weights is not None
    order = group.weights["weight"].abs().sort_values(ascending=False, kind="stable").index
    shown = [*order[:2]][::-1]
    if len(shown) < 2:
        places, labels = (group.numbers[order[0]], np.zeros(len(group.points))), (str(order[0]), "")
    else:
        places, labels = tuple(group.numbers[name] for name in shown), (str(shown[0]), str(shown[1]))
    share = group.points.assign(x=places[0], y=places[1]).groupby(["x", "y"])["failed"].mean().reset_index()
    colours = drawing.colormaps[drawing.SEQUENTIAL](share["failed"])
    axes.scatter(share["x"], share["y"], c=colours, s=70, marker="s", edgecolor="#666666", linewidth=0.6, zorder=3)
    axes.set_xscale("log", base=2)
    if len(shown) == 2:
        axes.set_yscale("log", base=2)
        _line(axes, group, shown)
    else:
        axes.set_yticks([])
    x, y = map(label, labels)
    drawing.finish(axes, f"{group.name}: {len(group.points):,} points", x, y)


def _line(axes: Axes, group: GroupMemory, shown: Sequence[str]) -> None:
    """Where the log-odds are zero, in the range of the points."""
    assert group.weights is not None
    logs = np.log2(group.numbers)
    slopes, middle = group.weights["weight"], logs.mean()
    low, high = logs[shown[0]].min(), logs[shown[0]].max()
    x = np.linspace(low, high, 50)
    # The regression's columns are about their means.
    rest = group.intercept + slopes[shown[0]] * (x - middle[shown[0]])
    y = middle[shown[1]] - rest / slopes[shown[1]]
    inside = (y >= logs[shown[1]].min() - 0.5) & (y <= logs[shown[1]].max() + 0.5)
    axes.plot(2.0 ** x[inside], 2.0 ** y[inside], color="#333333", linewidth=1.2, linestyle="--", zorder=4)
