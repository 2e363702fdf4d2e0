"""Addresses of processes, as options, settings and sockets have them: host:port, of IPv6 with brackets."""

from __future__ import annotations

import argparse
import errno
import os
import socket

from paradnn.core.workload import Unavailable

LOOPBACK = "127.0.0.1"


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
        reason = "no process of this host can listen there; give one of its addresses, or 0.0.0.0 (:: of IPv6) for all"
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}") from None
    return text


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
