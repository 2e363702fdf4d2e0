"""Facts about frameworks that are needed before a framework is imported, and software versions.

The driver also runs the source of this module in the interpreter under test, which may lack
ParaDnn. The module must therefore import only the standard library.
"""

import importlib.metadata
import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Runtime:
    """Facts about a framework or an engine.

    Attributes:
        package: The distribution that must be installed.
        distributions: The distributions whose versions identify the software under test.
        backend: The Keras backend. For an engine, the backend that builds the model to convert.
        extra: The extra of ParaDnn that installs the package; empty if ParaDnn depends on it.
        parallel: Whether one process can run a step on several devices, each with a share of the
            batch.
        is_engine: Whether this is an inference engine, which runs converted models.
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
#: Frameworks by name, which is also the name of the module in `paradnn.worker.frameworks`.
FRAMEWORKS = {
    "tensorflow": Runtime("tensorflow", _TENSORFLOW, "tensorflow", parallel=True),
    "jax": Runtime("jax", _JAX, "jax", extra="jax", parallel=True),
    "torch": Runtime("torch", ("torch", "triton"), "torch", extra="torch"),
    "litert": Runtime(
        "ai-edge-litert",
        ("ai-edge-litert", *_TENSORFLOW),
        "tensorflow",
        extra="engines",
        is_engine=True,
    ),
    "onnxruntime": Runtime(
        "onnxruntime",
        ("onnxruntime", *_ONNX),
        "tensorflow",
        extra="engines",
        is_engine=True,
    ),
    "openvino": Runtime(
        "openvino",
        ("openvino", *_ONNX),
        "tensorflow",
        extra="engines",
        is_engine=True,
    ),
}

#: Distributions that all frameworks use.
_COMMON = ("keras", "numpy", "ml-dtypes", "h5py")


def versions(name: str) -> dict[str, str]:
    """Return the versions of the software under test, without importing it.

    Args:
        name: The framework.

    Returns:
        Versions of Python and of the installed distributions, by distribution.
    """
    versions_by_name = {"python": platform.python_version()}
    for distribution in (*FRAMEWORKS[name].distributions, *_COMMON):
        try:
            versions_by_name[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution.startswith(("tensorflow-", "tf-")):
            # Every build of TensorFlow is also recorded under the name "tensorflow".
            versions_by_name.setdefault("tensorflow", versions_by_name[distribution])
    return versions_by_name
