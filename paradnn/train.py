"""`python -m paradnn.train`: measure one point, or with `-m` a sweep of them. Wiring only.

Bad input ends in one line and exit code 2. The framework is never imported here.
"""

from __future__ import annotations

import os
import re
import sys

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paradnn.errors import ParadnnError
from paradnn.help import help_text

__all__ = ["main"]


def _task(config: DictConfig) -> int:
    """One task: a single point, or those of a plan. The exit code."""
    from paradnn.config import read_point, read_settings
    from paradnn.errors import ConfigError
    from paradnn.session import measure_points
    from paradnn.space import plain
    from paradnn.sweep import read_plan
    from paradnn.terminal import describe_point, describe_sweep

    content = plain(config)
    settings = read_settings(content)
    if settings.sweep.plan:
        points, sweep = read_plan(settings)
        summary = measure_points(points, settings, sweep)
        describe_sweep(summary.rows, summary.total, summary.seconds, summary.where)
    else:
        if settings.sweep.grids:
            raise ConfigError(
                "experiment",
                settings.sweep.name,
                "describes a sweep",
                "add -m: python -m paradnn.train -m experiment=...",
            )
        summary = measure_points([read_point(content)], settings, None)
        for row in summary.rows:
            print(describe_point(row, summary.where))
    if summary.interrupted:
        print("interrupted; the same command goes on with what is missing", file=sys.stderr)
    global _exit_code
    _exit_code = max(_exit_code, summary.exit_code)
    return summary.exit_code


_exit_code = 0


def main() -> int:
    """Run Hydra and turn what the user can mend into one line; the process' exit code."""
    OmegaConf.register_new_resolver("paradnn_help", help_text, replace=True)
    verbose = os.environ.get("HYDRA_FULL_ERROR") == "1"
    # Hydra prints errors its own way and exits with 1, unless it is told to let them through.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        hydra.main(version_base="1.3", config_path="../conf", config_name="config")(_task)()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ParadnnError, HydraException, OmegaConfBaseException) as error:
        if verbose:
            raise
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    return _exit_code


def _one_line(error: Exception) -> str:
    """The message on one line; Hydra's two commonest are put in words that name the remedy."""
    text = str(error)
    if isinstance(error, ParadnnError):
        return text
    if match := re.search(
        r"Could not (?:find|load) '([^']+)/([^'/]+)'\s*Available options in '[^']+':\s*(.*)", text, re.S
    ):
        return f"{match[1]}={match[2]}: no such option; choose one of {', '.join(match[3].split())}"
    if match := re.search(r"Could not override '([^']+)'", text):
        return f"{match[1]}: no such key; see python -m paradnn.train --help"
    return " ".join(f"{text} {error.__cause__ or ''}".split())


if __name__ == "__main__":
    sys.exit(main())
