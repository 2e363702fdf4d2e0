"""Greedy generation with a key-value cache: the two phases of it as workloads that share weights
and cache.

All shapes are fixed: each decode step reads the whole cache and masks what is not written yet.
Cache, token and its place are variables, so that one program serves all and no step waits for the
host; behind the last place it starts again after the prompt.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from paradnn.families import make_model
from paradnn.families.built import ArraySpec, BuiltModel, FunctionModel
from paradnn.families.parts.attention import Attention, mixed


class Decoder:
    """The phases of a decoder-only model for so many prompts; `prefill` takes the prompts, (batch,
    prompt), `decode` nothing. Both give logits (batch, vocab_size). `model` is the same over whole
    sequences; cache_bytes: keys and values of all layers.
    """

    def __init__(
        self, model: Mapping[str, Any], batch_size: int, prompt: int, tokens: int, compile: str
    ) -> None:
        options: Any = make_model(model)
        self._network = options.network()
        self._prompt = prompt
        self._length = prompt + tokens
        self._by_xla = compile == "xla"
        self.model = self._network.workload.model
        shape = (batch_size, options.key_heads_count, self._length, options.width // options.heads)
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
        """Tokens (batch, n) at `place`, or None: from the beginning -> (batch, n, width) after all
        blocks.
        """
        x = self._network.embed(tokens, first=0 if place is None else place)
        for number, ((before, attention), (then, feed)) in enumerate(self._network.blocks):
            x = x + self._attend(attention, number, before(x), place)
            x = x + feed(then(x))
        return x

    def _choose(self, x: Any) -> Any:
        """The last token's logits, after the likeliest was noted."""
        logits = ops.cast(self._network.logits(x[:, -1]), "float32")
        self._token.assign(ops.cast(ops.argmax(logits, axis=-1), "int32")[:, None])
        return logits

    def _attend(self, attention: Attention, number: int, x: Any, place: Any) -> Any:
        """Of x (batch, n, width) to itself, or with a place to the cache up to it; its keys and
        values are cached.
        """
        query, key, value = attention.project(x, first=0 if place is None else place)
        keys = self._keys[number]
        values = self._values[number]
        for cache, rows in ((keys, key), (values, value)):
            self._write(cache, ops.transpose(rows, (0, 2, 1, 3)), place)
        if place is None:
            return attention.last(mixed(query, key, value, causal=True))
        return attention.last(self._look_back(query, keys, values, place))

    def _look_back(
        self, query: Any, keys: keras.Variable, values: keras.Variable, place: Any
    ) -> Any:
        """Query (batch, 1, heads, head) over the places up to `place` -> (batch, 1, width); float32
        softmax. Heads that share their keys are the rows of one product; keys and values lie as it
        takes them: no step moves the cache.
        """
        batch, _, heads, head = query.shape
        shared = ops.reshape(query, (batch, keys.shape[1], heads // keys.shape[1], head))
        scores = ops.cast(ops.einsum("bhqd,bhkd->bhqk", shared, keys.value), "float32") / math.sqrt(
            head
        )
        scores = ops.where(ops.arange(self._length) <= place, scores, -1e30)
        mixed = ops.einsum(
            "bhqk,bhkd->bhqd", ops.cast(ops.softmax(scores), query.dtype), values.value
        )
        return ops.reshape(mixed, (batch, 1, heads * head))

    def _write(self, cache: keras.Variable, rows: Any, place: Any) -> None:
        """Let `rows` (batch, heads, n, head) stand in the cache from `place` on (None: 0), the rest
        as it is; in place: Keras' own `slice_update` copies the cache, but where XLA sees that
        nothing else reads it. TensorFlow copies what was written to in part when it is read all the
        same; without XLA it has no other way.
        """
        count = rows.shape[2]
        first = 0 if place is None else place
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
        keras.initializers.Zeros(),
        shape=shape,
        dtype=dtype,
        trainable=False,
        autocast=False,
        name=name,
    )
