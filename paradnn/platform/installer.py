"""Making an interpreter with packages in it: by uv where it is on the path, else by Python's own venv and pip.

uv fetches another Python where one is asked for; venv takes the running one, or a `python3.N` on the path. What an
installer prints may hold the address and the password of a package index: of all that, one line is kept, and of an
address in it the host alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from paradnn.store.address import without_secrets

__all__ = ["InstallError", "install", "running_version"]

#: Seconds that an installer may take.
_TIMEOUT = 3600.0
#: Variables that would lead an installer to another place than the one it is given.
_MISLEADING = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT")
_UNREACHED = ("Connection", "name resolution", "timed out", "dns error", "Network is unreachable", "tcp connect error")
_LONGEST = 300


class InstallError(Exception):
    """No installer could make it; the message is one line with what each said last."""


def running_version() -> str:
    """The version of this interpreter as stacks ask for it, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def install(folder: Path, python_version: str, requirements: Sequence[str], lock: int) -> str:
    """Make `folder` an environment with `python_version` and `requirements`; which installer did it.

    `lock` is a descriptor that installers inherit: should this process be killed, it holds until they have exited.
    Raises InstallError.
    """
    installers: list[tuple[str, Callable[..., None]]] = [("pip", _with_pip)]
    if shutil.which("uv"):
        installers.insert(0, ("uv", _with_uv))
    problems = []
    for name, make in installers:
        try:
            make(folder, python_version, requirements, lock)
            return name
        except InstallError as error:
            problems.append(f"{name}: {error}")
            shutil.rmtree(folder, ignore_errors=True)
    raise InstallError("; ".join(problems))


def _with_uv(folder: Path, python_version: str, requirements: Sequence[str], lock: int) -> None:
    _run(["uv", "venv", "--quiet", "--no-project", "--python", python_version, str(folder)], folder.parent, lock)
    python = str(folder / "bin" / "python")
    _run(
        ["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *requirements],
        folder.parent,
        lock,
    )


def _with_pip(folder: Path, python_version: str, requirements: Sequence[str], lock: int) -> None:
    _run([_interpreter(python_version), "-m", "venv", str(folder)], folder.parent, lock)
    plain = ["--progress-bar=off", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", *plain, *requirements], folder.parent, lock)


def _interpreter(version: str) -> str:
    """An interpreter of that version: this one, or one on the path."""
    if version == running_version():
        return sys.executable
    python = shutil.which(f"python{version}")
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    if python:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.strip() == version:
            return python
    raise InstallError(
        f"needs Python {version}, this is {running_version()} and no python{version} on the path runs; "
        f"install uv, which fetches it, or Python {version}"
    )


def _run(command: Sequence[str], folder: Path, lock: int) -> None:
    """Run an installer in `folder`; whatever ends the wait ends it and all that it started."""
    environ = {key: value for key, value in os.environ.items() if key not in _MISLEADING}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        pass_fds=(lock,),
    )
    try:
        output, _ = process.communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise InstallError(f"took over {_TIMEOUT / 60:.0f} minutes") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise InstallError(_problem(command[0], output) or f"exited with code {process.returncode}")


def _problem(installer: str, output: str) -> str:
    """Why it failed, on one line: the last that pip said; all that uv said, which when quiet says nothing else.

    Versions of uv break their words into lines and draw between them, each in its own way: letters and ASCII stay.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()] or [""]
    whole = " ".join(re.sub(r"[^\w\x20-\x7e]+", " ", output.partition("hint:")[0]).split()).removeprefix("error: ")
    text = whole if installer == "uv" else lines[-1]
    text = without_secrets(re.sub(r"(\w+://)(?:[^/@\s]*@)?([^/\s'\"`)]*)[^\s'\"`)]*", r"\1\2/...", text))
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    unreached = any(word in output for word in _UNREACHED)
    return f"{text} (a package index was not reached)" if unreached else text
