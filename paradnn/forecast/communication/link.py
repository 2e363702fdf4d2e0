"""A fitted channel as a link: seconds of a message of any size, and the interval of the fitted line there.

A piece's start-up and time per byte are known together better than each by itself, so the interval is that of the
line at a size, from the sizes of its piece: fitted +- t s sqrt(v' (X'X)^-1 v), with relative errors throughout, and
with the scatter of sessions where there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from paradnn.errors import ConfigError
from paradnn.forecast.communication.channels import SIZE, ChannelFit, Channels
from paradnn.forecast.communication.data_parallel import Link, as_link, exchange_seconds
from paradnn.forecast.communication.transfer_fit import TransferFit
from paradnn.workloads.channel import COLLECTIVES

__all__ = ["FittedLink", "RingCheck", "check_rings", "choose_channel", "link_of"]

#: Patterns that say what a message of an exchange costs.
_USABLE = ("latency", "bandwidth", "send_recv", "all_reduce")


@dataclass(frozen=True)
class FittedLink:
    """`links` are the link and those at the low and the high end of its 95% interval. `largest` is the largest message
    that was measured, in bytes; `processes` of the collective it is made of, 1 of a channel between two."""

    name: str
    links: tuple[Link, Link, Link]
    largest: float
    processes: int = 1


@dataclass(frozen=True)
class RingCheck:
    """An all-reduce that was measured on other numbers of processes: (bytes, measured / predicted) of the smallest and
    the largest size."""

    channel: str
    processes: int
    ratios: tuple[tuple[float, float], tuple[float, float]]


def check_rings(found: Channels, chosen: ChannelFit, link: FittedLink) -> tuple[RingCheck, ...]:
    """All-reduces of the same transport and device on other numbers of processes, beside rings over this link."""
    checks = []
    for each in found.channels:
        count = _processes(each.rows)
        same = (each.device, each.transport, each.pattern) == (chosen.device, chosen.transport, "all_reduce")
        if same and count != link.processes:
            times = each.times
            first, last = (
                (float(size), float(times[size]) / 1e6 / exchange_seconds("ring", count, float(size), link.links[0]))
                for size in (times.index.min(), times.index.max())
            )
            checks.append(RingCheck(each.name, count, (first, last)))
    return tuple(checks)


def choose_channel(found: Channels, name: str, key: str = "--channel", here: Collection[str] = ()) -> ChannelFit:
    """The channel that is called `name`, of several devices that of those `here`.

    A name may have fewer words than `analysis channel` gives it, or more, as long as one channel alone fits it.
    ConfigError, about the option `key`, where there is none, or several, or where it has no fit.
    """
    usable = [each for each in found.channels if each.fit and each.pattern in _USABLE]
    chosen = [each for each in usable if each.name == name] or [each for each in usable if each.is_called(name)]
    chosen = [each for each in chosen if each.device in here] or chosen
    if len(names := dict.fromkeys(each.name for each in chosen)) > 1:
        listed = "; ".join(f"'{each}'" for each in names)
        raise ConfigError(key, name, f"fits {len(names)} channels of these runs", f"choose one of {listed}")
    if len(chosen) > 1:
        remedy = f"choose one with python -m analysis scaling --device: {', '.join(each.device for each in chosen)}"
        raise ConfigError(key, name, "is a channel of several devices", remedy)
    if not chosen:
        there = "; ".join(f"'{each.name}'" for each in usable) or "none; python -m analysis channel says why"
        raise ConfigError(key, name, "is no fitted channel of these runs", f"there are {there}")
    return chosen[0]


def link_of(channel: ChannelFit) -> FittedLink:
    """What a message costs on a channel that has a fit; an all-reduce counts as the ring that takes as long."""
    assert channel.fit
    sizes = channel.rows[SIZE].to_numpy(dtype="float64")
    at = _with_interval(channel.fit)
    processes = _processes(channel.rows) if channel.pattern in COLLECTIVES else 1

    def link(end: int) -> Link:
        def own(size: float) -> float:
            return at(size)[end]

        return as_link(own, processes) if processes > 1 else own

    return FittedLink(channel.name, (link(0), link(1), link(2)), float(sizes.max()) / processes, processes)


def _processes(rows: pd.DataFrame) -> int:
    """How many take part; two where runs do not say."""
    known = rows["model.processes"].dropna().tolist() if "model.processes" in rows else []
    return int(known[0]) if known else 2


def _with_interval(fit: TransferFit) -> Callable[[float], tuple[float, float, float]]:
    """Bytes -> seconds of a message, with the ends of the interval, none below 0."""
    edges = np.array(fit.breaks)

    def at(size: float) -> tuple[float, float, float]:
        piece = fit.pieces[int(np.searchsorted(edges, size, side="right"))]
        value, reach = float(fit.at(size)), piece.reach(size)
        low, middle, high = (max(0.0, each) / 1e6 for each in (value - reach, value, value + reach))
        return middle, low, high

    return at
