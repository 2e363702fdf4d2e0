"""Outcomes of a point, and how the end of its process determines the outcome.

Running out of memory is a result, not an error: the heat maps of the paper show it. If the child
process sent an answer, the answer contains the outcome. Otherwise, the driver derives the outcome
from the way in which the process ended.
"""

import signal
from dataclasses import dataclass, field

from paradnn.core.messages import Answer, WorkloadMessage

#: Outcome -> meaning.
OUTCOMES = {
    "ok": "measured",
    "oom_host": "host memory exceeded",
    "oom_device": "device memory exceeded",
    "oom_predicted": (
        "not tried: the analytic memory bound, or a smaller point, shows that memory would not "
        "suffice"
    ),
    "timeout": "measure.timeout exceeded, or target not reached within learn.epochs",
    "compile_error": "the framework could not trace or compile the step",
    "nan": "the loss became NaN or infinite",
    "crash": "the process died, or an unexpected error occurred",
    "unavailable": "the device, software or input is not available here",
    "overload": "the requested load could not be issued or served",
}

#: Outcomes that other limits could change.
LIMIT_OUTCOMES = ("oom_host", "oom_predicted", "timeout")

#: Signal that ends a process of a point after another process of the point has ended
#: (`paradnn.worker.process_group`). Windows, where ParaDnn does not measure, lacks this signal.
_PEER_GONE = getattr(signal, "SIGIO", None)

_ALLOCATION_FAILED = (
    "std::bad_alloc",
    "MemoryError",
    "Cannot allocate memory",
    "cannot allocate memory",
    "OOM when allocating",
)
#: Share of the memory limit above which a killed process is assumed to have run out of memory.
_NEARLY_FULL = 0.8
_MAX_STDERR_CHARS = 300


@dataclass(frozen=True)
class Ending:
    """How a child process that measured a configuration ended.

    Attributes:
        exit_code: The exit code; None if a signal ended the process.
        signal: Number of the signal that ended the process; None if it exited.
        stopped: Why the driver stopped the process: "timeout", "memory" or "worker" (the worker had
            ended); None if the driver did not stop it.
        phase: The phase in which the process ended.
        has_eager: Whether the compiled step could also run eagerly.
    """

    exit_code: int | None
    signal: int | None
    stopped: str | None
    phase: str
    has_eager: bool = False


@dataclass(frozen=True)
class PointResult:
    """Result of one process that measured a point (configuration), as the driver observed it.

    Attributes:
        outcome: One of `OUTCOMES`.
        reason: Reason of the outcome in one line; None if the outcome needs no reason.
        answer: The answer of the process; None if it sent no answer.
        phases: Phase -> duration in seconds.
        stderr: Last lines that the process wrote to standard error.
        peak_memory_bytes: Peak of the resident memory that the driver observed, in bytes; None if
            unknown.
        begun: Start of the process in Unix seconds.
        news: Messages that the process sent during the measurement, such as finished epochs.
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
    *,
    timeout: float,
    memory_limit: int | None,
    peak: int,
    was_oom_killed: bool = False,
) -> tuple[str, str | None]:
    """Determine the outcome of a child process that measured a configuration.

    Args:
        ending: How the child ended.
        answer: The answer of the child; None if it sent no answer.
        stderr: The end of the child's standard error.
        timeout: The time limit in seconds.
        memory_limit: The memory limit in bytes; None without a limit.
        peak: The peak of the resident memory that the driver observed, in bytes.
        was_oom_killed: Whether the kernel killed a process for lack of memory in the group or on
            the host. Only processes in the driver's control group during the measurement count.

    Returns:
        One of `OUTCOMES`, and a one-line reason. The reason is None if the answer contains none.
    """
    if answer:
        return answer.outcome, answer.reason
    phase = f"in phase {ending.phase}"
    if ending.stopped == "timeout":
        reason = f"took longer than {timeout:g} s, {phase}: raise measure.timeout"
        if ending.phase == "compile" and ending.has_eager:
            reason += ", or set compile=eager"
        return "timeout", reason
    if ending.stopped == "memory":
        return "oom_host", f"used {_gib(peak)} {phase}; the limit is {_gib(memory_limit or 0)}"
    last_line = _last_line(stderr)
    if any(word in stderr for word in _ALLOCATION_FAILED):
        return "oom_host", f"an allocation failed {phase}: {last_line}"
    if was_oom_killed and (ending.signal in (signal.SIGKILL, _PEER_GONE) or ending.stopped):
        return "oom_host", f"killed by the kernel for lack of memory {phase} at {_gib(peak)}"
    is_nearly_full = memory_limit is not None and peak > _NEARLY_FULL * memory_limit
    if ending.signal in (signal.SIGKILL, _PEER_GONE) and is_nearly_full:
        return "oom_host", f"killed by the system {phase} when it used {_gib(peak)}"
    if ending.stopped == "worker":
        return "crash", f"the worker died {phase}"
    if ending.signal == _PEER_GONE:
        return "crash", f"another process of the point exited {phase}: {last_line}"
    if ending.signal is not None:
        return "crash", f"{signal_name(ending.signal)} {phase}: {last_line}"
    return "crash", f"exit code {ending.exit_code} {phase}: {last_line}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(stderr: str) -> str:
    for line in reversed(stderr.splitlines()):
        if line.strip():
            return line.strip()[:_MAX_STDERR_CHARS]
    return "nothing on standard error"


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
