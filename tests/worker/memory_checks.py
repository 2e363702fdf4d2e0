"""Memory of a point against `wait4` of a plain process that imports the framework and runs the same point."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from paradnn.execution.pool import WorkerPool
from paradnn.execution.worker_key import WorkerKey
from paradnn.execution.worker_process import Limits
from tests.conftest import ROOT
from tests.worker.families import MODELS, POINT

TINY = (MODELS["fc"] | {"layers": 1, "nodes": 8, "input_size": 16, "output_size": 4}, 4)
LARGE = (MODELS["fc"] | {"layers": 3, "nodes": 2048, "input_size": 1000, "output_size": 1000}, 256)

PLAIN = """
import sys
from paradnn.worker import frameworks
framework = frameworks.load(sys.argv[1])
from paradnn.worker.point import answer_request
answer = answer_request(eval(sys.argv[2]), framework, lambda *_: None)
sys.exit(answer.outcome != "ok")
"""


def plain_peak(key: WorkerKey, point: dict[str, Any]) -> int:
    """Bytes as the kernel counts them for a process of its own."""
    environ = key.environ() | {"PYTHONPATH": str(ROOT)}
    pid = os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, "-c", PLAIN, key.framework, repr(point)], environ)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return int(usage.ru_maxrss) * 1024


def check_memory(pool: WorkerPool, framework: str, compile_mode: str) -> None:
    """A small point and a large one, each as far from a plain process as two of those may be from each other."""
    key = WorkerKey(sys.executable, framework, None, "cpu", ())
    for model, batch in (TINY, LARGE):
        point = POINT | {"model": model, "batch_size": batch, "compile": compile_mode}
        answer = pool.measure(key, point, Limits(200, None), lambda phase: None).answer
        assert answer is not None
        assert answer.peak_memory_bytes == pytest.approx(plain_peak(key, point), rel=0.08)
        if model is TINY[0]:
            # What is left is no step's: programs, and what the compiler keeps.
            assert answer.step_memory_bytes < 45e6
        else:
            weights = 1000 * 2048 + 2 * 2048**2 + 2048 * 1000
            assert answer.step_memory_bytes > 2 * 4 * weights
