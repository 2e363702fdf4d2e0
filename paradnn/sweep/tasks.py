"""A sweep: its plan, cut into the tasks that a launcher is given, and a task read back where it runs.

A task carries its points with it, packed into one override, since a remote host may see no file of ours. The points
of a sweep that is measured in this very process stay in it, and the override says under which name.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import secrets
import shlex
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradnn.config.point import LARGEST, SETTINGS_KEYS, Point, Settings, read_point, read_settings, read_smallest
from paradnn.core.words import counted
from paradnn.errors import ConfigError
from paradnn.sweep.space import Plan, expand, plain

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

#: How a plan begins that stands in the override itself, and one that this process holds.
_PACKED, _HELD = "packed:", "held:"
#: By the name of each sweep that this process will measure: its points and what is said of it.
_held: dict[str, tuple[Sequence[Point], SweepInfo]] = {}


@dataclass(frozen=True)
class Launched:
    """What a task gets from the process that submitted it.

    launcher: the name of Hydra's launcher. parent: run id of the sweep's parent. task: number of the task, from 0.
    submitted: Unix seconds. processes: how many tasks of the sweep one host measures at the same time. excluded: of
    each of its points why it is out of memory without being tried; empty where all are to be measured.
    """

    launcher: str
    parent: str
    task: int
    submitted: float
    processes: int = 1
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepInfo:
    """What the parent run says of a sweep.

    launched: where another process opens and closes the parent. largest: each point's largest batch is searched.
    """

    sweep_id: str
    name: str
    command: str
    launched: Launched | None = None
    largest: bool = False


@dataclass(frozen=True)
class Sweep:
    """A planned sweep: every point composed and checked. `overrides` are those that concern the driver alone."""

    info: SweepInfo
    plan: Plan
    points: tuple[Point, ...]
    settings: Settings
    overrides: tuple[str, ...]


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
    return Sweep(info, plan, points, settings, tuple(_of_settings(arguments)))


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


def default_chunk(points: int) -> int:
    """Points of a task where `sweep.chunk` is null: about 32 tasks, of 5 (worth one framework's import) to 50 each."""
    return min(50, max(5, math.ceil(points / 32)))


def hold(sweep: Sweep) -> str:
    """The override that brings a sweep to a task of this process, once."""
    _held[sweep.info.sweep_id] = sweep.points, sweep.info
    return f"sweep.plan='{_HELD}{sweep.info.sweep_id}'"


def pack(info: SweepInfo, plan: Plan) -> str:
    """The override that brings `plan` to a task wherever it runs."""
    content = json.dumps({"sweep": asdict(info), "bases": plan.bases, "points": plan.points})
    return f"sweep.plan='{_PACKED}{base64.urlsafe_b64encode(zlib.compress(content.encode(), 9)).decode()}'"


def read_plan(settings: Settings) -> tuple[Sequence[Point], SweepInfo]:
    """The points of this task and the sweep they belong to."""
    text = settings.sweep.plan
    assert text is not None
    if text.startswith(_HELD):
        return _held.pop(text.removeprefix(_HELD))
    content = json.loads(zlib.decompress(base64.urlsafe_b64decode(text.removeprefix(_PACKED))))
    sweep = content["sweep"]
    launched = sweep.pop("launched")
    if launched:
        launched = Launched(**{**launched, "excluded": tuple(launched["excluded"])})
    plan = Plan(content["bases"], [(base, values) for base, values in content["points"]])
    points = [_read(config, sweep["largest"]) for config in plan.configs()]
    return points, SweepInfo(**sweep, launched=launched)


def _of_settings(arguments: Sequence[str]) -> list[str]:
    """The overrides that concern the driver and not the points."""
    heads = (*SETTINGS_KEYS, "experiment", "hydra")
    # A group by itself is no setting, and the plan is this package's own.
    others = ("sweep=", "sweep.plan")
    chosen = (entry for entry in arguments if re.split(r"[.=/]", entry.lstrip("+"))[0] in heads)
    return [entry for entry in chosen if not entry.startswith(others)]


def _sweep_id() -> str:
    """Sortable by time, and unique over hosts."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"


def _command() -> str:
    """The command line as it was typed: `python -m paradnn.train ...`, or the program `paradnn train ...`."""
    words = sys.orig_argv[1:]
    named = words[:1] == [sys.argv[0]] and Path(sys.argv[0]).name == "paradnn"
    return shlex.join(["paradnn", *words[1:]] if named else ["python", *words])
