"""Owners of runs, and the leases that drivers of a sweep renew.

A driver is a process of `python -m paradnn.train`, which measures points (configurations). It
claims a point in the store before it measures the point. The driver registers a lease with its
sweep, and a heartbeat renews the lease. All claims of the driver refer to the lease, so a heartbeat
costs one write however many points are claimed. If a host is lost, its claims expire with its
lease.

The clocks of all hosts must agree within a minute, which NTP ensures.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

# psutil may be absent on a machine with only an engine (`paradnn.session.run_elsewhere`).
with contextlib.suppress(ModuleNotFoundError):
    import psutil

from paradnn.core.channel import read_message
from paradnn.core.errors import StoreError
from paradnn.store.files import read_json

#: Seconds for which a lease is valid after its last renewal. Other drivers take over the points of
#: a lost host after this time.
LEASE_SECONDS = 90.0
#: Seconds between two renewals of a lease.
HEARTBEAT_SECONDS = 20.0
#: Seconds between two attempts to renew a lease while the store does not answer.
RETRY_SECONDS = 2.0
#: Key of the lease of the process that launched the drivers of a sweep.
LAUNCH = "launch"

_OBSOLETE_KEYS = {"task", "restarts", "begun"}  # owner keys that only earlier versions wrote


@dataclass(frozen=True)
class Owner:
    """Identification of the process that has claimed a run.

    Attributes:
        host: Host name.
        boot: Identifier of the boot and the process namespace, from `boot_id`.
        pid: Process id in that namespace.
        started: Start of the process in Unix seconds. It distinguishes processes with the same id.
    """

    host: str
    boot: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> Owner:
        """Return the owner that identifies this process."""
        process = psutil.Process()
        return cls(socket.gethostname(), boot_id(), process.pid, process.create_time())

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def read(cls, text: str) -> Owner | None:
        """Return the owner that a tag describes; None if the text is not valid.

        Args:
            text: Value of the tag, from `owner_tag`.
        """
        try:
            content = read_json(text)
            own = {key: value for key, value in content.items() if key not in _OBSOLETE_KEYS}
            return read_message(cls, own, "owner")
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    def __post_init__(self) -> None:
        if not 0 < self.pid < 2**31 or not math.isfinite(self.started):
            raise ValueError("no process")

    @property
    def is_on_this_boot(self) -> bool:
        """Whether the owner ran in this boot and process namespace, where its id is valid."""
        return self.boot == boot_id()

    def is_gone(self, expires: float) -> bool:
        """Return whether the process no longer works on its run.

        In this boot and process namespace, the method checks the process itself. On another host or
        in another namespace, the expiry decides. A process of an earlier boot is gone.

        Args:
            expires: Expiry of the process's claim or lease in Unix seconds.
        """
        if self.is_on_this_boot:
            try:
                process = psutil.Process(self.pid)
                # A process that has ended keeps its id as a zombie until its parent reaps it, which
                # not every parent does.
                is_same = abs(process.create_time() - self.started) < 1.0
                return not is_same or process.status() == psutil.STATUS_ZOMBIE
            except psutil.Error:
                return True
        # Same host and namespace, but another boot: the process belongs to an earlier boot.
        is_earlier_boot = (
            self.host == socket.gethostname()
            and self.boot.split("/")[1:] == boot_id().split("/")[1:]
        )
        return is_earlier_boot or time.time() > expires


def owner_tag() -> str:
    """Return the tag that identifies this process as the owner of a run, as JSON text.

    A later process with the same process id has a different tag.
    """
    return json.dumps(asdict(Owner.current()))


def expiry() -> str:
    """Return when a claim or lease that is renewed now expires: Unix seconds as text."""
    return f"{time.time() + LEASE_SECONDS:.0f}"


@dataclass(frozen=True)
class Lease:
    """Registration of a driver (measuring process) with a sweep; it expires unless renewed.

    Attributes:
        owner: The process of the driver.
        expires: Expiry in Unix seconds.
        cores: Cores that the driver may use, such as "0-7"; empty for the launching process.
        devices: Accelerators that the driver may use, as its environment names them.
        job_id: Id of the scheduler's job; empty outside of a scheduler.
        planned: Environment id (hash of hardware and software versions) -> number of points that
            the sweep measures there; None if an adaptive design chooses them.
        ended: End of the driver in Unix seconds; 0 while it runs.
        is_complete: Whether the driver ended because no point was left.
        conclusion: Conclusion that the design of the sweep reached, as Markdown; empty if it
            reached no conclusion.
        is_stopped: Whether the user has interrupted the sweep; only in the lease of the launching
            process.
    """

    owner: Owner
    expires: float
    cores: str = ""
    devices: str = ""
    job_id: str = ""
    planned: Mapping[str, int] | None = None
    ended: float = 0.0
    is_complete: bool = False
    conclusion: str = ""
    is_stopped: bool = False

    @classmethod
    def read(cls, text: str) -> Lease | None:
        """Return the lease that `text` describes; None if it is not a valid lease."""
        try:
            return read_message(cls, read_json(text), "lease")
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    @property
    def text(self) -> str:
        """The lease as JSON text, which `read` parses."""
        return json.dumps(asdict(self))

    @property
    def is_alive(self) -> bool:
        """Whether the driver has not ended and still runs, as far as this host knows."""
        return not self.ended and not self.owner.is_gone(self.expires)

    def renewed(self) -> Lease:
        """Return a copy that expires `LEASE_SECONDS` from now."""
        return replace(self, expires=float(expiry()))

    def ended_now(self, *, is_complete: bool, conclusion: str) -> Lease:
        """Return a copy for a driver that ends now.

        Args:
            is_complete: Whether the driver ends because no point is left.
            conclusion: Conclusion that the design of the sweep reached, as Markdown; empty if it
                reached no conclusion.
        """
        return replace(self, ended=time.time(), is_complete=is_complete, conclusion=conclusion)

    def end_reason(self, leases: Mapping[str, Lease], driver: str) -> str:
        """Return why the process of this lease must end; empty if it may continue.

        Args:
            leases: Driver -> lease, as stored for the sweep. A key is the number of a driver as
                text, or `LAUNCH` for the launching process.
            driver: Key of this lease in `leases`.
        """
        launch = leases.get(LAUNCH)
        stored = leases.get(driver)
        if launch and launch.is_stopped and driver != LAUNCH:
            return "the sweep was interrupted"
        if stored and stored.owner != self.owner and not stored.ended:
            return f"another process continues as driver {driver}"
        return ""

    def shares_cores_with(self, other: Lease) -> bool:
        """Return whether two drivers may use the same cores of a host.

        Always False if they use different accelerators.

        Args:
            other: Lease of the other driver.
        """
        is_same_host = (self.owner.host, self.owner.boot.partition("/")[0]) == (
            other.owner.host,
            other.owner.boot.partition("/")[0],
        )
        is_separate = bool(self.devices and other.devices and self.devices != other.devices)
        return is_same_host and not is_separate and bool(_cores(self) & _cores(other))


def _cores(lease: Lease) -> set[int]:
    """Return the numbers of the cores that a driver uses.

    Args:
        lease: Registration of the driver, whose `cores` is a list such as "0-3,8".
    """
    numbers: set[int] = set()
    for part in filter(None, lease.cores.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def planned_points(leases: Mapping[str, Lease]) -> int | None:
    """Return the planned number of points of a sweep over all environments.

    Args:
        leases: Driver -> its lease (registration with the sweep), for all drivers of the sweep.

    Returns:
        The number; None if no lease states one.
    """
    known = [lease.planned for lease in leases.values() if lease.planned is not None]
    if not known:
        return None
    planned: dict[str, int] = {}
    for counts in known:
        for environment, count in counts.items():
            planned[environment] = max(count, planned.get(environment, 0))
    return sum(planned.values())


def no_point_is_left(leases: Mapping[str, Lease]) -> bool:
    """Return whether, in every environment, a driver ended because no point was left.

    The sweep may then still have fewer runs than planned, because other sweeps recorded some of
    its points.

    Args:
        leases: Driver -> its lease (registration with the sweep), for all drivers of the sweep.
    """
    environments = {name for lease in leases.values() for name in lease.planned or ()}
    completed = {
        name for lease in leases.values() if lease.is_complete for name in lease.planned or ()
    }
    return bool(environments) and completed == environments


class Heartbeat:
    """A thread that renews a driver's lease (registration) every `HEARTBEAT_SECONDS` seconds.

    It runs until `close` is called or the driver must end.

    Args:
        renew: Renews the lease. Returns the reason why the driver must end, or an empty text.
            Raises StoreError while the store does not answer.
        stop: Called with the reason if the driver must end. No renewal follows.
    """

    def __init__(self, renew: Callable[[], str], stop: Callable[[str], None]) -> None:
        self._renew = renew
        self._stop = stop
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the renewal, and wait until a renewal in progress has ended."""
        self._is_closed.set()
        self._thread.join(RETRY_SECONDS)

    def _beat(self) -> None:
        pause = HEARTBEAT_SECONDS
        while not self._is_closed.wait(pause):
            try:
                reason = self._renew()
            except StoreError:
                pause = RETRY_SECONDS
                continue
            pause = HEARTBEAT_SECONDS
            if reason:
                self._stop(reason)
                return


@functools.cache
def boot_id() -> str:
    """Return an identifier of the boot and the process namespace of this process.

    Ids of two processes are comparable only if their identifiers are equal.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            boot = handle.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()}/{psutil.boot_time():.0f}"
