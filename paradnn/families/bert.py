"""BERT (Devlin et al. 2019): an encoder that predicts masked tokens.

Embeddings of tokens, positions and segments are added and normalized. Blocks are post-norm with
biases, and their feed-forward layers use the exact GELU. The head is a dense layer with
normalization, followed by a product with the token embedding and a bias. The next-sentence head,
which the authors trained in addition, is omitted.

BERT-base has 12 layers of width 768 with 12 heads, 512 positions, 30,522 tokens, and 109,514,298
parameters. Here all positions have logits, whereas the authors predict only the masked 15% of the
tokens.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

from paradnn.core.layers import Layer, dense, embedding
from paradnn.core.schema import option
from paradnn.families import Family
from paradnn.families.attention import (
    INITIAL_DEVIATION,
    DividedHeads,
    attention_layers,
    feed_forward_layers,
    lookup,
    normalization,
    tied_logits,
)
from paradnn.families.built import ArraySpec, BuiltModel, cross_entropy, final_logits

#: Number of segments of an example: the first and the second sentence.
_SEGMENTS = 2


@dataclass(frozen=True)
class Bert(DividedHeads):
    """An encoder that predicts masked tokens (Devlin et al. 2019): post-norm, learned positions,
    output tied to the embedding. model.heads must divide model.width.
    """

    predicts_tokens: ClassVar[bool] = True
    size_template: ClassVar[str] = "{layers}x{width} h{heads} ff{feed_forward} t{sequence_length}"

    name: str = "bert"
    layers: int = option(
        4, "blocks of attention and feed-forward (BERT-base: 12, BERT-large: 24)", low=1, high=1000
    )
    width: int = option(256, "width of embeddings and blocks (base 768, large 1024)", low=1)
    heads: int = option(4, "heads of each attention; they must divide the width", low=1)
    feed_forward: int = option(
        1024, "hidden units of the feed-forward layers (base 3072, large 4096)", low=1
    )
    sequence_length: int = option(
        128, "tokens of an example, each with a learned position", low=1, high=1_000_000
    )
    vocab_size: int = option(8192, "distinct tokens (BERT: 30522)", low=2)
    dropout: float = option(
        0.1, "dropout of embeddings and of each sublayer's output (BERT: 0.1)", low=0.0, high=0.9
    )

    def layer_list(self) -> list[Layer]:
        length = self.sequence_length
        width = self.width
        normalize = normalization(length, width)
        attention = [*attention_layers(length, width, self.heads), normalize]
        feed_forward = [*feed_forward_layers(length, width, self.feed_forward), normalize]
        segments = embedding(length, width, _SEGMENTS)
        logits = tied_logits(length, width, self.vocab_size)
        return [
            lookup(length, width, self.vocab_size),
            # The lookup of tokens adds the vectors of positions and segments in the same pass.
            Layer("positions", parameters=length * width),
            replace(segments, name="segments", written=0, kept=0),
            normalization(length, width, adds=False),
            *(attention + feed_forward) * self.layers,
            dense("transform", width, width, tokens=length),
            normalization(length, width, adds=False),
            replace(logits, parameters=self.vocab_size),
        ]

    def build(self) -> BuiltModel:
        """Build the model in Keras.

        Inputs are tokens and segments, each (batch, sequence_length) int32. Targets are tokens of
        the same shape.
        """
        import keras
        from keras import initializers, layers

        from paradnn.families.parts.attention import (
            Attention,
            Positions,
            TiedEmbedding,
            dense_layer,
            dropout,
            feed_forward_network,
        )

        width = self.width
        normal = initializers.RandomNormal(stddev=INITIAL_DEVIATION)
        table = TiedEmbedding(self.vocab_size, width, INITIAL_DEVIATION, use_bias=True)
        positions = Positions(learned=True, deviation=INITIAL_DEVIATION)
        segment_table = layers.Embedding(_SEGMENTS, width, embeddings_initializer=normal)
        normalize = functools.partial(layers.LayerNormalization, epsilon=1e-12)
        drop = functools.partial(dropout, rate=self.dropout)

        tokens = keras.Input((self.sequence_length,), dtype="int32")
        segments = keras.Input((self.sequence_length,), dtype="int32")
        x = drop(normalize()(positions(table(tokens)) + segment_table(segments)))
        for _ in range(self.layers):
            attention = Attention(width, self.heads, deviation=INITIAL_DEVIATION)
            x = normalize()(x + drop(attention(x)))
            feed_forward = feed_forward_network(width, self.feed_forward, "gelu", INITIAL_DEVIATION)
            x = normalize()(x + drop(feed_forward(x)))
        x = normalize()(dense_layer(width, INITIAL_DEVIATION, activation="gelu")(x))
        logits = final_logits(table(x, reverse=True))
        shape = (self.sequence_length,)
        words = ArraySpec(shape, "int32", self.vocab_size)
        return BuiltModel(
            keras.Model([tokens, segments], logits),
            inputs=(words, ArraySpec(shape, "int32", _SEGMENTS)),
            targets=(words,),
            loss=cross_entropy,
        )


FAMILY = Family(
    "bert",
    Bert,
    "tokens",
    ("width", "sequence_length", "layers"),
    "model.width=128,256,512 batch_size=1,4,16",
    order=22,
)
