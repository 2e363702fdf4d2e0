"""`python -m paradnn.plan`: how long a sweep would take. Measures nothing.

  python -m paradnn.plan -m experiment=paper_fc                    the whole sweep, by what the store holds already
  python -m paradnn.plan -m experiment=paper_fc plan.hosts=1,4     on so many hosts
  python -m paradnn.plan -m experiment=quick plan.out=points.csv   every point as a row of a file
  python -m paradnn.plan devices=1 plan.channel=nccl plan.hosts=8  how fast a step over hosts is, by a measured channel;
                                                                   also plan.algorithm, plan.servers, plan.bucket

It takes the overrides of `python -m paradnn.train` beside its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program
from paradnn.core.words import MOST_HOSTS, did_you_mean, is_count
from paradnn.errors import ConfigError
from paradnn.forecast.communication.data_parallel import ALGORITHMS, Exchange

#: Plans a multirun as a whole instead of launching its tasks.
_SWEEPER = "hydra/sweeper=plan"
#: Servers, and bytes of a bucket.
_MOST = 2**50
_OF_CHANNEL = ("plan.algorithm", "plan.servers", "plan.bucket")
_KEYS = ("plan.hosts", "plan.out", "plan.channel", *_OF_CHANNEL)


@dataclass(frozen=True)
class Options:
    """hosts: numbers of hosts to forecast for. out: a CSV file with a row a point. exchange: of gradients, over a
    channel that was measured; None: steps over several hosts are not asked for."""

    hosts: tuple[int, ...] = (1, 2, 4, 8)
    out: Path | None = None
    exchange: Exchange | None = None


def split_options(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """The options of the plan itself, and the overrides that a measurement would take; raises ConfigError."""
    given: dict[str, str] = {}
    rest = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in _KEYS:
            given[key] = value
        elif key == "plan" or key.startswith("plan."):
            hint = did_you_mean(key, _KEYS)
            names = ", ".join(name.removeprefix("plan.") for name in _KEYS)
            raise ConfigError(key, value, "no such key", f"{hint}keys of plan: {names}")
        else:
            rest.append(argument)
    usual = Options()
    hosts = _hosts(given["plan.hosts"]) if "plan.hosts" in given else usual.hosts
    return Options(hosts, _file(given["plan.out"]) if "plan.out" in given else None, _exchange(given)), rest


def _exchange(given: Mapping[str, str]) -> Exchange | None:
    """How gradients are exchanged, where a channel is named."""
    channel = given.get("plan.channel")
    if channel is None:
        for key in _OF_CHANNEL:
            if key in given:
                raise ConfigError(key, given[key], "needs to know what messages cost", "name a plan.channel")
        return None
    algorithm = given.get("plan.algorithm", "ring")
    if algorithm not in ALGORITHMS:
        hint = did_you_mean(algorithm, ALGORITHMS)
        raise ConfigError("plan.algorithm", algorithm, "no such algorithm", f"{hint}one of {', '.join(ALGORITHMS)}")
    if "plan.servers" in given and algorithm != "parameter_server":
        reason = f"plan.algorithm={algorithm} has no servers"
        raise ConfigError("plan.servers", given["plan.servers"], reason, "set plan.algorithm=parameter_server")
    servers, bucket = (_count(given, key, least) for key, least in (("plan.servers", 1), ("plan.bucket", 0)))
    text = channel.strip("'\"")
    return Exchange(text, algorithm, servers or 1, math.inf if bucket is None else bucket)


def _count(given: Mapping[str, str], key: str, least: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not (is_count(value, _MOST) or value == str(least)):
        raise ConfigError(key, value, f"expects a whole number, {least} or more", "give one, or leave it out")
    return int(value)


def _hosts(value: str) -> tuple[int, ...]:
    words = [word.strip() for word in value.strip("[]").split(",")]
    if not all(is_count(word, MOST_HOSTS) for word in words):
        problem = f"expects numbers of hosts, 1 to {MOST_HOSTS:,}"
        raise ConfigError("plan.hosts", value, problem, "write for example plan.hosts=1,2,4")
    return tuple(dict.fromkeys(int(word) for word in words))


def _file(value: str) -> Path:
    try:
        path = Path(value).expanduser()
        possible = bool(value) and not path.is_dir() and path.absolute().parent.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, the home of a user who is not there
        possible = False
    if not possible:
        raise ConfigError("plan.out", value, "is not a file in an existing folder", "give the path of a CSV file")
    return path


def _plan(config: DictConfig, options: Options) -> int:
    """Forecast what measuring the configuration's points would take, and print it."""
    from paradnn.config.point import read_point, read_settings
    from paradnn.forecast.communication.over_hosts import describe_steps, over_hosts
    from paradnn.forecast.forecast import describe, forecast, write_points
    from paradnn.forecast.history import open_history
    from paradnn.forecast.status import sweep_status
    from paradnn.launch.submit import BASIC, chunk_of, launcher_of
    from paradnn.session.session import require_possible
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
    for work in dict.fromkeys(point.workload for point in points):
        work.refuse_forecast()
    if not settings.sweep.plan or launcher_of(config) == BASIC:  # a launcher's tasks may run where it is
        require_possible(points)
    history = open_history(settings.tracking)
    expected = forecast(sweep_status(points, settings, history), settings, history)
    steps = over_hosts(expected.status, history, options.hosts, options.exchange) if options.exchange else None
    describe(expected, name, history.where, options.hosts, chunk)
    if steps:
        describe_steps(steps, expected.status)
    if options.out:
        write_points(expected, options.out, steps.columns() if steps else None)
        print(f"Every point is in {options.out}")
    return 0


@program
def main() -> int:
    """`python -m paradnn.plan -m experiment=paper_fc`: the process' exit code."""
    from paradnn.cli.overrides import split_overrides

    options, rest = split_options(split_overrides(sys.argv[1:]))
    sys.argv[1:] = [*rest, _SWEEPER]
    return run_command(lambda config: _plan(config, options), __doc__)


if __name__ == "__main__":
    sys.exit(main())
