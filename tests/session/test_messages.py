"""Messages on a real pipe: a worker that says nonsense, or speaks another version, is a fault with
a reason.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

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
        ANSWER,
        replace(ANSWER, profile=messages.NoProfile("no reason", True)),
        messages.Answer("nan", "x", {}),
    ],
)
def test_an_answer_is_the_same_on_the_other_side(answer: messages.Answer) -> None:
    line = encode(event("result", messages.PointAnswered(7, answer)))
    assert line.count(b"\n") == 1
    assert read_event(line) == messages.PointAnswered(7, answer)
    assert read_event(
        encode(event("phase", messages.PhaseBegun("profile", answer)))
    ) == messages.PhaseBegun("profile", answer)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The whole answer as a result, but for one field; a value of `...` leaves the field out."""
    content = event("result", messages.PointAnswered(1, ANSWER))
    *parents, last = path.split(".")
    place: Any = content
    for key in parents:
        place = place[int(key)] if key.isdigit() else place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())
FAULTS = [(changed(path, value), fault) for path, value, fault in TABLES["faults"]]
FAULTS += [
    (changed("id", ...), "result.id is missing"),
    (changed("answer.phases.build", 10**400), "answer.phases.build=1000"),
    ({"event": "other"}, 'event="other" is not one of ready, refused'),
]
#: A worker that sends its command line's lines: before the request, and after it.
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
UNCLEAR = "a message of the worker cannot be understood: "
SPEAKS = f"this side speaks {messages.PROTOCOL_VERSION}"
#: What a worker says first, and after a request; how the point ends, and words of the reason.
ENDINGS = [
    (READY, changed("id", ...), "crash", f"{UNCLEAR}result.id is missing"),
    (
        READY,
        changed("answer.outcome", "great"),
        "crash",
        "result.answer.outcome='great' is no outcome",
    ),
    (
        READY,
        {"event": "started", "id": 7, "pid": 1},
        "crash",
        f"{UNCLEAR}started.id=7: the request is 1",
    ),
    (READY, {"event": "refused", "reason": "why"}, "crash", "it refuses the request: why"),
    *(
        (READY, garbage, "crash", "is not JSON")
        for garbage in ('{"event": "result", "id": 1', "[" * 100_000, "\\xff")
    ),
    # Version 1 said more when it was ready; another may say less.
    (
        {**READY, "protocol": 1, "seconds": 3.0},
        EXITED,
        "unavailable",
        f"ready.protocol=1: {SPEAKS}",
    ),
    ({**READY, "protocol": messages.PROTOCOL_VERSION + 1}, EXITED, "unavailable", SPEAKS),
    ({"event": "ready"}, EXITED, "unavailable", f"ready.protocol=null: {SPEAKS}"),
]


@pytest.fixture
def answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a point comes to whose worker sends these lines before and after the request."""
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


@pytest.mark.parametrize(("message", "fault"), FAULTS, ids=[fault for _, fault in FAULTS])
def test_a_message_that_is_wrong_names_the_field(message: Any, fault: str) -> None:
    with pytest.raises(MessageError) as error:
        read_event(json.dumps(message).encode())
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("ready", "message", "outcome", "reason"), ENDINGS, ids=range(len(ENDINGS))
)
def test_nonsense_ends_it_with_a_reason(
    answered: Any, ready: Any, message: Any, outcome: str, reason: str
) -> None:
    result = answered([ready], [message, EXITED])
    assert (result.outcome, result.answer) == (outcome, None)
    assert reason in result.reason


def test_a_sound_answer_comes_through_the_pipe_with_garbage_around_it(answered: Any) -> None:
    """A line that is not JSON was cut when a child was killed; it hides nothing that comes after it."""
    result = answered(
        ["garbage", READY], ["{", event("result", messages.PointAnswered(1, ANSWER)), EXITED]
    )
    assert (result.outcome, result.answer, result.peak_memory_bytes) == ("ok", ANSWER, 5)


@pytest.mark.parametrize(
    "chunk", ["'x' * 2**20", "('x' * 1023 + chr(10)) * 2**10"], ids=["a line", "many"]
)
def test_a_worker_that_says_too_much_is_ended(
    answered: Any, monkeypatch: pytest.MonkeyPatch, chunk: str
) -> None:
    """It never ends, where thirty MiB are the most."""
    monkeypatch.setattr("paradnn.session.workers._MOST_IN_LINE", 30 * 2**20)
    monkeypatch.setattr("paradnn.session.workers._MOST_IN_ALL", 30 * 2**20)
    result = answered([READY], [], then=f"while True: print({chunk}, end='')")
    assert (result.outcome, result.answer) == ("crash", None)
    assert result.reason.endswith("it says over 30 MiB")


@pytest.mark.parametrize(("times", "outcome"), [(1, "ok"), (9, "crash")])
def test_a_worker_killed_while_importing_starts_again(
    answered: Any, tmp_path: Path, times: int, outcome: str
) -> None:
    log = tmp_path / "starts"
    first = f"""log = open({str(log)!r}, "a+"); log.write("."); log.flush(); log.seek(0)
import os
len(log.read()) > {times} or os.kill(os.getpid(), 9)"""
    result = answered(
        [READY], [event("result", messages.PointAnswered(1, ANSWER)), EXITED], first=first
    )
    assert (result.outcome, len(log.read_text())) == (outcome, 2)
    assert outcome == "ok" or result.reason.startswith(
        "the worker was ended by SIGKILL while importing"
    )


def test_a_request_of_another_version_is_refused(tmp_path: Path) -> None:
    """By the real fork server, which then serves the next one."""
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
            assert line, "it has ended"
            if line.strip():
                events.append(read_event(line.strip()))
    names = "Ready Refused Refused Refused Started PhaseBegun PhaseBegun PointAnswered Exited"
    assert [type(entry).__name__ for entry in events] == names.split()
    assert [entry.reason for entry in events[1:4]] == [  # type: ignore[union-attr]
        f"request.protocol=1: this side speaks {messages.PROTOCOL_VERSION}",
        '"garbage" is not JSON',
        'request.id="x" is not an integer',
    ]
