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

from paradnn.worker.models.attention import FeedForward, Positions, SelfAttention, TiedEmbedding, final_logits
from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy

__all__ = ["Block", "Gpt", "build_gpt"]

#: Standard deviation of initial weights, as GPT-2's.
_DEVIATION = 0.02
_gelu = functools.partial(keras.activations.gelu, approximate=True)


class Block:
    """The layers of a block: of each pair the normalisation before it comes first."""

    def __init__(self, width: int, heads: int) -> None:
        self.before_attention = _normalisation()
        self.attention = SelfAttention(width, heads, deviation=_DEVIATION)
        self.before_feed_forward = _normalisation()
        self.feed_forward = FeedForward(width, 4 * width, _gelu, _DEVIATION)


class Gpt:
    """The model over a whole sequence as `model`, and its layers: `paradnn.worker.generation` calls them one by one."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        length, width = options["sequence_length"], options["width"]
        self.table = TiedEmbedding(options["vocab_size"], width, _DEVIATION)
        self.positions = Positions(learned=True, deviation=_DEVIATION)
        self.blocks = [Block(width, options["heads"]) for _ in range(options["layers"])]
        self.last = _normalisation()
        inputs = keras.Input((length,), dtype="int32")
        x = self.positions(self.table(inputs))
        for block in self.blocks:
            x = x + block.attention(block.before_attention(x), causal=True)
            x = x + block.feed_forward(block.before_feed_forward(x))
        self.model = keras.Model(inputs, final_logits(self.table(self.last(x), reverse=True)))


def build_gpt(model: Mapping[str, Any]) -> Workload:
    """Inputs and targets (batch, sequence_length) tokens below vocab_size."""
    tokens = ArraySpec((model["sequence_length"],), "int32", model["vocab_size"])
    return Workload(Gpt(model).model, inputs=(tokens,), targets=(tokens,), loss=cross_entropy)


def _normalisation() -> layers.Layer:
    return layers.LayerNormalization(epsilon=1e-5)
