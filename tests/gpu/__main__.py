"""Check a new GPU machine in under eight minutes: `python3 -m tests.gpu [--platform cpu]`.

The program starts in the machine's interpreter. It creates an environment on top of this
interpreter (`tests.gpu.environment`), and runs pytest on `tests.gpu.questions` in it. Further
options are passed to pytest: `-k ceilings` selects checks by name. The result file holds all
results with details, even after Ctrl-C. The exit code is 1 if a check failed.
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
    """Replace this process with pytest in the environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--platform",
        choices=("gpu", "cpu"),
        default="gpu",
        help="cpu: run the checks without a GPU",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        default=ROOT / ".gpu" / "wheels",
        help="folder from `make gpu-wheels`",
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".gpu", help="folder for the environment"
    )
    parser.add_argument("--out", type=Path, help="result file; default: FOLDER/result.xml")
    parser.add_argument(
        "--seconds",
        type=float,
        default=450.0,
        help="time limit; checks that would exceed it are skipped",
    )
    options, pytest_options = parser.parse_known_args()
    if _INSIDE in os.environ:
        python = sys.executable
    else:
        python = make_environment(options.folder.resolve() / "venv", options.wheels.resolve())
    # The frameworks of some machines are only on PYTHONPATH.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = (options.out or options.folder / "result.xml").resolve()
    # The suite's own pytest configuration needs plug-ins that this environment lacks.
    arguments = [
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
    arguments += [
        "-p",
        "tests.gpu.plugin",
        f"--platform={options.platform}",
        f"--seconds={options.seconds}",
    ]
    arguments += [f"--junitxml={result}", "--tb=short"]
    command = [
        str(python),
        "-m",
        "pytest",
        *arguments,
        *pytest_options,
        str(ROOT / "tests" / "gpu" / "questions.py"),
    ]
    os.execve(python, command, {**os.environ, _INSIDE: "1", "PYTHONPATH": path})


if __name__ == "__main__":
    main()
