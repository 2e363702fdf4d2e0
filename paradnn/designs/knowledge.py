"""What is known of the points that an adaptive sweep may measure: its whole state, read from the store.

So the same command goes on wherever it was ended, and several drivers of one store share a sweep.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import Identity
from paradnn.config.point import Point, Settings
from paradnn.designs.frontier import excluded
from paradnn.errors import StoreError
from paradnn.forecast.history import History, Past
from paradnn.forecast.regression import Array
from paradnn.forecast.status import rates_of, sweep_status
from paradnn.forecast.table import PastRuns, Rates, Table, row_of, table_of_points
from paradnn.platform.environment import memory_limit
from paradnn.session.summary import Row
from paradnn.store.runs import ResumePolicy, first_accepted

_Keys = Mapping[str, str]
#: By key, of points that differ in it (n,): numbers, or texts where any is no number.
_Axes = Mapping[str, NDArray[Any]]

#: Groups of keys, and keys, that change neither a step nor what memory it takes.
_ASIDE = ("measure", "replicate", "seed")
#: Outcomes that say that a point is too large.
_TOO_LARGE = ("oom_host", "oom_device")
#: All that a candidate's session is called: one design, in however many sessions it was measured.
_SESSION = "design"
_EVERY_RUN = 10**9


def axes_of(rows: Sequence[_Keys]) -> _Axes:
    """The keys in which points, as the store keeps them, differ; a point that lacks a key has "" there.

    A list of numbers, such as model.blocks, counts as its sum.
    """
    keys = dict.fromkeys(key for row in rows for key in row if key.split(".")[0] not in _ASIDE)
    axes: dict[str, NDArray[Any]] = {}
    for key in keys:
        texts = [row.get(key, "") for row in rows]
        numbers = {text: _number(text) for text in set(texts)}
        if len(numbers) > 1:
            words = None in numbers.values()
            axes[key] = np.array(texts, str) if words else np.array([numbers[text] for text in texts], float)
    return axes


def _number(text: str) -> float | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, list):
        return float(sum(value))
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Candidates:
    """The n distinct points of a sweep, with an entry each in the columns.

    places: index of each among the sweep's points. limits: bytes that a point may take, infinite where unknown.
    """

    points: Sequence[Point]
    places: Sequence[int]
    identities: Sequence[Identity]
    table: Table
    devices: Sequence[str]
    bounds: Array
    limits: Array
    rates: Rates
    lacks_ceilings: bool

    def __len__(self) -> int:
        return len(self.points)

    @classmethod
    def of(cls, points: Sequence[Point], settings: Settings, history: History) -> Candidates:
        """Those among `points`, each once; raises ParadnnError as a session would before its first point."""
        status = sweep_status(points, settings, history)
        kept = list({identity: index for index, identity in reversed([*enumerate(status.identities)])}.values())[::-1]
        environments = [status.environments[index] for index in kept]
        ids, devices = [place.environment_id for place in environments], [place.device for place in environments]
        chosen, rates = [points[index] for index in kept], rates_of(status)
        limits = {
            limit: memory_limit(point)
            for limit, point in {point.measure.memory_limit: point for point in chosen}.items()
        }
        known = [point.platform.name == "cpu" and point.measure.predict_oom for point in chosen]
        return cls(
            points=chosen,
            places=kept,
            identities=[status.identities[index] for index in kept],
            table=replace(table_of_points(chosen, ids, devices, rates), sessions=[_SESSION] * len(kept)),
            devices=devices,
            bounds=status.costs["memory_lower_bound_bytes"][kept],
            limits=np.where(known, np.array([limits[point.measure.memory_limit] for point in chosen], float), np.inf),
            rates=rates,
            lacks_ceilings=settings.ceilings and not all(status.ceilings.values()),
        )

    @cached_property
    def axes(self) -> _Axes:
        """The keys in which they differ."""
        return axes_of(self.table.rows)

    @cached_property
    def coordinates(self) -> Array:
        """(n, k) where each candidate lies in the space; words lie in their order."""
        columns = [np.unique(axis, return_inverse=True)[1] for axis in self.axes.values()]
        return np.stack(columns, axis=1).astype(float) if columns else np.zeros((len(self), 0))

    @cached_property
    def sizes_and_kinds(self) -> tuple[Array, list[Hashable]]:
        """(n, k) what memory grows with: sizes of model and batch, and its analytic lower bound in bytes; and what must
        be equal for one point's memory to say anything of another's: all that is no size, and the environment."""
        numbers = [key for key, axis in self.axes.items() if axis.dtype.kind == "f"]
        sizes = [key for key in numbers if key == "batch_size" or key.startswith("model.")]
        others = [axis for key, axis in self.axes.items() if key not in sizes]
        kinds: list[Hashable] = [*zip(self.table.environments, *others, strict=True)]
        return np.asarray(np.stack([*(self.axes[key] for key in sizes), self.bounds], axis=1), float), kinds

    @cached_property
    def workers(self) -> list[tuple[str, ...]]:
        """What decides which worker measures a candidate."""
        held = ("platform.", "software.", "framework.", "data.")
        return [
            tuple(value for key, value in sorted(row.items()) if key.startswith(held) or key == "devices")
            for row in self.table.rows
        ]


class Ended(NamedTuple):
    """How a candidate ended, in which run."""

    run_id: str
    outcome: str


class Knowledge:
    """What is known of candidates.

    ended: index -> how it ended. past: index -> its measured run. claimed: indices that drivers measure now.
    """

    def __init__(self, candidates: Candidates, settings: Settings, history: History, sweep_id: str) -> None:
        self.candidates = candidates
        self.ended: dict[int, Ended] = {}
        self.past: dict[int, Past] = {}
        self.claimed: set[int] = set()
        self._history, self._sweep_id = history, sweep_id
        self._policy = ResumePolicy(settings.resume, settings.retry)
        self._places, self._devices = set(candidates.table.environments), set(candidates.devices)
        self._indices = {identity: index for index, identity in enumerate(candidates.identities)}
        self._own: set[int] = set()

    def look(self, environments: Collection[str] = (), read: bool = True) -> None:
        """Ask the store again; one that does not answer leaves what is known. `environments` count from now on.

        `read`: what was measured too, and not only which points ended or are claimed.
        """
        self._places |= set(environments)
        with contextlib.suppress(StoreError):
            # A point that ends between the two questions is in both answers, and counts once.
            claimed = {self._indices.get(identity) for identity in self._history.claimed()}
            known = self._history.finished(self._places if self._policy.looks else (), self._sweep_id)
            for identity, runs in known.items():
                index = self._indices.get(identity)
                if index is None or index in self._own:
                    continue
                ours = [run for run in runs if run.tags.get("sweep_id") == self._sweep_id]
                if found := first_accepted(self.candidates.points[index], runs, self._policy) or next(iter(ours), None):
                    self.ended[index] = Ended(found.run_id, found.tags["outcome"])
            self._devices |= {run.tags["device"] for runs in known.values() for run in runs if "device" in run.tags}
            self.claimed = {index for index in claimed if index is not None} - self._own - self.ended.keys()
            if read:
                self._read({ended.run_id: index for index, ended in self.ended.items() if ended.outcome == "ok"})

    def _read(self, wanted: Mapping[str, int]) -> None:
        """Read the runs that are not read yet: mostly few, and new."""
        for most in (256 + 2 * len(wanted), _EVERY_RUN):
            missing = {run_id: index for run_id, index in wanted.items() if index not in self.past}
            if missing:
                runs = self._history.past(self._devices, most)
                self.past |= {missing[run.run_id]: run for run in runs if run.run_id in missing}

    def take(self, rows: Iterable[Row]) -> None:
        """Note what this session measured itself."""
        for row in rows:
            tags = row.tags
            found = Identity(tags["point_id"], tags["environment_id"], int(tags["replicate"]))
            index = self._indices.get(found)
            if index is None:
                continue
            self._own.add(index)
            self.ended[index] = Ended(row.run_id, row.outcome)
            if row.outcome == "ok":
                params, tags = row_of(self.candidates.points[index]), {**tags, "outcome": row.outcome}
                self.past[index] = Past(row.run_id, time.time(), params, row.metrics, tags)

    @property
    def tried(self) -> int:
        """How many were measured, or tried: what memory excludes was not."""
        return sum(ended.outcome != "oom_predicted" for ended in self.ended.values())

    def runs(self) -> PastRuns:
        """The measured ones, as one session."""
        runs = PastRuns.of(list(self.past.values()), self.candidates.rates)
        return replace(runs, table=replace(runs.table, sessions=[_SESSION] * len(runs)))

    def _memory(self) -> tuple[list[int], NDArray[np.bool_]]:
        """The candidates that say something of memory, and which of them ran out."""
        tried = [index for index, ended in self.ended.items() if ended.outcome in ("ok", *_TOO_LARGE)]
        return tried, np.array([self.ended[index].outcome != "ok" for index in tried], dtype=bool)

    def too_large(self) -> dict[int, str]:
        """Index -> why a candidate without an outcome is out of memory: by arithmetic, or by the run that proves it."""
        candidates, (tried, failed) = self.candidates, self._memory()
        sizes, kinds = candidates.sizes_and_kinds
        names = [self.ended[index].run_id for index in tried]
        proofs = excluded(sizes, kinds, sizes[tried], [kinds[index] for index in tried], failed, names)
        found = {
            int(index): f"needs at least {candidates.bounds[index] / 2**30:,.2f} GiB, "
            f"the limit is {candidates.limits[index] / 2**30:.2f} GiB"
            for index in np.flatnonzero(candidates.bounds > candidates.limits)
        }
        found |= {
            index: f"no smaller in any size than run {proof}, which was out of memory"
            for index, proof in enumerate(proofs)
            if proof
        }
        return {index: reason for index, reason in found.items() if index not in self.ended}

    def unavailable(self) -> set[int]:
        """Candidates on a device or software that an earlier one did not find."""
        workers = self.candidates.workers
        lacking = {workers[index] for index, ended in self.ended.items() if ended.outcome == "unavailable"}
        return {index for index, worker in enumerate(workers) if worker in lacking}
