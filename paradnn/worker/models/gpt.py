"""A decoder-only language model with the architecture of GPT-2 (Radford et al. 2019).

Pre-norm blocks of causal attention and a feed-forward layer of four times the width (GELU, tanh form), learned
positions, a last normalisation, and the embedding's own table as output layer. Without dropout, as language models of
today are pre-trained. 12 layers of 768 with 12 heads, 1024 positions and 50,257 tokens are GPT-2 small.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import keras
from keras import layers

from paradnn.worker.models.attention import Positions, TiedEmbedding, attend, feed_forward, final_logits
from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy

__all__ = ["build_gpt"]

#: Standard deviation of initial weights, as GPT-2's.
_DEVIATION = 0.02
_gelu = functools.partial(keras.activations.gelu, approximate=True)


def build_gpt(model: Mapping[str, Any]) -> Workload:
    """Inputs and targets (batch, sequence_length) tokens below vocab_size."""
    length, width = model["sequence_length"], model["width"]
    table = TiedEmbedding(model["vocab_size"], width, _DEVIATION)
    inputs = keras.Input((length,), dtype="int32")
    x = Positions(learned=True, deviation=_DEVIATION)(table(inputs))
    for _ in range(model["layers"]):
        x = x + attend(_normalise(x), model["heads"], causal=True, deviation=_DEVIATION)
        x = x + feed_forward(_normalise(x), 4 * width, _gelu, _DEVIATION)
    logits = final_logits(table(_normalise(x), reverse=True))
    tokens = ArraySpec((length,), "int32", model["vocab_size"])
    return Workload(keras.Model(inputs, logits), inputs=(tokens,), targets=(tokens,), loss=cross_entropy)


def _normalise(x: Any) -> Any:
    return layers.LayerNormalization(epsilon=1e-5)(x)
