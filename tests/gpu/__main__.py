"""`python3 -m tests.gpu [--platform cpu]`: check a new GPU machine in under eight minutes.

Starts in the machine's interpreter, creates an environment on top of it
(`tests.gpu.environment`), and runs pytest on `tests.gpu.questions` there. Further options are
pytest's: `-k ceilings` selects checks by name. The result file holds all results with details,
after Ctrl-C those so far. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.gpu.environment import make_environment

ROOT = Path(__file__).resolve().parent.parent.parent
_INSIDE = "PARADNN_GPU_TESTS"


def main() -> None:
    """Become pytest in the environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--platform", choices=("gpu", "cpu"), default="gpu", help="cpu: rehearse it without a GPU"
    )
    parser.add_argument(
        "--wheels", type=Path, default=ROOT / ".gpu" / "wheels", help="what `make gpu-wheels` made"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".gpu", help="where the environment is made"
    )
    parser.add_argument("--out", type=Path, help="default: result.xml in that folder")
    parser.add_argument(
        "--seconds", type=float, default=450.0, help="no question begins that would last longer"
    )
    given, others = parser.parse_known_args()
    inside = _INSIDE in os.environ
    if inside:
        python = sys.executable
    else:
        python = make_environment(given.folder.resolve() / "venv", given.wheels.resolve())
    # A machine's frameworks may be on its path alone.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = (given.out or given.folder / "result.xml").resolve()
    # Without the suite's own configuration: its plugins are not there.
    options = [
        "-c",
        os.devnull,
        "--rootdir",
        str(ROOT),
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-v",
        "-rs",
    ]
    options += [
        "-p",
        "tests.gpu.plugin",
        f"--platform={given.platform}",
        f"--seconds={given.seconds}",
    ]
    options += [f"--junitxml={result}", "--tb=short"]
    command = [
        str(python),
        "-m",
        "pytest",
        *options,
        *others,
        str(ROOT / "tests" / "gpu" / "questions.py"),
    ]
    os.execve(python, command, {**os.environ, _INSIDE: "1", "PYTHONPATH": path})


if __name__ == "__main__":
    main()
