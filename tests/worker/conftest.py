"""Fixtures for tests of all three frameworks.

`make test-frameworks` installs the extras jax and torch.
"""

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if all(map(importlib.util.find_spec, ("jax", "torch"))):
    collect_ignore = []
else:
    collect_ignore = ["test_framework_agreement.py", "test_frameworks.py"]

#: Module that `site` imports when the interpreter starts.
BLOCKER = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "google" or name.startswith("google."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def without_protobuf(tmp_path: Path) -> Path:
    """Return a folder for PYTHONPATH that prevents new interpreters from importing protobuf."""
    folder = tmp_path / "without protobuf"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return folder


#: Files that need no framework. All other files import it when they are loaded.
LIGHT = ("test_kineto.py", "test_learn.py", "test_measure.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip loading the tests of models in `make test FAST=1`."""
    fast = "not framework" in config.option.markexpr
    return (
        fast and collection_path.name.startswith("test_") and collection_path.name not in LIGHT
    ) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name not in LIGHT:
        item.add_marker(pytest.mark.framework)


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Free the memory of a file's models, since Keras does not call the collector here."""
    yield
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _little_optimized(pytestconfig: pytest.Config) -> None:
    """Reduce XLA's optimization level in this process.

    Compilation takes two thirds of the time, and the compiled code is slower. XLA reads its flags
    only once.

    Workers are separate processes and compile as they do for users.
    """
    if "not framework" in pytestconfig.option.markexpr:
        return
    import tensorflow as tf

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "XLA_FLAGS",
            f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip(),
        )
        tf.function(lambda x: x + 1, jit_compile=True)(1.0)


@pytest.fixture
def clean() -> Iterator[None]:
    """Restore Keras' policy and names; garbage is collected automatically."""
    import keras

    yield
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session(free_memory=False)


@pytest.fixture
def as_written() -> Iterator[None]:
    """Run steps without graph optimization.

    TensorFlow's graph optimizer takes seconds for the layers of a model.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
