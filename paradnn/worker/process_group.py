"""The other processes of a point whose devices do not share one: forked from its own, and gone with it.

They build the same step and then do as they are told through a pipe each: so many steps, or say how much memory was
taken. Collectives keep the steps of all processes together, so none can go on without the others: when one ends that
should not, the kernel ends the point's own process (SIGIO), whatever that is waiting for, and the driver says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from paradnn.worker.fork_server import die_with_parent
from paradnn.worker.frameworks import Step
from paradnn.worker.profile.shapes import Cost

__all__ = ["PeerFailed", "Peers", "Together", "obey"]

#: What a peer is asked for, beside a number of steps.
_PEAK = "peak"
#: Seconds that a peer which failed leaves the point's own process to say so.
_GRACE = 10.0
#: Seconds to wait for what a peer says of its failure, once this process has failed.
_LAST_WORD = 2.0


class PeerFailed(Exception):
    """A peer ended with an outcome of its own."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome = outcome
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Peers:
    """Processes 1 to `count` - 1 of a point; this one is number 0.

    `serve(rank, channel)` runs in each and returns when the channel ends; a PeerFailed that it raises is told here.
    """

    def __init__(self, count: int, serve: Callable[[int, Connection], None]) -> None:
        self._channels: list[Connection] = []
        self._lives: list[int] = []
        self._pids: list[int] = []
        for rank in range(1, count):
            ours, theirs = Pipe()
            life, held = os.pipe()
            point = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.close(life)
                _live(rank, point, theirs, [ours, *self._channels], serve)
            theirs.close()
            os.close(held)
            self._channels.append(ours)
            self._lives.append(life)
            self._pids.append(pid)
        for life in self._lives:
            _end_with(life)

    def tell(self, steps: int) -> None:
        """Let every peer run so many steps."""
        for channel in self._channels:
            self._send(channel, steps)

    def answers(self) -> list[Any]:
        """What every peer answers to what it was told; raises PeerFailed."""
        return [self._receive(channel) for channel in self._channels]

    def peak_bytes(self) -> list[int | None]:
        """The peak resident memory of every peer."""
        for channel in self._channels:
            self._send(channel, _PEAK)
        return self.answers()

    def failure(self) -> PeerFailed | None:
        """What a peer said of its own failure, waiting a moment for it."""
        deadline = time.monotonic() + _LAST_WORD
        for channel in self._channels:
            with contextlib.suppress(EOFError, OSError):
                while channel.poll(max(0.0, deadline - time.monotonic())):
                    word = channel.recv()
                    if isinstance(word, PeerFailed):
                        return word
        return None

    def end(self) -> None:
        """Kill the peers; nothing more is asked of them."""
        for life in self._lives:
            os.close(life)
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)

    def _send(self, channel: Connection, word: Any) -> None:
        try:
            channel.send(word)
        except OSError as error:
            raise self.failure() or PeerFailed("crash", f"a process of the point is gone: {error}") from error

    def _receive(self, channel: Connection) -> Any:
        try:
            word = channel.recv()
        except (EOFError, OSError):
            raise PeerFailed("crash", "a process of the point ended without a word") from None
        if isinstance(word, PeerFailed):
            raise word
        return word


class Together:
    """A step of all processes at once; its loss is the mean of theirs, each of as many examples."""

    def __init__(self, step: Step, peers: Peers) -> None:
        self._step = step
        self._peers = peers

    def run(self, steps: int) -> float | None:
        """See `paradnn.worker.frameworks.Step`: every process has run its steps and waited for its devices."""
        self._peers.tell(steps)
        losses = [self._step.run(steps), *self._peers.answers()]
        known = [loss for loss in losses if loss is not None]
        return sum(known) / len(known) if known else None

    def kernel_cost(self, name: str, kind: str) -> Cost:
        """See `paradnn.worker.frameworks.Step`; kernels are traced in this process alone."""
        return self._step.kernel_cost(name, kind)


def obey(channel: Connection, step: Step, peak: Callable[[], int | None]) -> None:
    """Run as many steps as the channel says, until it ends."""
    with contextlib.suppress(EOFError):
        while True:
            word = channel.recv()
            channel.send(peak() if word == _PEAK else step.run(word))


def _end_with(life: int) -> None:
    """Let the kernel end this process by SIGIO when the other end of a pipe, a peer's, is closed.

    Python cannot do it: a framework that waits for a process which is gone may hold the interpreter's lock for ever.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _live(
    rank: int, point: int, channel: Connection, others: list[Connection], serve: Callable[[int, Connection], None]
) -> None:
    """A peer's whole life; it leaves without the clean-up of the process that it was forked from."""
    code = 1
    try:
        die_with_parent(point)
        for other in others:
            other.close()
        serve(rank, channel)
        code = 0
    except PeerFailed as failure:
        with contextlib.suppress(OSError):
            channel.send(failure)
        time.sleep(_GRACE)
        print(failure, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
