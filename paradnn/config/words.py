"""Counts as a person writes them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str) -> str:
    """A number and what it counts: `1 point`, `1,200 points`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
