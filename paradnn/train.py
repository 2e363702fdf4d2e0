"""`python -m paradnn.train`: measure one point, or with `-m` a sweep of them. Wiring only.

Bad input ends in one line and exit code 2. The framework is never imported here.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig, OmegaConf

from paradnn.help import help_text
from paradnn.store import PROJECT_ROOT
from paradnn.usage import as_axes, is_input_error, one_line, split_overrides

if TYPE_CHECKING:
    from paradnn.config import Point, Settings
    from paradnn.sweep import SweepInfo

__all__ = ["main", "run_command"]


class _Task:
    """What Hydra calls with a composed configuration: a single point, or the points of a plan.

    Hydra prints a line of its own for an exception in a task, so it is kept and raised afterwards.
    """

    def __init__(self, action: Callable[[DictConfig], int]) -> None:
        self._action = action
        self.exit_code = 0
        self.error: Exception | None = None

    def __call__(self, config: DictConfig) -> None:
        try:
            self.exit_code = max(self.exit_code, self._action(config))
        except Exception as error:
            self.error = error


def _measure(config: DictConfig) -> int:
    """Measure what the configuration describes; the exit code."""
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
        if sweep.launched:
            return _measure_task(points, settings, sweep)
        summary = measure_points(points, settings, sweep)
        describe_sweep(summary)
    else:
        if settings.sweep.grids:
            raise ConfigError("experiment", settings.sweep.name, "describes a sweep", "add -m")
        summary = measure_points([read_point(content)], settings, None)
        for row in summary.rows:
            print(describe_point(row, summary.where))
    if summary.interrupted:
        print("interrupted; the same command goes on with what is missing", file=sys.stderr)
    return summary.exit_code


def _measure_task(points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> int:
    """Measure a task of a launched sweep; 0, since its submitter asks the store what became of it.

    Interrupted, it raises: a task that returned would count as done, and one that is put back into the queue is not.
    """
    from paradnn.errors import ParadnnError
    from paradnn.session import Interrupted, measure_points, report_problem

    try:
        summary = measure_points(points, settings, sweep)
    except Exception as error:
        # Nobody else would: what a task raises gets lost on the way through its launcher.
        if not isinstance(error, ParadnnError):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        report_problem(settings, sweep, str(error) or type(error).__name__)
        return 0
    if summary.interrupted:
        raise Interrupted
    return 0


def main() -> int:
    """Measure one point or a sweep; the process' exit code."""
    return run_command(_measure)


def run_command(action: Callable[[DictConfig], int]) -> int:
    """Run Hydra with `action` and turn what the user can mend into one line; the process' exit code."""
    OmegaConf.register_new_resolver("paradnn_help", help_text, replace=True)
    verbose = os.environ.get("HYDRA_FULL_ERROR") == "1"
    # Hydra prints errors its own way and exits with 1, unless it is told to let them through.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    task = _Task(action)

    def measure(config: DictConfig) -> None:
        task(config)

    try:
        sys.argv[1:] = as_axes(split_overrides(sys.argv[1:]))
        hydra.main(version_base="1.3", config_path=str(PROJECT_ROOT / "conf"), config_name="config")(measure)()
        if task.error:
            raise task.error
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if verbose or not is_input_error(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    finally:
        if not verbose:
            del os.environ["HYDRA_FULL_ERROR"]
    return task.exit_code


if __name__ == "__main__":
    sys.exit(main())
