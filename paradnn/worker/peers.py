"""The other processes of a point whose devices do not share one: forked from its own, and gone with it.

They build the same step and then do as they are told through a pipe each: so many steps, or say how much memory was
taken. Collectives keep the steps of all processes together. When a process ends that should not, so does the point:
in the same way where a signal ended it, so that the driver judges it as it would judge the point's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from paradnn.worker.forking import die_with_parent
from paradnn.worker.frameworks import Step
from paradnn.worker.profile.shapes import Cost

__all__ = ["PeerFailed", "Peers", "Together", "obey"]

#: What a peer is asked for, beside a number of steps.
_PEAK = "peak"
#: Seconds that this process has to answer for itself when a peer has ended with an exit code.
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
        self._count = count
        self._channels: list[Connection] = []
        self._watchers: list[threading.Thread] = []
        self._pids: list[int] = []
        self._ending = False
        forked = []
        for rank in range(1, count):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                _live(rank, theirs, [ours, *self._channels], serve)
            theirs.close()
            self._channels.append(ours)
            forked.append((rank, pid))
        # Threads only now: none of them survives a fork.
        for rank, pid in forked:
            self._pids.append(pid)
            watcher = threading.Thread(target=self._watch, args=(rank, pid), daemon=True)
            watcher.start()
            self._watchers.append(watcher)

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
            try:
                while channel.poll(max(0.0, deadline - time.monotonic())):
                    word = channel.recv()
                    if isinstance(word, PeerFailed):
                        return word
            except (EOFError, OSError):
                self._let_watchers_speak()
        return None

    def end(self) -> None:
        """Kill the peers; nothing more is asked of them."""
        self._ending = True
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for watcher in self._watchers:
            watcher.join(_LAST_WORD)

    def _send(self, channel: Connection, word: Any) -> None:
        try:
            channel.send(word)
        except OSError as error:
            raise self.failure() or PeerFailed("crash", f"a process of the point is gone: {error}") from error

    def _receive(self, channel: Connection) -> Any:
        try:
            word = channel.recv()
        except (EOFError, OSError):
            self._let_watchers_speak()
            raise PeerFailed("crash", "a process of the point ended without a word") from None
        if isinstance(word, PeerFailed):
            raise word
        return word

    def _let_watchers_speak(self) -> None:
        """A channel ended, so a process did: where a signal ended it, its watcher ends this one in the same way."""
        for watcher in self._watchers:
            watcher.join(_LAST_WORD)

    def _watch(self, rank: int, pid: int) -> None:
        """Wait for a peer's end; one that nobody asked for is the point's."""
        _, status = os.waitpid(pid, 0)
        if self._ending:
            return
        name = f"process {rank + 1} of {self._count}"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            print(f"{name} was ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), number)
        time.sleep(_GRACE)
        words = self.failure() or f"ended with exit code {os.WEXITSTATUS(status)}"
        print(f"{name}: {words}", file=sys.stderr, flush=True)
        os._exit(1)


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


def _live(rank: int, channel: Connection, others: list[Connection], serve: Callable[[int, Connection], None]) -> None:
    """A peer's whole life; it leaves without the clean-up of the process that it was forked from."""
    code = 1
    try:
        die_with_parent()
        for other in others:
            other.close()
        serve(rank, channel)
        code = 0
    except PeerFailed as failure:
        with contextlib.suppress(OSError):
            channel.send(failure)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
