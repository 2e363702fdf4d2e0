"""Where this package, its configuration and its results are: in a checkout, and installed from a wheel."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CONFIG", "HOME", "PACKAGE_PARENT"]

_PACKAGE = Path(__file__).resolve().parent.parent
#: The folder that holds `paradnn`: a checkout, or site-packages.
PACKAGE_PARENT = _PACKAGE.parent
_IS_CHECKOUT = (PACKAGE_PARENT / "conf" / "config.yaml").is_file() and (PACKAGE_PARENT / "pyproject.toml").is_file()
#: Hydra's configuration. A wheel carries it inside the package.
CONFIG = PACKAGE_PARENT / "conf" if _IS_CHECKOUT else _PACKAGE / "conf"
#: Results are kept in `mlruns` below it: the checkout, or the folder in which an installed command is run.
HOME = PACKAGE_PARENT if _IS_CHECKOUT else Path.cwd()
