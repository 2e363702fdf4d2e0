"""How a point can end, and which ending is which outcome.

Out of memory is a result, not an accident: the paper's heat maps need it. What the child says of
itself is believed; what ended its process is judged here from the outside.
"""

import signal
from dataclasses import dataclass, field

from paradnn.core.messages import Answer, WorkloadMessage
from paradnn.core.tables import rows

#: Every outcome, with what it means.
OUTCOMES = {row["outcome"]: row["means"] for row in rows(__file__)}

#: Outcomes that another setting of the limits could change.
LIMIT_OUTCOMES = ("oom_host", "oom_predicted", "timeout")

#: What ends a point's own process when another one of it is gone (`paradnn.worker.process_group`).
_PEER_GONE = signal.SIGIO

_ALLOCATION_FAILED = (
    "std::bad_alloc",
    "MemoryError",
    "Cannot allocate memory",
    "cannot allocate memory",
    "OOM when allocating",
)


@dataclass(frozen=True)
class Ending:
    """How a child's process ended. stopped: by the driver, why; has_eager: what it compiled could
    run without that.
    """

    exit_code: int | None
    signal: int | None
    stopped: str | None
    phase: str
    has_eager: bool = False


@dataclass(frozen=True)
class PointResult:
    """How a process of a point ended as the driver saw it; `answer` is the child's own, None where
    there is none.

    `phases` are seconds by name, `stderr` is the end of what the child wrote, the peak is the one
    seen from outside; `begun` is in Unix seconds, `news` are what the point's kind of work sent
    while it was measured.
    """

    outcome: str
    reason: str | None
    answer: Answer | None = None
    phases: dict[str, float] = field(default_factory=dict)
    stderr: str = ""
    peak_memory_bytes: int | None = None
    begun: float = 0.0
    news: list[WorkloadMessage] = field(default_factory=list)


def classify(
    ending: Ending,
    answer: Answer | None,
    stderr: str,
    timeout: float,
    memory_limit: int | None,
    peak: int,
) -> tuple[str, str | None]:
    """Outcome and one-line reason of a child that exited so.

    `timeout` is in seconds, `memory_limit` and `peak` in bytes; `stderr` is the end of what the
    child wrote.
    """
    if answer:
        return answer.outcome, answer.reason
    if ending.stopped == "timeout":
        if ending.phase == "compile" and ending.has_eager:
            other = ", or set compile=eager"
        else:
            other = ""
        return (
            "timeout",
            f"over {timeout:g} s, in phase {ending.phase}: raise measure.timeout{other}",
        )
    if ending.stopped == "memory":
        return (
            "oom_host",
            f"took {_gib(peak)} in phase {ending.phase}, the limit is {_gib(memory_limit or 0)}",
        )
    last = next(
        (line.strip() for line in reversed(stderr.splitlines()) if line.strip()),
        "nothing on standard error",
    )[:300]
    if any(word in stderr for word in _ALLOCATION_FAILED):
        return "oom_host", f"an allocation failed in phase {ending.phase}: {last}"
    if ending.signal in (signal.SIGKILL, _PEER_GONE) and memory_limit and peak > 0.8 * memory_limit:
        return "oom_host", f"killed by the system in phase {ending.phase} when it held {_gib(peak)}"
    if ending.stopped == "worker":
        return "crash", f"the worker died in phase {ending.phase}"
    if ending.signal == _PEER_GONE:
        return "crash", f"another process of the point exited in phase {ending.phase}: {last}"
    if ending.signal is not None:
        return "crash", f"{signal_name(ending.signal)} in phase {ending.phase}: {last}"
    return "crash", f"exit code {ending.exit_code} in phase {ending.phase}: {last}"


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def signal_name(number: int) -> str:
    """What a signal is called."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
