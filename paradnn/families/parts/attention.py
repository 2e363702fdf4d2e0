"""Keras layers of the Transformers: attention, feed-forward layers, embeddings, positions.

Attention calls `keras.ops.dot_product_attention`, so each framework runs its own implementation.
TensorFlow runs two matrix products with a float32 softmax between them. JAX runs
`jax.nn.dot_product_attention` (cuDNN's flash attention on GPUs that support it). PyTorch runs
`scaled_dot_product_attention` (a fused kernel, also on a CPU).
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
    """Rotary position embedding (Su et al. 2021, equation 34), a layer without variables.

    Elements i and i + head / 2 of a head form a pair. The pair is rotated by the angle
    position / 10000^(2 i / head), in radians. Input and output are (batch, n, heads, head).

    Args:
        length: Number of positions.
        head: Width of a head; an even number.
    """

    def __init__(self, length: int, head: int) -> None:
        super().__init__()
        angles = np.arange(length)[:, None] * 10000.0 ** (-2 * np.arange(head // 2) / head)
        self._cosines = np.cos(angles).astype("float32")[:, None, :]
        self._sines = np.sin(angles).astype("float32")[:, None, :]

    def build(self, input_shape: Any) -> None:
        # Constants, not variables, for the reason given in `Positions.build`.
        self._constants = [
            ops.convert_to_tensor(values, dtype=self.compute_dtype)
            for values in (self._cosines, self._sines)
        ]

    def call(self, x: Any, first: Any = None) -> Any:
        """Rotate each head of each token by an angle that depends on the token's position.

        Args:
            x: (batch, n, heads, head).
            first: Position of the first token of x. If None, x must contain all positions from 0.
        """
        tables = [ops.convert_to_tensor(values) for values in self._constants]
        if first is not None:
            positions = first + ops.arange(x.shape[1])
            tables = [ops.take(table, positions, axis=0) for table in tables]
        cosine, sine = tables
        low, high = ops.split(x, 2, axis=-1)
        return ops.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)


class Attention:
    """Multi-head attention of tokens to each other, or to a memory, such as an encoder's output.

    Args:
        width: Width of the model.
        heads: Number of query heads.
        use_bias: Whether the projections have biases.
        deviation: Standard deviation of normally distributed initial weights. If None, they are
            Glorot uniform.
        crossed: Whether keys and values come from a memory.
        key_heads: Number of key heads and of value heads, each shared by a group of query heads; by
            default `heads`.
        head: Width of a head; by default `width` / `heads`.
        normalize: Function that makes a normalization layer. It is called twice: one layer
            normalizes the queries of each head, the other the keys. None: no normalization.
        rotate: Rotary embedding of queries and keys; None: no rotation.

    Attributes:
        joint: Layer that computes query, key and value, concatenated in this order. If crossed, it
            computes only key and value, from the memory.
        last: Layer that projects the concatenated outputs of all heads.
    """

    def __init__(  # noqa: PLR0913 - one keyword per choice
        self,
        width: int,
        heads: int,
        *,
        use_bias: bool = True,
        deviation: float | None = None,
        crossed: bool = False,
        key_heads: int | None = None,
        head: int | None = None,
        normalize: Callable[[], Any] | None = None,
        rotate: RotaryEmbedding | None = None,
    ) -> None:
        self.heads = heads
        self.key_heads = key_heads or heads
        self.head = head or width // heads
        joint_width = 2 * self.key_heads * self.head
        self._query = None
        if crossed:
            self._query = dense_layer(heads * self.head, deviation, use_bias=use_bias)
        else:
            joint_width += heads * self.head
        self.joint = dense_layer(joint_width, deviation, use_bias=use_bias)
        self.last = dense_layer(width, deviation, use_bias=use_bias)
        self._norms = [normalize(), normalize()] if normalize else []
        self._rotate = rotate

    def project(self, x: Any, memory: Any = None, first: Any = None) -> list[Any]:
        """Project tokens to queries, keys and values.

        Args:
            x: (batch, tokens, width).
            memory: (batch, keys, width); required if crossed, else ignored.
            first: Position of the first token. If None, x must contain all positions from 0.

        Returns:
            Query (batch, tokens, heads, head), key and value (batch, keys, key_heads, head).
        """
        width = self.heads * self.head
        keys = self.key_heads * self.head
        if self._query:
            parts = [self._query(x), *split(self.joint(memory), keys, keys)]
        else:
            parts = split(self.joint(x), width, keys, keys)
        # Use operations, not layers: generation calls this under torch.compile, which cannot create
        # layers.
        query, key, value = (
            ops.reshape(part, (-1, part.shape[1], part.shape[2] // self.head, self.head))
            for part in parts
        )
        if self._norms:
            query_norm, key_norm = self._norms
            query = query_norm(query)
            key = key_norm(key)
        if self._rotate:
            query = self._rotate(query, first=first)
            key = self._rotate(key, first=first)
        return [query, key, value]

    def __call__(self, x: Any, memory: Any = None, causal: bool = False) -> Any:
        """Apply attention from the tokens to themselves, or to a memory if crossed.

        Args:
            x: (batch, tokens, width).
            memory: (batch, keys, width); required if crossed, else ignored.
            causal: Whether each token attends only to itself and to earlier tokens.

        Returns:
            (batch, tokens, width).
        """
        query, key, value = self.project(x, memory)
        return self.last(attend(query, key, value, causal=causal))


def split(x: Any, *widths: int) -> list[Any]:
    """Split a tensor along the last axis into consecutive parts.

    Args:
        x: The tensor.
        widths: Size of each part along the last axis; the sum is the size of this axis of x.
    """
    ends = list(accumulate(widths))
    # PyTorch's compiler cannot trace Keras' split.
    if _ON_TORCH:
        return [x[..., end - width : end] for width, end in zip(widths, ends, strict=True)]
    return list(ops.split(x, ends[:-1], axis=-1))


def attend(query: Any, key: Any, value: Any, *, causal: bool) -> Any:
    """Return the scaled dot-product attention of all heads, concatenated.

    Args:
        query: (batch, queries, heads, head).
        key: (batch, keys, key_heads, head).
        value: (batch, keys, key_heads, head).
        causal: Whether each query attends only to the keys up to its own position.

    Returns:
        (batch, queries, heads * head).
    """
    product = getattr(ops, "dot_product_attention", plain_attention)
    is_fused = _ON_TORCH and product is not plain_attention
    settings = {}
    if is_fused:
        # PyTorch selects a fused kernel automatically. torch.compile cannot trace the check for
        # flash attention in Keras, so skip the check.
        settings["flash_attention"] = False
    groups = query.shape[2] // key.shape[2]
    # On PyTorch, the product repeats two or more key heads without help. Avoid Keras' `repeat`
    # there, because torch.compile cannot trace it.
    repeats_itself = is_fused and key.shape[2] > 1
    if groups > 1 and not repeats_itself:
        # Repeat each key head for every query head that shares it.
        key = ops.repeat(key, groups, axis=2)
        value = ops.repeat(value, groups, axis=2)
    outputs = product(query, key, value, is_causal=causal, **settings)
    return ops.reshape(outputs, (-1, query.shape[1], query.shape[2] * query.shape[3]))


class Network:
    """A decoder-only model over whole sequences, and its parts, which generation calls separately.

    Args:
        embed: Function of tokens (batch, n), and of the position `first` of the first token. It
            returns embeddings (batch, n, width).
        blocks: For each block: (normalization, attention), (normalization, feed-forward network).
        logits: Function that maps (..., width) to (..., vocabulary).
        sizes: Number of tokens of a sequence, and size of the vocabulary.

    Attributes:
        embed: The function `embed`.
        blocks: The parts of each block.
        logits: The function `logits`.
        workload: The `BuiltModel` over whole sequences.
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
        for (normalize, attention), (normalize_again, feed_forward) in blocks:
            x = x + attention(normalize(x), causal=True)
            x = x + feed_forward(normalize_again(x))
        self.workload = token_predictor(inputs, logits(x), sizes[1])


def plain_attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """Replace `keras.ops.dot_product_attention` in older versions of Keras that lack it.

    The softmax is computed in float32, as on TensorFlow.

    Args:
        query: (batch, queries, heads, head).
        key: (batch, keys, heads, head).
        value: (batch, keys, heads, head).
        is_causal: Whether each query attends only to the keys up to its own position.

    Returns:
        A tensor with the shape of the query.
    """
    scores = ops.einsum("bqhd,bkhd->bhqk", query, key)
    scores = ops.cast(scores, "float32") / math.sqrt(query.shape[-1])
    if is_causal:
        visible = np.tri(query.shape[1], key.shape[1], dtype="bool")
        scores = ops.where(visible, scores, -1e30)
    return ops.einsum("bhqk,bkhd->bqhd", ops.cast(ops.softmax(scores), value.dtype), value)


def feed_forward_network(
    width: int, hidden: int, activation: Any, deviation: float | None = None
) -> Callable[[Any], Any]:
    """Make a feed-forward network: a hidden layer and an output layer, applied to each token.

    Args:
        width: Width of the output layer.
        hidden: Units of the hidden layer.
        activation: Activation function of the hidden layer.
        deviation: Standard deviation of normally distributed initial weights. If None, they are
            Glorot uniform.
    """
    last = dense_layer(width, deviation)
    first = dense_layer(hidden, deviation, activation=activation)
    return lambda x: last(first(x))


def dropout(x: Any, rate: float) -> Any:
    """Apply a dropout layer; return the input unchanged if the rate is 0.

    Args:
        x: A Keras tensor of any shape.
        rate: Fraction (0..1) of the elements that are set to 0 in training.
    """
    if rate:
        return layers.Dropout(rate)(x)
    return x


def dense_layer(
    units: int, deviation: float | None, *, use_bias: bool = True, activation: Any = None
) -> layers.Layer:
    """Make a dense layer with a separate initializer.

    If layers of equal shape shared an initializer, their initial weights would be equal.

    Args:
        units: Number of outputs.
        deviation: Standard deviation of normally distributed initial weights. If None, they are
            Glorot uniform.
        use_bias: Whether the layer has a bias.
        activation: Activation function, as for `keras.layers.Dense`; None for a linear layer.
    """
    if deviation:
        initializer = initializers.RandomNormal(stddev=deviation)
    else:
        initializer = "glorot_uniform"
    return layers.Dense(
        units, activation=activation, use_bias=use_bias, kernel_initializer=initializer
    )


class TiedEmbedding(layers.Layer):  # type: ignore[misc]
    """A table of vectors that serves as embedding and as output layer.

    Args:
        vocabulary: Number of vectors.
        width: Width of a vector.
        deviation: Standard deviation of the initial vectors.
        scale: Factor by which the embedding multiplies the vectors; the output layer does not.
        use_bias: Whether the output layer adds a bias.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        deviation: float,
        scale: float = 1.0,
        *,
        use_bias: bool = False,
    ) -> None:
        super().__init__()
        self._shape = (vocabulary, width)
        self._scale = scale
        self._use_bias = use_bias
        self._initializer = initializers.RandomNormal(stddev=deviation)

    def build(self, input_shape: Any) -> None:
        self.table = self.add_weight(
            shape=self._shape, initializer=self._initializer, name="embeddings"
        )
        if self._use_bias:
            self.bias = self.add_weight(shape=self._shape[:1], initializer="zeros", name="bias")

    def call(self, x: Any, reverse: bool = False) -> Any:
        """Look up the vectors of tokens, or compute logits with the same table.

        Args:
            x: Tokens (batch, length); with `reverse`, vectors (batch, length, width).
            reverse: Whether to act as the output layer.

        Returns:
            Vectors (batch, length, width); with `reverse`, logits (batch, length, vocabulary).
        """
        if reverse:
            logits = ops.matmul(x, ops.transpose(self.table))
            return logits + self.bias if self._use_bias else logits
        rows = ops.take(self.table, x, axis=0)
        if self._scale == 1.0:
            return rows
        return rows * self._scale


class Positions(layers.Layer):  # type: ignore[misc]
    """Adds to each token a vector that depends on the position of the token.

    Args:
        learned: Whether the vectors are learned. If not, they are sines and cosines with
            wavelengths from 2 pi to 10000 x 2 pi.
        deviation: Standard deviation of the initial vectors; ignored if they are not learned.
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
            # A constant, because frameworks pass variables from step to step as if they changed.
            self._constant = ops.convert_to_tensor(sinusoids(*shape), dtype=self.compute_dtype)

    def call(self, x: Any, first: Any = None) -> Any:
        """Add positions to x.

        Args:
            x: (batch, n, width).
            first: Position of the first token of x. If None, x must contain all positions from 0.
        """
        if self._learned:
            table = self.table
        else:
            table = ops.convert_to_tensor(self._constant)
        if first is not None:
            table = ops.take(table, first + ops.arange(x.shape[1]), axis=0)
        return x + table


class ClassToken(layers.Layer):  # type: ignore[misc]
    """Prepends one learned vector to the tokens: (batch, n, width) -> (batch, n + 1, width)."""

    def build(self, input_shape: Any) -> None:
        self.token = self.add_weight(
            shape=(1, 1, input_shape[-1]), initializer="zeros", name="class_token"
        )

    def call(self, x: Any) -> Any:
        first = ops.broadcast_to(ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([first, x], axis=1)


class Experts(layers.Layer):  # type: ignore[misc]
    """A mixture of experts, which are SwiGLU layers. Input and output: (batch, length, width).

    Each token chooses the `active` experts with the highest probabilities. Their outputs are added,
    weighted with these probabilities, which are scaled to sum to one (Jiang et al. 2024, section
    2.1). An expert processes the first `rows` tokens of an example that choose it. It contributes
    nothing to later tokens.

    Args:
        width: Width of the model.
        hidden: Hidden units of an expert.
        experts: Number of experts.
        active: Number of experts that each token chooses.
        rows: Maximum number of tokens of an example that an expert processes.
        deviation: Standard deviation of the initial weights.
    """

    def __init__(
        self, *, width: int, hidden: int, experts: int, active: int, rows: int, deviation: float
    ) -> None:
        super().__init__()
        self._width = width
        self._hidden = hidden
        self._active = active
        self._rows = rows
        self._experts = experts
        self._router = dense_layer(experts, deviation, use_bias=False)
        self._deviation = deviation

    def build(self, input_shape: Any) -> None:
        self.joint = self.add_weight(
            shape=(self._experts, self._width, 2 * self._hidden),
            initializer=initializers.RandomNormal(stddev=self._deviation),
            name="gates_hidden",
        )
        self.output_weights = self.add_weight(
            shape=(self._experts, self._hidden, self._width),
            initializer=initializers.RandomNormal(stddev=self._deviation),
            name="output",
        )
        self._router.build(input_shape)

    def call(self, x: Any) -> Any:
        length = x.shape[1]
        slots = self._experts * self._rows
        choices = length * self._active
        scores = ops.softmax(ops.cast(self._router(x), "float32"))
        probabilities, experts = ops.top_k(scores, self._active)
        weights = probabilities / ops.sum(probabilities, axis=-1, keepdims=True)
        weights = ops.cast(weights, x.dtype)
        experts = ops.reshape(ops.cast(experts, "int32"), (-1, choices))  # (batch, choices)
        chosen = ops.one_hot(experts, self._experts, dtype="int32")
        # The rank of each choice among all choices of the same expert decides whether it gets a
        # slot. An expert has `rows` slots.
        ranks = ops.sum((ops.cumsum(chosen, axis=1) - 1) * chosen, axis=-1)
        tokens = self._slot_tokens(experts, ranks, chosen)
        # An empty slot contains the row of an arbitrary token; its output is not read.
        rows = ops.take_along_axis(x, tokens[:, :, None], axis=1)
        outputs = ops.reshape(self._apply_experts(rows), (-1, slots, self._width))
        slot = experts * self._rows + ops.minimum(ranks, self._rows - 1)
        parts = ops.take_along_axis(outputs, slot[:, :, None], axis=1)
        parts = parts * ops.cast(ranks < self._rows, x.dtype)[:, :, None]
        parts = ops.reshape(parts, (-1, length, self._active, self._width))
        return ops.sum(parts * weights[..., None], axis=2)

    def _slot_tokens(self, experts: Any, ranks: Any, chosen: Any) -> Any:
        """Return the token in each slot of each expert, (batch, slots).

        Args:
            experts: Expert of each choice, (batch, choices).
            ranks: Rank of each choice among the choices of the same expert, (batch, choices).
            chosen: One-hot experts, (batch, choices, experts).
        """
        choices = experts.shape[1]
        slots = self._experts * self._rows
        order = ops.cast(ops.argsort(experts * choices + ranks, axis=1), "int32")
        counts = ops.sum(chosen, axis=1)
        starts = ops.cumsum(counts, axis=1) - counts
        positions = starts[:, :, None] + ops.arange(self._rows, dtype="int32")
        positions = ops.minimum(ops.reshape(positions, (-1, slots)), choices - 1)
        return ops.take_along_axis(order, positions, axis=1) // self._active

    def _apply_experts(self, rows: Any) -> Any:
        """Apply each expert to the rows in its slots.

        Args:
            rows: The token vectors in all slots, (batch, experts * rows per expert, width).

        Returns:
            The outputs, (batch, experts, rows per expert, width).
        """
        shape = (-1, self._experts, self._rows, self._width)
        by_expert = ops.transpose(ops.reshape(rows, shape), (1, 0, 2, 3))
        by_expert = ops.reshape(by_expert, (self._experts, -1, self._width))
        gates, hidden = ops.split(ops.matmul(by_expert, self.joint), 2, axis=-1)
        outputs = ops.matmul(ops.silu(gates) * hidden, self.output_weights)
        outputs = ops.reshape(outputs, (self._experts, -1, self._rows, self._width))
        return ops.transpose(outputs, (1, 0, 2, 3))


def sinusoids(length: int, width: int) -> np.ndarray:
    """Return sinusoidal positions as in Vaswani et al. 2017, section 3.5.

    Column 2 i is the sine and column 2 i + 1 the cosine of position / 10000^(2 i / width).

    Args:
        length: Number of positions.
        width: Width of the vectors.

    Returns:
        An array of shape (length, width).
    """
    positions = np.arange(length)[:, None]
    columns = np.arange(width)[None, :]
    angles = positions * np.exp(-math.log(10000.0) * 2 * (columns // 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype("float32")
