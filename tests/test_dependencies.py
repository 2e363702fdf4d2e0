"""pyproject.toml declares every imported package, but no package that only tests import."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.conftest import ROOT

OURS = {"paradnn", "analysis", "hydra_plugins", "benchmarks", "tests"}
#: Distributions by import name, for extras that this environment may lack.
DISTRIBUTIONS = {
    "ai_edge_litert": "ai-edge-litert",
    "google": "protobuf",
    "grpc": "grpcio",
    "hydra": "hydra-core",
    "mlflow": "mlflow",
    "nbformat": "nbformat",
    "mlperf_loadgen": "mlcommons-loadgen",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
#: Distributions by the modules that they install.
INSTALLED = packages_distributions()
#: Distributions that are run as programs, but not imported.
NOT_IMPORTED = {"uv"}


def imported_packages(*folders: str) -> set[str]:
    """Return the top-level names of third-party modules that the folders import."""
    names: set[str] = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - OURS - set(sys.stdlib_module_names)


def distribution(module: str) -> str:
    """Return the normalized name of the distribution that provides a module."""
    installed = INSTALLED.get(module, [module])
    name = DISTRIBUTIONS.get(module, installed[0])
    return name.lower().replace("_", "-")


def requirements(entries: list[str]) -> set[str]:
    """Return the normalized names in a list of requirements."""
    names = (re.split(r"[\[<>=!;~ ]", entry)[0] for entry in entries)
    return {name.lower().replace("_", "-") for name in names}


PROJECT = tomllib.loads(Path(ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = requirements(PROJECT["dependencies"])
EXTRAS = {name: requirements(entries) for name, entries in PROJECT["optional-dependencies"].items()}


def test_every_imported_package_is_declared() -> None:
    needed = {distribution(name) for name in imported_packages("paradnn", "analysis", "conf")}
    assert needed - RUNTIME - set().union(*EXTRAS.values()) == set()


def test_packages_that_only_tests_import_are_extras() -> None:
    needed = {distribution(name) for name in imported_packages("paradnn", "analysis")}
    assert RUNTIME - needed == NOT_IMPORTED - needed


def test_packages_of_tests_and_benchmarks_are_declared() -> None:
    needed = {distribution(name) for name in imported_packages("tests", "benchmarks")}
    assert needed - RUNTIME - set().union(*EXTRAS.values()) == set()
