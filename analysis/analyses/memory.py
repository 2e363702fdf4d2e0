"""`memory`: where memory ends for each family on each device: the smallest points that failed, the
largest that fitted.

That assumes only that memory grows with every size. Points that contradict the others are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.columns import FamilyGroup, analyze_groups, as_numbers, hyperparameters
from analysis.lazy import np, pd
from analysis.options import Options
from analysis.registry import SectionSpec, analysis
from analysis.result import Paragraph, Result, pooled_within
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted
from paradnn.statistics.regression import Lacking

#: Outcomes of points that ran out of memory when they were tried.
RAN_OUT = ("oom_device", "oom_host")

_NAMED = 3  # points that contradict the frontier and are named
#: Sizes that take less memory of a device the larger they are, and numbers that are no size.
_FALLING = ("model.patch", "devices")
_NO_SIZE = ("model.dropout", "model.label_smoothing")


class MemoryEdge(NamedTuple):
    """One family on one device.

    `points` that were tried, the smallest first: hyperparameters, `failed`, `side` (what the
    frontier of the others says), `edge` (one of the smallest that failed or of the largest that
    fitted). `left_out` counts points that say nothing of memory, by outcome.
    """

    of: FamilyGroup
    points: pd.DataFrame
    left_out: Mapping[Any, int]


@analysis(
    Options,
    summary="where memory ends: the smallest points that ran out of it, the largest that fitted",
    example="python -m analysis memory --device 'TPU v2'",
    gate="untimed",
    section="system",
    order=30,
    title="Where memory ends",
    reading="Points at the edge stand first in the table.",
    has_figure=False,
    list_sections=lambda rows: [SectionSpec()] if rows["outcome"].isin(RAN_OUT).any() else [],
)
def memory(frame: pd.DataFrame, options: Options) -> Result:
    """A row for each point that was tried, those at the edge first; replicates count once, ok where
    any is.

    Points compare where they agree in all that is no size, such as the precision. NotEnoughData
    without a group in which sizes differ, SchemaError for heterogeneous runs of one.
    """
    found, lacking = memory_limits(frame, options.pool)
    parts = [limit.points.sort_values("edge", ascending=False, kind="stable") for limit in found]
    for part, limit in zip(parts, found, strict=True):
        part.insert(0, "family", limit.of.family)
        part.insert(1, "device", limit.of.device)
    return Result(
        numbers=pd.concat(parts, ignore_index=True),
        sentences=[*_sentences(found), *(f"{each}." for each in lacking)],
        sources=tuple(run for limit in found for run in limit.of.rows["run_id"]),
        pooled=pooled_within(frame, ["family", "device"], pool=True) if options.pool else "",
    )


def memory_limits(
    frame: pd.DataFrame, pool: bool = False
) -> tuple[list[MemoryEdge], list[Lacking]]:
    """The limit of each family on each device, and which groups have no answer, and why."""
    return analyze_groups(
        frame,
        lambda group: _limit(group, pool),
        "not enough data",
        "measure points of several sizes",
    )


def _limit(group: FamilyGroup, pool: bool) -> MemoryEdge:
    from paradnn.designs.frontier import sides

    rows = aggregate_replicates(require_homogeneous(group.rows, pool=pool))
    tells = is_ok(rows) | rows["outcome"].isin(RAN_OUT)
    left_out = rows.loc[~tells, "outcome"].fillna("unfinished").value_counts().to_dict()
    rows = rows[tells].reset_index(drop=True)
    names = [name for name in hyperparameters(rows) if rows[name].nunique(dropna=False) > 1]
    numbers = {
        name: size
        for name in names
        if (size := size_of(rows[name])) is not None and name not in _NO_SIZE
    }
    if not numbers:
        raise NotEnoughData(
            "no size varies among the points that were tried" if len(rows) else "no point was tried"
        )
    sizes = pd.DataFrame(numbers)
    failed = (~is_ok(rows)).to_numpy(dtype=bool)
    words = [name for name in names if name not in numbers]
    # Points of one kind say something of each other; what some runs lack is a value of its own.
    if words:
        kinds = rows.groupby(words, dropna=False).indices.values()
    else:
        kinds = [np.arange(len(rows))]
    side = np.full(len(rows), "open", dtype=object)
    edge = np.zeros(len(rows), dtype=bool)
    growing = (sizes * [-1.0 if name in _FALLING else 1.0 for name in sizes]).to_numpy()
    for here in kinds:
        side[here], edge[here] = sides(growing[here], failed[here])
    order = np.argsort(np.log(np.maximum(sizes, 1e-300)).sum(axis=1), kind="stable")
    return MemoryEdge(
        group, rows[names].assign(failed=failed, side=side, edge=edge).iloc[order], left_out
    )


def size_of(column: pd.Series) -> pd.Series | None:
    """A column of numbers above zero or of lists of blocks as float64; None for what is no size."""
    if pd.api.types.is_bool_dtype(column) or column.isna().any():
        sizes = None
    else:
        sizes = as_numbers(column)
    return sizes if sizes is not None and (sizes > 0).all() else None


def _sentences(found: Sequence[MemoryEdge]) -> Iterator[Paragraph]:
    for limit in found:
        others = ", ".join(f"{number} {outcome}" for outcome, number in limit.left_out.items())
        head = (
            f"{limit.of.name}: {limit.points['failed'].sum():,} of {len(limit.points):,} points that were tried ran "
            f"out of memory{f'; left out: {others}' if others else ''}."
        )
        yield Paragraph(head, tuple(_describe(limit)))


def _describe(limit: MemoryEdge) -> Iterator[str]:
    points = limit.points
    edge = points["edge"]
    failed = points["failed"]
    for rows, place, what, such in (
        (points[edge & failed], 0, "The smallest that did", "that none smaller is below"),
        (points[edge & ~failed], -1, "The largest that fitted", "that none larger is above"),
    ):
        if len(rows):
            several = f" (one of {len(rows)} {such})" if len(rows) > 1 else ""
            yield f"{what}: {_named(rows.iloc[place])}{several}."
    contradicting = points[~failed & points["side"].isin(["contradicted", "fails"])]
    if len(contradicting):
        listed = "; ".join(_named(row) for _, row in contradicting.head(_NAMED).iterrows())
        if len(contradicting) > _NAMED:
            more = f"; and {len(contradicting) - _NAMED} more"
        else:
            more = ""
        yield (
            f"{counted(len(contradicting), 'point')} fitted though others that are no larger in any size did not: "
            f"{listed}{more}. Memory does not grow with every size there, or what is free differs from run to run."
        )


def _named(row: pd.Series) -> str:
    """Such as "batch_size 64, nodes 8192"."""
    names = [name for name in row.index if name not in ("failed", "side", "edge")]
    return ", ".join(f"{str(name).removeprefix('model.')} {row[name]}" for name in names)
