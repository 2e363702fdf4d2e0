"""Check that each side of a comparison of commits loads the code of its commit.

A comparison has two sides: the same command in checkouts of two commits. A package that is installed
with `pip install -e .` is imported from the working tree, even if the other commit is measured. Both
sides would then run the same files, and a gate would miss any regression. Therefore one untimed run
of each side lists the files that it opens (`paradnn.compare.trace_opens`).
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

#: File name extensions of compiled code. Git usually does not track such files.
_COMPILED = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".node", ".wasm", ".jar", ".class")
#: File name extensions of source code that is loaded without a compiler.
_SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".pm", ".lua", ".jl", ".r", ".sh")
#: Folders of installed packages.
_INSTALLED = re.compile(r"/(?:site-packages|dist-packages|node_modules)/(?P<inner>.+)$")
#: Folders of a project that may contain its packages.
_SOURCE_FOLDERS = ("", "src", "lib", "python")
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "package.json")
#: Folders whose files belong to the operating system or to a single process.
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/run/", "/etc/")
_MAX_NAMED = 3


@dataclass(frozen=True)
class LoadedFiles:
    """The files that one run of a command executed or opened for reading.

    Attributes:
        files: Resolved path -> whether the file was executed. Bytecode is replaced by its source.
        digest: Hash of the names and contents of the files, independent of the folder of the
            checkout. Commands with the same digest ran the same code. None if the files are
            unknown.
        problem: Why the files are unknown; None if they are known.
    """

    files: dict[Path, bool]
    digest: str | None = None
    problem: str | None = None


def load_trace(
    words: Sequence[str], checkout: Checkout, guard: ProcessGuard, timeout: float
) -> LoadedFiles:
    """Run a command once, untimed, in a checkout, and return the files that it loads.

    Args:
        words: The program and its arguments.
        checkout: The checkout in whose folder the command runs.
        guard: Starts the process, and kills it if this process ends.
        timeout: Seconds after which the run is killed; the files are then unknown.
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
    """Return the source file of a bytecode file, if it exists; any other path unchanged."""
    if path.suffix == ".pyc":
        try:
            source = Path(importlib.util.source_from_cache(str(path)))
        except ValueError:
            return path
        if source.is_file():
            return source
    return path


def _digest(files: Collection[Path], checkout: Checkout) -> str:
    """Return a hash of the names and contents of files, without the folder of the checkout.

    In names and contents, this folder is replaced by a placeholder.
    """
    tree = str(checkout.tree).encode()
    whole = hashlib.sha256()
    for path in sorted(files):
        content = _content(path)
        if content is None:
            continue  # a directory, or a temporary file of the run
        name = bytes(path).replace(tree, b"<checkout>")
        content = content.replace(tree, b"<checkout>")
        whole.update(hashlib.sha256(name).digest() + hashlib.sha256(content).digest())
    return whole.hexdigest()


def foreign_code(
    loaded: Sequence[LoadedFiles], checkouts: Sequence[Checkout], command: str, prepared: float
) -> str | None:
    """Return evidence that one of two commits did not run its own code; None without evidence.

    The evidence is a sentence that names the first few files.

    Args:
        loaded: For each commit, the files that the command loaded.
        checkouts: The checkout of each commit.
        command: The command line that runs at both commits. Files that it names by absolute paths
            may be shared.
        prepared: Time at which both checkouts were prepared, in seconds since the epoch. A script
            that was written since the first checkout, but before this time, was written by --setup.
            Scripts that were written later may be temporary files of the command.
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
            return f"{checkout.label} loads files of {other.label}: {_first_names(foreign_files)}"
        copies = [path for path in files if _is_installed_copy(path, checkout)]
        if copies:
            return (
                f"{checkout.label} loads an installed copy of this project: {_first_names(copies)}"
            )
    begun = min(checkout.created for checkout in checkouts)
    shared = sorted(loaded[0].files.keys() & loaded[1].files.keys())
    built = []
    for path in shared:
        is_compiled = _is_compiled(path, is_executed=loaded[0].files[path])
        # --setup may install requirements for both sides in a common environment.
        is_project_script = _is_script(path) and not _INSTALLED.search(str(path))
        changed = _modification_time(path)
        if changed > begun and (is_compiled or (changed < prepared and is_project_script)):
            built.append(path)
    if built:
        return f"both sides load files that only one of them built: {_first_names(built)}"
    scripts = [path for path in shared if path not in named and _is_script(path)]
    for side, checkout in enumerate(checkouts):
        originals = _distinct_files(checkout, checkouts[1 - side], {path.name for path in scripts})
        copies = [path for path in scripts if (path.name, _content(path)) in originals]
        if copies:
            return f"both sides load copies of files of {checkout.label}: {_first_names(copies)}"
    return None


def _named_files(command: str) -> set[Path]:
    """Return the files that a command names by absolute paths."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return {Path(word).resolve() for word in words if word.startswith("/")}


def _is_code_of(
    path: Path, checkout: Checkout, loading_checkout: Checkout, *, is_executed: bool
) -> bool:
    """Return whether a file is code of a checkout, and not of a package that is installed there.

    Args:
        path: The file.
        checkout: The checkout that may contain the file.
        loading_checkout: The checkout in which the command loaded the file. Its files do not count,
            even if it is inside `checkout`.
        is_executed: Whether the file was executed.
    """
    if not path.is_relative_to(checkout.tree) or path.is_relative_to(loading_checkout.tree):
        return False
    inner = path.relative_to(checkout.tree)
    is_installed = _INSTALLED.search(str(path)) or _is_in_environment(path, checkout.tree)
    if is_installed or inner.parts[0] == ".git":
        return False
    is_tracked = str(inner) in checkout.files
    return is_tracked or _is_compiled(path, is_executed=is_executed) or _is_script(path)


def _is_in_environment(path: Path, top: Path) -> bool:
    """Return whether a file below `top` belongs to a virtual environment below `top`."""
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
    """Yield the folders from which a project's packages are installed, with a final slash.

    The top folder is the empty text.
    """
    projects = {str(Path(name).parent) for name in files if Path(name).name in _PROJECT_FILES}
    for project in {".", *projects}:
        for folder in _SOURCE_FOLDERS:
            root = Path(project, folder).as_posix()
            yield "" if root == "." else f"{root}/"


def _is_compiled(path: Path, *, is_executed: bool) -> bool:
    return is_executed or path.name.endswith(_COMPILED) or ".so." in path.name


def _is_script(path: Path) -> bool:
    """Return whether a file is source code, by its name or a shebang line."""
    if path.suffix:
        return path.suffix.lower() in _SCRIPTS
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _distinct_files(
    checkout: Checkout, other: Checkout, names: Collection[str]
) -> set[tuple[str, bytes | None]]:
    """Return the files of a checkout that the other checkout lacks or has with other content.

    Empty files are omitted. A copy of a file that is equal in both checkouts is harmless.

    Args:
        checkout: The checkout whose files are returned.
        other: The checkout to compare with.
        names: File names, without folders, to which the search is limited.

    Returns:
        Pairs of file name and content.
    """
    found: set[tuple[str, bytes | None]] = set()
    for file in checkout.files:
        name = file.rpartition("/")[2]
        if name in names:
            content = _content(checkout.tree / file)
            if content and content != _content(other.tree / file):
                found.add((name, content))
    return found


def _content(path: Path) -> bytes | None:
    """Return the content of a file; None if it is not a readable file."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _modification_time(path: Path) -> float:
    """Return the time of the last change in seconds since the epoch; 0 if the file is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _first_names(paths: Sequence[Path]) -> str:
    """Return the first few paths and the number of further paths as text."""
    shown = ", ".join(map(str, sorted(paths)[:_MAX_NAMED]))
    if len(paths) > _MAX_NAMED:
        return f"{shown} and {len(paths) - _MAX_NAMED} more"
    return shown
