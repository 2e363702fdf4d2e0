"""Paths of this package, its configuration and its results.

The package is either part of a checkout, or installed from a wheel.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_PARENT = PACKAGE.parent
#: The checkout that contains the package; None if it is installed from a wheel.
CHECKOUT: Path | None = None
if (_PARENT / "conf" / "config.yaml").is_file() and (_PARENT / "pyproject.toml").is_file():
    CHECKOUT = _PARENT
#: The folder of Hydra's configuration files. If the package is installed from a wheel, the folder is
#: inside the package.
CONFIG = (CHECKOUT or PACKAGE) / "conf"
#: The folder that contains `mlruns` with the results: the checkout, or the working directory if the
#: package is installed from a wheel.
HOME = CHECKOUT or Path.cwd()


def default_experiment() -> str:
    """Return the name of the default MLflow experiment.

    It is the value of MLFLOW_EXPERIMENT_NAME if the variable is set, otherwise "paradnn".
    """
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "paradnn"
