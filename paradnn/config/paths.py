"""Paths of this package, of its configuration and of its results.

The package is in a checkout, or installed from a wheel.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_PARENT = PACKAGE.parent
#: The checkout that contains the package; None if it is installed from a wheel.
CHECKOUT: Path | None = None
if (_PARENT / "conf" / "config.yaml").is_file() and (_PARENT / "pyproject.toml").is_file():
    CHECKOUT = _PARENT
#: The folder of Hydra's configuration files. In a wheel it is inside the package.
CONFIG = (CHECKOUT or PACKAGE) / "conf"
#: The folder that contains `mlruns` with the results: the checkout. If the package is installed, it
#: is the working directory.
HOME = CHECKOUT or Path.cwd()


def default_experiment() -> str:
    """Return the MLflow experiment of commands without one: MLFLOW_EXPERIMENT_NAME or "paradnn"."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "paradnn"
