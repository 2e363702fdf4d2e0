"""`python -m paradnn.worker --framework tensorflow`: import once, fork a child per point.

A point is one configuration to measure. The import of a framework takes seconds, and happens once.
A fork takes milliseconds and gives each point a separate process, with a separate memory peak and
without the graphs of earlier points. A crash ends only that process. The worker accesses no device
before the fork, since neither a GPU context nor a thread pool survives a fork.
"""

import argparse
import os
import sys
import tempfile

from paradnn.core.channel import EventWriter
from paradnn.core.messages import PROTOCOL_VERSION, Ready, Refused
from paradnn.core.versions import FRAMEWORKS
from paradnn.core.workload import WORKLOADS
from paradnn.families import FAMILIES
from paradnn.worker import frameworks
from paradnn.worker.fork_server import die_with_parent, serve


def main() -> int:
    """Answer measurement requests until standard input ends, and return the exit code.

    The exit code is 1 if the framework cannot be imported.
    """
    parser = argparse.ArgumentParser(
        prog="python -m paradnn.worker", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="tensorflow")
    parser.add_argument(
        "--driver",
        type=int,
        help="process id of the driver, which reads the answers; the worker exits with the driver",
    )
    arguments = parser.parse_args()
    die_with_parent(driver=arguments.driver)
    # Redirect the framework's output to standard error, so that standard output has only events.
    channel = EventWriter(os.dup(1))
    os.dup2(2, 1)
    try:
        framework = frameworks.load(arguments.framework)
        from paradnn.worker.request import answer_request

        list(FAMILIES), list(WORKLOADS)  # import their modules once, not in every child
    except Exception as error:
        channel.send(Refused(f"{type(error).__name__}: {error}"))
        return 1
    if FRAMEWORKS[arguments.framework].backend == "tensorflow":
        # AutoGraph leaves a temporary file per function if a process skips the clean-up at exit, as
        # the children do. The working directory, which the driver removes, collects these files.
        # PyTorch keeps the usual folder, where it caches compiled code for later processes.
        tempfile.tempdir = os.getcwd()
    channel.send(Ready(PROTOCOL_VERSION))
    serve(channel, lambda point, report: answer_request(point, framework, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
