"""python -m benchmarks.channel_plain grpc|gloo|tcp PATTERN BYTES SECONDS: a bare loop, as one would write it by hand.

Nothing here is ParaDnn's. Two processes of this host; prints the median over blocks of some 0.05 s of the us that a
message takes one way (latency: half a round trip), or an all-reduce.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def median_us(once: Callable[[], object], per_step: int, seconds: float) -> float:
    """us of a message, after a quarter of the time has passed as warm-up."""
    end = time.perf_counter() + seconds / 4
    steps = 0
    while time.perf_counter() < end:
        once()
        steps += 1
    block = max(1, int(steps / (seconds / 4) * 0.05))
    blocks = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(block):
            once()
        blocks.append((time.perf_counter() - start) / block)
    return 1e6 * statistics.median(blocks) / per_step


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def with_grpc(size: int, seconds: float) -> float:
    port, options = free_port(), [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    pid = os.fork()
    import grpc

    if pid == 0:
        server = grpc.server(ThreadPoolExecutor(8), options=options)
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Echo": handler}),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        server.wait_for_termination()
    try:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        grpc.channel_ready_future(channel).result(timeout=20)
        call, payload = channel.unary_unary("/bare/Echo"), os.urandom(size)
        return median_us(lambda: call(payload), 2, seconds)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def with_gloo(size: int, seconds: float) -> float:
    port, parent = free_port(), os.getpid()
    pid = os.fork()
    import torch
    from torch import distributed as dist

    rank = int(os.getpid() != parent)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    values = torch.zeros(size // 4)
    if rank:
        while True:
            try:
                dist.all_reduce(values)
            except RuntimeError:
                os._exit(0)
    try:
        return median_us(lambda: dist.all_reduce(values), 1, seconds)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def with_tcp(size: int, seconds: float) -> float:
    listening = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        connected, _ = listening.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        into = bytearray(size)
        while connected.recv_into(into, size, socket.MSG_WAITALL):
            connected.sendall(into)
        os._exit(0)
    try:
        connected = socket.create_connection(listening.getsockname())
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        payload, into = os.urandom(size), bytearray(size)

        def once() -> None:
            connected.sendall(payload)
            connected.recv_into(into, size, socket.MSG_WAITALL)

        return median_us(once, 2, seconds)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    transport, _, size, seconds = sys.argv[1:]
    run = {"grpc": with_grpc, "gloo": with_gloo, "tcp": with_tcp}[transport]
    print(run(int(size), float(seconds)), flush=True)
    os._exit(0)  # a framework's threads may wait for a process that is gone
