"""Run a Hydra application so that an error of the user becomes one line and exit code 2."""

import os
import sys
from collections.abc import Callable

import hydra
from omegaconf import DictConfig

from paradnn.cli.help import help_text
from paradnn.cli.overrides import (
    arrange,
    as_axes,
    check_arguments,
    is_input_error,
    one_line,
    split_overrides,
)
from paradnn.config.hydra_releases import VERSION_BASE, register_resolver
from paradnn.config.paths import CONFIG
from paradnn.core.errors import ParadnnError

_FULL_ERROR = "HYDRA_FULL_ERROR"


def run_command(action: Callable[[DictConfig], int], page: str | None = None) -> int:
    """Compose the configuration that the command line specifies, and run a command with it.

    Args:
        action: The command. It receives the configuration and returns an exit code. Hydra calls it
            once per job.
        page: The text of --help before the list of keys; None for no such text.

    Returns:
        The largest exit code of all jobs.

    Raises:
        ParadnnError: If the command line is invalid.
    """
    register_resolver("paradnn_help", lambda: help_text(page))
    is_verbose = os.environ.get(_FULL_ERROR) == "1"
    # Without this variable Hydra prints errors itself and exits with 1.
    os.environ[_FULL_ERROR] = "1"
    codes = [0]
    errors: list[Exception] = []

    def task(config: DictConfig) -> None:
        # Hydra would print a line about an exception in a task, so keep it and raise it afterwards.
        try:
            codes.append(action(config))
        except Exception as error:
            errors.append(error)

    try:
        arguments = split_overrides(sys.argv[1:])
        check_arguments(arguments)
        sys.argv[1:] = as_axes(arrange(arguments))
        hydra.main(config_path=str(CONFIG), config_name="config", **VERSION_BASE)(task)()
        if errors:
            raise errors[-1]
    except Exception as error:
        if is_verbose or not is_input_error(error):
            raise
        raise ParadnnError(one_line(error)) from None
    finally:
        if not is_verbose:
            del os.environ[_FULL_ERROR]
    return max(codes)
