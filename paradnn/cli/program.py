"""A command as a process: what its `main` raises becomes one line on standard error and an exit
code.

The package itself ends a process quietly that is interrupted while it is still importing
(`paradnn/__init__.py`); from `program` on Ctrl-C is a KeyboardInterrupt, so that what has begun can
be put in order.
"""

import os
import re
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import paradnn
from paradnn.cli.console import visible
from paradnn.core.errors import ParadnnError

P = ParamSpec("P")
#: Longer words of an error, such as a name that was pasted by mistake, are cut.
_LONGEST_WORD = 250


def program(main: Callable[P, int]) -> Callable[P, int]:
    """A command's `main`, from which nothing comes but its exit code: 2 for what a user can mend,
    130 for Ctrl-C.
    """

    @wraps(main)
    def run(*arguments: P.args, **named: P.kwargs) -> int:
        code = 0
        try:
            if signal.getsignal(signal.SIGINT) is paradnn.end_quietly:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            if sys.argv[1:] == ["--version"] and not arguments:
                print(f"paradnn {paradnn.__version__}")
                return 0
            code = main(*arguments, **named)
            sys.stdout.flush()
        except ParadnnError as error:
            return _failed(str(error), error.exit_code)
        except BrokenPipeError:
            # The reader, such as head, has seen enough. Python would complain once more when it
            # closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                raise
            return _failed(f"{error.filename or 'file'}: {error.strerror or error}", 2)
        except UnicodeEncodeError as error:
            return _failed(
                f"{error.object[:_LONGEST_WORD]}: holds bytes that are no text in {error.encoding}",
                2,
            )
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        return code

    return run


def _failed(text: str, code: int) -> int:
    text = visible(text.replace("\n", " "))
    line = re.sub(
        rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][: _LONGEST_WORD - 3]}...", text
    )
    print(f"error: {line}", file=sys.stderr)
    return code
