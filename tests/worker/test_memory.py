"""Memory of TensorFlow's points, and their limit; the other frameworks' are in test_frameworks.py."""

import sys

import pytest

from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from tests.worker.families import POINT
from tests.worker.memory_checks import LARGE, TINY, Sized, check_memory


#: A plain process imports the framework once more: in the graph the small point, which holds little else, and
#: compiled the large one, which holds the compiler and what it made.
@pytest.mark.parametrize(("compile_mode", "beside"), [("graph", TINY), ("xla", LARGE)], ids=["graph", "xla"])
def test_a_point_takes_what_a_plain_process_takes(pool: WorkerPool, compile_mode: str, beside: Sized) -> None:
    check_memory(pool, "tensorflow", compile_mode, [beside])


def test_the_limit_counts_the_framework_as_a_plain_process_holds_it(pool: WorkerPool) -> None:
    key = WorkerKey(sys.executable, "tensorflow", None, "cpu", ())
    protocol = POINT["measure"] | {"min_seconds": 30.0, "max_seconds": 30.0}
    point = POINT | {"model": TINY[0], "batch_size": TINY[1]}
    answer = pool.measure(key, point, Limits(200, None), lambda phase: None).answer
    assert answer is not None
    assert answer.peak_memory_bytes is not None
    limit = int(0.9 * answer.peak_memory_bytes)
    result = pool.measure(key, point | {"measure": protocol}, Limits(200, limit), lambda phase: None)
    assert result.outcome == "oom_host", result.reason
