"""Layers of the attention models; see `paradnn.worker.models.transformer`, `gpt` and `vit`.

Attention of T queries to S keys over all heads multiplies 2 T S width: the scores and the weighted sum of values. A
normalisation takes in the addition before it; softmax, masks, dropout and activations belong to the layer they follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.fc import dense
from paradnn.costs.layers import Layer, Multiply

__all__ = ["gpt_layers", "transformer_layers", "vit_layers"]


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


def _blocks(tokens: int, width: int, heads: int, count: int) -> list[Layer]:
    """Pre-norm blocks and the normalisation after the last: each normalisation but the first adds what was made."""
    first = _normalisation(tokens, width, added=False)
    middle = _normalisation(tokens, width, hands_on=True)
    work = [*_attention(tokens, width, heads), middle, *_feed_forward(tokens, width, 4 * width), middle]
    return [first, *(work * count)[:-1], _normalisation(tokens, width)]


def _attention(tokens: int, width: int, heads: int, bias: bool = True) -> list[Layer]:
    """Self-attention: one product makes query, key and value."""
    return [
        dense("query_key_value", width, 3 * width, tokens=tokens, bias=bias),
        _products(tokens, width, heads),
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
