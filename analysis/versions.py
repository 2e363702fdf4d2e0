"""The order of version numbers."""

import re
from collections.abc import Iterable


def sort_versions(values: Iterable[str]) -> list[str]:
    """Sort version numbers by their numeric parts (2.9 before 2.16) and other texts by name."""
    return sorted(values, key=version_key)


def version_key(text: str) -> list[tuple[int, str]]:
    """Return the sort key of a text, in which digits compare as numbers."""
    parts = re.findall(r"\d+|\D+", text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
