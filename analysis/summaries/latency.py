"""`latency`: latency over the rate of queries for each policy, its knee, and how latencies are distributed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.format import short
from analysis.options import Options, option
from analysis.result import Paragraph, Result, joined
from analysis.summaries.gate import gated_with_queries

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.latency import Curve
    from analysis.store.latencies import Distribution

__all__ = ["LatencyOptions", "LatencyResult", "latency"]

_CURVES = 12


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Options):
    """Which quantile."""

    command = "latency"

    quantile: Literal["p50", "p90", "p95", "p99", "p99.9"] = option("p99", "of the latency (default: p99)")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LatencyResult(Result):
    """A curve for each policy; `distributions` of the runs at the highest rate that each policy served."""

    curves: tuple[Curve, ...]
    quantile: str
    distributions: Mapping[str, Distribution]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each rate of each policy."""
        import pandas as pd

        parts = [one.table.drop(columns="run_id").assign(task=one.task, policy=one.name) for one in self.curves]
        table = pd.concat(parts, ignore_index=True)
        return table[["task", "policy", *(name for name in table.columns if name not in ("task", "policy"))]]

    def _figure(self) -> Figure:
        from analysis.figures.latency import draw_latency

        return draw_latency(self.curves[:_CURVES], self.quantile, self.distributions)

    def _paragraphs(self) -> Iterator[Paragraph]:
        tasks = dict.fromkeys(one.task for one in self.curves)
        for task in tasks:
            curves = [one for one in self.curves if one.task == task]
            yield Paragraph(
                f"{task}: {self.quantile} of the latency over the rate.", tuple(map(self._describe, curves))
            )
        yield Paragraph(
            "The knee is the rate at which rate / latency is highest (Kleinrock 1979): above it latency grows faster "
            "than the rate. In brackets are the outermost rates of which that may be as high."
        )

    def _describe(self, one: Curve) -> str:
        held = one.table[one.table["held"]]
        words = []
        if len(held):
            ends = [held.iloc[0], held.iloc[-1]][: min(2, len(held))]
            words.append(
                " to ".join(f"{short(row['latency'], 'ms', digits=3)} at {_rate(row['rate'])}" for row in ends)
            )
        if one.knee and one.knee.inside:
            spread = f" ({_rate(one.knee.low)} to {_rate(one.knee.high)})" if one.knee.low < one.knee.high else ""
            words.append(f"knee at {_rate(one.knee.rate)}{spread}")
        elif one.knee:
            words.append(f"no knee within these rates: rate / latency is highest at {_rate(one.knee.rate)}, their end")
        else:
            words.append("a knee takes three rates that were served")
        lost = one.table[~one.table["held"]]
        if len(lost):
            words.append(f"not served from {_rate(lost['rate'].min())} on")
        for peak in one.peaks:
            limit = f"{peak.limit:g} ms at p{peak.percentile:g}"
            words.append(f"highest rate that held {limit} {_rate(peak.rate)}")
        return f"{one.name}: {'; '.join(words)}."


@gated_with_queries
def latency(frame: pd.DataFrame, options: LatencyOptions | None = None) -> LatencyResult:
    """Latency over rate. NotEnoughData where no run was loaded by a schedule."""
    from analysis.methods.latency import latency_curves
    from analysis.store.latencies import load_distributions

    options = options or LatencyOptions()
    curves = latency_curves(frame, f"latency_{options.quantile}_ms", options.pool)
    wanted = {_last(one) for one in curves[:_CURVES]}
    runs = frame[frame["run_id"].isin(wanted)]
    distributions = load_distributions(runs, options.store) if "artifact_uri" in runs else {}
    sources = tuple(run for one in curves for run in one.run_ids)
    pooled = joined(one.pooled for one in curves)
    return LatencyResult(
        curves=tuple(curves), quantile=options.quantile, distributions=distributions, sources=sources, pooled=pooled
    )


def _last(one: Curve) -> str:
    """The run at the highest rate that was served, else at the lowest that was not."""
    held = one.table[one.table["held"]]
    return str(held["run_id"].iloc[-1] if len(held) else one.table["run_id"].iloc[0])


def _rate(value: float) -> str:
    return f"{short(value, digits=3)}/s"
