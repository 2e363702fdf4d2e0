"""A decoder-only language model with the architecture of Llama (Touvron et al. 2023; grouped queries as in Llama 2).

Pre-norm blocks of causal attention and a gated feed-forward layer (SwiGLU), all without bias; root mean square
normalisation; rotary positions (Su et al. 2021, by halves); several heads of queries share one of keys and values; an
output of its own. 32 layers of 4096 with 32 heads, 8 of keys and values, 14,336 hidden units and 128,256 tokens are
Llama 3 8B: 8,030,261,248 parameters.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from paradnn.core.schema import option
from paradnn.errors import ConfigError
from paradnn.families import Family, Model
from paradnn.families.attention import check_heads, normalisation, products
from paradnn.families.built import BuiltModel, token_predictor
from paradnn.families.layers import Layer, dense, embedding

#: Of rotary positions: the longest wavelength is 2 pi times this.
_BASE = 10000.0
#: Standard deviation of initial weights.
_DEVIATION = 0.02


@dataclass(frozen=True)
class Llama(Model):
    """A decoder-only language model as Llama's: grouped queries, rotary positions, SwiGLU, RMSNorm. heads must divide
    width, key_heads heads."""

    predicts_tokens: ClassVar[bool] = True
    shown: ClassVar[str] = "{layers}x{width} h{heads}/{key_heads} ff{feed_forward} t{sequence_length}"

    name: str = "llama"
    layers: int = option(4, "blocks of attention and feed-forward (Llama 3: 32..126)", low=1, high=1000)
    width: int = option(256, "of embeddings and blocks (Llama 3: 4096..16384)", low=1)
    heads: int = option(4, "of queries; they divide the width into even parts", low=1)
    key_heads: int = option(2, "of keys and values, each for several heads of queries; they divide heads", low=1)
    feed_forward: int = option(704, "hidden units of the feed-forward layers, with as many gates", low=1)
    sequence_length: int = option(128, "tokens of an example", low=1, high=1_000_000)
    vocab_size: int = option(8192, "distinct tokens (Llama 3: 128256)", low=2)

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)
        if self.heads % self.key_heads:
            reason, remedy = f"does not divide model.heads={self.heads}", "choose a divisor of it"
            raise ConfigError("model.key_heads", self.key_heads, reason, remedy)
        if self.width // self.heads % 2:
            reason = f"has heads of {self.width // self.heads}, which rotary positions cannot halve"
            raise ConfigError("model.width", self.width, reason, f"choose a multiple of {2 * self.heads}")

    @property
    def key_width(self) -> int:
        """Of all keys of a token, and of all values."""
        return self.width // self.heads * self.key_heads

    def layer_list(self) -> list[Layer]:
        """Embedding, blocks whose normalisations add what was made before them, and an output of its own.

        A normalisation has scales alone. Rotation, gates and the repetition of keys belong to the layers beside them:
        the last feed-forward layer reads units and gates.
        """
        length, width = self.sequence_length, self.width
        first, middle, last = (
            replace(normalisation(length, width, added, hands_on), parameters=width)
            for added, hands_on in ((False, False), (True, True), (True, False))
        )
        linear = functools.partial(dense, tokens=length, bias=False)
        joint, gated = width + 2 * self.key_width, 2 * self.feed_forward
        block = [
            linear("query_key_value", width, joint),
            replace(products(length, width, self.heads), read=length * joint),
            linear("attended", width, width),
            middle,
            linear("gates_hidden", width, gated),
            replace(linear("output", self.feed_forward, width), read=length * gated),
            middle,
        ]
        logits = linear("logits", width, self.vocab_size, is_last=True)
        return [embedding(length, width, self.vocab_size), first, *(block * self.layers)[:-1], last, logits]

    def build(self) -> BuiltModel:
        """Inputs and targets (batch, sequence_length) tokens below vocab_size."""
        import keras
        from keras import layers, ops

        from paradnn.families.parts.attention import mixed

        length, head, groups = self.sequence_length, self.width // self.heads, self.heads // self.key_heads
        rotate = _rotation(length, head)

        def linear(units: int) -> Any:
            return layers.Dense(units, use_bias=False, kernel_initializer=_normal())

        def attend(x: Any) -> Any:
            """(batch, length, width) -> the same."""
            cuts = [self.width, self.width + self.key_width]
            parts = ops.split(linear(self.width + 2 * self.key_width)(x), cuts, axis=-1)
            query, key, value = (layers.Reshape((length, -1, head))(part) for part in parts)
            query, key = rotate(query), rotate(key)
            if groups > 1:  # each head of keys beside the heads of queries that share it
                key, value = (ops.repeat(part, groups, axis=2) for part in (key, value))
            return linear(self.width)(mixed(query, key, value, causal=True))

        def feed(x: Any) -> Any:
            gates, hidden = ops.split(linear(2 * self.feed_forward)(x), 2, axis=-1)
            return linear(self.width)(ops.silu(gates) * hidden)

        inputs = keras.Input((length,), dtype="int32")
        x = layers.Embedding(self.vocab_size, self.width, embeddings_initializer=_normal())(inputs)
        for _ in range(self.layers):
            x = x + attend(layers.RMSNormalization(epsilon=1e-5)(x))
            x = x + feed(layers.RMSNormalization(epsilon=1e-5)(x))
        x = linear(self.vocab_size)(layers.RMSNormalization(epsilon=1e-5)(x))
        return token_predictor(inputs, x, self.vocab_size)


def _normal() -> Any:
    from keras import initializers

    return initializers.RandomNormal(stddev=_DEVIATION)


def _rotation(length: int, head: int) -> Any:
    """A layer without variables: (batch, length, heads, head) -> the same, turned by its place.

    Numbers i and i + head / 2 of a head are turned by place / base^(2 i / head) (Su et al. 2021, equation 34).
    """
    import numpy as np
    from keras import layers, ops

    angles = np.arange(length)[:, None] * _BASE ** (-2 * np.arange(head // 2) / head)
    turned = [part.astype("float32")[:, None, :] for part in (np.cos(angles), np.sin(angles))]

    class Rotation(layers.Layer):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            # No variables: frameworks would carry them through every step as if they could change.
            self._cosine, self._sine = (ops.convert_to_tensor(part, dtype=self.compute_dtype) for part in turned)

        def call(self, x: Any) -> Any:
            cosine, sine = ops.convert_to_tensor(self._cosine), ops.convert_to_tensor(self._sine)
            first, second = ops.split(x, 2, axis=-1)
            return ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    return Rotation()


_SWEPT, _SWEEP = ("width", "sequence_length", "layers"), "model.width=128,256,512 batch_size=1,4,16"
FAMILY = Family("llama", Llama, "tokens", _SWEPT, _SWEEP, place=21)
