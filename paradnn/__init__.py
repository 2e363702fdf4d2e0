"""ParaDnn: measure parameterized deep-learning models on a platform, one MLflow run per point.

The package is the *driver* (`python -m paradnn.train`), which decides what to measure, limits it
and records it. Below `paradnn.worker` it is the *worker*, which measures in the interpreter under
test. Neither MLflow nor Hydra is imported here, so the worker needs neither.
"""

import os
import signal
import sys

__version__ = "0.1.0"


def end_quietly(*_: object) -> None:
    """End a command that Ctrl-C interrupts while it still imports, without a traceback."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def _is_command() -> bool:
    """Whether this process is a command of the suite, and neither a worker nor a user's program.

    While Python looks for the module of `python -m`, the first argument is `-m`.
    """
    program = os.path.basename(sys.argv[0])
    return program in ("-m", "paradnn") and "paradnn.worker" not in " ".join(sys.orig_argv)


# A job in the background ignores Ctrl-C and has another handler.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_quietly)
