"""`channel`: start-up time and bandwidth of messages, fitted to the runs of model=channel, each
transport and pattern by itself, in pieces where a protocol changes, with intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from analysis.format import format_number
from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import Options
from analysis.registry import SectionSpec, analysis
from analysis.result import Paragraph, Result, pooled_within
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.sessions import assign_sessions
from paradnn.statistics.transfers import FEWEST, TransferFit, fit_transfers

_FAINT = 0.55
#: Breaks beyond which none is marked.
_MOST_BREAKS = 12


@analysis(
    Options,
    summary="latency and bandwidth of messages by transport and pattern, as lines over their size",
    example="python -m analysis channel --figure channel.png",
    section="system",
    order=40,
    title="Messages between processes",
    reading="Lines are start-up + size / bandwidth; a dotted line is a size from which on another one holds.",
    list_sections=lambda rows: (
        [SectionSpec()] if rows.get("transfer_us", pd.Series()).notna().any() else []
    ),
)
def channel(frame: pd.DataFrame, options: Options) -> Result:
    """Start-up time (us) and bandwidth (B/s), a row for each piece of each transport and pattern.
    NotEnoughData where no run measured messages, SchemaError for heterogeneous runs of a channel.
    """
    found = _channels(frame)
    used = [name for each in found for name in each.runs["run_id"]]
    names = ["device", "channel", "first_bytes", "last_bytes", "measurements"]
    names += [
        f"{what}{end}"
        for what in ("start_up_us", "bytes_per_second")
        for end in ("", "_low", "_high")
    ]
    rows = [
        [
            each.device,
            each.name,
            *piece[:3],
            *piece.start_up,
            *piece.bandwidth,
            np.median(each.fit.errors),
        ]
        for each in found
        if each.fit
        for piece in each.fit.pieces
    ]
    return Result(
        numbers=pd.DataFrame(rows, columns=[*names, "median_error"]),
        sentences=[*_sentences(found)],
        picture=lambda: _draw(found),
        sources=tuple(used),
        pooled=pooled_within(frame[frame["run_id"].isin(used)], _GROUP, options.pool),
    )


SIZE = "model.bytes"
TIME = "transfer_us"
_GROUP = ["device", "model.transport", "model.pattern"]


class _Channel(NamedTuple):
    """One channel, such as "tcp bandwidth, window 64", and how it is called where there are several
    devices. `runs` hold SIZE and TIME, `fit` is over these, None where there are too few sizes.
    """

    device: str
    name: str
    shown: str
    runs: pd.DataFrame
    fit: TransferFit | None


def _channels(frame: pd.DataFrame) -> list[_Channel]:
    """A fit for each channel that has enough sizes. NotEnoughData where no run measured messages."""
    timed = {*_GROUP, SIZE, TIME} <= {*frame.columns}
    if timed:
        runs = frame[frame["outcome"].isin(["ok"]) & frame[TIME].lt(np.inf)]
    else:
        runs = frame.head(0)
    if runs.empty:
        raise NotEnoughData(
            "no run measured messages; measure some, as in python -m paradnn.train -m experiment=channel"
        )
    runs = runs.astype({SIZE: "float64", TIME: "float64"})
    settings = [
        name
        for name in map(str, runs)
        if name.startswith("model.") and name not in (*_GROUP, SIZE, "model.name")
    ]
    settings += [name for name in ("hosts", "platform.cores") if name in runs]
    found = []
    several = runs["device"].nunique() > 1
    for (device, transport, pattern), same in runs.groupby(_GROUP, sort=True):
        # What does not differ among these needs no word.
        telling = [name for name in settings if same[name].nunique(dropna=False) > 1]
        parts: Any = same.groupby(telling, sort=True, dropna=False) if telling else [((), same)]
        for values, part in parts:
            told = zip(telling, values, strict=True)
            known = ((label(name), value) for name, value in told if pd.notna(value))
            variant = [
                f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in known
            ]
            name = ", ".join([f"{transport} {pattern}", *variant])
            if part[SIZE].nunique() >= FEWEST:
                fit = fit_transfers(part[SIZE], part[TIME], assign_sessions(part))
            else:
                fit = None
            found.append(
                _Channel(str(device), name, f"{name} on {device}" if several else name, part, fit)
            )
    return found


def _sentences(found: Sequence[_Channel]) -> Iterator[Paragraph]:
    """How good each channel is, how far off its fit is, and where other lines hold."""
    for each in found:
        fit = each.fit
        if fit is None:
            continue
        head = (
            f"{each.shown}: start-up {_interval(fit.latency, 'us')}, bandwidth of the largest messages "
            f"{_interval(fit.bandwidth, 'B/s')}, over {counted(len(each.runs), 'run')}."
        )
        errors = (np.median(fit.line_errors), np.median(fit.errors), fit.errors.max())
        one, middle, most = (format_number(float(error), share=True) for error in errors)
        points = [f"The fit is off by {middle} in the median, {most} at most."]
        if len(set(assign_sessions(each.runs))) < 2:
            points.append(
                "All are of one session, and what that did to all of them no interval holds."
            )
        if fit.breaks:
            where = ", ".join(map(_bytes, fit.breaks))
            points.append(
                f"Other lines hold from {where} on; one through all would be off by {one} in the median."
            )
        yield Paragraph(head, tuple(points))
    few = dict.fromkeys(each.name for each in found if each.fit is None)
    if few:
        yield Paragraph(f"Too few sizes for a fit: {'; '.join(few)}.")
    yield Paragraph(
        "A line is start-up + size / bandwidth, fitted to relative errors, in pieces where more than chance asks "
        "for them; intervals are 95%, over measurements."
    )


def _interval(estimate: Estimate, unit: str) -> str:
    value, low, high = (
        f"{each:.3g} us" if unit == "us" else format_number(each, unit, digits=3)
        for each in estimate
    )
    return f"{value} ({low} to {high})"


def _bytes(count: float) -> str:
    """A size as people write it: 64 KiB."""
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size and count % size == 0:
            return f"{count / size:g} {name}"
    return f"{count:,.0f} B"


def _draw(found: Sequence[_Channel]) -> drawing.Figure:
    """Left the time of a message, right its size over that; a mark is a run, a line its fit, dotted
    between pieces.
    """
    drawn, (left, right) = drawing.panels(2, 5.5, 4.6, across=2)
    names = [each.shown for each in found]
    crowded = sum(len(each.fit.breaks) for each in found if each.fit) > _MOST_BREAKS
    for each in found:
        look = drawing.look(each.shown, names)
        pieces = each.fit.pieces if each.fit else ()
        how = {"markersize": 3, "label": each.shown, **look}
        line = {"linewidth": 1.3, "color": look["color"]}
        sizes = each.runs[SIZE]
        times = each.runs[TIME]
        drawing.marks(left, sizes, times, alpha=_FAINT, **how)
        drawing.marks(right, sizes, sizes / times * 1e6, alpha=_FAINT, **how)
        for piece in pieces:
            x = np.geomspace(piece.first, max(piece.last, piece.first * 1.01), 100)
            left.plot(x, piece.at(x), **line)
            right.plot(x, x / np.maximum(piece.at(x), 1e-12) * 1e6, **line)
        for piece in () if crowded else pieces[1:]:
            left.axvline(
                piece.first, color=look["color"], linewidth=0.8, linestyle=":", alpha=_FAINT
            )
    for axes, title, unit in (
        (left, "Time of a message or a collective", "time (us)"),
        (right, "Its bandwidth", "size / time (B/s)"),
    ):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: _bytes(value).removesuffix("B").strip())
        axes.xaxis.get_major_locator().set_params(numticks=8)  # type: ignore[call-arg]
        drawing.finish(
            axes,
            title,
            "size (bytes)",
            unit,
            logs={"y": "{:g}".format if axes is left else format_number},
        )
    drawing.legend(drawn)
    return drawn
