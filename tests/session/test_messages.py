"""Messages on a real pipe: invalid messages and other protocol versions fail with a reason."""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.outcome import PointResult
from paradnn.core import messages
from paradnn.core.channel import MessageError, encode, plain, read_event
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from tests.processes import started

TIMING = messages.Timing(
    4, [messages.Trial(1, 0.5)], [0.25], [0.25, 0.5], True, "why", float("inf")
)
TABLE = messages.OperationTable(["type", "share"], [["MatMul", 0.5], ["(no operation)", None]])
ANSWER = messages.Answer(
    "ok",
    None,
    {"measure": 0.5},
    step_memory_bytes=1,
    measurement=messages.Measurement(
        10,
        messages.Compilation([2.0, 0.5], [1, 0], None),
        {"float32": 1.0},
        None,
        TIMING,
        1.5,
        "rapl",
    ),
    input=messages.InputMeasurement([0.1], [0.1], [0.2], [messages.PipelinePart(8, 0.5, 0.25)], 2),
    profile=messages.Profile(TABLE, TABLE, 0.5, 0.25, 100.0, {"float32": 1.0}, 3, 1.5),
)


def event(name: str, message: Any) -> dict[str, Any]:
    return {"event": name, **plain(message)}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ANSWER, id="with-profile"),
        pytest.param(
            replace(ANSWER, profile=messages.NoProfile("no reason", True)), id="without-profile"
        ),
        pytest.param(messages.Answer("nan", "x", {}), id="failed"),
    ],
)
def test_a_decoded_answer_equals_the_encoded_one(answer: messages.Answer) -> None:
    measure_with_worker = messages.PointAnswered(7, answer)
    begun = messages.PhaseBegun("profile", answer)

    line = encode(event("result", measure_with_worker))

    assert line.count(b"\n") == 1
    assert read_event(line) == measure_with_worker
    assert read_event(encode(event("phase", begun))) == begun


def result_with(path: str, value: Any) -> dict[str, Any]:
    """Return a result message with one changed field; the value `...` removes the field.

    Args:
        path: Keys and indices that lead to the field, separated by dots.
        value: New value of the field.
    """
    content = event("result", messages.PointAnswered(1, ANSWER))
    *parents, last = path.split(".")
    parent: Any = content
    for key in parents:
        parent = parent[int(key)] if key.isdigit() else parent[key]
    if value is ...:
        del parent[last]
    else:
        parent[last] = value
    return content


#: Malformed messages, each with a part of the expected error.
MALFORMED = [
    pytest.param(
        result_with("answer.measurement.timing.blocks", []),
        "measurement.timing: blocks are missing, or the time of a block is implausible",
        id="no-block",
    ),
    pytest.param(
        result_with("answer.measurement.timing.blocks", [0.5, 1.0e-320]),
        "measurement.timing: blocks are missing, or",
        id="block-without-time",
    ),
    pytest.param(
        result_with("answer.measurement.timing.blocks", [0.5, "nan"]),
        'measurement.timing.blocks[1]="nan" is not finite',
        id="block-nan",
    ),
    pytest.param(
        result_with("answer.input.alone.0.examples", 0),
        "input: measurements of the pipeline alone are missing, or",
        id="pipeline-without-examples",
    ),
    pytest.param(
        result_with("answer.input.free_step_seconds", []),
        "input: step times are missing or not positive, or there",
        id="no-free-step",
    ),
    pytest.param(
        result_with("answer.input.fed_step_seconds", [0.0]),
        "input: step times are missing or not positive, or there",
        id="fed-step-without-time",
    ),
    pytest.param(result_with("extra", 3), "result.extra=3 is an unknown field", id="unknown-field"),
    pytest.param(
        result_with("answer.phases.build", "long"),
        'result.answer.phases.build="long" is not a number',
        id="text-for-number",
    ),
    pytest.param(
        result_with("answer.measurement", None),
        "result.answer: the outcome is ok, but nothing was measured",
        id="no-measurement",
    ),
    pytest.param(
        result_with("answer.measurement.parameters", 1.5),
        "result.answer.measurement.parameters=1.5 is not an integer",
        id="fraction-for-integer",
    ),
    pytest.param(
        result_with("answer.measurement.timing.steady", 1),
        "result.answer.measurement.timing.steady=1 is not true or false",
        id="integer-for-boolean",
    ),
    pytest.param(
        result_with("answer.measurement.timing.calibration.0.steps", True),
        "calibration[0].steps=true is not an integer",
        id="boolean-for-integer",
    ),
    pytest.param(
        result_with("answer.profile.operations.data", [[1]]),
        "profile.operations: a row does not have 2 values, one per column",
        id="short-row",
    ),
    pytest.param(
        result_with("answer.profile.product_types", ["x"]),
        'profile.product_types=["x"] is not an object',
        id="list-for-object",
    ),
    pytest.param(result_with("id", ...), "result.id is missing", id="missing-field"),
    pytest.param(
        result_with("answer.phases.build", 10**400), "answer.phases.build=1000", id="huge-number"
    ),
    pytest.param(
        {"event": "other"}, 'event="other" is not one of ready, refused', id="unknown-event"
    ),
]
#: Source of a worker that prints lines before and after it reads the request. It runs `first` at
#: its start, and `then` after the last line.
WORKER = """#!{python}
import sys
{first}
before, after = {lines!r}
print(*before, sep="\\n", flush=True)
sys.stdin.readline()
print(*after, sep="\\n", flush=True)
{then}
sys.stdin.read()
"""
READY = {"event": "ready", "protocol": messages.PROTOCOL_VERSION}
EXITED = {"event": "exited", "id": 1, "exit_code": 0, "signal": None, "max_resident_bytes": 5}
UNCLEAR = "the worker sent an invalid message: "
VERSION_ERROR = (
    f"this process uses protocol version {messages.PROTOCOL_VERSION}; "
    "install the same version of ParaDnn on both sides"
)
#: The first message of a worker, its message after the request, the expected outcome of the point,
#: and a part of the expected reason.
ENDINGS = [
    pytest.param(
        READY, result_with("id", ...), "crash", f"{UNCLEAR}result.id is missing", id="missing-field"
    ),
    pytest.param(
        READY,
        result_with("answer.outcome", "great"),
        "crash",
        "result.answer.outcome='great' is not an outcome",
        id="unknown-outcome",
    ),
    pytest.param(
        READY,
        {"event": "started", "id": 7, "pid": 1},
        "crash",
        f"{UNCLEAR}started.id=7: expected the request's id 1",
        id="other-request",
    ),
    pytest.param(
        READY,
        {"event": "refused", "reason": "why"},
        "crash",
        "it rejects the request: why",
        id="refused",
    ),
    pytest.param(READY, '{"event": "result", "id": 1', "crash", "is not JSON", id="cut"),
    pytest.param(READY, "[" * 100_000, "crash", "is not JSON", id="deeply-nested"),
    pytest.param(READY, "\\xff", "crash", "is not JSON", id="no-json"),
    # The ready message of version 1 had more fields; another version may have fewer.
    pytest.param(
        {**READY, "protocol": 1, "seconds": 3.0},
        EXITED,
        "unavailable",
        f"ready.protocol=1: {VERSION_ERROR}",
        id="version-1",
    ),
    pytest.param(
        {**READY, "protocol": messages.PROTOCOL_VERSION + 1},
        EXITED,
        "unavailable",
        VERSION_ERROR,
        id="next-version",
    ),
    pytest.param(
        {"event": "ready"},
        EXITED,
        "unavailable",
        f"ready.protocol=null: {VERSION_ERROR}",
        id="no-version",
    ),
]


@pytest.fixture
def measure_with_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that measures a point with a worker that sends given lines.

    The function takes the lines before and after the request, as text or as objects.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def measure(
        before: list[Any], after: list[Any], first: str = "", then: str = ""
    ) -> PointResult:
        lines = [
            [line if isinstance(line, str) else json.dumps(line) for line in part]
            for part in (before, after)
        ]
        python = tmp_path / "python"
        python.write_text(WORKER.format(python=sys.executable, lines=lines, first=first, then=then))
        python.chmod(0o755)
        with WorkerPool() as pool:
            return pool.measure(
                WorkerKey(str(python), "tensorflow", None, "cpu", ()),
                {},
                Limits(20, None),
                lambda _: None,
            )

    return measure


@pytest.mark.parametrize(("message", "fault"), MALFORMED)
def test_the_error_of_a_malformed_message_names_the_field(message: Any, fault: str) -> None:
    with pytest.raises(MessageError) as error:
        read_event(json.dumps(message).encode())
    assert fault in str(error.value)


@pytest.mark.parametrize(("ready", "message", "outcome", "reason"), ENDINGS)
def test_an_invalid_message_of_a_worker_ends_the_point_with_a_reason(
    measure_with_worker: Any, ready: Any, message: Any, outcome: str, reason: str
) -> None:
    result = measure_with_worker([ready], [message, EXITED])
    assert (result.outcome, result.answer) == (outcome, None)
    assert reason in result.reason


def test_invalid_lines_do_not_hide_a_valid_answer(measure_with_worker: Any) -> None:
    """Plant the half line that a killed child may leave before a valid answer."""
    result = measure_with_worker(
        ["garbage", READY], ["{", event("result", messages.PointAnswered(1, ANSWER)), EXITED]
    )
    assert (result.outcome, result.answer, result.peak_memory_bytes) == ("ok", ANSWER, 5)


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param("'x' * 2**20", id="one-line"),
        pytest.param("('x' * 1023 + chr(10)) * 2**10", id="many-lines"),
    ],
)
def test_a_worker_that_prints_endlessly_is_stopped(
    measure_with_worker: Any, monkeypatch: pytest.MonkeyPatch, chunk: str
) -> None:
    """Lower the limits of a line and of all output to 30 MiB."""
    monkeypatch.setattr("paradnn.session.workers._MAX_LINE_BYTES", 30 * 2**20)
    monkeypatch.setattr("paradnn.session.workers._MAX_TOTAL_BYTES", 30 * 2**20)
    result = measure_with_worker([READY], [], then=f"while True: print({chunk}, end='')")
    assert (result.outcome, result.answer) == ("crash", None)
    assert result.reason.endswith("its messages exceed 30 MiB in total")


@pytest.mark.parametrize(
    ("times", "outcome"),
    [pytest.param(1, "ok", id="killed once"), pytest.param(9, "crash", id="killed every time")],
)
def test_a_worker_killed_while_importing_is_started_once_more(
    measure_with_worker: Any, tmp_path: Path, times: int, outcome: str
) -> None:
    log = tmp_path / "starts"
    first = f"""log = open({str(log)!r}, "a+"); log.write("."); log.flush(); log.seek(0)
import os
len(log.read()) > {times} or os.kill(os.getpid(), 9)"""
    result = measure_with_worker(
        [READY], [event("result", messages.PointAnswered(1, ANSWER)), EXITED], first=first
    )
    assert (result.outcome, len(log.read_text())) == (outcome, 2)
    assert outcome == "ok" or result.reason.startswith(
        "the worker was ended by SIGKILL while importing"
    )


def test_a_worker_rejects_invalid_requests_and_serves_the_next(tmp_path: Path) -> None:
    """Send requests of another version and with errors, then a valid one, to the fork server."""
    worker = [sys.executable, str(Path(__file__).with_name("profile_worker.py"))]
    request = messages.Request(messages.PROTOCOL_VERSION, 2, {"profile": "ends", "peak": 1}, None)
    lines = [
        encode(plain(request) | {"protocol": 1}),
        b"garbage\n",
        encode(plain(request) | {"id": "x"}),
        encode(request),
    ]
    with started(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        process.stdin.write(b"".join(lines))
        process.stdin.flush()
        events = []
        while not events or not isinstance(events[-1], messages.Exited):
            line = process.stdout.readline()
            assert line, "the worker has ended"
            if line.strip():
                events.append(read_event(line.strip()))
    names = "Ready Refused Refused Refused Started PhaseBegun PhaseBegun PointAnswered Exited"
    assert [type(entry).__name__ for entry in events] == names.split()
    assert [entry.reason for entry in events[1:4]] == [  # type: ignore[union-attr]
        f"request.protocol=1: {VERSION_ERROR}",
        '"garbage" is not JSON',
        'request.id="x" is not an integer',
    ]
