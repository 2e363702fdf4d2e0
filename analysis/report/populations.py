"""The runs of a store by environment and protocol, never pooled, and what a command says that
measures more of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.labels import not_recorded
from analysis.options import Selection
from analysis.store.frame import IDENTITY, aggregate_replicates, families, is_ok, select_rows
from paradnn.config.identity import UNTIMED_KEYS
from paradnn.config.paths import CONFIG
from paradnn.families import message_families

_KEYS = ("device", *IDENTITY)
_MOST = 100_000  # runs of a section
#: What the page says of no single point; to sort a million of them takes seconds.
_OF_NO_POINT = (
    r"(version|measure|op_share|category_share)\.|(phase|profile|reference|best_reference)_"
)
#: Groups of the configuration that a population may have in common, with what needs no word.
_GROUPS = {"platform": "cpu", "framework": "tensorflow", "software": "current"}


@dataclass(frozen=True)
class Population:
    """Runs of one device, environment, protocol, schema and task.

    `key` is unique in the page, `name` sets the population apart from the others in words,
    `selection` chooses its runs from the store.
    """

    key: str
    name: str
    rows: pd.DataFrame
    selection: Selection

    @property
    def published(self) -> bool:
        """Whether all its runs come from the published files."""
        return self.value("source") == "published" and bool(self.rows["source"].notna().all())

    @property
    def device(self) -> str:
        """The device's name, or that the runs do not say it."""
        return self.listed("device") or not_recorded("device")

    def value(self, column: str) -> str | None:
        """The value of a column as text; None where there is none or more than one."""
        values = _values(self.rows, column)
        return values[0] if len(values) == 1 else None

    def listed(self, column: str) -> str:
        """The values of a column, joined by commas; empty where there are none."""
        return ", ".join(_values(self.rows, column))

    @cached_property
    def points(self) -> pd.DataFrame:
        """Its measured points of which a throughput is known, by family and by size, with the ends
        of its interval or neither; messages are none.
        """
        rows = self.rows.filter(regex=f"^(?!{_OF_NO_POINT})")
        ok = select_rows(rows, is_ok(rows) & ~rows["family"].isin(message_families()))
        if "examples_per_second" not in ok or not ok["examples_per_second"].notna().any():
            return ok.head(0)
        if "point_id" in ok:
            points = aggregate_replicates(ok).filter(regex="(?<!_spread)$")
        else:
            points = ok
        points = select_rows(points, points["examples_per_second"] > 0)
        ends = [f"examples_per_second_{end}" for end in ("low", "high")]
        known = points.reindex(columns=ends).astype("float64")
        points = points.assign(**known.where(known.notna().all(axis=1) & (known[ends[0]] > 0)))
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
        return self.rows[self.with_prefix("op_share.")].notna().any(axis=1) & is_ok(self.rows)


def split(frame: pd.DataFrame, selection: Selection, pool: bool = False) -> list[Population]:
    """The populations of the runs that a selection chose: measured here before published, larger
    before smaller.

    With `pool`, runs of one device are one population whatever their environment and protocol.
    """
    keys = [name for name in (("device",) if pool else _KEYS) if name in frame]
    grouped = frame.groupby(keys, sort=True, dropna=False)
    if grouped.ngroups == 1:
        parts = [frame]
    else:
        parts = [rows for _, rows in grouped]
    groups = [rows.reset_index(drop=True) for rows in parts]
    groups.sort(
        key=lambda rows: (
            _values(rows, "source") == ["published"],
            -int(is_ok(rows).sum()),
            -len(rows),
        )
    )
    bare = [Population(f"p{place + 1}", "", rows, selection) for place, rows in enumerate(groups)]
    return [
        replace(
            one,
            name=_name(one, [other for other in bare if other.device == one.device]),
            selection=_narrowed(one, frame, keys),
        )
        for one in bare
    ]


def _name(one: Population, same: Sequence[Population]) -> str:
    """The device; where several populations share it, the versions or the host that set them apart,
    else identity.
    """
    if len(same) == 1:
        return one.device
    columns = [*one.with_prefix("version."), "host", "software.name"]
    varied = [name for name in columns if len({other.listed(name) for other in same}) > 1]
    words = [
        f"{name.removeprefix('version.')} {one.listed(name)}" for name in varied if one.listed(name)
    ]
    if len({tuple(other.listed(name) for name in columns) for other in same}) < len(same):
        for name in (name for name in IDENTITY if len({other.listed(name) for other in same}) > 1):
            called = one.listed("protocol") if name == "protocol_id" else ""
            words.append(f"{name.removesuffix('_id')} {called or one.listed(name)[:8]}")
    return f"{one.device}, {', '.join(words[:4]) or 'no identity'}"


def _narrowed(one: Population, frame: pd.DataFrame, keys: Sequence[str]) -> Selection:
    """The selection with what chooses exactly these rows: the device, then as little of the
    identity as does.
    """
    selection = one.selection
    chosen = pd.Series(True, frame.index)
    for key in keys:
        values = _values(one.rows, key)
        if values:
            matching = chosen & frame[key].astype("str").eq(values[0]).fillna(False).astype(bool)
        else:
            matching = chosen
        if matching.sum() == chosen.sum():
            continue
        if key == "device":
            selection = replace(selection, device=values[0])
        elif key == "protocol_id" and "protocol" in one.rows:
            selection = replace(selection, protocol=_values(one.rows, "protocol")[0])
        elif key == "task":
            selection = replace(selection, where=(*selection.where, f"task={values[0]}"))
        else:
            selection = replace(selection, tag=(*selection.tag, (key, values[0])))
        chosen = matching
    return selection


def _values(rows: pd.DataFrame, column: str) -> list[str]:
    """The distinct values of a column as text, in order."""
    if column in rows:
        return sorted({str(value) for value in rows[column].dropna().unique()})
    return []


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Some `_MOST` of more runs, which an analysis reads in seconds: points drawn at random, each
    with all its runs.
    """
    if len(rows) <= _MOST or "point_id" not in rows:
        return rows
    codes, points = pd.factorize(rows["point_id"])
    drawn = np.random.default_rng(0).random(len(points) + 1) < _MOST / len(rows)
    return rows[drawn[codes]].reset_index(drop=True)


def common_overrides(population: Population) -> Iterator[str]:
    """What all runs of a population have in common and a command must say: platform, framework,
    stack, and the preset of `measure` that is nearest to their protocol with the keys in which it
    differs.
    """
    for group, usual in _GROUPS.items():
        value = population.value(f"{group}.name")
        if value not in (None, usual):
            yield f"{group}={value}"
    held = {
        name.removeprefix("measure."): _normal(population.value(name))
        for name in population.with_prefix("measure.")
    }
    nearest: list[list[str]] = []
    for path in sorted(
        (CONFIG / "measure").glob("*.yaml"), key=lambda path: path.stem != "standard"
    ):
        preset = yaml.safe_load(path.read_text(encoding="utf-8"))
        timed = {key: _normal(usual) for key, usual in preset.items() if key not in UNTIMED_KEYS}
        differ = [
            f"measure.{key}={held[key]}"
            for key, usual in timed.items()
            if held.get(key, usual) != usual
        ]
        nearest.append([f"measure={path.stem}", *differ])
    yield from (word for word in min(nearest, key=len) if word != "measure=standard")


def _normal(value: Any) -> str:
    """A value as a command line has it, whatever type it has here."""
    try:
        return f"{float(str(value)):g}"
    except ValueError:
        return "null" if value is None else str(value).lower()
