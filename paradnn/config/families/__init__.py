"""The registry of model families: what every part of the project must know of one, as plain data.

What depends on a family is derived from `FAMILIES` or checked against it (`tests/config/test_families.py` names what
is missing). A new family is an entry here with its dataclass of options, a cost function in `paradnn.costs`, a build
function in `paradnn.worker.models`, and `conf/model/NAME.yaml`.

The dataclass has a field `name` and a `size`, the words that distinguish its models in a list. What its keys must be
together it checks in `__post_init__`, with a ConfigError that names the dotted key.
"""

from __future__ import annotations

from dataclasses import dataclass

from paradnn.config.families.attention import LanguageModel, Transformer, VisionTransformer
from paradnn.config.families.communication import Communication
from paradnn.config.families.kernels import (
    Conv2d,
    Elementwise,
    Gemm,
    Kernel,
    RecurrentKernel,
    SparseFullyConnected,
    SparseGemm,
)
from paradnn.config.families.synthetic import Convolutional, FullyConnected, Recurrent
from paradnn.config.families.vision import Classifier, MobileNet, RetinaNet

__all__ = ["FAMILIES", "MESSAGES", "Family", "Model"]

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
    | Gemm
    | Conv2d
    | RecurrentKernel
    | SparseGemm
    | SparseFullyConnected
    | Elementwise
    | Communication
)


@dataclass(frozen=True)
class Family:
    """What `model=NAME` can be.

    options: the dataclass of its hyperparameters; families that share it belong together. data: what a batch holds:
    vectors, images or tokens. swept: options in which its models differ most, the most telling first. sweep: overrides
    that sweep them. is_real: a published architecture, beside which stand the families that are generated over ranges
    of their options.
    """

    name: str
    options: type[Model]
    data: str
    swept: tuple[str, ...] = ()
    sweep: str = ""
    is_real: bool = False

    @property
    def is_kernel(self) -> bool:
        """Whether its step is one operation, that is no model of any size."""
        return issubclass(self.options, Kernel)

    @property
    def is_communication(self) -> bool:
        """Whether its step is messages, which compute nothing."""
        return issubclass(self.options, Communication)


_FC = (("nodes", "layers"), "model.nodes=64,256,1024 batch_size=64,256,1024")
_CNN = (("filters", "blocks", "image_size"), "model.filters=16,32,64 batch_size=16,32,64")
_RNN = (("embedding_size", "sequence_length", "layers"), "model.embedding_size=100,300,500 batch_size=16,64,256")
_LANGUAGE = (("width", "sequence_length", "layers"), "model.width=128,256,512 batch_size=1,4,16")
_GEMM = (("m", "n", "k"), "model.m=512,1024,2048,4096 model.n=16,64,256,1024")
_VIT = (("width", "patch", "layers"), "model.width=192,384,768 batch_size=1,4,16")

_ENTRIES = (
    Family("fc", FullyConnected, "vectors", *_FC),
    Family("residual", Convolutional, "images", *_CNN),
    Family("bottleneck", Convolutional, "images", *_CNN),
    Family("rnn", Recurrent, "tokens", *_RNN),
    Family("lstm", Recurrent, "tokens", *_RNN),
    Family("gru", Recurrent, "tokens", *_RNN),
    Family("gpt", LanguageModel, "tokens", *_LANGUAGE),
    Family("vit", VisionTransformer, "images", *_VIT),
    Family("resnet50", Classifier, "images", is_real=True),
    Family("densenet121", Classifier, "images", is_real=True),
    Family("mobilenet", MobileNet, "images", is_real=True),
    Family("squeezenet", Classifier, "images", is_real=True),
    Family("retinanet", RetinaNet, "images", is_real=True),
    Family("transformer", Transformer, "tokens", *_LANGUAGE, is_real=True),
    Family("gemm", Gemm, "vectors", *_GEMM),
    Family(
        "conv2d", Conv2d, "vectors", ("channels", "filters", "height"), "model.filters=16,64,256 batch_size=4,16,64"
    ),
    Family(
        "rnn_kernel", RecurrentKernel, "vectors", ("hidden", "steps"), "model.hidden=256,512,1024 batch_size=4,16,64"
    ),
    Family(
        "sparse_gemm", SparseGemm, "vectors", ("density", "m", "n"), "model.density=0.05,0.1,0.2,0.5 model.n=1,16,64"
    ),
    Family(
        "sparse_fc",
        SparseFullyConnected,
        "vectors",
        ("density", "nodes", "input_size"),
        "model.density=0.05,0.1,0.2,0.5 model.storage=sparse,dense batch_size=1,64",
    ),
    Family("elementwise", Elementwise, "vectors", ("elements", "operations"), "model.elements=1000,100000,10000000"),
    Family(
        "channel",
        Communication,
        "vectors",
        ("bytes", "transport", "pattern"),
        "model.transport=tcp,grpc model.bytes=64,4096,262144",
    ),
)
#: By name, in the order of figures and tables. A place is a marker and a colour: new families go to the end.
FAMILIES = {family.name: family for family in _ENTRIES}
#: Families whose steps are messages.
MESSAGES = tuple(family.name for family in _ENTRIES if family.is_communication)
