"""What the attention models are built of in Keras: scaled dot-product attention, feed-forward, embeddings, positions.

Attention is `keras.ops.dot_product_attention`, so each framework runs its own kernel: on TensorFlow two products with
a float32 softmax between them, on JAX `jax.nn.dot_product_attention` (cuDNN's flash attention where the GPU has it), on
PyTorch `scaled_dot_product_attention` (a fused kernel, also on a CPU).
"""

import math
from typing import Any

import numpy as np
from keras import initializers, layers, ops


class Attention:
    """Multi-head attention of tokens to each other, or (`crossed`) to a memory. `joint` makes query, key and value in
    that order, crossed the last two, of the memory; `last` mixes the heads. `deviation` is that of normal initial
    weights; None: Glorot's."""

    def __init__(
        self, width: int, heads: int, use_bias: bool = True, deviation: float | None = None, crossed: bool = False
    ) -> None:
        self._query = dense_layer(width, deviation, use_bias) if crossed else None
        self.joint = dense_layer((2 if crossed else 3) * width, deviation, use_bias)
        self.last = dense_layer(width, deviation, use_bias)
        self.heads = heads

    def __call__(self, x: Any, memory: Any = None, causal: bool = False) -> Any:
        """(batch, tokens, width), memory (batch, keys, width) -> (batch, tokens, width); `causal`: no token sees what
        follows."""
        own = [self._query(x)] if self._query else []
        parts = [*own, *ops.split(self.joint(memory if own else x), 2 if own else 3, axis=-1)]
        query, key, value = (
            layers.Reshape((part.shape[1], self.heads, part.shape[2] // self.heads))(part) for part in parts
        )
        return self.last(mixed(query, key, value, causal))


def mixed(query: Any, key: Any, value: Any, causal: bool) -> Any:
    """Query (batch, queries, heads, head), key and value (batch, keys, heads, head) -> (batch, queries, width)."""
    product = getattr(ops, "dot_product_attention", plain_attention)
    mixed = product(query, key, value, is_causal=causal)
    return layers.Reshape((query.shape[1], query.shape[2] * query.shape[3]))(mixed)


def plain_attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """What `keras.ops.dot_product_attention` computes on TensorFlow, for the Keras of older stacks, which lacks it:
    shapes as of `mixed` -> as the query; float32 softmax."""
    scores = ops.einsum("bqhd,bkhd->bhqk", query, key)
    scores = ops.cast(scores, "float32") / math.sqrt(query.shape[-1])
    if is_causal:
        past = np.tri(query.shape[1], key.shape[1], dtype="bool")
        scores = ops.where(past, scores, -1e30)
    return ops.einsum("bhqk,bkhd->bqhd", ops.cast(ops.softmax(scores), value.dtype), value)


def feed_forward_layers(width: int, hidden: int, activation: Any, deviation: float | None = None) -> Any:
    """A hidden layer at every token, and the one behind it; `deviation` as in `Attention`."""
    last = dense_layer(width, deviation)
    first = dense_layer(hidden, deviation, activation=activation)
    return lambda x: last(first(x))


def dense_layer(units: int, deviation: float | None, use_bias: bool = True, activation: Any = None) -> layers.Layer:
    """A dense layer with an initializer of its own: one that is shared gives equal shapes equal weights."""
    initializer = initializers.RandomNormal(stddev=deviation) if deviation else "glorot_uniform"
    return layers.Dense(units, activation=activation, use_bias=use_bias, kernel_initializer=initializer)


class TiedEmbedding(layers.Layer):  # type: ignore[misc]
    """A table of vectors: gives `scale` times those of tokens, and in reverse multiplies vectors with every row."""

    def __init__(self, vocabulary: int, width: int, deviation: float, scale: float = 1.0) -> None:
        super().__init__()
        self._shape = (vocabulary, width)
        self._scale = scale
        self._initializer = initializers.RandomNormal(stddev=deviation)

    def build(self, input_shape: Any) -> None:
        self.table = self.add_weight(shape=self._shape, initializer=self._initializer, name="embeddings")

    def call(self, x: Any, reverse: bool = False) -> Any:
        """Tokens (batch, length) -> (batch, length, width); reverse: that -> (batch, length, vocabulary)."""
        if reverse:
            return ops.matmul(x, ops.transpose(self.table))
        rows = ops.take(self.table, x, axis=0)
        return rows if self._scale == 1.0 else rows * self._scale


class Positions(layers.Layer):  # type: ignore[misc]
    """Adds a vector to every token by its place: learned, or sines and cosines of wavelengths 2 pi to 10000 x 2 pi."""

    def __init__(self, learned: bool, deviation: float = 0.02) -> None:
        super().__init__()
        self._learned = learned
        self._initializer = initializers.RandomNormal(stddev=deviation)

    def build(self, input_shape: Any) -> None:
        shape = tuple(input_shape[1:])
        if self._learned:
            self.table = self.add_weight(shape=shape, initializer=self._initializer, name="positions")
        else:
            # No variable: frameworks would carry it through every step as if it could change.
            self._constant = ops.convert_to_tensor(sinusoids(*shape), dtype=self.compute_dtype)

    def call(self, x: Any, first: Any = None) -> Any:
        """(batch, length, width) -> the same; `first`: x is (batch, n, width), its places are those from `first` on."""
        table = self.table if self._learned else ops.convert_to_tensor(self._constant)
        return x + (table if first is None else ops.take(table, first + ops.arange(x.shape[1]), axis=0))


class ClassToken(layers.Layer):  # type: ignore[misc]
    """Puts one learned vector before the tokens: (batch, n, width) -> (batch, n + 1, width)."""

    def build(self, input_shape: Any) -> None:
        self.token = self.add_weight(shape=(1, 1, input_shape[-1]), initializer="zeros", name="class_token")

    def call(self, x: Any) -> Any:
        first = ops.broadcast_to(ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([first, x], axis=1)


class Rotation(layers.Layer):  # type: ignore[misc]
    """A layer without variables: (batch, length, heads, head) -> the same, turned by its place. Numbers i and i + head
    / 2 of a head are turned by place / 10000^(2 i / head) (Su et al. 2021, equation 34)."""

    def __init__(self, length: int, head: int) -> None:
        super().__init__()
        angles = np.arange(length)[:, None] * 10000.0 ** (-2 * np.arange(head // 2) / head)
        self._turned = [part.astype("float32")[:, None, :] for part in (np.cos(angles), np.sin(angles))]

    def build(self, input_shape: Any) -> None:
        # No variables, as of `Positions`.
        self._constant = [ops.convert_to_tensor(part, dtype=self.compute_dtype) for part in self._turned]

    def call(self, x: Any) -> Any:
        cosine, sine = map(ops.convert_to_tensor, self._constant)
        first, second = ops.split(x, 2, axis=-1)
        return ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def sinusoids(length: int, width: int) -> np.ndarray:
    """Sine in even columns, cosine in odd ones, of place / 10000^(2 i / width) (Vaswani et al. 2017, section 3.5)."""
    places = np.arange(length)[:, None]
    columns = np.arange(width)[None, :]
    angles = places * np.exp(-math.log(10000.0) * 2 * (columns // 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype("float32")
