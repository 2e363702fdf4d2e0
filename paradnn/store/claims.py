"""What the store already holds of given points: finished runs, runs that are being measured now,
and by whom.
"""

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


CLAIM_MARGIN = (
    600.0  # how much longer than its time limit a claim of another host is believed, in seconds
)
_EARLIER = {
    OWNER: "owner",
    EXPIRES: "claim_expires",
}  # what earlier versions called the tags of a claim
#: The tags that are read of a run.
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

_EARLIER_KEYS = {"task", "restarts", "begun"}  # keys of an owner that earlier versions wrote


@dataclass(frozen=True)
class Owner:
    """The process that holds a run."""

    host: str
    boot: str
    pid: int
    started: float

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def read(cls, text: str) -> Owner | None:
        """The owner that a tag names; None for a text that names none."""
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
        """Whether it does no more of what it held until `expires` (Unix seconds): no process here,
        or out of time.
        """
        if self.boot == _boot():
            try:
                process = psutil.Process(self.pid)
                # One that has ended keeps its number until its parent asks for it, which not every
                # parent does.
                same = abs(process.create_time() - self.started) < 1.0
                return not same or process.status() == psutil.STATUS_ZOMBIE
            except psutil.Error:
                return True
        # Another host: only time can tell. This one, before it was started again: its processes are
        # gone.
        same_host = (
            self.host == socket.gethostname() and self.boot.split("/")[1:] == _boot().split("/")[1:]
        )
        return same_host or time.time() > expires


@dataclass(frozen=True)
class Entry:
    """One run, with the tags that the index reads."""

    run_id: str
    status: str
    tags: Mapping[str, str]

    @property
    def identity(self) -> Identity:
        """Of which measurement it is."""
        point = self.tags.get("point_id", "")
        environment = self.tags.get("environment_id", "")
        return Identity(point, environment, int(self.tags.get("replicate", 0)))

    @property
    def outcome(self) -> str | None:
        """How the run ended, once that is recorded."""
        return outcome_of(self.tags)

    @property
    def owner(self) -> str:
        """The tag of the process that holds it; empty where no process does."""
        return self._said(OWNER)

    def is_abandoned(self) -> bool:
        """Whether no process will finish this RUNNING run."""
        owner = Owner.read(self.owner) if self.owner else None
        return self.status == "RUNNING" and owner is not None and owner.is_gone(self._expires)

    @property
    def is_readable(self) -> bool:
        """Whether what it says of itself can be understood: others write into the store, too."""
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
        """Whether it is a point that the process with this owner tag holds, without an outcome yet."""
        is_open = self.status == "RUNNING" and not self.outcome
        return is_open and self.tags.get("kind") != "sweep" and self.owner == owner


def owner_tag() -> str:
    """Who holds a run: this process, distinguished from a later one with the same number."""
    process = psutil.Process()
    who = {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": process.pid,
        "started": process.create_time(),
    }
    return json.dumps(who)


def expiry(timeout: float) -> str:
    """The tag that says until when a claim of so many seconds is believed."""
    return f"{time.time() + timeout + CLAIM_MARGIN:.0f}"


class RunIndex:
    """Identities and claims in one experiment of a store, the newest run first."""

    def __init__(self, reader: Reader, experiment: str) -> None:
        self._reader = reader
        self._experiment = experiment
        self._unreadable: set[str] = set()  # runs that were named

    def finished(
        self, environment_ids: Iterable[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        """Every run with an outcome in these environments; of a sweep, in whichever."""
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
        """Metrics and tags of one run, its name as MLflow's own tag; StoreError where it is not
        there.
        """
        query = Query((self._experiment,), run_id=run_id, columns={"params": ()}, unfinished=True)
        rows = self._reader.read(query)
        if not rows:  # ceilings may be in another experiment
            rows = self._reader.read(replace(query, experiments=self._all_experiments()))
        for run, _, tags, metrics in rows:
            return metrics, tags | ({"mlflow.runName": run.run_name} if run.run_name else {})
        raise StoreError(f"no run {run_id}")

    def of_point(self, identity: Identity, *, everywhere: bool = False) -> list[Entry]:
        """The runs of one measurement in this experiment, or in all experiments of the store."""
        experiments = self._all_experiments() if everywhere else (self._experiment,)
        tags = {"point_id": (identity.point_id,)}
        entries = self._entries(experiments=experiments, tags=tags)
        return [entry for entry in entries if entry.identity == identity]

    def finished_anywhere(self, identity: Identity) -> list[Finished]:
        """Runs of one measurement that have an outcome, in all experiments of the store.

        Ceilings are properties of a machine, so every experiment uses the same ones.
        """
        entries = self.of_point(identity, everywhere=True)
        return [Finished(entry.run_id, entry.tags) for entry in entries if entry.outcome]

    def _all_experiments(self) -> tuple[str, ...]:
        return tuple(self._reader.experiments())

    def running(self) -> list[Entry]:
        """Runs of any kind that are still RUNNING."""
        return self._entries(status="RUNNING")

    def claimed(self) -> set[Identity]:
        """The points that a living driver is measuring now."""
        points = (
            entry
            for entry in self.running()
            if entry.tags.get("kind") == "point" and not entry.outcome
        )
        return {entry.identity for entry in points if not entry.is_abandoned()}

    def with_tag(self, key: str, value: str) -> list[Entry]:
        """Runs that bear the tag `key` with `value`."""
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
                    f"run {entry.run_id} is passed over: its tags cannot be understood",
                    file=sys.stderr,
                )
        return [entry for entry in entries if entry.is_readable]


def _boot() -> str:
    """Which running system and process namespace this is, so that process numbers can be compared."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            boot = handle.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()}/{psutil.boot_time():.0f}"


def status_of(outcome: str | None) -> str:
    """MLflow's status of a run with this outcome."""
    return "FINISHED" if outcome == "ok" else "FAILED"


def close_run(client: MlflowClient, entry: Entry) -> bool:
    """End a run that no process works on; False where its outcome was recorded already."""
    if entry.outcome in OUTCOMES:  # it was recorded whole, only its end was not
        client.set_terminated(entry.run_id, status_of(entry.outcome))
        return False
    client.set_tag(entry.run_id, "reason", "its driver was killed")
    client.set_terminated(entry.run_id, "KILLED")
    return True


def close_abandoned(index: RunIndex, client: Callable[[], MlflowClient]) -> int:
    """End the runs that dead processes left open; how many had no outcome."""
    return sum(close_run(client(), entry) for entry in index.running() if entry.is_abandoned())
