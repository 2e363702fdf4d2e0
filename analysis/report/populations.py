"""Populations: sets of runs of one device, environment, timing protocol, schema and task.

The environment consists of the hardware and the versions of the software. A population has a name,
a selection that reproduces it, and the overrides that measure more runs.
"""

from collections.abc import Iterator, Mapping, Sequence
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

_POPULATION_KEYS = ("device", *IDENTITY)
#: Largest number of runs that an analysis of the page reads.
_MAX_ROWS = 100_000
#: Pattern of columns that the page does not show per point. Aggregating them for a million runs
#: would take seconds.
_UNUSED_COLUMNS = (
    r"(version|measure|op_share|category_share)\.|(phase|profile|reference|best_reference)_"
)
#: Groups of the configuration that a command states if the whole population shares a value other
#: than this default.
_GROUP_DEFAULTS = {"platform": "cpu", "framework": "tensorflow", "software": "current"}
_STANDARD_PROTOCOL = "standard"
#: Largest number of differences that the name of a population mentions.
_MAX_NAMED_DIFFERENCES = 4


@dataclass(frozen=True)
class Population:
    """Runs of one device, environment, timing protocol, schema and task.

    Attributes:
        key: Key of the population, unique on the page.
        name: Name that distinguishes the population from the others.
        rows: The runs, one row each.
        selection: The options that select these runs from the store.
    """

    key: str
    name: str
    rows: pd.DataFrame
    selection: Selection

    @property
    def is_published(self) -> bool:
        """Whether all runs come from published files."""
        return self.value("source") == "published" and bool(self.rows["source"].notna().all())

    @property
    def device(self) -> str:
        """The name of the device, or "device not recorded"."""
        return self.listed("device") or not_recorded("device")

    def value(self, column: str) -> str | None:
        """Return the only value of a column as text; None if it has no value or several."""
        values = _distinct_values(self.rows, column)
        if len(values) == 1:
            return values[0]
        return None

    def listed(self, column: str) -> str:
        """Return the values of a column, joined by commas; empty if it has none."""
        return ", ".join(_distinct_values(self.rows, column))

    @cached_property
    def points(self) -> pd.DataFrame:
        """The measured configurations with a known throughput, sorted by family and then by size.

        There is one row per configuration, with its replicates aggregated. Configurations that only
        send messages between processes are excluded. Each row has both ends of its interval or
        neither.
        """
        rows = self.rows.filter(regex=f"^(?!{_UNUSED_COLUMNS})")
        ok = select_rows(rows, is_ok(rows) & ~rows["family"].isin(message_families()))
        if "examples_per_second" not in ok or not ok["examples_per_second"].notna().any():
            return ok.head(0)
        points = ok
        if "point_id" in ok:
            points = aggregate_replicates(ok).filter(regex="(?<!_spread)$")
        points = select_rows(points, points["examples_per_second"] > 0)
        return _sort_points(_with_whole_intervals(points))

    def columns_with_prefix(self, prefix: str) -> list[str]:
        """Return the columns of the runs whose names begin with a prefix."""
        return [str(name) for name in self.rows.columns if str(name).startswith(prefix)]

    def is_profiled(self) -> pd.Series:
        """Return whether each run was profiled."""
        shares = self.rows[self.columns_with_prefix("op_share.")]
        return shares.notna().any(axis=1) & is_ok(self.rows)


def _with_whole_intervals(points: pd.DataFrame) -> pd.DataFrame:
    """Set both ends of a throughput's interval to missing if one of them is.

    Args:
        points: One row per measured configuration.
    """
    low = "examples_per_second_low"
    high = "examples_per_second_high"
    ends = points.reindex(columns=[low, high]).astype("float64")
    is_whole = ends.notna().all(axis=1) & (ends[low] > 0)
    return points.assign(**ends.where(is_whole))


def _sort_points(points: pd.DataFrame) -> pd.DataFrame:
    """Return points sorted by family, number of parameters and batch size."""
    order = {name: position for position, name in enumerate(families(points))}
    keys = points["family"].map(order).rename("order").to_frame()
    for name in ("parameters", "batch_size"):
        keys[name] = points[name].astype("float64") if name in points else 0.0
    return points.loc[keys.sort_values(["order", "parameters", "batch_size"], kind="stable").index]


def split(frame: pd.DataFrame, selection: Selection, *, pool: bool = False) -> list[Population]:
    """Split runs into populations: runs that share device, environment, timing protocol and task.

    Args:
        frame: The runs.
        selection: The options that chose them.
        pool: Whether all runs of a device are one population, whatever their environment and
            protocol.

    Returns:
        The populations. Measured ones come before published ones, then larger before smaller.
    """
    keys = ["device"] if pool else list(_POPULATION_KEYS)
    keys = [name for name in keys if name in frame]
    groups = frame.groupby(keys, sort=True, dropna=False)
    parts = [frame]
    if groups.ngroups != 1:
        parts = [rows for _, rows in groups]
    parts = sorted((rows.reset_index(drop=True) for rows in parts), key=_population_rank)
    unnamed = [
        Population(f"p{number}", "", rows, selection) for number, rows in enumerate(parts, 1)
    ]
    populations = []
    for population in unnamed:
        same_device = [other for other in unnamed if other.device == population.device]
        populations.append(
            replace(
                population,
                name=_make_name(population, same_device),
                selection=_narrow_selection(population, frame, keys),
            )
        )
    return populations


def _population_rank(rows: pd.DataFrame) -> tuple[bool, int, int]:
    is_published = _distinct_values(rows, "source") == ["published"]
    return is_published, -int(is_ok(rows).sum()), -len(rows)


def _make_name(population: Population, same_device: Sequence[Population]) -> str:
    """Return a name that distinguishes a population from others on the same device.

    The name is the device. If several populations share it, the name also states the versions or
    the host that distinguish them. If these do not suffice, it states the columns of `IDENTITY`
    that differ.

    Args:
        population: The population: runs of one system.
        same_device: All populations on its device, itself included.
    """
    if len(same_device) == 1:
        return population.device

    def differs(column: str) -> bool:
        return len({other.listed(column) for other in same_device}) > 1

    columns = [*population.columns_with_prefix("version."), "host", "software.name"]
    differences = [
        f"{column.removeprefix('version.')} {population.listed(column)}"
        for column in columns
        if differs(column) and population.listed(column)
    ]
    described = {tuple(other.listed(column) for column in columns) for other in same_device}
    if len(described) < len(same_device):
        for column in filter(differs, IDENTITY):
            value = population.listed("protocol") if column == "protocol_id" else ""
            value = value or population.listed(column)[:8]
            differences.append(f"{column.removesuffix('_id')} {value}")
    text = ", ".join(differences[:_MAX_NAMED_DIFFERENCES]) or "no identity"
    return f"{population.device}, {text}"


def _narrow_selection(
    population: Population, frame: pd.DataFrame, keys: Sequence[str]
) -> Selection:
    """Return options that select exactly the runs of a population.

    They select by the device, and by further columns of `keys` as needed.

    Args:
        population: The population. Its present selection chooses all runs of `frame`.
        frame: The runs of all populations.
        keys: Columns that distinguish populations.
    """
    selection = population.selection
    is_chosen = pd.Series(True, frame.index)
    for key in keys:
        values = _distinct_values(population.rows, key)
        if not values:
            continue
        value = values[0]
        matches = is_chosen & frame[key].astype("str").eq(value).fillna(False).astype(bool)
        if matches.sum() == is_chosen.sum():
            continue
        is_chosen = matches
        if key == "device":
            selection = replace(selection, device=value)
        elif key == "protocol_id" and "protocol" in population.rows:
            protocol = _distinct_values(population.rows, "protocol")[0]
            selection = replace(selection, protocol=protocol)
        elif key == "task":
            selection = replace(selection, where=(*selection.where, f"task={value}"))
        else:
            selection = replace(selection, tag=(*selection.tag, (key, value)))
    return selection


def _distinct_values(rows: pd.DataFrame, column: str) -> list[str]:
    """Return the distinct values of a column as sorted texts; empty if the column is missing."""
    if column in rows:
        return sorted({str(value) for value in rows[column].dropna().unique()})
    return []


def thin_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a random sample of about `_MAX_ROWS` runs, which an analysis reads in seconds.

    Configurations are drawn at random with a fixed seed, each with all its runs. Fewer rows are
    returned unchanged.

    Args:
        rows: One row per run.
    """
    if len(rows) <= _MAX_ROWS or "point_id" not in rows:
        return rows
    codes, points = pd.factorize(rows["point_id"])
    is_drawn = np.random.default_rng(0).random(len(points) + 1) < _MAX_ROWS / len(rows)
    return rows[is_drawn[codes]].reset_index(drop=True)


def common_overrides(population: Population) -> Iterator[str]:
    """Yield the command-line overrides with which more runs of a population are measured.

    They set the platform, the framework, the software stack and the timing protocol. The protocol
    is set by the preset of `measure` with the fewest differences, and by the keys that differ.

    Args:
        population: Runs of one system with one protocol.
    """
    for group, default in _GROUP_DEFAULTS.items():
        value = population.value(f"{group}.name")
        if value not in (None, default):
            yield f"{group}={value}"
    protocol = {
        name.removeprefix("measure."): _normalize(population.value(name))
        for name in population.columns_with_prefix("measure.")
    }
    presets = [
        _preset_overrides(name, protocol)
        for name in sorted(
            (path.stem for path in (CONFIG / "measure").glob("*.yaml")),
            key=lambda name: (name != _STANDARD_PROTOCOL, name),
        )
    ]
    for override in min(presets, key=len):
        if override != f"measure={_STANDARD_PROTOCOL}":
            yield override


def _preset_overrides(name: str, protocol: Mapping[str, str]) -> list[str]:
    """Return command-line overrides that reproduce a timing protocol.

    The first override selects a preset of the group `measure`. Further overrides set the keys whose
    values differ from the preset.

    Args:
        name: Name of the preset.
        protocol: Key without the prefix `measure.` -> its value in the protocol, as text.
    """
    path = CONFIG / "measure" / f"{name}.yaml"
    preset = yaml.safe_load(path.read_text(encoding="utf-8"))
    overrides = [f"measure={name}"]
    for key, value in preset.items():
        default = _normalize(value)
        if key not in UNTIMED_KEYS and protocol.get(key, default) != default:
            overrides.append(f"measure.{key}={protocol[key]}")
    return overrides


def _normalize(value: Any) -> str:
    """Return a value as text for a command line; equal numbers become the same text."""
    try:
        return f"{float(str(value)):g}"
    except ValueError:
        return "null" if value is None else str(value).lower()
