"""The order of version numbers."""

import re
from collections.abc import Iterable


def sort_versions(values: Iterable[str]) -> list[str]:
    """Sort version numbers by their numeric parts, so that 2.9 precedes 2.16.

    Parts without digits are sorted alphabetically.
    """
    return sorted(values, key=version_key)


def version_key(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts versions by their numeric parts, so that 2.9 precedes 2.16."""
    parts = re.findall(r"\d+|\D+", text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
