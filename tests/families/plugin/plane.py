"""A family of another package: all that there is of it."""

from __future__ import annotations

from dataclasses import dataclass

from paradnn.core.layers import Layer, dense
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, classifier


@dataclass(frozen=True)
class Plane(Model):
    """One hidden layer between four features and two classes."""

    name: str = option("plane", "the family", choices=("plane",))
    wings: int = option(8, "units of the hidden layer", low=1, high=100)

    @property
    def size(self) -> str:
        """Units."""
        return f"w{self.wings}"

    def layer_list(self) -> list[Layer]:
        """The hidden layer and the output."""
        return [
            dense("wings", 4, self.wings, is_first=True),
            dense("tail", self.wings, 2, is_last=True),
        ]

    def build(self) -> BuiltModel:
        """Inputs (batch, 4) float32, targets (batch,) classes."""
        import keras

        inputs = keras.Input((4,))
        x = keras.layers.Dense(self.wings, activation="relu")(inputs)
        return classifier(inputs, keras.layers.Dense(2)(x), 2)


FAMILY = Family(
    "plane",
    Plane,
    "vectors",
    ("wings",),
    "model.wings=2,4,8",
    defaults={"step": {"batch_size": 32}},
)
