"""The fork server: reads requests, forks a child for each, reports how it exited.

The loop sleeps in `select` on two things, the driver's next line and the child's exit, so it takes
no time from the measurement. When the driver is gone (standard input ends) the child is killed:
nothing is left behind.
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paradnn.core.channel import EventWriter, MessageError, read_json, read_message
from paradnn.core.messages import (
    Answer,
    Exited,
    News,
    PhaseBegun,
    PointAnswered,
    Refused,
    Request,
    Started,
    WorkloadMessage,
)
from paradnn.worker.memory import release_free_memory, remember_file_pages

#: Reports to the driver that a phase begins, or a piece of what is measured; the answer so far,
#: should it not end.
Report = Callable[[str | WorkloadMessage, Answer | None], None]
Handler = Callable[[Mapping[str, Any], Report], Answer]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None, driver: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent exits; where it cannot (not Linux),
    `serve` notices. A parent that exited before that is noticed here, if the caller names it: a
    fork knows it from before (`parent`), an interpreter, which takes a while to start, has it from
    its command line (`driver`, beyond any wrapper).
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if driver is not None:
            os.kill(driver, 0)
        gone = os.getppid() != parent
    except OSError as error:
        gone = not isinstance(error, PermissionError)  # somebody else's, but there
    if gone:
        os._exit(1)


def serve(channel: EventWriter, handler: Handler) -> None:
    """Answer requests from standard input until it ends. `handler` runs in the child and returns
    its answer.
    """
    # What was imported stays as it is: the collector need not touch (and so copy) those pages in
    # every child.
    release_free_memory()
    gc.freeze()
    remember_file_pages()
    wakeup, notify = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(notify, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    requests = _Lines(0)
    while (line := requests.next()) is not None:
        try:
            request = read_message(Request, read_json(line), "request")
        except MessageError as error:
            channel.send(Refused(str(error)))
            continue
        worker = os.getpid()
        pid = os.fork()
        if pid == 0:
            _child(request, channel, handler, worker, closing=(wakeup, notify))
        channel.send(_wait(request.id, pid, wakeup, requests))


class _Lines:
    """Lines of a descriptor, read without the buffering that would hide them from `select`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._buffer = b""

    def fill(self) -> int:
        """Read what is there; 0 at the end."""
        data = os.read(self.descriptor, 65536)
        self._buffer += data
        self.ended = not data
        return len(data)

    def next(self) -> bytes | None:
        """The next line, waiting for it; None at the end."""
        while b"\n" not in self._buffer:
            if self.ended or self.fill() == 0:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class Phases:
    """Says which phase the point is in, and how long each took."""

    def __init__(self, report: Report) -> None:
        self.current = "start"
        self.seconds: dict[str, float] = {}
        self.report = report

    @contextlib.contextmanager
    def __call__(self, name: str, answer: Answer | None = None) -> Iterator[None]:
        """What is done within belongs to phase `name`; `answer` counts if the process dies in it."""
        if name != self.current:
            self.current = name
            self.report(name, answer)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def _wait(number: int, pid: int, wakeup: int, requests: _Lines) -> Exited:
    """Sleep until the child of a request exits; kill it when the driver is gone."""
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        if requests.ended:
            watched = [wakeup]
        else:
            watched = [wakeup, requests.descriptor]
        ready, _, _ = select.select(watched, [], [])
        if wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
        elif requests.fill() == 0:
            os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(ended[1])
    peak = ended[2].ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    return Exited(number, code if code >= 0 else None, -code if code < 0 else None, peak)


def _child(
    request: Request, channel: EventWriter, handler: Handler, worker: int, closing: tuple[int, ...]
) -> None:
    """Measure one point and leave the process, whatever happens, without the parent's clean-up."""
    code = 1
    try:
        die_with_parent(worker)
        # A process group of its own: the driver kills the child together with whatever it started.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (0, *closing):
            os.close(descriptor)
        if request.stderr:  # what the framework prints goes to the point's own file, so that a crash can be explained
            descriptor = os.open(request.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(descriptor, 2)
            os.dup2(descriptor, 1)
            os.close(descriptor)
        channel.send(Started(request.id, os.getpid()))

        def report(news: str | WorkloadMessage, answer: Answer | None) -> None:
            channel.send(
                News(news) if isinstance(news, WorkloadMessage) else PhaseBegun(news, answer)
            )

        channel.send(PointAnswered(request.id, handler(request.point, report)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
