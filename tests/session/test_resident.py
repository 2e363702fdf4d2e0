"""What the driver counts of a point's processes, against memory of a known size."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from paradnn.session import workers as resident
from paradnn.session.workers import Resident
from tests.processes import started

SIZE, CHILDREN = 64 << 20, 6
#: A process whose children have what it has, until a line tells them to write to it.
SHARING = """
import os, sys
size, children = map(int, sys.argv[1:])
held = bytearray(size)
held[::4096] = b"1" * len(held[::4096])
ends = [os.pipe() for _ in range(2 * children)]
for number in range(children):
    if os.fork() == 0:
        os.read(ends[2 * number][0], 1)
        held[::4096] = b"2" * len(held[::4096])
        os.write(ends[2 * number + 1][1], b"!")
        sys.stdin.read()
        os._exit(0)
print("ready", flush=True)
sys.stdin.readline()
for number in range(children):
    os.write(ends[2 * number][1], b"!")
    os.read(ends[2 * number + 1][0], 1)
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sharing() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SHARING, str(SIZE), str(CHILDREN)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(command, **pipes, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its children outlive it


def test_above_the_limit_shared_pages_count_once_until_they_part(
    sharing: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_PAUSE", 0)
    assert sharing.stdin
    assert sharing.stdout
    of_point = Resident(sharing.pid)
    for limit in (None, 1 << 40):  # far from any limit the cheap sum will do
        assert of_point.held(sharing.pid, limit) > (CHILDREN + 1) * SIZE
    assert SIZE < of_point.held(sharing.pid, 3 * SIZE) < 2 * SIZE
    sharing.stdin.write("write\n")
    sharing.stdin.flush()
    assert sharing.stdout.readline() == "written\n"
    assert of_point.held(sharing.pid, 3 * SIZE) > (CHILDREN + 1) * SIZE


def test_one_process_counts_with_all_that_it_holds(sharing: subprocess.Popen[str]) -> None:
    alone = Resident(sharing.pid)
    child = next(iter(alone._each(sharing.pid).keys() - {sharing.pid}))
    assert alone.held(child, 1) > SIZE
    sharing.kill()
    sharing.wait()
    assert alone.held(sharing.pid, 1) == 0
