"""`python -m paradnn.plan`: predict how long a sweep will take, without measuring anything.

  python -m paradnn.plan -m experiment=paper_fc                    predict from runs in the store
  python -m paradnn.plan -m experiment=paper_fc plan.hosts=1,4     predict for one and four hosts
  python -m paradnn.plan -m experiment=quick plan.out=points.csv   write a row per point to a file

The command accepts the overrides of `python -m paradnn.train` in addition to its own options.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError
from paradnn.core.schema import option, read
from paradnn.core.words import MAX_HOSTS

#: Override that selects the sweeper, which plans a multirun as a whole.
_SWEEPER = "hydra/sweeper=plan"
#: Default numbers of hosts for which to forecast.
_DEFAULT_HOSTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class PlanOptions:
    """The keys of the group `plan`, which are options of `python -m paradnn.plan`."""

    hosts: tuple[int, ...] | None = option(
        None,
        "numbers of hosts to forecast for; null: 1 and sweep.drivers, or 1, 2, 4, 8 without it",
        low=1,
        high=MAX_HOSTS,
    )
    out: str | None = option(None, "a CSV file with a row per point")


def split_options(arguments: Sequence[str]) -> tuple[PlanOptions, list[str]]:
    """Separate the options `plan.*` of a command line from all other overrides.

    Args:
        arguments: The words of the command line, without the name of the program.

    Returns:
        The options, and the other words, which specify the points to measure.

    Raises:
        ConfigError: If an option is invalid, or plan.out is not a file in an existing folder.
    """
    given: dict[str, Any] = {}
    rest = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "plan.hosts":
            words = dict.fromkeys(word.strip() for word in value.strip("[]").split(","))
            given["hosts"] = [
                int(word) if word.isdecimal() and len(word) < 20 else word for word in words
            ]
        elif key.startswith("plan."):
            given[key.removeprefix("plan.")] = value
        else:
            rest.append(argument)
    options = read(PlanOptions, given, "plan")
    if options.out is not None:
        try:
            path = Path(options.out).expanduser()
            is_writable = (
                bool(options.out) and not path.is_dir() and path.absolute().parent.is_dir()
            )
        except (OSError, ValueError, RuntimeError):
            # The path is too long, has a zero byte, or names the home of an unknown user.
            is_writable = False
        if not is_writable:
            problem = "is not a file in an existing folder"
            raise ConfigError("plan.out", options.out, problem, "give the path of a CSV file")
    return options, rest


def _plan(config: DictConfig, options: PlanOptions) -> int:
    """Predict how long it will take to measure the configured points, and print the prediction.

    Args:
        config: The composed configuration of the point or sweep.
        options: Numbers of hosts, and the CSV file to write.

    Returns:
        The exit code.
    """
    from paradnn.config.tasks import read_task
    from paradnn.forecast.forecast import describe, forecast, write_points
    from paradnn.forecast.history import open_history
    from paradnn.forecast.status import sweep_status
    from paradnn.forecast.workload import PhaseForecast
    from paradnn.session.environments import require_possible

    settings, points, sweep = read_task(config)
    for work in dict.fromkeys(point.workload for point in points):
        work.role(PhaseForecast).require_predictable()
    require_possible(points)
    history = open_history(settings.tracking)
    expected = forecast(sweep_status(points, settings, history), settings, history)
    drivers = settings.sweep.drivers
    hosts = options.hosts or ((1, drivers) if drivers > 1 else _DEFAULT_HOSTS)
    describe(expected, sweep.name if sweep else None, history.where, hosts)
    if options.out:
        write_points(expected, Path(options.out).expanduser())
        print(f"Every point is in {options.out}")
    return 0


@program
def main() -> int:
    """Run `python -m paradnn.plan` and return its exit code."""
    from paradnn.cli.overrides import split_overrides

    options, rest = split_options(split_overrides(sys.argv[1:]))
    sys.argv[1:] = [*rest, _SWEEPER]
    return run_command(lambda config: _plan(config, options), __doc__)


if __name__ == "__main__":
    sys.exit(main())
