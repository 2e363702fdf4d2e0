"""Commands of a driver that is killed end with it."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paradnn.platform.process_guard import ProcessGuard
from tests.processes import PATIENCE, wait_for

DRIVER = """
import sys, time
from paradnn.platform.process_guard import ProcessGuard
with ProcessGuard() as guard:
    ended = guard.start(["true"])
    ended.wait()
    guard.release(ended)
    guard.start(["sh", "-c", f"sleep 1000 & echo $! $$ >{sys.argv[1]}; wait"])
    time.sleep(1000)
"""

#: A driver that receives SIGTERM as soon as the command exists, and writes the command's number.
INTERRUPTED_DRIVER = """
import pathlib, signal, subprocess, sys, time
from paradnn.platform.process_guard import ProcessGuard

class InterruptedPopen(subprocess.Popen):
    def __init__(self, words, **options):
        super().__init__(words, **options)
        if words[0] == "sleep":
            pathlib.Path(sys.argv[1]).write_text(str(self.pid))
            signal.raise_signal(signal.SIGTERM)

subprocess.Popen = InterruptedPopen
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
with ProcessGuard() as guard, guard.running(["sleep", "1000"]):
    time.sleep(1000)
"""


def test_commands_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(pids)]) as driver:
        assert wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        started = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        helpers = psutil.Process(driver.pid).children()
        driver.send_signal(signal.SIGKILL)
    assert wait_for(lambda: not any(map(_is_alive, [*started, *helpers])))


def test_a_signal_while_a_command_starts_ends_the_command(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_DRIVER, str(pid)], timeout=PATIENCE, check=False
    )

    assert done.returncode == 130
    number = int(pid.read_text())
    assert wait_for(lambda: not psutil.pid_exists(number))


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_an_exception_ends_the_command_and_all_that_it_started() -> None:
    words = ["sh", "-c", "sleep 1000 & sleep 1000"]
    children: list[psutil.Process] = []

    def fail_while_it_runs(guard: ProcessGuard) -> None:
        with guard.running(words) as process:
            assert wait_for(lambda: len(psutil.Process(process.pid).children()) == 2)
            children.extend(psutil.Process(process.pid).children())
            raise RuntimeError

    with ProcessGuard() as guard, pytest.raises(RuntimeError):
        fail_while_it_runs(guard)
    assert wait_for(lambda: not any(map(_is_alive, children)))


def test_output_of_a_command_is_captured() -> None:
    with ProcessGuard() as guard:
        done = guard.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_background_process_that_keeps_the_output_open_is_not_awaited() -> None:
    with ProcessGuard() as guard:
        done = guard.run(["sh", "-c", "sleep 1000 & echo $!"], timeout=PATIENCE)

    background = psutil.Process(int(done.stdout))
    assert _is_alive(background)
    background.kill()
