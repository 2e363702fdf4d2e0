"""The design space: from Hydra's override grammar to a list of points, fast.

Hydra composes a configuration in some 60 ms; ten thousand points would take ten minutes before the
first is measured. Only overrides that choose a file (`model=fc`) need its composition, so each
combination of those is composed once and the values (`model.nodes=64`) are set in copies of it.
Both ways give the same point (tested).

A sweep is a union of grids: the command line's axes alone, or those of a preset's `sweep.grids`,
each with the command line's axes on top. Axes that `sweep.zip` names together go together, value by
value: a dimension of several axes.
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

from paradnn.config.groups import is_open
from paradnn.config.settings import SETTINGS_KEYS, read_settings
from paradnn.core.errors import ConfigError

#: More points than any machine measures in a year: a slip of the keyboard.
MAX_POINTS = 1_000_000


@dataclass(frozen=True)
class Plan:
    """Composed configurations, and for each point which of them it is and what is set in it (dotted
    key -> value).
    """

    bases: list[dict[str, Any]] = field(default_factory=list)
    points: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def configs(self) -> Iterator[dict[str, Any]]:
        """The configuration of each point, as plain nested mappings."""
        return (self.config(base, values) for base, values in self.points)

    def config(self, base: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """That of one of its points."""
        return _with_values(self.bases[base], values)


@dataclass(frozen=True)
class _Axis:
    """The choices of one key: as override strings for Hydra's composition, and as values."""

    key: str
    strings: tuple[str, ...]
    values: tuple[Any, ...]
    composed: bool  # whether only Hydra can apply it


#: Axes that go together, of equal length; mostly one alone.
_Dimension = tuple[_Axis, ...]


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain nested mappings, without Hydra's own node."""
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    content.pop("hydra", None)
    return {str(key): value for key, value in content.items()}


def expand(
    loader: ConfigLoader, master: DictConfig, arguments: Sequence[str], params: Mapping[str, Any]
) -> Plan:
    """Every point of a multirun, in the order asked for by `sweep.order`.

    `arguments` are the command line's overrides, `params` those of `hydra.sweeper.params`; the
    command line wins. Raises ConfigError, or Hydra's own errors for overrides that cannot be
    composed.
    """
    sweep = read_settings(plain(master)).sweep
    builder = _Builder(loader, master)
    plan = Plan(builder.bases, [])
    rest = [entry for entry in arguments if not (sweep.grids and entry.startswith("model="))]
    every = [
        builder.axes([*_strings(params), *_strings(grid), *rest])
        for grid in builder.of_families(sweep.grids, arguments) or [{}]
    ]
    grids = _zipped(every, sweep.zip)
    lengths = [[len(axes[0].strings) for axes in dimensions] for dimensions in grids]
    sizes = [*map(math.prod, lengths)]
    total = sum(sizes)
    if total > MAX_POINTS:
        remedy = "name fewer values, or set sweep.sample"
        raise ConfigError("sweep", f"{total:,} points", f"is more than {MAX_POINTS:,}", remedy)
    chosen = _spread(sizes, min(sweep.sample or total, total), sweep.seed)
    place = itertools.count()
    for dimensions, counts in zip(grids, lengths, strict=True):
        combinations = itertools.product(*map(range, counts))
        plan.points.extend(
            builder.point(dimensions, choice) for choice in combinations if next(place) in chosen
        )
    if sweep.order == "random":
        random.Random(sweep.seed).shuffle(plan.points)
    return plan


class _Builder:
    """Composes each combination of configuration files once."""

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self._loader = loader
        self._master = master
        self._parser = OverridesParser.create(config_loader=loader)
        self._index: dict[tuple[str, ...], int] = {}
        self._parsed: dict[str, _Axis | None] = {}
        self._there: dict[int, set[str]] = {}  # by base, keys that it has
        self.bases: list[dict[str, Any]] = []

    def axes(self, strings: Sequence[str]) -> list[_Axis]:
        """One axis for each key; where a key comes twice, the later one counts."""
        axes: dict[str, _Axis] = {}
        for string in strings:
            # Hundreds of grids say mostly the same, and Hydra takes a millisecond or two for each
            # string.
            if string not in self._parsed:
                self._parsed[string] = self._parse(string)
            axis = self._parsed[string]
            if axis:
                axes[axis.key] = axis
        return list(axes.values())

    def _parse(self, string: str) -> _Axis | None:
        """The axis that an override is; None for a setting of the sweep."""
        [override] = self._parser.parse_overrides([string])
        key = override.get_key_element()
        if key.lstrip("+~").split(".")[0] not in SETTINGS_KEYS:
            return self._axis(key, override)
        if override.is_sweep_override():
            raise ConfigError(
                key.lstrip("+~"),
                string.partition("=")[2],
                "is no axis of a point",
                "give it one value",
            )
        return None

    def of_families(
        self, grids: Sequence[Mapping[str, Any]], arguments: Sequence[str]
    ) -> list[dict[str, Any]]:
        """The grids of the families that the command line asks for: `experiment=quick model=fc` is
        quick's fc part.
        """
        asked = [axis for axis in self.axes(arguments) if axis.key == "model"]
        if not grids or not asked:
            return [dict(grid) for grid in grids]
        wanted = {str(value) for value in asked[0].values}
        families = [
            [name.strip() for name in str(grid.get("model", "")).split(",")] for grid in grids
        ]
        kept = [",".join(name for name in names if name in wanted) for names in families]
        if not any(kept):
            named = ",".join(sorted(wanted))
            raise ConfigError(
                "model", named, "is no family of this experiment", "choose another experiment"
            )
        return [{**grid, "model": names} for grid, names in zip(grids, kept, strict=True) if names]

    def point(
        self, dimensions: Sequence[_Dimension], choice: Sequence[int]
    ) -> tuple[int, dict[str, Any]]:
        """The base and the values of one combination."""
        pairs = [
            (axis, index) for axes, index in zip(dimensions, choice, strict=True) for axis in axes
        ]
        composed = tuple(axis.strings[index] for axis, index in pairs if axis.composed)
        values = {axis.key: axis.values[index] for axis, index in pairs if not axis.composed}
        if composed not in self._index:
            config = self._loader.load_sweep_config(self._master, list(composed))
            self._index[composed] = len(self.bases)
            self.bases.append(plain(config))
        base = self._index[composed]
        for key in values.keys() - self._there.setdefault(base, set()):
            _require_key(self.bases[base], key, values[key])
            self._there[base].add(key)
        return base, values

    def _axis(self, key: str, override: Override) -> _Axis:
        is_group = bool(self._loader.get_group_options(override.key_or_group))
        if override.is_sweep_override():
            typed = str(override.input_line).partition("=")[2]
            if not override.is_discrete_sweep():
                remedy = f"name the values, as in {key}=64,128,256 or {key}=range(64,256,64)"
                raise ConfigError(key, typed, "is a continuous range", remedy)
            texts = itertools.islice(override.sweep_string_iterator(), MAX_POINTS + 1)
            strings = tuple(f"{key}={value}" for value in texts)
            if len(strings) > MAX_POINTS:
                raise ConfigError(key, typed, "has too many values", "name fewer")
            values = tuple(entry.value() for entry in self._parser.parse_overrides(list(strings)))
        else:
            strings = (str(override.input_line),)
            values = (override.value(),)
        if not strings:
            raise ConfigError(key, "", "has no values", f"name at least one, as in {key}=64")
        simple = override.type == OverrideType.CHANGE and not any(
            isinstance(value, dict) for value in values
        )
        return _Axis(key, strings, values, composed=is_group or not simple)


def _strings(axes: Mapping[str, Any]) -> list[str]:
    return [f"{key}={'null' if value is None else value}" for key, value in axes.items()]


def _zipped(
    grids: Sequence[Sequence[_Axis]], groups: Sequence[Sequence[str]]
) -> list[list[_Dimension]]:
    """The dimensions of each grid: axes of a group of `sweep.zip` are one, at the place of the
    first of them.

    A grid of a preset that lacks one of a group's axes is left as it is. Raises ConfigError for a
    group that no grid has, and for axes that cannot go together.
    """
    named = [key for group in groups for key in group]
    for key in named:
        if named.count(key) > 1:
            raise ConfigError("sweep.zip", key, "is named twice", "name an axis in one group, once")
    known = [{axis.key: axis for axis in axes} for axes in grids]
    for group in groups:
        if not any(axes.keys() >= set(group) for axes in known):
            lacking = next(
                (key for key in group if not any(key in axes for axes in known)), ",".join(group)
            )
            several = dict.fromkeys(
                key for axes in known for key, axis in axes.items() if len(axis.strings) > 1
            )
            raise ConfigError(
                "sweep.zip",
                lacking,
                "is no axis of this sweep",
                f"its axes are {', '.join(several)}",
            )
    return [_dimensions(axes, groups) for axes in known]


def _dimensions(axes: Mapping[str, _Axis], groups: Sequence[Sequence[str]]) -> list[_Dimension]:
    """The dimensions of one grid."""
    dimensions: dict[str, _Dimension] = {key: (axis,) for key, axis in axes.items()}
    for group in groups:
        if not axes.keys() >= set(group):
            continue
        lengths = ", ".join(f"{key} has {len(axes[key].strings)}" for key in group)
        if len({len(axes[key].strings) for key in group}) > 1:
            raise ConfigError(
                "sweep.zip", ",".join(group), f"{lengths} values", "give each as many"
            )
        first, *others = sorted(group, key=list(axes).index)
        dimensions[first] = tuple(axes[key] for key in group)
        for key in others:
            del dimensions[key]
    return list(dimensions.values())


def _spread(sizes: Sequence[int], count: int, seed: int) -> Container[int]:
    """`count` places of grids of these sizes, one after the other, evenly: by steps of the golden
    ratio that meet every place before one comes again, and so every value of an axis about as often
    as any other. The first place that is met in a grid comes before all others: a family of few
    points is in the sample too.
    """
    total = sum(sizes)
    if count == total:
        return range(total)
    step = next(
        step for step in itertools.count(round(0.618034 * total) or 1) if math.gcd(step, total) == 1
    )
    first = random.Random(seed).randrange(total)
    walk = [(first + step * number) % total for number in range(total)]
    ends = list(itertools.accumulate(sizes))
    met = dict[int, int]()
    for place in walk:
        met.setdefault(bisect.bisect(ends, place), place)
    return set(itertools.islice(dict.fromkeys([*met.values(), *walk]), count))


def _require_key(config: Mapping[str, Any], key: str, value: Any) -> None:
    """A value may only replace one that is there: a key of another family is a mistake worth a
    word.
    """
    node: Any = config
    parts = key.split(".")
    if parts[0] == "model" and len(parts) == 2 and is_open(config.get("model")):
        return
    for depth, part in enumerate(parts):
        if not isinstance(node, Mapping) or part not in node:
            where = ".".join(parts[:depth])
            if isinstance(node, Mapping):
                known = ", ".join(str(name) for name in node)
            else:
                known = "none"
            if where and isinstance(node, Mapping) and "name" in node:
                name = f" of {where}={node['name']}"
            else:
                name = ""
            raise ConfigError(key, value, "no such key", f"keys{name} are {known}")
        node = node[part]


def _with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with values set; only the mappings on the way are copied."""
    config = dict(base)
    copied: set[str] = set()
    for key, value in values.items():
        *path, last = key.split(".")
        node = config
        where = ""
        for part in path:
            where += f".{part}"
            if where not in copied:
                node[part] = dict(node[part])
                copied.add(where)
            node = node[part]
        node[last] = value
    return config
