"""Run paradnn.train, and stop or kill the driver at an event.

Usage: `python -m tests.session.stopping EVENT ARGUMENT...`

The driver sends the signal to itself. A test that polls from outside may react too late, after the
driver has continued or exited.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from paradnn import train
from paradnn.session.open_point import ProgressPrinter
from paradnn.store.journal import PartialResults
from paradnn.store.mlflow_store import MlflowStore

#: Class, method, number of calls, and signal of each event. SIGSTOP lets the test inspect the
#: stopped driver. After SIGKILL, the processes that the driver started end, too.
EVENTS: dict[str, tuple[type, str, int, signal.Signals]] = {
    "claimed": (MlflowStore, "begin", 1, signal.SIGSTOP),
    "completed": (PartialResults, "forget", 1, signal.SIGSTOP),
    "third_epoch": (ProgressPrinter, "accept", 3, signal.SIGKILL),
}


def signal_after(
    calls: int, method: Callable[..., Any], number: signal.Signals
) -> Callable[..., Any]:
    """Wrap a method so that it signals this process at the end of call number `calls`."""
    count = 0

    def counted_method(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        returned = method(*arguments, **named)
        count += 1
        if count == calls:
            os.kill(os.getpid(), number)
        return returned

    return counted_method


if __name__ == "__main__":
    owner, name, calls, number = EVENTS[sys.argv.pop(1)]
    setattr(owner, name, signal_after(calls, getattr(owner, name), number))
    sys.exit(train.main())
