"""Fully connected networks: input, hidden layers with rectifiers (ReLU), output.

See the ParaDnn paper, section 2.1.
"""

import itertools
from dataclasses import dataclass

from paradnn.core.errors import ConfigError
from paradnn.core.layers import Layer, dense
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import ArraySpec, BuiltModel, classifier, squared_error


@dataclass(frozen=True)
class FullyConnected(Model):
    """Fully connected: `layers` hidden layers of `nodes` rectified linear units. A list sets the
    width of each layer, as in model.nodes=[1000,500,100,50]. model.layers=0 is softmax regression.
    """

    name: str = "fc"
    layers: int = option(
        4, "hidden layers (paper: 4..128); 0: softmax regression", low=0, high=10_000
    )
    nodes: int | tuple[int, ...] = option(
        1024,
        "units of each hidden layer (paper: 32..8192), or a list of them: [1000,500,100,50]",
        low=1,
    )
    input_size: int = option(2000, "features of an example (paper: 2000..8000)", low=1)
    output_size: int = option(
        200, "classes (paper: 200..1000); 1: a regression to one number", low=1
    )

    def __post_init__(self) -> None:
        if isinstance(self.nodes, tuple) and len(self.nodes) != self.layers:
            reason = f"model.nodes lists {len(self.nodes)} layers: {list(self.nodes)}"
            raise ConfigError(
                "model.layers", self.layers, reason, f"set model.layers={len(self.nodes)}"
            )
        # Canonical form: equal widths become one number, and nodes has its default without layers.
        if self.layers == 0:
            object.__setattr__(self, "nodes", FullyConnected.nodes)
        elif isinstance(self.nodes, tuple) and len(set(self.nodes)) == 1:
            object.__setattr__(self, "nodes", self.nodes[0])

    @property
    def size(self) -> str:
        if self.layers == 0:
            return f"{self.input_size}-{self.output_size}"
        if isinstance(self.nodes, int):
            return f"{self.layers}x{self.nodes}"
        return "-".join(map(str, self.nodes))

    @property
    def widths(self) -> tuple[int, ...]:
        """Units of each hidden layer."""
        if isinstance(self.nodes, int):
            return (self.nodes,) * self.layers
        return self.nodes

    def layer_list(self) -> list[Layer]:
        widths = (self.input_size, *self.widths)
        layers = [
            dense(f"dense_{index}", before, width, is_first=index == 0)
            for index, (before, width) in enumerate(itertools.pairwise(widths))
        ]
        logits = dense("logits", widths[-1], self.output_size, is_first=not layers, is_last=True)
        return [*layers, logits]

    def build(self) -> BuiltModel:
        """Build the model in Keras.

        Inputs are (batch, input_size) float32. Targets are (batch,) int32 classes, or (batch,)
        float32 numbers if output_size is 1.
        """
        import keras
        from keras import layers

        inputs = keras.Input((self.input_size,), dtype="float32")
        x = inputs
        for width in self.widths:
            x = layers.Dense(width, activation="relu")(x)
        network = classifier(inputs, layers.Dense(self.output_size)(x), self.output_size)
        if self.output_size > 1:
            return network
        return BuiltModel(network.model, network.inputs, (ArraySpec((), "float32"),), squared_error)


_SWEEP = "model.nodes=64,256,1024 batch_size=64,256,1024"
FAMILY = Family("fc", FullyConnected, "vectors", ("nodes", "layers"), _SWEEP, order=0)
