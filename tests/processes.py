"""Processes that tests start: none is a fork of this one, whose threads (gRPC's, TensorFlow's) may
hold any lock.

What forks, or is measured as a process of a point, runs in an interpreter of its own. No process
outlives its test, however that ends, and none is waited for without end.
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

#: Seconds for what does come, on a machine however slow.
PATIENCE = 200.0

#: What a shell starts in the background ignores SIGINT, and so does all that it starts: this suite,
#: too.
_HEAR = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"


def hearing_ctrl_c(command: Sequence[str]) -> list[str]:
    """A command of which SIGINT is not ignored: preexec_fn would fork this process."""
    return [sys.executable, "-S", "-c", _HEAR, *command]


@contextmanager
def fresh(function: Callable[..., object], *arguments: Any) -> Iterator[BaseProcess]:
    """`function`, one of a module, in a new interpreter that does nothing else; killed when the
    test is done.

    It exits as a point's process does, without clean-up: with 0 once the function has returned.
    What it needs to know, and to say, goes through `arguments`, where connections and sockets may
    be.
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
    """With what a process exits, the number of a signal that ended it negative."""
    process.join(PATIENCE)
    if process.exitcode is None:
        raise TimeoutError("it goes on")
    return process.exitcode


def in_fresh_process(function: Callable[..., object], *arguments: Any) -> None:
    """Run what forks, and asserts; it says on standard error what failed."""
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
    """A command while it runs; when the test is done it is killed with all below it."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a command and all below it, and let go of its pipes."""
    for pid in [*children_of(process.pid), process.pid] if process.poll() is None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(OSError):  # what was not written yet has no reader
                pipe.close()
    process.wait()


def children_of(pid: int) -> list[int]:
    """Every living descendant of a process."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait for what will happen; where it does not, the test fails, however slow the machine."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False
