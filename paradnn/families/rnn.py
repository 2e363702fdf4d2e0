"""Recurrent language models: an embedding, stacked recurrent layers, an output per token.

The layers have the width of the embedding, and the outputs are logits over the vocabulary. The
cells are SimpleRNN, LSTM and GRU of Keras. The GRU of Keras applies the reset gate after the matrix
product. See the ParaDnn paper, section 2.1.
"""

from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.layers import Layer, Multiply, dense, embedding
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, token_predictor

#: Number of gates of a cell. Each gate has an input product and a recurrent product.
_GATES = {"rnn": 1, "lstm": 4, "gru": 3}
#: Number of bias vectors per gate. Keras' GRU with reset_after has one per product.
_BIASES = {"rnn": 1, "lstm": 1, "gru": 2}


@dataclass(frozen=True)
class Recurrent(Model):
    """A recurrent language model: an embedding, stacked recurrent layers of the same width, and
    logits over the vocabulary at each token.
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
        """Return the embedding, the stacked cells, and the output layer.

        Every time step has an input product and a recurrent product, in the forward pass and in the
        gradient of the weights. The initial state is the constant zero, so the first step needs no
        gradient of it. The costs of a cell include one read of its weights, because they stay in
        caches over the time steps.
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
            backward_only=inner * width,
            reread_outputs=reread * width,
            kept=(inner + reread) * width,
            products=tuple(
                Multiply(1, width, gates * width, length, constant) for constant in (0, 1)
            ),
        )
        last = dense("logits", width, self.vocab_size, tokens=length, is_last=True)
        return [embedding(length, width, self.vocab_size), *[cell] * self.layers, last]

    def _saved(self) -> tuple[int, int]:
        """Count the vectors that the backward pass of a cell needs from the forward pass.

        Returns the number of inner vectors, such as gates, and the number of outputs. The numbers
        are totals over all time steps.

        - rnn: needs the state h, which is the output, at every step. It determines the gradient of
          tanh.
        - lstm, with c' = f c + i g and h = o tanh(c'): needs i, g and o at every step. It needs f
          and the previous cell state c at every step but the first, where c is zero. Each h can be
          computed elementwise from o, f, c, i and g.
        - gru, with h' = z h + (1 - z) tanh(x + r s) and the recurrent product s: needs z, r and the
          tanh at every step. It needs s and the previous state h at every step but the first, where
          s is a bias and h is zero.
        """
        steps = self.sequence_length
        if self.name == "rnn":
            return 0, steps
        if self.name == "lstm":
            return 3 * steps + 2 * (steps - 1), 0
        return 3 * steps + (steps - 1), steps - 1

    def build(self) -> BuiltModel:
        """Build the model in Keras.

        Inputs and targets are (batch, sequence_length) int32 tokens below vocab_size.
        """
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
