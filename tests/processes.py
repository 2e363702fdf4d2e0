"""Processes that tests start without forking the test process.

A fork could wait forever for a lock that a thread of the test process holds, such as one of gRPC
or TensorFlow. Therefore code that forks, or that is measured as a point's process, runs in a
separate interpreter. All processes end with their test, and every wait has a limit.
"""

import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import Any

#: Time limit in seconds for events that must occur, generous enough for slow machines.
PATIENCE = 900.0

#: Program that restores the default handlers and runs a command. Background processes of a shell
#: ignore SIGINT, and processes under nohup ignore SIGHUP. Their children inherit this, and this
#: suite may be such a child.
_RESTORE_HANDLERS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def with_default_signal_handlers(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` with the default handlers of SIGINT and SIGHUP.

    `preexec_fn` cannot restore the handlers, since it would fork this process.
    """
    return [sys.executable, "-S", "-c", _RESTORE_HANDLERS, *command]


@contextmanager
def new_interpreter(function: Callable[..., object], *arguments: Any) -> Iterator[BaseProcess]:
    """Run `function` in a new interpreter, and kill it at the end of the context.

    The process exits without clean-up, like that of a point; its exit code is 0 if the function
    returns. Inputs and outputs pass through `arguments`, which may include connections and sockets.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_call, args=(function, *arguments)
    )
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def exit_code(process: BaseProcess) -> int:
    """Wait for a process; return its exit code, or the negative number of the signal that ended it.

    Raises:
        TimeoutError: If the process still runs after PATIENCE seconds.
    """
    process.join(PATIENCE)
    if process.exitcode is None:
        raise TimeoutError(f"process {process.pid} still runs after {PATIENCE:g} s")
    return process.exitcode


def run_in_new_interpreter(function: Callable[..., object], *arguments: Any) -> None:
    """Run `function` in a new interpreter, for code that forks and makes assertions.

    Raises:
        ChildProcessError: If the function fails. Its traceback is on standard error.
    """
    with new_interpreter(function, *arguments) as process:
        code = exit_code(process)
        if code:
            raise ChildProcessError(f"{function.__name__} ended with exit code {code}")


def _call(function: Callable[..., object], *arguments: Any) -> None:
    code = 1
    try:
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a command, and kill it and all its descendants at the end of the context."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a command and all its descendants, and close its pipes."""
    if process.poll() is None:
        for pid in [*children_of(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(OSError):  # buffered data no longer has a reader
                pipe.close()
    process.wait()


def children_of(pid: int) -> list[int]:
    """Return the ids of all living descendants of a process; empty if the process has ended."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Poll a condition until it is true; return False if it is still false after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False
