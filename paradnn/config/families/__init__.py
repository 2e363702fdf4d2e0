"""The keys of every model family, typed: `FAMILIES` names what `model=...` can be.

A family is a frozen dataclass of options with a `name` and a `size`, the words that tell its models apart in a list.
What it builds is in `paradnn.worker.models`, what that costs in `paradnn.costs`. What its keys must be together, a
family checks in `__post_init__`, with a ConfigError that names the dotted key.
"""

from __future__ import annotations

from paradnn.config.families.attention import LanguageModel, Transformer, VisionTransformer
from paradnn.config.families.synthetic import CNN_FAMILIES, RNN_FAMILIES, Convolutional, FullyConnected, Recurrent
from paradnn.config.families.vision import CLASSIFIERS, Classifier, MobileNet, RetinaNet

__all__ = [
    "FAMILIES",
    "Classifier",
    "Convolutional",
    "FullyConnected",
    "LanguageModel",
    "MobileNet",
    "Model",
    "Recurrent",
    "RetinaNet",
    "Transformer",
    "VisionTransformer",
]

Model = (
    FullyConnected
    | Convolutional
    | Recurrent
    | Transformer
    | LanguageModel
    | VisionTransformer
    | Classifier
    | MobileNet
    | RetinaNet
)
FAMILIES: dict[str, type[Model]] = {
    "fc": FullyConnected,
    **dict.fromkeys(CNN_FAMILIES, Convolutional),
    **dict.fromkeys(RNN_FAMILIES, Recurrent),
    "transformer": Transformer,
    "gpt": LanguageModel,
    "vit": VisionTransformer,
    **dict.fromkeys(CLASSIFIERS, Classifier),
    "mobilenet": MobileNet,
    "retinanet": RetinaNet,
}
