"""How long a process waits for another, and what it says when that was too long."""

from __future__ import annotations

import argparse
import errno
import os
import socket
from collections.abc import Mapping
from typing import Any

from paradnn.worker.errors import Unavailable
from paradnn.worker.process_group import RankFailed

__all__ = ["LOOPBACK", "listen", "own_address", "patience_of", "port_number", "silent", "truncated"]

LOOPBACK = "127.0.0.1"
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


def port_number(text: str) -> int:
    """A port as argparse reads it: 0 to 65535."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; choose one up to 65535, or 0 for any that is free")
    return int(text)


def own_address(text: str) -> str:
    """An address or name of this host as argparse reads it."""
    try:
        socket.create_server((text, 0)).close()
    except (OSError, UnicodeError):
        reason = "no process of this host can listen there; give one of its IPv4 addresses, or 0.0.0.0 for all"
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}") from None
    return text


def listen(port: int, host: str = LOOPBACK, option: str = "model.port") -> socket.socket:
    """A socket that listens on `port`, 0 for a free one. Raises Unavailable, naming `option`, where it is taken."""
    try:
        return socket.create_server((host, port), backlog=128)
    except OSError as error:
        why = (
            "is taken" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {os.strerror(error.errno or 0)}"
        )
        raise Unavailable(f"port {port} of {host} {why}; choose another with {option}, or 0") from error
