"""Software stacks: interpreters with a framework of a given version, installed on first use.

A file in conf/software specifies a stack by a Python version and a list of requirements. uv
installs each stack once, outside the repository. The folder gets its final name only when the stack
is complete, so a partial stack is never used.

A lock file per stack coordinates drivers. A driver that uses a stack holds a shared lock. A driver
that installs or removes the stack holds an exclusive lock. A second driver that needs a stack
therefore waits until it is installed, and a stack in use is not removed.

The output of uv may contain the address and the password of a package index. Messages show only one
line of this output, with every address reduced to its host.
"""

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from paradnn.config.groups import option_content, option_names
from paradnn.config.identity import digest
from paradnn.config.point import Software
from paradnn.core import locks
from paradnn.core.errors import ConfigError, WorkerError
from paradnn.core.schema import read
from paradnn.core.words import without_secrets

#: File in the folder of a complete stack, with its description.
_MARKER = "paradnn-stack.json"
#: Part of the name of a folder in which a stack is being installed.
_MAKING = ".making-"
#: Time limit of uv in seconds.
_TIMEOUT = 3600.0
#: Seconds between two attempts to acquire a lock.
_PAUSE = 0.2
#: Environment variables that would make uv use a different environment.
_MISLEADING_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
#: Parts of uv's output if it could not connect to a package index.
_CONNECTION_ERRORS = (
    "Connection",
    "name resolution",
    "timed out",
    "dns error",
    "Network is unreachable",
    "tcp connect error",
)
_MAX_REASON_CHARS = 300
#: Program that prints version and packages of its interpreter. It reads the metadata of
#: distributions without importing them.
_DESCRIBE = """
import importlib.metadata, json, platform
versions = {entry.metadata["Name"]: entry.version for entry in importlib.metadata.distributions()}
packages = sorted(f"{name}=={version}" for name, version in versions.items() if name and name != "pip")
print(json.dumps({"python": platform.python_version(), "packages": packages}))
"""

#: Prints a message to the user.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Stack:
    """Specification of a software stack: a Python environment that is installed on first use.

    The specification determines the folder of the stack.

    Attributes:
        name: Name of the file in conf/software, such as "tensorflow-2.18".
        python_version: Version of Python, such as "3.12".
        requirements: Sorted requirements in pip's syntax.
    """

    name: str
    python_version: str
    requirements: tuple[str, ...]

    @classmethod
    def of(cls, software: Software) -> Self | None:
        """Return the stack that an option of the group `software` requests.

        The result is None if the option names an existing interpreter instead.
        """
        if not software.requirements:
            return None
        requirements = sorted(" ".join(entry.split()) for entry in software.requirements)
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(software.name, software.python_version or running, tuple(requirements))

    @property
    def key(self) -> str:
        """Name of the stack's folder, with a hash of Python version, requirements and platform."""
        parts = [self.python_version, self.requirements, sys.platform, platform.machine()]
        return f"{_slug(self.name)}-{digest(parts)}"

    @property
    def folder(self) -> Path:
        """Path of the stack, which may not exist yet."""
        return _stacks_folder() / self.key

    @property
    def python(self) -> Path:
        """Path of the stack's interpreter."""
        return self.folder / "bin" / "python"


def _stacks_folder() -> Path:
    """Return the folder of all stacks: $XDG_CACHE_HOME/paradnn/stacks, by default in ~/.cache."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    if not caches.is_absolute():
        caches = Path.home() / ".cache"
    return caches / "paradnn" / "stacks"


@cache
def interpreter_of(software: Software) -> str:
    """Return the path of the interpreter that an option of the group `software` selects.

    It may belong to a stack that is not installed yet. Then, the file does not exist.
    """
    stack = Stack.of(software)
    if stack:
        return str(stack.python)
    return software.python or sys.executable


@contextlib.contextmanager
def open_stack(stack: Stack, say: Say) -> Iterator[tuple[str, ...]]:
    """Install a stack if it is missing or modified, and protect it from removal in this context.

    Args:
        stack: Specification of the stack.
        say: Prints a message to the user before a long operation.

    Yields:
        The packages of the stack, as name==version.

    Raises:
        WorkerError: If the stack cannot be installed; the message contains uv's reason on one line.
    """
    with contextlib.ExitStack() as lock_context:
        try:
            lock = lock_context.enter_context(_lock_of(stack.key))
            packages = _ensure_installed(stack, lock, say)
        except OSError as error:
            raise WorkerError(f"{error.filename or stack.folder}: {error.strerror}") from None
        yield packages


def find_stack(stack: Stack) -> tuple[str, ...] | None:
    """Return the packages of an installed stack as name==version.

    The result is None if the stack is missing, incomplete or modified, so it must be installed.
    """
    packages, problem = _check(stack)
    return None if problem else packages


def _ensure_installed(stack: Stack, lock: int, say: Say) -> tuple[str, ...]:
    """Install the stack if necessary, acquire a shared lock on it, and return its packages.

    Args:
        stack: Specification of the stack.
        lock: File descriptor of the stack's lock file.
        say: Prints a message to the user before a long operation.
    """
    has_reported = False
    while True:
        if locks.try_lock(lock, is_shared=True):
            packages, problem = _check(stack)
            if not problem:
                return packages
            if locks.try_lock(lock) and (problem := _check(stack)[1]):
                cause = f"; the installed stack {problem}" if stack.folder.exists() else ""
                description = (
                    f"{stack.name} (Python {stack.python_version}, {', '.join(stack.requirements)})"
                )
                say(
                    f"installing the software stack {description}, which takes a few minutes{cause}"
                )
                _make(stack, lock)
                continue
        if not has_reported:
            say(f"waiting for another process that installs the software stack {stack.name}")
            has_reported = True
        locks.unlock(lock)
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _lock_of(key: str) -> Iterator[int]:
    """Open the lock file of a stack, and release any lock on it when the context ends.

    Args:
        key: The key of the stack (`Stack.key`).

    Yields:
        The file descriptor.
    """
    folder = _stacks_folder() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield lock
    finally:
        os.close(lock)


def _marker(folder: Path) -> dict[str, Any] | None:
    """Read the description that was stored in a stack's folder when its installation ended.

    The result is None if the stack is missing or incomplete.
    """
    try:
        description: dict[str, Any] = json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return None
    return description


def _check(stack: Stack) -> tuple[tuple[str, ...], str]:
    """Check whether an installed stack can be used.

    Returns:
        The packages of the stack as name==version, and why the stack cannot be used. The reason is
        a predicate, such as "is incomplete", or "" if the stack is usable.
    """
    marker = _marker(stack.folder)
    if marker is None:
        return (), "is incomplete"
    try:
        description = _describe(stack.python)
    except WorkerError:
        return (), "no longer runs"
    packages = tuple(description["packages"])
    if any(description[name] != marker.get(name) for name in description):
        return packages, "has changed since it was installed"
    return packages, ""


def _make(stack: Stack, lock: int) -> None:
    """Install the stack atomically, after removing leftovers of killed drivers.

    Args:
        stack: Specification of the stack.
        lock: File descriptor of the lock file, which uv inherits. If this process is killed, the
            lock remains until uv has exited.

    Raises:
        WorkerError: If uv is not installed or fails.
    """
    try:
        from uv import find_uv_bin

        uv = find_uv_bin()
    except (ImportError, OSError):
        raise WorkerError("uv is not installed; run python -m pip install uv") from None
    for leftover in [stack.folder, *_stacks_folder().glob(f"{stack.key}{_MAKING}*")]:
        shutil.rmtree(leftover, ignore_errors=True)
    begin = time.time()
    folder = _stacks_folder() / f"{stack.key}{_MAKING}{os.getpid()}"
    python = folder / "bin" / "python"
    try:
        _run(
            [uv, "venv", "--quiet", "--no-project", "--python", stack.python_version, str(folder)],
            lock,
        )
        install = ["pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
        _run([uv, *install, *stack.requirements], lock)
        marker = {
            "name": stack.name,
            "requirements": stack.requirements,
            "made": int(begin),
            **_describe(python),
        }
        (folder / _MARKER).write_text(json.dumps(marker, indent=1))
        folder.rename(stack.folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _describe(python: Path) -> dict[str, Any]:
    """Return a dictionary with the `python` version and the `packages` of an interpreter.

    Raises:
        WorkerError: If the interpreter does not run.
    """
    command = [str(python), "-I", "-c", _DESCRIBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        description: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise WorkerError(
            f"the interpreter {python} cannot report its packages ({type(error).__name__}); check that it runs"
        ) from None
    return description


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "stack"


def named_stack(name: str) -> Stack:
    """Return the specification of the stack in conf/software/NAME.yaml.

    Raises:
        ConfigError: If the name is unknown, or names an existing interpreter instead of a stack.
    """
    if name not in (names := option_names("software")):
        raise ConfigError("software", name, "no such option", f"choose one of {', '.join(names)}")
    stack = _stack_of_option(name)
    if stack is None:
        installable = [option for option in names if _stack_of_option(option)]
        raise ConfigError(
            "software",
            name,
            "uses an existing interpreter, so ParaDnn installs no stack for it",
            f"choose one of {', '.join(installable)}",
        )
    return stack


def _stack_of_option(name: str) -> Stack | None:
    """Read the stack in conf/software/NAME.yaml; None if the file has no requirements."""
    return Stack.of(read(Software, option_content("software", name), "software"))


def list_stacks() -> Iterator[str]:
    """Yield a line of text about every stack that conf/software names or that is installed.

    The last line names the folder of all stacks.
    """
    known = set()
    for name in option_names("software"):
        with contextlib.suppress(ConfigError):
            stack = named_stack(name)
            known.add(stack.key)
            yield f"{stack.name:<18} {_state(stack.folder)}"
    yield from (
        f"{folder.name}: {_state(folder)}" for folder in _folders() if folder.name not in known
    )
    yield f"stacks are in {_stacks_folder()}"


def _folders() -> list[Path]:
    return sorted(path for path in _stacks_folder().glob("[!.]*") if path.is_dir())


def _state(folder: Path) -> str:
    marker = _marker(folder)
    if marker is None:
        return "not installed"
    size = sum(entry.lstat().st_size for entry in folder.rglob("*")) / 1e9
    made = time.strftime("%Y-%m-%d", time.localtime(marker["made"]))
    requirements = ", ".join(marker["requirements"])
    return f"installed {made}, {size:.2f} GB, Python {marker['python']}, {requirements}"


def remove_stacks(name: str) -> Iterator[str]:
    """Remove every installed stack with a given name, and yield a line of text for each.

    Several versions of a stack may be installed, which differ in Python version or requirements.

    Raises:
        WorkerError: If a stack is in use.
    """
    pattern = re.compile(rf"({re.escape(_slug(name))}-[0-9a-f]{{16}})({re.escape(_MAKING)}\d+)?")
    matching = [
        (folder, match[1]) for folder in _folders() if (match := pattern.fullmatch(folder.name))
    ]
    for folder, key in matching:
        with _lock_of(key) as lock:
            if not locks.try_lock(lock):
                raise WorkerError(f"{folder} is in use; remove it when the sweep has ended")
            shutil.rmtree(folder)
        yield f"removed {folder}"
    if not matching:
        yield f"no stack {_slug(name)} in {_stacks_folder()}"


def _run(command: Sequence[str], lock: int) -> None:
    """Run uv to its end. If an exception or the time limit interrupts it, kill its processes.

    Args:
        command: The words of the command.
        lock: File descriptor of the stack's lock file, which uv inherits.

    Raises:
        WorkerError: If uv fails or exceeds its time limit.
    """
    environ = {key: value for key, value in os.environ.items() if key not in _MISLEADING_VARIABLES}
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    process = subprocess.Popen(
        command,
        cwd=_stacks_folder(),
        env=environ,
        start_new_session=True,
        pass_fds=(lock,),
        **pipes,
    )
    try:
        output, _ = process.communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise WorkerError(
            f"uv did not finish within {_TIMEOUT / 60:.0f} minutes; check the network, and try again"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        reason = _problem(output.decode(errors="replace"))
        raise WorkerError(f"uv: {reason or f'exited with {process.returncode}'}")


def _problem(output: str) -> str:
    """Extract the reason for a failure of uv from its output, as one line.

    Versions of uv break lines at different places and draw different symbols between them. The
    result therefore has only word characters and printable ASCII. Addresses are cut to their host.

    Args:
        output: The whole output of uv in quiet mode.
    """
    text = " ".join(
        re.sub(r"[^\w\x20-\x7e]+", " ", output.partition("hint:")[0]).split()
    ).removeprefix("error: ")
    text = without_secrets(
        re.sub(r"(\w+://)(?:[^/@\s]*@)?([^/\s'\"`)]*)[^\s'\"`)]*", r"\1\2/...", text)
    )
    text = text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 3]}..."
    if any(word in output for word in _CONNECTION_ERRORS):
        return f"{text} (could not reach a package index)"
    return text
