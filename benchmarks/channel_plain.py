"""Bare loops over gRPC, TCP and gloo, as one would write them by hand; imports nothing of
ParaDnn.

A model is "CASE PATTERN BYTES". A step is a message and its reply (latency), a window of messages
with one reply (bandwidth), or an all-reduce, between two processes of this host.
"""

import argparse
import ctypes
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.turns import Step, take_part

WINDOW = 64


def serve_in_fork(serve: Callable[[], object]) -> None:
    """Run `serve` in a forked process that ends with this one."""
    life, held = os.pipe()
    if os.fork() == 0:
        try:
            os.close(held)
            serve()
            os.read(life, 1)  # it ends when no process has the other end open
        finally:
            os._exit(0)  # a framework's threads may wait for a process that has exited
    os.close(life)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def with_grpc(pattern: str, size: int) -> Callable[[], object]:
    port = free_port()
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

    def serve() -> None:
        import grpc

        server = grpc.server(ThreadPoolExecutor(8), options=options)
        answers = {"Echo": lambda request, context: request, "Take": lambda request, context: b""}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        servers.append(server)  # it stops when its last reference goes

    servers: list[object] = []
    serve_in_fork(serve)
    import grpc

    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
    grpc.channel_ready_future(channel).result(timeout=20)
    echo = channel.unary_unary("/bare/Echo")
    take = channel.unary_unary("/bare/Take")
    payload = os.urandom(size)

    def window() -> None:
        for answer in [take.future(payload) for _ in range(WINDOW)]:
            answer.result()

    return window if pattern == "bandwidth" else lambda: echo(payload)


def with_gloo(pattern: str, size: int) -> Callable[[], object]:
    import torch
    from torch import distributed as dist

    port = free_port()
    values = torch.zeros(size // 4)

    def join(rank: int) -> None:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
        )

    def serve() -> None:
        join(1)
        while True:
            dist.all_reduce(values)

    serve_in_fork(serve)
    join(0)
    return lambda: dist.all_reduce(values)


def receive(connected: socket.socket, into: memoryview) -> bool:
    """Fill `into` with reads of 64 KiB, since reads of 1 MiB take twice as long; return False at
    the end.
    """
    got = 0
    while got < len(into):
        count = connected.recv_into(into[got : got + 65536])
        if not count:
            return False
        got += count
    return True


def with_tcp(pattern: str, size: int) -> Callable[[], object]:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connected, _ = listening.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        into = memoryview(bytearray(size))
        while receive(connected, into):
            connected.sendall(into)

    serve_in_fork(serve)
    connected = socket.create_connection(listening.getsockname())
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    payload = os.urandom(size)
    into = memoryview(bytearray(size))

    def once() -> None:
        connected.sendall(payload)
        receive(connected, into)

    return once


CASES = {"grpc": with_grpc, "tcp": with_tcp, "gloo": with_gloo}


def make(model: str) -> Step:
    case, pattern, size = model.split()
    once = CASES[case](pattern, int(size))

    def run(steps: int) -> float:
        for _ in range(steps):
            once()
        return 0.0

    return Step(run, ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "framework", help="torch: imported once, before the forks; any other is not needed"
    )
    given, _ = parser.parse_known_args()
    if given.framework == "torch":
        __import__("torch")
    # Like ParaDnn, keep freed blocks for the next message. The default behavior of malloc depends
    # on the history of the process.
    for option, size in ((-3, 32 << 20), (-1, 512 << 20)):
        ctypes.CDLL(None).mallopt(option, size)
    take_part(make, parser)


if __name__ == "__main__":
    main()
