"""Greedy generation with a key-value cache: the two phases of it as workloads that share weights and cache.

All shapes are fixed: each decode step reads the whole cache and masks what is not written yet. Cache, token and its
place are variables, so that one program serves all and no step waits for the host; behind the last place it starts
again after the prompt.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from paradnn.families import model_of
from paradnn.families.attention import Gpt, LanguageModel
from paradnn.families.built import ArraySpec, BuiltModel, FunctionModel
from paradnn.families.parts.attention import plain_attention


class Decoder:
    """The phases of a model (options of the family gpt) for so many prompts; `prefill` takes the prompts, (batch,
    prompt), `decode` nothing. Both give logits (batch, vocab_size). `model` is the same over whole sequences;
    cache_bytes: keys and values of all layers."""

    def __init__(self, model: Mapping[str, Any], batch_size: int, prompt: int, tokens: int, compile: str) -> None:
        options = model_of(model)
        assert isinstance(options, LanguageModel)
        self._network, self._prompt, self._length = Gpt(options), prompt, prompt + tokens
        self._by_xla, self._heads, self.model = compile == "xla", options.heads, self._network.workload.model
        shape = (batch_size, self._heads, self._length, options.width // self._heads)
        dtype = keras.config.dtype_policy().compute_dtype
        self._keys, self._values = (
            [_variable(shape, dtype, f"{name}_{number}") for number in range(options.layers)]
            for name in ("keys", "values")
        )
        self._place = _variable((), "int32", "place")
        self._token = _variable((batch_size, 1), "int32", "token")
        caches = [*self._keys, *self._values]
        self.cache_bytes = math.prod(shape) * len(caches) * (4 if dtype == "float32" else 2)
        carried: list[Any] = []
        handed = (self.model.trainable_variables, [*caches, self._place, self._token])

        def workload(compute: Callable[..., Any], *inputs: ArraySpec) -> BuiltModel:
            return BuiltModel(FunctionModel(compute, *handed), inputs, carried=carried)

        self.prefill = workload(self._read, ArraySpec((prompt,), "int32", options.vocab_size))
        self.decode = workload(self._next)

    def _read(self, prompts: Any) -> Any:
        """Tokens (batch, prompt) -> logits (batch, vocab_size) of what follows the last."""
        self._place.assign(ops.convert_to_tensor(self._prompt, "int32"))
        return self._choose(self._blocks(prompts, None))

    def _next(self) -> Any:
        """Logits (batch, vocab_size) of what follows the last token."""
        place = self._place + 0  # as it is now
        x = self._blocks(self._token.value, place)
        after = place + 1
        self._place.assign(ops.where(after < self._length, after, self._prompt))
        return self._choose(x)

    def _blocks(self, tokens: Any, place: Any) -> Any:
        """Tokens (batch, n) at `place`, or None: from the beginning -> (batch, n, width) after all blocks."""
        network = self._network
        x = network.positions(network.table(tokens), first=0 if place is None else place)
        for number, ((before, attention), (then, feed)) in enumerate(network.blocks):
            x = x + self._attend(attention, number, before(x), place)
            x = x + feed(then(x))
        return x

    def _choose(self, x: Any) -> Any:
        """The last token's logits, after the likeliest was noted."""
        network = self._network
        logits = ops.cast(network.table(network.last(x[:, -1]), reverse=True), "float32")
        self._token.assign(ops.cast(ops.argmax(logits, axis=-1), "int32")[:, None])
        return logits

    def _attend(self, attention: Any, number: int, x: Any, place: Any) -> Any:
        """Of x (batch, n, width) to itself, or with a place to the cache up to it; its keys and values are cached."""
        batch, count, width = x.shape
        split = (batch, count, self._heads, width // self._heads)
        query, key, value = (ops.reshape(part, split) for part in ops.split(attention.joint(x), 3, axis=-1))
        keys, values = self._keys[number], self._values[number]
        for cache, rows in ((keys, key), (values, value)):
            self._write(cache, ops.transpose(rows, (0, 2, 1, 3)), place)
        if place is None:
            product = getattr(ops, "dot_product_attention", plain_attention)
            # PyTorch chooses a fused kernel by itself; Keras' asking whether it may cannot be compiled.
            own = {"flash_attention": False} if keras.backend.backend() == "torch" else {}
            mixed = product(query, key, value, is_causal=True, **own)
        else:
            mixed = self._look_back(ops.transpose(query, (0, 2, 1, 3)), keys, values, place)
            mixed = ops.transpose(mixed, (0, 2, 1, 3))
        return attention.last(ops.reshape(mixed, (batch, count, width)))

    def _look_back(self, query: Any, keys: keras.Variable, values: keras.Variable, place: Any) -> Any:
        """Query (batch, heads, 1, head) over the places up to `place` -> the same; float32 softmax. Keys and values lie
        as a product over heads takes them: no step moves the cache."""
        scores = ops.cast(ops.einsum("bhqd,bhkd->bhqk", query, keys.value), "float32") / math.sqrt(query.shape[-1])
        scores = ops.where(ops.arange(self._length) <= place, scores, -1e30)
        return ops.einsum("bhqk,bhkd->bhqd", ops.cast(ops.softmax(scores), query.dtype), values.value)

    def _write(self, cache: keras.Variable, rows: Any, place: Any) -> None:
        """Let `rows` (batch, heads, n, head) stand in the cache from `place` on (None: 0), the rest as it is; in
        place: Keras' own `slice_update` copies the cache, but where XLA sees that nothing else reads it. TensorFlow
        copies what was written to in part when it is read all the same; without XLA it has no other way."""
        count, first = rows.shape[2], 0 if place is None else place
        backend = keras.backend.backend()
        if backend == "torch":
            cache.value.index_copy_(2, ops.cast(first + ops.arange(count), "int64"), rows)
        elif backend == "tensorflow" and not self._by_xla:
            cache.value[:, :, first : first + count].assign(rows)
        else:
            cache.assign(ops.slice_update(cache.value, [0, 0, first, 0], rows))


def _variable(shape: tuple[int, ...], dtype: str, name: str) -> keras.Variable:
    # Without autocast a variable's value is the framework's own, which can be written to in place.
    return keras.Variable(
        keras.initializers.Zeros(), shape=shape, dtype=dtype, trainable=False, autocast=False, name=name
    )
