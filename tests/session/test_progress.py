"""Progress and summary of a sweep on terminals, in narrow windows and in a pipe."""

import io
import re
from collections import Counter
from dataclasses import replace

import pytest

from paradnn.session import progress
from paradnn.session.design import RecordedPoint, Summary
from paradnn.session.progress import Reporter, describe_point, describe_sweep

LONG = "fc 4x[1000,500]+2048 b64 bfloat16 cpu xla inference tensorflow-2.18"
REASON = "needs at least 31.4 GiB by arithmetic, of 16.4 GiB that a point may take here now"
MEASURED = {
    "examples_per_second": 1_234_567.8,
    "examples_per_second_low": 1_200_000.0,
    "examples_per_second_high": 1_300_000.0,
    "flops_per_second": 1.5e12,
    "peak_memory_bytes": 2.0**30,
}


def point(name: str, outcome: str = "ok") -> RecordedPoint:
    measured = outcome == "ok"
    tags = {"steady": "true", "contended": "true"} if measured else {}
    return RecordedPoint(
        name, name, "fc", outcome, None if measured else REASON, MEASURED if measured else {}, tags
    )


class Terminal(io.StringIO):
    """Terminal stream whose final screen can be read."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Return the lines that are visible at the end.

        The supported control codes return to the start of the line, move the cursor up and clear
        lines.
        """
        lines = [""]
        row = 0
        column = 0
        for piece in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|.|\n", self.getvalue(), re.DOTALL):
            if piece == "\n":
                row += 1
                column = 0
                if row == len(lines):
                    lines.append("")
            elif piece == "\r":
                column = 0
            elif piece == "\x1b[2K":
                lines[row] = ""
            elif piece == "\x1b[1A":
                row -= 1
            elif not piece.startswith("\x1b"):
                lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + 1 :]
                column += 1
        return [line for line in lines if line.strip()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the current time in seconds, which a test may set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def measure(clock: list[float]) -> Reporter:
    """Simulate two of four points, each of 10 s, after 30 s for the ceilings."""
    reporter = Reporter(4, "fc, 4 points")
    reporter.start(0, 4)
    clock[0] += 30
    reporter.exclude_from_estimate(30)
    for name, outcome in (("fc 4x32", "ok"), ("fc 4x64", "oom_predicted")):
        reporter.begin(name)
        clock[0] += 10
        reporter.process_ended()
        reporter.done(point(name, outcome))
    return reporter


def redirect_output(stream: io.StringIO, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirect standard output and error to a stream of `width` columns."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", stream)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")


def test_finished_points_stay_on_a_terminal(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    redirect_output(terminal, 120, monkeypatch)
    reporter = measure(clock)
    reporter.begin("fc 4x128")
    finished = [
        "fc, 4 points",
        "[1/4] fc 4x32: 1,235,000 examples/s ± 4.1%, contended",
        f"[2/4] fc 4x64: oom_predicted: {REASON}",
    ]
    assert terminal.screen() == [
        *finished,
        "[2/4] fc 4x128: starting | 1 ok, 1 oom_predicted | 20 s left",
    ]
    clock[0] += 5
    reporter.phase("measure")
    assert terminal.screen()[-1] == "[2/4] fc 4x128: measure | 1 ok, 1 oom_predicted | 15 s left"
    reporter.close()
    assert terminal.screen() == finished


def test_a_pipe_receives_the_same_lines_and_the_remaining_time(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = io.StringIO()
    redirect_output(pipe, 80, monkeypatch)
    reporter = measure(clock)
    reporter.expect(200, 1, 60.0)  # the time left is at most the sweep's budget
    clock[0] += 10
    reporter.process_ended()
    reporter.done(replace(point("fc 4x96"), metrics={"examples_per_second": 21.0}))
    reporter.close()
    *lines, last = pipe.getvalue().splitlines()
    assert lines == [
        "fc, 4 points",
        "[1/4] fc 4x32: 1,235,000 examples/s ± 4.1%, contended | 1 ok | 30 s left",
        f"[2/4] fc 4x64: oom_predicted: {REASON} | 1 ok, 1 oom_predicted | 20 s left",
    ]
    assert last.endswith(
        " fc 4x96: 21.00 examples/s, no interval, contended | 2 ok, 1 oom_predicted | 50 s left"
    )


#: Columns that narrow windows may omit.
ALL = ["± 95%", "FLOP/s", "memory", "steady"]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        pytest.param(40, [], id="40 characters"),
        pytest.param(59, ["± 95%"], id="59 characters"),
        pytest.param(69, ["± 95%", "steady"], id="69 characters"),
        pytest.param(80, ALL, id="80 characters"),
        pytest.param(100, ALL, id="100 characters"),
        pytest.param(200, ALL, id="200 characters"),
    ],
)
def test_narrow_windows_omit_columns(
    width: int, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    redirect_output(terminal, width, monkeypatch)
    name = "gru 1x300 t10 b64 float32"
    if width >= 80:
        other_points = [point(LONG), point("gru b16384", "oom_predicted")]
    else:
        other_points = []
    describe_sweep(Summary(3, [point(name), *other_points]))
    lines = terminal.screen()
    [row] = [line for line in lines if line.startswith(name)]
    [heading] = [line for line in lines if "examples/s" in line]
    assert "1,235,000" in row
    assert [word for word in ALL if word in heading] == columns
    assert "…" not in terminal.getvalue()
    if other_points:
        table = lines[: lines.index(f"gru b16384: oom_predicted: {REASON}")]
        assert max(map(len, table)) <= width
        assert {*LONG.split(), "1,235,000", "4.1%", "T", "GiB", "contended"} <= set(
            " ".join(table).split()
        )


def test_points_without_an_outcome_are_missing() -> None:
    summary = Summary(6, [point("a"), point("b", "crash")], Counter(ok=1), repeated=1)
    assert (summary.missing, summary.exit_code, replace(summary, total=4).exit_code) == (2, 1, 0)


@pytest.mark.parametrize(
    ("measured", "skipped", "exit_code"),
    [
        pytest.param(["unavailable"], {}, 1, id="single point unavailable"),
        pytest.param([], {"unavailable": 1}, 1, id="known to be unavailable"),
        pytest.param(["unavailable"], {"unavailable": 2}, 1, id="all points unavailable"),
        pytest.param(["unavailable", "ok"], {}, 0, id="one point measured"),
        pytest.param(["unavailable"], {"ok": 1}, 0, id="one point measured earlier"),
        pytest.param(["crash"], {}, 0, id="a crash is a result"),
        pytest.param(["oom_device"], {}, 0, id="out of memory is a result"),
        pytest.param([], {}, 0, id="no points"),
    ],
)
def test_only_a_command_that_measures_nothing_fails(
    measured: list[str], skipped: dict[str, int], exit_code: int
) -> None:
    rows = [point(f"m{number}", outcome) for number, outcome in enumerate(measured)]
    total = len(rows) + sum(skipped.values())

    summary = Summary(total, rows, Counter(skipped))

    assert summary.exit_code == exit_code


def test_only_a_long_compilation_is_reported() -> None:
    measured = MEASURED | {"step_time_ms": 1.0, "blocks": 6.0, "steps_per_block": 50.0}
    for seconds, is_reported in ((35.24, True), (0.2, False)):
        row = replace(
            point("residual"),
            metrics={
                **measured,
                "compile_seconds": seconds,
                "parameters": 1e3,
                "flops_per_step": 1e6,
            },
        )
        assert ("compiled     in 35.2 s" in describe_point(row, "here")) is is_reported
