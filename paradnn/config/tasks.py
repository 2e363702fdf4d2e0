"""A sweep: every point composed and checked before the first is measured."""

import copy
import os
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig

from paradnn.config.point import Point
from paradnn.config.reading import canonical_point, parse_point, read_point
from paradnn.config.settings import LARGEST, Largest, Settings, read_settings
from paradnn.config.space import Plan, expand, plain
from paradnn.core.errors import ConfigError
from paradnn.core.schema import read
from paradnn.core.words import counted


@dataclass(frozen=True)
class SweepInfo:
    """What the parent run says of a sweep. largest: each point's largest batch, or model, is
    searched.
    """

    sweep_id: str
    name: str
    command: str
    largest: bool = False


#: By the id of each sweep that this process will measure: its points and what is said of it.
_held: dict[str, tuple[Sequence[Point], SweepInfo]] = {}


def plan_sweep(
    loader: ConfigLoader,
    master: DictConfig,
    arguments: Sequence[str],
    params: Mapping[str, Any],
    searches: bool = False,
) -> DictConfig:
    """Plan a multirun: the configuration with which `read_task` gives its points, once; raises
    ConfigError for any of them before one is measured. searches: whether batch_size=largest can be
    meant.
    """
    plan = expand(loader, master, arguments, params)
    if not plan.points:
        raise ConfigError(
            "sweep",
            "no points",
            "there is nothing to measure",
            "name at least one value for each key",
        )
    sizes = (
        values.get("batch_size", plan.bases[base].get("batch_size")) for base, values in plan.points
    )
    settings = read_settings(plain(master))
    largest = searches and (LARGEST in sizes or settings.largest.of != "batch_size")
    points = tuple(
        (_smallest(one, settings.largest) for one in plan.configs()) if largest else _points(plan)
    )
    read_settings(next(plan.configs()))
    if largest and settings.sweep.design != "grid":
        raise ConfigError(
            "batch_size", LARGEST, "is no axis of an adaptive sweep", "leave sweep.design out"
        )
    name = settings.sweep.name or "+".join(dict.fromkeys(point.model.name for point in points))
    searched = f"largest {settings.largest.of} of " if largest else ""
    info = _info(f"{name}, {searched}{counted(len(points), 'point')}", largest)
    _held[info.sweep_id] = points, info
    config = copy.deepcopy(master)
    config.sweep.plan = info.sweep_id
    return config


def _points(plan: Plan) -> Iterator[Point]:
    """Every point of a plan; of those that differ in their batches alone, everything else is read
    once.
    """
    read_before: dict[Any, dict[str, Any]] = {}
    for base, values in plan.points:
        kind = (base, *((key, id(value)) for key, value in values.items() if key != "batch_size"))
        if isinstance(size := values.get("batch_size"), int) and kind in read_before:
            point = read(Point, {"batch_size": size}, "", given=read_before[kind])
        else:
            point = parse_point(plan.config(base, values))
            if size is not None:
                read_before[kind] = {
                    key: value for key, value in vars(point).items() if key != "batch_size"
                }
        yield canonical_point(point)


def read_task(
    config: DictConfig, searches: bool = False
) -> tuple[Settings, Sequence[Point], SweepInfo | None]:
    """Settings, points, and the sweep of a composed configuration: None for a single point. Raises
    ConfigError.
    """
    content = plain(config)
    settings = read_settings(content)
    if settings.sweep.plan:
        return settings, *_held.pop(settings.sweep.plan)
    if settings.sweep.grids:
        raise ConfigError("experiment", settings.sweep.name, "describes a sweep", "add -m")
    if settings.sweep.design == "adaptive":
        raise ConfigError("sweep.design", "adaptive", "describes a sweep", "add -m and axes")
    if searches and (content.get("batch_size") == LARGEST or settings.largest.of != "batch_size"):
        point = _smallest(content, settings.largest)
        return (
            settings,
            [point],
            _info(f"{point.model.name}, largest {settings.largest.of}", largest=True),
        )
    return settings, [read_point(content)], None


def _smallest(config: Mapping[str, Any], asked: Largest) -> Point:
    """The point whose largest batch, or model, is searched, with the smallest that it can have."""
    size = config.get("batch_size")
    of = asked.of
    if asked.latency_ms is not None and config.get("mode") != "inference":
        reason = "single steps are timed where nothing is trained"
        raise ConfigError(
            "largest.latency_ms", asked.latency_ms, reason, "set mode=inference, or largest.step_ms"
        )
    if of != "batch_size":
        point = read_point(config)  # which refuses batch_size=largest
        key = of.removeprefix("model.")
        if not of.startswith("model.") or type(getattr(point.model, key, None)) is not int:
            known = ", ".join(
                f"model.{name}" for name, value in vars(point.model).items() if type(value) is int
            )
            raise ConfigError(
                "largest.of",
                of,
                f"is no size of model={point.model.name}",
                f"choose one of {known}",
            )
        return point
    if size != LARGEST:
        raise ConfigError(
            "batch_size", f"{LARGEST},{size}", "is a search and a number", "give one of them"
        )
    return read_point({**config, "batch_size": config.get("devices", 1)})


def _info(name: str, largest: bool) -> SweepInfo:
    """An id that is sortable by time, and unique over hosts."""
    sweep_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
    return SweepInfo(sweep_id, name, _command(), largest)


def _command() -> str:
    """The command line as it was typed: `python -m paradnn.train ...`, or the program `paradnn
    train ...`.
    """
    words = sys.orig_argv[1:]
    named = words[:1] == [sys.argv[0]] and Path(sys.argv[0]).name == "paradnn"
    return shlex.join(["paradnn", *words[1:]] if named else ["python", *words])
