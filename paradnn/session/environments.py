"""Where the points of a session are measured: the environment of each worker. Software stacks are made before the first
point is measured, so that no installer runs beside a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from paradnn.config.point import Point
from paradnn.core.errors import ParadnnError
from paradnn.platform.environment import Environment, describe_environment, missing_device, software_versions
from paradnn.platform.stack import Stack, find_stack, open_stack
from paradnn.session.workers import WorkerKey


def current_environments(points: Iterable[Point]) -> dict[WorkerKey, Environment | None]:
    """What points would be measured on, by worker, as it is now: nothing is made, None stands for an unmade stack.
    Raises ParadnnError for an interpreter of the user's own that cannot be used."""
    environments: dict[WorkerKey, Environment | None] = {}
    for point in points:
        if (key := WorkerKey.of(point)) not in environments:
            environments[key] = None
            stack = Stack.of(point.software)
            packages = find_stack(stack) if stack else ()
            # A stack without the framework makes its points unavailable, which the session finds out.
            with contextlib.suppress(*((ParadnnError,) if stack else ())):
                if packages is not None:
                    versions = software_versions(key.python, key.framework)
                    environments[key] = describe_environment(key.platform, versions, packages)
    return environments


class WorkerEnvironments:
    """The environments of `points`; stacks that are in use stay until it is closed. Raises ParadnnError for an
    interpreter of the user's own that cannot be used."""

    def __init__(self, points: Iterable[Point], say: Callable[[str], None]) -> None:
        self._say = say
        self._open = contextlib.ExitStack()
        self._stacks: dict[str, tuple[str, ...] | str] = {}  # by key: its packages, or why it cannot be made
        self._environments: dict[WorkerKey, Environment] = {}
        self._problems: dict[WorkerKey, str] = {}
        try:
            for point in points:
                key = WorkerKey.of(point)
                if key not in self._environments:
                    self._environments[key] = self._environment(point, key)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WorkerEnvironments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self, point: Point) -> Environment:
        """What `point` is measured on."""
        return self._environments[WorkerKey.of(point)]

    def problem(self, point: Point) -> str | None:
        """Why `point` is unavailable, in one line; None where it can be measured."""
        return self._problems.get(WorkerKey.of(point))

    @property
    def environment_ids(self) -> set[str]:
        """Of all environments."""
        return {environment.environment_id for environment in self._environments.values()}

    def close(self) -> None:
        """Let the stacks go."""
        self._open.close()

    def _environment(self, point: Point, key: WorkerKey) -> Environment:
        if problem := missing_device(key.platform):
            self._problems[key] = f"platform={key.platform}: {problem}"
        wanted = Stack.of(point.software)
        if wanted is None:
            return describe_environment(key.platform, software_versions(key.python, key.framework))
        if wanted.key not in self._stacks:
            try:
                self._stacks[wanted.key] = self._open.enter_context(open_stack(wanted, self._say))
            except ParadnnError as error:
                self._stacks[wanted.key] = problem = f"the software stack {wanted.name} cannot be made: {error}"
                self._say(problem)
        packages = self._stacks[wanted.key]
        # Not the environment of a stack that could be made: the points are measured once it can.
        versions: Mapping[str, str] = {"stack": wanted.key}
        if isinstance(packages, str):
            self._problems[key] = packages
            return describe_environment(key.platform, versions)
        try:
            versions = software_versions(key.python, key.framework)
        except ParadnnError as error:  # a stack without the framework
            self._problems[key] = str(error)
        return describe_environment(key.platform, versions, packages)
