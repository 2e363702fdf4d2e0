"""Environments of a session's workers, other hosts, and checks that points can be measured.

An environment is the hardware and the software versions under which a point (one configuration) is
measured. On every other host, a server (`paradnn.worker.host`) starts the processes of points.
Software stacks are installed before the first point is measured, so that no installer disturbs a
measurement.
"""

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paradnn.config.point import Platform, Point
from paradnn.core.errors import ConfigError, ParadnnError, WorkerError
from paradnn.core.words import core_list, core_text, counted
from paradnn.platform.environment import (
    HOSTS,
    Environment,
    describe_environment,
    missing_device,
    separate_hosts,
    software_versions,
)
from paradnn.platform.stack import Stack, find_stack, open_stack
from paradnn.session.workers import WorkerKey
from paradnn.worker.process_group import KEY, host_and_port


def current_environments(points: Iterable[Point]) -> dict[WorkerKey, Environment | None]:
    """Return the hardware and software versions under which points would be measured now.

    Args:
        points: The configurations to measure. Those with equal worker keys share an environment. A
            key consists of interpreter, framework and other settings of a worker process.

    Returns:
        Worker key -> environment; None if the software stack is not installed or lacks the
        framework.

    Raises:
        ParadnnError: If an interpreter that the user specified cannot be used.
    """
    environments: dict[WorkerKey, Environment | None] = {}
    for point in points:
        key = WorkerKey.of(point)
        if key not in environments:
            environments[key] = _find_environment(key, Stack.of(point.software))
    return environments


def _find_environment(key: WorkerKey, stack: Stack | None) -> Environment | None:
    """Return the environment of a worker; None if its stack is missing or lacks the framework."""
    packages: tuple[str, ...] | None = ()
    if stack:
        packages = find_stack(stack)
    if packages is None:
        return None
    try:
        versions = software_versions(key.python, key.framework)
        return describe_environment(
            key.platform, versions, packages, emulates_hosts=key.emulates_hosts
        )
    except ParadnnError:
        if stack is None:
            raise
        return None


class WorkerEnvironments(contextlib.ExitStack):
    """Hardware and software versions under which a session measures its points.

    The constructor installs missing software stacks: interpreters with a framework of a given
    version. The stacks are locked against removal until this context is closed.

    Args:
        points: The configurations to measure.
        say: Prints a message to the user.

    Raises:
        ParadnnError: If an interpreter that the user specified cannot be used.
    """

    def __init__(self, points: Iterable[Point], say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        # Key of a stack -> its packages, or the reason why it cannot be installed.
        self._stacks: dict[str, tuple[str, ...] | str] = {}
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

    def environment(self, point: Point) -> Environment:
        """Return the hardware and software versions under which `point` is measured."""
        return self._environments[WorkerKey.of(point)]

    def problem(self, point: Point) -> str | None:
        """Return why `point` cannot be measured here, in one line; None if it can."""
        return self._problems.get(WorkerKey.of(point))

    @property
    def environment_ids(self) -> set[str]:
        """Identifiers (hashes) of all environments of the session."""
        return {environment.environment_id for environment in self._environments.values()}

    def _environment(self, point: Point, key: WorkerKey) -> Environment:
        describe = partial(describe_environment, key.platform, emulates_hosts=key.emulates_hosts)
        problem = missing_device(key.platform)
        if problem:
            self._problems[key] = f"platform={key.platform}: {problem}"
        wanted = Stack.of(point.software)
        if wanted is None:
            return describe(software_versions(key.python, key.framework))
        if wanted.key not in self._stacks:
            try:
                self._stacks[wanted.key] = self.enter_context(open_stack(wanted, self._say))
            except ParadnnError as error:
                problem = f"the software stack {wanted.name} cannot be installed: {error}"
                self._stacks[wanted.key] = problem
                self._say(problem)
        packages = self._stacks[wanted.key]
        # A stack that cannot be installed gets placeholder versions, and thus a different
        # environment id. Its unavailable points do not count as measured after a later, successful
        # installation.
        versions: Mapping[str, str] = {"stack": wanted.key}
        if isinstance(packages, str):
            self._problems[key] = packages
            return describe(versions)
        try:
            versions = software_versions(key.python, key.framework)
        except ParadnnError as error:  # the stack lacks the framework
            self._problems[key] = str(error)
        return describe(versions, packages)


#: One address. A link-local address (fe80::2%eth0) is invalid, because other hosts cannot use it.
_ADDRESS = re.compile(r"([\w.-]+|\[[\w.:]+\]):\d{1,5}")
_ANSWER_SECONDS = 5.0  # time limit for a connection to a server
_REMEDY = f"list the other hosts in {HOSTS} (docs/how-to/clusters.md)"
_RESTART = (
    "start python -m paradnn.worker.host there (docs/how-to/clusters.md), "
    "then repeat this command here"
)


def _server_addresses(environ: Mapping[str, str]) -> list[str]:
    """Return the addresses of the servers that PARADNN_HOSTS lists; empty if it is not set.

    Args:
        environ: Environment variables of the session.

    Raises:
        ConfigError: If an entry is not an address, or PARADNN_HOSTS_KEY is not set.
    """
    given = environ.get(HOSTS)
    addresses = given.split(",") if given else []
    for address in addresses:
        if not _ADDRESS.fullmatch(address) or not 0 < host_and_port(address)[1] < 65536:
            remedy = (
                "list the address on which each server listens, "
                "as in 10.0.0.2:5000,[2001:db8::3]:5000"
            )
            raise ConfigError(HOSTS, given, f"{address!r} is not HOST:PORT", remedy)
    if addresses and not environ.get(KEY):
        raise ConfigError(
            KEY, "", f"is required if {HOSTS} is set", "set it to the value that the servers use"
        )
    return addresses


def require_hosts(counts: Sequence[int], environ: Mapping[str, str]) -> None:
    """Check that the session has enough hosts for at least one of its points.

    Args:
        counts: Number of hosts of each point.
        environ: Environment variables of the session, including PARADNN_HOSTS.

    Raises:
        ConfigError: If every point needs more hosts than the session has, or if PARADNN_HOSTS is
            invalid.
    """
    if max(counts, default=1) == 1:
        return
    available = 1 + len(_server_addresses(environ))
    if min(counts) > available:
        problem = f"this session has {counted(available, 'host')}"
        raise ConfigError("hosts", min(counts), problem, _REMEDY)


def other_hosts(hosts: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Describe the other hosts of a point (configuration), for the request to a worker.

    Args:
        hosts: Number of hosts of the point, including this one.
        environ: Environment variables for the processes on the other hosts.

    Returns:
        A mapping with the `addresses` of the servers, their secret `key`, and `environ`.

    Raises:
        ConfigError: If PARADNN_HOSTS is invalid, or PARADNN_HOSTS_KEY is not set.
        WorkerError: If the session has fewer than `hosts` hosts.
    """
    addresses = _server_addresses(os.environ)
    if len(addresses) < hosts - 1:
        available = counted(1 + len(addresses), "host")
        raise WorkerError(f"hosts={hosts}: this session has {available}; {_REMEDY}")
    return {"addresses": addresses[: hosts - 1], "key": os.environ[KEY], "environ": dict(environ)}


def require_answers() -> None:
    """Check that the servers of all other hosts, which PARADNN_HOSTS lists, accept a connection.

    If a host is lost, a measurement fails. This failure must not be recorded as a result.

    Raises:
        WorkerError: If a server does not accept a connection within a few seconds.
    """
    for address in _server_addresses(os.environ):
        try:
            socket.create_connection(host_and_port(address), timeout=_ANSWER_SECONDS).close()
        except OSError:
            raise WorkerError(f"no server answers at {address}; {_RESTART}") from None


def require_possible(points: Sequence[Point]) -> None:
    """Check that at least one point can be measured on this machine, and that input data exists.

    Args:
        points: The configurations to measure.

    Raises:
        ConfigError: If the input path of any point does not exist, or if every point lacks its
            device, cores or hosts.
    """
    for data in dict.fromkeys(point.data for point in points):
        path = getattr(data, "path", None)
        if path is not None and not Path(path).exists():
            remedy = "give an existing file or folder"
            if data.is_made:
                remedy += ", or omit the key to generate a data set"
            raise ConfigError("data.path", path, "there is no such file or folder", remedy)
    problems = [
        _problem(platform) for platform in dict.fromkeys(point.platform for point in points)
    ]
    if problems and all(problems):
        raise next(filter(None, problems))
    require_hosts([separate_hosts(point) for point in points], os.environ)


def _problem(platform: Platform) -> ConfigError | None:
    """Return an error if this machine lacks the device or the cores of a platform, or else None."""
    problem = missing_device(platform.name)
    if problem:
        return ConfigError(
            "platform", platform.name, problem, "choose another platform, such as platform=cpu"
        )
    if platform.cores is not None and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        missing = sorted(set(core_list(str(platform.cores))) - allowed)
        if missing:
            problem = f"core {missing[0]} is outside this process's affinity mask"
            return ConfigError(
                "platform.cores", platform.cores, problem, f"choose from {core_text(allowed)}"
            )
    return None
