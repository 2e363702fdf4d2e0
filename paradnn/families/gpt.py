"""A decoder-only language model with the architecture of GPT-2 (Radford et al. 2019).

Pre-norm blocks of causal attention and a feed-forward layer of four times the width (GELU, tanh form), learned
positions, a last normalisation, and the embedding's own table as output layer. Without dropout, as language models of
today are pre-trained. 12 layers of 768 with 12 heads, 1024 positions and 50,257 tokens are GPT-2 small.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.attention import blocks, cached_attention, check_heads, lookup, tied_logits
from paradnn.families.built import BuiltModel, token_predictor
from paradnn.families.layers import Layer

#: Standard deviation of initial weights, as GPT-2's.
_DEVIATION = 0.02


@dataclass(frozen=True)
class LanguageModel(Model):
    """A decoder-only language model: pre-norm, learned positions, output tied to the embedding. heads must
    divide width."""

    generates: ClassVar[bool] = True
    predicts_tokens: ClassVar[bool] = True
    shown: ClassVar[str] = "{layers}x{width} h{heads} t{sequence_length}"

    name: str = "gpt"
    layers: int = option(4, "blocks of attention and feed-forward (GPT-2: 12..48)", low=1, high=1000)
    width: int = option(256, "of embeddings and blocks; feed-forward layers are four times as wide", low=1)
    heads: int = option(4, "of every attention; they divide the width", low=1)
    sequence_length: int = option(128, "tokens of an example, each with a learned position", low=1, high=1_000_000)
    vocab_size: int = option(8192, "distinct tokens (GPT-2: 50257)", low=2)

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)

    def layer_list(self) -> list[Layer]:
        length, width = self.sequence_length, self.width
        return [
            lookup(length, width, self.vocab_size),
            Layer("positions", parameters=length * width),  # added where the lookup is
            *blocks(length, width, self.heads, self.layers),
            tied_logits(length, width, self.vocab_size),
        ]

    def prefill_layers(self, prompt: int, length: int) -> list[Layer]:
        """The model that reads a prompt into a cache of `length` places; of its tokens the last alone has logits."""
        return self._generation(cached_attention(prompt, prompt, length, self.width, self.heads), prompt)

    def decode_layers(self, length: int) -> list[Layer]:
        """The model for one token after others, which looks back over a cache of `length` places.

        With N weights in products a token takes 2 N FLOPs and 4 x length x width more in each layer (Kaplan et al.
        2020, table 1); a step reads every weight once for the whole batch and for each of its examples a cache of 2 x
        length x width in each layer (Pope et al. 2022, section 2). Places that are not written yet are read and
        multiplied like the others, since no shape is open; the choice of the likeliest token is left out.
        """
        return self._generation(cached_attention(1, length, length, self.width, self.heads), 1)

    def _generation(self, attention: list[Layer], tokens: int) -> list[Layer]:
        """Layers over so many tokens, whose last one has logits; positions are read for these alone."""
        return [
            lookup(tokens, self.width, self.vocab_size),
            Layer("positions", parameters=tokens * self.width),
            Layer("other positions", parameters=(self.sequence_length - tokens) * self.width, rows=0),
            *blocks(tokens, self.width, self.heads, self.layers, attention, last=1),
            tied_logits(1, self.width, self.vocab_size),
        ]

    def build(self) -> BuiltModel:
        """Inputs and targets (batch, sequence_length) tokens below vocab_size."""
        return Gpt(self).workload


class Block:
    """The layers of a block: of each pair the normalisation before it comes first."""

    def __init__(self, width: int, heads: int) -> None:
        from keras import activations, layers

        from paradnn.families.parts.attention import Attention, FeedForward

        gelu = functools.partial(activations.gelu, approximate=True)
        self.before_attention = layers.LayerNormalization(epsilon=1e-5)
        self.attention = Attention(width, heads, deviation=_DEVIATION)
        self.before_feed_forward = layers.LayerNormalization(epsilon=1e-5)
        self.feed_forward = FeedForward(width, 4 * width, gelu, _DEVIATION)


class Gpt:
    """The model over a whole sequence as `workload`, and its layers: a generation calls them one by one."""

    def __init__(self, options: LanguageModel) -> None:
        import keras
        from keras import layers

        from paradnn.families.parts.attention import Positions, TiedEmbedding

        self.table = TiedEmbedding(options.vocab_size, options.width, _DEVIATION)
        self.positions = Positions(learned=True, deviation=_DEVIATION)
        self.blocks = [Block(options.width, options.heads) for _ in range(options.layers)]
        self.last = layers.LayerNormalization(epsilon=1e-5)
        inputs = keras.Input((options.sequence_length,), dtype="int32")
        x = self.positions(self.table(inputs))
        for block in self.blocks:
            x = x + block.attention(block.before_attention(x), causal=True)
            x = x + block.feed_forward(block.before_feed_forward(x))
        self.workload = token_predictor(inputs, self.table(self.last(x), reverse=True), options.vocab_size)


_SWEPT, _SWEEP = ("width", "sequence_length", "layers"), "model.width=128,256,512 batch_size=1,4,16"
FAMILY = Family("gpt", LanguageModel, "tokens", _SWEPT, _SWEEP, place=6)
