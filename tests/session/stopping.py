"""`python -m tests.session.stopping EVENT ...`: run paradnn.train, and stop or kill it at an event.

The driver sends the signal to itself. A test that polls from outside may react too late, after the
driver has continued or has exited.
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
#: stopped driver. SIGKILL also ends the processes that the driver started.
EVENTS: dict[str, tuple[type, str, int, signal.Signals]] = {
    "claimed": (MlflowStore, "begin", 1, signal.SIGSTOP),
    "completed": (PartialResults, "forget", 1, signal.SIGSTOP),
    "third_epoch": (ProgressPrinter, "accept", 3, signal.SIGKILL),
}


def after(calls: int, method: Callable[..., Any], number: signal.Signals) -> Callable[..., Any]:
    """Return `method`, which signals this process after the given number of calls."""
    count = 0

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        answer = method(*arguments, **named)
        count += 1
        if count == calls:
            os.kill(os.getpid(), number)
        return answer

    return called


if __name__ == "__main__":
    owner, name, calls, number = EVENTS[sys.argv.pop(1)]
    setattr(owner, name, after(calls, getattr(owner, name), number))
    sys.exit(train.main())
