"""`python -m paradnn.worker --framework tensorflow`: import the framework once, then fork a child for each point.

The import costs seconds and is paid once; the fork costs milliseconds and gives each point a process of its own: its
own memory peak, no graph left over, and a crash that ends that child alone. No device is touched before the fork,
since neither a GPU context nor a thread pool survives it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from paradnn.worker import frameworks
from paradnn.worker.fork_server import die_with_parent, serve
from paradnn.worker.protocol import PROTOCOL_VERSION, Channel
from paradnn.worker.versions import versions


def main() -> int:
    """Serve points until standard input ends; 1 when the framework cannot be imported."""
    parser = argparse.ArgumentParser(prog="python -m paradnn.worker", description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=frameworks.NAMES, default="tensorflow")
    parser.add_argument("--driver", type=int, help="process that reads the answers; the worker ends with it")
    arguments = parser.parse_args()
    die_with_parent(driver=arguments.driver)
    # Whatever the framework prints goes to standard error: standard output is the protocol's.
    channel = Channel(os.dup(1))
    os.dup2(2, 1)
    start = time.perf_counter()
    try:
        framework = frameworks.load(arguments.framework)
        from paradnn.worker.point import answer
    except Exception as error:
        channel.send("failed", reason=f"{type(error).__name__}: {error}")
        return 1
    channel.send(
        "ready",
        protocol=PROTOCOL_VERSION,
        seconds=time.perf_counter() - start,
        versions=versions(arguments.framework),
        python=sys.executable,
    )
    serve(channel, lambda request, report: answer(request, framework, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
