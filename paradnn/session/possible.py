"""What a typing mistake makes of a session, found before anything is measured: files, cores, devices, hosts not here.

Where some points can be measured the others are `unavailable`, which is a result; where none can, nothing is recorded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from paradnn.config.point import Platform, Point
from paradnn.errors import ConfigError
from paradnn.execution.hosts import require_hosts
from paradnn.platform.environment import missing_device
from paradnn.worker.affinity import core_list, core_text

__all__ = ["require_possible"]


def require_possible(points: Sequence[Point]) -> None:
    """Raise ConfigError for input that is not there, and where no point has the device, cores or hosts it names."""
    for data in dict.fromkeys(point.data for point in points):
        path = getattr(data, "path", None)
        if path is not None and not Path(path).exists():
            remedy = "give a file or a folder" + (", or leave it out for a generated set" if data.is_made else "")
            raise ConfigError("data.path", path, "there is no such file or folder", remedy)
    problems = [_problem(platform) for platform in dict.fromkeys(point.platform for point in points)]
    if problems and all(problems):
        raise next(filter(None, problems))
    require_hosts([point.hosts for point in points], os.environ)


def _problem(platform: Platform) -> ConfigError | None:
    """Why the platform of a point cannot be here."""
    if problem := missing_device(platform.name):
        return ConfigError("platform", platform.name, problem, "choose another, such as platform=cpu")
    if platform.cores is not None and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        if missing := sorted(set(core_list(str(platform.cores))) - allowed):
            problem = f"core {missing[0]} is none that this process may use"
            return ConfigError("platform.cores", platform.cores, problem, f"choose of {core_text(allowed)}")
    return None
