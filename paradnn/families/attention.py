"""Layers of the attention models, by arithmetic; their Keras counterparts are in `paradnn.families.parts.attention`.

Attention of T queries to S keys over all heads multiplies 2 T S width: the scores and the weighted sum of values. A
normalisation takes in the addition before it; softmax, masks, dropout and activations belong to the layer they follow.
"""

from __future__ import annotations

from dataclasses import replace

from paradnn.errors import ConfigError
from paradnn.families.layers import Layer, Multiply, dense, embedding


def check_heads(width: int, heads: int) -> None:
    """Every head has the same width; ConfigError names both numbers."""
    if width % heads:
        nearest = max(1, round(width / heads)) * heads
        remedy = f"write for example {nearest}, or heads that divide it"
        raise ConfigError("model.width", width, f"is no multiple of model.heads={heads}", remedy)


def blocks(
    tokens: int, width: int, heads: int, count: int, between: list[Layer] | None = None, last: int | None = None
) -> list[Layer]:
    """Pre-norm blocks and the normalisation after the last: each normalisation but the first adds what was made.

    between: the products of attention, by default of all tokens with each other. last: so many are normalised at last.
    """
    first = normalisation(tokens, width, added=False)
    middle = normalisation(tokens, width, hands_on=True)
    work = [*attention_layers(tokens, width, heads, between=between), middle]
    work += [*feed_forward(tokens, width, 4 * width), middle]
    return [first, *(work * count)[:-1], normalisation(last or tokens, width)]


def attention_layers(
    tokens: int, width: int, heads: int, bias: bool = True, between: list[Layer] | None = None
) -> list[Layer]:
    """Self-attention: one product makes query, key and value."""
    return [
        dense("query_key_value", width, 3 * width, tokens=tokens, bias=bias),
        *(between or [products(tokens, width, heads)]),
        dense("attended", width, width, tokens=tokens, bias=bias),
    ]


def products(tokens: int, width: int, heads: int) -> Layer:
    """Scores, softmax and weighted sum over as many keys as queries, in one kernel that stores no scores.

    Such a kernel saves one number for each query and head, the logarithm of its softmax's sum, and its backward pass
    reads its output again (Dao et al. 2022, FlashAttention, algorithms 1 and 4).
    """
    made = tokens * width
    return replace(_attention(tokens, tokens, width, heads), inner=heads * tokens, reread=made, kept=made)


def cached_attention(tokens: int, keys: int, length: int, width: int, heads: int) -> list[Layer]:
    """Keys and values of new tokens go into a cache of `length` places; the tokens attend to so many keys.

    Where there are more keys than new ones they are the cache's.
    """
    attention = replace(_attention(tokens, keys, width, heads), held=2 * length * width)
    return [Layer("cache", read=2 * tokens * width, written=2 * tokens * width), attention]


def _attention(tokens: int, keys: int, width: int, heads: int) -> Layer:
    head = width // heads
    return Layer(
        "attention",
        macs=2 * tokens * keys * width,
        read=(tokens + 2 * keys) * width,
        written=tokens * width,
        products=(Multiply(tokens, head, keys, own=heads), Multiply(tokens, keys, head, own=heads)),
    )


def feed_forward(tokens: int, width: int, hidden: int) -> list[Layer]:
    """Two dense layers at every token."""
    return [dense("hidden", width, hidden, tokens=tokens), dense("output", hidden, width, tokens=tokens)]


def normalisation(tokens: int, width: int, added: bool = True, hands_on: bool = False) -> Layer:
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


def lookup(tokens: int, width: int, vocabulary: int, is_owner: bool = True) -> Layer:
    """Rows of a table whose gradient the tied output writes, and to which a lookup adds its own."""
    whole = replace(embedding(tokens, width, vocabulary), added=tokens * width)
    return whole if is_owner else replace(whole, parameters=0, borrowed=whole.parameters)


def tied_logits(tokens: int, width: int, vocabulary: int) -> Layer:
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
