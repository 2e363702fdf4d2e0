"""The encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017), as published.

Post-norm: LayerNorm(x + Dropout(SubLayer(x))), with dropout on the embeddings too; projections of attention without
bias, feed-forward layers with bias and a rectifier; sinusoidal positions added to embeddings times sqrt(width); one
table for source, target and output; label smoothing. The target comes shifted: inputs are what precedes each target.
6 layers of 512 with 8 heads, 2048 hidden units and 37,000 tokens are the base model; 1024, 16 and 4096 the big one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.attention import (
    attention_layers,
    check_heads,
    feed_forward,
    lookup,
    normalisation,
    products,
    tied_logits,
)
from paradnn.families.built import ArraySpec, BuiltModel, cross_entropy, final_logits
from paradnn.families.layers import Layer, dense


@dataclass(frozen=True)
class Transformer(Model):
    """An encoder-decoder for translation (Vaswani et al. 2017): post-norm, sinusoidal positions, shared embeddings."""

    shown: ClassVar[str] = "{layers}x{width} h{heads} ff{feed_forward} t{sequence_length}"

    name: str = "transformer"
    layers: int = option(6, "of the encoder, and as many of the decoder (base, big: 6)", low=1, high=1000)
    width: int = option(512, "of embeddings and layers (base 512, big 1024)", low=1)
    heads: int = option(8, "of every attention; they divide the width (base 8, big 16)", low=1)
    feed_forward: int = option(2048, "hidden units of the feed-forward layers (base 2048, big 4096)", low=1)
    sequence_length: int = option(64, "tokens of a source sentence, and of a target", low=1, high=1_000_000)
    vocab_size: int = option(37000, "tokens of the vocabulary that both languages share", low=2)
    dropout: float = option(0.1, "of embeddings and of every sub-layer's output (base 0.1, big 0.3)", low=0.0, high=0.9)
    label_smoothing: float = option(0.1, "share of the target spread over all tokens", low=0.0, high=0.9)

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)

    def layer_list(self) -> list[Layer]:
        length, width, heads = self.sequence_length, self.width, self.heads
        sums, linear = normalisation(length, width), functools.partial(dense, tokens=length, bias=False)
        feed = [*feed_forward(length, width, self.feed_forward), sums]
        itself = [*attention_layers(length, width, heads, bias=False), sums]
        other = [linear("query", width, width), linear("key_value", width, 2 * width), products(length, width, heads)]
        other += [linear("attended", width, width), sums]
        return [
            lookup(length, width, self.vocab_size),
            *(itself + feed) * self.layers,
            lookup(length, width, self.vocab_size, is_owner=False),
            *(itself + other + feed) * self.layers,
            tied_logits(length, width, self.vocab_size),
        ]

    def build(self) -> BuiltModel:
        """Inputs: source and shifted target, each (batch, sequence_length) tokens; targets the same shape."""
        import keras
        from keras import layers

        from paradnn.families.parts.attention import Attention, FeedForward, Positions, TiedEmbedding

        width, heads, scale = self.width, self.heads, math.sqrt(self.width)
        table = TiedEmbedding(self.vocab_size, width, deviation=1 / scale, scale=scale)
        positions = Positions(learned=False)

        def drop(x: Any) -> Any:
            return layers.Dropout(self.dropout)(x) if self.dropout else x

        def add(x: Any, change: Any) -> Any:
            return layers.LayerNormalization(epsilon=1e-6)(x + drop(change))

        def feed(x: Any) -> Any:
            return add(x, FeedForward(width, self.feed_forward, "relu")(x))

        source, target = (keras.Input((self.sequence_length,), dtype="int32") for _ in range(2))
        memory = drop(positions(table(source)))
        for _ in range(self.layers):
            memory = feed(add(memory, Attention(width, heads, use_bias=False)(memory)))
        x = drop(positions(table(target)))
        for _ in range(self.layers):
            x = add(x, Attention(width, heads, use_bias=False)(x, causal=True))
            x = feed(add(x, Attention(width, heads, use_bias=False, crossed=True)(x, memory)))
        logits = final_logits(table(x, reverse=True))
        tokens = ArraySpec((self.sequence_length,), "int32", self.vocab_size)
        loss = functools.partial(smoothed_cross_entropy, smoothing=self.label_smoothing)
        return BuiltModel(keras.Model([source, target], logits), inputs=(tokens, tokens), targets=(tokens,), loss=loss)


def smoothed_cross_entropy(targets: Sequence[Any], logits: Any, smoothing: float) -> Any:
    """Cross entropy with `smoothing` of each target's probability spread evenly over all classes (Szegedy et al. 2016).

    With z the logits and K their number: (1 - s)(lse z - z[target]) + s (lse z - sum z / K), lse the log of the sum of
    exponentials; no one-hot matrix is made.
    """
    from keras import ops

    if not smoothing:
        return cross_entropy(targets, logits)
    spread = ops.mean(ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1))
    return (1 - smoothing) * cross_entropy(targets, logits) + smoothing * spread


_SWEPT, _SWEEP = ("width", "sequence_length", "layers"), "model.width=128,256,512 batch_size=1,4,16"
FAMILY = Family("transformer", Transformer, "tokens", _SWEPT, _SWEEP, is_real=True, place=13)
