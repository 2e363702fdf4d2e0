"""Points whose step is communication, and functions that tests run in separate processes."""

import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from paradnn.workloads.channel.processes import Processes, make_message
from paradnn.workloads.channel.shared_memory import SharedMemoryStep, SharedQueue, serve_queues
from paradnn.workloads.channel.transports import answer_bytes
from tests.processes import PATIENCE, children_of, wait_for

MODEL = {
    "name": "channel",
    "transport": "tcp",
    "pattern": "latency",
    "bytes": 1000,
    "window": 4,
    "port": 0,
    "serialized": False,
}


def point(**model: Any) -> dict[str, Any]:
    return {"model": MODEL | model, "seed": 0, "measure": {"timeout": 10.0}}


def exchange_by_shared_memory(point: dict[str, Any]) -> None:
    """Exchange messages with a thread that serves until its process ends."""
    size = point["model"]["bytes"]
    message = make_message(size, 7)
    there = SharedQueue(size)
    back = SharedQueue(answer_bytes(point))
    threading.Thread(target=serve_queues, args=(point, there, back), daemon=True).start()
    step = SharedMemoryStep(point, there, back, message, PATIENCE)

    step.run(20)

    is_echoed = point["model"]["pattern"] == "latency"
    assert bytes(step._answer) == (message if is_echoed else message[:1])


def measure_with_server(point: dict[str, Any], server_pid: int) -> None:
    """Run five steps of a point whose second process is a child of a server."""
    with Processes(point) as processes:
        processes.step().run(5)
        assert wait_for(lambda: len(children_of(server_pid)) == 1)


def measure_until_killed(point: dict[str, Any], sender: Connection) -> None:
    """Report that a message made a round trip, then wait until killed.

    While this process waits, its connection to the second process stays open and idle.
    """
    processes = Processes(point)
    processes.step().run(1)
    sender.send("connected")
    time.sleep(1000)
