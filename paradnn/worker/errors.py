"""What the worker raises by itself; everything else is a framework's."""

from __future__ import annotations

__all__ = ["Unavailable"]


class Unavailable(Exception):
    """The device or software that the point asks for is not there."""
