"""Run a command as a process: errors become one line on standard error and an exit code.

If a command is interrupted while it still imports, `paradnn/__init__.py` ends it without a
traceback. Within `program`, Ctrl-C, SIGTERM, SIGHUP and SIGUSR2 raise KeyboardInterrupt, so that a
command can end its processes and remove its temporary files.
"""

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec

import paradnn
from paradnn.cli.console import visible
from paradnn.core.errors import ParadnnError

P = ParamSpec("P")
#: Maximum length of a word in an error, in characters; longer words, such as pasted text, are cut.
_MAX_WORD_CHARS = 250
_EXIT_WRONG_INPUT = 2
_EXIT_INTERRUPTED = 130


def program(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate the `main` of a command so that it returns an exit code instead of raising errors.

    The code is usually 2 for an error that the user can fix, which is printed on one line. It is
    130 after Ctrl-C, SIGTERM, SIGHUP or SIGUSR2. Bugs in ParaDnn still raise.

    Args:
        main: The function to decorate. It returns the exit code.
    """

    @wraps(main)
    def run(*arguments: P.args, **named: P.kwargs) -> int:
        code = 0
        try:
            with _interruptible():
                if sys.argv[1:] == ["--version"] and not arguments:
                    print(f"paradnn {paradnn.__version__}")
                    return 0
                code = main(*arguments, **named)
                sys.stdout.flush()
        except ParadnnError as error:
            return _report_error(str(error), error.exit_code)
        except BrokenPipeError:
            # The reader of the output, such as head, has ended. Redirect the output, because Python
            # would otherwise report the error again when it closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                raise
            return _report_error(
                f"{error.filename or 'file'}: {error.strerror or error}", _EXIT_WRONG_INPUT
            )
        except UnicodeEncodeError as error:
            return _report_error(
                f"{error.object[:_MAX_WORD_CHARS]}: "
                f"contains bytes that are not valid {error.encoding}",
                _EXIT_WRONG_INPUT,
            )
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return _EXIT_INTERRUPTED
        return code

    return run


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM, SIGHUP (a closed terminal) and SIGUSR2 raise KeyboardInterrupt, as SIGINT does.

    Schedulers send SIGUSR2 shortly before a job's time limit, or before they preempt the job. An
    ignored signal, such as SIGHUP under nohup, stays ignored.
    """
    # Only the main thread may set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is paradnn.end_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    defaults = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in defaults:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)


def _report_error(text: str, code: int) -> int:
    """Print an error on one line of standard error, and return the exit code `code`."""
    text = visible(text.replace("\n", " "))
    line = re.sub(
        rf"\S{{{_MAX_WORD_CHARS},}}",
        lambda word: f"{word[0][: _MAX_WORD_CHARS - 3]}...",
        text,
    )
    print(f"error: {line}", file=sys.stderr)
    return code
