"""What there is of a kind, by name: found in a package of this project, and in other packages by
their entry points.

`Registry(Family, "paradnn.families")` holds every `Family` that a module of `paradnn/families` has
at its top level, alone or in a tuple, and what other distributions name in the group of entry
points that is called the same (mine = "my_package.my_family"). Nothing is imported before the
registry is first asked.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

#: It has a `name` and a `place`, in the order of lists and figures; what has the same place stands
#: by name.
T = TypeVar("T", bound=Any)


class Registry(Mapping[str, T], Generic[T]):
    """All objects of a class `kind` in the modules of `packages` and behind entry points of `group`
    (by default the first package's name), by name and in order. What another package brings is left
    out, and a line on standard error says so, where it cannot be imported, is of another kind or
    has a name that is taken.
    """

    def __init__(self, kind: type[T], *packages: str, group: str = "") -> None:
        self._kind = kind
        self._packages = packages
        self._group = group or packages[0]

    def __getitem__(self, name: str) -> T:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @cached_property
    def _found(self) -> dict[str, T]:
        def in_order(items: Iterable[T]) -> list[T]:
            return sorted(items, key=lambda item: (item.order, item.name))

        paths = [(package, importlib.import_module(package).__path__) for package in self._packages]
        modules = [
            f"{package}.{entry.name}"
            for package, path in paths
            for entry in pkgutil.iter_modules(path)
        ]
        found: dict[str, T] = {}
        for item in in_order(
            item for name in modules for item in self._in(importlib.import_module(name))
        ):
            if found.setdefault(item.name, item) is not item:
                raise ValueError(f"{self._group} has two of the name {item.name}")
        return found | {item.name: item for item in in_order(self._others(found))}

    def _others(self, own: Mapping[str, T]) -> list[T]:
        """What entry points give and no name of which is taken."""
        found: dict[str, T] = {}
        for entry in sorted(entry_points(group=self._group), key=lambda entry: entry.name):
            try:
                given = entry.load()
                items = self._in(given) or self._of(given)
                taken = [item.name for item in items if item.name in own or item.name in found]
                if taken:
                    problem = f"the name {taken[0]} is taken"
                elif items:
                    problem = ""
                else:
                    problem = f"no {self._kind.__name__}"
            except Exception as error:
                items = []
                problem = f"{type(error).__name__}: {error}"
            if problem:
                print(
                    f"paradnn: {self._group}: {entry.value} is left out: {problem}", file=sys.stderr
                )
            else:
                found |= {item.name: item for item in items}
        return list(found.values())

    def _in(self, module: Any) -> list[T]:
        """What a module has at its top level, each once."""
        if hasattr(module, "__dict__") and hasattr(module, "__name__"):
            values = vars(module).values()
        else:
            values = ()
        return list({id(item): item for value in values for item in self._of(value)}.values())

    def _of(self, value: Any) -> list[T]:
        return [
            item
            for item in (value if isinstance(value, tuple) else (value,))
            if isinstance(item, self._kind)
        ]
