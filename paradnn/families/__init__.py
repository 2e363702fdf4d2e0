"""The keys of every model family, typed: `FAMILIES` names what `model=...` can be.

A family is a frozen dataclass of options with a `name` and a `size`, the words that tell its models apart in a list.
What it builds is in `paradnn.worker.models`, what that costs in `paradnn.costs`.
"""

from __future__ import annotations

from paradnn.families.synthetic import CNN_FAMILIES, RNN_FAMILIES, Convolutional, FullyConnected, Recurrent

__all__ = ["FAMILIES", "Convolutional", "FullyConnected", "Model", "Recurrent"]

Model = FullyConnected | Convolutional | Recurrent
FAMILIES: dict[str, type[Model]] = {
    "fc": FullyConnected,
    **dict.fromkeys(CNN_FAMILIES, Convolutional),
    **dict.fromkeys(RNN_FAMILIES, Recurrent),
}
