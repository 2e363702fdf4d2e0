"""ParaDnn: measure parameterized deep-learning models on a platform, one MLflow run per point.

The package consists of two programs. The *driver* (`python -m paradnn.train`) decides what to
measure, limits its time and memory, and records it. The *worker* (`paradnn.worker`) measures in the
interpreter under test. Importing this module imports neither MLflow nor Hydra, so the worker needs
neither.
"""

import os
import signal
import sys

__version__ = "0.2.0"


def end_quietly(*_: object) -> None:
    """End this process after Ctrl-C without a traceback.

    This is the handler of SIGINT while a command of the suite still imports its modules.
    """
    os.write(2, b"interrupted\n")
    os._exit(130)


def _is_command() -> bool:
    """Return whether this process is a command of the suite, not a worker or a user's program.

    During the import of `python -m MODULE`, sys.argv[0] is `-m`.
    """
    program = os.path.basename(sys.argv[0])
    return program in ("-m", "paradnn") and "paradnn.worker" not in " ".join(sys.orig_argv)


# Keep a handler that was already set: a background job ignores Ctrl-C.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_quietly)
