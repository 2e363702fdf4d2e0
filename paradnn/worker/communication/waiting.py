"""How long a process waits for another, and what it says when that was too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.worker.process_group import RankFailed

__all__ = ["patience_of", "silent", "truncated"]

#: Seconds without any answer after which a peer counts as gone.
_LONGEST = 30.0


def patience_of(point: Mapping[str, Any]) -> float:
    """Seconds to wait for an answer: less than the driver waits for the point, so that the reason names the peer."""
    return float(min(_LONGEST, 0.5 * point["measure"]["timeout"]))


def silent(peer: str, seconds: float) -> RankFailed:
    """The outcome of a peer that does not answer."""
    return RankFailed("timeout", f"{peer} did not answer within {seconds:g} s")


def truncated(peer: str, got: int, wanted: int) -> RankFailed:
    """The outcome of a message that ends too early."""
    return RankFailed("crash", f"{peer} closed the connection after {got:,} of {wanted:,} bytes of a message")
