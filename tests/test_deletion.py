"""A kind of work, a model family or an analysis can be deleted, and the rest still works.

One test removes a file or folder from a copy of the code. In this copy, an interpreter imports all
other kinds of work, families and analyses, and the command lines that list them. Another test
checks the imports of all modules.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.processes import PATIENCE

pytestmark = pytest.mark.slow

#: Folders whose modules can be deleted, mapped to modules on which other modules of the folder
#: depend.
FOLDERS = {
    # All other kinds of work include the timed step.
    "paradnn/workloads": {"step"},
    # Base layers, and the operations that several families share.
    "paradnn/families": {"attention", "built", "images", "kernels", "operations", "parts"},
    # Predictions are drawn as heat maps over the points that fit into memory. The report has
    # sections for the other analyses.
    "analysis/analyses": {"heatmap", "memory", "claims", "compare", "speedup"},
}

#: Program that imports all remaining modules of the three folders in the copy. It also runs two
#: commands that print the names of registered entries.
PROGRAM = """
import importlib, pkgutil, sys
for package in ("paradnn.workloads", "paradnn.families", "analysis.analyses"):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
from paradnn import listing
sys.argv = ["listing", "models"]
assert not listing.main()
from analysis.__main__ import main
try:
    code = main(["--help"])
except SystemExit as end:
    code = end.code
assert not code, code
print("complete")
"""


def deletable() -> list[str]:
    """Return the paths of all modules that can be deleted, relative to the root."""
    paths = []
    for folder, required in FOLDERS.items():
        for path in sorted((ROOT / folder).iterdir()):
            is_module = path.suffix == ".py" or (path / "__init__.py").exists()
            if is_module and path.stem not in required | {"__init__"}:
                paths.append(str(path.relative_to(ROOT)))
    return paths


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the code without tests and documentation."""
    copy = tmp_path_factory.mktemp("code")
    for name in ("paradnn", "analysis", "hydra_plugins", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.parametrize("path", deletable())
def test_the_remaining_code_works_without_a_deletable_module(
    path: str, code: Path, tmp_path: Path
) -> None:
    removed = tmp_path / "removed"
    shutil.move(code / path, removed)
    try:
        completed = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=code,
            env={**os.environ, "PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        shutil.move(removed, code / path)

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.endswith("complete\n")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imports_on_load(tree: ast.AST) -> set[str]:
    """Return the names that a module imports when it is loaded.

    Imports within functions and imports that only annotations use (`if TYPE_CHECKING`) are omitted.
    """
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names |= imports_on_load(node)
    return names


def test_no_other_module_loads_a_deletable_module() -> None:
    deletable_modules = {module_name(ROOT / path): ROOT / path for path in deletable()}
    faults = []
    for top in ("paradnn", "analysis", "hydra_plugins"):
        for file in sorted((ROOT / top).rglob("*.py")):
            for name in imports_on_load(ast.parse(file.read_text())):
                for module, path in deletable_modules.items():
                    is_inside = file == path or path in file.parents
                    if not is_inside and (name == module or name.startswith(f"{module}.")):
                        faults.append(f"{file.relative_to(ROOT)} imports {module}")

    assert sorted(set(faults)) == []
