"""The encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017), as published.

Post-norm: LayerNorm(x + Dropout(SubLayer(x))), with dropout on the embeddings too; projections of attention without
bias, feed-forward layers with bias and a rectifier; sinusoidal positions added to embeddings times sqrt(width); one
table for source, target and output; label smoothing. The target comes shifted: inputs are what precedes each target.
6 layers of 512 with 8 heads, 2048 hidden units and 37,000 tokens are the base model; 1024, 16 and 4096 the big one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import layers, ops

from paradnn.worker.models.attention import Positions, TiedEmbedding, attend, feed_forward, final_logits
from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy

__all__ = ["build_transformer", "smoothed_cross_entropy"]


def build_transformer(model: Mapping[str, Any]) -> Workload:
    """Inputs: source and shifted target, each (batch, sequence_length) tokens; targets the same shape."""
    length, heads = model["sequence_length"], model["heads"]
    drop = functools.partial(_drop, rate=model["dropout"])
    scale = math.sqrt(model["width"])
    table = TiedEmbedding(model["vocab_size"], model["width"], deviation=1 / scale, scale=scale)
    positions = Positions(learned=False)

    def embed(tokens: Any) -> Any:
        return drop(positions(table(tokens)))

    def add(x: Any, change: Any) -> Any:
        return layers.LayerNormalization(epsilon=1e-6)(x + drop(change))

    source, target = (keras.Input((length,), dtype="int32") for _ in range(2))
    memory = embed(source)
    for _ in range(model["layers"]):
        memory = add(memory, attend(memory, heads, use_bias=False))
        memory = add(memory, feed_forward(memory, model["feed_forward"], "relu"))
    x = embed(target)
    for _ in range(model["layers"]):
        x = add(x, attend(x, heads, causal=True, use_bias=False))
        x = add(x, attend(x, heads, memory=memory, use_bias=False))
        x = add(x, feed_forward(x, model["feed_forward"], "relu"))
    logits = final_logits(table(x, reverse=True))
    tokens = ArraySpec((length,), "int32", model["vocab_size"])
    loss = functools.partial(smoothed_cross_entropy, smoothing=model["label_smoothing"])
    return Workload(keras.Model([source, target], logits), inputs=(tokens, tokens), targets=(tokens,), loss=loss)


def smoothed_cross_entropy(targets: Sequence[Any], logits: Any, smoothing: float) -> Any:
    """Cross entropy with `smoothing` of each target's probability spread evenly over all classes (Szegedy et al. 2016).

    With z the logits and K their number: (1 - s)(lse z - z[target]) + s (lse z - sum z / K), lse the log of the sum of
    exponentials; no one-hot matrix is made.
    """
    if not smoothing:
        return cross_entropy(targets, logits)
    spread = ops.mean(ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1))
    return (1 - smoothing) * cross_entropy(targets, logits) + smoothing * spread


def _drop(x: Any, rate: float) -> Any:
    return layers.Dropout(rate)(x) if rate else x
