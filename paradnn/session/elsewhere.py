"""Prepare a folder to measure points on another machine, which has only an inference engine.

A point is one configuration to measure. This machine builds and converts the models
(docs/how-to/engines.md). On the other machine, run.py in the folder
(`paradnn.session.run_elsewhere`) measures the points and keeps the results as files for
`python -m paradnn.sync`.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paradnn.config.identity import point_id, point_request
from paradnn.config.paths import PACKAGE
from paradnn.config.point import Point
from paradnn.core.errors import ConfigError
from paradnn.core.versions import FRAMEWORKS
from paradnn.platform.environment import memory_limit
from paradnn.session.environments import WorkerEnvironments
from paradnn.session.record import run_name
from paradnn.session.workers import Limits, WorkerKey, WorkerPool

#: Shortest possible measurement. Each artifact is run on this machine once, to test it.
_SHORTEST = {
    "min_seconds": 0.0,
    "min_blocks": 1,
    "max_seconds": 0.01,
    "block_seconds": 0.001,
    "warmup_seconds": 0.0,
}


def prepare(points: Sequence[Point], name: str, say: Callable[[str], None]) -> int:
    """Create a folder with this package and converted models, to measure points elsewhere.

    Args:
        points: Configurations to measure on the other machine.
        name: Path of the folder, which may contain an earlier result of this function.
        say: Prints a message to the user.

    Returns:
        The exit code: 1 if no point could be converted, otherwise 0.

    Raises:
        ConfigError: If a point is not a forward pass (mode=inference) of an inference engine, or
            if the folder holds other files.
    """
    for point in points:
        mode = (point.workload.name, point.workload.mode)
        framework = point.framework.name
        if not FRAMEWORKS[framework].is_engine or mode != ("step", "inference"):
            reason = (
                "supports only forward passes of inference engines, "
                f"not a {point.workload.unit} of framework={framework}"
            )
            engines = [key for key, entry in FRAMEWORKS.items() if entry.is_engine]
            remedy = f"set mode=inference, and framework to one of {', '.join(engines)}"
            raise ConfigError("elsewhere", name, reason, remedy)
    folder = Path(name).expanduser().absolute()
    if folder.exists() and not (folder / "run.py").exists() and any(folder.iterdir()):
        raise ConfigError("elsewhere", name, "is a folder with other files", "name a new folder")
    shutil.copytree(
        PACKAGE,
        folder / PACKAGE.name,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(PACKAGE / "session" / "run_elsewhere.py", folder / "run.py")
    converted = 0
    with WorkerEnvironments(points, say) as environments, WorkerPool() as pool:
        for point in points:
            request = point_request(
                replace(point, measure=replace(point.measure, profile=False, keep_trace=False))
            )
            request_file = folder / f"asked-{point_id(point)}.json"
            test_request = {
                **request,
                "measure": request["measure"] | _SHORTEST,
                "keep": str(request_file.with_suffix(".npz")),
            }
            problem = environments.problem(point)
            limits = Limits(point.measure.timeout, memory_limit(point))
            if not problem:
                result = pool.measure(WorkerKey.of(point), test_request, limits, lambda _: None)
                if result.outcome == "ok":
                    problem = None
                else:
                    problem = result.reason or result.outcome
            say(f"{run_name(point)}: {problem or 'converted'}")
            if not problem:
                request_file.write_text(json.dumps(request))
                converted += 1
    say(
        f"{converted} of {len(points)} points converted; on the other machine, run python run.py "
        f"in {name}; then, on this machine, python -m paradnn.sync {name}"
    )
    return 0 if converted else 1
