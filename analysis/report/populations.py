"""The runs of a store by environment and protocol, so that heterogeneous runs are never pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from analysis.labels import not_recorded
from analysis.options import Selection
from analysis.store.frame import IDENTITY, aggregate_replicates, families, is_ok
from paradnn.families import message_families

__all__ = ["Population", "split"]

_KEYS = ("device", *IDENTITY)


@dataclass(frozen=True)
class Population:
    """Runs of one device, environment, protocol, schema and task.

    `key` is unique in the page, `name` sets the population apart from the others in words, `selection` chooses its
    runs from the store.
    """

    key: str
    name: str
    rows: pd.DataFrame
    selection: Selection

    @property
    def published(self) -> bool:
        """Whether all its runs come from the published files."""
        return "source" in self.rows and bool(self.rows["source"].eq("published").fillna(False).all())

    @property
    def device(self) -> str:
        """The device's name, or that the runs do not say it."""
        return _listed(self.rows, "device") or not_recorded("device")

    def value(self, column: str) -> str | None:
        """The value of a column as text; None where there is none or more than one."""
        values = _values(self.rows, column)
        return values[0] if len(values) == 1 else None

    def listed(self, column: str) -> str:
        """The values of a column, joined by commas; empty where there are none."""
        return _listed(self.rows, column)

    @cached_property
    def points(self) -> pd.DataFrame:
        """Its measured points of which a throughput is known, by family and by size; messages are none."""
        ok = self.rows[is_ok(self.rows) & ~self.rows["family"].isin(message_families())]
        if "examples_per_second" not in ok or not ok["examples_per_second"].notna().any():
            return ok.head(0)
        points = aggregate_replicates(ok) if "point_id" in ok else ok
        points = points[points["examples_per_second"] > 0]
        order = {name: place for place, name in enumerate(families(points))}
        keys = points["family"].map(order).rename("order").to_frame()
        for name in ("parameters", "batch_size"):
            keys[name] = points[name].astype("float64") if name in points else 0.0
        return points.loc[keys.sort_values([*keys], kind="stable").index]

    def with_prefix(self, prefix: str) -> list[str]:
        """Its columns whose names begin so."""
        return [str(name) for name in self.rows.columns if str(name).startswith(prefix)]

    def profiled(self) -> pd.Series:
        """Which of its runs were profiled."""
        shares = self.with_prefix("op_share.")
        return self.rows[shares].notna().any(axis=1) & is_ok(self.rows)


def split(frame: pd.DataFrame, selection: Selection, pool: bool = False) -> list[Population]:
    """The populations of the runs that a selection chose: measured here before published, larger before smaller.

    With `pool`, runs of one device are one population whatever their environment and protocol.
    """
    keys = [name for name in (("device",) if pool else _KEYS) if name in frame]
    groups = [rows.reset_index(drop=True) for _, rows in frame.groupby(keys, sort=True, dropna=False)]
    groups.sort(key=lambda rows: (_listed(rows, "source") == "published", -int(is_ok(rows).sum()), -len(rows)))
    names = _names(groups)
    return [
        Population(f"p{place + 1}", name, rows, _narrowed(selection, rows, frame, keys))
        for place, (rows, name) in enumerate(zip(groups, names, strict=True))
    ]


def _names(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Devices; where several populations share one, what sets them apart as well."""
    devices = [_listed(rows, "device") or not_recorded("device") for rows in groups]
    names = []
    for rows, device in zip(groups, devices, strict=True):
        same = [other for other, name in zip(groups, devices, strict=True) if name == device]
        names.append(device if len(same) == 1 else f"{device}, {_apart(rows, same)}")
    return names


def _apart(rows: pd.DataFrame, same: Sequence[pd.DataFrame]) -> str:
    """The versions or the host by which a population differs from others on its device, else its identity."""
    columns = [str(name) for name in rows.columns if str(name).startswith("version.")] + ["host", "software.name"]
    words = []
    for column in (name for name in columns if name in rows):
        mine = _listed(rows, column)
        if mine and len({_listed(other, column) for other in same}) > 1:
            words.append(f"{column.removeprefix('version.')} {mine}")
    if len({tuple(_listed(other, name) for name in columns) for other in same}) < len(same):
        words += [
            f"{name.removesuffix('_id')} {_said(rows, name)}"
            for name in IDENTITY
            if len({_listed(other, name) for other in same}) > 1
        ]
    return ", ".join(words[:4]) or "no identity"


def _said(rows: pd.DataFrame, name: str) -> str:
    """A part of the identity: the protocol by its name, a hash by its beginning."""
    return (_listed(rows, "protocol") if name == "protocol_id" else "") or _listed(rows, name)[:8]


def _narrowed(selection: Selection, rows: pd.DataFrame, frame: pd.DataFrame, keys: Sequence[str]) -> Selection:
    """The selection with what chooses exactly these rows: the device, then as little of the identity as does."""
    chosen = frame
    for key in keys:
        if len(chosen) == len(rows):
            break
        values = _values(rows, key)
        if not values:
            continue
        matching = chosen[chosen[key].astype("str").eq(values[0]).fillna(False)]
        if len(matching) == len(chosen):
            continue
        if key == "device":
            selection = replace(selection, device=values[0])
        elif key == "protocol_id" and "protocol" in rows:
            selection = replace(selection, protocol=_values(rows, "protocol")[0])
        elif key == "task":
            selection = replace(selection, where=(*selection.where, f"task={values[0]}"))
        else:
            selection = replace(selection, tag=(*selection.tag, (key, values[0])))
        chosen = matching
    return selection


def _values(rows: pd.DataFrame, column: str) -> list[str]:
    """The distinct values of a column as text, in order."""
    return sorted({str(value) for value in rows[column].dropna().unique()}) if column in rows else []


def _listed(rows: pd.DataFrame, column: str) -> str:
    return ", ".join(_values(rows, column))
