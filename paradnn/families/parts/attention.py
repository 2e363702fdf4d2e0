"""What the attention models are built of in Keras: scaled dot-product attention, feed-forward,
embeddings, positions.

Attention is `keras.ops.dot_product_attention`, so each framework runs its own kernel: on TensorFlow
two products with a float32 softmax between them, on JAX `jax.nn.dot_product_attention` (cuDNN's
flash attention where the GPU has it), on PyTorch `scaled_dot_product_attention` (a fused kernel,
also on a CPU).
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import keras
import numpy as np
from keras import initializers, layers, ops

from paradnn.families.built import token_predictor

_ON_TORCH = keras.backend.backend() == "torch"


class RotaryEmbedding(layers.Layer):  # type: ignore[misc]
    """A layer without variables: (batch, length, heads, head) -> the same, turned by its place.
    Numbers i and i + head / 2 of a head are turned by place / 10000^(2 i / head) (Su et al. 2021,
    equation 34).
    """

    def __init__(self, length: int, head: int) -> None:
        super().__init__()
        angles = np.arange(length)[:, None] * 10000.0 ** (-2 * np.arange(head // 2) / head)
        self._turned = [
            part.astype("float32")[:, None, :] for part in (np.cos(angles), np.sin(angles))
        ]

    def build(self, input_shape: Any) -> None:
        # No variables, as of `Positions`.
        self._constant = [
            ops.convert_to_tensor(part, dtype=self.compute_dtype) for part in self._turned
        ]

    def call(self, x: Any, first: Any = None) -> Any:
        """`first`: the place of the first token, where x is no whole sequence."""
        angles = [ops.convert_to_tensor(part) for part in self._constant]
        if first is not None:
            angles = [ops.take(part, first + ops.arange(x.shape[1]), axis=0) for part in angles]
        (cosine, sine), (low, high) = angles, ops.split(x, 2, axis=-1)
        return ops.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)


class Attention:
    """Multi-head attention of tokens to each other, or (`crossed`) to a memory. `joint` makes
    query, key and value in that order, crossed the last two, of the memory; `last` mixes the heads.
    `deviation` is that of normal initial weights; None: Glorot's. `key_heads`: heads of keys and
    values, each for several heads of queries; `rotate`: turns queries and keys by their places.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        use_bias: bool = True,
        deviation: float | None = None,
        crossed: bool = False,
        key_heads: int | None = None,
        rotate: RotaryEmbedding | None = None,
    ) -> None:
        self.heads = heads
        self.key_heads = key_heads or heads
        self.head = width // heads
        keys = 2 * self.key_heads * self.head
        if crossed:
            self._query = dense_layer(width, deviation, use_bias)
        else:
            self._query = None
        self.joint = dense_layer(keys if crossed else width + keys, deviation, use_bias)
        self.last = dense_layer(width, deviation, use_bias)
        self._rotate = rotate

    def project(self, x: Any, memory: Any = None, first: Any = None) -> list[Any]:
        """(batch, tokens, width), memory (batch, keys, width) -> query (batch, tokens, heads,
        head), key and value (batch, keys, key_heads, head); `first`: the place of the first token,
        None: the beginning.
        """
        width = self.heads * self.head
        keys = self.key_heads * self.head
        if self._query:
            parts = [self._query(x), *split(self.joint(memory), keys, keys)]
        else:
            parts = split(self.joint(x), width, keys, keys)
        # No layer: torch.compile makes none, and a generation calls this under it.
        shapes = ((-1, part.shape[1], part.shape[2] // self.head, self.head) for part in parts)
        query, key, value = map(ops.reshape, parts, shapes)
        if self._rotate:
            turned = (self._rotate(part, first=first) for part in (query, key))
        else:
            turned = (query, key)
        return [*turned, value]

    def __call__(self, x: Any, memory: Any = None, causal: bool = False) -> Any:
        """(batch, tokens, width), memory (batch, keys, width) -> (batch, tokens, width); `causal`:
        no look ahead.
        """
        query, key, value = self.project(x, memory)
        return self.last(mixed(query, key, value, causal))


def split(x: Any, *widths: int) -> list[Any]:
    """Its parts of such widths along the last axis; slices on PyTorch, whose compiler stops where
    Keras splits.
    """
    ends = [*accumulate(widths)]
    if _ON_TORCH:
        return [x[..., end - width : end] for width, end in zip(widths, ends, strict=True)]
    return list(ops.split(x, ends[:-1], axis=-1))


def mixed(query: Any, key: Any, value: Any, causal: bool) -> Any:
    """Query (batch, queries, heads, head), key and value (batch, keys, key_heads, head) -> (batch,
    queries, width).
    """
    product = getattr(ops, "dot_product_attention", plain_attention)
    # PyTorch chooses a fused kernel by itself; Keras' asking whether it may cannot be compiled, nor
    # its `repeat`, which the product does there itself for two heads of keys or more.
    fused = _ON_TORCH and product is not plain_attention
    settings = {"flash_attention": False} if fused else {}
    groups = query.shape[2] // key.shape[2]
    if groups > 1 and not (fused and key.shape[2] > 1):
        # Each head of keys beside the heads of queries that share it.
        key, value = (ops.repeat(part, groups, axis=2) for part in (key, value))
    mixed = product(query, key, value, is_causal=causal, **settings)
    return ops.reshape(mixed, (-1, query.shape[1], query.shape[2] * query.shape[3]))


class Network:
    """A decoder-only model over whole sequences, as `workload`, and its parts, which a generation
    calls one by one.

    embed(tokens, first): (batch, n) tokens -> (batch, n, width), those from place `first` on.
    blocks: of each the attention and the feed-forward layers, each after the normalisation before
    it. logits: (..., width) -> (..., vocabulary). sizes: length of a sequence, tokens of the
    vocabulary.
    """

    def __init__(
        self,
        embed: Callable[..., Any],
        blocks: Sequence[tuple[tuple[Any, Attention], tuple[Any, Any]]],
        logits: Callable[[Any], Any],
        sizes: tuple[int, int],
    ) -> None:
        self.embed = embed
        self.blocks = blocks
        self.logits = logits
        inputs = keras.Input(sizes[:1], dtype="int32")
        x = embed(inputs)
        for (before, attention), (then, feed) in blocks:
            x = x + attention(before(x), causal=True)
            x = x + feed(then(x))
        self.workload = token_predictor(inputs, logits(x), sizes[1])


def plain_attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """What `keras.ops.dot_product_attention` computes on TensorFlow, for the Keras of older stacks,
    which lacks it: shapes as of `mixed` -> as the query; float32 softmax.
    """
    scores = ops.einsum("bqhd,bkhd->bhqk", query, key)
    scores = ops.cast(scores, "float32") / math.sqrt(query.shape[-1])
    if is_causal:
        past = np.tri(query.shape[1], key.shape[1], dtype="bool")
        scores = ops.where(past, scores, -1e30)
    return ops.einsum("bhqk,bkhd->bqhd", ops.cast(ops.softmax(scores), value.dtype), value)


def feed_forward_layers(
    width: int, hidden: int, activation: Any, deviation: float | None = None
) -> Any:
    """A hidden layer at every token, and the one behind it; `deviation` as in `Attention`."""
    last = dense_layer(width, deviation)
    first = dense_layer(hidden, deviation, activation=activation)
    return lambda x: last(first(x))


def dense_layer(
    units: int, deviation: float | None, use_bias: bool = True, activation: Any = None
) -> layers.Layer:
    """A dense layer with an initializer of its own: one that is shared gives equal shapes equal
    weights.
    """
    if deviation:
        initializer = initializers.RandomNormal(stddev=deviation)
    else:
        initializer = "glorot_uniform"
    return layers.Dense(
        units, activation=activation, use_bias=use_bias, kernel_initializer=initializer
    )


class TiedEmbedding(layers.Layer):  # type: ignore[misc]
    """A table of vectors: gives `scale` times those of tokens, and in reverse multiplies vectors
    with every row.
    """

    def __init__(self, vocabulary: int, width: int, deviation: float, scale: float = 1.0) -> None:
        super().__init__()
        self._shape = (vocabulary, width)
        self._scale = scale
        self._initializer = initializers.RandomNormal(stddev=deviation)

    def build(self, input_shape: Any) -> None:
        self.table = self.add_weight(
            shape=self._shape, initializer=self._initializer, name="embeddings"
        )

    def call(self, x: Any, reverse: bool = False) -> Any:
        """Tokens (batch, length) -> (batch, length, width); reverse: that -> (batch, length,
        vocabulary).
        """
        if reverse:
            return ops.matmul(x, ops.transpose(self.table))
        rows = ops.take(self.table, x, axis=0)
        return rows if self._scale == 1.0 else rows * self._scale


class Positions(layers.Layer):  # type: ignore[misc]
    """Adds a vector to every token by its place: learned, or sines and cosines of wavelengths 2 pi
    to 10000 x 2 pi.
    """

    def __init__(self, learned: bool, deviation: float = 0.02) -> None:
        super().__init__()
        self._learned = learned
        self._initializer = initializers.RandomNormal(stddev=deviation)

    def build(self, input_shape: Any) -> None:
        shape = tuple(input_shape[1:])
        if self._learned:
            self.table = self.add_weight(
                shape=shape, initializer=self._initializer, name="positions"
            )
        else:
            # No variable: frameworks would carry it through every step as if it could change.
            self._constant = ops.convert_to_tensor(sinusoids(*shape), dtype=self.compute_dtype)

    def call(self, x: Any, first: Any = None) -> Any:
        """(batch, length, width) -> the same; `first`: x is (batch, n, width), its places are those
        from `first` on.
        """
        if self._learned:
            table = self.table
        else:
            table = ops.convert_to_tensor(self._constant)
        return x + (
            table if first is None else ops.take(table, first + ops.arange(x.shape[1]), axis=0)
        )


class ClassToken(layers.Layer):  # type: ignore[misc]
    """Puts one learned vector before the tokens: (batch, n, width) -> (batch, n + 1, width)."""

    def build(self, input_shape: Any) -> None:
        self.token = self.add_weight(
            shape=(1, 1, input_shape[-1]), initializer="zeros", name="class_token"
        )

    def call(self, x: Any) -> Any:
        first = ops.broadcast_to(ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([first, x], axis=1)


class Experts(layers.Layer):  # type: ignore[misc]
    """SwiGLU layers among which tokens are routed: (batch, length, width) -> the same. Each token
    goes to its `active` likeliest experts, whose outputs are added with their probabilities, made
    to sum to one (Jiang et al. 2024, section 2.1). An expert takes the first `rows` tokens of an
    example that choose it; the others lack its part.
    """

    def __init__(
        self, width: int, hidden: int, experts: int, active: int, rows: int, deviation: float
    ) -> None:
        super().__init__()
        self._sizes = (width, hidden)
        self._active = active
        self._rows = rows
        self._experts = experts
        self._router = dense_layer(experts, deviation, use_bias=False)
        self._deviation = deviation

    def build(self, input_shape: Any) -> None:
        (width, hidden), normal = self._sizes, initializers.RandomNormal(stddev=self._deviation)
        self.joint = self.add_weight(
            shape=(self._experts, width, 2 * hidden), initializer=normal, name="gates_hidden"
        )
        again = initializers.RandomNormal(stddev=self._deviation)
        self.output_weights = self.add_weight(
            shape=(self._experts, hidden, width), initializer=again, name="output"
        )
        self._router.build(input_shape)

    def call(self, x: Any) -> Any:
        length = x.shape[1]
        width = self._sizes[0]
        slots = self._experts * self._rows
        chances, chosen = ops.top_k(ops.softmax(ops.cast(self._router(x), "float32")), self._active)
        chances = ops.cast(chances / ops.sum(chances, axis=-1, keepdims=True), x.dtype)
        chosen = ops.reshape(
            ops.cast(chosen, "int32"), (-1, length * self._active)
        )  # an expert for each choice
        # Choices in the order of their experts: the first `rows` of each fill its slots.
        taken = ops.one_hot(chosen, self._experts, dtype="int32")
        ranks = ops.sum(
            (ops.cumsum(taken, axis=1) - 1) * taken, axis=-1
        )  # of a choice among those of its expert
        order = ops.argsort(chosen * (length * self._active) + ranks, axis=1)
        counts = ops.sum(taken, axis=1)
        starts = ops.cumsum(counts, axis=1) - counts
        places = ops.reshape(
            starts[:, :, None] + ops.arange(self._rows, dtype="int32"), (-1, slots)
        )
        places = ops.minimum(places, length * self._active - 1)
        tokens = ops.take_along_axis(ops.cast(order, "int32"), places, axis=1) // self._active
        rows = ops.take_along_axis(
            x, tokens[:, :, None], axis=1
        )  # of empty slots any token's, which nobody reads
        rows = ops.transpose(
            ops.reshape(rows, (-1, self._experts, self._rows, width)), (1, 0, 2, 3)
        )
        gates, middle = ops.split(
            ops.matmul(ops.reshape(rows, (self._experts, -1, width)), self.joint), 2, axis=-1
        )
        made = ops.matmul(ops.silu(gates) * middle, self.output_weights)
        made = ops.transpose(
            ops.reshape(made, (self._experts, -1, self._rows, width)), (1, 0, 2, 3)
        )
        slot = chosen * self._rows + ops.minimum(ranks, self._rows - 1)
        parts = ops.take_along_axis(ops.reshape(made, (-1, slots, width)), slot[:, :, None], axis=1)
        parts = parts * ops.cast(ranks < self._rows, x.dtype)[:, :, None]
        parts = ops.reshape(parts, (-1, length, self._active, width)) * chances[..., None]
        return ops.sum(parts, axis=2)


def sinusoids(length: int, width: int) -> np.ndarray:
    """Sine in even columns, cosine in odd ones, of place / 10000^(2 i / width) (Vaswani et al.
    2017, section 3.5).
    """
    places = np.arange(length)[:, None]
    columns = np.arange(width)[None, :]
    angles = places * np.exp(-math.log(10000.0) * 2 * (columns // 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype("float32")
