"""Planning and reading of the points of a command.

All points of a sweep are checked before the first point is measured.
"""

import copy
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig

from paradnn.config.point import Point
from paradnn.config.reading import canonical_point, parse_point, read_point
from paradnn.config.scheduler import SWEEP_VARIABLE, shared_sweep
from paradnn.config.settings import LARGEST, Largest, Settings, read_settings
from paradnn.config.space import Plan, expand, plain
from paradnn.core.errors import ConfigError
from paradnn.core.schema import read
from paradnn.core.words import counted

#: Type of a function that runs a task in several jobs, which may be on other hosts, and returns the
#: results after all jobs have ended. Its arguments are the task, which must be picklable, the folder
#: for files of the launcher, and the number of jobs.
Launch = Callable[[Callable[[DictConfig], Any], Path, int], Sequence[Any]]


@dataclass(frozen=True)
class InvalidPoint:
    """A combination of settings in a sweep that cannot be measured.

    Attributes:
        config: The configuration, as nested mappings of plain values.
        error: Why it is invalid.
    """

    config: Mapping[str, Any]
    error: ConfigError


@dataclass(frozen=True)
class SweepInfo:
    """Description of a sweep for its parent run, the MLflow run that groups the runs of its points.

    Attributes:
        sweep_id: Id of the sweep, unique over all hosts and sortable by time.
        name: The name of the parent run.
        command: The command line.
        is_search: Whether the sweep searches for the largest batch size or model that fits.
        invalid_points: Points that the command has dropped because they are invalid.
        driver: Number of this driver among the drivers that share the sweep; None if the sweep is
            not shared.
        launch: Function that starts the drivers that share the sweep; None if this process
            measures.
        launcher: Name of the launcher that `launch` uses.
    """

    sweep_id: str
    name: str
    command: str
    is_search: bool = False
    invalid_points: tuple[InvalidPoint, ...] = ()
    driver: int | None = None
    launch: Launch | None = None
    launcher: str = ""


#: Sweep id -> points and description. `plan_sweep` adds entries, and `read_task` removes them.
_planned_sweeps: dict[str, tuple[Sequence[Point], SweepInfo]] = {}


def plan_sweep(
    loader: ConfigLoader,
    master: DictConfig,
    arguments: Sequence[str],
    params: Mapping[str, Any],
    *,
    allows_search: bool = False,
    drops_invalid: bool = False,
    launch: Launch | None = None,
) -> DictConfig:
    """Plan the points of a multirun (-m), and return a configuration that refers to the plan.

    Given this configuration, `read_task` returns the planned points once; the plan is then deleted.

    Args:
        loader: Loader of configuration files.
        master: The configuration without the axes of the sweep, the keys that it varies.
        arguments: Overrides of the command line, such as "batch_size=64,128".
        params: Key -> value of `hydra.sweeper.params`, which are further overrides.
        allows_search: Whether the command accepts batch_size=largest.
        drops_invalid: Whether to drop invalid points, as long as at least one point is valid.
        launch: Function that starts drivers in jobs; None if this process measures.

    Raises:
        ConfigError: If a setting or a point of the sweep is invalid. With `drops_invalid`, invalid
            points raise it only if all points are invalid.
    """
    plan = expand(loader, master, arguments, params)
    if not plan.points:
        reason = "there is nothing to measure"
        raise ConfigError("sweep", "no points", reason, "name at least one value for each key")
    settings = read_settings(plain(master))
    is_search = allows_search and _is_search(plan, settings.largest)
    invalid: list[InvalidPoint] = []
    if is_search:
        points = tuple(_smallest_point(config, settings.largest) for config in plan.configs())
    else:
        points = tuple(_points(plan, invalid if drops_invalid else None))
    if not points:
        raise invalid[0].error
    read_settings(next(plan.configs()))
    if is_search and settings.sweep.design != "grid":
        reason = "is a search, which an adaptive sweep cannot contain"
        raise ConfigError("batch_size", LARGEST, reason, "omit sweep.design")
    families = dict.fromkeys(point.model.name for point in points)
    name = settings.sweep.name or "+".join(families)
    searched = f"largest {settings.largest.of} of " if is_search else ""
    info = _sweep_info(f"{name}, {searched}{counted(len(points), 'point')}", is_search=is_search)
    info = replace(info, invalid_points=tuple(invalid))
    shared = shared_sweep()
    if shared is not None:
        info = replace(info, sweep_id=shared.sweep_id, driver=shared.driver)
    elif launch is not None:
        launcher = str(master.hydra.runtime.choices["hydra/launcher"])
        info = replace(info, launch=launch, launcher=launcher)
    elif settings.sweep.drivers > 1 and allows_search:
        reason = f"no launcher starts the drivers, and {SWEEP_VARIABLE} is not set"
        remedy = "add hydra/launcher=submitit_slurm, ray, joblib or submitit_local"
        raise ConfigError("sweep.drivers", settings.sweep.drivers, reason, remedy)
    _planned_sweeps[info.sweep_id] = (points, info)
    config = copy.deepcopy(master)
    config.sweep.plan = info.sweep_id
    return config


def read_task(
    config: DictConfig, *, allows_search: bool = False
) -> tuple[Settings, Sequence[Point], SweepInfo | None]:
    """Return the settings and points (configurations to measure) that a configuration describes.

    Args:
        config: The configuration that Hydra composed, or that `plan_sweep` returned.
        allows_search: Whether the command accepts batch_size=largest.

    Returns:
        The settings, the points, and the description of the sweep. The description is None for a
        single point, unless a search begins at this point.

    Raises:
        ConfigError: If a setting or a point is invalid.
    """
    content = plain(config)
    settings = read_settings(content)
    if settings.sweep.plan:
        points, info = _planned_sweeps.pop(settings.sweep.plan)
        return settings, points, info
    if settings.sweep.grids:
        raise ConfigError("experiment", settings.sweep.name, "describes a sweep", "add -m")
    if settings.sweep.design == "adaptive":
        remedy = "add -m and a key with several values, such as batch_size=64,128"
        raise ConfigError("sweep.design", "adaptive", "describes a sweep", remedy)
    searches_model = settings.largest.of != "batch_size"
    if allows_search and (content.get("batch_size") == LARGEST or searches_model):
        point = _smallest_point(content, settings.largest)
        name = f"{point.model.name}, largest {settings.largest.of}"
        return settings, [point], _sweep_info(name, is_search=True)
    return settings, [read_point(content)], None


def _is_search(plan: Plan, largest: Largest) -> bool:
    """Return whether a plan searches for the largest batch size or model."""
    if largest.of != "batch_size":
        return True
    return any(
        values.get("batch_size", plan.bases[base].get("batch_size")) == LARGEST
        for base, values in plan.points
    )


def _points(plan: Plan, invalid: list[InvalidPoint] | None = None) -> Iterator[Point]:
    """Yield every valid point (configuration) of a plan, in canonical form.

    If points differ only in their batch sizes, the parts that they share are parsed once.

    Args:
        plan: The plan.
        invalid: List to which invalid points are appended. If it is None, the first invalid point
            raises ConfigError.
    """
    parsed_parts: dict[Any, dict[str, Any]] = {}
    for base, values in plan.points:
        other_values = [(key, id(value)) for key, value in values.items() if key != "batch_size"]
        kind = (base, *other_values)
        batch_size = values.get("batch_size")
        try:
            if isinstance(batch_size, int) and kind in parsed_parts:
                point = read(Point, {"batch_size": batch_size}, "", given=parsed_parts[kind])
            else:
                point = parse_point(plan.config(base, values))
                if batch_size is not None:
                    parts = dict(vars(point))
                    del parts["batch_size"]
                    parsed_parts[kind] = parts
            point = canonical_point(point)
        except ConfigError as error:
            if invalid is None:
                raise
            invalid.append(InvalidPoint(plan.config(base, values), error))
        else:
            yield point


def _smallest_point(config: Mapping[str, Any], largest: Largest) -> Point:
    """Return the point at which the search for the largest batch size or model begins.

    Args:
        config: The composed configuration, as nested mappings of plain values.
        largest: Settings of the search.

    Raises:
        ConfigError: If the point is invalid, or the search does not support its settings.
    """
    if largest.latency_ms is not None and config.get("mode") != "inference":
        reason = "limits the time of single steps, which is recorded only in inference"
        remedy = "set mode=inference, or use largest.step_ms instead"
        raise ConfigError("largest.latency_ms", largest.latency_ms, reason, remedy)
    if largest.of != "batch_size":
        point = read_point(config)  # rejects batch_size=largest
        sizes = [f"model.{key}" for key, value in vars(point.model).items() if type(value) is int]
        if largest.of not in sizes:
            reason = f"is not a size of model={point.model.name}"
            raise ConfigError("largest.of", largest.of, reason, f"choose one of {', '.join(sizes)}")
        return point
    batch_size = config.get("batch_size")
    if batch_size != LARGEST:
        value = f"{LARGEST},{batch_size}"
        raise ConfigError(
            "batch_size",
            value,
            "combines a search with fixed sizes",
            "give either largest or numbers",
        )
    devices = config.get("devices", 1) * config.get("hosts", 1)
    return read_point({**config, "batch_size": devices})


def _sweep_info(name: str, *, is_search: bool) -> SweepInfo:
    now = time.strftime("%Y%m%d-%H%M%S")
    sweep_id = f"{now}-{os.getpid()}-{secrets.token_hex(3)}"
    return SweepInfo(sweep_id, name, _command_line(), is_search)


def _command_line() -> str:
    """Return the command line of this process as the user would type it.

    It begins with `python -m paradnn.train` or `paradnn train`.
    """
    words = sys.orig_argv[1:]
    is_program = words[:1] == [sys.argv[0]] and Path(sys.argv[0]).name == "paradnn"
    if is_program:
        return shlex.join(["paradnn", *words[1:]])
    return shlex.join(["python", *words])
