"""Processes that tests start without forking the test process.

Threads of the test process, such as those of gRPC or TensorFlow, may hold any lock.

Code that forks, or that is measured as a point's process, runs in a separate interpreter. No
process outlives its test, however the test ends. Every wait has a limit.
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

#: Time limit in seconds for events that must occur, on a machine of any speed.
PATIENCE = 200.0

#: A shell's background processes ignore SIGINT, and those under nohup SIGHUP. Their children inherit
#: that, and this suite may be such a child.
_HEAR = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def hearing_ctrl_c(command: Sequence[str]) -> list[str]:
    """Return a command that does not ignore SIGINT and SIGHUP.

    preexec_fn would fork this process.
    """
    return [sys.executable, "-S", "-c", _HEAR, *command]


@contextmanager
def fresh(function: Callable[..., object], *arguments: Any) -> Iterator[BaseProcess]:
    """Run a module's `function` in a new interpreter, and kill it at the end of the test.

    It exits like a point's process, without clean-up: with code 0 once the function has returned.
    Inputs and outputs pass through `arguments`, which may include connections and sockets.
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
    """Return the exit code of a process, or the negative number of the signal that ended it."""
    process.join(PATIENCE)
    if process.exitcode is None:
        raise TimeoutError("it goes on")
    return process.exitcode


def in_fresh_process(function: Callable[..., object], *arguments: Any) -> None:
    """Run code that forks and makes assertions; it reports failures on standard error."""
    with fresh(function, *arguments) as process:
        code = exit_code(process)
        if code:
            raise ChildProcessError(f"{function.__name__} ended with {code}")


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
    """Run a command, and kill it and all its descendants at the end of the test."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a command and all its descendants, and close its pipes."""
    for pid in [*children_of(process.pid), process.pid] if process.poll() is None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(OSError):  # buffered data no longer has a reader
                pipe.close()
    process.wait()


def children_of(pid: int) -> list[int]:
    """Return every living descendant of a process."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait for a certain event; fail the test if it does not occur within a generous limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False
