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

#: Source of `sitecustomize.py`, which `site` imports when the interpreter starts.
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


#: Test files that need no framework. All other test files import one when pytest loads them.
LIGHT = ("test_kineto.py", "test_learn.py", "test_measure.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore test files that import a framework in `make test FAST=1`."""
    is_fast = "not framework" in config.option.markexpr
    is_test_file = collection_path.name.startswith("test_")
    if is_fast and is_test_file and collection_path.name not in LIGHT:
        return True
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name not in LIGHT:
        item.add_marker(pytest.mark.framework)


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage() -> Iterator[None]:
    """Free the memory of a file's models after its tests; `clean` does not collect garbage."""
    yield
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _reduce_xla_optimization(pytestconfig: pytest.Config) -> None:
    """Reduce XLA's optimization level in this process to shorten the tests.

    Compilation then takes two thirds of the time, and the compiled code is slower. XLA reads its
    flags only once, so the fixture compiles a function while they are set.

    Workers are separate processes, and compile with the same flags as for users.
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
    """Reset Keras' dtype policy and layer names after a test, without collecting garbage."""
    import keras

    yield
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session(free_memory=False)


@pytest.fixture
def without_graph_optimization() -> Iterator[None]:
    """Disable TensorFlow's graph optimizer, which takes seconds per model."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
