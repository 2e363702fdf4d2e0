"""The attention models against published counts, Keras' and TensorFlow's own, and attention written out in NumPy."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paradnn.execution.pool import WorkerPool
from paradnn.execution.worker_key import WorkerKey
from paradnn.execution.worker_process import Limits
from paradnn.families import build, model_of
from paradnn.families.parts.attention import CrossAttention, SelfAttention, plain_attention
from paradnn.families.transformer import smoothed_cross_entropy
from paradnn.worker.data import synthetic_batch
from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.worker.step import POLICIES
from tests.worker.counter import counted_flops
from tests.worker.families import MODELS
from tests.worker.test_models import STEP, label, point

ADAM = {"name": "adam", "learning_rate": 0.001, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8}


def transformer(**changes: Any) -> dict[str, Any]:
    return MODELS["transformer"] | changes


def gpt(layers: int, width: int, heads: int, sequence_length: int = 1024, vocab_size: int = 50257) -> dict[str, Any]:
    return {
        "name": "gpt",
        "layers": layers,
        "width": width,
        "heads": heads,
        "sequence_length": sequence_length,
        "vocab_size": vocab_size,
    }


def vit(layers: int, width: int, heads: int, patch: int = 16, image_size: int = 224, output_size: int = 1000) -> Any:
    return {
        "name": "vit",
        "layers": layers,
        "width": width,
        "heads": heads,
        "patch": patch,
        "image_size": image_size,
        "output_size": output_size,
    }


BASE = transformer(layers=6, width=512, heads=8, feed_forward=2048, sequence_length=64, vocab_size=37000, dropout=0.1)
BIG = BASE | {"width": 1024, "heads": 16, "feed_forward": 4096, "dropout": 0.3}
SMALL = [transformer(layers=2), gpt(3, 24, 3, 10, 50), vit(2, 24, 4, 8, 40, 7)]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session(free_memory=False)  # the collector comes by itself


@pytest.mark.parametrize("model", SMALL, ids=label)
def test_parameters_are_keras_own(model: dict[str, Any]) -> None:
    built = build(model).model
    costs = model_of(model).costs(**STEP)
    assert costs.parameters == sum(math.prod(v.shape) for v in built.trainable_variables) == built.count_params()
    assert costs.non_trainable_parameters == 0


#: Sources: torchvision's model pages (exact) and Table 1 of Touvron et al. 2021 (DeiT-S: 22M); the download script and
#: announcement of GPT-2 (124M, 355M, 774M, 1558M); Table 3 of Vaswani et al. 2017 (65M and 213M, whose own table gives
#: 213M - 65M to no vocabulary; 37,000 tokens give 3% less and 0.6% more).
@pytest.mark.parametrize(
    ("model", "published", "tolerance"),
    [
        (vit(12, 768, 12), 86_567_656, 0),
        (vit(12, 768, 12, 32), 88_224_232, 0),
        (vit(24, 1024, 16), 304_326_632, 0),
        (vit(24, 1024, 16, 32), 306_535_400, 0),
        (vit(12, 384, 6), 22e6, 0.005),
        (gpt(12, 768, 12), 124e6, 0.005),
        (gpt(24, 1024, 16), 355e6, 0.005),
        (gpt(36, 1280, 20), 774e6, 0.005),
        (gpt(48, 1600, 25), 1558e6, 0.005),
        (BASE, 65e6, 0.031),
        (BIG, 213e6, 0.006),
    ],
    ids=lambda value: label(value) if isinstance(value, dict) else None,
)
def test_the_published_parameter_counts(model: dict[str, Any], published: float, tolerance: float) -> None:
    assert model_of(model).costs(**STEP).parameters == pytest.approx(published, rel=tolerance, abs=0)


#: torchvision's model pages: multiply-accumulates of one image, in 10^9, to two digits.
@pytest.mark.parametrize(
    ("model", "published"),
    [
        (vit(12, 768, 12), 17.56),
        (vit(12, 768, 12, 32), 4.41),
        (vit(24, 1024, 16), 61.55),
        (vit(24, 1024, 16, 32), 15.38),
    ],
)
def test_the_published_work(model: dict[str, Any], published: float) -> None:
    assert round(model_of(model).costs(**{**STEP, "batch_size": 1}).forward_flops / 2e9, 2) == published


@pytest.mark.parametrize("model", SMALL, ids=label)
def test_flops_are_those_of_tensorflows_counter(model: dict[str, Any]) -> None:
    workload = build(model)
    inputs, targets = (tuple(map(tf.constant, arrays)) for arrays in synthetic_batch(workload, 4, 0))
    network = workload.model

    def forward():
        return network(inputs if len(inputs) > 1 else inputs[0], training=True)

    def backward():
        with tf.GradientTape() as tape:
            loss = workload.loss(targets, forward())
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, network.trainable_variables)]

    costs = model_of(model).costs(**STEP)
    assert counted_flops(tf.function(forward).get_concrete_function().graph) == costs.forward_flops
    assert counted_flops(tf.function(backward).get_concrete_function().graph) == costs.flops_per_step


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize(
    ("model", "precision"),
    [
        (transformer(dropout=0.1), "float16"),
        (MODELS["gpt"] | {"layers": 1}, "bfloat16"),
        (MODELS["vit"] | {"layers": 1}, "float16"),
    ],
    ids=lambda value: label(value) if isinstance(value, dict) else value,
)
def test_steps_are_finite_in_every_precision(model: dict[str, Any], precision: str) -> None:
    keras.config.set_dtype_policy(POLICIES[precision])
    keras.utils.set_random_seed(0)
    workload = build(model)
    batch = synthetic_batch(workload, 4, 0)
    settings = {"mode": "train", "compile": "graph", "precision": precision, "optimizer": ADAM}
    step = TensorFlow().make_step(workload, batch, settings)
    assert all(math.isfinite(step.run(1)) for _ in range(3))
    assert workload.model.output.dtype == "float32"
    kernels = [layer for layer in workload.model.layers if isinstance(layer, (keras.layers.Dense, keras.layers.Conv2D))]
    assert {layer.compute_dtype for layer in kernels} == {precision}


def softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("case", ["self", "causal", "memory"])
def test_attention_is_the_papers_formula(case: str) -> None:
    """softmax(Q K^T / sqrt(d)) V for each head, concatenated and projected (Vaswani et al. 2017, section 3.2)."""
    generator = np.random.default_rng(0)
    x, memory = generator.standard_normal((2, 2, 5, 8)).astype("float32")
    inputs = [keras.Input((5, 8)), keras.Input((5, 8))]
    y = CrossAttention(8, 2)(*inputs) if case == "memory" else SelfAttention(8, 2)(inputs[0], causal=case == "causal")
    model = keras.Model(inputs, y)
    for variable in model.trainable_variables:
        variable.assign(generator.standard_normal(variable.shape) * 0.3)
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    weights = {layer.units: [v.numpy() for v in layer.trainable_variables] for layer in dense[:-1]}
    last, bias = (v.numpy() for v in dense[-1].trainable_variables)
    if case == "memory":
        q = x @ weights[8][0] + weights[8][1]
        k, v = np.split(memory @ weights[16][0] + weights[16][1], 2, axis=-1)
    else:
        q, k, v = np.split(x @ weights[24][0] + weights[24][1], 3, axis=-1)
    heads = []
    for index in range(2):
        place = slice(4 * index, 4 * index + 4)
        scores = q[..., place] @ k[..., place].swapaxes(1, 2) / 2
        if case == "causal":
            scores = np.where(np.tril(np.ones((5, 5))), scores, -np.inf)
        heads.append(softmax(scores) @ v[..., place])
    expected = np.concatenate(heads, axis=-1) @ last + bias
    np.testing.assert_allclose(model([x, memory]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_no_token_sees_what_follows(name: str) -> None:
    """Another last token changes the last logits alone; of the source, it changes them all."""
    model = build(MODELS[name]).model
    tokens = np.random.default_rng(1).integers(0, 40, (1, 12))
    other = tokens.copy()
    other[0, -1] = (tokens[0, -1] + 1) % 40
    before, after = (model([tokens, each] if name == "transformer" else each).numpy()[0] for each in (tokens, other))
    np.testing.assert_allclose(before[:-1], after[:-1], atol=1e-6)
    assert np.abs(before[-1] - after[-1]).max() > 1e-3
    if name == "transformer":
        moved = model([other, tokens]).numpy()[0]
        assert (np.abs(before - moved).max(-1) > 1e-4).all()


def test_smoothed_loss_is_that_of_smoothed_targets() -> None:
    generator = np.random.default_rng(2)
    logits = generator.standard_normal((3, 4, 9)).astype("float32")
    targets = generator.integers(0, 9, (3, 4)).astype("int32")
    smooth = 0.9 * np.eye(9)[targets] + 0.1 / 9
    expected = -(smooth * np.log(softmax(logits))).sum(-1).mean()
    assert float(smoothed_cross_entropy([targets], logits, 0.1)) == pytest.approx(expected, rel=1e-6)


def test_dropout_is_for_training_alone() -> None:
    workload = build(transformer(dropout=0.5))
    inputs, _ = synthetic_batch(workload, 2, 0)
    still = [workload.model(inputs, training=False).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*still)
    drawn = [workload.model(inputs, training=True).numpy() for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-3


#: Sequences so short that scores are small beside the rest, and so long that they are most of what a step stores.
LARGE = [
    (transformer(width=256, heads=4, feed_forward=512, sequence_length=64, vocab_size=2000), 16, "graph"),
    (gpt(1, 32, 4, 512, 16), 8, "xla"),  # a graph keeps more than XLA does
    (vit(2, 128, 4, 8, 64, 10), 64, "graph"),
]


@pytest.mark.parametrize(
    ("model", "batch", "compile_mode"), LARGE, ids=lambda value: label(value) if isinstance(value, dict) else None
)
def test_the_memory_bound_is_below_a_real_step(
    pool: WorkerPool, model: dict[str, Any], batch: int, compile_mode: str
) -> None:
    """In inference, in training, and between a batch and twice the batch, where the framework's own part is out."""
    key = WorkerKey(sys.executable, "tensorflow", None, "cpu", ())
    peaks, bounds = [], []
    for mode, size in (("inference", batch), ("train", batch), ("train", 2 * batch)):
        result = pool.measure(key, point(model, size, compile_mode, mode), Limits(200, None), lambda phase: None)
        assert result.outcome == "ok", result.reason
        peaks.append(result.answer.step_memory_bytes)
        costs = model_of(model).costs(batch_size=size, precision="float32", mode=mode, optimizer="rmsprop")
        bounds.append(costs.memory_lower_bound_bytes)
    assert all(bound < peak for bound, peak in zip(bounds, peaks, strict=True))
    assert bounds[2] - bounds[1] < peaks[2] - peaks[1]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_a_keras_that_lacks_it_is_the_same(causal: bool) -> None:
    generator = np.random.default_rng(0)
    query, key, value = (tf.constant(generator.normal(0, 2, (2, 5, 3, 4)), "float32") for _ in range(3))
    expected = keras.ops.dot_product_attention(query, key, value, is_causal=causal)
    np.testing.assert_allclose(plain_attention(query, key, value, is_causal=causal), expected, rtol=1e-5, atol=1e-6)
