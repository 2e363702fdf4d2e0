"""Fixtures of the GPU checks: the machine, a function that reports results, and the time limit."""

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paradnn.session.signals import interruptible
from tests.gpu.commands import Session


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--platform", default="gpu")
    parser.addoption("--seconds", type=float, default=450.0)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seconds(number): skipped if less time is left")


@pytest.fixture(scope="session")
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Yield the session on this machine, and end all of its processes afterwards."""
    frameworks = [name for name in ("jax", "torch", "tensorflow") if importlib.util.find_spec(name)]
    if not frameworks:
        pytest.exit("no framework found: install JAX, PyTorch or TensorFlow", returncode=2)
    folder = tmp_path_factory.mktemp("gpu")
    # Frameworks keep caches in the home folder, which may be read-only or belong to another user.
    os.environ["HOME"] = str(folder)
    platform = request.config.getoption("--platform")
    seconds = request.config.getoption("--seconds")
    with interruptible(), Session(platform, frameworks, folder, seconds) as session:
        yield session


@pytest.fixture(autouse=True)
def _skip_without_time(request: pytest.FixtureRequest, machine: Session) -> None:
    marker = request.node.get_closest_marker("seconds")
    if marker and machine.left < marker.args[0]:
        pytest.skip(f"takes about {marker.args[0]} s, but {max(0, machine.left):.0f} s are left")


@pytest.fixture
def report_answer(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[..., None]:
    """Return a function that prints a line and stores it with details in the result file."""

    def report_answer(line: str, details: Any = None) -> None:
        record_property("answer", line)
        record_property("details", json.dumps(details, default=str))
        request.config.pluginmanager.get_plugin("terminalreporter").write_line(f"\n    {line}")

    return report_answer
