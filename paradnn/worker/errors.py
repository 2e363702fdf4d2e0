"""What the worker raises by itself; everything else is a framework's."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["Ended", "Unavailable"]


class Ended(Exception):
    """The point ends here, with an outcome of its own; the text says why in one line."""

    outcome: ClassVar[str]


class Unavailable(Ended):
    """The device or software that the point asks for is not there."""

    outcome = "unavailable"
