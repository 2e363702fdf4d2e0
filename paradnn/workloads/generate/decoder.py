"""Greedy generation with a key-value cache.

Prefill and decode share weights and cache. All shapes are fixed: each decode step reads the whole
cache and masks the positions that are not written yet. The cache, the token and its position are
variables. Therefore, one program serves all decode steps, and no step waits for the host. After the
last position, decoding continues at the first position after the prompt.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from paradnn.families import make_model
from paradnn.families.built import ArraySpec, BuiltModel, FunctionModel
from paradnn.families.parts.attention import Attention, attend

#: Attention score of a masked position.
_MASKED = -1e30


class Decoder:
    """The two phases of a decoder-only model for a batch of prompts.

    Args:
        model: Model options by name.
        batch_size: Number of prompts.
        prompt: Tokens per prompt.
        tokens: Tokens to generate per prompt.
        compile: Compile mode of the steps, such as "xla".

    Attributes:
        model: The Keras model of whole sequences, which has the same weights.
        prefill: Model of the prefill: from prompts (batch, prompt) to logits (batch, vocab_size).
        decode: Model of a decode step: without input, to logits (batch, vocab_size).
        cache_bytes: Size of the keys and values of all layers in bytes.
    """

    def __init__(
        self, model: Mapping[str, Any], batch_size: int, *, prompt: int, tokens: int, compile: str
    ) -> None:
        options: Any = make_model(model)
        self._network = options.network()
        self._prompt = prompt
        self._length = prompt + tokens
        self._by_xla = compile == "xla"
        self.model = self._network.workload.model
        shape = (batch_size, options.key_value_heads, self._length, options.head_size)
        dtype = keras.config.dtype_policy().compute_dtype
        layers = range(options.layers)
        self._keys = [_variable(shape, dtype, f"keys_{number}") for number in layers]
        self._values = [_variable(shape, dtype, f"values_{number}") for number in layers]
        self._position = _variable((), "int32", "position")
        self._token = _variable((batch_size, 1), "int32", "token")
        caches = [*self._keys, *self._values]
        element_bytes = 4 if dtype == "float32" else 2
        self.cache_bytes = math.prod(shape) * len(caches) * element_bytes
        weights = self.model.trainable_variables
        state = [*caches, self._position, self._token]
        # Both phases share this list of values that one step passes to the next.
        carried: list[Any] = []

        def phase(compute: Callable[..., Any], *inputs: ArraySpec) -> BuiltModel:
            return BuiltModel(FunctionModel(compute, weights, state), inputs, carried=carried)

        self.prefill = phase(self._read_prompts, ArraySpec((prompt,), "int32", options.vocab_size))
        self.decode = phase(self._decode_token)

    def _read_prompts(self, prompts: Any) -> Any:
        """Read the prompts into the cache, and store the first generated token.

        Args:
            prompts: Tokens (batch, prompt).

        Returns:
            The logits (batch, vocab_size) after the last token of each prompt.
        """
        self._position.assign(ops.convert_to_tensor(self._prompt, "int32"))
        return self._choose_token(self._blocks(prompts, None))

    def _decode_token(self) -> Any:
        """Generate the next token from the last one, which this method adds to the cache.

        Returns:
            The logits (batch, vocab_size) of the next token.
        """
        # This copies the value, because the variable changes below.
        position = self._position + 0
        x = self._blocks(self._token.value, position)
        following = position + 1
        self._position.assign(ops.where(following < self._length, following, self._prompt))
        return self._choose_token(x)

    def _blocks(self, tokens: Any, position: Any) -> Any:
        """Return the output (batch, n, width) of the stack of transformer blocks.

        Args:
            tokens: Tokens (batch, n).
            position: Position of the first token; None for prompts, which begin at position 0.
        """
        first = 0 if position is None else position
        x = self._network.embed(tokens, first=first)
        for number, (attention_part, feed_part) in enumerate(self._network.blocks):
            attention_norm, attention = attention_part
            feed_norm, feed = feed_part
            x = x + self._attend(attention, number, attention_norm(x), position)
            x = x + feed(feed_norm(x))
        return x

    def _choose_token(self, x: Any) -> Any:
        """Choose the most likely next token of each example, and return the logits.

        The chosen tokens (batch, 1) are stored in `self._token`, the input of the next step.

        Args:
            x: Output (batch, n, width) of the blocks; the last position is used.

        Returns:
            Logits (batch, vocab_size) in float32.
        """
        logits = ops.cast(self._network.logits(x[:, -1]), "float32")
        self._token.assign(ops.cast(ops.argmax(logits, axis=-1), "int32")[:, None])
        return logits

    def _attend(self, attention: Attention, number: int, x: Any, position: Any) -> Any:
        """Write keys and values to the cache, and return the attention output (batch, n, width).

        A prompt attends to itself. A token attends to the cache up to its position.

        Args:
            attention: The attention layer.
            number: Number of the block.
            x: Normalized input (batch, n, width).
            position: Position of the token; None for prompts.
        """
        first = 0 if position is None else position
        query, key, value = attention.project(x, first=first)
        keys = self._keys[number]
        values = self._values[number]
        self._write(keys, ops.transpose(key, (0, 2, 1, 3)), first)
        self._write(values, ops.transpose(value, (0, 2, 1, 3)), first)
        if position is None:
            return attention.last(attend(query, key, value, causal=True))
        return attention.last(self._attend_to_cache(query, keys, values, position))

    def _attend_to_cache(
        self, query: Any, keys: keras.Variable, values: keras.Variable, position: Any
    ) -> Any:
        """Return the attention (batch, 1, heads x head) of one token to the cached positions.

        The softmax is computed in float32. Query heads that share their keys are the rows of one
        matrix product. The cache has the layout of the product's operands, so no step transposes
        it.

        Args:
            query: Query (batch, 1, heads, head).
            keys: Cached keys (batch, key heads, length, head).
            values: Cached values, of the same shape.
            position: The last position that has been written. Later positions are masked.
        """
        batch, _, heads, head = query.shape
        key_heads = keys.shape[1]
        grouped = ops.reshape(query, (batch, key_heads, heads // key_heads, head))
        scores = ops.cast(ops.einsum("bhqd,bhkd->bhqk", grouped, keys.value), "float32")
        scores = scores / math.sqrt(head)
        is_written = ops.arange(self._length) <= position
        weights = ops.softmax(ops.where(is_written, scores, _MASKED))
        weights = ops.cast(weights, query.dtype)
        output = ops.einsum("bhqk,bhkd->bhqd", weights, values.value)
        return ops.reshape(output, (batch, 1, heads * head))

    def _write(self, cache: keras.Variable, rows: Any, first: Any) -> None:
        """Write keys or values of tokens into the cache.

        Keras' `slice_update` copies the cache, unless XLA detects that nothing else reads the old
        value. PyTorch, and TensorFlow without XLA, therefore use native operations that write in
        place. TensorFlow without XLA still copies a variable that is read after a partial write.

        Args:
            cache: The cache, (batch, heads, length, head).
            rows: The keys or values, (batch, heads, n, head).
            first: Position in the cache of the first of the n tokens.
        """
        count = rows.shape[2]
        backend = keras.backend.backend()
        if backend == "torch":
            positions = ops.cast(first + ops.arange(count), "int64")
            cache.value.index_copy_(2, positions, rows)
        elif backend == "tensorflow" and not self._by_xla:
            cache.value[:, :, first : first + count].assign(rows)
        else:
            cache.assign(ops.slice_update(cache.value, [0, 0, first, 0], rows))


def _variable(shape: tuple[int, ...], dtype: str, name: str) -> keras.Variable:
    """Return a non-trainable variable of zeros that can be written in place.

    Autocasting is disabled, so that `value` is the tensor of the variable and not a converted copy.

    Args:
        shape: Shape of the variable.
        dtype: Name of the element type.
        name: Name of the variable in Keras.
    """
    return keras.Variable(
        keras.initializers.Zeros(),
        shape=shape,
        dtype=dtype,
        trainable=False,
        autocast=False,
        name=name,
    )
