"""A virtual environment on top of the machine's packages, from a folder of wheels, without a
network.
"""

from __future__ import annotations

import platform
import site
import subprocess
import sys
from pathlib import Path

#: Requirements of a sweep into files, in addition to the machine's PyTorch or JAX.
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
    """Return the interpreter of an environment in `folder` that also sees this interpreter's
    packages.

    It is created once. An environment with system packages that is made from within another one
    would see neither's packages, so the folders are added explicitly.

    Raises:
        SystemExit: With pip's message if a package is neither installed nor among the `wheels`.
    """
    python = folder / "bin" / "python"
    done = folder / "complete"
    shared = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    # One that came along from another machine, or is of another interpreter, is made again.
    made_for = "\n".join([platform.node(), sys.executable, sys.version, *shared, *REQUIREMENTS])
    if done.exists() and done.read_text() == made_for and python.exists():
        return python
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < (3, 11):  # noqa: UP036 - it begins in the machine's own
        raise SystemExit(
            f"ParaDnn needs Python 3.11 or newer, {sys.executable} is {version}: make test-gpu PYTHON=..."
        )
    remedy = f"run\n    make gpu-wheels GPU_PYTHONS={version}\nwhere there is a network, and bring the folder along"
    # Not every machine's own Python has pip, or may make an environment with it.
    pip = next(iter(sorted(wheels.glob("pip-*.whl"))), None)
    if pip is None:
        raise SystemExit(f"there are no wheels in {wheels}: {remedy}")
    nowhere = f"no environment can be made in {folder}: name another folder with --folder"
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], nowhere)
    packages = Path(
        _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], nowhere)
    )
    # One line that begins with import is run; a bare path would leave their own .pth files unread.
    line = "; ".join(["import site", *(f"site.addsitedir({path!r})" for path in shared)])
    (packages / "machine.pth").write_text(line + "\n")
    # Isolated from what the user set for pip, such as a target.
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
    _run(install, f"what this machine lacks is not in {wheels} (NumPy must be its own): {remedy}")
    done.write_text(made_for)
    return python


def _run(command: list[str], problem: str) -> str:
    """Return the output of a command. Raises SystemExit with its message and ours."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{(done.stderr or done.stdout).strip()}\n{problem}")
    return done.stdout.strip()
