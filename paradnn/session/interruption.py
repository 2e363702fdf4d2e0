"""Who asks a session to end: Ctrl-C, SIGTERM, a terminal that is closed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["Interrupted", "interruptible"]


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the sweep to end (Ctrl-C, SIGTERM)."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the session as Ctrl-C does."""

    def stop(*_: Any) -> None:
        raise Interrupted

    # Only the main thread may ask for signals; a launcher may run its tasks in another.
    signals = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    previous = [signal.signal(number, stop) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
