"""`python -m paradnn.worker --framework tensorflow`: import the framework once, then fork a child
for each point.

The import costs seconds and is paid once; the fork costs milliseconds and gives each point a
process of its own: its own memory peak, no graph left over, and a crash that ends that child alone.
No device is touched before the fork, since neither a GPU context nor a thread pool survives it.
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
    """Serve points until standard input ends; 1 when the framework cannot be imported."""
    parser = argparse.ArgumentParser(
        prog="python -m paradnn.worker", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="tensorflow")
    parser.add_argument(
        "--driver", type=int, help="process that reads the answers; the worker exits with it"
    )
    arguments = parser.parse_args()
    die_with_parent(driver=arguments.driver)
    # Whatever the framework prints goes to standard error: standard output is the protocol's.
    channel = EventWriter(os.dup(1))
    os.dup2(2, 1)
    try:
        framework = frameworks.load(arguments.framework)
        from paradnn.worker.request import answer_request

        list(FAMILIES), list(WORKLOADS)  # found once, and not by every child
    except Exception as error:
        channel.send(Refused(f"{type(error).__name__}: {error}"))
        return 1
    if FRAMEWORKS[arguments.framework].backend == "tensorflow":
        # AutoGraph leaves a file for each function where a child does not end by itself: in this
        # folder, which goes with the worker. PyTorch keeps what is compiled once for a machine in
        # the usual one.
        tempfile.tempdir = os.getcwd()
    channel.send(Ready(PROTOCOL_VERSION))
    serve(channel, lambda point, report: answer_request(point, framework, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
