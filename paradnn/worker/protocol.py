"""The words that driver and worker exchange: one JSON object a line.

The driver writes requests to the worker's standard input:

    {"id": 7, "point": {...}, "stderr": "/path/of/a/file"}

and reads events, each with a key `event`, from its standard output:

    ready    the framework is imported: seconds, versions
    failed   the framework could not be imported: reason (the worker ends)
    started  a child was forked for the point: id, pid
    phase    the child enters a phase: phase; measured, where the answer to the point is known already: as in result,
             and what counts should the child not live to send that
    result   the child's answer: outcome, reason, and what was measured
    exited   the child is gone: id, exit_code or signal, peak memory as the kernel counted it

Standard error is nobody's protocol: frameworks write there as they like.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["PROTOCOL_VERSION", "Channel"]

PROTOCOL_VERSION = 1


class Channel:
    """Writes events to a file descriptor, a line each, whole or not at all as far as the pipe allows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: str, /, **fields: Any) -> None:
        """Send one event; NaN and infinities become strings, since JSON has none."""
        self.send_line(json.dumps({"event": event, **_plain(fields)}))

    def send_line(self, line: str) -> None:
        """Send a line that begins on a line of its own, whatever a killed child left behind."""
        data = memoryview(f"\n{line}\n".encode())
        while data:
            data = data[os.write(self._descriptor, data) :]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return repr(value)
    return value
