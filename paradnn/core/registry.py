"""Registries of objects of a class by name, from packages of ParaDnn and from plug-ins.

`Registry(Family, "paradnn.families")` contains every `Family` that a module of `paradnn/families`
defines at its top level, directly or in a tuple. Other distributions add items by entry points in
the group `paradnn.families`. Such an entry point, for example mine = "my_package.my_family", names
a module or an object. Nothing is imported before the registry is used.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

#: Type of the items. An item has a `name`, and an `order` for lists and figures. Items with equal
#: `order` are sorted by name.
T = TypeVar("T", bound=Any)


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to the objects (items) of a class, in ParaDnn and in plug-ins.

    ParaDnn's items precede those of plug-ins; each part is in ascending `order`. A plug-in is
    skipped, with a line on standard error, if it cannot be imported, contains no object of the
    class, or contains an object whose name is taken.

    Args:
        kind: The class of the items.
        packages: Names of packages whose modules define items.
        group: Name of the entry-point group; if empty, the name of the first package.

    Raises:
        ValueError: On first use, if two items of the packages have the same name.
    """

    def __init__(self, kind: type[T], *packages: str, group: str = "") -> None:
        self._kind = kind
        self._packages = packages
        self._group = group or packages[0]

    def __getitem__(self, name: str) -> T:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @cached_property
    def _items(self) -> dict[str, T]:
        own: dict[str, T] = {}
        for item in self._own_items():
            if own.setdefault(item.name, item) is not item:
                raise ValueError(f"{self._group} has two items with the name {item.name}")
        return _in_order(own.values()) | _in_order(self._plugin_items(own))

    def _own_items(self) -> Iterator[T]:
        """Yield the items in the modules of the packages."""
        for package in self._packages:
            path = importlib.import_module(package).__path__
            for entry in pkgutil.iter_modules(path):
                yield from self._items_in(importlib.import_module(f"{package}.{entry.name}"))

    def _plugin_items(self, package_items: Mapping[str, T]) -> list[T]:
        """Return the items of valid plug-ins, and report invalid plug-ins on standard error.

        Args:
            package_items: The items of ParaDnn's packages by name. A plug-in must not use their
                names.
        """
        items: dict[str, T] = {}
        for entry in sorted(entry_points(group=self._group), key=lambda entry: entry.name):
            new_items: list[T] = []
            problem = ""
            try:
                loaded = entry.load()
                new_items = self._items_in(loaded) or self._items_of(loaded)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            taken = [
                item.name for item in new_items if item.name in package_items or item.name in items
            ]
            if taken:
                problem = f"the name {taken[0]} is taken"
            elif not new_items and not problem:
                problem = f"it contains no {self._kind.__name__}"
            if problem:
                line = f"paradnn: {self._group}: {entry.value} is skipped: {problem}"
                print(line, file=sys.stderr)
            else:
                items.update({item.name: item for item in new_items})
        return list(items.values())

    def _items_in(self, module: Any) -> list[T]:
        """Return the items at the top level of a module, without duplicates.

        Args:
            module: The module; any other object has no items.
        """
        if not hasattr(module, "__dict__") or not hasattr(module, "__name__"):
            return []
        items = [item for value in vars(module).values() for item in self._items_of(value)]
        return list({id(item): item for item in items}.values())

    def _items_of(self, value: Any) -> list[T]:
        """Return the value if it is an item, or the items in it if it is a tuple."""
        values = value if isinstance(value, tuple) else (value,)
        return [item for item in values if isinstance(item, self._kind)]


def _in_order(items: Iterable[T]) -> dict[str, T]:
    return {item.name: item for item in sorted(items, key=lambda item: (item.order, item.name))}
