"""Mutation testing: do the tests of a module notice a planted error?

    python -m benchmarks.mutants                                  # every module of TESTS
    python -m benchmarks.mutants paradnn.statistics.decision --most 25 --seed 1

A mutant is the module with one change: a comparison, an operator, a constant, a boolean, the order
of a conditional expression, or a result that becomes None. Each mutant is imported in a fork of
this process, which runs the tests and stops at the first failure. A mutant that no test notices
survives; it shows a missing test, or a change without an effect. Only tests that run the module in
the test process can notice a mutant; worker processes import the original.
"""

import argparse
import ast
import contextlib
import copy
import importlib.machinery
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

#: Packages that contain mutants or tests, or that each test run must import again.
_NOT_LIBRARIES = frozenset(
    {"analysis", "benchmarks", "hydra_plugins", "paradnn", "tests", "conftest", "_pytest", "pytest"}
)
#: Processor seconds after which a mutant is assumed to run forever, and counts as noticed.
_MAX_SECONDS = 240
#: Test files by module; those that notice the most mutants come first.
TESTS = {
    "paradnn.worker.series": ("worker/test_series", "worker/test_measure"),
    "paradnn.worker.measure": (
        "worker/test_measure",
        "worker/test_contention",
        "session/test_reference",
    ),
    "paradnn.worker.contention": ("worker/test_contention", "worker/test_measure"),
    "paradnn.worker.chance": ("worker/test_chance", "worker/test_serving"),
    "paradnn.statistics.contrast": (
        "statistics/test_contrast",
        "analysis/test_compare",
        "analysis/test_sessions",
    ),
    "paradnn.statistics.decision": ("statistics/test_decision",),
    "paradnn.statistics.dependence": (
        "statistics/test_dependence",
        "statistics/test_decision",
        "statistics/test_variances",
        "statistics/test_pairwise",
        "analysis/test_effects",
        "statistics/test_regression",
    ),
    "paradnn.statistics.effects": ("statistics/test_effects", "analysis/test_effects"),
    "paradnn.statistics.elimination": ("best/test_elimination", "best/test_race"),
    "paradnn.statistics.paired_rounds": (
        "statistics/test_paired_rounds",
        "compare/test_arguments",
        "compare/test_comparison",
    ),
    "paradnn.statistics.pairwise": ("statistics/test_pairwise",),
    "paradnn.statistics.priors": (
        "statistics/test_priors",
        "analysis/test_effects",
        "statistics/test_decision",
    ),
    "paradnn.statistics.regression": ("statistics/test_regression", "analysis/test_sensitivity"),
    "paradnn.statistics.robust_regression": (
        "statistics/test_robust_regression",
        "forecast/test_process",
    ),
    "paradnn.statistics.sessions": (
        "statistics/test_sessions",
        "analysis/test_sessions",
        "analysis/test_reference_speed",
    ),
    "paradnn.statistics.shrinkage": ("statistics/test_shrinkage",),
    "paradnn.statistics.transfers": ("statistics/test_transfers", "analysis/test_channel"),
    "paradnn.statistics.variance_shares": ("statistics/test_variance_shares",),
    "paradnn.statistics.variances": ("statistics/test_variances",),
    "paradnn.statistics.welch": ("statistics/test_welch",),
}
#: Keyword arguments that only prevent mistakes of a programmer, or set the size of a cache.
_GUARDS = ("strict", "frozen", "eq", "maxsize")
_COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(NamedTuple):
    """One change of a module.

    Attributes:
        line: Line of the change.
        change: Change as text.
        tree: Syntax tree of the changed module.
    """

    line: int
    change: str
    tree: ast.Module


def mutants(tree: ast.Module) -> Iterator[tuple[int, int, str, ast.AST]]:
    """Yield every possible change: position of the node, line, text, and the new node."""
    omitted = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            annotation = getattr(node, name, None)
            if annotation is not None and isinstance(annotation, ast.AST):
                omitted |= {id(part) for part in ast.walk(annotation)}
        if isinstance(node, ast.keyword) and node.arg in _GUARDS:
            omitted.add(id(node.value))
    for position, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if line and id(node) not in omitted:
            for text, changed in _changes(node):
                yield position, line, text, changed


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the changes of one node."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for other in _COMPARISONS.get(type(operator), ()):
                operators = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                text = f"{type(operator).__name__} to {other.__name__}"
                yield text, _replaced(node, ops=operators)
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        opposite_type = _OPERATORS[type(node.op)]
        text = f"{type(node.op).__name__} to {opposite_type.__name__}"
        yield text, _replaced(node, op=opposite_type())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield f"drop {type(node.op).__name__}", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} to {not node.value}", _replaced(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        values = [node.value + 1]
        if node.value:
            values.append(node.value - 1 if isinstance(node.value, int) else node.value / 2)
        for value in values:
            yield f"{node.value} to {value}", _replaced(node, value=value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        opposite = {"min": "max", "max": "min"}.get(node.func.id)
        if opposite:
            name = _replaced(node.func, id=opposite)
            yield f"{node.func.id} to {opposite}", _replaced(node, func=name)
    elif isinstance(node, ast.IfExp):
        yield "exchange the branches", _replaced(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Return) and not _is_none(node.value):
        yield "return None", _replaced(node, value=ast.Constant(None))


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _replaced(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Replacement(ast.NodeTransformer):
    """Transformer that replaces one node of a tree."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old = old
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the new node in place of the old one."""
        if node is self._old:
            return self._new
        return self.generic_visit(node)


def sample(path: Path, most: int, seed: int) -> tuple[list[Mutant], int]:
    """Return a random sample of the mutants of a file by line, and the number of all."""
    source = path.read_text()
    every = list(mutants(ast.parse(source)))
    chosen = random.Random(seed).sample(every, min(most, len(every)))
    found = []
    for position, line, text, new in sorted(chosen, key=lambda entry: entry[:3]):
        tree = ast.parse(source)
        old = list(ast.walk(tree))[position]
        _Replacement(old, new).visit(tree)
        found.append(Mutant(line, text, ast.fix_missing_locations(tree)))
    return found, len(every)


def run_tests(module: str, tree: ast.Module | None, files: list[str]) -> int:
    """Return the exit code of the tests in a fork that imports `tree` as the module.

    A negative code is the number of the signal that ended a mutant, such as after the time limit.
    """
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (_MAX_SECONDS, _MAX_SECONDS))
        os._exit(_test(module, tree, files))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _test(module: str, tree: ast.Module | None, files: list[str]) -> int:
    get_code = importlib.machinery.SourceFileLoader.get_code

    def get_mutant(loader: importlib.machinery.SourceFileLoader, name: str) -> object:
        if name == module and tree is not None:
            return compile(tree, loader.get_filename(name), "exec")
        return get_code(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_mutant  # type: ignore[method-assign,assignment]
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    # The libraries that were imported before include plug-ins of pytest.
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    try:
        return int(pytest.main([*options, *files]))
    except BaseException:
        return 1


def check_module(module: str, most: int, seed: int) -> None:
    """Print the survivors of a module's mutants, and how many were noticed."""
    path = Path(*module.split(".")).with_suffix(".py")
    files = [f"tests/{name}.py" for name in TESTS[module]]
    _import_libraries(files)
    if run_tests(module, None, files):
        sys.exit(f"{module}: its tests fail without a mutant; run pytest {' '.join(files)}")
    begin = time.monotonic()
    chosen, count = sample(path, most, seed)
    lines = path.read_text().splitlines()
    survivors = 0
    for mutant in chosen:
        if run_tests(module, mutant.tree, files) == 0:
            survivors += 1
            text = lines[mutant.line - 1].strip()
            print(f"  {path}:{mutant.line}: {mutant.change}: {text}", flush=True)
    noticed = f"{len(chosen) - survivors} of {len(chosen)} mutants noticed"
    print(f"{module}: {noticed} ({count} possible, {time.monotonic() - begin:.0f} s)", flush=True)


def _import_libraries(files: list[str]) -> None:
    """Import the libraries that some tests import, so that no fork has to import them."""
    program = (
        "import pytest, sys; pytest.main(['--collect-only', '-qq', '-p', 'no:xdist', *sys.argv[1:]]); "
        "print(*sys.modules, sep='\\n')"
    )
    listed = subprocess.run(
        [sys.executable, "-c", program, *files], capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        package = name.partition(".")[0]
        if package.isidentifier() and package not in _NOT_LIBRARIES:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def main() -> None:
    """Check the modules that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="(default: all of TESTS)")
    parser.add_argument("--most", type=int, default=25, help="mutants per module (default: 25)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    options = parser.parse_args()
    unknown = [name for name in options.modules if name not in TESTS]
    if unknown:
        parser.error(f"{unknown[0]}: has no entry in TESTS; known: {', '.join(TESTS)}")
    for module in options.modules or TESTS:
        check_module(module, options.most, options.seed)


if __name__ == "__main__":
    main()
