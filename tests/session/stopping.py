"""`python -m tests.session.stopping EVENT ...`: paradnn.train, ended or stopped by what it does and
not by the clock.

Who looks from outside, however often, may come too late: by then the driver has gone on, or has
ended.
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

#: Where it happens, and what does: SIGSTOP lets the test look around, SIGKILL takes what was
#: started along.
EVENTS: dict[str, tuple[type, str, int, signal.Signals]] = {
    "claimed": (MlflowStore, "begin", 1, signal.SIGSTOP),
    "completed": (PartialResults, "forget", 1, signal.SIGSTOP),
    "third_epoch": (ProgressPrinter, "say", 3, signal.SIGKILL),
}


def after(calls: int, method: Callable[..., Any], number: signal.Signals) -> Callable[..., Any]:
    """`method`, with a signal to this process when it was called so often."""
    count = 0

    def called(*arguments: Any) -> Any:
        nonlocal count
        answer = method(*arguments)
        count += 1
        if count == calls:
            os.kill(os.getpid(), number)
        return answer

    return called


if __name__ == "__main__":
    owner, name, calls, number = EVENTS[sys.argv.pop(1)]
    setattr(owner, name, after(calls, getattr(owner, name), number))
    sys.exit(train.main())
