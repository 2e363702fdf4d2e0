"""Imports run one way: the worker knows nothing of the driver, the driver nothing of frameworks."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

from tests.conftest import ROOT

FRAMEWORKS = {"keras", "tensorflow", "jax", "torch"}
HEAVY = {"mlflow", "hydra", "omegaconf", "pandas", "psutil", "rich", "sqlalchemy", "scipy", "statsmodels", "matplotlib"}
MODULES = sorted(path for name in ("paradnn", "analysis", "hydra_plugins") for path in (ROOT / name).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Dotted names of every import in a file, those inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def heads(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    names, place = imports_of(path), path.relative_to(ROOT)
    if place.parts[:2] == ("paradnn", "worker"):
        assert not heads(names) & HEAVY
        assert all(name.startswith("paradnn.worker") for name in names if name.startswith("paradnn."))
    elif place.parts[0] == "paradnn":
        assert not heads(names) & (FRAMEWORKS | {"analysis"})
    elif place.parts[0] == "analysis":
        assert not heads(names) & FRAMEWORKS
        # What both sides must agree on: faults, machines, the look of figures, and the store.
        allowed = ("paradnn.errors", "paradnn.store", "paradnn.hardware.specifications", "paradnn.plotting")
        assert all(name.startswith(allowed) for name in names if name.startswith("paradnn."))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_small_and_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 350
    assert ast.get_docstring(ast.parse(text))


def test_no_import_cycles() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    edges = {name: {other for other in imports_of(path) if other in names} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join([*trail, name])}"
        if name not in done:
            for other in edges[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_public_names_exist() -> None:
    """Every driver module's __all__ is true; the worker's need a framework and are tested where they are used."""
    import paradnn

    for module in pkgutil.iter_modules(paradnn.__path__, "paradnn."):
        if not module.ispkg:
            loaded = importlib.import_module(module.name)
            assert all(hasattr(loaded, name) for name in loaded.__all__)
