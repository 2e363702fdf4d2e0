"""`scaling`: how speed grows with devices, and the fraction that does not run in parallel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.format import percent_interval
from analysis.options import Options, option
from analysis.result import Paragraph, Result, joined, pooled_within
from analysis.summaries.gate import gated
from analysis.summaries.scaling_prediction import PredictedResult, describe_expected, plan, pooled_messages, told_apart
from paradnn.errors import ConfigError, NotEnoughData

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.scaling import FamilyScaling, Scaling
    from analysis.methods.scaling_prediction import Expected
    from paradnn.forecast.communication.data_parallel import Exchange

__all__ = ["ScalingOptions", "ScalingResult", "scaling"]

#: Columns of a pair that are shown even where all pairs agree, in this order, and those that never are.
_SHOWN = (
    "devices",
    "one",
    "many",
    "speedup",
    "speedup_low",
    "speedup_high",
    "efficiency",
    "fraction",
    "interval_source",
)
_HIDDEN = (
    "family",
    *(f"{side}_{name}" for side in "ab" for name in ("count", "units", "spread")),
    *("log_error", "degrees", "p_value", "comparable"),
    *_SHOWN,
)
_PREDICTED = "predicted from a channel (model=channel)"


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Which rate, over which count of devices; and over which channel steps are predicted."""

    command = "scaling"

    metric: Literal["examples_per_second", "flops_per_second"] = option(
        "examples_per_second", "a rate (default: examples_per_second)"
    )
    by: str = option(
        "devices", "what counts the devices (default: devices), such as platform.threads", metavar="COLUMN"
    )
    channel: str | None = option(
        None,
        "predict steps from what messages cost on a measured channel, called as `analysis channel` calls it: "
        "'tensorflow all_reduce'",
        metavar="NAME",
        group=_PREDICTED,
    )
    algorithm: Literal["ring", "tree", "halving", "parameter_server"] = option(
        "ring", "how gradients are summed (default: ring)", group=_PREDICTED
    )
    servers: int = option(1, "parameter servers (default: 1)", metavar="N", least=1, group=_PREDICTED)
    bucket: int | None = option(
        None,
        "gather gradients up to so many bytes, 0: each layer by itself (default: all at once, as TensorFlow does)",
        metavar="B",
        least=0,
        group=_PREDICTED,
    )
    hosts: tuple[str, ...] = option(
        (), "what so many hosts would give, on paper: 1,2,4,1024", metavar="N,N", group=_PREDICTED
    )
    scaling: Literal["weak", "strong"] = option(
        "weak", "of --hosts: each has the measured batch (weak, the default), or all share it", group=_PREDICTED
    )

    @property
    def beside_messages(self) -> bool:
        return self.channel is not None

    @property
    def exchange(self) -> Exchange | None:
        """How gradients are exchanged, where a channel is named."""
        from paradnn.forecast.communication.data_parallel import Exchange

        if self.channel is None:
            return None
        bucket = math.inf if self.bucket is None else self.bucket
        return Exchange(self.channel, self.algorithm, self.servers, bucket)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScalingResult(Result):
    """Every point on several devices against itself on one, and the non-parallel fraction of each family."""

    scaling: Scaling
    expected: Expected | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The pairs, without columns that are the same in all of them; with a channel, measured beside predicted."""
        if self.expected is not None:
            return told_apart(self.expected.table)
        pairs = self.scaling.pairs
        others = [name for name in pairs.columns if name not in _HIDDEN and pairs[name].nunique(dropna=False) > 1]
        return pairs[["family", *others, *_SHOWN]]

    def _figure(self) -> Figure:
        from analysis.figures.scaling import draw_scaling

        return draw_scaling(self.scaling, self.expected)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for family in self.scaling.families:
            yield _describe(family, self.scaling.by.rpartition(".")[2])
        if self.scaling.alone:
            names = ", ".join(self.scaling.alone)
            yield Paragraph(f"Not compared: {names}, of which no point was measured on 1 and on more.")
        yield Paragraph(
            "The fraction is that of Amdahl's law, speedup = 1 / (s + (1 - s) / n), fitted over points; intervals "
            "are 95%, over models and batch sizes as a sample of their design space."
        )
        for reason, those in _reasons(self.scaling.apart):
            yield Paragraph(f"No interval of {', '.join(those)} holds what time does to them: {reason}.")
        if self.expected is not None:
            yield from describe_expected(self.expected)


@gated
def scaling(frame: pd.DataFrame, options: ScalingOptions | None = None) -> Result:
    """Every point on several devices against itself on one, and Amdahl's fraction of each family.

    With a channel also each measured step beside what the channel says of it; with `hosts` only what these would give.

    NotEnoughData where no point was measured on one device and on more, SchemaError for heterogeneous runs of a family.
    """
    from analysis.methods.scaling import scaling as analyse

    options = options or ScalingOptions()
    exchange = options.exchange
    _check(options)
    if exchange is not None and options.hosts:
        return plan(frame, exchange, options.hosts, options.scaling, options.pool)
    if exchange is None:
        pairs = analyse(frame, options.metric, options.by, options.pool)
        return ScalingResult(scaling=pairs, sources=pairs.run_ids, pooled=joined(pairs.pooled))
    from analysis.methods.scaling_prediction import expect_measured, trainings

    expected = expect_measured(frame, exchange)
    messages = pooled_messages(frame, expected, options.pool)
    try:
        pairs = analyse(frame, options.metric, options.by, options.pool)
    except NotEnoughData:  # of weak scaling: batches differ
        used = trainings(frame)
        pooled = joined((pooled_within(used, ["family", "device"], options.pool), messages))
        return PredictedResult(expected=expected, sources=(*used["run_id"], *expected.run_ids), pooled=pooled)
    pooled = joined((*pairs.pooled, messages))
    sources = (*pairs.run_ids, *expected.run_ids)
    return ScalingResult(scaling=pairs, expected=expected, sources=sources, pooled=pooled)


def _check(options: ScalingOptions) -> None:
    """ConfigError for an option that says nothing without another one, which is not there."""
    usual = ScalingOptions()
    if options.channel is None:
        for name in ("hosts", "algorithm", "servers", "bucket", "scaling"):
            if (given := getattr(options, name)) != getattr(usual, name):
                value = ",".join(given) if name == "hosts" else given
                raise ConfigError(f"--{name}", value, "needs to know what messages cost", "name a --channel")
    if options.servers != usual.servers and options.algorithm != "parameter_server":
        reason = f"--algorithm={options.algorithm} has no servers"
        raise ConfigError("--servers", options.servers, reason, "add --algorithm parameter_server, or leave it out")
    if options.scaling != usual.scaling and not options.hosts:
        raise ConfigError("--scaling", options.scaling, "says how --hosts share the batch", "name --hosts")


def _describe(family: FamilyScaling, what: str) -> Paragraph:
    counts, most = ", ".join(map(str, family.counts)), family.counts[-1]
    head = (
        f"{family.family}: over {family.points} points on {counts} against 1 ({what}), "
        f"{percent_interval(family.fraction)} of the step does not run in parallel"
        f"{_bound(family.fraction.value, what)}."
    )
    points = [
        f"Point by point: median {percent_interval(family.median)}, 90th percentile "
        f"{percent_interval(family.upper)}, at most {100 * family.largest:.3g}%.",
        f"On {most}: a median of {percent_interval(family.efficiency)} of the speed of {most} without loss.",
    ]
    if family.largest_batch is not None:
        upper = percent_interval(family.upper_at_largest_batch)
        points.append(f"At the largest batch size, {family.largest_batch}: 90th percentile {upper}.")
    odd = [f"{family.slower} slower than on one"] * (family.slower > 0)
    odd += [f"{family.superlinear} more than n times as fast"] * (family.superlinear > 0)
    if odd:
        points.append(f"Of {family.measurements} measurements {', '.join(odd)}.")
    return Paragraph(head, tuple(points))


def _reasons(apart: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    """Each reason once, with the families that it is of."""
    found: dict[str, list[str]] = {}
    for name, reason in apart.items():
        found.setdefault(reason, []).append(name)
    return found.items()


def _bound(fraction: float, what: str) -> str:
    """What the fraction means for any number of devices."""
    if fraction >= 1:
        return f": more {what} make it slower"
    if fraction <= 0:
        return ": nothing is lost"
    return f", so no number of {what} makes it more than {1 / fraction:.3g}x as fast"
