"""A sweep: its plan on disk while it runs, and the tasks that its launcher is given."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradnn.config import SETTINGS_KEYS, Point, Settings, read_point, read_settings
from paradnn.errors import ConfigError
from paradnn.space import Plan, expand

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

__all__ = ["SweepInfo", "planned", "read_plan"]


@dataclass(frozen=True)
class SweepInfo:
    """What the parent run says of a sweep."""

    sweep_id: str
    name: str
    command: str


@contextlib.contextmanager
def planned(
    loader: ConfigLoader, master: DictConfig, arguments: Sequence[str], params: Mapping[str, Any]
) -> Iterator[list[list[str]]]:
    """The overrides of each task, its plan written to a file that is gone afterwards.

    Every point is composed and checked here: raises ConfigError before anything is measured.
    """
    plan = expand(loader, master, arguments, params)
    if not plan.points:
        raise ConfigError("sweep", "no points", "there is nothing to measure", "name at least one value for each key")
    for config in plan.configs():
        read_point(config)
    read_settings(next(plan.configs()))
    with tempfile.TemporaryDirectory(prefix="paradnn-sweep-") as folder:
        path = Path(folder) / f"{_sweep_id()}.json"
        plan.save(path)
        yield [[*_of_settings(arguments), f"sweep.plan='{path}'"]]


def read_plan(settings: Settings) -> tuple[list[Point], SweepInfo]:
    """The points of this task and the sweep they belong to."""
    assert settings.sweep.plan is not None
    path = Path(settings.sweep.plan)
    points = [read_point(config) for config in Plan.load(path).configs()]
    families = list(dict.fromkeys(point.model.name for point in points))
    name = settings.sweep.name or "+".join(families)
    info = SweepInfo(
        sweep_id=path.stem,
        name=f"{name}, {len(points)} points",
        command=" ".join(["python", *map(_quoted, sys.orig_argv[1:])]),
    )
    return points, info


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


def _quoted(argument: str) -> str:
    return f"'{argument}'" if any(letter in argument for letter in " ()[]{}*?$&;|<>") else argument
