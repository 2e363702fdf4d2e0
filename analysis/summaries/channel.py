"""`channel`: latency and bandwidth of messages by transport and pattern, as lines over their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.format import short
from analysis.options import Options, option
from analysis.result import Paragraph, Result, pooled_within
from analysis.summaries.gate import gated
from paradnn.core.words import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from paradnn.forecast.communication.channels import ChannelFit, Channels
    from paradnn.forecast.communication.transfer_fit import Piece, TransferFit
    from paradnn.forecast.estimate import Estimate

__all__ = ["ChannelOptions", "ChannelResult", "channel"]


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(Options):
    """From which size on errors are given apart."""

    command = "channel"

    large: int = option(
        65536, "tell the error of the fit from so many bytes on by itself (default: 65536)", metavar="BYTES", least=1
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ChannelResult(Result):
    """The channels, each with its fit."""

    channels: Channels
    large: int

    @property
    def table(self) -> pd.DataFrame:
        """A row for each piece of each fit; times in us, bandwidths in B/s."""
        import pandas as pd

        rows = [_row(each, fit, piece) for each, fit in self.channels.fitted for piece in fit.pieces]
        return pd.DataFrame(rows)

    def _figure(self) -> Figure:
        from analysis.figures.channel import draw_channels

        return draw_channels(self.channels)

    def _paragraphs(self) -> Iterator[Paragraph]:
        several = len({each.device for each in self.channels.channels}) > 1
        for each, fit in self.channels.fitted:
            yield _describe(each, fit, self.large, several)
        few = [each.name for each in self.channels.channels if each.fit is None]
        if few:
            yield Paragraph(f"Too few sizes for a fit: {'; '.join(dict.fromkeys(few))}.")
        for row in self.channels.floors.to_dict("records"):
            yield Paragraph(
                f"{row['channel']} takes {short(row['smallest_ratio'])} times as long as {row['floor']} at "
                f"{_bytes(row['smallest'])}, {short(row['largest_ratio'])} times at {_bytes(row['largest'])}."
            )
        yield Paragraph(
            "A line is start-up + size / bandwidth, fitted to relative errors, in pieces where more than chance asks "
            "for them; intervals are 95%, over measurements."
        )


@gated
def channel(frame: pd.DataFrame, options: ChannelOptions | None = None) -> ChannelResult:
    """Start-up time and bandwidth of messages, for each transport and pattern, in pieces where a protocol changes.

    NotEnoughData where no run measured messages, SchemaError for heterogeneous runs of a channel.
    """
    from paradnn.forecast.communication.channels import channels

    options = options or ChannelOptions()
    found = channels(frame)
    used = [name for each in found.channels for name in each.rows["run_id"]]
    by = ["device", "model.transport", "model.pattern"]
    pooled = pooled_within(frame[frame["run_id"].isin(used)], by, options.pool)
    return ChannelResult(channels=found, large=options.large, sources=tuple(used), pooled=pooled)


def _row(each: ChannelFit, fit: TransferFit, piece: Piece) -> dict[str, object]:
    ends = {
        name: value
        for what, estimate in (("start_up_us", piece.start_up), ("bytes_per_second", piece.bandwidth))
        for name, value in zip((what, f"{what}_low", f"{what}_high"), estimate, strict=True)
    }
    return {
        "device": each.device,
        "channel": each.name,
        "first_bytes": piece.first,
        "last_bytes": piece.last,
        "measurements": piece.measurements,
        **ends,
        "median_error": _median(fit.errors),
    }


def _describe(each: ChannelFit, fit: TransferFit, large: int, several: bool) -> Paragraph:
    where = f" on {each.device}" if several else ""
    head = (
        f"{each.name}{where}: start-up {_interval(fit.latency, 'us')}, bandwidth of the largest messages "
        f"{_interval(fit.bandwidth, 'B/s')}, over {counted(len(each.rows), 'run')}."
    )
    points = [_errors(each, fit, large)]
    for before, after in zip(fit.pieces, fit.pieces[1:], strict=False):
        step = float(after.at(after.first) / before.at(after.first)) - 1
        points.append(
            f"From {_bytes(after.first)} on another line holds: {_interval(after.start_up, 'us')} and "
            f"{_interval(after.bandwidth, 'B/s')}; a message of that size takes {step:+.0%} against the line before."
        )
    if len(fit.pieces) > 1:
        points.append(f"One line through all would be off by {_share(_median(fit.line_errors))} in the median.")
    return Paragraph(head, tuple(points))


def _errors(each: ChannelFit, fit: TransferFit, large: int) -> str:
    from paradnn.forecast.communication.channels import SIZE

    sizes = each.rows[SIZE].astype("float64").sort_values(kind="stable").to_numpy()
    beyond = fit.errors[sizes >= large]
    text = f"The fit is off by {_share(_median(fit.errors))} in the median, {_share(float(max(fit.errors)))} at most"
    return text + (f"; from {_bytes(large)} on by {_share(_median(beyond))}." if len(beyond) else ".")


def _median(values: object) -> float:
    import numpy as np

    return float(np.median(np.asarray(values)))


def _interval(estimate: Estimate, unit: str) -> str:
    value, low, high = (_with_unit(each, unit) for each in estimate)
    return f"{value} ({low} to {high})"


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.3g} us" if unit == "us" else short(value, unit, digits=3)


def _share(value: float) -> str:
    return short(value, share=True)


def _bytes(count: float) -> str:
    """A size as people write it: 64 KiB."""
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size and count % size == 0:
            return f"{count / size:g} {name}"
    return f"{count:,.0f} B"
