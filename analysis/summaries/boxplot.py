"""`boxplot`: the spread of a metric, or of the speedups of A over B, over the models of each group, with the paper's
percentiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.format import is_share, short
from analysis.labels import label
from analysis.options import Options, option, unit_option
from analysis.result import Paragraph, Result, pooled_within, require_runs
from analysis.summaries.gate import gated
from analysis.summaries.sides import Sides, apart, choose_sides
from paradnn.core.words import counted
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.boxplot import Boxes

__all__ = ["BoxplotOptions", "BoxplotResult", "boxplot"]

#: What is drawn if no metric is named: the first that nine of ten runs have.
_CANDIDATES = ("flops_utilization", "flops_utilization_spec", "flops_per_second", "examples_per_second")
_FITTING = 30  # boxes that one figure holds


@dataclass(frozen=True, kw_only=True)
class BoxplotOptions(Options):
    """Which metric, and over which groups."""

    command = "boxplot"

    metric: str | None = option(None, "a metric (default: FLOPS utilisation, else what runs have)", metavar="NAME")
    by: tuple[str, ...] = option(
        ("family",), "a box for each value; A,B for each pair of values (default: family)", metavar="COLUMN"
    )
    scale: Literal["auto", "linear", "log"] = option(
        "auto", "of the axis (default: log where values span more than a factor of 100)"
    )
    a: tuple[str, ...] = option(
        (),
        "boxes of the speedups of A over --b in the metric: condition of side A's runs, repeatable",
        metavar="COLUMN=VALUE",
        several="repeat",
    )
    b: tuple[str, ...] = option((), "condition of side B's runs, repeatable", metavar="COLUMN=VALUE", several="repeat")
    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BoxplotResult(Result):
    """The boxes of a metric, in `unit`; `scale` is that of the axis they are drawn on. With `sides` the metric is the
    speedup of A over B in `compared`, and `pairs` are the paired points."""

    boxes: Boxes
    unit: str
    scale: str
    sides: Sides | None = None
    compared: str = ""
    pairs: pd.DataFrame | None = None

    @property
    def what(self) -> str:
        """What the boxes are of, in words."""
        if self.sides is None:
            return label(self.boxes.metric)
        return f"speedup of {self.sides.name_a} over {self.sides.name_b}"

    @property
    def table(self) -> pd.DataFrame:
        return self.boxes.table

    @property
    def drawn(self) -> int:
        """How many groups have a box."""
        return int((self.table["count"] > 0).sum())

    @property
    def drawable(self) -> bool:
        return self.drawn > 0

    def _figure(self) -> Figure:
        from analysis.figures.boxplot import draw_boxes

        if self.drawn > _FITTING:
            by = ",".join(self.boxes.by)
            raise ConfigError("--by", by, f"{self.drawn} boxes do not fit one figure", "choose runs with --where")
        return draw_boxes(self.boxes, self.what, self.unit, self.scale)

    def _paragraphs(self) -> Iterator[Paragraph]:
        from analysis.methods.boxplot import BOX, WHISKERS

        rows = self.table.to_dict("records")
        for row in rows:
            yield Paragraph(self._group(row))
        few = [row["label"] for row in rows if BOX <= row["count"] < WHISKERS]
        if few:
            yield Paragraph(
                f"With fewer than {WHISKERS} points whiskers would lie between the two outermost values, so none are "
                f"drawn: {'; '.join(few)}."
            )
        if self.sides is not None and self.pairs is not None:
            yield Paragraph(f"Speedups are in {self.compared}, of points that were measured on both sides.")
            yield from apart(self.pairs, self.sides)

    def _group(self, row: Mapping[Any, Any]) -> str:
        """The median and the percentiles of one group."""
        from analysis.methods.boxplot import BOX, WHISKERS

        share = is_share(self.boxes.metric, self.unit, self.table["maximum"].dropna())

        def shown(name: str) -> str:
            return f"{row[name]:.3g}x" if self.sides else short(row[name], self.unit, share, digits=3)

        missing = f"; {row['missing']} more have none" if row["missing"] else ""
        if not row["count"]:
            return f"{row['label']}: no point has {self.what}{missing}."
        known = row["median_low"] == row["median_low"]
        ends = f"{shown('median_low')} to {shown('median_high')}"
        interval = f" (95% interval {ends} over {row['sample']})" if known else ""
        points = f"{counted(row['count'], 'point')}{missing}"
        start = f"{row['label']}: median {self.what} {shown('p50')}{interval}; {points}."
        ends = f"{shown('minimum')} and {shown('maximum')}"
        if row["count"] < BOX:
            return f"{start} They lie between {ends}, too few for percentiles."
        most = f", 96% between {shown('p2')} and {shown('p98')}" if row["count"] >= WHISKERS else ""
        return f"{start} 82% of them lie between {shown('p9')} and {shown('p91')}{most}; the extremes are {ends}."


@gated
def boxplot(frame: pd.DataFrame, options: BoxplotOptions | None = None) -> BoxplotResult:
    """A box for each value of `by`, over points: replicates count once. With `a` and `b`, of the speedups of A over B.

    NotEnoughData without runs, ConfigError for a column or metric that is not there, SchemaError for heterogeneous
    runs in a group.
    """
    from analysis.methods.boxplot import box_statistics
    from analysis.methods.columns import choose_metric, find_column, find_metric
    from analysis.store.frame import aggregate_replicates, families, units

    options = options or BoxplotOptions()
    require_runs(frame)
    if not options.by:
        raise ConfigError("--by", "", "names no column", "write for example --by family")
    if options.a or options.b:
        return _speedups(frame, options)
    by = [find_column(frame, name, "--by") for name in options.by]
    metric = find_metric(frame, options.metric) if options.metric else choose_metric(frame, _CANDIDATES)
    pooled = pooled_within(frame, by, options.pool)
    return BoxplotResult(
        boxes=box_statistics(aggregate_replicates(frame), metric, by, families(frame), options.unit),
        unit=units([metric]).get(metric, ""),
        scale=options.scale,
        sources=tuple(frame["run_id"]),
        pooled=pooled,
    )


def _speedups(frame: pd.DataFrame, options: BoxplotOptions) -> BoxplotResult:
    """Boxes of the speedups of A over B, point by point (the paper's Figure 11, top)."""
    from analysis.methods.boxplot import box_statistics
    from analysis.methods.columns import find_column
    from analysis.methods.pairing import pair
    from analysis.store.frame import families
    from paradnn.errors import NotEnoughData

    for name, conditions in (("--a", options.a), ("--b", options.b)):
        if not conditions:
            remedy = "name for example --a 'device=TPU v2' --b device=V100"
            raise ConfigError(name, "(none)", "both sides are needed", remedy)
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), options.pool)
    metric = options.metric or "examples_per_second"
    pairs = pair(sides.a, sides.b, metric)
    if pairs.empty:
        raise NotEnoughData(f"no point was measured on both sides, of {len(sides.a)} runs of A and {len(sides.b)} of B")
    by = [find_column(pairs, name, "--by") for name in options.by]
    return BoxplotResult(
        boxes=box_statistics(pairs, "speedup", by, families(pairs), options.unit),
        unit="x",
        scale=options.scale,
        sides=sides,
        compared=metric,
        pairs=pairs,
        sources=sides.sources,
        pooled=sides.pooled,
    )
