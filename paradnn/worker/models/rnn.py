"""Recurrent: embedding -> stacked cells of the embedding's width -> output over the vocabulary, per token.

The cells are Keras' own: basic, LSTM, and GRU with the reset gate applied after the matrix product (paper, 2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers

from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy

__all__ = ["build_rnn"]

_CELLS = {"rnn": layers.SimpleRNN, "lstm": layers.LSTM, "gru": layers.GRU}


def build_rnn(model: Mapping[str, Any]) -> Workload:
    """Inputs and targets (batch, sequence_length) tokens below vocab_size."""
    cell, width, length, vocabulary = (
        _CELLS[model["name"]],
        model["embedding_size"],
        model["sequence_length"],
        model["vocab_size"],
    )
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(model["layers"]):
        x = cell(width, return_sequences=True)(x)
    logits = layers.Activation("linear", dtype="float32")(layers.Dense(vocabulary)(x))
    tokens = ArraySpec((length,), "int32", vocabulary)
    return Workload(keras.Model(inputs, logits), inputs=(tokens,), targets=(tokens,), loss=cross_entropy)
