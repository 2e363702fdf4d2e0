"""A sweep: every point composed and checked before the first is measured."""

from __future__ import annotations

import copy
import os
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradnn.config.point import LARGEST, Point, Settings, read_point, read_settings, read_smallest
from paradnn.config.space import expand, plain
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

#: By the id of each sweep that this process will measure: its points and what is said of it.
_held: dict[str, tuple[Sequence[Point], SweepInfo]] = {}


@dataclass(frozen=True)
class SweepInfo:
    """What the parent run says of a sweep. largest: each point's largest batch is searched."""

    sweep_id: str
    name: str
    command: str
    largest: bool = False


@dataclass(frozen=True)
class Sweep:
    """A planned sweep."""

    info: SweepInfo
    points: tuple[Point, ...]
    settings: Settings


def make_sweep(
    loader: ConfigLoader,
    master: DictConfig,
    arguments: Sequence[str],
    params: Mapping[str, Any],
    searches: bool = False,
) -> Sweep:
    """Plan a multirun; raises ConfigError for any of its points before one is measured.

    `searches`: whether batch_size=largest can be meant.
    """
    plan = expand(loader, master, arguments, params)
    if not plan.points:
        raise ConfigError("sweep", "no points", "there is nothing to measure", "name at least one value for each key")
    sizes = (values.get("batch_size", plan.bases[base].get("batch_size")) for base, values in plan.points)
    largest = searches and LARGEST in sizes
    points = tuple(_read(config, largest) for config in plan.configs())
    read_settings(next(plan.configs()))
    settings = read_settings(plain(master))
    if largest and settings.sweep.design != "grid":
        raise ConfigError("batch_size", LARGEST, "is no axis of an adaptive sweep", "leave sweep.design out")
    name = settings.sweep.name or "+".join(dict.fromkeys(point.model.name for point in points))
    what = f"{name}, {'largest batch of ' if largest else ''}{counted(len(points), 'point')}"
    info = SweepInfo(_sweep_id(), what, _command(), largest=largest)
    return Sweep(info, points, settings)


def search_info(point: Point) -> SweepInfo:
    """The parent of a search for the largest batch of a single point."""
    return SweepInfo(_sweep_id(), f"{point.model.name}, largest batch", _command(), largest=True)


def _read(config: Mapping[str, Any], largest: bool) -> Point:
    """A point of a plan; where the largest batch is searched, with the smallest."""
    if not largest:
        return read_point(config)
    if (size := config.get("batch_size")) != LARGEST:
        raise ConfigError("batch_size", f"{LARGEST},{size}", "is a search and a number", "give one of them")
    return read_smallest(config)


def hold(sweep: Sweep, master: DictConfig) -> DictConfig:
    """The configuration with which a task of this process measures a sweep, once."""
    _held[sweep.info.sweep_id] = sweep.points, sweep.info
    config = copy.deepcopy(master)
    config.sweep.plan = sweep.info.sweep_id
    return config


def read_plan(settings: Settings) -> tuple[Sequence[Point], SweepInfo]:
    """The points of this task and the sweep they belong to."""
    assert settings.sweep.plan is not None
    return _held.pop(settings.sweep.plan)


def _sweep_id() -> str:
    """Sortable by time, and unique over hosts."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"


def _command() -> str:
    """The command line as it was typed: `python -m paradnn.train ...`, or the program `paradnn train ...`."""
    words = sys.orig_argv[1:]
    named = words[:1] == [sys.argv[0]] and Path(sys.argv[0]).name == "paradnn"
    return shlex.join(["paradnn", *words[1:]] if named else ["python", *words])
