"""Transformers and their analytic costs. Their Keras layers are in `parts.attention`.

- `transformer` (Vaswani et al. 2017) as published: post-norm with dropout, attention projections
  without bias, sinusoidal positions, one embedding table for source, target and output, and label
  smoothing. The second input is the target sequence, shifted by one token.
- `gpt` (GPT-2, Radford et al. 2019): pre-norm, causal, GELU in its tanh form, learned positions,
  output tied to the embedding, no dropout. GPT-2 small has 12 layers of width 768 with 12 heads,
  1024 positions and 50,257 tokens.
- `llama` (Touvron et al. 2023; grouped queries as in Llama 2): pre-norm, no bias, SwiGLU, RMS
  normalization, rotary positions (Su et al. 2021, with the halves of a head as pairs), and an
  untied output. Llama 3 8B has 32 layers of width 4096 with 32 heads, 8 key-value heads, 14,336
  hidden units and 128,256 tokens: 8,030,261,248 parameters. If `experts` is more than 1, each token
  passes through some of several feed-forward networks (Mixtral, Jiang et al. 2024: 2 of 8). Routing
  follows GShard (Lepikhin et al. 2020): an expert processes at most `capacity` times its even share
  of an example's tokens, and further tokens bypass it. Qwen3 (Yang et al. 2025) has a separate head
  width, and normalizes queries and keys. The small models of Llama 3.2 tie the output to the
  embedding.
- `vit` (Dosovitskiy et al. 2021): a learned class token, then one token per patch, learned
  positions, pre-norm blocks. ViT-B/16 has 12 layers of width 768 with 12 heads, patches of 16 x 16
  pixels, and images of 224 x 224 pixels.

Attention of T queries to S keys needs 2 T S width multiply-accumulates over all heads: T S width
for the scores, and T S width for the weighted sum of values. The cost of a normalization includes
the addition before it. Softmax, masks, dropout and activations add no cost to the layer that they
follow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.core.errors import ConfigError
from paradnn.core.layers import Layer, Multiply, dense, embedding
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import (
    ArraySpec,
    BuiltModel,
    classifier,
    cross_entropy,
    final_logits,
    image_input,
)

if TYPE_CHECKING:
    from paradnn.families.parts.attention import Network

#: Standard deviation of the initial weights of language models, as in GPT-2.
INITIAL_DEVIATION = 0.02
#: Names of the two layers of a gated feed-forward network.
GATED_LAYERS = ("gates_hidden", "output")


class DividedHeads(Model):
    """Base class for models whose number of attention heads must divide their width."""

    width: int
    heads: int

    def __post_init__(self) -> None:
        if self.width % self.heads:
            nearest = max(1, round(self.width / self.heads)) * self.heads
            raise ConfigError(
                "model.width",
                self.width,
                f"is not a multiple of model.heads={self.heads}",
                f"for example, write {nearest}, or choose a value of model.heads that divides {self.width}",
            )


def transformer_blocks(
    tokens: int,
    width: int,
    heads: int,
    count: int,
    *,
    mixing: list[Layer] | None = None,
    last_tokens: int | None = None,
) -> list[Layer]:
    """Return the layers of pre-norm blocks with feed-forward layers of 4 x `width` units.

    Args:
        tokens: Number of tokens of an example.
        width: Width of the model.
        heads: Number of attention heads.
        count: Number of blocks.
        mixing: Layers that mix the tokens; by default attention of all tokens to each other.
        last_tokens: Number of tokens in the normalization after the last block; by default all.
    """
    attention = attention_layers(tokens, width, heads, mixing=mixing)
    feed_forward = feed_forward_layers(tokens, width, 4 * width)
    return pre_norm_stack(tokens, width, count, attention, feed_forward, last_tokens=last_tokens)


def pre_norm_stack(
    tokens: int,
    width: int,
    count: int,
    *sublayers: list[Layer],
    last_tokens: int | None = None,
    offset: bool = True,
) -> list[Layer]:
    """Return the layers of pre-norm blocks, and of the normalization after the last block.

    Every normalization except the first includes the residual addition before it.

    Args:
        tokens: Number of tokens of an example.
        width: Width of the model.
        count: Number of blocks.
        sublayers: The layers of each sublayer of a block, such as attention.
        last_tokens: Number of tokens in the last normalization; by default all.
        offset: Whether normalizations have offsets in addition to scales.
    """
    normalize = functools.partial(normalization, width=width, offset=offset)
    block = []
    for sublayer in sublayers:
        block += [*sublayer, normalize(tokens, writes_sum=True)]
    last = normalize(last_tokens or tokens)
    return [normalize(tokens, adds=False), *(block * count)[:-1], last]


def attention_layers(
    tokens: int,
    width: int,
    heads: int,
    *,
    bias: bool = True,
    mixing: list[Layer] | None = None,
) -> list[Layer]:
    """Return the layers of self-attention, with one matrix product for query, key and value.

    Args:
        tokens: Number of tokens of an example.
        width: Width of the model.
        heads: Number of attention heads.
        bias: Whether the projections have biases.
        mixing: Layers that mix the tokens; by default attention of all tokens to each other.
    """
    return [
        dense("query_key_value", width, 3 * width, tokens=tokens, bias=bias),
        *(mixing or [fused_attention(tokens, width, heads)]),
        dense("attended", width, width, tokens=tokens, bias=bias),
    ]


def fused_attention(tokens: int, width: int, heads: int, key_width: int | None = None) -> Layer:
    """Return the attention of all tokens of an example to each other, as one fused kernel.

    The kernel stores no scores. It saves the logarithm of the softmax's sum per query and head. The
    backward pass also reads the output (Dao et al. 2022, FlashAttention, algorithms 1 and 4).

    Args:
        tokens: Number of tokens of an example.
        width: Number of elements in all queries of a token.
        heads: Number of query heads.
        key_width: Number of elements in all keys of a token, which is smaller if query heads share
            keys; by default `width`.
    """
    output = tokens * width
    attention = _attention(tokens, tokens, width, heads, key_width or width)
    return replace(attention, backward_only=heads * tokens, reread_outputs=output, kept=output)


def cached_attention(
    *, tokens: int, keys: int, length: int, width: int, heads: int, key_width: int
) -> list[Layer]:
    """Return the layers that attend from new tokens to the keys and values in a cache.

    The first layer writes the keys and values of the new tokens into the cache.

    Args:
        tokens: Number of new tokens of an example.
        keys: Number of cached tokens that the new tokens attend to.
        length: Number of positions of the cache.
        width: Number of elements in all queries of a token.
        heads: Number of query heads.
        key_width: Number of elements in all keys of a token.
    """
    written = 2 * tokens * key_width
    attention = _attention(tokens, keys, width, heads, key_width)
    return [
        Layer("cache", read=written, written=written),
        replace(attention, cached=2 * length * key_width),
    ]


def _attention(tokens: int, keys: int, width: int, heads: int, key_width: int) -> Layer:
    head_width = width // heads
    return Layer(
        "attention",
        macs=2 * tokens * keys * width,
        read=tokens * width + 2 * keys * key_width,
        written=tokens * width,
        products=(
            Multiply(tokens, head_width, keys, pairs=heads),
            Multiply(tokens, keys, head_width, pairs=heads),
        ),
    )


def feed_forward_layers(tokens: int, width: int, hidden: int) -> list[Layer]:
    """Return the hidden layer and the output layer of a feed-forward network.

    Args:
        tokens: Number of tokens of an example.
        width: Width of the model.
        hidden: Units of the hidden layer.
    """
    return [
        dense("hidden", width, hidden, tokens=tokens),
        dense("output", hidden, width, tokens=tokens),
    ]


def normalization(
    tokens: int,
    width: int,
    *,
    adds: bool = True,
    writes_sum: bool = False,
    offset: bool = True,
) -> Layer:
    """Return the layer normalization of a tensor, or of the sum of two tensors.

    The backward pass recomputes the input and the output from the added tensors, so neither remains
    in memory.

    Args:
        tokens: Number of tokens of an example.
        width: Width of the model.
        adds: Whether the layer first adds two tensors.
        writes_sum: Whether the layer also writes the sum, for the next residual addition.
        offset: Whether the layer has offsets in addition to scales.
    """
    elements = tokens * width
    return Layer(
        "normalization",
        parameters=2 * width if offset else width,
        weights=width,  # only the scales: the gradient of the input does not depend on the offsets
        read=2 * elements if adds else elements,
        written=2 * elements if writes_sum else elements,
        reread_inputs=elements if writes_sum else None,
    )


def lookup(tokens: int, width: int, vocabulary: int, *, is_owner: bool = True) -> Layer:
    """Return an embedding whose table is also the weights of the output layer (tied embedding).

    The output layer writes the gradient of the table, and the lookup adds to this gradient.

    Args:
        tokens: Number of tokens of an example.
        width: Width of the vectors.
        vocabulary: Number of vectors in the table.
        is_owner: Whether this layer counts the parameters of the table. False for a second lookup
            in the same table.
    """
    layer = replace(embedding(tokens, width, vocabulary), added=tokens * width)
    if is_owner:
        return layer
    return replace(layer, parameters=0, borrowed=layer.parameters)


def tied_logits(tokens: int, width: int, vocabulary: int) -> Layer:
    """Return an output layer whose weights are the table of the embedding, without bias.

    Args:
        tokens: Number of tokens of an example.
        width: Width of the model.
        vocabulary: Number of vectors in the table, which is the number of logits.
    """
    logits = dense("logits", width, vocabulary, tokens=tokens, bias=False, is_last=True)
    return replace(logits, parameters=0, borrowed=logits.parameters)


@dataclass(frozen=True)
class Transformer(DividedHeads):
    """An encoder-decoder for translation (Vaswani et al. 2017): post-norm, sinusoidal positions,
    shared embeddings. model.heads must divide model.width.
    """

    size_template: ClassVar[str] = "{layers}x{width} h{heads} ff{feed_forward} t{sequence_length}"

    name: str = "transformer"
    layers: int = option(
        6, "layers in each of encoder and decoder (base, big: 6)", low=1, high=1000
    )
    width: int = option(512, "width of embeddings and layers (base 512, big 1024)", low=1)
    heads: int = option(
        8, "heads of each attention; they must divide the width (base 8, big 16)", low=1
    )
    feed_forward: int = option(
        2048, "hidden units of the feed-forward layers (base 2048, big 4096)", low=1
    )
    sequence_length: int = option(
        64, "tokens of a source sentence, and of a target sentence", low=1, high=1_000_000
    )
    vocab_size: int = option(37000, "size of the vocabulary that both languages share", low=2)
    dropout: float = option(
        0.1,
        "dropout of embeddings and of each sublayer's output (base 0.1, big 0.3)",
        low=0.0,
        high=0.9,
    )
    label_smoothing: float = option(
        0.1, "share of the target's probability spread over all tokens", low=0.0, high=0.9
    )

    def layer_list(self) -> list[Layer]:
        length = self.sequence_length
        width = self.width
        heads = self.heads
        normalize = normalization(length, width)
        linear = functools.partial(dense, tokens=length, bias=False)
        feed_forward = [*feed_forward_layers(length, width, self.feed_forward), normalize]
        self_attention = [*attention_layers(length, width, heads, bias=False), normalize]
        cross_attention = [
            linear("query", width, width),
            linear("key_value", width, 2 * width),
            fused_attention(length, width, heads),
            linear("attended", width, width),
            normalize,
        ]
        encoder = (self_attention + feed_forward) * self.layers
        decoder = (self_attention + cross_attention + feed_forward) * self.layers
        return [
            lookup(length, width, self.vocab_size),
            *encoder,
            lookup(length, width, self.vocab_size, is_owner=False),
            *decoder,
            tied_logits(length, width, self.vocab_size),
        ]

    def build(self) -> BuiltModel:
        """Build the model in Keras.

        Inputs are source and shifted target, each (batch, sequence_length) int32 tokens. Targets
        are tokens of the same shape.
        """
        import keras
        from keras import layers

        from paradnn.families.parts.attention import (
            Attention,
            Positions,
            TiedEmbedding,
            dropout,
            feed_forward_network,
        )

        width = self.width
        heads = self.heads
        scale = math.sqrt(self.width)
        table = TiedEmbedding(self.vocab_size, width, deviation=1 / scale, scale=scale)
        positions = Positions(learned=False)

        drop = functools.partial(dropout, rate=self.dropout)

        def add(x: Any, change: Any) -> Any:
            return layers.LayerNormalization(epsilon=1e-6)(x + drop(change))

        def feed_forward(x: Any) -> Any:
            return add(x, feed_forward_network(width, self.feed_forward, "relu")(x))

        source = keras.Input((self.sequence_length,), dtype="int32")
        target = keras.Input((self.sequence_length,), dtype="int32")
        memory = drop(positions(table(source)))
        for _ in range(self.layers):
            attended = Attention(width, heads, use_bias=False)(memory)
            memory = feed_forward(add(memory, attended))
        x = drop(positions(table(target)))
        for _ in range(self.layers):
            x = add(x, Attention(width, heads, use_bias=False)(x, causal=True))
            attended = Attention(width, heads, use_bias=False, crossed=True)(x, memory)
            x = feed_forward(add(x, attended))
        logits = final_logits(table(x, reverse=True))
        tokens = ArraySpec((self.sequence_length,), "int32", self.vocab_size)
        loss = functools.partial(smoothed_cross_entropy, smoothing=self.label_smoothing)
        return BuiltModel(
            keras.Model([source, target], logits),
            inputs=(tokens, tokens),
            targets=(tokens,),
            loss=loss,
        )


def smoothed_cross_entropy(targets: Sequence[Any], logits: Any, smoothing: float) -> Any:
    """Return the mean cross entropy with label smoothing (Szegedy et al. 2016).

    The share `smoothing` of each target's probability is spread evenly over all classes. Let z be
    the logits, s the smoothing, and lse the logarithm of the sum of exponentials. The loss is the
    mean of (1 - s)(lse z - z[target]) + s (lse z - mean z).

    Args:
        targets: One array of int32 classes (...).
        logits: float32 logits (..., classes).
        smoothing: The share, from 0 to 1; 0: the usual cross entropy.
    """
    from keras import ops

    if not smoothing:
        return cross_entropy(targets, logits)
    uniform = ops.mean(ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1))
    return (1 - smoothing) * cross_entropy(targets, logits) + smoothing * uniform


class _DecoderOnly(DividedHeads):
    """Base class for causal language models, which can generate tokens."""

    generates: ClassVar[bool] = True
    predicts_tokens: ClassVar[bool] = True

    sequence_length: int

    @property
    def key_value_heads(self) -> int:
        """Number of key heads, which equals the number of value heads.

        A group of query heads shares each key head and its value head.
        """
        return self.heads

    @property
    def head_size(self) -> int:
        """Number of elements in the query of one head."""
        return self.width // self.heads

    @property
    def query_width(self) -> int:
        """Number of elements in all queries of a token together."""
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        """Number of elements in all keys of a token, and in all its values."""
        return self.key_value_heads * self.head_size

    def network(self) -> Network:
        """Build the Keras layers: embedding, blocks and output layer."""
        raise NotImplementedError

    def _stack(self, tokens: int, mixing: list[Layer] | None = None) -> list[Layer]:
        """Return all layers of the model.

        Args:
            tokens: Number of tokens of an example.
            mixing: Layers of attention to a cache, for prefill and decode. Only the last token
                then has logits. By default, all tokens attend to each other, and all have logits.
        """
        raise NotImplementedError

    def layer_list(self) -> list[Layer]:
        return self._stack(self.sequence_length)

    def prefill_layers(self, prompt: int, length: int) -> list[Layer]:
        """Return the layers that read a prompt into a cache of keys and values.

        Only the last token of the prompt has logits.

        Args:
            prompt: Number of tokens of the prompt.
            length: Number of positions of the cache.
        """
        return self._stack(prompt, self._cached(prompt, prompt, length))

    def decode_layers(self, length: int) -> list[Layer]:
        """Return the layers for one new token, which attends to a cache of `length` positions.

        If N weights take part in matrix products, a token needs 2 N FLOPs, plus 4 x length x width
        FLOPs in each layer (Kaplan et al. 2020, table 1). A step reads every weight once. For each
        example and layer, it also reads a cache of 2 x length x key_width elements (Pope et al.
        2022, section 2), including positions that are not written yet. Sampling the token is not
        counted.

        Args:
            length: Number of positions of the cache of keys and values.
        """
        return self._stack(1, self._cached(1, length, length))

    def _cached(self, tokens: int, keys: int, length: int) -> list[Layer]:
        return cached_attention(
            tokens=tokens,
            keys=keys,
            length=length,
            width=self.query_width,
            heads=self.heads,
            key_width=self.key_width,
        )

    def build(self) -> BuiltModel:
        """Build the model in Keras.

        Inputs and targets are (batch, sequence_length) int32 tokens below vocab_size.
        """
        return self.network().workload


@dataclass(frozen=True)
class LanguageModel(_DecoderOnly):
    """A decoder-only language model: pre-norm, learned positions, output tied to the embedding.
    model.heads must divide model.width.
    """

    size_template: ClassVar[str] = "{layers}x{width} h{heads} t{sequence_length}"

    name: str = "gpt"
    layers: int = option(
        4, "blocks of attention and feed-forward (GPT-2: 12..48)", low=1, high=1000
    )
    width: int = option(
        256, "width of embeddings and blocks; feed-forward layers are four times as wide", low=1
    )
    heads: int = option(4, "heads of each attention; they must divide the width", low=1)
    sequence_length: int = option(
        128, "tokens of an example, each with a learned position", low=1, high=1_000_000
    )
    vocab_size: int = option(8192, "distinct tokens (GPT-2: 50257)", low=2)

    def _stack(self, tokens: int, mixing: list[Layer] | None = None) -> list[Layer]:
        # A step reads only the position vectors of these tokens; the lookup adds them.
        positions = [Layer("positions", parameters=tokens * self.width)]
        logit_tokens = tokens
        if mixing:
            unread = (self.sequence_length - tokens) * self.width
            positions.append(Layer("other positions", parameters=unread, rows=0))
            logit_tokens = 1
        blocks = transformer_blocks(
            tokens,
            self.width,
            self.heads,
            self.layers,
            mixing=mixing,
            last_tokens=logit_tokens,
        )
        return [
            lookup(tokens, self.width, self.vocab_size),
            *positions,
            *blocks,
            tied_logits(logit_tokens, self.width, self.vocab_size),
        ]

    def network(self) -> Network:
        from keras import activations, layers

        from paradnn.families.parts.attention import (
            Attention,
            Network,
            Positions,
            TiedEmbedding,
            feed_forward_network,
        )

        width = self.width
        gelu = functools.partial(activations.gelu, approximate=True)
        normalize = functools.partial(layers.LayerNormalization, epsilon=1e-5)
        table = TiedEmbedding(self.vocab_size, width, INITIAL_DEVIATION)
        positions = Positions(learned=True, deviation=INITIAL_DEVIATION)
        parts = [
            (
                (normalize(), Attention(width, self.heads, deviation=INITIAL_DEVIATION)),
                (normalize(), feed_forward_network(width, 4 * width, gelu, INITIAL_DEVIATION)),
            )
            for _ in range(self.layers)
        ]
        last = normalize()
        return Network(
            embed=lambda tokens, first=None: positions(table(tokens), first=first),
            blocks=parts,
            logits=lambda x: table(last(x), reverse=True),
            sizes=(self.sequence_length, self.vocab_size),
        )


@dataclass(frozen=True)
class Llama(_DecoderOnly):
    """A decoder-only language model like Llama, with grouped queries, rotary positions, SwiGLU and
    RMSNorm, and optionally with experts like Mixtral. model.heads must divide model.width unless
    model.head_width is given, and model.key_heads must divide model.heads.
    """

    name: str = "llama"
    layers: int = option(
        4, "blocks of attention and feed-forward (Llama 3: 32..126)", low=1, high=1000
    )
    width: int = option(256, "width of embeddings and blocks (Llama 3: 4096..16384)", low=1)
    heads: int = option(
        4, "query heads; width / heads must be an even integer if head_width is null", low=1
    )
    key_heads: int = option(
        2,
        "key and value heads, each shared by a group of query heads; they must divide heads",
        low=1,
    )
    feed_forward: int = option(
        704, "hidden units of the feed-forward layers, each with a gate", low=1
    )
    sequence_length: int = option(128, "tokens of an example", low=1, high=1_000_000)
    vocab_size: int = option(8192, "distinct tokens (Llama 3: 128256)", low=2)
    experts: int = option(
        1, "feed-forward networks per block, to which tokens are routed (Mixtral: 8)", low=1
    )
    active_experts: int = option(
        2, "experts that a token passes through, if experts > 1 (Mixtral: 2)", low=1
    )
    capacity: float = option(
        1.25,
        "maximum tokens of an expert, as a multiple of its even share of the tokens",
        low=0.1,
        high=100,
    )
    head_width: int | None = option(
        None, "width of a head, an even number (Qwen3: 128); null: width / heads", low=2
    )
    query_key_norm: bool = option(
        False, "normalize the queries and keys of each head (Qwen3: true)"
    )
    tied: bool = option(False, "the output shares the table of the embedding (Llama 3.2 1B: true)")

    def __post_init__(self) -> None:
        if self.head_width is None:
            super().__post_init__()
        elif self.head_width * self.heads == self.width:
            # Canonical form: null instead of a width that equals width / heads.
            object.__setattr__(self, "head_width", None)
        if self.heads % self.key_heads:
            reason = f"does not divide model.heads={self.heads}"
            remedy = f"choose a divisor of {self.heads}"
            raise ConfigError("model.key_heads", self.key_heads, reason, remedy)
        if self.head_size % 2 and self.head_width is not None:
            reason = "is odd, but rotary positions need an even width"
            remedy = f"for example, write {self.head_width + 1}"
            raise ConfigError("model.head_width", self.head_width, reason, remedy)
        if self.head_size % 2:
            reason = (
                f"makes heads of width {self.head_size}, but rotary positions need an even width"
            )
            raise ConfigError(
                "model.width", self.width, reason, f"choose a multiple of {2 * self.heads}"
            )
        if self.experts == 1:
            # Canonical form: with one expert, neither option changes the network.
            object.__setattr__(self, "active_experts", 2)
            object.__setattr__(self, "capacity", 1.25)
        elif self.experts < self.active_experts:
            reason = f"is more than model.experts={self.experts}"
            raise ConfigError(
                "model.active_experts",
                self.active_experts,
                reason,
                f"choose at most {self.experts}",
            )

    @property
    def size(self) -> str:
        heads = f"h{self.heads}/{self.key_heads} ff{self.feed_forward}"
        if self.experts > 1:
            heads += f" e{self.active_experts}/{self.experts}"
        if self.head_width is not None:
            heads += f" d{self.head_width}"
        if self.query_key_norm:
            heads += " qk-norm"
        if self.tied:
            heads += " tied"
        return f"{self.layers}x{self.width} {heads} t{self.sequence_length}"

    @property
    def key_value_heads(self) -> int:
        return self.key_heads

    @property
    def head_size(self) -> int:
        if self.head_width is not None:
            return self.head_width
        return super().head_size

    @property
    def expert_rows(self) -> int:
        """Largest number of tokens of an example that one expert processes."""
        share = self.sequence_length * self.active_experts / self.experts
        return min(self.sequence_length, math.ceil(self.capacity * share))

    def check_measurable(self, point: Any) -> None:
        if self.experts > 1 and point.workload.mode == "generate":
            reason = (
                "cannot be measured in mode=generate, in which a step has one token per example"
            )
            raise ConfigError(
                "model.experts", self.experts, reason, "set model.experts=1, or mode=inference"
            )

    def _stack(self, tokens: int, mixing: list[Layer] | None = None) -> list[Layer]:
        # Rotary positions, gates and the repetition of keys add no cost to the neighboring layers.
        width = self.width
        logit_tokens = 1 if mixing else tokens
        linear = functools.partial(dense, tokens=tokens, bias=False)
        attention = [
            linear("query_key_value", width, self.query_width + 2 * self.key_width),
            *self._head_normalization(tokens),
            *(mixing or [fused_attention(tokens, self.query_width, self.heads, self.key_width)]),
            linear("attended", self.query_width, width),
        ]
        if self.experts > 1 and mixing:
            feed_forward = self._decode_expert_layers(tokens)
        elif self.experts > 1:
            feed_forward = self._expert_layers()
        else:
            feed_forward = _gated_layers(width, self.feed_forward, tokens)
        blocks = pre_norm_stack(
            tokens,
            width,
            self.layers,
            attention,
            feed_forward,
            last_tokens=logit_tokens,
            offset=False,
        )
        if self.tied:
            table = lookup(tokens, width, self.vocab_size)
            return [table, *blocks, tied_logits(logit_tokens, width, self.vocab_size)]
        logits = dense(
            "logits", width, self.vocab_size, tokens=logit_tokens, bias=False, is_last=True
        )
        return [embedding(tokens, width, self.vocab_size), *blocks, logits]

    def _head_normalization(self, tokens: int) -> list[Layer]:
        """Return the layer that normalizes the queries and keys of each head, or an empty list.

        All query heads share one set of scales, and all key heads share another. The backward pass
        recomputes the outputs, so they do not remain in memory.

        Args:
            tokens: Number of tokens of an example.
        """
        if not self.query_key_norm:
            return []
        elements = tokens * (self.query_width + self.key_width)
        scales = 2 * self.head_size
        layer = Layer(
            "head_normalization",
            parameters=scales,
            weights=scales,
            read=elements,
            written=elements,
        )
        return [layer]

    def _decode_expert_layers(self, tokens: int) -> list[Layer]:
        """Return the layers of a mixture of experts in prefill and decode.

        These are the router, which chooses the experts of each token, and the chosen experts.

        The number of tokens per expert has no limit. A step reads the weights of the experts that
        its tokens choose. The costs count `active_experts` experts per token, but at most all
        experts.

        Args:
            tokens: Number of tokens of an example.
        """
        router = dense("router", self.width, self.experts, tokens=tokens, bias=False)
        chosen_experts = []
        for layer in _gated_layers(self.width, self.feed_forward, tokens):
            active = _repeated(layer, self.active_experts)
            parameters = self.experts * layer.parameters
            rows = tokens * active.parameters
            chosen_experts.append(
                replace(active, parameters=parameters, weights=parameters, rows=rows)
            )
        return [router, *chosen_experts]

    def _expert_layers(self) -> list[Layer]:
        """Return the layers of a mixture of experts in training and inference.

        These are the router, a layer that copies tokens to the experts, the experts, and a layer
        that sums their outputs. Each expert processes `expert_rows` tokens of every example. The
        rows of an example for all experts form one tensor.
        """
        width = self.width
        count = self.experts
        tokens = self.sequence_length * width
        rows = count * self.expert_rows * width
        router = dense("router", width, count, tokens=self.sequence_length, bias=False)
        experts = [
            _repeated(layer, count)
            for layer in _gated_layers(width, self.feed_forward, self.expert_rows)
        ]
        send = Layer("sent", read=tokens, written=rows, kept=rows)
        collect = Layer("collected", read=rows, written=tokens, kept=tokens)
        return [router, send, *experts, collect]

    def network(self) -> Network:
        from keras import initializers, layers, ops

        from paradnn.families.parts.attention import (
            Attention,
            Experts,
            Network,
            RotaryEmbedding,
            TiedEmbedding,
            dense_layer,
        )

        linear = functools.partial(dense_layer, deviation=INITIAL_DEVIATION, use_bias=False)
        normalize = functools.partial(layers.RMSNormalization, epsilon=1e-5)
        rotate = RotaryEmbedding(self.sequence_length, self.head_size)

        def feed_forward() -> Any:
            if self.experts > 1:
                return Experts(
                    width=self.width,
                    hidden=self.feed_forward,
                    experts=self.experts,
                    active=self.active_experts,
                    rows=self.expert_rows,
                    deviation=INITIAL_DEVIATION,
                )
            joint = linear(2 * self.feed_forward)
            last = linear(self.width)

            def swiglu(x: Any) -> Any:
                gates, hidden = ops.split(joint(x), 2, axis=-1)
                return last(ops.silu(gates) * hidden)

            return swiglu

        def attention() -> Attention:
            return Attention(
                self.width,
                self.heads,
                use_bias=False,
                deviation=INITIAL_DEVIATION,
                key_heads=self.key_heads,
                head=self.head_size,
                normalize=normalize if self.query_key_norm else None,
                rotate=rotate,
            )

        normal = initializers.RandomNormal(stddev=INITIAL_DEVIATION)
        table: Any
        output: Any
        if self.tied:
            table = TiedEmbedding(self.vocab_size, self.width, INITIAL_DEVIATION)
            output = functools.partial(table, reverse=True)
        else:
            table = layers.Embedding(self.vocab_size, self.width, embeddings_initializer=normal)
            output = linear(self.vocab_size)
        parts = [
            ((normalize(), attention()), (normalize(), feed_forward())) for _ in range(self.layers)
        ]
        last = normalize()
        return Network(
            embed=lambda tokens, first=None: table(tokens),
            blocks=parts,
            logits=lambda x: output(last(x)),
            sizes=(self.sequence_length, self.vocab_size),
        )


def _gated_layers(width: int, hidden: int, tokens: int) -> list[Layer]:
    """Return the two layers of a SwiGLU feed-forward network.

    The first layer computes gates and hidden units. The second reads their elementwise product.

    Args:
        width: Inputs of the first layer, and outputs of the second.
        hidden: Number of hidden units, which equals the number of gates.
        tokens: Number of tokens of an example.
    """
    first_name, second_name = GATED_LAYERS
    first = dense(first_name, width, 2 * hidden, tokens=tokens, bias=False)
    second = dense(second_name, hidden, width, tokens=tokens, bias=False)
    return [first, replace(second, read=tokens * 2 * hidden)]


def _repeated(layer: Layer, count: int) -> Layer:
    """Return one layer with the total costs of several equal layers.

    Args:
        layer: One of the layers.
        count: Number of layers.
    """
    products = tuple(
        replace(product, times=count) for product in layer.products if isinstance(product, Multiply)
    )
    return replace(
        layer,
        macs=count * layer.macs,
        parameters=count * layer.parameters,
        weights=count * layer.weights,
        read=count * layer.read,
        written=count * layer.written,
        kept=count * layer.kept,
        products=products,
    )


@dataclass(frozen=True)
class VisionTransformer(DividedHeads):
    """A Vision Transformer: an encoder over a class token and the patches of an image, and a dense
    layer that classifies the class token. model.heads must divide model.width, and model.patch must
    divide model.image_size.
    """

    size_template: ClassVar[str] = "{layers}x{width} h{heads} p{patch} {image_size}px"

    name: str = "vit"
    layers: int = option(
        4, "blocks of attention and feed-forward (ViT-B: 12, ViT-L: 24)", low=1, high=1000
    )
    width: int = option(
        192, "width of the blocks; feed-forward layers are four times as wide", low=1
    )
    heads: int = option(3, "heads of each attention; they must divide the width", low=1)
    patch: int = option(
        16, "height and width of a patch; must divide image_size", low=1, high=100_000
    )
    image_size: int = option(224, "height and width of the image", low=1, high=100_000)
    output_size: int = option(1000, "classes", low=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch:
            reason = f"is not a multiple of model.patch={self.patch}"
            nearest = max(1, round(self.image_size / self.patch)) * self.patch
            raise ConfigError(
                "model.image_size", self.image_size, reason, f"for example, write {nearest}"
            )

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return (self.image_size // self.patch) ** 2

    def layer_list(self) -> list[Layer]:
        width = self.width
        channels = 3 * self.patch**2
        tokens = self.patches + 1
        patches = dense("patches", channels, width, tokens=self.patches, is_first=True)
        parameters = patches.parameters + width + tokens * width
        first = replace(
            patches, parameters=parameters, read=3 * self.image_size**2, written=tokens * width
        )
        encoder = transformer_blocks(tokens, width, self.heads, self.layers)
        return [first, *encoder, dense("logits", width, self.output_size, is_last=True)]

    def build(self) -> BuiltModel:
        """Build the model in Keras.

        Inputs are (batch, image_size, image_size, 3) float32, targets are (batch,) int32 classes.
        """
        from keras import layers

        from paradnn.families.parts.attention import (
            Attention,
            ClassToken,
            Positions,
            feed_forward_network,
        )

        inputs = image_input(self.image_size)
        x = layers.Conv2D(self.width, self.patch, self.patch)(inputs)
        x = layers.Reshape((self.patches, self.width))(x)
        x = Positions(learned=True)(ClassToken()(x))
        for _ in range(self.layers):
            y = layers.LayerNormalization(epsilon=1e-6)(x)
            x = x + Attention(self.width, self.heads)(y)
            y = layers.LayerNormalization(epsilon=1e-6)(x)
            x = x + feed_forward_network(self.width, 4 * self.width, "gelu")(y)
        x = layers.LayerNormalization(epsilon=1e-6)(x)[:, 0]
        return classifier(inputs, layers.Dense(self.output_size)(x), self.output_size)


_SWEEP = "model.width=128,256,512 batch_size=1,4,16"
_TOKEN_OPTIONS = ("width", "sequence_length", "layers")
FAMILY = (
    Family("gpt", LanguageModel, "tokens", _TOKEN_OPTIONS, _SWEEP, order=6),
    Family(
        "vit",
        VisionTransformer,
        "images",
        ("width", "patch", "layers"),
        "model.width=192,384,768 batch_size=1,4,16",
        order=7,
    ),
    Family("transformer", Transformer, "tokens", _TOKEN_OPTIONS, _SWEEP, is_real=True, order=13),
    Family("llama", Llama, "tokens", _TOKEN_OPTIONS, _SWEEP, order=21),
)
