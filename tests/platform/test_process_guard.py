"""Commands of a driver end with it, even if it is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paradnn.platform.process_guard import ProcessGuard
from tests.processes import PATIENCE, wait_for

#: Shell command that starts a process in a new session, and appends the process id to the file $0.
#: The word after the script in the arguments of `sh -c` sets $0.
ESCAPE = "(setsid sleep 1000 & echo $! >>$0)"

#: Driver with one command that has ended and one that keeps running. Each command leaves a process
#: in a new session. The running command also has a child, and writes the ids of the child and of
#: itself. In total, the file contains the ids of 4 processes.
DRIVER = f"""
import sys, time
from paradnn.platform.process_guard import ProcessGuard
with ProcessGuard() as guard:
    ended = guard.start(["sh", "-c", "{ESCAPE}", sys.argv[1]])
    ended.wait()
    guard.release(ended)
    guard.start(["sh", "-c", "{ESCAPE}; sleep 1000 & echo $! $$ >>$0; wait", sys.argv[1]])
    time.sleep(1000)
"""

#: Driver that receives SIGTERM as soon as its command exists, and writes the command's process id.
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


def _wait_for_processes(pids: Path, count: int) -> list[psutil.Process]:
    """Wait until a file contains the ids of `count` processes, and return the processes."""
    assert wait_for(lambda: pids.exists() and len(pids.read_text().split()) == count)
    return [psutil.Process(int(pid)) for pid in pids.read_text().split()]


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_commands_end_if_their_driver_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path / "pids")]) as driver:
        started = _wait_for_processes(tmp_path / "pids", 4)
        helpers = psutil.Process(driver.pid).children()

        driver.send_signal(signal.SIGKILL)

    assert wait_for(lambda: not any(map(_is_alive, [*started, *helpers])))


@pytest.mark.parametrize(
    "kind", [pytest.param(KeyboardInterrupt, id="Ctrl-C"), pytest.param(SystemExit, id="exit")]
)
def test_an_interruption_ends_the_processes_of_earlier_commands(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    remaining: list[psutil.Process] = []

    def interrupt_after_two_commands() -> None:
        with ProcessGuard() as guard:
            with ProcessGuard() as earlier:
                earlier.run(["sh", "-c", ESCAPE, str(tmp_path / "pids")])
            guard.run(["sh", "-c", ESCAPE, str(tmp_path / "pids")])
            remaining.extend(_wait_for_processes(tmp_path / "pids", 2))
            assert all(map(_is_alive, remaining))
            raise kind

    # The inner guard ends normally and leaves its process running. The interruption of the outer
    # guard must end the processes of both commands.
    with pytest.raises(kind):
        interrupt_after_two_commands()
    assert wait_for(lambda: not any(map(_is_alive, remaining)))


def test_commands_of_a_nested_driver_end_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "pids")]
    started: list[psutil.Process] = []

    def fail_while_it_runs(guard: ProcessGuard) -> None:
        with guard.running(command):
            started.extend(_wait_for_processes(tmp_path / "pids", 4))
            raise RuntimeError

    with ProcessGuard() as guard, pytest.raises(RuntimeError):
        fail_while_it_runs(guard)
    assert wait_for(lambda: not any(map(_is_alive, started)))


def test_a_signal_while_a_command_starts_ends_the_command(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    completed = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_DRIVER, str(pid)], timeout=PATIENCE, check=False
    )

    assert completed.returncode == 130
    number = int(pid.read_text())
    assert wait_for(lambda: not psutil.pid_exists(number))


def test_an_exception_ends_the_command_and_its_descendants(tmp_path: Path) -> None:
    command = ["sh", "-c", f"{ESCAPE}; sleep 1000 & echo $! >>$0; wait", str(tmp_path / "pids")]
    started: list[psutil.Process] = []

    def fail_while_it_runs(guard: ProcessGuard) -> None:
        with guard.running(command):
            started.extend(_wait_for_processes(tmp_path / "pids", 2))
            # Wait until setsid has put the process into a new session.
            assert wait_for(lambda: os.getsid(started[0].pid) == started[0].pid)
            raise RuntimeError

    with ProcessGuard() as guard, pytest.raises(RuntimeError):
        fail_while_it_runs(guard)
    assert wait_for(lambda: not any(map(_is_alive, started)))


def test_an_exception_spares_daemons_of_earlier_commands(tmp_path: Path) -> None:
    """The exception ends only the command in whose context it is raised.

    The guard itself ends normally. An interruption that leaves the guard would end the daemon, too.
    """

    def fail_in_a_second_command(guard: ProcessGuard) -> None:
        with guard.running(["sleep", "1000"]):
            raise RuntimeError

    with ProcessGuard() as guard:
        guard.run(["sh", "-c", ESCAPE, str(tmp_path / "daemon")])
        with pytest.raises(RuntimeError):
            fail_in_a_second_command(guard)
    daemon = _wait_for_processes(tmp_path / "daemon", 1)[0]
    assert _is_alive(daemon)
    daemon.kill()


def test_the_output_of_a_command_is_captured() -> None:
    with ProcessGuard() as guard:
        completed = guard.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (completed.returncode, completed.stdout, completed.stderr) == (3, "out\n", "err\n")


def test_a_background_process_that_keeps_the_output_open_is_not_awaited() -> None:
    with ProcessGuard() as guard:
        completed = guard.run(["sh", "-c", "sleep 1000 & echo $!"], timeout=PATIENCE)

    background = psutil.Process(int(completed.stdout))
    assert _is_alive(background)
    background.kill()
