"""The fork server: reads requests, forks a child for each, and reports how it exited.

The server sleeps in `select` until the driver sends a line or the child exits, so it uses no
processor time during the measurement. When standard input ends because the driver has exited, the
server kills the child.
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
from typing import Any, NoReturn

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

#: Reports to the driver that a phase begins, or sends a message of the workload. The first
#: argument is the name of the phase, or the message. The second argument is the answer that the
#: driver uses if the process dies in that phase; None if no answer is complete.
Report = Callable[[str | WorkloadMessage, Answer | None], None]
#: Measures a point, given as plain values, and returns the answer.
Handler = Callable[[Mapping[str, Any], Report], Answer]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None, driver: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent exits.

    Only Linux supports this; elsewhere `serve` ends when standard input does. If the parent or the
    driver has already exited, this process exits, too.

    Args:
        parent: Process id of the parent. A forked child must get the id that was read before the
            fork. None for the current parent.
        driver: Process id of the driver, which sends the requests; None if it need not be checked.
            The driver is not the parent if it started this interpreter through a wrapper.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    is_gone = os.getppid() != parent
    if driver is not None and not is_gone:
        try:
            os.kill(driver, 0)
        except PermissionError:  # the driver exists, but belongs to another user
            pass
        except OSError:
            is_gone = True
    if is_gone:
        os._exit(1)


def serve(channel: EventWriter, handler: Handler) -> None:
    """Answer measurement requests from standard input until it ends; fork a child for each.

    Args:
        channel: Writes events, such as answers, to the driver.
        handler: Called in the child: measures the requested configuration, and returns the answer.
    """
    # Garbage collection in a child would write to, and so copy, the pages of all imported objects.
    release_free_memory()
    gc.freeze()
    remember_file_pages()
    wakeup, notify = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(notify, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    requests = _LineReader(0)
    while True:
        line = requests.next()
        if line is None:
            return
        try:
            request = read_message(Request, read_json(line), "request")
        except MessageError as error:
            channel.send(Refused(str(error)))
            continue
        worker = os.getpid()
        pid = os.fork()
        if pid == 0:
            _run_child(request, channel, handler, worker=worker, closing=(wakeup, notify))
        channel.send(_wait(request.id, pid, wakeup, requests))


class _LineReader:
    """Reads lines from a file descriptor that is also passed to `select`.

    A Python file object would read ahead, and `select` would not see the lines in its buffer.

    Attributes:
        descriptor: The file descriptor.
        has_ended: Whether the end of the stream was reached.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.has_ended = False
        self._buffer = b""

    def fill(self) -> int:
        """Read the available bytes and return their number; 0 at the end of the stream."""
        data = os.read(self.descriptor, 65536)
        self._buffer += data
        self.has_ended = not data
        return len(data)

    def next(self) -> bytes | None:
        """Wait for the next line and return it; None at the end of the stream."""
        while b"\n" not in self._buffer:
            if self.has_ended or self.fill() == 0:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class Phases:
    """Times the phases of a measurement, such as "build" or "compile", and reports their beginning.

    Attributes:
        current: The name of the current phase.
        seconds: Total seconds of each phase so far, by its name.
        report: Called as each phase begins, with the name of the phase and an answer. The driver
            uses this answer if the process dies in the phase. It is None if no answer is complete.
    """

    def __init__(self, report: Report) -> None:
        self.current = "start"
        self.seconds: dict[str, float] = {}
        self.report = report

    @contextlib.contextmanager
    def __call__(self, name: str, answer: Answer | None = None) -> Iterator[None]:
        """Return a context that encloses a phase.

        Args:
            name: The name of the phase.
            answer: The answer that the driver uses if this process dies in the phase; None if no
                answer is complete.
        """
        if name != self.current:
            self.current = name
            self.report(name, answer)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def _wait(request_id: int, pid: int, wakeup: int, requests: _LineReader) -> Exited:
    """Sleep until the child `pid` exits, and return how it exited.

    If standard input ends, kill the child.

    Args:
        request_id: Number of the request that the child answers.
        pid: Process id of the child.
        wakeup: Descriptor that becomes readable when a child exits.
        requests: Reads standard input.
    """
    ended_pid, status, usage = os.wait4(pid, os.WNOHANG)
    while not ended_pid:
        watched = [wakeup]
        if not requests.has_ended:
            watched.append(requests.descriptor)
        ready, _, _ = select.select(watched, [], [])
        if wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
        elif requests.fill() == 0:
            os.kill(pid, signal.SIGKILL)
        ended_pid, status, usage = os.wait4(pid, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    rss_unit_bytes = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss
    return Exited(
        id=request_id,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        max_resident_bytes=usage.ru_maxrss * rss_unit_bytes,
    )


def _run_child(
    request: Request,
    channel: EventWriter,
    handler: Handler,
    *,
    worker: int,
    closing: tuple[int, ...],
) -> NoReturn:
    """Answer one request, then always exit, without running the parent's clean-up handlers.

    Args:
        request: The request.
        channel: Writes events to the driver.
        handler: Measures the requested configuration, and returns the answer.
        worker: Process id of the parent.
        closing: Inherited file descriptors to close.
    """
    code = 1
    try:
        die_with_parent(worker)
        # The child gets its own process group, so that the driver can kill it and all processes
        # that it starts.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (0, *closing):
            os.close(descriptor)
        if request.stderr:
            # Write the output of the framework to a file per point, which explains a crash.
            descriptor = os.open(request.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(descriptor, 2)
            os.dup2(descriptor, 1)
            os.close(descriptor)
        channel.send(Started(request.id, os.getpid()))

        def report(content: str | WorkloadMessage, answer: Answer | None) -> None:
            if isinstance(content, WorkloadMessage):
                channel.send(News(content))
            else:
                channel.send(PhaseBegun(content, answer))

        channel.send(PointAnswered(request.id, handler(request.point, report)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
