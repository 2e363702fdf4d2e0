"""The other processes of a point whose devices do not share one, and gone with it: forked from its own, or on other
hosts (`paradnn.worker.remote`).

Each builds the same step and then serves requests through a channel of its own: to run so many steps, or to report its
memory. Collectives keep the steps of all processes together, so none can go on without the others: when one exits
that should not, the kernel kills the point's own process (SIGIO), whatever that is waiting for; the driver reports it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from paradnn.worker.errors import Ended
from paradnn.worker.fork_server import die_with_parent
from paradnn.worker.frameworks import Step
from paradnn.worker.memory import MemoryMeter, Taken
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.remote_process import RemoteProcess

__all__ = [
    "GroupStep",
    "ProcessGroup",
    "RankFailed",
    "die_with",
    "patience_of",
    "run_rank",
    "serve_steps",
    "silent",
    "truncated",
]

#: What a process is asked for, beside a number of steps.
_COMPILED, _MEMORY = "compiled", "memory"
#: Seconds without any answer after which a peer counts as gone.
_LONGEST = 30.0
#: Seconds that a process which failed leaves the point's own process to report it.
_GRACE = 10.0
#: Seconds to wait for another process to report its failure, once this one has failed.
_REPORT_SECONDS = 2.0


class RankFailed(Ended):
    """Another process of the group failed with an outcome of its own."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome = outcome
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def patience_of(point: Mapping[str, Any]) -> float:
    """Seconds to wait for an answer: less than the driver waits for the point, so that the reason names the peer."""
    return float(min(_LONGEST, 0.5 * point["measure"]["timeout"]))


def silent(peer: str, seconds: float) -> RankFailed:
    """The outcome of a peer that does not answer."""
    return RankFailed("timeout", f"{peer} did not answer within {seconds:g} s")


def truncated(peer: str, got: int, wanted: int) -> RankFailed:
    """The outcome of a message that ends too early."""
    return RankFailed("crash", f"{peer} closed the connection after {got:,} of {wanted:,} bytes of a message")


class ProcessGroup:
    """Processes 1 to `count` - 1 of a point; this one is number 0.

    `serve(rank, channel)` runs in each of this host and returns when the channel closes; a RankFailed there is raised
    here too. `elsewhere` are the last ones, those on other hosts, which are there already.
    """

    def __init__(
        self, count: int, serve: Callable[[int, Connection], None], elsewhere: Sequence[RemoteProcess] = ()
    ) -> None:
        self._channels: list[Connection] = [each.channel for each in elsewhere]
        self._lives: list[int] = [each.life for each in elsewhere]
        self._pids: list[int] = []
        for rank in range(1, count - len(elsewhere)):
            ours, child = Pipe()
            life, held = os.pipe()
            point = os.getpid()
            pid = os.fork()
            if pid == 0:
                # Those of earlier ranks too: a pipe that is open here would still send its signal when we close it.
                for each in (life, *self._lives):
                    os.close(each)
                run_rank(rank, point, child, [ours, *self._channels], serve)
            child.close()
            os.close(held)
            self._channels.append(ours)
            self._lives.append(life)
            self._pids.append(pid)
        for life in self._lives:
            die_with(life)

    def start(self, steps: int) -> None:
        """Let every other process run so many steps."""
        for channel in self._channels:
            self._send(channel, steps)

    def results(self) -> list[Any]:
        """What every other process gives for its last request; raises RankFailed."""
        return [self._receive(channel) for channel in self._channels]

    def compiled(self) -> None:
        """Tell every other process that the steps that count begin."""
        self._ask(_COMPILED)

    def memory(self) -> list[Taken]:
        """What every other process took."""
        return self._ask(_MEMORY)

    def _ask(self, request: str) -> list[Any]:
        for channel in self._channels:
            self._send(channel, request)
        return self.results()

    def failure(self) -> RankFailed | None:
        """The failure that another process reports, waiting a moment for it."""
        deadline = time.monotonic() + _REPORT_SECONDS
        for channel in self._channels:
            with contextlib.suppress(EOFError, OSError):
                while channel.poll(max(0.0, deadline - time.monotonic())):
                    result = channel.recv()
                    if isinstance(result, RankFailed):
                        return result
        return None

    def close(self) -> None:
        """Kill the other processes; nothing more is asked of them."""
        for life in self._lives:
            os.close(life)
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)

    def _send(self, channel: Connection, request: Any) -> None:
        try:
            channel.send(request)
        except OSError as error:
            raise self.failure() or RankFailed("crash", f"a process of the point is gone: {error}") from error

    def _receive(self, channel: Connection) -> Any:
        try:
            result = channel.recv()
        except (EOFError, OSError):
            raise RankFailed("crash", "a process of the point exited without a report") from None
        if isinstance(result, RankFailed):
            raise result
        return result


class GroupStep:
    """A step of all processes at once; its loss is the mean of their losses, as each has as many examples."""

    def __init__(self, step: Step, group: ProcessGroup) -> None:
        self._step = step
        self._group = group

    def run(self, steps: int) -> float | None:
        """See `paradnn.worker.frameworks.Step`: every process has run its steps and waited for its devices."""
        self._group.start(steps)
        losses = [self._step.run(steps), *self._group.results()]
        known = [loss for loss in losses if loss is not None]
        return sum(known) / len(known) if known else None

    def compilations(self) -> int:
        """See `paradnn.worker.frameworks.Step`; the other processes compile the same at the same time."""
        return self._step.compilations()

    def compile_note(self) -> str | None:
        """See `paradnn.worker.frameworks.Step`."""
        return self._step.compile_note()

    def product_flops(self) -> dict[str, float]:
        """See `paradnn.worker.frameworks.Step`; to look runs no step, since the others would have to run it too."""
        return self._step.product_flops()

    def kernel_cost(self, name: str, kind: str) -> Cost:
        """See `paradnn.worker.frameworks.Step`; kernels are traced in this process alone."""
        return self._step.kernel_cost(name, kind)


def serve_steps(channel: Connection, step: Step, meter: MemoryMeter) -> None:
    """Run as many steps as are asked for, or report the memory, until the channel closes."""
    own: dict[Any, Callable[[], Any]] = {_COMPILED: meter.compiled, _MEMORY: meter.taken}
    with contextlib.suppress(EOFError):
        while True:
            request = channel.recv()
            channel.send(own[request]() if request in own else step.run(request))


def die_with(life: int) -> None:
    """Let the kernel kill this process by SIGIO when the other end of a pipe or a connection is closed: its holder has
    exited. Nothing is sent over it, which would be a signal too.

    Python cannot do it: a framework that waits for a process which is gone may hold the interpreter's lock for ever.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def run_rank(
    rank: int, point: int, channel: Connection, others: list[Connection], serve: Callable[[int, Connection], None]
) -> None:
    """What a forked process does; it exits without the clean-up of the process that it was forked from."""
    code = 1
    try:
        die_with_parent(point)
        for other in others:
            other.close()
        serve(rank, channel)
        code = 0
    except RankFailed as failure:
        with contextlib.suppress(OSError):
            channel.send(failure)
        time.sleep(_GRACE)
        print(failure, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
