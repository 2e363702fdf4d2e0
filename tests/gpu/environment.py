"""A virtual environment beside the machine's own packages, from a folder of wheels: no network is needed."""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

__all__ = ["REQUIREMENTS", "make_environment"]

#: What a sweep into files needs beside PyTorch or JAX, which are the machine's own.
REQUIREMENTS = (
    "hydra-core>=1.3.8,<1.4",
    "keras>=3.12,<4",
    "matplotlib>=3.10,<4",
    "nvidia-ml-py",
    "omegaconf>=2.3,<2.4",
    "protobuf",
    "psutil>=7,<8",
    "pyyaml>=6,<7",
    "rich>=14,<16",
)


def make_environment(folder: Path, wheels: Path) -> Path:
    """The interpreter of an environment in `folder` that sees this interpreter's packages too; made once.

    An environment with system packages made from within another would see those of neither: the folders are named to
    it instead. Raises SystemExit with pip's message where a package is neither there nor among the `wheels`.
    """
    python, done = folder / "bin" / "python", folder / "complete"
    if done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    own = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    )
    theirs = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    # One line that begins with import is run; a bare path would leave their own .pth files unread.
    line = "; ".join(["import site", *(f"site.addsitedir({path!r})" for path in theirs)])
    (Path(own.stdout.strip()) / "machine.pth").write_text(line + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-index", "--find-links", str(wheels), "--no-compile", *REQUIREMENTS]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    if installed.returncode:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(
            f"{installed.stderr.strip()}\nwhat this machine lacks is not in {wheels}: run\n"
            f"    make gpu-wheels GPU_PYTHONS={version}\nwhere there is a network, and bring the folder along"
        )
    done.touch()
    return python
