"""Running a Hydra application: wrong input ends in one line and exit code 2, the rest is a fault of
this tool.
"""

import os
import sys
from collections.abc import Callable

import hydra
from omegaconf import DictConfig, OmegaConf

from paradnn.cli.help import help_text
from paradnn.cli.overrides import (
    arrange,
    as_axes,
    check_arguments,
    is_input_error,
    one_line,
    split_overrides,
)
from paradnn.config.paths import CONFIG
from paradnn.core.errors import ParadnnError


def run_command(action: Callable[[DictConfig], int], page: str | None = None) -> int:
    """Run Hydra with `action` and turn what the user can mend into one line; the process' exit
    code.

    `page` is what --help says before the keys.
    """
    OmegaConf.register_new_resolver("paradnn_help", lambda: help_text(page), replace=True)
    verbose = os.environ.get("HYDRA_FULL_ERROR") == "1"
    # Hydra prints errors its own way and exits with 1, unless this lets them through.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    codes = [0]
    errors = list[Exception]()

    def task(config: DictConfig) -> None:
        # Hydra prints a line of its own for an exception in a task, so it is kept and raised
        # afterwards.
        try:
            codes.append(action(config))
        except Exception as error:
            errors.append(error)

    try:
        given = split_overrides(sys.argv[1:])
        check_arguments(given)
        sys.argv[1:] = as_axes(arrange(given))
        hydra.main(version_base="1.3", config_path=str(CONFIG), config_name="config")(task)()
        for error in errors[-1:]:
            raise error
    except Exception as error:
        if verbose or not is_input_error(error):
            raise
        raise ParadnnError(one_line(error)) from None
    finally:
        if not verbose:
            del os.environ["HYDRA_FULL_ERROR"]
    return max(codes)
