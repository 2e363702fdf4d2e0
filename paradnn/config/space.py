"""The design space: expansion of overrides in Hydra's grammar to a list of points.

Hydra composes a configuration in about 60 ms, so composing ten thousand points would take ten
minutes before the first measurement. Only overrides that select a file (`model=fc`) require
composition. Each combination of such overrides is composed once; the result is called a base.
Values (`model.nodes=64`) are set in copies of the base. Tests assert that the points are the same
as if Hydra composed each point.

A sweep is a union of grids. Without a preset, the axes of the command line form one grid. With a
preset, each of its `sweep.grids` is combined with the axes of the command line. The axes of a group
of `sweep.zip` advance together, value by value, and form one dimension of a grid.
"""

import bisect
import itertools
import math
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from paradnn.config.groups import takes_further_keys
from paradnn.config.settings import SETTINGS_KEYS, read_settings
from paradnn.core.errors import ConfigError

#: Maximum number of points of a sweep. A machine cannot measure more points in a year, so a larger
#: number must be a mistake.
MAX_POINTS = 1_000_000
_GOLDEN_RATIO = 0.618034


@dataclass(frozen=True)
class Plan:
    """The points (configurations to measure) of a sweep, in a compact form.

    Attributes:
        bases: Configurations that Hydra composed, as nested mappings.
        points: For each point, an index in `bases`, and a mapping: dotted key -> value that
            replaces the value in this base configuration.
    """

    bases: list[dict[str, Any]] = field(default_factory=list)
    points: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def configs(self) -> Iterator[dict[str, Any]]:
        """Yield the complete configuration of each point, as nested mappings of plain values."""
        for base, values in self.points:
            yield self.config(base, values)

    def config(self, base: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete configuration of a point, as nested mappings of plain values.

        Args:
            base: Index in `bases` of the composed configuration.
            values: Dotted key -> value, as in `points`.
        """
        return _with_values(self.bases[base], values)


@dataclass(frozen=True)
class _Axis:
    """The values of one key in a sweep.

    Attributes:
        key: The dotted key.
        overrides: The values as overrides, such as "model=fc".
        values: The values themselves, such as "fc".
        needs_composition: Whether Hydra must apply the overrides, for example because they select
            files.
    """

    key: str
    overrides: tuple[str, ...]
    values: tuple[Any, ...]
    needs_composition: bool


#: Axes of equal length that advance together; usually a single axis.
_Dimension = tuple[_Axis, ...]


def plain(config: DictConfig) -> dict[str, Any]:
    """Convert a configuration of Hydra to nested mappings of plain values.

    The key `hydra` is omitted.
    """
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    content.pop("hydra", None)
    return {str(key): value for key, value in content.items()}


def expand(
    loader: ConfigLoader, master: DictConfig, arguments: Sequence[str], params: Mapping[str, Any]
) -> Plan:
    """Return the points of a multirun (-m), in the order that `sweep.order` sets.

    Args:
        loader: Loader of configuration files.
        master: The configuration without the axes of the sweep, the keys that it varies.
        arguments: Overrides of the command line, such as "batch_size=64,128". They have
            precedence.
        params: Key -> value of `hydra.sweeper.params`, which are further overrides.

    Raises:
        ConfigError: If an axis is invalid, or there are more than MAX_POINTS points. If an
            override cannot be composed, Hydra raises one of its exceptions.
    """
    sweep = read_settings(plain(master)).sweep
    builder = _Builder(loader, master)
    preset_grids = builder.restrict_families(sweep.grids, arguments) or [{}]
    own_overrides = list(arguments)
    if sweep.grids:  # `restrict_families` has applied `model=`
        own_overrides = [entry for entry in arguments if not entry.startswith("model=")]
    axes_by_grid = [
        builder.axes([*_as_overrides(params), *_as_overrides(grid), *own_overrides])
        for grid in preset_grids
    ]
    grids = _zip_axes(axes_by_grid, sweep.zip)
    plan = Plan(builder.bases, [])
    plan.points.extend(_chosen_points(builder, grids, sweep.sample, sweep.seed))
    if sweep.order == "random":
        random.Random(sweep.seed).shuffle(plan.points)
    return plan


class _Builder:
    """Parses overrides of a sweep, and composes each combination of configuration files once."""

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self._loader = loader
        self._master = master
        self._parser = OverridesParser.create(config_loader=loader)
        #: Composed overrides -> index in `bases`.
        self._base_index: dict[tuple[str, ...], int] = {}
        #: Override -> its axis; None for settings of the command.
        self._parsed: dict[str, _Axis | None] = {}
        #: Index of a base -> keys that are known to exist in it.
        self._checked_keys: dict[int, set[str]] = {}
        self.bases: list[dict[str, Any]] = []

    def axes(self, overrides: Sequence[str]) -> list[_Axis]:
        """Return one axis (values of a key) per key of the overrides.

        Args:
            overrides: Overrides such as "model.nodes=64,128". If several set the same key, the last
                one counts.
        """
        axes: dict[str, _Axis] = {}
        for override in overrides:
            # A preset may have hundreds of grids, mostly with equal overrides, and Hydra needs 1 to
            # 2 ms to parse an override. So parse each override once.
            if override not in self._parsed:
                self._parsed[override] = self._parse(override)
            axis = self._parsed[override]
            if axis:
                axes[axis.key] = axis
        return list(axes.values())

    def restrict_families(
        self, grids: Sequence[Mapping[str, Any]], arguments: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the grids of a preset, restricted to the model families that the user selects.

        For example, `experiment=quick model=fc` measures the grids of quick that contain family fc.
        A grid is all combinations of the values of some keys.

        Args:
            grids: For each grid of the preset, key -> values.
            arguments: Overrides of the command line.

        Raises:
            ConfigError: If no grid contains a selected family.
        """
        model_axes = [axis for axis in self.axes(arguments) if axis.key == "model"]
        if not grids or not model_axes:
            return [dict(grid) for grid in grids]
        wanted = {str(value) for value in model_axes[0].values}
        restricted = []
        known: dict[str, None] = {}
        for grid in grids:
            families = [name.strip() for name in str(grid.get("model", "")).split(",")]
            known |= dict.fromkeys(name for name in families if name)
            kept = ",".join(name for name in families if name in wanted)
            if kept:
                restricted.append({**grid, "model": kept})
        if not restricted:
            reason = "is not a family of this experiment"
            names = ",".join(sorted(wanted))
            remedy = f"choose one of {', '.join(known)}" if known else "omit model"
            raise ConfigError("model", names, reason, remedy)
        return restricted

    def point(
        self, dimensions: Sequence[_Dimension], choice: Sequence[int]
    ) -> tuple[int, dict[str, Any]]:
        """Return one combination of values in the form of `Plan.points`.

        Args:
            dimensions: The dimensions of a grid, each with one axis or several axes that advance
                together.
            choice: For each dimension, the index of the selected value.

        Raises:
            ConfigError: If the composed configuration (the base) lacks a key of the grid.
        """
        composed: list[str] = []
        values: dict[str, Any] = {}
        for axes, index in zip(dimensions, choice, strict=True):
            for axis in axes:
                if axis.needs_composition:
                    composed.append(axis.overrides[index])
                else:
                    values[axis.key] = axis.values[index]
        base = self._base(tuple(composed))
        checked_keys = self._checked_keys.setdefault(base, set())
        for key in values.keys() - checked_keys:
            _require_key(self.bases[base], key, values[key])
            checked_keys.add(key)
        return base, values

    def _base(self, overrides: tuple[str, ...]) -> int:
        """Return the index in `bases` of the configuration with the given overrides.

        The configuration is composed if it is new.

        Args:
            overrides: Overrides that require composition, such as "model=fc".
        """
        if overrides not in self._base_index:
            config = self._loader.load_sweep_config(self._master, list(overrides))
            self._base_index[overrides] = len(self.bases)
            self.bases.append(plain(config))
        return self._base_index[overrides]

    def _parse(self, text: str) -> _Axis | None:
        """Convert an override to an axis, the values of one key.

        Args:
            text: The override, such as "model.nodes=64,128".

        Returns:
            The axis; None if the key is a setting of the command, not of the measurement.

        Raises:
            ConfigError: If such a setting has several values.
        """
        [override] = self._parser.parse_overrides([text])
        key = override.get_key_element()
        if key.lstrip("+~").split(".")[0] not in SETTINGS_KEYS:
            return self._axis(key, override)
        if override.is_sweep_override():
            value = text.partition("=")[2]
            raise ConfigError(
                key.lstrip("+~"), value, "cannot be an axis of a sweep", "give it one value"
            )
        return None

    def _axis(self, key: str, override: Override) -> _Axis:
        """Convert a parsed override to an axis, the values of one key.

        Args:
            key: The dotted key.
            override: The override, as Hydra parsed it.

        Raises:
            ConfigError: If the override has no values, or is a continuous range.
        """
        if override.is_sweep_override():
            overrides = self._sweep_overrides(key, override)
            parsed = self._parser.parse_overrides(list(overrides))
            values = tuple(entry.value() for entry in parsed)
        else:
            overrides = (str(override.input_line),)
            values = (override.value(),)
        if not overrides:
            raise ConfigError(key, "", "has no values", f"name at least one, as in {key}=64")
        is_group = bool(self._loader.get_group_options(override.key_or_group))
        sets_value = override.type == OverrideType.CHANGE
        has_mapping = any(isinstance(value, dict) for value in values)
        needs_composition = is_group or has_mapping or not sets_value
        return _Axis(key, overrides, values, needs_composition)

    def _sweep_overrides(self, key: str, override: Override) -> tuple[str, ...]:
        """Split an override such as model.nodes=64,128 into one override per value.

        Args:
            key: The dotted key.
            override: The override, as Hydra parsed it.

        Raises:
            ConfigError: If the sweep is a continuous range, or has more than MAX_POINTS values.
        """
        typed = str(override.input_line).partition("=")[2]
        if not override.is_discrete_sweep():
            remedy = f"name the values, as in {key}=64,128,256 or {key}=range(64,256,64)"
            raise ConfigError(key, typed, "is a continuous range", remedy)
        texts = itertools.islice(override.sweep_string_iterator(), MAX_POINTS + 1)
        overrides = tuple(f"{key}={text}" for text in texts)
        if len(overrides) > MAX_POINTS:
            raise ConfigError(
                key, typed, f"has more than {MAX_POINTS:,} values", "give fewer values"
            )
        return overrides


def _as_overrides(axes: Mapping[str, Any]) -> list[str]:
    return [f"{key}={'null' if value is None else value}" for key, value in axes.items()]


def _chosen_points(
    builder: _Builder, grids: Sequence[Sequence[_Dimension]], sample: int | None, seed: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the points (configurations) of all grids, or an even sample of them.

    Args:
        builder: Makes the points.
        grids: Dimensions of each grid.
        sample: Number of points of the sample; None for all points.
        seed: Seed of the sample.

    Raises:
        ConfigError: If there are more than MAX_POINTS points.
    """
    lengths_by_grid = [[len(axes[0].overrides) for axes in dimensions] for dimensions in grids]
    sizes = [math.prod(lengths) for lengths in lengths_by_grid]
    total = sum(sizes)
    if total > MAX_POINTS:
        remedy = "name fewer values, or set sweep.sample"
        raise ConfigError("sweep", f"{total:,} points", f"is more than {MAX_POINTS:,}", remedy)
    chosen = _even_sample(sizes, min(sample or total, total), seed)
    position = itertools.count()
    for dimensions, lengths in zip(grids, lengths_by_grid, strict=True):
        for choice in itertools.product(*(range(length) for length in lengths)):
            if next(position) in chosen:
                yield builder.point(dimensions, choice)


def _zip_axes(
    grids: Sequence[Sequence[_Axis]], groups: Sequence[Sequence[str]]
) -> list[list[_Dimension]]:
    """Return the dimensions of each grid, after combining axes as `sweep.zip` requests.

    The axes of a group of `sweep.zip` advance together, so they form one dimension.

    If a grid lacks an axis of a group, the other axes of the group remain separate in this grid.

    Args:
        grids: Axes of each grid. An axis is the values of one key.
        groups: Keys of each group of `sweep.zip`.

    Raises:
        ConfigError: If no grid has all axes of a group, an axis is listed twice, or the axes of a
            group have different numbers of values.
    """
    names = [key for group in groups for key in group]
    for key in names:
        if names.count(key) > 1:
            raise ConfigError(
                "sweep.zip",
                key,
                "is listed more than once",
                "list each axis once, in a single group",
            )
    axes_by_grid = [{axis.key: axis for axis in axes} for axes in grids]
    for group in groups:
        if not any(axes.keys() >= set(group) for axes in axes_by_grid):
            raise _missing_axis_error(axes_by_grid, group)
    return [_dimensions(axes, groups) for axes in axes_by_grid]


def _missing_axis_error(
    axes_by_grid: Sequence[Mapping[str, _Axis]], group: Sequence[str]
) -> ConfigError:
    """Return the error for a group of `sweep.zip` if no grid has all axes of the group.

    Args:
        axes_by_grid: For each grid, key -> axis.
        group: Keys of the group.
    """
    missing = next(
        (key for key in group if not any(key in axes for axes in axes_by_grid)),
        None,
    )
    if missing is None:
        reason = "are axes of different grids"
        return ConfigError("sweep.zip", ",".join(group), reason, "list axes of the same grid")
    sweep_axes = dict.fromkeys(
        key for axes in axes_by_grid for key, axis in axes.items() if len(axis.overrides) > 1
    )
    if sweep_axes:
        remedy = f"choose from its axes: {', '.join(sweep_axes)}"
    else:
        remedy = "give the sweep axes, such as batch_size=64,128"
    return ConfigError("sweep.zip", missing, "is not an axis of this sweep", remedy)


def _dimensions(axes: Mapping[str, _Axis], groups: Sequence[Sequence[str]]) -> list[_Dimension]:
    """Return the dimensions of one grid; the axes of a group of `sweep.zip` form one dimension.

    This dimension has the position of its first axis in the grid.

    Args:
        axes: Key -> axis of the grid.
        groups: Keys of each group of `sweep.zip`.

    Raises:
        ConfigError: If the axes of a group have different numbers of values.
    """
    dimensions: dict[str, _Dimension] = {key: (axis,) for key, axis in axes.items()}
    for group in groups:
        if not axes.keys() >= set(group):
            continue
        lengths = {key: len(axes[key].overrides) for key in group}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            reason = f"the axes have different numbers of values: {counts}"
            remedy = "give each the same number of values"
            raise ConfigError("sweep.zip", ",".join(group), reason, remedy)
        first, *others = sorted(group, key=list(axes).index)
        dimensions[first] = tuple(axes[key] for key in group)
        for key in others:
            del dimensions[key]
    return list(dimensions.values())


def _even_sample(sizes: Sequence[int], count: int, seed: int) -> Container[int]:
    """Choose evenly spread points (configurations) from all grids.

    A walk visits the positions of all points in the concatenated grids. Its step is the golden
    ratio times the number of points. The walk visits every position once, so each value of an axis
    occurs about equally often in the sample. The first visited position of each grid is always in
    the sample, unless `count` is too small. The sample therefore includes families with few points.

    Args:
        sizes: Number of points of each grid.
        count: Number of points to choose.
        seed: Seed of the position at which the walk begins.

    Returns:
        Positions of the chosen points in the concatenation of all grids.
    """
    total = sum(sizes)
    if count == total:
        return range(total)
    step = round(_GOLDEN_RATIO * total) or 1
    while math.gcd(step, total) != 1:
        step += 1
    start = random.Random(seed).randrange(total)
    walk = [(start + step * number) % total for number in range(total)]
    ends = list(itertools.accumulate(sizes))
    first_of_grid: dict[int, int] = {}
    for position in walk:
        first_of_grid.setdefault(bisect.bisect(ends, position), position)
    ordered = dict.fromkeys([*first_of_grid.values(), *walk])
    return set(itertools.islice(ordered, count))


def _require_key(config: Mapping[str, Any], key: str, value: Any) -> None:
    """Check that a configuration has a key, before a sweep sets it.

    For example, a configuration lacks the `model` keys of other families.

    Args:
        config: The configuration, as nested mappings.
        key: The dotted key.
        value: The new value, for the message.

    Raises:
        ConfigError: If the configuration lacks the key.
    """
    parts = key.split(".")
    if parts[0] == "model" and len(parts) == 2 and takes_further_keys(config.get("model")):
        return
    node: Any = config
    for depth, part in enumerate(parts):
        if not isinstance(node, Mapping):
            group = ".".join(parts[:depth])
            raise ConfigError(
                key, value, f"no such key: {group} is a value, not a group", "omit it"
            )
        if part not in node:
            group = ".".join(parts[:depth])
            owner = f" of {group}={node['name']}" if group and "name" in node else ""
            known = ", ".join(str(name) for name in node)
            raise ConfigError(key, value, "no such key", f"keys{owner} are {known}")
        node = node[part]


def _with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration with some values replaced; unchanged mappings are shared.

    Args:
        base: The configuration.
        values: Dotted key -> new value.
    """
    config = dict(base)
    copied: set[str] = set()
    for key, value in values.items():
        *path, last = key.split(".")
        node = config
        location = ""
        for part in path:
            location += f".{part}"
            if location not in copied:
                node[part] = dict(node[part])
                copied.add(location)
            node = node[part]
        node[last] = value
    return config
