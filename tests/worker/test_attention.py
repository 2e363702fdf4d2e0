"""The attention models against published counts, Keras' and TensorFlow's own, and attention written
out in NumPy.
"""

import keras
import numpy as np
import pytest

from paradnn.families import build
from paradnn.families.parts.attention import Attention, Experts
from tests.worker.families import MODELS
from tests.worker.test_models import LLAMA

pytestmark = pytest.mark.usefixtures("clean")


def softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("case", ["self", "causal", "memory"])
def test_attention_is_the_papers_formula(case: str) -> None:
    """softmax(Q K^T / sqrt(d)) V for each head, concatenated and projected (Vaswani et al. 2017,
    section 3.2).
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
        place = slice(4 * index, 4 * index + 4)
        scores = q[..., place] @ k[..., place].swapaxes(1, 2) / 2
        if case == "causal":
            scores = np.where(np.tril(np.ones((5, 5))), scores, -np.inf)
        heads.append(softmax(scores) @ v[..., place])
    expected = np.concatenate(heads, axis=-1) @ last + bias
    np.testing.assert_allclose(model([x, memory]), expected, rtol=1e-4, atol=1e-5)


def turned(x: np.ndarray) -> np.ndarray:
    """(length, heads, head): numbers i and i + head / 2 as a complex one, turned by place /
    10000^(2 i / head).
    """
    first, second = np.split(x, 2, axis=-1)
    angles = np.arange(len(x))[:, None] / 10000.0 ** (2 * np.arange(first.shape[-1]) / x.shape[-1])
    z = (first + 1j * second) * np.exp(1j * angles)[:, None]
    return np.concatenate([z.real, z.imag], axis=-1)


def test_llama_is_its_papers_formulas() -> None:
    """Logits beside NumPy: RMS normalisation, rotary positions, a head of keys for two of queries,
    SwiGLU.
    """
    model = build(LLAMA).model
    tokens = np.arange(10) % 7
    table, *blocks, scale, output = (variable.numpy() for variable in model.trainable_variables)

    def normal(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return scales * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    x = table[tokens]
    for before, joint, last, after, gated, down in (blocks[:6], blocks[6:]):
        parts = np.split(normal(x, before) @ joint, [24, 36], axis=-1)
        query, key, value = (part.reshape(10, -1, 6) for part in parts)
        query = turned(query)
        key = turned(key)
        heads = []
        for head in range(4):
            scores = query[:, head] @ key[:, head // 2].T / np.sqrt(6)
            heads.append(softmax(np.where(np.tri(10), scores, -np.inf)) @ value[:, head // 2])
        x = x + np.concatenate(heads, axis=-1) @ last
        gates, hidden = np.split(normal(x, after) @ gated, 2, axis=-1)
        x = x + (gates / (1 + np.exp(-gates)) * hidden) @ down
    np.testing.assert_allclose(model(tokens[None])[0], normal(x, scale) @ output, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 9])
def test_experts_take_the_tokens_that_choose_them(rows: int) -> None:
    """Beside a loop over tokens: the two likeliest of three experts, in the order of the tokens
    while there is room.
    """
    generator = np.random.default_rng(3)
    x = generator.standard_normal((2, 9, 6)).astype("float32")
    layer = Experts(6, 5, 3, 2, rows, deviation=0.5)
    found = layer(x).numpy()
    router, joint, last = (
        variable.numpy() for variable in (layer._router.kernel, layer.joint, layer.output_weights)
    )
    expected = np.zeros_like(x)
    for example in range(2):
        taken = [0, 0, 0]
        for token, vector in enumerate(x[example]):
            chances = softmax(vector @ router)
            chosen = np.argsort(-chances)[:2]
            for expert in chosen:
                if taken[expert] < rows:
                    gates, hidden = np.split(vector @ joint[expert], 2)
                    made = (gates / (1 + np.exp(-gates)) * hidden) @ last[expert]
                    expected[example, token] += chances[expert] / chances[chosen].sum() * made
                taken[expert] += 1
        assert rows == 9 or max(taken) > rows
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_no_token_sees_what_follows(name: str) -> None:
    """Another last token changes the last logits alone; of the source, it changes them all."""
    model = build(MODELS[name]).model
    tokens = np.random.default_rng(1).integers(0, 40, (1, 12))
    other = tokens.copy()
    other[0, -1] = (tokens[0, -1] + 1) % 40
    before, after = (
        model([tokens, each] if name == "transformer" else each).numpy()[0]
        for each in (tokens, other)
    )
    np.testing.assert_allclose(before[:-1], after[:-1], atol=1e-6)
    assert np.abs(before[-1] - after[-1]).max() > 1e-3
    if name == "transformer":
        moved = model([other, tokens]).numpy()[0]
        assert (np.abs(before - moved).max(-1) > 1e-4).all()
