"""Rules of the architecture: imports, packages of each process, and safe use of foreign names."""

import ast
import json
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import LONGEST
from tests.structure import (
    MODULES,
    PICTURE,
    ROOT,
    draw,
    imported_names,
    module_dependencies,
    parse,
)

FRAMEWORKS = {"keras", "tensorflow", "jax", "torch"}
#: Packages of the driver, which an interpreter under test does not have.
DRIVER_PACKAGES = {
    "hydra",
    "matplotlib",
    "mlflow",
    "omegaconf",
    "pandas",
    "psutil",
    "rich",
    "scipy",
    "sqlalchemy",
    "statsmodels",
}
#: Packages that take seconds to import. A command imports them only if work remains.
SLOW_PACKAGES = {"mlflow", "pandas", "scipy", "statsmodels", "matplotlib"}
#: Packages that run code from the files that they read.
UNPICKLERS = {"pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}

CODE = {name: path for name, path in MODULES.items() if not name.startswith("benchmarks")}
EVERY_FILE = pytest.mark.parametrize("path", CODE.values(), ids=CODE.keys())


def top_level(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_imports_satisfy_the_contracts_of_pyproject() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]

    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert completed.returncode == 0, completed.stdout


def test_modules_form_no_import_cycle() -> None:
    order = TopologicalSorter(module_dependencies()).static_order()

    assert list(order)  # raises CycleError with the modules if they form a cycle


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for path in CODE.values()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_the_longest_test_files_exist() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / f"{name}.py").exists()] == []


def test_the_picture_in_the_documentation_shows_this_code() -> None:
    assert draw() == PICTURE.read_text(), "draw it again: python -m tests.structure"


@EVERY_FILE
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(parse(path))


@EVERY_FILE
def test_no_file_is_unpickled(path: Path) -> None:
    """Unpickling a file or a message of another process can run any code that it contains."""
    assert not top_level(imported_names(path)) & UNPICKLERS
    calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
    for call in calls:
        function = ast.unparse(call.func)
        keywords = {entry.arg: ast.unparse(entry.value) for entry in call.keywords}
        assert function.rpartition(".")[2] not in ("read_pickle", "unsafe_load", "full_load")
        assert function not in ("torch.load", "yaml.load")
        assert call.args or not function.endswith(".recv"), "Connection.recv unpickles"
        assert keywords.get("allow_pickle", "False") == "False"
        assert keywords.get("safe_mode", "True") == "True"
        assert keywords.get("weights_only", "True") == "True"


def test_no_module_imports_internals_of_hydra() -> None:
    internal = {
        module
        for module, path in CODE.items()
        if any(name.startswith("hydra._internal") for name in imported_names(path))
    }

    assert internal == set()


#: Program that imports groups of modules one after the other. It prints the modules that are loaded
#: after each group, and the entries of `__all__` that do not exist.
IMPORTER = """
import importlib, json, sys

loaded = []
missing = []
for group in json.loads(sys.argv[1]):
    for name in group:
        module = importlib.import_module(name)
        for entry in module.__dict__.get("__all__", ()):
            if not hasattr(module, entry):
                missing.append(f"{name}.{entry}")
    loaded.append(sorted(sys.modules))
print(json.dumps([loaded, missing]))
"""


def test_processes_import_only_what_they_need() -> None:
    """Check which packages the worker and the driver load.

    Tests of each framework cover its modules in the worker.
    """
    not_of_driver = ("paradnn.worker", "paradnn.families.parts", "paradnn.workloads.")
    driver = [
        name
        for name in MODULES
        if name.startswith("paradnn.")
        and not name.startswith(not_of_driver)
        and not name.endswith("__main__")
    ]
    groups = [["paradnn.worker.__main__"], ["paradnn.train", "paradnn.cli.command"], driver]
    command = [sys.executable, "-c", IMPORTER, json.dumps(groups)]

    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert completed.returncode == 0, completed.stderr
    (worker, started_driver, whole_driver), missing = json.loads(completed.stdout)
    packages_of_worker = {
        ".".join(name.split(".")[:2]) for name in worker if name.startswith("paradnn.")
    }
    assert packages_of_worker <= {"paradnn.worker", "paradnn.core", "paradnn.families"}
    assert not top_level(set(worker)) & (DRIVER_PACKAGES | FRAMEWORKS | {"google", "numpy"})
    assert not top_level(set(started_driver)) & (SLOW_PACKAGES | FRAMEWORKS)
    assert not top_level(set(whole_driver)) & FRAMEWORKS
    assert missing == []


#: Program that imports modules with only the standard library, and prints the names of families.
STANDARD_LIBRARY_IMPORTER = """
import importlib, sys

sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
from paradnn.families import FAMILIES

print(*FAMILIES)
"""


def test_options_and_costs_need_only_the_standard_library() -> None:
    """Import the modules, and those of the registries, in an interpreter without site-packages."""
    names = [
        name
        for name in MODULES
        if name.startswith(("paradnn.core.", "paradnn.families."))
        and not name.startswith("paradnn.families.parts")
    ]
    names += [
        name for name in MODULES if name.startswith("paradnn.workloads") and name.count(".") < 3
    ]
    command = [sys.executable, "-I", "-S", "-c", STANDARD_LIBRARY_IMPORTER, str(ROOT), *names]

    completed = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (completed.returncode, completed.stderr) == (0, "")
    assert {"fc", "gpt", "gemm"} < set(completed.stdout.split())


#: Modules that join a folder with a trusted name: one from the code, from git, or from a file that a
#: process of the same user wrote.
JOINS_OWN_NAMES = {
    "analysis.cli.output",
    "analysis.published.dawnbench",
    "analysis.published.source",
    "paradnn.worker.input.pipelines",
    "paradnn.compare.loaded_code",
    "paradnn.config.learning_sets",
}
#: Modules that call `is_inside` first.
JOINS_CHECKED_NAMES = {"analysis.store.load"}
#: Variables that may hold names from files or messages of others.
NAME_VARIABLES = {"name", "member", "file", "artifact", "key", "entry"}


def test_paths_with_foreign_names_are_checked_by_one_function() -> None:
    """Search for joins with unchecked names: `folder / name` may be outside the folder."""
    joining = {
        module
        for module, path in CODE.items()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.Name)
        and node.right.id in NAME_VARIABLES
    }

    assert joining == JOINS_OWN_NAMES | JOINS_CHECKED_NAMES
    assert "is_inside(folder, name)" in MODULES["analysis.store.load"].read_text()
