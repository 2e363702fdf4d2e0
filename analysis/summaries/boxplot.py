"""`boxplot`: the spread of a metric over the models of each group, with the paper's percentiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.format import is_share, short
from analysis.options import Options, option
from analysis.summaries.gate import gated
from analysis.summaries.pooling import pooled_within, require_runs
from analysis.summaries.result import Paragraph, Result
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
_WHISKERS = 50  # points below which a 2nd percentile lies between the two lowest of them
_BOX = 12  # points below which a 9th percentile does


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BoxplotResult(Result):
    """The boxes of a metric, in `unit`; `scale` is that of the axis they are drawn on."""

    boxes: Boxes
    unit: str
    scale: str

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
        return draw_boxes(self.boxes, self.scale)

    def _paragraphs(self) -> Iterator[Paragraph]:
        rows = self.table.to_dict("records")
        for row in rows:
            yield Paragraph(self._group(row))
        few = [row["label"] for row in rows if _BOX <= row["count"] < _WHISKERS]
        if few:
            listed = "; ".join(few)
            yield Paragraph(
                f"With fewer than {_WHISKERS} points the whiskers lie between the two outermost values: {listed}."
            )

    def _group(self, row: Mapping[Any, Any]) -> str:
        """The median and the percentiles of one group."""
        share = is_share(self.boxes.metric, self.unit, self.table["maximum"].dropna())

        def shown(name: str) -> str:
            return short(row[name], self.unit, share, digits=3)

        missing = f"; {row['missing']} more have none" if row["missing"] else ""
        if not row["count"]:
            return f"{row['label']}: no point has {self.boxes.metric}{missing}."
        known = row["median_low"] == row["median_low"]
        interval = f" (95% interval {shown('median_low')} to {shown('median_high')})" if known else ""
        points = f"{row['count']} points{missing}"
        start = f"{row['label']}: median {self.boxes.metric} {shown('p50')}{interval} over {points}."
        ends = f"{shown('minimum')} and {shown('maximum')}"
        if row["count"] < _BOX:
            return f"{start} They lie between {ends}, too few for percentiles."
        return (
            f"{start} 82% of them lie between {shown('p9')} and {shown('p91')}, 96% between {shown('p2')} "
            f"and {shown('p98')}; the extremes are {ends}."
        )


@gated
def boxplot(frame: pd.DataFrame, options: BoxplotOptions | None = None) -> BoxplotResult:
    """A box for each value of `by`, over points: replicates count once.

    NotEnoughData without runs, ConfigError for a column or metric that is not there, SchemaError for heterogeneous
    runs in a group.
    """
    from analysis.methods.boxplot import box_statistics
    from analysis.methods.columns import choose_metric, find_column, find_metric
    from analysis.store.frame import aggregate_replicates, families, units

    options = options or BoxplotOptions()
    require_runs(frame)
    by = [find_column(frame, name, "--by") for name in options.by]
    if not by:
        raise ConfigError("--by", ",".join(options.by), "names no column", "write for example --by family")
    metric = find_metric(frame, options.metric) if options.metric else choose_metric(frame, _CANDIDATES)
    pooled = pooled_within(frame, by, options.pool)
    return BoxplotResult(
        boxes=box_statistics(aggregate_replicates(frame), metric, by, order=families(frame)),
        unit=units([metric]).get(metric, ""),
        scale=options.scale,
        sources=tuple(frame["run_id"]),
        pooled=pooled,
    )
