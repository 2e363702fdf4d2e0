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

__all__ = [
    "LOOPBACK",
    "host_and_port",
    "listen",
    "own_address",
    "own_ipv4_address",
    "patience_of",
    "port_number",
    "silent",
    "truncated",
    "with_port",
]

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


def host_and_port(address: str) -> tuple[str, int]:
    """Both parts of host:port, the brackets of an IPv6 address taken off: `[::1]:5000`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def with_port(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address(text: str) -> str:
    """An address or name of this host as argparse reads it."""
    try:
        listen(0, text).close()
    except (Unavailable, UnicodeError):
        reason = "no process of this host can listen there; give one of its addresses, or 0.0.0.0 for all"
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}") from None
    return text


def own_ipv4_address(text: str) -> str:
    """The same of IPv4 alone."""
    if ":" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: is no IPv4 address; give one of this host's, or 0.0.0.0 for all")
    return own_address(text)


def listen(port: int, host: str = LOOPBACK, option: str = "model.port") -> socket.socket:
    """A socket that listens on `port`, 0 for a free one. Raises Unavailable, naming `option`, where it is taken."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        why = (
            "is taken" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {os.strerror(error.errno or 0)}"
        )
        raise Unavailable(f"port {port} of {host} {why}; choose another with {option}, or 0") from error
