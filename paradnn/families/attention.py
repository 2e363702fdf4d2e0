"""Models of attention, and their layers by arithmetic; their Keras counterparts are in
`parts.attention`.

- `transformer` (Vaswani et al. 2017), as published: post-norm with dropout, projections of attention without bias,
  sinusoidal positions, one table for source, target and output, label smoothing. Inputs are what precedes each target.
- `gpt` (GPT-2, Radford et al. 2019): pre-norm, causal, GELU in its tanh form, learned positions, output tied; without
  dropout. 12 layers of 768 with 12 heads, 1024 positions and 50,257 tokens are GPT-2 small.
- `llama` (Touvron et al. 2023; grouped queries as in Llama 2): pre-norm, no bias, SwiGLU, RMS normalisation, rotary
  positions (Su et al. 2021, by halves), an output of its own. 32 layers of 4096 with 32 heads, 8 of keys and values,
  14,336 hidden units and 128,256 tokens are Llama 3 8B: 8,030,261,248 parameters. With `experts` each token goes
  through few of several feed-forward layers (Mixtral, Jiang et al. 2024: 2 of 8; routing as in GShard, Lepikhin et al.
  2020: an expert takes `capacity` times its share of an example's tokens, and what is beyond passes it by).
- `vit` (Dosovitskiy et al. 2021): a token of every patch, a learned class token before them, learned positions,
  pre-norm blocks. 12 layers of 768 with 12 heads and patches of 16 on 224 pixels are ViT-B/16.

Attention of T queries to S keys over all heads multiplies 2 T S width: the scores and the weighted
sum of values. A normalisation takes in the addition before it; softmax, masks, dropout and
activations belong to the layer they follow.
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

#: Standard deviation of initial weights of language models, as GPT-2's.
_DEVIATION = 0.02


class _Heads(Model):
    """A model whose width is divided among heads of attention."""

    width: int
    heads: int

    def __post_init__(self) -> None:
        if self.width % self.heads:
            nearest = max(1, round(self.width / self.heads)) * self.heads
            remedy = f"write for example {nearest}, or heads that divide it"
            raise ConfigError(
                "model.width", self.width, f"is no multiple of model.heads={self.heads}", remedy
            )


def blocks(
    tokens: int,
    width: int,
    heads: int,
    count: int,
    between: list[Layer] | None = None,
    last: int | None = None,
) -> list[Layer]:
    """Blocks of attention and feed-forward layers four times as wide; between: the products of
    attention, by default of all tokens with each other.
    """
    attention = attention_layers(tokens, width, heads, between=between)
    return stack(tokens, width, count, attention, feed_forward(tokens, width, 4 * width), last=last)


def stack(
    tokens: int,
    width: int,
    count: int,
    *parts: list[Layer],
    last: int | None = None,
    offset: bool = True,
) -> list[Layer]:
    """Pre-norm blocks of such parts and the normalisation after the last, of `last` tokens, by
    default all; each but the first adds what was made.
    """
    normal = functools.partial(normalization, width=width, offset=offset)
    block = [layer for part in parts for layer in (*part, normal(tokens, hands_on=True))]
    return [normal(tokens, added=False), *(block * count)[:-1], normal(last or tokens)]


def attention_layers(
    tokens: int, width: int, heads: int, bias: bool = True, between: list[Layer] | None = None
) -> list[Layer]:
    """Self-attention: one product makes query, key and value."""
    return [
        dense("query_key_value", width, 3 * width, tokens=tokens, bias=bias),
        *(between or [products(tokens, width, heads)]),
        dense("attended", width, width, tokens=tokens, bias=bias),
    ]


def products(tokens: int, width: int, heads: int, key_width: int | None = None) -> Layer:
    """Scores, softmax and weighted sum over as many keys as queries, in one kernel that stores no
    scores: it saves the logarithm of the softmax's sum for each query and head, and its backward
    pass reads its output again (Dao et al. 2022, FlashAttention, algorithms 1 and 4). key_width: of
    a token's keys where heads share them.
    """
    made = tokens * width
    whole = _attention(tokens, tokens, width, heads, key_width or width)
    return replace(whole, inner=heads * tokens, reread=made, kept=made)


def cached_attention(
    tokens: int, keys: int, length: int, width: int, heads: int, key_width: int
) -> list[Layer]:
    """Keys and values of new tokens go into a cache of `length` places; the tokens attend to so
    many keys.
    """
    attention = replace(
        _attention(tokens, keys, width, heads, key_width), held=2 * length * key_width
    )
    return [Layer("cache", read=2 * tokens * key_width, written=2 * tokens * key_width), attention]


def _attention(tokens: int, keys: int, width: int, heads: int, key_width: int) -> Layer:
    head = width // heads
    return Layer(
        "attention",
        macs=2 * tokens * keys * width,
        read=tokens * width + 2 * keys * key_width,
        written=tokens * width,
        products=(Multiply(tokens, head, keys, own=heads), Multiply(tokens, keys, head, own=heads)),
    )


def feed_forward(tokens: int, width: int, hidden: int) -> list[Layer]:
    """Two dense layers at every token."""
    return [
        dense("hidden", width, hidden, tokens=tokens),
        dense("output", hidden, width, tokens=tokens),
    ]


def normalization(
    tokens: int, width: int, added: bool = True, hands_on: bool = False, offset: bool = True
) -> Layer:
    """Layer normalisation of a sum (`added`), which it also writes where the next addition needs it
    (`hands_on`); neither is kept: both follow from what is added. Scales alone without `offset`.
    """
    elements = tokens * width
    return Layer(
        "normalisation",
        parameters=(1 + offset) * width,
        weights=width,  # scales; the offsets are added
        read=2 * elements if added else elements,
        written=2 * elements if hands_on else elements,
        again=elements if hands_on else None,
    )


def lookup(tokens: int, width: int, vocabulary: int, is_owner: bool = True) -> Layer:
    """Rows of a table whose gradient the tied output writes, and to which a lookup adds its own."""
    whole = replace(embedding(tokens, width, vocabulary), added=tokens * width)
    if is_owner:
        return whole
    return replace(whole, parameters=0, borrowed=whole.parameters)


def tied_logits(tokens: int, width: int, vocabulary: int) -> Layer:
    """The embedding's table once more, as a product without bias."""
    logits = dense("logits", width, vocabulary, tokens=tokens, bias=False, is_last=True)
    return replace(logits, parameters=0, borrowed=logits.parameters)


@dataclass(frozen=True)
class Transformer(_Heads):
    """An encoder-decoder for translation (Vaswani et al. 2017): post-norm, sinusoidal positions,
    shared embeddings.
    """

    size_template: ClassVar[str] = "{layers}x{width} h{heads} ff{feed_forward} t{sequence_length}"

    name: str = "transformer"
    layers: int = option(
        6, "of the encoder, and as many of the decoder (base, big: 6)", low=1, high=1000
    )
    width: int = option(512, "of embeddings and layers (base 512, big 1024)", low=1)
    heads: int = option(8, "of every attention; they divide the width (base 8, big 16)", low=1)
    feed_forward: int = option(
        2048, "hidden units of the feed-forward layers (base 2048, big 4096)", low=1
    )
    sequence_length: int = option(
        64, "tokens of a source sentence, and of a target", low=1, high=1_000_000
    )
    vocab_size: int = option(37000, "tokens of the vocabulary that both languages share", low=2)
    dropout: float = option(
        0.1, "of embeddings and of every sub-layer's output (base 0.1, big 0.3)", low=0.0, high=0.9
    )
    label_smoothing: float = option(
        0.1, "share of the target spread over all tokens", low=0.0, high=0.9
    )

    def layer_list(self) -> list[Layer]:
        length = self.sequence_length
        width = self.width
        heads = self.heads
        sums = normalization(length, width)
        linear = functools.partial(dense, tokens=length, bias=False)
        feed = [*feed_forward(length, width, self.feed_forward), sums]
        itself = [*attention_layers(length, width, heads, bias=False), sums]
        other = [
            linear("query", width, width),
            linear("key_value", width, 2 * width),
            products(length, width, heads),
        ]
        other += [linear("attended", width, width), sums]
        return [
            lookup(length, width, self.vocab_size),
            *(itself + feed) * self.layers,
            lookup(length, width, self.vocab_size, is_owner=False),
            *(itself + other + feed) * self.layers,
            tied_logits(length, width, self.vocab_size),
        ]

    def build(self) -> BuiltModel:
        """Inputs: source and shifted target, each (batch, sequence_length) tokens; targets the same
        shape.
        """
        import keras
        from keras import layers

        from paradnn.families.parts.attention import (
            Attention,
            Positions,
            TiedEmbedding,
            feed_forward_layers,
        )

        width = self.width
        heads = self.heads
        scale = math.sqrt(self.width)
        table = TiedEmbedding(self.vocab_size, width, deviation=1 / scale, scale=scale)
        positions = Positions(learned=False)

        def drop(x: Any) -> Any:
            return layers.Dropout(self.dropout)(x) if self.dropout else x

        def add(x: Any, change: Any) -> Any:
            return layers.LayerNormalization(epsilon=1e-6)(x + drop(change))

        def feed(x: Any) -> Any:
            return add(x, feed_forward_layers(width, self.feed_forward, "relu")(x))

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
        return BuiltModel(
            keras.Model([source, target], logits),
            inputs=(tokens, tokens),
            targets=(tokens,),
            loss=loss,
        )


def smoothed_cross_entropy(targets: Sequence[Any], logits: Any, smoothing: float) -> Any:
    """Cross entropy with `smoothing` of each target's probability spread evenly over all classes
    (Szegedy et al. 2016): of logits z, (1 - s)(lse z - z[target]) + s (lse z - mean z), lse the log
    of the sum of exponentials.
    """
    from keras import ops

    if not smoothing:
        return cross_entropy(targets, logits)
    spread = ops.mean(ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1))
    return (1 - smoothing) * cross_entropy(targets, logits) + smoothing * spread


class _DecoderOnly(_Heads):
    """A language model of blocks in which every token attends to those before it, and which
    therefore generates.
    """

    generates: ClassVar[bool] = True
    predicts_tokens: ClassVar[bool] = True

    sequence_length: int

    @property
    def key_heads_count(self) -> int:
        """Heads of keys and values, each for as many heads of queries as any other."""
        return self.heads

    @property
    def key_width(self) -> int:
        """Of all keys of a token, and of all values."""
        return self.width // self.heads * self.key_heads_count

    def network(self) -> Network:
        """Its layers in Keras."""
        raise NotImplementedError

    def _stack(self, tokens: int, between: list[Layer] | None = None) -> list[Layer]:
        """Layers over so many tokens; `between`: attention's products in generation, logits of the
        last token alone.
        """
        raise NotImplementedError

    def layer_list(self) -> list[Layer]:
        return self._stack(self.sequence_length)

    def prefill_layers(self, prompt: int, length: int) -> list[Layer]:
        """The model that reads a prompt into a cache of `length` places; of its tokens the last
        alone has logits.
        """
        return self._stack(prompt, self._cached(prompt, prompt, length))

    def decode_layers(self, length: int) -> list[Layer]:
        """With N weights in products a token takes 2 N FLOPs and 4 x length x width more in each
        layer (Kaplan et al. 2020, table 1); a step reads every weight once, and for each example a
        cache of 2 x length x key_width in each layer (Pope et al. 2022, section 2). Places that are
        not written yet are read like the others; the choice of the token is left out.
        """
        return self._stack(1, self._cached(1, length, length))

    def _cached(self, tokens: int, keys: int, length: int) -> list[Layer]:
        return cached_attention(tokens, keys, length, self.width, self.heads, self.key_width)

    def build(self) -> BuiltModel:
        """Inputs and targets (batch, sequence_length) tokens below vocab_size."""
        return self.network().workload


@dataclass(frozen=True)
class LanguageModel(_DecoderOnly):
    """A decoder-only language model: pre-norm, learned positions, output tied to the embedding."""

    size_template: ClassVar[str] = "{layers}x{width} h{heads} t{sequence_length}"

    name: str = "gpt"
    layers: int = option(
        4, "blocks of attention and feed-forward (GPT-2: 12..48)", low=1, high=1000
    )
    width: int = option(
        256, "of embeddings and blocks; feed-forward layers are four times as wide", low=1
    )
    heads: int = option(4, "of every attention; they divide the width", low=1)
    sequence_length: int = option(
        128, "tokens of an example, each with a learned position", low=1, high=1_000_000
    )
    vocab_size: int = option(8192, "distinct tokens (GPT-2: 50257)", low=2)

    def _stack(self, tokens: int, between: list[Layer] | None = None) -> list[Layer]:
        """As the base class says; positions are read for these tokens alone."""
        # added where the lookup is
        positions = [Layer("positions", parameters=tokens * self.width)]
        last = tokens
        if between:
            unread = (self.sequence_length - tokens) * self.width
            last = 1
            positions.append(Layer("other positions", parameters=unread, rows=0))
        return [
            lookup(tokens, self.width, self.vocab_size),
            *positions,
            *blocks(tokens, self.width, self.heads, self.layers, between, last),
            tied_logits(last, self.width, self.vocab_size),
        ]

    def network(self) -> Network:
        from keras import activations, layers

        from paradnn.families.parts.attention import (
            Attention,
            Network,
            Positions,
            TiedEmbedding,
            feed_forward_layers,
        )

        width = self.width
        gelu = functools.partial(activations.gelu, approximate=True)
        normalize = functools.partial(layers.LayerNormalization, epsilon=1e-5)
        table = TiedEmbedding(self.vocab_size, width, _DEVIATION)
        positions = Positions(learned=True, deviation=_DEVIATION)
        parts = [
            (
                (normalize(), Attention(width, self.heads, deviation=_DEVIATION)),
                (normalize(), feed_forward_layers(width, 4 * width, gelu, _DEVIATION)),
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
    """A decoder-only language model as Llama's: grouped queries, rotary positions, SwiGLU, RMSNorm;
    with experts as Mixtral's. heads must divide width, key_heads heads.
    """

    name: str = "llama"
    layers: int = option(
        4, "blocks of attention and feed-forward (Llama 3: 32..126)", low=1, high=1000
    )
    width: int = option(256, "of embeddings and blocks (Llama 3: 4096..16384)", low=1)
    heads: int = option(4, "of queries; they divide the width into even parts", low=1)
    key_heads: int = option(
        2, "of keys and values, each for several heads of queries; they divide heads", low=1
    )
    feed_forward: int = option(
        704, "hidden units of the feed-forward layers, with as many gates", low=1
    )
    sequence_length: int = option(128, "tokens of an example", low=1, high=1_000_000)
    vocab_size: int = option(8192, "distinct tokens (Llama 3: 128256)", low=2)
    experts: int = option(
        1, "feed-forward layers of a block, among which tokens are routed (Mixtral: 8)", low=1
    )
    active_experts: int = option(
        2, "experts that a token goes through (Mixtral: 2), where there are several", low=1
    )
    capacity: float = option(
        1.25, "tokens that an expert takes, over its share of an example's", low=0.1, high=100
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.key_heads:
            reason = f"does not divide model.heads={self.heads}"
            remedy = "choose a divisor of it"
            raise ConfigError("model.key_heads", self.key_heads, reason, remedy)
        if self.width // self.heads % 2:
            reason = f"has heads of {self.width // self.heads}, which rotary positions cannot halve"
            raise ConfigError(
                "model.width", self.width, reason, f"choose a multiple of {2 * self.heads}"
            )
        if self.experts == 1:  # the same network whatever these say, and so the same point
            object.__setattr__(self, "active_experts", 2)
            object.__setattr__(self, "capacity", 1.25)
        elif self.experts < self.active_experts:
            reason = f"is more than model.experts={self.experts}"
            raise ConfigError(
                "model.active_experts", self.active_experts, reason, "choose at most as many"
            )

    @property
    def size(self) -> str:
        groups = f"h{self.heads}/{self.key_heads} ff{self.feed_forward}"
        if self.experts > 1:
            experts = f" e{self.active_experts}/{self.experts}"
        else:
            experts = ""
        return f"{self.layers}x{self.width} {groups}{experts} t{self.sequence_length}"

    @property
    def key_heads_count(self) -> int:
        return self.key_heads

    @property
    def expert_rows(self) -> int:
        """Tokens of an example that one expert takes."""
        share = self.sequence_length * self.active_experts / self.experts
        return min(self.sequence_length, math.ceil(self.capacity * share))

    def canonical_point(self, point: Any) -> Any:
        if self.experts > 1 and point.workload.mode == "generate":
            reason = "routes the tokens of whole examples, not one token of each"
            raise ConfigError(
                "model.experts", self.experts, reason, "set model.experts=1, or mode=inference"
            )
        return super().canonical_point(point)

    def _stack(self, tokens: int, between: list[Layer] | None = None) -> list[Layer]:
        """As the base class says: embedding, blocks whose normalisations, of scales alone, add what
        was made before them, and an output of its own. Rotation, gates and the repetition of keys
        belong to the layers beside them.
        """
        width = self.width
        last = 1 if between else tokens
        linear = functools.partial(dense, tokens=tokens, bias=False)
        attention = [
            linear("query_key_value", width, width + 2 * self.key_width),
            *(between or [products(tokens, width, self.heads, self.key_width)]),
            linear("attended", width, width),
        ]
        if self.experts > 1:
            feed = self._routed()
        else:
            feed = _gated(width, self.feed_forward, tokens)
        logits = dense("logits", width, self.vocab_size, tokens=last, bias=False, is_last=True)
        blocks = stack(tokens, width, self.layers, attention, feed, last=last, offset=False)
        return [embedding(tokens, width, self.vocab_size), *blocks, logits]

    def _routed(self) -> list[Layer]:
        """Router, experts over the rows that were sent to them, and the weighted sum of what they
        made. An expert's weights are every example's; an example's rows of all experts are read and
        written as one tensor.
        """
        width = self.width
        count = self.experts
        sent = count * self.expert_rows * width
        router = dense("router", width, count, tokens=self.sequence_length, bias=False)
        experts = [
            replace(
                layer,
                macs=count * layer.macs,
                **{
                    name: count * getattr(layer, name)
                    for name in ("parameters", "weights", "read", "written", "kept")
                },
                products=tuple(replace(product, times=count) for product in layer.products),  # type: ignore[arg-type]
            )
            for layer in _gated(width, self.feed_forward, self.expert_rows)
        ]
        together = self.sequence_length * width
        gather = Layer("sent", read=together, written=sent, kept=sent)
        return [
            router,
            gather,
            *experts,
            Layer("collected", read=sent, written=together, kept=together),
        ]

    def network(self) -> Network:
        from keras import initializers, layers, ops

        from paradnn.families.parts.attention import (
            Attention,
            Experts,
            Network,
            RotaryEmbedding,
            dense_layer,
        )

        linear = functools.partial(dense_layer, deviation=_DEVIATION, use_bias=False)
        normalize = functools.partial(layers.RMSNormalization, epsilon=1e-5)
        rotate = RotaryEmbedding(self.sequence_length, self.width // self.heads)

        def feed_forward() -> Any:
            if self.experts > 1:
                sizes = (self.feed_forward, self.experts, self.active_experts, self.expert_rows)
                return Experts(self.width, *sizes, _DEVIATION)
            joint = linear(2 * self.feed_forward)
            last = linear(self.width)

            def feed(x: Any) -> Any:
                gates, hidden = ops.split(joint(x), 2, axis=-1)
                return last(ops.silu(gates) * hidden)

            return feed

        def attention() -> Attention:
            return Attention(
                self.width, self.heads, False, _DEVIATION, key_heads=self.key_heads, rotate=rotate
            )

        normal = initializers.RandomNormal(stddev=_DEVIATION)
        table = layers.Embedding(self.vocab_size, self.width, embeddings_initializer=normal)
        parts = [
            ((normalize(), attention()), (normalize(), feed_forward())) for _ in range(self.layers)
        ]
        last = normalize()
        output = linear(self.vocab_size)
        return Network(
            embed=lambda tokens, first=None: table(tokens),
            blocks=parts,
            logits=lambda x: output(last(x)),
            sizes=(self.sequence_length, self.vocab_size),
        )


def _gated(width: int, hidden: int, tokens: int) -> list[Layer]:
    """SwiGLU: one product makes gates and hidden units, whose product the second layer reads."""
    linear = functools.partial(dense, tokens=tokens, bias=False)
    last = replace(linear("output", hidden, width), read=tokens * 2 * hidden)
    return [linear("gates_hidden", width, 2 * hidden), last]


@dataclass(frozen=True)
class VisionTransformer(_Heads):
    """A Vision Transformer: an encoder over the patches of an image and a class token, from which a
    dense layer reads the class. heads must divide width, patch must divide image_size.
    """

    size_template: ClassVar[str] = "{layers}x{width} h{heads} p{patch} {image_size}px"

    name: str = "vit"
    layers: int = option(
        4, "blocks of attention and feed-forward (ViT-B: 12, ViT-L: 24)", low=1, high=1000
    )
    width: int = option(192, "of the blocks; feed-forward layers are four times as wide", low=1)
    heads: int = option(3, "of every attention; they divide the width", low=1)
    patch: int = option(
        16, "height and width of a patch; it divides the image", low=1, high=100_000
    )
    image_size: int = option(224, "height and width of the image", low=1, high=100_000)
    output_size: int = option(1000, "classes", low=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch:
            reason = f"is no multiple of model.patch={self.patch}"
            nearest = max(1, round(self.image_size / self.patch)) * self.patch
            raise ConfigError(
                "model.image_size", self.image_size, reason, f"write for example {nearest}"
            )

    @property
    def patches(self) -> int:
        """How many the image has."""
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
        encoder = blocks(tokens, width, self.heads, self.layers)
        return [first, *encoder, dense("logits", width, self.output_size, is_last=True)]

    def build(self) -> BuiltModel:
        """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
        from keras import layers

        from paradnn.families.parts.attention import (
            Attention,
            ClassToken,
            Positions,
            feed_forward_layers,
        )

        inputs = image_input(self.image_size)
        x = layers.Conv2D(self.width, self.patch, self.patch)(inputs)
        x = layers.Reshape((self.patches, self.width))(x)
        x = Positions(learned=True)(ClassToken()(x))
        for _ in range(self.layers):
            y = layers.LayerNormalization(epsilon=1e-6)(x)
            x = x + Attention(self.width, self.heads)(y)
            y = layers.LayerNormalization(epsilon=1e-6)(x)
            x = x + feed_forward_layers(self.width, 4 * self.width, "gelu")(y)
        x = layers.LayerNormalization(epsilon=1e-6)(x)[:, 0]
        return classifier(inputs, layers.Dense(self.output_size)(x), self.output_size)


_SWEEP = "model.width=128,256,512 batch_size=1,4,16"
FAMILY = tuple(
    Family(
        name,
        options,
        data,
        ("width", second, "layers"),
        sweep,
        is_real=name == "transformer",
        order=order,
    )
    for name, options, data, second, sweep, order in (
        ("gpt", LanguageModel, "tokens", "sequence_length", _SWEEP, 6),
        (
            "vit",
            VisionTransformer,
            "images",
            "patch",
            "model.width=192,384,768 batch_size=1,4,16",
            7,
        ),
        ("transformer", Transformer, "tokens", "sequence_length", _SWEEP, 13),
        ("llama", Llama, "tokens", "sequence_length", _SWEEP, 21),
    )
)
