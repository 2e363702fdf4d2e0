"""TensorFlow's steps and kernels wait by reading a number of the compiled function: nothing else is run to do so."""

from typing import Any

import keras
import pytest
from tensorflow.python.framework import op_callbacks

from paradnn.families import build
from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.worker.step import synthetic_batch
from tests.worker.families import BATCH, MODELS, RMSPROP


def operations_of(run: Any, steps: int) -> list[str]:
    """Names of the operations that TensorFlow runs from Python; calls of compiled functions are none of them."""
    seen: list[str] = []

    def note(op_type: str | bytes, *_: Any, **__: Any) -> None:
        seen.append(op_type.decode() if isinstance(op_type, bytes) else op_type)

    run(1)
    op_callbacks.add_op_callback(note)
    try:
        run(steps)
    finally:
        op_callbacks.remove_op_callback(note)
    return [name for name in seen if not name.startswith("__inference")]


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize(("family", "compile"), [("transformer", "graph"), ("fc", "xla")])
def test_a_compiled_step_runs_nothing_but_itself(family: str, compile: str, mode: str) -> None:
    framework, workload = TensorFlow(), build(MODELS[family])
    point = {"mode": mode, "compile": compile, "precision": "float32", "optimizer": RMSPROP}
    step = framework.make_step(workload, synthetic_batch(workload, BATCH, 0), point)
    assert operations_of(step.run, 2) == []
    keras.backend.clear_session()


@pytest.mark.parametrize(("name", "compile"), [("matmul", "graph"), ("matmul", "xla"), ("add", "graph")])
def test_a_kernel_runs_nothing_but_itself(name: str, compile: str) -> None:
    assert operations_of(TensorFlow().make_kernel(name, 64, "bfloat16", compile), 2) == []
