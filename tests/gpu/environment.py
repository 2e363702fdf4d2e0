"""A virtual environment on top of the machine's packages, made from wheels without a network."""

from __future__ import annotations

import platform
import site
import subprocess
import sys
from pathlib import Path

#: Packages that a sweep with files needs, in addition to the machine's PyTorch or JAX.
REQUIREMENTS = (
    "hydra-core>=1.3.8,<1.4",
    "keras>=3.12,<4",
    "matplotlib>=3.10,<4",
    "nvidia-ml-py",
    "omegaconf>=2.3,<2.4",
    "protobuf",
    "psutil>=7,<8",
    "pytest>=9,<10",
    "pyyaml>=6,<7",
    "rich>=14,<16",
)


def make_environment(folder: Path, wheels: Path) -> Path:
    """Return the interpreter of an environment that also sees this interpreter's packages.

    The environment is created once. If this interpreter itself belongs to an environment, `venv`
    cannot include its packages, so their folders are added explicitly.

    Args:
        folder: Folder of the environment.
        wheels: Folder of wheels, which must include pip.

    Raises:
        SystemExit: With pip's message if a package is neither installed nor among the `wheels`.
    """
    python = folder / "bin" / "python"
    completed = folder / "complete"
    shared = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    # An environment that was copied from another machine or belongs to a different interpreter is
    # created again.
    made_for = "\n".join([platform.node(), sys.executable, sys.version, *shared, *REQUIREMENTS])
    if completed.exists() and completed.read_text() == made_for and python.exists():
        return python
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < (3, 11):  # noqa: UP036 - the machine's interpreter may be older
        raise SystemExit(
            f"ParaDnn needs Python 3.11 or newer, {sys.executable} is {version}: make test-gpu PYTHON=..."
        )
    remedy = (
        f"run\n    make gpu-wheels GPU_PYTHONS={version}\n"
        "on a machine with a network, and copy the folder to this machine"
    )
    # The Python of some machines lacks pip, or may not create an environment with it.
    pip = next(iter(sorted(wheels.glob("pip-*.whl"))), None)
    if pip is None:
        raise SystemExit(f"there are no wheels in {wheels}: {remedy}")
    not_created = f"no environment can be created in {folder}: choose another folder with --folder"
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], not_created)
    packages = Path(
        _run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            not_created,
        )
    )
    # Python runs a line that begins with `import`. For a plain path, it would ignore the `.pth`
    # files in that folder.
    line = "; ".join(["import site", *(f"site.addsitedir({path!r})" for path in shared)])
    (packages / "machine.pth").write_text(line + "\n")
    # --isolated ignores the user's settings of pip, such as a target folder.
    install = [
        str(python),
        str(pip / "pip"),
        "install",
        "--isolated",
        "--quiet",
        "--disable-pip-version-check",
    ]
    install += [
        "--no-cache-dir",
        "--no-index",
        "--find-links",
        str(wheels),
        "--no-compile",
        *REQUIREMENTS,
    ]
    _run(
        install,
        f"{wheels} lacks a package that this machine needs (NumPy must be installed already): "
        f"{remedy}",
    )
    completed.write_text(made_for)
    return python


def _run(command: list[str], problem: str) -> str:
    """Return the output of a command.

    Raises:
        SystemExit: With the command's message and `problem`, if it fails.
    """
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"{(completed.stderr or completed.stdout).strip()}\n{problem}")
    return completed.stdout.strip()
