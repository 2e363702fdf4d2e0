"""The models, each family one build function in backend-neutral Keras 3.

A build function turns a validated mapping into a `Workload`: the model, what a batch looks like, and the loss. The
dtype policy is set by the caller before; whatever it is, models end in float32 logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.worker.models.applications import build_densenet121, build_mobilenet, build_resnet50
from paradnn.worker.models.cnn import build_cnn
from paradnn.worker.models.fc import build_fc
from paradnn.worker.models.gpt import build_gpt
from paradnn.worker.models.kernels import (
    build_conv2d,
    build_elementwise,
    build_gemm,
    build_rnn_kernel,
    build_sparse_fc,
    build_sparse_gemm,
)
from paradnn.worker.models.retinanet import build_retinanet
from paradnn.worker.models.rnn import build_rnn
from paradnn.worker.models.squeezenet import build_squeezenet
from paradnn.worker.models.transformer import build_transformer
from paradnn.worker.models.vit import build_vit
from paradnn.worker.models.workload import ArraySpec, Kernel, Workload

__all__ = ["ArraySpec", "Kernel", "Workload", "build"]

_BUILDERS = {
    "fc": build_fc,
    "residual": build_cnn,
    "bottleneck": build_cnn,
    "rnn": build_rnn,
    "lstm": build_rnn,
    "gru": build_rnn,
    "transformer": build_transformer,
    "gpt": build_gpt,
    "vit": build_vit,
    "resnet50": build_resnet50,
    "densenet121": build_densenet121,
    "mobilenet": build_mobilenet,
    "squeezenet": build_squeezenet,
    "retinanet": build_retinanet,
    "gemm": build_gemm,
    "conv2d": build_conv2d,
    "rnn_kernel": build_rnn_kernel,
    "sparse_gemm": build_sparse_gemm,
    "sparse_fc": build_sparse_fc,
    "elementwise": build_elementwise,
}


def build(model: Mapping[str, Any]) -> Workload:
    """The workload of `model`, by its `name`; ValueError names the known families."""
    if model["name"] not in _BUILDERS:
        raise ValueError(f"model.name={model['name']}: no such family; known are {', '.join(_BUILDERS)}")
    return _BUILDERS[model["name"]](model)
