"""Imports run one way, from floor to floor; modules and functions are small; no process imports what it must not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

#: The rooms of `paradnn`, its files and folders, on their floors: a room imports only rooms on lower floors.
FLOORS = (
    {"errors", "plotting", "worker"},
    {"config"},
    {"store", "cli", "sweep", "hardware"},
    {"software", "costs"},
    {"execution", "record"},
    {"tracking"},
    {"session"},
    {"launch", "forecast", "train", "ceilings", "sync", "stacks"},
    {"plan"},
)
#: What `analysis` shares with the driver: faults, the look of figures, machines, where the store is, what can be run.
SHARED = ("errors", "plotting", "hardware", "store", "config.families")
MOST_ROOMS = 24
#: Functions of over 50 lines beside their docstring: one picture, drawn from top to bottom.
LONG = {"draw_claims"}

FRAMEWORKS = {"keras", "tensorflow", "jax", "torch"}
#: None of it is in an interpreter under test.
DRIVERS_OWN = {
    *("mlflow", "hydra", "omegaconf", "pandas", "psutil"),
    *("rich", "sqlalchemy", "scipy", "statsmodels", "matplotlib"),
}
#: What takes seconds to import, and no command needs before it knows that there is work.
SLOW = {"mlflow", "pandas", "scipy", "statsmodels", "matplotlib"}

MODULES = sorted(path for name in ("paradnn", "analysis", "hydra_plugins") for path in (ROOT / name).rglob("*.py"))
BY_PATH = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> set[str]:
    """Dotted names of every import in a file, those inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def heads(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def rooms(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("paradnn.")}


def room_names() -> set[str]:
    paths = [path for path in (ROOT / "paradnn").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return {path.stem for path in paths if not path.stem.startswith("__")}


def test_every_room_has_a_floor_and_there_are_few() -> None:
    assert room_names() == set().union(*FLOORS)
    assert sum(map(len, FLOORS)) == len(room_names())
    assert len(room_names() | {"analysis", "hydra_plugins", "benchmarks"}) <= MOST_ROOMS


@BY_PATH
def test_imports_run_one_way(path: Path) -> None:
    names, (package, *inner) = imports_of(path), path.relative_to(ROOT).with_suffix("").parts
    if package == "paradnn" and not inner[0].startswith("__"):
        floor = next(floor for floor, rooms in enumerate(FLOORS) if inner[0] in rooms)
        assert rooms(names) <= {inner[0]}.union(*FLOORS[:floor])
        assert not heads(names) & {"analysis", "hydra_plugins"}
        assert not heads(names) & (DRIVERS_OWN if inner[0] == "worker" else FRAMEWORKS)
    elif package == "analysis":
        assert not heads(names) & FRAMEWORKS
        allowed = tuple(f"paradnn.{name}" for name in SHARED)
        assert all(name.startswith(allowed) for name in names if name.startswith("paradnn."))


@BY_PATH
def test_modules_and_functions_are_small_and_say_what_they_are(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350
    assert ast.get_docstring(tree(path))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = node.body[0] if ast.get_docstring(node) else None
            documented = (words.end_lineno or 0) - words.lineno + 1 if words else 0
            assert (node.end_lineno or 0) - node.lineno + 1 - documented <= 50 or node.name in LONG, node.name


def test_no_import_cycles() -> None:
    names = {dotted(path): path for path in MODULES}
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


#: Imports groups of modules, one after the other, in an interpreter of its own: what it holds then, what is not there.
IMPORTER = """
import importlib, json, sys

held, missing = [], []
for group in json.loads(sys.argv[1]):
    for name in group:
        module = importlib.import_module(name)
        missing += [f"{name}.{entry}" for entry in module.__dict__.get("__all__", ()) if not hasattr(module, entry)]
    held.append(sorted(sys.modules))
print(json.dumps([held, missing]))
"""


def test_processes_hold_only_what_they_need() -> None:
    """Followed through all that is imported on the way; and every driver module's __all__ is true.

    The worker's modules for a framework, whose imports are late, are tested where they are used.
    """
    names = [dotted(path) for path in MODULES if path.stem != "__main__" and "paradnn/worker" not in str(path)]
    driver = [name for name in names if name.startswith("paradnn")]
    groups = [["paradnn.worker.__main__"], ["paradnn.train", "paradnn.cli.command"], driver]
    command = [sys.executable, "-c", IMPORTER, json.dumps(groups)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (worker, started, whole), missing = json.loads(done.stdout)
    assert {name for name in worker if name.startswith("paradnn.") and not name.startswith("paradnn.worker")} == set()
    assert not heads(set(worker)) & (DRIVERS_OWN | FRAMEWORKS | {"google", "numpy"})
    assert not heads(set(started)) & (SLOW | FRAMEWORKS)
    assert not heads(set(whole)) & FRAMEWORKS
    assert missing == []
