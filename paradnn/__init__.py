"""ParaDnn: measure parameterized deep-learning models on a platform, one MLflow run a point.

The package is the *driver* (`python -m paradnn.train`), which decides, watches and records, and,
below `paradnn.worker`, the *worker*, which measures in the interpreter under test. Nothing of it is
imported here, so that the worker needs neither MLflow nor Hydra.
"""

import os
import signal
import sys

__version__ = "0.1.0"


def end_quietly(*_: object) -> None:
    """What Ctrl-C does to a command that has only imported so far: one line in place of where the
    import was.
    """
    os.write(2, b"interrupted\n")
    os._exit(130)


# A program that uses the package decides for itself; the worker obeys its driver. `-m` is what
# `python -m` puts there while it looks for the module, and a background job ignores Ctrl-C.
_COMMAND = os.path.basename(sys.argv[0]) in ("-m", "paradnn") and "paradnn.worker" not in " ".join(
    sys.orig_argv
)
if _COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_quietly)
