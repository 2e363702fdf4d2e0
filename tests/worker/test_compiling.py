"""The phase `compile` on real TensorFlow functions, and operations outside a compiled step."""

from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from paradnn.families import build
from paradnn.worker.frameworks.tensorflow import TensorFlow, TensorFlowStep
from paradnn.worker.measure import compile_steps
from paradnn.worker.request import answer_request
from paradnn.worker.series import Change
from paradnn.worker.step import synthetic_batch
from tests.worker.families import BATCH, MODELS, POINT, RMSPROP


class GrowingStep(TensorFlowStep):
    """Step whose argument grows by one element at each step number in `steps`."""

    def __init__(self, steps: set[int], compiled: bool = True) -> None:
        def total(values: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(values)

        function = tf.function(total) if compiled else total
        super().__init__(function, (tf.ones([1]),), POINT)
        self._growing = steps
        self._number = 0

    def run(self, steps: int) -> float | None:
        loss = None
        for _ in range(steps):
            self._number += 1
            if self._number in self._growing:
                self.arguments = (tf.ones([len(self.arguments[0]) + 1]),)
            loss = super().run(1)
        return loss


def test_the_phase_ends_with_the_first_step_that_compiles_nothing() -> None:
    seconds = iter(range(100))
    compilation, first_loss = compile_steps(GrowingStep({2, 3}), lambda: float(next(seconds)))
    assert compilation.programs == [1, 1, 1, 0]
    assert compilation.seconds == [1.0] * 4
    assert compilation.note == "tf.function was traced 3 times"
    assert first_loss == 1.0


@pytest.mark.parametrize(
    ("growing_steps", "steady"),
    [
        pytest.param(set(), True, id="no compilation"),
        pytest.param({25}, False, id="compilation in step 25"),
    ],
)
def test_blocks_that_compile_are_not_steady(
    growing_steps: set[int], steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorFlow, "make_step", lambda *_: GrowingStep(growing_steps))
    # The block times alone always look steady, so the result is independent of the machine's noise.
    monkeypatch.setattr(
        "paradnn.worker.measure.find_change", lambda _: Change(0.0, None, 0.0, 0.0, 1.0)
    )
    monkeypatch.setattr("paradnn.worker.contention.ContentionMonitor.stop", lambda _: None)
    protocol = POINT["measure"] | {"min_blocks": 40, "max_seconds": 300.0}
    answer = answer_request(POINT | {"measure": protocol}, TensorFlow(), lambda *_: None)
    assert answer.measurement is not None, answer.reason
    timing = answer.measurement.timing
    assert len(timing.blocks) == 40
    assert timing.steady is steady
    if steady:
        compiled = ""
    else:
        compiled = "the measured steps compiled 1 program; "
    assert timing.steady_reason.startswith(f"{compiled}no change that matters: drift of +0.0%")


def operations_of(run: Any, steps: int) -> list[str]:
    """Return the names of the operations that TensorFlow runs from Python during `steps` steps.

    Calls of compiled functions are excluded.
    """
    names: list[str] = []

    def record_operation(op_type: str | bytes, *_: Any, **__: Any) -> None:
        names.append(op_type.decode() if isinstance(op_type, bytes) else op_type)

    run(1)
    op_callbacks.add_op_callback(record_operation)
    try:
        run(steps)
    finally:
        op_callbacks.remove_op_callback(record_operation)
    return [name for name in names if not name.startswith("__inference")]


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize(("family", "compile"), [("transformer", "graph"), ("fc", "xla")])
def test_a_compiled_step_runs_no_other_operation(family: str, compile: str, mode: str) -> None:
    framework = TensorFlow()
    workload = build(MODELS[family])
    point = {"mode": mode, "compile": compile, "precision": "float32", "optimizer": RMSPROP}
    step = framework.make_step(workload, synthetic_batch(workload, BATCH, 0), point)
    assert operations_of(step.run, 2) == []
    keras.backend.clear_session()


@pytest.mark.parametrize(
    ("name", "compile"), [("matmul", "graph"), ("matmul", "xla"), ("add", "graph")]
)
def test_a_kernel_runs_no_other_operation(name: str, compile: str) -> None:
    assert operations_of(TensorFlow().make_kernel(name, 64, "bfloat16", compile), 2) == []
