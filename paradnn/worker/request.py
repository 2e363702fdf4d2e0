"""Answer one request in a forked child: measure a configuration, or the machine's peak rates.

Every Python exception becomes an outcome, such as "crash", with a one-line reason. If the process
itself dies, the driver determines the outcome from the exit status.
"""

import re
import traceback
from collections.abc import Mapping
from typing import Any

from paradnn.core.errors import PointEnded
from paradnn.core.messages import Answer
from paradnn.core.workload import requested_workload
from paradnn.worker.fork_server import Report
from paradnn.worker.frameworks import Framework
from paradnn.worker.peak_rates import measure_peak_rates
from paradnn.worker.point import PointRun
from paradnn.worker.workload import WorkerSide

_MAX_REASON_CHARS = 300
_BOLD = re.compile(r"\x1b\[\d*m")


def answer_request(request: Mapping[str, Any], framework: Framework, report: Report) -> Answer:
    """Measure a configuration or the machine's peak rates, and return the outcome and all results.

    Exceptions are not raised; the outcome and the reason of the answer state them.

    Args:
        request: The configuration to measure, as nested mappings of plain values. If its `task` is
            "ceilings", the machine's peak FLOP/s and memory bandwidth are measured instead.
        framework: The framework, already imported.
        report: Called as each phase begins, with the name of the phase and the answer to use if
            this process dies in the phase; None if no answer is complete.
    """
    run = PointRun(request, framework, report)
    try:
        if run.turn:
            run.turn.wait()
        _measure(run)
        run.note(outcome="ok")
    except Exception as error:
        outcome, reason = _classify(error, run)
        run.note(outcome=outcome, reason=reason)
    except SystemExit as error:
        run.note(outcome="unavailable", reason=_exit_reason(error, run))
    if run.answered.peak_memory_bytes is None:
        run.note_own_memory()
    return run.answered


def _measure(run: PointRun) -> None:
    if run.request.get("task") == "ceilings":
        run.open_devices()
        meter = run.energy_meter()
        run.note(peak_rates=measure_peak_rates(run.request, run.framework, run.phases, meter))
        return
    work = requested_workload(run.request).configured(run.request)
    worker_side = work.role(WorkerSide)
    worker_side.open_devices(run)
    worker_side.measure(run)


def _classify(error: Exception, run: PointRun) -> tuple[str, str]:
    """Return the outcome, such as "oom_host", and the one-line reason of an exception.

    If the exception passed through a file of the user, the reason names the line in that file.

    Args:
        error: The exception that ended the measurement.
        run: The state of the measurement.
    """
    if isinstance(error, PointEnded):
        return error.outcome, str(error)
    phase = run.phases.current
    reason = f"{phase}: {type(error).__name__}: {_first_line(error)}".rstrip(": ")
    reason += _user_location(error, run.request["model"].get("build"))
    if isinstance(error, MemoryError):
        return "oom_host", reason
    traceback.print_exc()
    outcome = run.framework.out_of_memory(error)
    if outcome:
        return outcome, reason
    if phase == "compile":
        return "compile_error", reason
    return "crash", reason


def _exit_reason(error: SystemExit, run: PointRun) -> str:
    location = _user_location(error, run.request["model"].get("build"))
    return (
        f"{run.phases.current}: the model's code ends the process with SystemExit({error.code!r})"
        f"{location}: raise a different exception instead"
    )


def _first_line(error: Exception) -> str:
    """Return the first line of the framework's message, which names the operation.

    Keras inserts a line, partly in bold, before the framework's message. This function skips it.
    """
    lines = [line for line in _BOLD.sub("", str(error)).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        del lines[0]
    return lines[0][:_MAX_REASON_CHARS] if lines else ""


def _user_location(error: BaseException, build: str | None) -> str:
    """Return " (FILE, line N)" for the innermost frame in the user's file; "" without such a frame.

    Args:
        error: The exception.
        build: The user's function that builds the model, as FILE:FUNCTION; None if ParaDnn builds
            the model.
    """
    if not build:
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if build.startswith(f"{frame.filename}:"):
            file_name = frame.filename.rpartition("/")[2]
            return f" ({file_name}, line {frame.lineno})"
    return ""
