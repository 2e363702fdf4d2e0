"""What a command says when it is interrupted, refused by the system, or given what a terminal would obey."""

import io
import signal
import subprocess
import sys

import pytest

from paradnn.cli.commands import COMMANDS
from paradnn.cli.console import Screen, Ticker, say, visible
from paradnn.cli.program import program
from paradnn.core.errors import ParadnnError
from tests.conftest import ROOT, run
from tests.processes import hearing_ctrl_c

#: `python -m paradnn.X` up to the first line of the package, where Ctrl-C finds it.
_EARLY = "import os, signal, sys; sys.argv[0] = '-m'; import {}; os.kill(os.getpid(), signal.SIGINT); import hydra"


@pytest.mark.parametrize("package", ["paradnn", "analysis"])
def test_ctrl_c_while_a_command_imports_is_one_line(package: str) -> None:
    command = hearing_ctrl_c([sys.executable, "-c", _EARLY.format(package)])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_program_that_uses_the_package_keeps_its_own_ctrl_c() -> None:
    code = "import signal, paradnn; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    command = hearing_ctrl_c([sys.executable, "-c", code])
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        (ParadnnError("key=1\n\x1b[31m: wrong"), 2, "error: key=1 \\x1b[31m: wrong"),
        (ParadnnError("x" * 9_000), 2, f"error: {'x' * 247}..."),
        (OSError(36, "File name too long", "a" * 300), 2, f"error: {'a' * 247}... File name too long"),
        (UnicodeEncodeError("utf-8", "\udc80", 0, 1, "no"), 2, "error: \\udc80: holds bytes that are no text in utf-8"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_goes_wrong_is_one_line(
    fault: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise fault

    before = signal.getsignal(signal.SIGINT)
    assert program(main)() == code
    assert capsys.readouterr().err == f"{line}\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_no_word_of_a_store_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bad = "fc\x1b]0;owned\x07\x9b2J\r\u202e\udc80 Ω\tx\nrow"
    assert visible(bad) == "fc\\x1b]0;owned\\x07\\x9b2J\\r\\u202e\\udc80 Ω\tx\nrow"
    say(bad)
    out = io.StringIO()
    Screen(file=out, force_terminal=True, width=200).print(bad, style="red", soft_wrap=True, markup=False)
    assert capsys.readouterr().out == f"{visible(bad)}\n"
    assert "fc\\x1b]0;owned\\x9b2J\\u202e\\udc80 Ω" in out.getvalue()
    assert "\x1b[31m" in out.getvalue()  # of the console itself


def test_every_command_has_a_page_of_its_own_and_a_version() -> None:
    for command in COMMANDS:
        page = run(["paradnn.__main__", "help", command])
        assert (page.returncode, len(page.stdout.splitlines()) > 4) == (0, True), command
    assert run(["paradnn.__main__", "check", "--version"]).stdout == "paradnn 0.1.0\n"


def test_long_work_says_where_it_is_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    tell = Ticker("runs", clock=lambda: now[0])
    for done in range(1, 101):
        now[0] = done / 2
        tell(done, 2_000)
    assert capsys.readouterr().err == "30 of 2,000 runs\n60 of 2,000 runs\n90 of 2,000 runs\n"
