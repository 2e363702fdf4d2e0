"""What must be known of the frameworks before any is imported, and the versions of the software
under test.

The driver runs the text of this module in an interpreter that has no more than Python: nothing else
is imported here.
"""

import importlib.metadata
import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Runtime:
    """What must be known of a framework before it is imported.

    package: the distribution that must be there, and `extra` of this one brings it ("" for a
    dependency). distributions: those whose versions make up the software under test. backend: what
    Keras computes with, which for an engine builds the model that is converted. parallel: it has a
    module of steps over several devices.
    """

    package: str
    distributions: tuple[str, ...]
    backend: str
    extra: str = ""
    parallel: bool = False
    is_engine: bool = False


_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel", "tensorflow-macos")
_JAX = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu")
_ONNX = ("tf2onnx", "onnx", *_TENSORFLOW)
#: By name; each is the module of `paradnn.worker.frameworks` that is called the same.
FRAMEWORKS = {
    "tensorflow": Runtime("tensorflow", _TENSORFLOW, "tensorflow", parallel=True),
    "jax": Runtime("jax", _JAX, "jax", "jax", parallel=True),
    "torch": Runtime("torch", ("torch", "triton"), "torch", "torch"),
    "litert": Runtime(
        "ai-edge-litert", ("ai-edge-litert", *_TENSORFLOW), "tensorflow", "engines", is_engine=True
    ),
    "onnxruntime": Runtime(
        "onnxruntime", ("onnxruntime", *_ONNX), "tensorflow", "engines", is_engine=True
    ),
    "openvino": Runtime("openvino", ("openvino", *_ONNX), "tensorflow", "engines", is_engine=True),
}

_COMMON = ("keras", "numpy", "ml-dtypes", "h5py")


def versions(name: str) -> dict[str, str]:
    """Versions of the software under test, read from the installed distributions without importing
    them.
    """
    versions_by_name = {"python": platform.python_version()}
    for distribution in (*FRAMEWORKS[name].distributions, *_COMMON):
        try:
            versions_by_name[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution.startswith(("tensorflow-", "tf-")):
            # By one name whatever the build, which its own name says.
            versions_by_name.setdefault("tensorflow", versions_by_name[distribution])
    return versions_by_name
