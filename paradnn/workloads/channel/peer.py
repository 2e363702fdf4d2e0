"""`python -m paradnn.worker.communication.peer --port 5000`: answer the messages of another host.

    node2$ python -m paradnn.worker.communication.peer --host 0.0.0.0 --port 5000
    node1$ python -m paradnn.train model=channel model.peer=node2:5000

It echoes what comes from any program that can reach the port, and keeps nothing: no name or password is asked for. The
standard library is enough for TCP; gRPC needs grpcio. It runs until it is stopped.
"""

from __future__ import annotations

import argparse
import sys
import threading

from paradnn.worker.addresses import LOOPBACK, listen, own_address, port_number, with_port
from paradnn.worker.errors import Unavailable
from paradnn.worker.meters import keep_freed
from paradnn.workloads.channel.rpc import serve_calls
from paradnn.workloads.channel.sockets import serve_connections

_MOST_BYTES = 2**30


def main() -> int:
    """Serve until stopped; 2 where the port is taken."""
    parser = argparse.ArgumentParser(
        prog="python -m paradnn.worker.communication.peer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host", type=own_address, default=LOOPBACK, help="address to listen on (default: 127.0.0.1, this host alone)"
    )
    parser.add_argument("--port", type=port_number, default=0, help="0: any that is free, which is printed (default)")
    parser.add_argument("--transport", choices=("tcp", "grpc"), default="tcp")
    parser.add_argument("--most-bytes", type=_size, default=_MOST_BYTES, help="of a message over tcp (default: 1 GiB)")
    given = parser.parse_args()
    keep_freed()
    try:
        listening = listen(given.port, given.host, "--port")
        port = listening.getsockname()[1]
        if given.transport == "grpc":
            listening.close()
            server = serve_calls(with_port(given.host, port))
    except Unavailable as error:
        print(f"error: --port: {error}", file=sys.stderr)
        return 2
    print(f"listening on {with_port(given.host, port)} for {given.transport}", flush=True)
    try:
        if given.transport == "grpc":
            server.wait_for_termination()
        else:
            serving = threading.Thread(target=serve_connections, args=(listening, given.most_bytes), daemon=True)
            serving.start()
            serving.join()
    except KeyboardInterrupt:
        return 130
    return 0


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; write a whole number, 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
