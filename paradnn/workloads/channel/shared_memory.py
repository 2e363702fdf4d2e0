"""Messages through shared memory of two processes: the lower bound of transports within a host.

The sender copies a message into a slot, and the receiver copies it out. Two kernel event counters
(eventfd) contain the numbers of full and of free slots, so a waiting process uses no processor
time. With two slots, both processes can copy at the same time.
"""

import mmap
import os
import select
from collections.abc import Mapping
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.worker.frameworks import Step
from paradnn.worker.process_group import reply_timeout_error
from paradnn.workloads.channel.transports import answer_bytes, message_window

_SLOTS = 2


class SharedQueue:
    """A queue of messages from one process to another, in memory that a fork lets them share.

    Args:
        size: Bytes of a message.

    Raises:
        UnavailableError: If the operating system is not Linux, which alone has eventfd.
    """

    def __init__(self, size: int) -> None:
        if not hasattr(os, "eventfd"):
            raise UnavailableError("model.transport=shared_memory needs Linux")
        self._memory = mmap.mmap(-1, _SLOTS * size)
        whole = memoryview(self._memory)
        self._slots = [whole[slot * size : (slot + 1) * size] for slot in range(_SLOTS)]
        self._full = os.eventfd(0, os.EFD_SEMAPHORE)
        self._free = os.eventfd(_SLOTS, os.EFD_SEMAPHORE)
        # Indices of the slots for the next message that this process sends or receives.
        self._next_sent = 0
        self._next_received = 0
        #: Seconds after which waiting for the other process fails; None: never.
        self.patience: float | None = None

    def send(self, message: bytes | memoryview) -> None:
        """Wait for a free slot, and copy a message into the slot.

        Args:
            message: The message, as long as all messages of the queue.

        Raises:
            RankFailed: If no slot becomes free within `patience` seconds.
        """
        self._wait(self._free)
        self._slots[self._next_sent][:] = message
        self._next_sent = (self._next_sent + 1) % _SLOTS
        os.eventfd_write(self._full, 1)

    def receive(self, into: memoryview) -> None:
        """Wait for a message, and copy the message into a buffer.

        Args:
            into: The buffer, as long as a message.

        Raises:
            RankFailed: If no message arrives within `patience` seconds.
        """
        self._wait(self._full)
        into[:] = self._slots[self._next_received]
        self._next_received = (self._next_received + 1) % _SLOTS
        os.eventfd_write(self._free, 1)

    def _wait(self, counter: int) -> None:
        """Wait until a counter is positive, and decrement the counter.

        Args:
            counter: Descriptor of the eventfd that contains the counter.

        Raises:
            RankFailed: If the counter does not become positive within `patience` seconds. If
                `patience` is None, the wait has no limit.
        """
        if self.patience is not None:
            waiting = select.poll()
            waiting.register(counter, select.POLLIN)
            if not waiting.poll(1e3 * self.patience):
                raise reply_timeout_error(
                    "the process at the other end of the shared memory", self.patience
                )
        os.eventfd_read(counter)


class SharedMemoryStep(Step):
    """A step that sends messages to another process through shared memory and waits for an answer.

    With model.pattern=latency, a step sends one message, and the other process returns the whole
    message. With every other pattern, a step sends model.window messages, and the other process
    returns one byte.

    Args:
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
        outgoing: Queue of messages to the other process.
        incoming: Queue of answers from the other process.
        message: Content of every message, model.bytes long.
        patience: Seconds to wait for the other process before a step raises RankFailed.
    """

    def __init__(
        self,
        point: Mapping[str, Any],
        outgoing: SharedQueue,
        incoming: SharedQueue,
        message: bytes,
        patience: float,
    ) -> None:
        self._window = message_window(point)
        self._outgoing = outgoing
        self._incoming = incoming
        self._message = message
        for queue in (outgoing, incoming):
            queue.patience = patience
        self._answer = memoryview(bytearray(answer_bytes(point)))

    def run(self, steps: int) -> None:
        """Run the given number of steps. A step ends when the other process has answered.

        Raises:
            RankFailed: If the other process makes no progress for `patience` seconds.
        """
        for _ in range(steps):
            for _ in range(self._window):
                self._outgoing.send(self._message)
            self._incoming.receive(self._answer)


def serve_queues(point: Mapping[str, Any], requests: SharedQueue, answers: SharedQueue) -> None:
    """Answer the messages of another process until this process ends.

    Args:
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
        requests: Queue from which messages are received.
        answers: Queue to which one answer is sent after each message, or after model.window
            messages if model.pattern is not latency.
    """
    window = message_window(point)
    message = memoryview(bytearray(point["model"]["bytes"]))
    answer = message[: answer_bytes(point)]
    while True:
        for _ in range(window):
            requests.receive(message)
        answers.send(answer)
