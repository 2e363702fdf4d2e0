"""Generation with a cache against the whole model: tokens and logits, counted work, memory, outcomes of a point."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paradnn.families import model_of
from paradnn.session.workers import WorkerPool
from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.workloads.generate.decoder import Decoder
from tests.worker.counter import counted_flops
from tests.worker.families import MODELS, POINT, measure
from tests.worker.generated_tokens import BATCH, LLAMA, MODEL, PROMPT, TOKENS, generated

#: Largest difference of a logit, whose sizes are up to some ten: sums of float32 in another order.
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session(free_memory=False)  # the collector comes by itself


@pytest.mark.parametrize(("compile_mode", "model"), [("graph", MODEL), ("xla", MODEL), ("xla", LLAMA)])
def test_tokens_are_those_of_the_whole_model(compile_mode: str, model: dict[str, Any]) -> None:
    found = generated(TensorFlow(), compile_mode, model)
    np.testing.assert_array_equal(found["cached/tokens"], found["whole/tokens"])
    np.testing.assert_allclose(found["cached/logits"], found["whole/logits"], atol=TOLERANCE)
    # Tokens that were all the same would show little.
    assert len(set(found["cached/tokens"].ravel().tolist())) >= 5
    assert np.abs(found["whole/logits"]).max() > 1


@pytest.mark.parametrize("model", [MODEL, LLAMA], ids=["gpt", "llama"])
def test_work_is_that_of_tensorflows_counter(model: dict[str, Any]) -> None:
    decoder = Decoder(model, BATCH, PROMPT, TOKENS, "graph")
    lengths = {"prompt": PROMPT, "tokens": TOKENS}
    costs = model_of(model).costs(batch_size=BATCH, precision="float32", mode="generate", optimizer="sgd", **lengths)
    first = model_of(model).prefill_costs(batch_size=BATCH, precision="float32", **lengths)
    prompts = tf.zeros((BATCH, PROMPT), "int32")
    reading = tf.function(lambda: decoder.prefill.model(prompts)).get_concrete_function().graph
    following = tf.function(lambda: decoder.decode.model([])).get_concrete_function().graph
    assert counted_flops(reading) == first.forward_flops
    assert counted_flops(following) == costs.forward_flops
    assert decoder.cache_bytes == costs.cache_bytes
    assert decoder.model.count_params() == costs.parameters


def measured(pool: WorkerPool, **changes: Any) -> Any:
    """As many blocks however slow the machine."""
    asked = {"mode": "generate", "model": MODELS["gpt"], "generate": {"prompt": PROMPT, "tokens": TOKENS}}
    return measure(pool, {**asked, "measure": {"max_seconds": 60.0}, **changes})


@pytest.mark.parametrize(("compile_mode", "precision"), [("xla", "bfloat16"), ("graph", "float16")])
def test_a_point_has_both_phases(pool: WorkerPool, compile_mode: str, precision: str) -> None:
    result = measured(pool, compile=compile_mode, precision=precision)
    assert result.outcome == "ok", result.reason
    answer, generation = result.answer, result.answer.work
    lengths = {"prompt": PROMPT, "tokens": TOKENS, "batch_size": POINT["batch_size"]}
    costs = model_of(MODELS["gpt"]).costs(precision=precision, mode="generate", optimizer="sgd", **lengths)
    assert generation.cache_bytes == costs.cache_bytes
    assert answer.measurement.parameters == costs.parameters
    assert len(generation.prefill.blocks) >= 10
    assert len(answer.measurement.timing.blocks) >= 10
    assert set(answer.phases) >= {"build", "compile", "prefill", "warmup", "measure", "latency"}
    assert len(answer.latencies) == 200
    assert answer.contention["prefill"].own_cpu_fraction > 0, "what disturbed it was watched"
    assert answer.measurement.compilation.programs[-1] == 0
