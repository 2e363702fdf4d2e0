"""A helper process that kills the commands of a driver that is interrupted or killed.

A driver that receives SIGKILL cannot end the process groups that it started. The helper reads the
ids of these groups from a pipe. When the pipe closes, the helper kills every group that is still
registered. It needs only the standard library and starts in about 15 ms.

A process can leave its group, as daemons do. Therefore every command gets an environment variable
that its processes inherit. On Linux, the helper also kills every process with this variable, unless
the driver has reported a normal end. Jenkins finds the processes of a canceled job in the same way
(https://wiki.jenkins.io/display/JENKINS/ProcessTreeKiller).
"""

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Self

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The environment variable that marks the processes of a command. All its values have the same
#: length, since the size of the environment can change the speed of a program.
_VARIABLE = "PARADNN_COMMAND"
#: Line that a driver sends to its helper if it ends normally.
_END = "."
#: Number of consecutive searches that must find no process. A single search can miss a process that
#: forks and exits during the search, as daemons do when they start.
_EMPTY_SEARCHES = 3
#: The folder in which the kernel shows the environment of each process.
_PROCESSES = "/proc"

_driver_name = secrets.token_hex(8)
_command_numbers = itertools.count()


class ProcessGuard:
    """Starts commands that end when this process ends, even if it is killed.

    Entering the context starts the helper process, and leaving the context ends it. If an
    interruption such as KeyboardInterrupt leaves the context, the helper first kills all processes
    of this driver's commands. These include background processes of commands that have ended.
    """

    def __enter__(self) -> Self:
        self._variables: dict[int, str] = {}
        # This driver may itself be a command of another driver, which kills all processes with the
        # variable. The helper must survive this to clean up, so it must not inherit the variable.
        environment = {name: text for name, text in os.environ.items() if name != _VARIABLE}
        self._helper = subprocess.Popen(
            # -I and -S keep the environment and site-packages from changing what the helper runs.
            [sys.executable, "-I", "-S", __file__, _variable_prefix()],
            stdin=subprocess.PIPE,
            env=environment,
            # A signal to the driver's group must not end the helper before it has cleaned up.
            start_new_session=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._helper.stdin is not None
        if kind is None or issubclass(kind, Exception):
            self._send(_END)
        with contextlib.suppress(OSError):
            self._helper.stdin.close()
        self._helper.wait()

    def start(self, words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a command in a new process group, so that `kill` or the helper can end it.

        Args:
            words: The command and its arguments.
            **options: Further arguments of `subprocess.Popen`.
        """
        value = f"{_driver_name}-{next(_command_numbers):010}"
        environment = {**(options.pop("env", None) or os.environ), _VARIABLE: value}
        with _deferred_signals():
            process = subprocess.Popen(words, start_new_session=True, env=environment, **options)
            self._variables[process.pid] = f"{_VARIABLE}={value}"
            self._send(f"+{process.pid}")
        return process

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill a command and all processes that it started.

        Call this before `release`.

        Args:
            process: The process that `start` or `running` returned.
        """
        _kill_group(process.pid)
        _kill_processes_with(self._variables[process.pid])

    def release(self, process: "subprocess.Popen[bytes]") -> None:
        """Unregister a command that has ended, because a new process may get the same id.

        Args:
            process: The process that `start` returned, after its end.
        """
        del self._variables[process.pid]
        self._send(f"-{process.pid}")

    @contextlib.contextmanager
    def running(self, words: list[str], **options: Any) -> "Iterator[subprocess.Popen[bytes]]":
        """Start a command, and wait for its end when the context is left.

        If an exception leaves the context, the command is killed first. Background processes of a
        command that ended normally keep running.

        Args:
            words: The command and its arguments.
            **options: Further arguments of `subprocess.Popen`.

        Yields:
            The process of the command.
        """
        process = self.start(words, **options)
        try:
            yield process
        except BaseException:
            self.kill(process)
            raise
        finally:
            process.wait()
            self.release(process)

    def run(
        self, words: list[str], timeout: float | None = None, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, like `subprocess.run` with captured text.

        Background processes of the command are not awaited, even if they keep its output open.

        Args:
            words: The command and its arguments.
            timeout: Seconds after which the command is killed; None for no limit.
            **options: Further arguments of `subprocess.Popen`.

        Returns:
            The exit code, the standard output and the standard error, as text.

        Raises:
            subprocess.TimeoutExpired: If the command exceeds the time limit.
        """
        import tempfile  # here, since the helper process does not need it

        # Write to files: a pipe would end only when background processes have closed it as well.
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
        # Without the helper, the driver still ends its commands itself, unless it is killed.
        with contextlib.suppress(OSError):
            os.write(self._helper.stdin.fileno(), f"{line}\n".encode())


def _content(descriptor: int) -> str:
    """Return the text of a file without moving the file position, at which writers append."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer signals that would end this process, until the context is left.

    Otherwise the exception of a signal handler could interrupt the process after it has started a
    command and before it has registered the command. The signals are not blocked, because the
    command would inherit the signal mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers run only in the main thread
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


def _variable_prefix() -> str:
    """Return the beginning of the environment entry that marks all commands of this process."""
    return f"{_VARIABLE}={_driver_name}-"


def _kill_group(group: int) -> None:
    """Kill every process of a process group, if the group exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _kill_processes_with(variable: str) -> None:
    """Kill every process with an environment variable, until no such process is left.

    Args:
        variable: `NAME=value`, or the beginning of this text.
    """
    killed: set[int] = set()
    empty_searches = 0
    while empty_searches < _EMPTY_SEARCHES:
        # A killed process may still be listed, but it starts no further processes.
        found = _processes_with(variable) - killed
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        if found:
            empty_searches = 0
        else:
            empty_searches += 1


def _processes_with(variable: str) -> set[int]:
    """Return the ids of the processes that were started with an environment variable.

    Args:
        variable: `NAME=value`, or the beginning of this text.
    """
    pids: set[int] = set()
    try:
        names = os.listdir(_PROCESSES)
    except OSError:  # not Linux
        return pids
    for name in filter(str.isdecimal, names):
        # Environments of other users' processes are not readable, and a process may have ended.
        with contextlib.suppress(OSError), open(f"{_PROCESSES}/{name}/environ", "rb") as file:
            if f"\0{variable}".encode() in b"\0" + file.read():
                pids.add(int(name))
    return pids


def _main() -> None:
    """Run the helper: read ids of process groups until the driver closes the pipe.

    Then kill the commands of the driver. If the driver ended normally, background processes of
    commands that have ended keep running.
    """
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    is_interrupted = True
    for line in sys.stdin:
        if line.strip() == _END:
            is_interrupted = False
        elif line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        _kill_group(group)
    if is_interrupted:
        _kill_processes_with(sys.argv[1])


if __name__ == "__main__":
    _main()
