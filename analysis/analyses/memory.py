"""`memory`: find the memory limit of each family on each device.

A point is a combination of hyperparameter values. The limit lies between the smallest points that
ran out of memory and the largest points that fitted. The only assumption is that the memory of a
point grows with every size. The output lists points that contradict this assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.columns import (
    OUT_OF_MEMORY,
    FamilyGroup,
    analyze_groups,
    as_sizes,
    hyperparameters,
)
from analysis.lazy import np, pd
from analysis.options import Options
from analysis.point_names import point_names, with_point_names
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, pooled_within
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.errors import InsufficientData
from paradnn.core.words import counted

#: Maximum number of points that a sentence names.
_MAX_NAMED = 3
#: Sizes whose increase reduces the memory that a device needs.
_DECREASING = ("model.patch", "devices")
#: Numeric hyperparameters that are not sizes.
_NOT_SIZES = ("model.dropout", "model.label_smoothing")
#: Columns of `MemoryFrontier.points` that are not hyperparameters.
_RESULTS = ("failed", "side", "edge")


class MemoryFrontier(NamedTuple):
    """Memory limit of one family on one device.

    Attributes:
        group: The runs, including failed ones.
        points: The tried points, the smallest first, with the hyperparameters and the columns

            - `failed`: whether the point ran out of memory;
            - `side`: what the other points predict for it: "fits", "fails", "open" (nothing) or
              "contradicted" (both);
            - `edge`: whether it is a minimal failing or a maximal fitting point.
        tried: The same points with all columns, and with the same index.
        excluded: Number of points by outcome, for outcomes that say nothing about memory, such as
            "timeout".
    """

    group: FamilyGroup
    points: pd.DataFrame
    tried: pd.DataFrame
    excluded: Mapping[Any, int]


def _list_sections(rows: pd.DataFrame) -> list[SectionSpec]:
    if rows["outcome"].isin(OUT_OF_MEMORY).any():
        return [SectionSpec()]
    return []


@analysis(
    Options,
    summary="memory limits: the smallest points that ran out of memory, the largest that fitted",
    example="python -m analysis memory --device 'TPU v2'",
    gate="untimed",
    section="system",
    order=30,
    title="Memory limits",
    reading="Points at the edge come first in the table.",
    has_figure=False,
    list_sections=_list_sections,
)
def memory(frame: pd.DataFrame, options: Options) -> Result:
    """Find the memory limit of each family on each device.

    A point is a combination of hyperparameter values. A point with replicates counts once, and is
    ok if any replicate is ok. Points are compared only if they agree in everything that is not a
    size, such as the precision.

    Args:
        frame: Runs, one per row, including failed runs.
        options: Whether to pool runs of different environments or protocols.

    Returns:
        The result. Its table has a row for each tried point, points at the memory limit first:
        family, device, and the columns of `MemoryFrontier.points`.

    Raises:
        InsufficientData: If no group has points of different sizes.
        HeterogeneousError: If the runs of a family on a device differ in their environment or
            timing protocol, and the option `pool` is not set.
    """
    frontiers, omitted = find_frontiers(frame, pool=options.pool)
    parts = []
    for frontier in frontiers:
        part = frontier.points.sort_values("edge", ascending=False, kind="stable")
        part = with_point_names(part, frontier.tried.loc[part.index])
        part.insert(1, "family", frontier.group.family)
        part.insert(2, "device", frontier.group.device)
        parts.append(part)
    run_ids = [run for frontier in frontiers for run in frontier.group.rows["run_id"]]
    pooled = ""
    if options.pool:
        pooled = pooled_within(frame, ["family", "device"], pool=True)
    return Result(
        numbers=pd.concat(parts, ignore_index=True),
        answer=_answer(frontiers),
        sentences=[*_sentences(frontiers), *(f"{reason}." for reason in omitted)],
        sources=tuple(run_ids),
        pooled=pooled,
    )


def find_frontiers(
    frame: pd.DataFrame, *, pool: bool = False
) -> tuple[list[MemoryFrontier], list[InsufficientData]]:
    """Find the memory limit of each family on each device.

    Args:
        frame: Runs, one per row, including failed runs.
        pool: Whether to pool runs of different environments or protocols.

    Returns:
        The limits, and an InsufficientData with the reason for each group without a limit.

    Raises:
        InsufficientData: If no group has points of different sizes.
        HeterogeneousError: If the runs of a family on a device differ in their environment or
            timing protocol, and `pool` is false.
    """
    return analyze_groups(
        frame,
        lambda group: _find_frontier(group, pool=pool),
        "no group has points of different sizes",
        "measure several sizes, about 10 seconds each: python -m paradnn.train -m model=fc "
        "batch_size=64,512,4096 measure=quick",
    )


def _find_frontier(group: FamilyGroup, *, pool: bool) -> MemoryFrontier:
    from paradnn.designs.frontier import cross_check_points

    points = aggregate_replicates(require_homogeneous(group.rows, pool=pool))
    is_informative = is_ok(points) | points["outcome"].isin(OUT_OF_MEMORY)
    outcomes = points.loc[~is_informative, "outcome"].fillna("unfinished")
    excluded = outcomes.value_counts().to_dict()
    points = points[is_informative].reset_index(drop=True)
    if points.empty:
        raise InsufficientData("no point ran or failed for lack of memory")
    varying = [name for name in hyperparameters(points) if points[name].nunique(dropna=False) > 1]
    sizes = _size_columns(points, varying)
    if sizes.empty:
        raise InsufficientData(
            "all runs have the same batch size and model size",
            remedy="measure several sizes, for example batch_size=64,256,1024",
        )
    failed = (~is_ok(points)).to_numpy(dtype=bool)
    side = np.full(len(points), "open", dtype=object)
    edge = np.zeros(len(points), dtype=bool)
    signs = [-1.0 if name in _DECREASING else 1.0 for name in sizes]
    increasing = (sizes * signs).to_numpy()
    settings = [name for name in varying if name not in sizes]
    for rows in _comparable_rows(points, settings):
        side[rows], edge[rows] = cross_check_points(increasing[rows], failed[rows])
    order = np.argsort(np.log(np.maximum(sizes, 1e-300)).sum(axis=1), kind="stable")
    table = points[varying].assign(failed=failed, side=side, edge=edge).iloc[order]
    return MemoryFrontier(group, table, points, excluded)


def _size_columns(points: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return those of the named columns that are sizes, as float64.

    Args:
        points: Points, one per row.
        names: Names of the columns to examine.
    """
    columns = {}
    for name in names:
        sizes = as_sizes(points[name])
        if sizes is not None and name not in _NOT_SIZES:
            columns[name] = sizes
    return pd.DataFrame(columns)


def _comparable_rows(points: pd.DataFrame, settings: Sequence[str]) -> list[np.ndarray]:
    """Return the positions of the points in each group with equal settings.

    A missing value counts as a value.

    Args:
        points: Points, one per row.
        settings: Columns that must be equal within a group.
    """
    if not settings:
        return [np.arange(len(points))]
    groups = points.groupby(list(settings), dropna=False).indices
    return [np.asarray(positions) for positions in groups.values()]


def _answer(frontiers: Sequence[MemoryFrontier]) -> AnalysisAnswer:
    """State the number of points that ran out of memory, and the smallest such point per family."""
    tried = sum(len(frontier.points) for frontier in frontiers)
    failed = sum(int(frontier.points["failed"].sum()) for frontier in frontiers)
    if not failed:
        sentence = f"None of {counted(tried, 'tried point')} ran out of memory."
        return AnalysisAnswer(sentence=sentence, points=tried)
    smallest = []
    for frontier in frontiers:
        edge = frontier.points[frontier.points["edge"] & frontier.points["failed"]]
        if len(edge):
            (name,) = point_names(frontier.tried.loc[edge.index[:1]])
            smallest.append(f"{name} on {frontier.group.device}")
    text = f"{failed:,} of {counted(tried, 'tried point')} ran out of memory, the smallest "
    text += " and ".join(smallest[:_MAX_NAMED])
    if len(smallest) > _MAX_NAMED:
        text += f" (and {len(smallest) - _MAX_NAMED} more, see the table)"
    return AnalysisAnswer(sentence=f"{text}.", points=tried)


def _sentences(frontiers: Sequence[MemoryFrontier]) -> Iterator[Paragraph]:
    for frontier in frontiers:
        points = frontier.points
        head = (
            f"{frontier.group.name}: {points['failed'].sum():,} of "
            f"{counted(len(points), 'tried point')} ran out of memory"
        )
        if frontier.excluded:
            listed = ", ".join(f"{count} {name}" for name, count in frontier.excluded.items())
            head += f"; excluded: {listed}"
        yield Paragraph(f"{head}.", tuple(_details(points)))


def _details(points: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on the points at the memory limit, and on contradicting points.

    Args:
        points: The points of one family on one device, from `MemoryFrontier.points`.
    """
    failed = points[points["edge"] & points["failed"]]
    fitted = points[points["edge"] & ~points["failed"]]
    if len(failed):
        smallest = _format_point(failed.iloc[0])
        if len(failed) > 1:
            smallest += f" (one of {len(failed)} minimal failing points)"
        yield f"Smallest failing point: {smallest}."
    if len(fitted):
        largest = _format_point(fitted.iloc[-1])
        if len(fitted) > 1:
            largest += f" (one of {len(fitted)} maximal fitting points)"
        yield f"Largest fitting point: {largest}."
    contradicting = points[~points["failed"] & points["side"].isin(["contradicted", "fails"])]
    if len(contradicting):
        named = [_format_point(row) for _, row in contradicting.head(_MAX_NAMED).iterrows()]
        if len(contradicting) > _MAX_NAMED:
            named.append(f"and {len(contradicting) - _MAX_NAMED} more")
        yield (
            f"{counted(len(contradicting), 'point')} fitted although points that are no larger in "
            f"any size did not: {'; '.join(named)}. Either the memory of a point does not grow "
            "with every size, or the free memory varies from run to run."
        )


def _format_point(row: pd.Series) -> str:
    """Return the hyperparameters of a point as text, such as "batch_size 64, nodes 8192"."""
    names = [str(name) for name in row.index if name not in _RESULTS]
    return ", ".join(f"{name.removeprefix('model.')} {row[name]}" for name in names)
