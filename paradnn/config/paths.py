"""Where this package, its configuration and its results are: in a checkout, and installed from a
wheel.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_PARENT = PACKAGE.parent
#: The checkout that the package is in; None where it is installed from a wheel.
if (_PARENT / "conf" / "config.yaml").is_file() and (_PARENT / "pyproject.toml").is_file():
    CHECKOUT = _PARENT
else:
    CHECKOUT = None
#: Hydra's configuration. A wheel carries it inside the package.
CONFIG = (CHECKOUT or PACKAGE) / "conf"
#: Results are kept in `mlruns` below it: the checkout, or the folder in which an installed command
#: is run.
HOME = CHECKOUT or Path.cwd()


def default_experiment() -> str:
    """The MLflow experiment of commands that name none: MLFLOW_EXPERIMENT_NAME, else "paradnn"."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "paradnn"
