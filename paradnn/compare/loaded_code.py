"""Check that each side of a comparison of commits loads the code of its commit.

A package that is installed with `pip install -e .` is imported from the working tree, whichever
commit is measured. Both sides would then run the same files, and a gate would pass any regression.
So one untimed run of each side lists the files that it opens (`paradnn.compare.trace_opens`).
"""

import hashlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import paradnn.compare.trace_opens as trace_opens
from paradnn.core.scratch import Scratch
from paradnn.platform.commits import Checkout
from paradnn.platform.process_guard import ProcessGuard

#: File name extensions of compiled code, which git seldom tracks.
_COMPILED = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".node", ".wasm", ".jar", ".class")
#: Folders of installed packages.
_INSTALLED = re.compile(r"/(?:site-packages|dist-packages|node_modules)/(?P<inner>.+)$")
#: Folders of a project that hold its packages.
_SOURCE_FOLDERS = ("", "src", "lib", "python")
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "package.json")
#: Files whose content belongs to the system or to one process.
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/run/", "/etc/")
_MAX_NAMED = 3


@dataclass(frozen=True)
class LoadedFiles:
    """Files that one run of a side opened for reading or executed.

    Attributes:
        files: Resolved path -> whether the file was executed. Byte code is replaced by its source.
        digest: Hash of the names and contents of the files, independent of the folder of the
            checkout. Two sides with the same digest ran the same code. None if the files are
            unknown.
        problem: Why the files are unknown; None if they are known.
    """

    files: dict[Path, bool]
    digest: str | None = None
    problem: str | None = None


def load_trace(
    words: Sequence[str], checkout: Checkout, guard: ProcessGuard, timeout: float
) -> LoadedFiles:
    """Run a command of one side once, untimed, and list the files that it loads.

    Args:
        words: The words of the command.
        checkout: Checkout in whose folder it runs.
        guard: Starts the process.
        timeout: Seconds after which the run is killed.
    """
    with Scratch() as folder:
        out = folder / "opened.json"
        # -I and -S: the helper itself must not load files of the checkout.
        helper = [sys.executable, "-I", "-S", trace_opens.__file__, str(out), *words]
        try:
            done = guard.run(helper, timeout=timeout, cwd=checkout.folder)
            content = json.loads(out.read_text(encoding="utf-8", errors="surrogateescape"))
        except subprocess.TimeoutExpired:
            content = {"error": f"the traced run took longer than {timeout:g} s"}
        except (OSError, ValueError):
            content = {"error": f"the trace ended with exit code {done.returncode}"}
    if "error" in content:
        return LoadedFiles({}, problem=content["error"])
    files: dict[Path, bool] = {}
    for name, is_executed in content["files"].items():
        path = _source(Path(name))
        if path.is_file() and not name.startswith(_SYSTEM):
            files[path] = files.get(path, False) or is_executed
    return LoadedFiles(files, _digest(files, checkout))


def _source(path: Path) -> Path:
    """Return the source of byte code in `__pycache__` if it exists; any other path unchanged."""
    if path.suffix == ".pyc":
        try:
            source = Path(importlib.util.source_from_cache(str(path)))
        except ValueError:
            return path
        if source.is_file():
            return source
    return path


def _digest(files: Collection[Path], checkout: Checkout) -> str:
    """Hash names and contents of files, after replacing the checkout's folder in both."""
    tree = str(checkout.tree).encode()
    whole = hashlib.sha256()
    for path in sorted(files):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # a directory, or a temporary file of the run
        name = bytes(path).replace(tree, b"<checkout>")
        content = content.replace(tree, b"<checkout>")
        whole.update(hashlib.sha256(name).digest() + hashlib.sha256(content).digest())
    return whole.hexdigest()


def foreign_code(
    loaded: Sequence[LoadedFiles], checkouts: Sequence[Checkout], command: str, begun: float
) -> str | None:
    """Return why the sides do not run the code of their commits; None if no reason is known.

    Args:
        loaded: Files that each side opened.
        checkouts: Checkout of each side.
        command: Command of both sides. Files that it names by absolute path may be shared.
        begun: Start of the comparison in Unix seconds. If both sides load compiled code that was
            written later, --setup built it.
    """
    named = _named_files(command)
    for side, (own, checkout) in enumerate(zip(loaded, checkouts, strict=True)):
        other = checkouts[1 - side]
        if checkout.tree == other.tree:
            return None
        files = [path for path in own.files if path not in named]
        foreign_files = [
            path
            for path in files
            if _is_code_of(path, other, checkout, is_executed=own.files[path])
        ]
        if foreign_files:
            return f"{checkout.label} loads files of {other.label}: {_listed(foreign_files)}"
        copies = [path for path in files if _is_installed_copy(path, checkout)]
        if copies:
            return f"{checkout.label} loads an installed copy of this project: {_listed(copies)}"
    built = [
        path
        for path in sorted(loaded[0].files.keys() & loaded[1].files.keys())
        if _is_compiled(path, is_executed=loaded[0].files[path]) and _changed_after(path, begun)
    ]
    if built:
        return f"both sides load files that only one of them built: {_listed(built)}"
    return None


def _named_files(command: str) -> set[Path]:
    """Files that a command names by an absolute path."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return {Path(word).resolve() for word in words if word.startswith("/")}


def _is_code_of(path: Path, other: Checkout, own: Checkout, *, is_executed: bool) -> bool:
    """Return whether a file is code of the `other` checkout, except packages installed there."""
    if not path.is_relative_to(other.tree) or path.is_relative_to(own.tree):
        return False
    inner = path.relative_to(other.tree)
    is_installed = _INSTALLED.search(str(path)) or _is_in_environment(path, other.tree)
    if is_installed or inner.parts[0] == ".git":
        return False
    return str(inner) in other.files or _is_compiled(path, is_executed=is_executed)


def _is_in_environment(path: Path, top: Path) -> bool:
    """Whether a file below `top` is in a virtual environment."""
    folders = [folder for folder in path.parents if folder.is_relative_to(top)]
    return any(
        (folder / marker).exists() for folder in folders for marker in ("pyvenv.cfg", "conda-meta")
    )


def _is_installed_copy(path: Path, checkout: Checkout) -> bool:
    """Return whether a file is an installed copy of a file that git tracks in the checkout."""
    match = _INSTALLED.search(str(path))
    if match is None or path.is_relative_to(checkout.tree):
        return False
    inner = match["inner"]
    return any(f"{root}{inner}" in checkout.files for root in _package_roots(checkout.files))


def _package_roots(files: Collection[str]) -> Iterator[str]:
    """Yield the folders of a project whose files are installed, each with a final slash."""
    projects = {str(Path(name).parent) for name in files if Path(name).name in _PROJECT_FILES}
    for project in {".", *projects}:
        for folder in _SOURCE_FOLDERS:
            root = Path(project, folder).as_posix()
            yield "" if root == "." else f"{root}/"


def _is_compiled(path: Path, *, is_executed: bool) -> bool:
    return is_executed or path.name.endswith(_COMPILED) or ".so." in path.name


def _changed_after(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime > moment
    except OSError:
        return False


def _listed(paths: Sequence[Path]) -> str:
    """Format the first few paths and the number of the others."""
    shown = ", ".join(map(str, sorted(paths)[:_MAX_NAMED]))
    if len(paths) > _MAX_NAMED:
        return f"{shown} and {len(paths) - _MAX_NAMED} more"
    return shown
