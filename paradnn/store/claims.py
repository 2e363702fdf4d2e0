"""Index of the runs in a store: finished runs, runs in progress, and their owners."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

with contextlib.suppress(ModuleNotFoundError):  # as in `paradnn.platform.environment`
    import psutil

from paradnn.config.identity import Identity
from paradnn.config.outcome import OUTCOMES
from paradnn.core.channel import read_message
from paradnn.core.errors import StoreError
from paradnn.store.files import read_json
from paradnn.store.reader import Reader
from paradnn.store.runs import EXPIRES, OUTCOME_TAGS, OWNER, Finished, Query, Values, outcome_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


#: Seconds for which a claim of another host is valid beyond its time limit.
CLAIM_MARGIN = 600.0
#: Tags of a claim -> their names in earlier versions.
_EARLIER = {
    OWNER: "owner",
    EXPIRES: "claim_expires",
}
#: Values that the index reads: a fixed set of tags, no params and no metrics.
_TAGS_ALONE: Mapping[Values, Collection[str]] = {
    "tags": (
        *(
            "point_id",
            "environment_id",
            "replicate",
            *OUTCOME_TAGS,
            "limits_id",
            "extras",
            "contended",
            "kind",
        ),
        *(
            OWNER,
            _EARLIER[OWNER],
            EXPIRES,
            _EARLIER[EXPIRES],
            "device",
            "reason",
            "offline_id",
            "sweep_id",
        ),
    ),
    "params": (),
    "metrics": (),
}

_EARLIER_KEYS = {"task", "restarts", "begun"}  # owner keys that only earlier versions wrote


@dataclass(frozen=True)
class Owner:
    """The process that holds a run.

    Attributes:
        host: Host name.
        boot: Boot and process namespace, as `_boot` returns them.
        pid: Process id in that namespace.
        started: Start of the process in Unix seconds; detects a reused process id.
    """

    host: str
    boot: str
    pid: int
    started: float

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def read(cls, text: str) -> Owner | None:
        """Return the owner in a tag; None if the text is not a valid owner."""
        try:
            content = read_json(text)
            own = {key: value for key, value in content.items() if key not in _EARLIER_KEYS}
            return read_message(cls, own, "owner")
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    def __post_init__(self) -> None:
        if not 0 < self.pid < 2**31 or not math.isfinite(self.started):
            raise ValueError("no process")

    def is_gone(self, expires: float) -> bool:
        """Whether the process no longer works on its run.

        On the same boot of the same host, the process itself is checked. A process of an earlier
        boot is gone. On another host, only the expiry counts.

        Args:
            expires: Expiry of the claim in Unix seconds.
        """
        if self.boot == _boot():
            try:
                process = psutil.Process(self.pid)
                # A process that has ended keeps its id as a zombie until its parent reaps it, which
                # not every parent does.
                same = abs(process.create_time() - self.started) < 1.0
                return not same or process.status() == psutil.STATUS_ZOMBIE
            except psutil.Error:
                return True
        # On another host only the expiry counts. A process of an earlier boot of this host is gone.
        same_host = (
            self.host == socket.gethostname() and self.boot.split("/")[1:] == _boot().split("/")[1:]
        )
        return same_host or time.time() > expires


@dataclass(frozen=True)
class Entry:
    """One run with the tags that the index reads."""

    run_id: str
    status: str
    tags: Mapping[str, str]

    @property
    def identity(self) -> Identity:
        """The measurement of the run."""
        point = self.tags.get("point_id", "")
        environment = self.tags.get("environment_id", "")
        return Identity(point, environment, int(self.tags.get("replicate", 0)))

    @property
    def outcome(self) -> str | None:
        """How the run ended; None until that is recorded."""
        return outcome_of(self.tags)

    @property
    def owner(self) -> str:
        """Tag of the process that holds the run; empty if no process does."""
        return self._said(OWNER)

    def is_abandoned(self) -> bool:
        """Whether no process will finish this RUNNING run."""
        owner = Owner.read(self.owner) if self.owner else None
        return self.status == "RUNNING" and owner is not None and owner.is_gone(self._expires)

    @property
    def is_readable(self) -> bool:
        """Whether the tags of the run are valid.

        Other programs write into the store too.
        """
        number = self.tags.get("replicate", "0")
        whole = number.isascii() and number.isdigit() and len(number) < 10
        return whole and (
            not self.owner or (Owner.read(self.owner) is not None and not math.isnan(self._expires))
        )

    @property
    def _expires(self) -> float:
        try:
            return (
                expires
                if math.isfinite(expires := float(self._said(EXPIRES) or "1e300"))
                else math.nan
            )
        except ValueError:
            return math.nan

    def _said(self, tag: str) -> str:
        return self.tags.get(tag) or self.tags.get(_EARLIER[tag], "")

    def is_claim_of(self, owner: str) -> bool:
        """Whether the run is an unfinished claim of the process with this owner tag."""
        is_open = self.status == "RUNNING" and not self.outcome
        return is_open and self.tags.get("kind") != "sweep" and self.owner == owner


def owner_tag() -> str:
    """Return the owner tag of this process, distinct from a later one with the same process id."""
    process = psutil.Process()
    who = {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": process.pid,
        "started": process.create_time(),
    }
    return json.dumps(who)


def expiry(timeout: float) -> str:
    """Return the expiry tag of a claim, in Unix seconds: now + `timeout` + CLAIM_MARGIN.

    Args:
        timeout: Time limit of the measurement in seconds.
    """
    return f"{time.time() + timeout + CLAIM_MARGIN:.0f}"


class RunIndex:
    """Identities and claims in one experiment of a store, newest run first."""

    def __init__(self, reader: Reader, experiment: str) -> None:
        self._reader = reader
        self._experiment = experiment
        self._unreadable: set[str] = set()  # ids of runs that were reported

    def finished(
        self, environment_ids: Iterable[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        """Return the runs with an outcome in the given environments.

        Args:
            environment_ids: The environments.
            sweep_id: Include runs of this sweep, regardless of their environment.
        """
        wanted = [("environment_id", name) for name in environment_ids] + (
            [("sweep_id", sweep_id)] if sweep_id else []
        )
        entries = {
            entry.run_id: entry for tag in wanted for entry in self.with_tag(*tag) if entry.outcome
        }
        found: defaultdict[Identity, list[Finished]] = defaultdict(list)
        for entry in entries.values():
            found[entry.identity].append(Finished(entry.run_id, entry.tags))
        return dict(found)

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        """Return the metrics and tags of one run; the tags include its name as `mlflow.runName`.

        Raises:
            StoreError: If the store has no such run.
        """
        query = Query((self._experiment,), run_id=run_id, columns={"params": ()}, unfinished=True)
        rows = self._reader.read(query)
        if not rows:  # ceilings may be in another experiment
            rows = self._reader.read(replace(query, experiments=self._all_experiments()))
        for run, _, tags, metrics in rows:
            return metrics, tags | ({"mlflow.runName": run.run_name} if run.run_name else {})
        raise StoreError(f"no run {run_id}")

    def of_point(self, identity: Identity, *, everywhere: bool = False) -> list[Entry]:
        """Return the runs of one measurement in this experiment, or everywhere in the store."""
        experiments = self._all_experiments() if everywhere else (self._experiment,)
        tags = {"point_id": (identity.point_id,)}
        entries = self._entries(experiments=experiments, tags=tags)
        return [entry for entry in entries if entry.identity == identity]

    def finished_anywhere(self, identity: Identity) -> list[Finished]:
        """Return the runs of one measurement that have an outcome, in all experiments of the store.

        Ceilings are properties of a machine, so every experiment uses the same ones.
        """
        entries = self.of_point(identity, everywhere=True)
        return [Finished(entry.run_id, entry.tags) for entry in entries if entry.outcome]

    def _all_experiments(self) -> tuple[str, ...]:
        return tuple(self._reader.experiments())

    def running(self) -> list[Entry]:
        """Return the runs of any kind that are still RUNNING."""
        return self._entries(status="RUNNING")

    def claimed(self) -> set[Identity]:
        """Return the points that a living driver is measuring now."""
        points = (
            entry
            for entry in self.running()
            if entry.tags.get("kind") == "point" and not entry.outcome
        )
        return {entry.identity for entry in points if not entry.is_abandoned()}

    def with_tag(self, key: str, value: str) -> list[Entry]:
        """Return the runs whose tag `key` has the given value."""
        return self._entries(tags={key: (value,)})

    def _entries(self, **which: Any) -> list[Entry]:
        which.setdefault("experiments", (self._experiment,))
        query = Query(unfinished=True, columns=_TAGS_ALONE, **which)
        newest = sorted(
            self._reader.read(query), key=lambda row: row.run.start_ms or 0, reverse=True
        )
        entries = [Entry(run.run_id, run.status or "", tags) for run, _, tags, _ in newest]
        for entry in entries:
            if not entry.is_readable and entry.run_id not in self._unreadable:
                self._unreadable.add(entry.run_id)
                print(
                    f"run {entry.run_id} is skipped: its tags are invalid",
                    file=sys.stderr,
                )
        return [entry for entry in entries if entry.is_readable]


def _boot() -> str:
    """Identify the boot and process namespace of this process.

    Process ids are comparable only if these identifiers are equal.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            boot = handle.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()}/{psutil.boot_time():.0f}"


def status_of(outcome: str | None) -> str:
    """Return the MLflow status of a run with this outcome."""
    return "FINISHED" if outcome == "ok" else "FAILED"


def close_run(client: MlflowClient, entry: Entry) -> bool:
    """End a run that no process works on.

    Returns:
        False if its outcome was already recorded; the run is then only given its final status.
    """
    if entry.outcome in OUTCOMES:  # the record is complete, but not the final status
        client.set_terminated(entry.run_id, status_of(entry.outcome))
        return False
    client.set_tag(entry.run_id, "reason", "its driver was killed")
    client.set_terminated(entry.run_id, "KILLED")
    return True


def close_abandoned(index: RunIndex, client: Callable[[], MlflowClient]) -> int:
    """End the runs that dead processes left open.

    Returns:
        The number of those runs without an outcome.
    """
    return sum(close_run(client(), entry) for entry in index.running() if entry.is_abandoned())
