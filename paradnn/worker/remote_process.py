"""A process of a point on another host, as the point's own process holds it (`paradnn.worker.remote` asks for it)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

__all__ = ["RemoteProcess"]


@dataclass(frozen=True)
class RemoteProcess:
    """Process number `rank` of a point, on another host.

    `address`: host:port that is free for it; `local`: address of this host as it is known there. The connection `life`
    closes when either side exits.
    """

    rank: int
    address: str
    local: str
    channel: Connection
    life: int

    def begin(self, addresses: Sequence[str]) -> None:
        """Let it find the others at these addresses, of which its transport knows whose they are."""
        self.channel.send(tuple(addresses))

    def close(self) -> None:
        """End it."""
        os.close(self.life)
        self.channel.close()
