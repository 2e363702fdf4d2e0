"""A helper process that kills the commands of a driver after the driver was killed.

A driver that receives SIGKILL cannot end the process groups that it started. The guard reads their
numbers from a pipe. When the pipe ends, the driver is gone: the guard kills every group that is
still registered, and exits. It needs the standard library alone and starts in about 15 ms.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Self

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProcessGuard:
    """Starts process groups that end with this process, however it ends.

    As a context manager it keeps the helper process. Leaving it ends the helper.
    """

    def __enter__(self) -> Self:
        self._helper = subprocess.Popen(
            # -I and -S: neither the environment nor site-packages can change what runs.
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            # A signal to the driver's group must not end the helper before it has cleaned up.
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._helper.stdin is not None
        with contextlib.suppress(OSError):
            self._helper.stdin.close()
        self._helper.wait()

    def start(self, words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a command in a new process group, which `kill_group` or the guard kills."""
        with _deferred_signals():
            process = subprocess.Popen(words, start_new_session=True, **options)
            self._send(f"+{process.pid}")
        return process

    def release(self, process: "subprocess.Popen[bytes]") -> None:
        """Forget a command that has ended: its number may be given to another process."""
        self._send(f"-{process.pid}")

    @contextlib.contextmanager
    def running(self, words: list[str], **options: Any) -> "Iterator[subprocess.Popen[bytes]]":
        """A command that is awaited when the context is left, and killed if an exception left it.

        Background processes of a command that ended normally keep running.
        """
        process = self.start(words, **options)
        try:
            yield process
        except BaseException:
            kill_group(process.pid)
            raise
        finally:
            process.wait()
            self.release(process)

    def run(
        self, words: list[str], timeout: float | None = None, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, as `subprocess.run` with captured text does.

        Background processes of the command may keep its output open; they are not awaited.
        """
        import tempfile  # here, since the helper process does not need it

        # Files, because the end of a pipe comes only when all processes have closed it.
        with (
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
            self.running(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, **options
            ) as process,
        ):
            process.wait(timeout)
            texts = [_content(file.fileno()) for file in (output, errors)]
        return subprocess.CompletedProcess(words, process.returncode, *texts)

    def _send(self, line: str) -> None:
        assert self._helper.stdin is not None
        # Without its helper a driver still ends its commands itself, unless it is killed.
        with contextlib.suppress(OSError):
            os.write(self._helper.stdin.fileno(), f"{line}\n".encode())


def _content(descriptor: int) -> str:
    """Return the text of a file without moving the position at which its writers append."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Deliver signals that would end this process at the end of the block.

    Without this, an exception of a signal handler could leave a command that nobody knows. The
    signals are not blocked, because the command would inherit that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers run in the main thread alone
        return
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda received_number, _: received.append(received_number))
        for number in _ENDING_SIGNALS
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for received_number in received:
            signal.raise_signal(received_number)


def kill_group(group: int) -> None:
    """Kill every process of a group, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _main() -> None:
    """Read numbers of groups until the driver is gone, then kill those that are left."""
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        kill_group(group)


if __name__ == "__main__":
    _main()
