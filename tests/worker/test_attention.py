"""Transformers compared with their published formulas, written in NumPy."""

import keras
import numpy as np
import pytest

from paradnn.families import build
from paradnn.families.parts.attention import Attention, Experts
from tests.worker.families import MODELS
from tests.worker.test_models import LLAMA

pytestmark = pytest.mark.usefixtures("clean")


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("case", ["self", "causal", "memory"])
def test_attention_agrees_with_the_papers_formula(case: str) -> None:
    """Compare with softmax(Q K^T / sqrt(d)) V per head, concatenated and projected.

    See Vaswani et al. 2017, section 3.2.
    """
    generator = np.random.default_rng(0)
    x, memory = generator.standard_normal((2, 2, 5, 8)).astype("float32")
    inputs = [keras.Input((5, 8)), keras.Input((5, 8))]
    y = Attention(8, 2, crossed=case == "memory")(*inputs, causal=case == "causal")
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
        columns = slice(4 * index, 4 * index + 4)
        scores = q[..., columns] @ k[..., columns].swapaxes(1, 2) / 2
        if case == "causal":
            scores = np.where(np.tril(np.ones((5, 5))), scores, -np.inf)
        heads.append(softmax(scores) @ v[..., columns])
    expected = np.concatenate(heads, axis=-1) @ last + bias
    np.testing.assert_allclose(model([x, memory]), expected, rtol=1e-4, atol=1e-5)


def rotated(x: np.ndarray) -> np.ndarray:
    """Apply rotary position embeddings to x of shape (length, heads, head).

    Elements i and i + head / 2 form a complex number. It is rotated by the angle
    position / 10000^(2 i / head).
    """
    first, second = np.split(x, 2, axis=-1)
    angles = np.arange(len(x))[:, None] / 10000.0 ** (2 * np.arange(first.shape[-1]) / x.shape[-1])
    z = (first + 1j * second) * np.exp(1j * angles)[:, None]
    return np.concatenate([z.real, z.imag], axis=-1)


def swiglu(x: np.ndarray, joint: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Apply SwiGLU; `joint` holds the weights of the gates and those of the hidden units."""
    gates, hidden = np.split(x @ joint, 2, axis=-1)
    return (gates / (1 + np.exp(-gates)) * hidden) @ last


def test_llama_agrees_with_the_formulas_of_its_paper() -> None:
    """The formulas are RMS normalization, rotary positions, grouped queries and SwiGLU."""
    model = build(LLAMA).model
    tokens = np.arange(10) % 7
    table, *blocks, scale, output = (variable.numpy() for variable in model.trainable_variables)

    def normalize(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return scales * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    x = table[tokens]
    for before, joint, last, after, gated, down in (blocks[:6], blocks[6:]):
        parts = np.split(normalize(x, before) @ joint, [24, 36], axis=-1)
        query, key, value = (part.reshape(10, -1, 6) for part in parts)
        query = rotated(query)
        key = rotated(key)
        heads = []
        for head in range(4):
            scores = query[:, head] @ key[:, head // 2].T / np.sqrt(6)
            heads.append(softmax(np.where(np.tri(10), scores, -np.inf)) @ value[:, head // 2])
        x = x + np.concatenate(heads, axis=-1) @ last
        x = x + swiglu(normalize(x, after), gated, down)
    expected = normalize(x, scale) @ output
    np.testing.assert_allclose(model(tokens[None])[0], expected, atol=1e-5)


def test_qwen_has_a_separate_head_width_and_normalized_queries() -> None:
    """Heads of width 8 in a model of width 24, RMS normalization within heads, a shared table."""
    changes = {"layers": 1, "head_width": 8, "query_key_norm": True, "tied": True}
    model = build(LLAMA | changes).model
    tokens = np.arange(10) % 7
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        if "normalization" in variable.path:
            variable.assign(1 + 0.1 * random.standard_normal(variable.shape))
    table, before, joint, of_query, of_key, last, after, gated, down, scale = (
        variable.numpy() for variable in model.trainable_variables
    )

    def normalize(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return scales * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    x = table[tokens]
    parts = np.split(normalize(x, before) @ joint, [32, 48], axis=-1)
    query, key, value = (part.reshape(10, -1, 8) for part in parts)
    query = rotated(normalize(query, of_query))
    key = rotated(normalize(key, of_key))
    heads = []
    for head in range(4):
        scores = query[:, head] @ key[:, head // 2].T / np.sqrt(8)
        heads.append(softmax(np.where(np.tri(10), scores, -np.inf)) @ value[:, head // 2])
    x = x + np.concatenate(heads, axis=-1) @ last
    x = x + swiglu(normalize(x, after), gated, down)
    expected = normalize(x, scale) @ table.T
    np.testing.assert_allclose(model(tokens[None])[0], expected, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 9])
def test_experts_process_the_tokens_routed_to_them(rows: int) -> None:
    """Compare with a loop that routes each token to the two likeliest of three experts.

    An expert accepts tokens in order until it has `rows` tokens.
    """
    generator = np.random.default_rng(3)
    x = generator.standard_normal((2, 9, 6)).astype("float32")
    layer = Experts(width=6, hidden=5, experts=3, active=2, rows=rows, deviation=0.5)
    outputs = layer(x).numpy()
    router = layer._router.kernel.numpy()
    joint = layer.joint.numpy()
    last = layer.output_weights.numpy()
    expected = np.zeros_like(x)
    for example in range(2):
        counts = [0, 0, 0]
        for token, vector in enumerate(x[example]):
            probabilities = softmax(vector @ router)
            chosen = np.argsort(-probabilities)[:2]
            for expert in chosen:
                if counts[expert] < rows:
                    weight = probabilities[expert] / probabilities[chosen].sum()
                    output = swiglu(vector, joint[expert], last[expert])
                    expected[example, token] += weight * output
                counts[expert] += 1
        assert rows == 9 or max(counts) > rows
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def tokens_and_changed_tokens() -> tuple[np.ndarray, np.ndarray]:
    """Return a sequence of 12 tokens, and the same sequence with a different last token."""
    tokens = np.random.default_rng(1).integers(0, 40, (1, 12))
    changed = tokens.copy()
    changed[0, -1] = (tokens[0, -1] + 1) % 40
    return tokens, changed


@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_tokens_do_not_attend_to_later_tokens(name: str) -> None:
    model = build(MODELS[name]).model
    tokens, changed = tokens_and_changed_tokens()
    if name == "transformer":
        before = model([tokens, tokens]).numpy()[0]
        after = model([tokens, changed]).numpy()[0]
    else:
        before = model(tokens).numpy()[0]
        after = model(changed).numpy()[0]
    np.testing.assert_allclose(before[:-1], after[:-1], atol=1e-6)
    assert np.abs(before[-1] - after[-1]).max() > 1e-3


def test_every_target_token_attends_to_the_whole_source() -> None:
    model = build(MODELS["transformer"]).model
    tokens, changed = tokens_and_changed_tokens()
    difference = model([changed, tokens]).numpy()[0] - model([tokens, tokens]).numpy()[0]
    assert (np.abs(difference).max(-1) > 1e-4).all()
