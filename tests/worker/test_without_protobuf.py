"""An interpreter that has no protobuf, as one with JAX or PyTorch alone: only traces that need it are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from paradnn.worker.profile.protos import XSpace
from paradnn.worker.profile.trace import WINDOW
from tests.conftest import ROOT

#: The worker's own modules, its real profile of a step; the trace is a file that is there already.
PROFILE = """
import contextlib, pathlib, shutil, sys

import paradnn.worker.__main__
from paradnn.worker.profile.run import profile_steps
from paradnn.worker.profile.trace import read_trace

class Planted:
    run = kernel_cost = lambda *_: None
    @contextlib.contextmanager
    def trace(self, folder):
        yield contextlib.nullcontext
        shutil.copy(sys.argv[1], folder)
    def read_trace(self, folder):
        return read_trace(folder)

print(profile_steps(Planted(), Planted(), 1.0, False))
"""


def test_the_worker_starts_and_says_why_there_is_no_profile(without_protobuf: Path, tmp_path: Path) -> None:
    space = XSpace()
    plane = space.planes.add(name="/host:CPU")
    plane.event_metadata[1].name = WINDOW
    plane.lines.add().events.add(metadata_id=1, duration_ps=10**12)
    trace = tmp_path / "planted.xplane.pb"
    trace.write_bytes(space.SerializeToString())

    def profile(*folders: Path) -> str:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        command = [sys.executable, "-c", PROFILE, str(trace)]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    reason = f"reading the trace needs the package protobuf: {sys.executable} -m pip install protobuf"
    assert profile(without_protobuf, ROOT).startswith(f"NoProfile(unavailable={reason!r}")
    assert profile(ROOT).startswith("Profile(")
