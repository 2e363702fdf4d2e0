"""`python -m paradnn.plan`: how long a sweep would take. Measures nothing. Wiring only.

It takes the overrides of `python -m paradnn.train` and two of its own: `plan.hosts=1,2,4` and `plan.out=FILE`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.config.words import MOST_HOSTS, did_you_mean, is_count
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    from paradnn.config.point import Point

__all__ = ["Options", "main", "split_options"]

#: Plans a multirun as a whole instead of launching its tasks.
_SWEEPER = "hydra/sweeper=plan"


@dataclass(frozen=True)
class Options:
    """hosts: numbers of hosts to forecast for. out: a CSV file with a row a point."""

    hosts: tuple[int, ...] = (1, 2, 4, 8)
    out: Path | None = None


def split_options(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """The options of the plan itself, and the overrides that a measurement would take; raises ConfigError."""
    given: dict[str, Any] = {}
    rest = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "plan.hosts":
            given["hosts"] = _hosts(value)
        elif key == "plan.out":
            given["out"] = _file(value)
        elif key == "plan" or key.startswith("plan."):
            hint = did_you_mean(key, ["plan.hosts", "plan.out"])
            raise ConfigError(key, value, "no such key", f"{hint}keys of plan: hosts, out")
        else:
            rest.append(argument)
    return Options(**given), rest


def _hosts(value: str) -> tuple[int, ...]:
    words = [word.strip() for word in value.strip("[]").split(",")]
    if not all(is_count(word, MOST_HOSTS) for word in words):
        problem = f"expects numbers of hosts, 1 to {MOST_HOSTS:,}"
        raise ConfigError("plan.hosts", value, problem, "write for example plan.hosts=1,2,4")
    return tuple(dict.fromkeys(int(word) for word in words))


def _file(value: str) -> Path:
    path = Path(value).expanduser()
    if not value or path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError("plan.out", value, "is not a file in an existing folder", "give the path of a CSV file")
    return path


def _plan(config: DictConfig, options: Options) -> int:
    """Forecast what measuring the configuration's points would take, and print it."""
    from paradnn.config.point import read_point, read_settings
    from paradnn.forecast.forecast import forecast
    from paradnn.forecast.history import open_history
    from paradnn.forecast.status import sweep_status
    from paradnn.forecast.text import describe, write_points
    from paradnn.launch.submit import chunk_of
    from paradnn.sweep.space import plain
    from paradnn.sweep.tasks import read_plan

    content = plain(config)
    settings = read_settings(content)
    name = chunk = None
    if settings.sweep.plan:
        points, sweep = read_plan(settings)
        name, chunk = sweep.name, chunk_of(config, settings, len(points))
    else:
        if settings.sweep.grids:
            raise ConfigError("experiment", settings.sweep.name, "describes a sweep", "add -m")
        points = [read_point(content)]
    _refuse_unknown(points)
    history = open_history(settings.tracking)
    expected = forecast(sweep_status(points, settings, history), settings, history)
    describe(expected, name, history.where, options.hosts, chunk)
    if settings.sweep.design == "adaptive":
        from paradnn.design.ahead import describe_ahead

        describe_ahead(points, settings)
    if options.out:
        write_points(expected, options.out)
        print(f"Every point is in {options.out}")
    return 0


def _refuse_unknown(points: Sequence[Point]) -> None:
    """ConfigError for points that take as long as it needs to find something out."""
    from paradnn.config.learn import LEARN
    from paradnn.config.scenario import Server

    most = "each takes measure.timeout at most"
    if any(point.learn for point in points):
        reason = "has no forecast: how many epochs a training takes is not known before"
        raise ConfigError("task", LEARN, reason, f"{most}; plan task=step for its steps")
    if any(isinstance(point.load, Server) and point.load.rate == "peak" for point in points):
        reason = "has no forecast: how many rates a search tries is not known before"
        raise ConfigError("server.rate", "peak", reason, f"{most}; plan a server.rate=100 for a single one")


def main() -> int:
    """`python -m paradnn.plan -m experiment=paper_fc`: the process' exit code."""
    from paradnn.cli.overrides import split_overrides

    try:
        options, rest = split_options(split_overrides(sys.argv[1:]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    sys.argv[1:] = [*rest, _SWEEPER]
    return run_command(lambda config: _plan(config, options))


if __name__ == "__main__":
    sys.exit(main())
