"""Recurrent: embedding -> stacked cells of the embedding's width -> output over the vocabulary, per
token.

The cells are Keras' own: basic, LSTM, and GRU with the reset gate applied after the matrix product
(paper, 2.1).
"""

from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.layers import Layer, Multiply, dense, embedding
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, token_predictor

_GATES = {"rnn": 1, "lstm": 4, "gru": 3}
#: Bias vectors of a gate: Keras' GRU with reset_after has one for the input and one for the
#: recurrent product.
_BIASES = {"rnn": 1, "lstm": 1, "gru": 2}


@dataclass(frozen=True)
class Recurrent(Model):
    """An embedding, stacked recurrent layers of its width, and an output over the vocabulary at
    every token.
    """

    predicts_tokens: ClassVar[bool] = True
    size_template: ClassVar[str] = "{layers}x{embedding_size} t{sequence_length}"

    name: str = "rnn"
    layers: int = option(1, "stacked recurrent layers (paper: 1..13)", low=1, high=1000)
    embedding_size: int = option(
        100, "width of the embedding and of every cell (paper: 100..900)", low=1
    )
    sequence_length: int = option(10, "tokens of an example (paper: 10..90)", low=1, high=1_000_000)
    vocab_size: int = option(32, "distinct tokens (paper: 2..1024)", low=2)

    def layer_list(self) -> list[Layer]:
        """Embedding, stacked cells, output per token. Every time step has an input and a recurrent
        product, forward and for the weights' gradient. The recurrent product's input gradient is
        needed at every step but the first, whose state is the constant zero. A cell is one use of
        its weights, which stay in caches over the time steps.
        """
        width = self.embedding_size
        length = self.sequence_length
        gates = _GATES[self.name]
        product = gates * width * width
        inner, reread = self._saved()
        cell = Layer(
            self.name,
            macs=2 * length * product,
            input_macs=(2 * length - 1) * product,
            parameters=gates * width * (2 * width + _BIASES[self.name]),
            weights=2 * product,
            read=length * width,
            written=length * width,
            inner=inner * width,
            reread=reread * width,
            kept=(inner + reread) * width,
            products=tuple(
                Multiply(1, width, gates * width, length, constant) for constant in (0, 1)
            ),
        )
        last = dense("logits", width, self.vocab_size, tokens=length, is_last=True)
        return [embedding(length, width, self.vocab_size), *[cell] * self.layers, last]

    def _saved(self) -> tuple[int, int]:
        """Vectors over the steps that a cell's backward pass cannot do without: its inner ones, and
        its outputs.

        - rnn: the state h, its output, at every step: the tanh's gradient is made from it.
        - lstm, c' = f c + i g, h = o tanh(c'): i, g and o at every step; f and the cell state c before it at every step
          but the first, where c is zero. Each h follows elementwise from o, f, c, i and g.
        - gru, h' = z h + (1 - z) tanh(x + r s) with s the recurrent product: z, r and the tanh at every step; s and the
          state h before it at every step but the first, where s is a bias and h is zero.
        """
        length = self.sequence_length
        later = self.sequence_length - 1
        return {
            "rnn": (0, length),
            "lstm": (3 * length + 2 * later, 0),
            "gru": (3 * length + later, later),
        }[self.name]

    def build(self) -> BuiltModel:
        """Inputs and targets (batch, sequence_length) tokens below vocab_size."""
        import keras
        from keras import layers

        cell = {"rnn": layers.SimpleRNN, "lstm": layers.LSTM, "gru": layers.GRU}[self.name]
        inputs = keras.Input((self.sequence_length,), dtype="int32")
        x = layers.Embedding(self.vocab_size, self.embedding_size)(inputs)
        for _ in range(self.layers):
            x = cell(self.embedding_size, return_sequences=True)(x)
        return token_predictor(inputs, layers.Dense(self.vocab_size)(x), self.vocab_size)


_SWEPT = ("embedding_size", "sequence_length", "layers")
_SWEEP = "model.embedding_size=100,300,500 batch_size=16,64,256"
FAMILY = tuple(
    Family(name, Recurrent, "tokens", _SWEPT, _SWEEP, order=order)
    for order, name in enumerate(("rnn", "lstm", "gru"), start=3)
)
