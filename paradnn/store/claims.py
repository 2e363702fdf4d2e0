"""Index of the runs in a store: finished runs, runs in progress, and their owners.

A run in progress is a claim: a driver (process of `python -m paradnn.train`) has reserved a point,
which is one configuration to measure.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paradnn.config.identity import Identity
from paradnn.config.outcome import OUTCOMES
from paradnn.core.errors import StoreError
from paradnn.store.leases import Lease, Owner
from paradnn.store.reader import Reader
from paradnn.store.runs import (
    DRIVER_LEASE,
    EXPIRES,
    LEASE,
    OUTCOME_TAGS,
    OWNER,
    Finished,
    Query,
    Values,
    outcome_of,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient


#: Tags of a claim -> their names in earlier versions.
_EARLIER_NAMES = {OWNER: "owner", EXPIRES: "claim_expires"}
#: Values that the index reads: a fixed set of tags, no params and no metrics.
_INDEX_COLUMNS: Mapping[Values, Collection[str]] = {
    "tags": (
        "point_id",
        "environment_id",
        "replicate",
        *OUTCOME_TAGS,
        "limits_id",
        "extras",
        "contended",
        "kind",
        OWNER,
        _EARLIER_NAMES[OWNER],
        EXPIRES,
        _EARLIER_NAMES[EXPIRES],
        LEASE,
        "device",
        "reason",
        "offline_id",
        "sweep_id",
    ),
    "params": (),
    "metrics": (),
}

#: Expiry of a claim that never expires, in Unix seconds.
_NEVER = "1e300"


def leases_in(tags: Mapping[str, str]) -> dict[str, Lease]:
    """Return the leases (expiring registrations) of a sweep's drivers.

    Args:
        tags: Tags of the sweep's parent run. Invalid leases are skipped.

    Returns:
        Number of the driver as text -> lease.
    """
    leases = {}
    for key, text in tags.items():
        if key.startswith(DRIVER_LEASE):
            lease = Lease.read(text)
            if lease:
                leases[key.removeprefix(DRIVER_LEASE)] = lease
    return leases


@dataclass(frozen=True)
class Entry:
    """A run in the index of a store, with the tags that the index reads.

    Attributes:
        run_id: Id of the run.
        status: MLflow status of the run, such as "RUNNING".
        tags: Tags of the run. The tag `EXPIRES` of a run in progress may come from the lease
            (expiring registration) of its driver.
        leases: Driver -> lease, if the run is the parent run of a running sweep; otherwise empty.
    """

    run_id: str
    status: str
    tags: Mapping[str, str]
    leases: Mapping[str, Lease] = field(default_factory=dict)

    @property
    def identity(self) -> Identity:
        """The measurement of the run: point, environment and number of the repetition."""
        point = self.tags.get("point_id", "")
        environment = self.tags.get("environment_id", "")
        return Identity(point, environment, int(self.tags.get("replicate", 0)))

    @property
    def outcome(self) -> str | None:
        """Outcome of the run; None until it is recorded."""
        return outcome_of(self.tags)

    @property
    def owner(self) -> str:
        """Owner tag of the process that claimed the run; empty if the run has no such tag."""
        return self._claim_tag(OWNER)

    @property
    def parsed_owner(self) -> Owner | None:
        """The process that claimed the run; None if the owner tag is absent or invalid."""
        if not self.owner:
            return None
        return Owner.read(self.owner)

    def is_abandoned(self) -> bool:
        """Return whether the run is RUNNING although no process will finish it.

        The parent run of a sweep is abandoned if neither the launching process nor a driver runs.
        """
        if self.status != "RUNNING":
            return False
        if self.leases:
            return not any(lease.is_alive for lease in self.leases.values())
        owner = self.parsed_owner
        return owner is not None and owner.is_gone(self._expires)

    @property
    def is_readable(self) -> bool:
        """Whether the tags of the run are valid; other programs may have written them."""
        replicate = self.tags.get("replicate", "0")
        if not (replicate.isascii() and replicate.isdigit() and len(replicate) < 10):
            return False
        if not self.owner:
            return True
        return self.parsed_owner is not None and not math.isnan(self._expires)

    @property
    def _expires(self) -> float:
        """Unix time in seconds at which the claim expires; NaN if its tag is invalid."""
        try:
            expires = float(self._claim_tag(EXPIRES) or _NEVER)
        except ValueError:
            return math.nan
        if math.isinf(expires):
            return math.nan
        return expires

    def _claim_tag(self, tag: str) -> str:
        """Return a tag of the claim under its present or its earlier name; empty if absent."""
        return self.tags.get(tag) or self.tags.get(_EARLIER_NAMES[tag], "")

    def is_claim_of(self, owner: str) -> bool:
        """Return whether the run is an unfinished claim (reserved point) of a process.

        Args:
            owner: Owner tag of the process.
        """
        is_open = self.status == "RUNNING" and not self.outcome
        return is_open and self.tags.get("kind") != "sweep" and self.owner == owner


class RunIndex:
    """Index of the finished and the claimed runs in one experiment of a store.

    Args:
        reader: Reads the store.
        experiment: Name of the experiment.
    """

    def __init__(self, reader: Reader, experiment: str) -> None:
        self._reader = reader
        self._experiment = experiment
        self._unreadable: set[str] = set()  # ids of runs that were reported as invalid
        #: Value of the tag `LEASE` in claims of this process; empty without a lease.
        self.lease = ""
        #: Time until which no claim counts as expired, in monotonic seconds. After the store did
        #: not answer, drivers on other hosts need time to renew their leases.
        self.expiries_count_from = 0.0

    def finished(
        self, environment_ids: Iterable[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        """Return the finished runs that were measured in given environments, or by a given sweep.

        Args:
            environment_ids: Ids of the environments (hashes of hardware and software versions).
            sweep_id: Id of a sweep whose runs are included whatever their environment; None
                includes only runs in the environments.

        Returns:
            Measurement -> its finished runs.
        """
        wanted = [("environment_id", name) for name in environment_ids]
        if sweep_id:
            wanted.append(("sweep_id", sweep_id))
        entries = {
            entry.run_id: entry for tag in wanted for entry in self.with_tag(*tag) if entry.outcome
        }
        found: defaultdict[Identity, list[Finished]] = defaultdict(list)
        for entry in entries.values():
            found[entry.identity].append(Finished(entry.run_id, entry.tags))
        return dict(found)

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        """Return the metrics and the tags of a run, in this order.

        The name of the run is the value of the tag `mlflow.runName`.

        Args:
            run_id: Id of a run in any experiment of the store.

        Raises:
            StoreError: If the store has no such run.
        """
        query = Query((self._experiment,), run_id=run_id, columns={"params": ()}, unfinished=True)
        rows = self._reader.read(query)
        if not rows:  # ceilings may be in another experiment
            rows = self._reader.read(replace(query, experiments=self._all_experiments()))
        if not rows:
            raise StoreError(f"no run {run_id}")
        run, _, tags, metrics = rows[0]
        if run.run_name:
            tags["mlflow.runName"] = run.run_name
        return metrics, tags

    def of_point(self, identity: Identity, *, everywhere: bool = False) -> list[Entry]:
        """Return the runs of one measurement, finished or not, newest first.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
            everywhere: Whether to search all experiments of the store.
        """
        if everywhere:
            experiments = self._all_experiments()
        else:
            experiments = (self._experiment,)
        tags = {"point_id": (identity.point_id,)}
        entries = self._entries(experiments=experiments, tags=tags)
        return [entry for entry in entries if entry.identity == identity]

    def finished_anywhere(self, identity: Identity) -> list[Finished]:
        """Return the finished runs of one measurement, in all experiments of the store.

        All experiments share runs with peak rates, because those are properties of a machine.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
        """
        entries = self.of_point(identity, everywhere=True)
        return [Finished(entry.run_id, entry.tags) for entry in entries if entry.outcome]

    def _all_experiments(self) -> tuple[str, ...]:
        return tuple(self._reader.experiments())

    def running(self) -> list[Entry]:
        """Return the runs of any kind whose MLflow status is RUNNING."""
        return self._entries(status="RUNNING")

    def claimed(self) -> set[Identity]:
        """Return the measurements that running drivers have claimed (reserved) but not recorded."""
        points = (
            entry
            for entry in self.running()
            if entry.tags.get("kind") == "point" and not entry.outcome
        )
        return {entry.identity for entry in points if not entry.is_abandoned()}

    def lost_points(self, sweep_id: str) -> set[Identity]:
        """Return the measurements of a sweep whose drivers ended before they finished them.

        Other drivers may have finished some of them since.

        Args:
            sweep_id: Id of the sweep.
        """
        tags = {"kind": ("point",), "sweep_id": (sweep_id,)}
        killed = self._entries(status="KILLED", tags=tags)
        running = self._entries(status="RUNNING", tags=tags)
        lost = (*killed, *(entry for entry in running if entry.is_abandoned()))
        return {entry.identity for entry in lost if not entry.outcome}

    def with_tag(self, key: str, value: str) -> list[Entry]:
        """Return the runs whose tag `key` has the given value, newest first."""
        return self._entries(tags={key: (value,)})

    def _entries(self, **conditions: Any) -> list[Entry]:
        """Return the runs that satisfy conditions, newest first; report and skip invalid runs.

        Args:
            conditions: Fields of `Query`.
        """
        conditions.setdefault("experiments", (self._experiment,))
        query = Query(unfinished=True, columns=_INDEX_COLUMNS, **conditions)
        newest = sorted(
            self._reader.read(query), key=lambda row: row.run.start_ms or 0, reverse=True
        )
        entries = [Entry(run.run_id, run.status or "", tags) for run, _, tags, _ in newest]
        for entry in entries:
            if not entry.is_readable and entry.run_id not in self._unreadable:
                self._unreadable.add(entry.run_id)
                print(f"run {entry.run_id} is skipped: its tags are invalid", file=sys.stderr)
        return self._with_leases([entry for entry in entries if entry.is_readable])

    def leases(self, run_id: str) -> dict[str, Lease]:
        """Return the leases (expiring registrations) of a sweep's drivers.

        Args:
            run_id: Id of the parent run of the sweep.

        Returns:
            Number of the driver as text -> lease.
        """
        return leases_in(self._all_tags(run_id))

    def _all_tags(self, run_id: str) -> Mapping[str, str]:
        columns: Mapping[Values, Collection[str]] = {"params": (), "metrics": ()}
        rows = self._reader.read(
            Query(self._all_experiments(), run_id=run_id, unfinished=True, columns=columns)
        )
        if not rows:
            return {}
        return rows[0].tags

    def _with_leases(self, entries: Sequence[Entry]) -> list[Entry]:
        known: dict[str, Mapping[str, Lease]] = {}
        return [self._with_lease(entry, known) for entry in entries]

    def _with_lease(self, entry: Entry, known: dict[str, Mapping[str, Lease]]) -> Entry:
        """Add the expiry of its driver's lease to a run in progress, or all leases to a sweep.

        A lease is the expiring registration of a driver (measuring process). Leases of processes on
        this host are not read, because the process itself can be checked.

        Args:
            entry: The entry. Any other entry is returned unchanged.
            known: Id of a parent run -> leases that were read before; this function adds to it.
        """
        if entry.status != "RUNNING" or entry.outcome:
            return entry
        if entry.tags.get("kind") == "sweep":
            return replace(entry, leases=self.leases(entry.run_id))
        owner = entry.parsed_owner
        if owner is None or owner.is_on_this_boot:
            return entry
        if time.monotonic() < self.expiries_count_from:
            return replace(entry, tags={**entry.tags, EXPIRES: _NEVER})
        lease = entry.tags.get(LEASE, "")
        if not lease:
            return entry
        if lease == self.lease:  # a scheduler restarted this driver; its earlier process is gone
            return replace(entry, tags={**entry.tags, EXPIRES: "0"})
        run_id, _, driver = lease.partition(" ")
        if run_id not in known:
            known[run_id] = self.leases(run_id)
        driver_lease = known[run_id].get(driver)
        if driver_lease is None or driver_lease.owner != owner:
            return entry
        return replace(entry, tags={**entry.tags, EXPIRES: f"{driver_lease.expires:.0f}"})


def status_of(outcome: str | None) -> str:
    """Return the MLflow status of an ended run.

    Args:
        outcome: Outcome of the run; None if it has none.

    Returns:
        "FINISHED" for the outcome "ok", otherwise "FAILED".
    """
    return "FINISHED" if outcome == "ok" else "FAILED"


def close_run(client: MlflowClient, entry: Entry) -> bool:
    """End an abandoned run, which no process will finish.

    A run with an outcome only gets its final status. A run without an outcome gets the status
    KILLED and a reason.

    Args:
        client: Client of the store.
        entry: The abandoned run.

    Returns:
        Whether the run had no outcome.
    """
    if entry.outcome in OUTCOMES:  # the record is complete, only the final status is missing
        client.set_terminated(entry.run_id, status_of(entry.outcome))
        return False
    client.set_tag(entry.run_id, "reason", "its driver was killed")
    client.set_terminated(entry.run_id, "KILLED")
    return True


def close_abandoned(index: RunIndex, client: Callable[[], MlflowClient]) -> int:
    """End all abandoned runs of an experiment, which no process will finish.

    Args:
        index: Index of the experiment.
        client: Returns the client of the store. It is called only if a run is abandoned.

    Returns:
        The number of abandoned runs without an outcome.
    """
    return sum(close_run(client(), entry) for entry in index.running() if entry.is_abandoned())
