"""The runs of a store taken apart: one part for each environment and protocol, so that unlike runs are never pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.store.frame import IDENTITY, is_ok

__all__ = ["Part", "split"]

_KEYS = ("device", *IDENTITY)


@dataclass(frozen=True)
class Part:
    """Runs of one device, environment, protocol and schema.

    `key` is unique in the page, `name` tells the part from the others in words, `options` are the command-line options
    that choose its runs among those of the report.
    """

    key: str
    name: str
    rows: pd.DataFrame
    options: tuple[str, ...]

    @property
    def published(self) -> bool:
        """Whether all its runs come from the published files."""
        return "source" in self.rows and bool(self.rows["source"].eq("published").fillna(False).all())

    @property
    def device(self) -> str:
        """The device's name, "(none)" where the runs do not say it."""
        return _said(self.rows, "device") or "(none)"

    def one(self, column: str) -> str:
        """The value of a column in words, several joined by commas, empty where there is none."""
        return _said(self.rows, column)


def split(frame: pd.DataFrame, pool: bool = False) -> list[Part]:
    """The parts of a frame: measured here before published, larger before smaller.

    With `pool`, runs of one device are one part whatever their environment and protocol.
    """
    keys = [name for name in (("device",) if pool else _KEYS) if name in frame]
    groups = [rows.reset_index(drop=True) for _, rows in frame.groupby(keys, sort=True, dropna=False)]
    groups.sort(key=lambda rows: (_said(rows, "source") == "published", -int(is_ok(rows).sum()), -len(rows)))
    names = _names(groups)
    return [
        Part(f"p{place + 1}", name, rows, _options(rows, frame, keys))
        for place, (rows, name) in enumerate(zip(groups, names, strict=True))
    ]


def _names(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Devices; where several parts share one, what sets them apart as well."""
    devices = [_said(rows, "device") or "(none)" for rows in groups]
    names = []
    for rows, device in zip(groups, devices, strict=True):
        alike = [other for other, name in zip(groups, devices, strict=True) if name == device]
        names.append(device if len(alike) == 1 else f"{device}, {_apart(rows, alike)}")
    return names


def _apart(rows: pd.DataFrame, alike: Sequence[pd.DataFrame]) -> str:
    """The versions or the host by which a part differs from others on its device, else its identity."""
    telling = [name for name in rows.columns if str(name).startswith("version.")] + ["host", "software.name"]
    words = []
    for column in (name for name in telling if name in rows):
        values = {_said(other, column) for other in alike}
        mine = _said(rows, column)
        if len(values) > 1 and mine:
            words.append(f"{str(column).removeprefix('version.')} {mine}")
    if len({tuple(_said(other, str(name)) for name in telling if name in other) for other in alike}) < len(alike):
        words += [
            f"{name.removesuffix('_id')} {_said(rows, name)[:8]}"
            for name in IDENTITY
            if len({_said(other, name) for other in alike}) > 1
        ]
    return ", ".join(words[:4]) or "no identity"


def _options(rows: pd.DataFrame, frame: pd.DataFrame, keys: Sequence[str]) -> tuple[str, ...]:
    """The fewest options that choose exactly these rows: the device, then the rest of the identity."""
    options: list[str] = []
    chosen = frame
    for key in keys:
        if len(chosen) == len(rows):
            break
        value = _said(rows, key)
        matching = chosen[key].astype("str").eq(value).fillna(False) if value else chosen[key].isna()
        if not value or len(chosen[matching]) == len(chosen):
            continue
        options += ["--device", value] if key == "device" else ["--tag", f"{key}={value}"]
        chosen = chosen[matching]
    return tuple(options)


def _said(rows: pd.DataFrame, column: str) -> str:
    if column not in rows:
        return ""
    return ", ".join(sorted({str(value) for value in rows[column].dropna()}))
