"""Run a command once, and measure its wall time, its processor time or a number that it prints."""

import functools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from paradnn.cli.parser import split_quoted
from paradnn.compare.metric import OutputMetric
from paradnn.core.errors import ConfigError
from paradnn.platform.commits import Checkout
from paradnn.platform.process_guard import ProcessGuard

#: Maximum timeout in seconds. `poll` cannot represent much longer timeouts.
_MAX_TIMEOUT = 1e6
#: Maximum number of bytes of output in which a metric or an error is searched.
_MAX_OUTPUT = 10_000_000
#: Characters that only a shell interprets. A command without them is started directly, so that the
#: time of a shell is not included.
_SHELL_CHARACTERS = set("|&;<>()$`*?[]#~!{}\n")
#: Exit code of a process that wrote to a pipe whose reader, such as head, had already ended.
_SIGPIPE_CODE = 128 + signal.SIGPIPE
#: Beginning of a line that names an error. Node.js, for example, prints its version after it.
_ERROR_LINE = re.compile(r"(?:[\w.]*(?:Error|Exception)|error|fatal|panic)\b")


class Command(NamedTuple):
    """One of the two commands, or one of the two functions, of a comparison.

    Attributes:
        label: The name of the command in messages.
        text: The command line; for a function, `file.py:name` or `package.module:name`.
        checkout: The checkout of a commit in whose folder the command runs; None for the current
            folder.
    """

    label: str
    text: str
    checkout: Checkout | None = None

    @property
    def folder(self) -> Path | None:
        """The folder in which the command runs; None for the current folder."""
        return self.checkout.folder if self.checkout else None


@dataclass(frozen=True)
class CommandProtocol:
    """How the two commands of a comparison are run.

    Attributes:
        minutes: Time limit of the comparison. No round starts if it would end after this limit.
        metric: The compared quantity.
        warmup: Number of warm-up rounds. Each round runs both commands once, without measuring.
        prepare: Shell command that runs, untimed, before the runs of a command in each round; None
            to run no such command.
        timeout: Seconds after which a run counts as failed.
        exit_codes: Exit codes that count as success.
        base_first: Whether the second command runs first in the warm-up. If it fails there, the
            comparison raises ConfigError. A gate sets this for the base commit.
    """

    minutes: float = 10.0
    metric: OutputMetric = field(default_factory=OutputMetric)
    warmup: int = 1
    prepare: str | None = None
    timeout: float = 600.0
    exit_codes: tuple[int, ...] = (0,)
    base_first: bool = False


@dataclass(frozen=True)
class CommandRun:
    """The result of one run of a command.

    Attributes:
        measured: Wall time in seconds, or the value of the metric; meaningless if the run failed.
        cpu_seconds: Processor time in seconds of the process and its children; None if unknown.
        failure: Why the run failed; None if it succeeded.
    """

    measured: float
    cpu_seconds: float | None = None
    failure: str | None = None


def command_line(text: str, folder: Path | None = None) -> list[str]:
    """Return the words of the process to start: the command itself, or a shell that runs it.

    Args:
        text: The command as typed by a user.
        folder: The folder in which the command runs, and to which a relative path of its program
            refers; None for the current folder.

    Raises:
        ConfigError: If the text is empty or has an unclosed quotation, or if the program does not
            exist.
    """
    words = split_quoted("command", text)
    if not words:
        raise ConfigError("command", text, "is empty", "name a program")
    # A shell does not interpret quoted characters.
    unquoted = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", text)
    if _SHELL_CHARACTERS & set(unquoted) or "=" in unquoted.partition(" ")[0]:
        if _has_pipe(unquoted):
            return [*_pipeline_shell(), text]
        return ["/bin/sh", "-c", text]
    program = words[0]
    if folder is not None and "/" in program:
        program = str(folder / program)
    if shutil.which(program) is None:
        if _is_builtin(program):
            return ["/bin/sh", "-c", text]
        remedy = "install it, or correct its name"
        if folder is None:
            remedy += "; to compare settings of this suite, write key=value"
        raise ConfigError("command", text, f"program {words[0]} not found", remedy)
    return words


def _is_builtin(name: str) -> bool:
    """Return whether a name is a built-in command of the shell, such as ulimit, or a keyword."""
    done = subprocess.run(
        ["/bin/sh", "-c", 'command -v "$1"', "sh", name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    # For a file, the shell prints its path instead of its name.
    return "/" not in name and done.stdout.strip() == name


def _has_pipe(text: str) -> bool:
    """Return whether a command contains a pipe (| but not || or >|).

    Args:
        text: The command without its quoted parts.
    """
    return re.search(r"(?<![|>])\|(?!\|)", text) is not None


@functools.cache
def _pipeline_shell() -> tuple[str, ...]:
    """Return a shell whose pipelines fail if any of their commands fails.

    The shell is /bin/sh if it supports `pipefail`, else bash in POSIX mode. If neither is
    available, the result is plain /bin/sh, and a warning is printed.

    Returns:
        The words that start the shell, up to and including -c. The pipeline is the next word.
    """
    candidates: list[tuple[str, ...]] = [("/bin/sh", "-o", "pipefail", "-c")]
    bash = shutil.which("bash")
    if bash:
        # xpg_echo: echo interprets backslashes, as it does in dash.
        candidates.append((bash, "--posix", "-O", "xpg_echo", "-o", "pipefail", "-c"))
    for shell in candidates:
        done = subprocess.run(
            [*shell, ":"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return shell
    print(
        "warning: /bin/sh has no pipefail and bash is not installed, so only the last command of "
        "a pipeline can fail; write the commands to a script that checks each of them",
        file=sys.stderr,
    )
    return ("/bin/sh", "-c")


def run_once(command: Command, protocol: CommandProtocol, guard: ProcessGuard) -> CommandRun:
    """Run a command once, and return its measurements.

    After the timeout, the command is killed together with all processes that it started. The result
    then has a `failure`.

    Args:
        command: The command, and the folder in which it runs.
        protocol: Metric, timeout of a run, and exit codes that count as success.
        guard: Starts the process, and kills it if this process ends.

    Raises:
        ConfigError: If the command cannot be started.
    """
    words = command_line(command.text, command.folder)
    metric = protocol.metric
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.perf_counter()
        try:
            process = guard.start(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out if metric.is_printed else subprocess.DEVNULL,
                stderr=err,
                cwd=command.folder,
            )
        except OSError as error:
            raise ConfigError(
                "command",
                command.text,
                f"cannot be started ({error.strerror or error})",
                "correct the command",
            ) from error
        has_ended = False
        try:
            has_ended = _wait(process, protocol.timeout)
            seconds = time.perf_counter() - begun
        finally:
            if not has_ended:
                guard.kill(process)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            guard.release(process)
        cpu_seconds = max(usage.ru_utime + usage.ru_stime, 1e-6)
        value: float | None
        if metric.is_printed:
            value = metric.value(_read(out))
        elif metric.pattern:
            value = cpu_seconds
        else:
            value = seconds
        if has_ended:
            code = process.returncode
            is_pipeline = words[-1] == command.text and "pipefail" in words
            if is_pipeline and code == _SIGPIPE_CODE:
                # A later command of the pipeline, such as head, stopped reading: not a failure.
                code = protocol.exit_codes[0]
            failure = failure_reason(code, protocol.exit_codes, err)
        else:
            failure = f"took longer than {protocol.timeout:g} s"
    if failure is None and value is None:
        failure = f"printed no positive number that matches --metric {metric.pattern}"
    return CommandRun(value or 0.0, cpu_seconds, failure)


def prepare_run(command: Command, protocol: CommandProtocol, guard: ProcessGuard) -> str | None:
    """Run the shell command of --prepare, if there is one, in the folder of a command.

    Args:
        command: The command that will be measured.
        protocol: The protocol with the shell command (`prepare`).
        guard: Starts the process, and kills it if this process ends.

    Returns:
        Why the shell command failed; None if it succeeded, or without such a command.
    """
    if not protocol.prepare:
        return None
    done = guard.run(["/bin/sh", "-c", protocol.prepare], cwd=command.folder)
    if done.returncode:
        return f"--prepare ended with exit code {done.returncode}"
    return None


def _wait(process: "subprocess.Popen[bytes]", timeout: float) -> bool:
    """Wait for a process without reaping it, and return whether it ended within the timeout.

    Args:
        process: The process.
        timeout: Timeout in seconds.
    """
    with open(os.pidfd_open(process.pid), "rb", buffering=0) as handle:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(1e3 * min(timeout, _MAX_TIMEOUT)))


def _read(source: IO[bytes]) -> str:
    source.seek(0)
    return source.read(_MAX_OUTPUT).decode(errors="replace")


def failure_reason(code: int, good_codes: Sequence[int], err: IO[bytes]) -> str | None:
    """Return why a process failed, with a line of its standard error; None on success.

    The line is the last one that names an error. If no line names an error, it is the last line.

    Args:
        code: Exit code of the process; negative for the signal that killed it.
        good_codes: Exit codes that count as success.
        err: The standard error of the process, as a file that can be read from its beginning.
    """
    if code in good_codes:
        return None
    if code < 0:
        how = f"killed by {_signal_name(-code)}"
    else:
        how = f"exit code {code}"
    lines = [line.strip() for line in _read(err).splitlines() if line.strip()]
    if not lines:
        return how
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    line = (errors or lines)[-1]
    return f"{how} ({line[:200]})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
