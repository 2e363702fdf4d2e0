"""Layers of the attention models; see `paradnn.worker.models.transformer`, `gpt` and `vit`.

Attention of T queries to S keys over all heads multiplies 2 T S width: the scores and the weighted sum of values. A
normalisation takes in the addition before it; softmax, masks, dropout and activations belong to the layer they follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.fc import dense
from paradnn.costs.layers import Layer, Multiply

__all__ = ["decode_layers", "gpt_layers", "prefill_layers", "transformer_layers", "vit_layers"]


def transformer_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Encoder, decoder, and an output that shares its table with both lookups."""
    length, width, heads = model["sequence_length"], model["width"], model["heads"]
    sums = _normalisation(length, width)
    feed = [*_feed_forward(length, width, model["feed_forward"]), sums]
    itself = [*_attention(length, width, heads, bias=False), sums]
    other = [
        dense("query", width, width, tokens=length, bias=False),
        dense("key_value", width, 2 * width, tokens=length, bias=False),
        _products(length, width, heads),
        dense("attended", width, width, tokens=length, bias=False),
        sums,
    ]
    return [
        _lookup(length, width, model["vocab_size"]),
        *(itself + feed) * model["layers"],
        _lookup(length, width, model["vocab_size"], is_owner=False),
        *(itself + other + feed) * model["layers"],
        _tied_logits(length, width, model["vocab_size"]),
    ]


def gpt_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Embedding with positions, pre-norm blocks, and an output that shares the embedding's table."""
    length, width = model["sequence_length"], model["width"]
    return [
        _lookup(length, width, model["vocab_size"]),
        Layer("positions", parameters=length * width),  # added where the lookup is
        *_blocks(length, width, model["heads"], model["layers"]),
        _tied_logits(length, width, model["vocab_size"]),
    ]


def prefill_layers(model: Mapping[str, Any], prompt: int, length: int) -> list[Layer]:
    """The model of `gpt_layers` that reads a prompt into a cache of `length` places, and says what follows it.

    Of the prompt's tokens the last alone has logits.
    """
    return _generation(model, _cached_attention(prompt, prompt, length, model["width"], model["heads"]), prompt)


def decode_layers(model: Mapping[str, Any], length: int) -> list[Layer]:
    """The same model for one token after others, which looks back over a cache of `length` places.

    With N weights in products a token takes 2 N FLOPs and 4 x length x width more in each layer, as Kaplan et al. 2020
    (Scaling laws for neural language models, table 1) count them; a step reads every weight once for the whole batch
    and for each of its examples a cache of 2 x length x width in each layer, as Pope et al. 2022 (Efficiently scaling
    transformer inference, section 2) count the traffic. Places that are not written yet are read and multiplied like
    the others, since no shape is open; the choice of the likeliest token is left out.
    """
    return _generation(model, _cached_attention(1, length, length, model["width"], model["heads"]), 1)


def _generation(model: Mapping[str, Any], attention: list[Layer], tokens: int) -> list[Layer]:
    """Layers of `gpt_layers` over so many tokens, whose last one has logits; positions are read for these alone."""
    width, positions = model["width"], model["sequence_length"]
    return [
        _lookup(tokens, width, model["vocab_size"]),
        Layer("positions", parameters=tokens * width),
        Layer("other positions", parameters=(positions - tokens) * width, rows=0),
        *_blocks(tokens, width, model["heads"], model["layers"], attention, last=1),
        _tied_logits(1, width, model["vocab_size"]),
    ]


def vit_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Patches with class token and positions, pre-norm blocks, and an output from the class token."""
    width, channels = model["width"], 3 * model["patch"] ** 2
    patches = (model["image_size"] // model["patch"]) ** 2
    tokens = patches + 1
    embedding = Layer(
        "patches",
        macs=patches * channels * width,
        input_macs=0,
        parameters=(channels + 1) * width + width + tokens * width,
        read=3 * model["image_size"] ** 2,
        written=tokens * width,
        kept=patches * width,
        is_first=True,
        products=(Multiply(patches, channels, width),),
    )
    blocks = _blocks(tokens, width, model["heads"], model["layers"])
    return [embedding, *blocks, dense("logits", width, model["output_size"], is_last=True)]


def _blocks(
    tokens: int, width: int, heads: int, count: int, products: list[Layer] | None = None, last: int | None = None
) -> list[Layer]:
    """Pre-norm blocks and the normalisation after the last: each normalisation but the first adds what was made.

    products: those of attention, by default of all tokens with each other. last: so many tokens are normalised at last.
    """
    first = _normalisation(tokens, width, added=False)
    middle = _normalisation(tokens, width, hands_on=True)
    work = [*_attention(tokens, width, heads, products=products), middle]
    work += [*_feed_forward(tokens, width, 4 * width), middle]
    return [first, *(work * count)[:-1], _normalisation(last or tokens, width)]


def _attention(
    tokens: int, width: int, heads: int, bias: bool = True, products: list[Layer] | None = None
) -> list[Layer]:
    """Self-attention: one product makes query, key and value."""
    return [
        dense("query_key_value", width, 3 * width, tokens=tokens, bias=bias),
        *(products or [_products(tokens, width, heads)]),
        dense("attended", width, width, tokens=tokens, bias=bias),
    ]


def _products(tokens: int, width: int, heads: int) -> Layer:
    """Scores, softmax and weighted sum over as many keys as queries, in one kernel that stores no scores.

    Such a kernel saves one number for each query and head, the logarithm of its softmax's sum, and its backward pass
    reads its output again (Dao et al. 2022, FlashAttention, algorithms 1 and 4).
    """
    return Layer(
        "attention",
        macs=2 * tokens * tokens * width,
        read=3 * tokens * width,
        written=tokens * width,
        inner=heads * tokens,
        reread=tokens * width,
        kept=tokens * width,
        products=(
            Multiply(tokens, width // heads, tokens, own=heads),
            Multiply(tokens, tokens, width // heads, own=heads),
        ),
    )


def _cached_attention(tokens: int, keys: int, length: int, width: int, heads: int) -> list[Layer]:
    """Keys and values of new tokens go into a cache of `length` places; the tokens attend to so many keys.

    Where there are more keys than new ones they are the cache's.
    """
    attention = Layer(
        "attention",
        macs=2 * tokens * keys * width,
        read=tokens * width + 2 * keys * width,
        written=tokens * width,
        held=2 * length * width,
        products=(Multiply(tokens, width // heads, keys, own=heads), Multiply(tokens, keys, width // heads, own=heads)),
    )
    return [Layer("cache", read=2 * tokens * width, written=2 * tokens * width), attention]


def _feed_forward(tokens: int, width: int, hidden: int) -> list[Layer]:
    return [dense("hidden", width, hidden, tokens=tokens), dense("output", hidden, width, tokens=tokens)]


def _normalisation(tokens: int, width: int, added: bool = True, hands_on: bool = False) -> Layer:
    """Layer normalisation of a sum (`added`), which it also writes where the next addition needs it (`hands_on`).

    Neither is kept: both follow from what is added.
    """
    elements = tokens * width
    return Layer(
        "normalisation",
        parameters=2 * width,
        weights=width,  # scales; the offsets are added
        read=2 * elements if added else elements,
        written=2 * elements if hands_on else elements,
        again=elements if hands_on else None,
    )


def _lookup(tokens: int, width: int, vocabulary: int, is_owner: bool = True) -> Layer:
    """Rows of a table whose gradient the tied output writes, and to which a lookup adds its own."""
    return Layer(
        "embedding",
        parameters=vocabulary * width if is_owner else 0,
        borrowed=0 if is_owner else vocabulary * width,
        rows=tokens * width,
        added=tokens * width,
        read=tokens,
        written=tokens * width,
        kept=tokens * width,
        is_first=True,
    )


def _tied_logits(tokens: int, width: int, vocabulary: int) -> Layer:
    """The embedding's table once more, as a product without bias."""
    return Layer(
        "logits",
        macs=tokens * width * vocabulary,
        borrowed=vocabulary * width,
        weights=vocabulary * width,
        read=tokens * width,
        written=tokens * vocabulary,
        kept=tokens * vocabulary,
        is_last=True,
        targets=tokens,
        products=(Multiply(tokens, width, vocabulary),),
    )
