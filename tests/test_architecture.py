"""Imports run one way, from floor to floor; functions are small; no process imports what it must
not.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

from tests.conftest import LONGEST
from tests.structure import MODULES, PICTURE, ROOT, arrows, draw, floors, imports_of, room_of, tree

RULES = yaml.safe_load(Path(__file__).with_name("architecture.yaml").read_text())
FLOORS = [set(floor) for floor in RULES["floors"]]
FRAMEWORKS = {"keras", "tensorflow", "jax", "torch"}
#: None of it is in an interpreter under test.
DRIVERS_OWN = {
    *("mlflow", "hydra", "omegaconf", "pandas", "psutil"),
    *("rich", "sqlalchemy", "scipy", "statsmodels", "matplotlib"),
}
#: What takes seconds to import, and no command needs before it knows that there is work.
SLOW = {"mlflow", "pandas", "scipy", "statsmodels", "matplotlib"}

CODE = sorted(path for name, path in MODULES.items() if not name.startswith("benchmarks"))
BY_PATH = pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))


def heads(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_every_room_is_on_its_floor() -> None:
    others = {"analysis", "hydra_plugins", "benchmarks"}
    house = {room: imported - others for room, imported in arrows().items() if room not in others}
    assert set(house) == set().union(*FLOORS)
    assert max(floors(house).values()) <= len(FLOORS)


def test_no_class_name_stands_for_two_things() -> None:
    names = Counter(
        node.name
        for name, path in MODULES.items()
        if not name.startswith("benchmarks")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_files_that_take_longest_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / f"{name}.py").exists()] == []


def test_the_picture_in_the_documentation_is_of_this_code() -> None:
    assert draw() == PICTURE.read_text(), "draw it again: python -m tests.structure"


@BY_PATH
def test_imports_run_one_way(path: Path) -> None:
    names, (package, *inner) = imports_of(path), path.relative_to(ROOT).with_suffix("").parts
    room = room_of(".".join((package, *inner))) if package == "paradnn" else None
    if room:
        floor = next(floor for floor, rooms in enumerate(FLOORS) if room in rooms)
        others = {room_of(name) for name in names if name.startswith("paradnn.")} - {None}
        assert others <= {room}.union(*FLOORS[:floor])
        assert not heads(names) & {"analysis", "hydra_plugins"}
        if room != "workloads":  # which have a driver's and a worker's side
            assert not heads(names) & (
                DRIVERS_OWN if room in ("core", "families", "worker") else FRAMEWORKS
            )
    elif package == "analysis":
        assert not heads(names) & FRAMEWORKS
        allowed = tuple(f"paradnn.{name}" for names in RULES["shared"] for name in names)
        assert all(name.startswith(allowed) for name in names if name.startswith("paradnn."))


@BY_PATH
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(tree(path))


@BY_PATH
def test_no_file_is_unpickled(path: Path) -> None:
    """What unpickles runs whatever a file, or another process, says."""
    assert not heads(imports_of(path)) & {
        "pickle",
        "shelve",
        "marshal",
        "dill",
        "cloudpickle",
        "joblib",
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func).rpartition(".")[2] not in (
                "read_pickle",
                "unsafe_load",
                "full_load",
            )
            assert ast.unparse(node.func) not in ("torch.load", "yaml.load")
            assert node.args or not ast.unparse(node.func).endswith(".recv"), (
                "a Connection unpickles what it receives"
            )
            given = {entry.arg: ast.unparse(entry.value) for entry in node.keywords}
            assert given.get("allow_pickle", "False") == "False"
            assert given.get("safe_mode", "True") == given.get("weights_only", "True") == "True"


def test_no_import_cycles() -> None:
    edges = {name: imports_of(path) & set(MODULES) - {name} for name, path in MODULES.items()}
    assert list(TopologicalSorter(edges).static_order())  # CycleError names the modules of a circle


#: Imports groups of modules, one after the other, in an interpreter of its own: what it holds then,
#: what is not there.
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
    driver = [
        name
        for name in MODULES
        if name.startswith("paradnn.")
        and not name.startswith(("paradnn.worker", "paradnn.families.parts", "paradnn.workloads."))
        and not name.endswith("__main__")
    ]
    groups = [["paradnn.worker.__main__"], ["paradnn.train", "paradnn.cli.command"], driver]
    command = [sys.executable, "-c", IMPORTER, json.dumps(groups)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (worker, started, whole), missing = json.loads(done.stdout)
    shared = {"paradnn.worker", "paradnn.core", "paradnn.families", "paradnn.core.errors"}
    assert {
        ".".join(name.split(".")[:2]) for name in worker if name.startswith("paradnn.")
    } <= shared
    assert not heads(set(worker)) & (DRIVERS_OWN | FRAMEWORKS | {"google", "numpy"})
    assert not heads(set(started)) & (SLOW | FRAMEWORKS)
    assert not heads(set(whole)) & FRAMEWORKS
    assert missing == []


def test_options_and_costs_need_the_standard_library_alone() -> None:
    """Every module of them, and what the registry finds, in an interpreter without site-packages."""
    bare = ("paradnn.core.", "paradnn.families.")
    names = [
        name
        for name in MODULES
        if name.startswith(bare) and not name.startswith("paradnn.families.parts")
    ]
    names += [
        name for name in MODULES if name.startswith("paradnn.workloads") and name.count(".") < 3
    ]
    code = "import importlib, sys; sys.path[0:0] = [sys.argv[1]]; [importlib.import_module(n) for n in sys.argv[2:]]"
    code += "; from paradnn.families import FAMILIES; print(*FAMILIES)"
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"fc", "gpt", "gemm"} < set(done.stdout.split())


#: Where a path is made of a name that stands in the code, or in a file that this user's own process
#: wrote.
OWN_NAMES = {
    "analysis.cli.output",
    "analysis.published.source",
    "analysis.report.page",
    "paradnn.worker.input.pipelines",
    "paradnn.workloads.learn.sets",
}
#: ... and where `is_inside` was asked first.
CHECKED = {"analysis.store.load"}


def test_names_of_others_become_paths_through_one_function() -> None:
    """`folder / name` follows a name wherever it leads; `paradnn.store.files.inside` refuses what
    leads outside.
    """
    found = {
        name
        for name, path in MODULES.items()
        if not name.startswith("benchmarks")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.Name)
        and node.right.id in {"name", "member", "file", "artifact", "key", "entry"}
    }
    assert found == OWN_NAMES | CHECKED
    assert "is_inside(folder, name)" in MODULES["analysis.store.load"].read_text()
