"""What messages cost by their size: runs with model=channel, a fit for each transport and pattern of each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from paradnn.errors import NotEnoughData
from paradnn.forecast.communication.transfer_fit import FEWEST, TransferFit, fit_transfers

__all__ = ["SIZE", "TIME", "ChannelFit", "Channels", "channels"]

SIZE, TIME = "model.bytes", "transfer_us"
_SESSION = "sweep_id"
#: What tells one channel from another, beside its device.
_KEYS = {
    "model.payload": "{}",
    "model.buffers": "{} buffers",
    "model.serialized": "serialized={}",
    "model.window": "window {}",
    "model.processes": "{} processes",
    "model.hosts": "hosts {}",
    "model.servers": "{} servers",
    "model.workers": "{} workers",
    "model.peer": "to {}",
    "hosts": "{} hosts",
    "platform.cores": "cores {}",
}
#: Below which of the others no transport can be: the network's and the host's own, the nearest first.
_FLOORS = ("tcp", "shared_memory")


@dataclass(frozen=True)
class ChannelFit:
    """One channel: `rows` are its runs, `fit` is over SIZE and TIME, None where there are too few sizes.

    `variant` is what tells it from others of its transport and pattern, where they differ in more; `words` are all that
    it could be told by, whatever else the store holds.
    """

    device: str
    transport: str
    pattern: str
    variant: str
    rows: pd.DataFrame
    fit: TransferFit | None
    words: frozenset[str] = frozenset()

    def is_called(self, name: str) -> bool:
        """Whether a name fits: its transport and pattern, and any of its words."""
        head, *words = (part.strip() for part in name.split(", "))
        return head == f"{self.transport} {self.pattern}" and self.words.issuperset(words)

    @property
    def name(self) -> str:
        """Such as "grpc latency, serialized=true"."""
        return f"{self.transport} {self.pattern}" + (f", {self.variant}" if self.variant else "")

    @property
    def times(self) -> pd.Series:
        """The median time of each size, in us."""
        return self.rows.groupby(SIZE)[TIME].median()


@dataclass(frozen=True)
class Channels:
    """`floors` has a row for each channel and floor that ran the same pattern on the same device: channel, floor, and
    of the smallest and the largest common size the bytes and the ratio of times."""

    channels: tuple[ChannelFit, ...]
    floors: pd.DataFrame

    @property
    def fitted(self) -> tuple[tuple[ChannelFit, TransferFit], ...]:
        """Those that have a fit."""
        return tuple((each, each.fit) for each in self.channels if each.fit)


def channels(frame: pd.DataFrame) -> Channels:
    """A fit for each channel that has enough sizes. NotEnoughData where no run measured messages."""
    columns = {"model.transport", "model.pattern", SIZE, TIME}
    rows = (
        frame[frame["outcome"].isin(["ok"]) & frame[TIME].notna()] if columns <= set(frame.columns) else frame.head(0)
    )
    if rows.empty:
        raise NotEnoughData(
            "no run measured messages; measure some, as in python -m paradnn.train -m experiment=channel"
        )
    varied = [name for name in _KEYS if name in rows and rows[name].nunique(dropna=False) > 1]
    found = []
    groups = ["device", "model.transport", "model.pattern"]
    for (device, transport, pattern), alike in rows.groupby(groups, sort=True):
        # What does not differ among these needs no word.
        telling = [name for name in varied if alike[name].nunique(dropna=False) > 1]
        parts = alike.groupby(telling, sort=True, dropna=False) if telling else [((), alike)]
        for values, part in parts:
            words = _variant(dict(zip(telling, values, strict=True)))
            named = str(device), str(transport), str(pattern), words
            found.append(ChannelFit(*named, part, _fit(part), _words(part)))
    return Channels(tuple(found), _floors(found))


def _fit(rows: pd.DataFrame) -> TransferFit | None:
    if rows[SIZE].nunique() < FEWEST:
        return None
    sessions = rows[_SESSION].to_numpy(dtype=object) if _SESSION in rows else None
    return fit_transfers(rows[SIZE].astype("float64"), rows[TIME].astype("float64"), sessions)


def _variant(values: Mapping[str, Any]) -> str:
    return ", ".join(_told(_KEYS[name], value) for name, value in values.items() if pd.notna(value))


def _words(rows: pd.DataFrame) -> frozenset[str]:
    """What may be said of the runs of one channel, which agree in all of it."""
    known = {name: rows[name].dropna().unique() for name in _KEYS if name in rows}
    return frozenset(_told(_KEYS[name], values[0]) for name, values in known.items() if len(values) == 1)


def _told(text: str, value: object) -> str:
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    told = text.format(str(whole).lower())
    return told.removesuffix("s") if value == 1 and text.startswith("{}") else told


def _floors(found: list[ChannelFit]) -> pd.DataFrame:
    rows = []
    for each in found:
        for floor in found:
            same = (floor.device, floor.pattern) == (each.device, each.pattern)
            if not same or floor.variant or floor.transport not in _FLOORS or floor.transport == each.transport:
                continue
            own, least = each.times, floor.times
            common = sorted(set(own.index) & set(least.index))
            if common and each.transport not in _FLOORS[_FLOORS.index(floor.transport) :]:
                ratios = [float(own[size] / least[size]) for size in (common[0], common[-1])]
                rows.append([each.device, each.name, floor.transport, common[0], ratios[0], common[-1], ratios[1]])
    columns = ["device", "channel", "floor", "smallest", "smallest_ratio", "largest", "largest_ratio"]
    return pd.DataFrame(rows, columns=columns)
