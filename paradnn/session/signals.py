"""Signals that end a session, and the end of a driver whose launching process is gone."""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from paradnn.config.scheduler import DriverStart

#: Seconds after which an interrupt that Python ignored is sent again.
_RESEND_SECONDS = 0.2


def end_with_processes(start: DriverStart | None, say: Callable[[str], None]) -> None:
    """End this driver, as Ctrl-C does, when a process on this host that launched it exits.

    Args:
        start: Start of this driver with the ids of the launching processes; None if no launcher
            started this driver.
        say: Prints the reason to the user.

    Raises:
        KeyboardInterrupt: If a launching process has exited already.
    """
    if start is None or not start.pids or not hasattr(os, "pidfd_open"):
        return
    poll = select.poll()
    try:
        for pid in start.pids:
            poll.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        raise KeyboardInterrupt from None

    def wait() -> None:
        poll.poll()
        say("ended: the process that launched this driver is gone")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="launcher", daemon=True).start()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make the signals of schedulers and of a closed terminal end the session as Ctrl-C does.

    The signals are SIGTERM, SIGUSR2 and SIGHUP. Their handlers are restored at the end of the
    context. Python ignores a KeyboardInterrupt that is raised in a callback of the garbage
    collector. In that case the signal is sent again.
    """
    signals: tuple[signal.Signals, ...] = ()
    if threading.current_thread() is threading.main_thread():  # no other thread may handle signals
        signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
    previous = [signal.signal(number, signal.default_int_handler) for number in signals]
    report_ignored = sys.unraisablehook

    def send_again(ignored: Any) -> None:
        if signals and issubclass(ignored.exc_type, KeyboardInterrupt):
            again = threading.Timer(_RESEND_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
            again.daemon = True
            again.start()
        else:
            report_ignored(ignored)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = report_ignored
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
