"""Memory of a point against `wait4` of a plain process that imports the framework and runs the same point."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest

from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from tests.conftest import ROOT
from tests.worker.families import MODELS, POINT

TINY = (MODELS["fc"] | {"layers": 1, "nodes": 8, "input_size": 16, "output_size": 4}, 4)
LARGE = (MODELS["fc"] | {"layers": 3, "nodes": 2048, "input_size": 1000, "output_size": 1000}, 256)

#: Without the meter: what it does after compiling starts the kernel's own peak afresh, and gives heap back.
PLAIN = """
import sys
from paradnn.worker import frameworks, meters as memory
memory.MemoryMeter.compiled = lambda meter: None
framework = frameworks.load(sys.argv[1])
from paradnn.worker.point import PointRun
answer = PointRun(eval(sys.argv[2]), framework, lambda *_: None).answer()
assert not {"IPython", "matplotlib", "pandas", "sklearn"} & set(sys.modules), "Keras imports what no point uses"
sys.exit(answer.outcome != "ok")
"""


#: Starts the plain process: what a child is counted begins with the memory of the process it was forked from.
SMALL = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", *sys.argv[1:]])
_, status, usage = os.wait4(pid, 0)
assert status == 0
print(usage.ru_maxrss * 1024)
"""


def plain_peak(key: WorkerKey, point: dict[str, Any]) -> int:
    """Bytes as the kernel counts them for a process of its own."""
    environ = key.environ() | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SMALL, PLAIN, key.framework, repr(point)]
    with tempfile.TemporaryDirectory() as caches:
        done = subprocess.run(command, cwd=caches, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


#: What two plain processes of one point differ by: JAX compiles in parallel, and its heap with it.
TOLERANCE = {"tensorflow": 0.08, "torch": 0.08, "jax": 0.2}


Sized = tuple[dict[str, Any], int]


def check_memory(pool: WorkerPool, framework: str, compile_mode: str, beside: Sequence[Sized] = (TINY, LARGE)) -> None:
    """A small point and a large one; those `beside` a plain process are as far from it as two of those may be from
    each other."""
    key = WorkerKey(sys.executable, framework, None, "cpu", ())
    for model, batch in (TINY, LARGE):
        point = POINT | {"model": model, "batch_size": batch, "compile": compile_mode}
        answer = pool.measure(key, point, Limits(1000, None), lambda phase: None).answer
        if (model, batch) in beside:
            assert answer.peak_memory_bytes == pytest.approx(plain_peak(key, point), rel=TOLERANCE[framework])
        if model is TINY[0]:
            # What is left is no step's: programs, and what the compiler keeps.
            assert answer.step_memory_bytes < 60e6
        else:
            weights = 1000 * 2048 + 2 * 2048**2 + 2048 * 1000
            assert answer.step_memory_bytes > 2 * 4 * weights
