"""Software stacks: interpreters with the framework of a given version, made on first use.

A stack is a Python version and requirements, named in conf/software. It is made once, outside the repository, in a
folder beside its place and renamed when it is complete, so that what is there is whole. A second driver that wants the
same stack waits and finds it made; what a driver uses is not removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paradnn.config.identity import digest
from paradnn.config.paths import CONFIG
from paradnn.config.point import Software
from paradnn.core.schema import read
from paradnn.errors import ConfigError, WorkerError
from paradnn.platform.installer import InstallError, install, running_version

__all__ = [
    "OpenStack",
    "Stack",
    "find_stack",
    "interpreter_of",
    "list_stacks",
    "named_stack",
    "open_stack",
    "remove_stacks",
    "stacks_folder",
]

_MARKER = "paradnn-stack.json"
_MAKING = ".making-"
#: The two locks of a stack: to make or to remove it, held alone; to use it, held together.
_TO_MAKE, _TO_USE = "make", "use"
_WAITING = "waiting for another process that makes the software stack {}"
#: What an interpreter has installed, from the distributions' own metadata: nothing of it is imported.
_DESCRIBE = """
import importlib.metadata, json, platform
versions = {entry.metadata["Name"]: entry.version for entry in importlib.metadata.distributions()}
packages = sorted(f"{name}=={version}" for name, version in versions.items() if name and name != "pip")
print(json.dumps({"python": platform.python_version(), "packages": packages}))
"""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stack:
    """What a stack is to be; where it lives follows from that."""

    name: str
    python_version: str
    requirements: tuple[str, ...]

    @classmethod
    def of(cls, software: Software) -> Stack | None:
        """The stack that `software` asks for; None where it names an interpreter that is there."""
        if not software.requirements:
            return None
        requirements = sorted(" ".join(entry.split()) for entry in software.requirements)
        return cls(software.name, software.python_version or running_version(), tuple(requirements))

    @property
    def key(self) -> str:
        """Its folder's name; another requirement or another kind of machine is another stack."""
        parts = [self.python_version, self.requirements, sys.platform, platform.machine()]
        return f"{_slug(self.name)}-{digest(parts)}"

    @property
    def folder(self) -> Path:
        """Where it is or will be."""
        return stacks_folder() / self.key

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


@dataclass(frozen=True)
class OpenStack:
    """A stack that is ready and stays until `close`. `packages` are name==version of all that it has installed."""

    stack: Stack
    packages: tuple[str, ...]
    _lock: int

    def close(self) -> None:
        """Let others remove it."""
        os.close(self._lock)


def stacks_folder() -> Path:
    """The folder of all stacks: $XDG_CACHE_HOME/paradnn/stacks, by default in ~/.cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (given if given.is_absolute() else Path.home() / ".cache") / "paradnn" / "stacks"


@cache
def interpreter_of(software: Software) -> str:
    """The path of the interpreter under test; that of a stack need not be there yet."""
    stack = Stack.of(software)
    return str(stack.python) if stack else software.python or sys.executable


def open_stack(stack: Stack, say: Say) -> OpenStack:
    """The stack, checked; made first where it is not there or not as it was made. `say` gets what takes long.

    Raises WorkerError with the installer's last line.
    """
    try:
        with _locked(stack.key, _TO_MAKE, lambda: say(_WAITING.format(stack.name))) as making:
            using = _open_lock(stack.key, _TO_USE)
            try:
                return OpenStack(stack, _ready(stack, making, using, say), using)
            except BaseException:
                os.close(using)
                raise
    except OSError as error:
        raise WorkerError(f"{error.filename or stack.folder}: {error.strerror}") from None


def find_stack(stack: Stack) -> tuple[str, ...] | None:
    """The packages of a stack that is there as it was made; None where one would be made first."""
    packages, problem = _check(stack)
    return None if problem else packages


def _ready(stack: Stack, making: int, using: int, say: Say) -> tuple[str, ...]:
    """The packages of the stack, which is there and locked against removal when this returns."""
    packages, problem = _check(stack)
    if problem:
        why = f": the one there {problem}" if stack.folder.exists() else ""
        say(
            f"making the software stack {stack.name} (Python {stack.python_version}, "
            f"{', '.join(stack.requirements)}), once: some minutes{why}"
        )
        fcntl.flock(using, fcntl.LOCK_EX)  # drivers that use the one that is there exit first
        packages = _make(stack, making)
    fcntl.flock(using, fcntl.LOCK_SH)
    return packages


def _open_lock(key: str, kind: str) -> int:
    folder = stacks_folder() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / f"{key}.{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


@contextlib.contextmanager
def _locked(key: str, kind: str, when_held: Callable[[], object]) -> Iterator[int]:
    """Hold a lock alone; `when_held` is called, and may raise, when another process has it."""
    lock = _open_lock(key, kind)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_held()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _check(stack: Stack) -> tuple[tuple[str, ...], str]:
    """The packages of a stack that is as it was made; else why it is not."""
    try:
        marker = json.loads((stack.folder / _MARKER).read_text())
    except (OSError, ValueError):
        return (), "is incomplete"
    try:
        description = _describe(stack.python)
    except WorkerError:
        return (), "does not run any more"
    if any(description[name] != marker.get(name) for name in description):
        return (), "was changed since it was made"
    return tuple(description["packages"]), ""


def _make(stack: Stack, lock: int) -> tuple[str, ...]:
    """Make the stack beside its place and move it there; what a killed driver left there goes."""
    for leftover in [stack.folder, *stacks_folder().glob(f"{stack.key}{_MAKING}*")]:
        shutil.rmtree(leftover, ignore_errors=True)
    begin = time.time()
    folder = stacks_folder() / f"{stack.key}{_MAKING}{os.getpid()}"
    try:
        installer = install(folder, stack.python_version, stack.requirements, lock)
        description = _describe(folder / "bin" / "python")
        marker = {
            "name": stack.name,
            "key": stack.key,
            "requirements": stack.requirements,
            "installer": installer,
            "made": int(begin),
            "seconds": round(time.time() - begin, 1),
            **description,
        }
        (folder / _MARKER).write_text(json.dumps(marker, indent=1))
        folder.rename(stack.folder)
    except InstallError as error:
        raise WorkerError(str(error)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tuple(description["packages"])


def _describe(python: Path) -> dict[str, Any]:
    """Version and packages of an interpreter; raises WorkerError where it does not run."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _DESCRIBE], capture_output=True, text=True, timeout=120, check=True
        )
        description: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise WorkerError(f"{python} cannot describe itself ({type(error).__name__})") from None
    return description


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "stack"


def named_stack(name: str) -> Stack:
    """The stack of conf/software/NAME.yaml."""
    from omegaconf import OmegaConf

    path = CONFIG / "software" / f"{name}.yaml"
    names = sorted(entry.stem for entry in path.parent.glob("*.yaml"))
    if name not in names:
        raise ConfigError("software", name, "no such option", f"choose one of {', '.join(names)}")
    content = OmegaConf.to_container(OmegaConf.load(path))
    stack = Stack.of(read(Software, content, "software"))  # type: ignore[arg-type]
    if stack is None:
        raise ConfigError("software", name, "is no stack", "it is an interpreter that is there already")
    return stack


def list_stacks() -> Iterator[str]:
    """A line for every stack that conf/software names or that was made."""
    stacks = []
    for path in sorted((CONFIG / "software").glob("*.yaml")):
        try:
            stacks.append(named_stack(path.stem))
        except ConfigError:
            continue
    known = {stack.key: stack for stack in stacks}
    for stack in stacks:
        yield f"{stack.name:<18} {_state(stack.folder)}"
    for folder in _folders():
        if folder.name not in known:
            yield f"{folder.name}: {'unfinished' if _MAKING in folder.name else _state(folder)}, of other requirements"
    yield f"stacks are in {stacks_folder()}"


def _folders() -> list[Path]:
    return sorted(path for path in stacks_folder().glob("*") if path.is_dir() and not path.name.startswith("."))


def _state(folder: Path) -> str:
    try:
        marker = json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return "not made"
    size = sum(entry.lstat().st_size for entry in folder.rglob("*"))
    made = time.strftime("%Y-%m-%d", time.localtime(marker["made"]))
    return (
        f"made {made} by {marker['installer']} in {marker['seconds']:.0f} s, {size / 1e9:.2f} GB, "
        f"Python {marker['python']}, {', '.join(marker['requirements'])}"
    )


def remove_stacks(name: str) -> Iterator[str]:
    """Remove every stack of that name; raises WorkerError for one that is in use."""
    pattern = re.compile(rf"({re.escape(_slug(name))}-[0-9a-f]{{16}})({re.escape(_MAKING)}\d+)?")
    matching = [(folder, match[1]) for folder in _folders() if (match := pattern.fullmatch(folder.name))]

    def refuse() -> None:
        raise WorkerError(f"{folder} is in use; remove it when the sweep is over")

    for folder, key in matching:
        with _locked(key, _TO_MAKE, refuse), _locked(key, _TO_USE, refuse):
            shutil.rmtree(folder)
        yield f"removed {folder}"
    if not matching:
        yield f"no stack {name} in {stacks_folder()}"
