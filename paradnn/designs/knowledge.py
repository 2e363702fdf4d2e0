"""What is known of the points that an adaptive sweep may measure: its whole state, read from the store.

So the same command goes on wherever it was ended, and several drivers of one store share a sweep.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import Identity
from paradnn.config.point import Point, Settings
from paradnn.core.errors import StoreError
from paradnn.designs.frontier import excluded
from paradnn.forecast.history import History, Past
from paradnn.forecast.regression import Array
from paradnn.forecast.status import rates_of, sweep_status
from paradnn.forecast.table import PastRuns, row_of, table_of_points
from paradnn.session.course import Row
from paradnn.store.runs import ResumePolicy

#: Groups of keys, and keys, that change neither a step nor what memory it takes.
_ASIDE = ("measure", "replicate", "seed")
#: All that a candidate's session is called: one design, in however many sessions it was measured.
_SESSION = "design"
_EVERY_RUN = 10**9


class Ended(NamedTuple):
    """How a candidate ended, in which run."""

    run_id: str
    outcome: str


class Knowledge:
    """The distinct points of a sweep, n candidates, and what is known of them.

    points: (n,), with their `table`. bounds, limits: (n,) bytes that arithmetic says a point takes, and that it may
    take, infinite where unknown. ended: index -> how it ended. past: index -> its measured run. claimed: indices that
    drivers measure now.
    """

    def __init__(self, points: Sequence[Point], settings: Settings, history: History, sweep_id: str) -> None:
        self._settings, self._history, self._sweep_id = settings, history, sweep_id
        self._policy = ResumePolicy(settings.resume, settings.retry)
        self.ended: dict[int, Ended] = {}
        self.past: dict[int, Past] = {}
        self.claimed: set[int] = set()
        self._own: set[int] = set()
        self._all = points
        self.describe()
        self._environments, self._devices = set(self.table.environments), set(self._on)

    def describe(self) -> None:
        """Look at the points by the ceilings that the store has now; ParadnnError as a session's before its first."""
        points, status = self._all, sweep_status(self._all, self._settings, self._history)
        places = sorted({one: index for index, one in reversed([*enumerate(status.identities)])}.values())
        self.points = [points[index] for index in places]
        environments = [status.environments[index] for index in places]
        ids, self._on = [place.environment_id for place in environments], [place.device for place in environments]
        self._indices = {status.identities[index]: number for number, index in enumerate(places)}
        self._rates = rates_of(status)
        table = table_of_points(self.points, ids, self._on, self._rates)
        self.table = replace(table, sessions=[_SESSION] * len(table))
        self.bounds, self.limits = status.costs["memory_lower_bound_bytes"][places], status.limits[places]
        self._workers = [(status.workers[index], repr(points[index].data), points[index].devices) for index in places]
        self.lacks_ceilings = self._settings.ceilings and not all(status.ceilings.values())

    @cached_property
    def axes(self) -> dict[str, NDArray[Any]]:
        """The keys in which candidates differ, with the values (n,) of each: numbers, or texts where any is none; "" of
        a candidate that lacks the key. A list of numbers, such as model.blocks, counts as its sum."""
        axes: dict[str, NDArray[Any]] = {}
        rows = self.table.rows
        for key in dict.fromkeys(key for row in rows for key in row if key.split(".")[0] not in _ASIDE):
            texts = [row.get(key, "") for row in rows]
            numbers = {text: _number(text) for text in set(texts)}
            if len(numbers) > 1:
                axes[key] = np.array(texts if None in numbers.values() else [numbers[text] for text in texts])
        return axes

    @cached_property
    def coordinates(self) -> Array:
        """(n, k) where each candidate lies in the space; words lie in their order."""
        columns = [np.unique(axis, return_inverse=True)[1] for axis in self.axes.values()]
        return np.stack(columns, axis=1).astype(float) if columns else np.zeros((len(self.points), 0))

    @cached_property
    def _sizes_and_kinds(self) -> tuple[Array, list[Hashable]]:
        """(n, k) what memory grows with: sizes of model and batch, and its analytic lower bound in bytes; and what must
        be equal for one point's memory to say anything of another's: all that is no size, and the environment."""
        is_size = {
            key: axis.dtype.kind == "f" and (key == "batch_size" or key.startswith("model."))
            for key, axis in self.axes.items()
        }
        sizes = [axis for key, axis in self.axes.items() if is_size[key]]
        others = [axis for key, axis in self.axes.items() if not is_size[key]]
        return np.stack([*sizes, self.bounds], axis=1), [*zip(self.table.environments, *others, strict=True)]

    def look(self, read: bool = True) -> None:
        """Ask the store again; one that does not answer leaves what is known.

        `read`: what was measured too, and not only which points ended or are claimed.
        """
        with contextlib.suppress(StoreError):
            # A point that ends between the two questions is in both answers, and counts once.
            claimed = {self._indices.get(identity) for identity in self._history.claimed()}
            known = self._history.finished(self._environments if self._policy.looks else (), self._sweep_id)
            for identity, runs in known.items():
                index = self._indices.get(identity)
                if index is None or index in self._own:
                    continue
                ours = [run for run in runs if run.tags.get("sweep_id") == self._sweep_id]
                if found := self._policy.first(self.points[index], runs) or next(iter(ours), None):
                    self.ended[index] = Ended(found.run_id, found.tags["outcome"])
            self._devices |= {run.tags["device"] for runs in known.values() for run in runs if "device" in run.tags}
            self.claimed = {index for index in claimed if index is not None} - self._own - self.ended.keys()
            wanted = {one.run_id: index for index, one in self.ended.items() if one.outcome == "ok"}
            for most in (256 + 2 * len(wanted), _EVERY_RUN) if read else ():  # those not read yet: mostly few, and new
                missing = {run_id: index for run_id, index in wanted.items() if index not in self.past}
                if missing:
                    past = self._history.past(self._devices, most)
                    self.past |= {missing[run.run_id]: run for run in past if run.run_id in missing}

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
                params, tags = row_of(self.points[index]), {**tags, "outcome": row.outcome}
                self.past[index] = Past(row.run_id, time.time(), params, row.metrics, tags)

    @property
    def tried(self) -> int:
        """How many were measured, or tried: what memory excludes was not."""
        return sum(ended.outcome != "oom_predicted" for ended in self.ended.values())

    def runs(self) -> PastRuns:
        """The measured ones, as one session."""
        runs = PastRuns.of(list(self.past.values()), self._rates)
        return replace(runs, table=replace(runs.table, sessions=[_SESSION] * len(runs)))

    def too_large(self) -> dict[int, str]:
        """Index -> why a candidate without an outcome is out of memory: by arithmetic, or by the run that proves it."""
        tried = [index for index, one in self.ended.items() if one.outcome in ("ok", "oom_host", "oom_device")]
        failed = np.array([self.ended[index].outcome != "ok" for index in tried], dtype=bool)
        (sizes, kinds), names = self._sizes_and_kinds, [self.ended[index].run_id for index in tried]
        proofs = excluded(sizes, kinds, sizes[tried], [kinds[index] for index in tried], failed, names)
        found = {}
        for index, (proof, bound, limit) in enumerate(zip(proofs, self.bounds, self.limits, strict=True)):
            if index not in self.ended and proof:
                found[index] = f"no smaller in any size than run {proof}, which was out of memory"
            elif index not in self.ended and bound > limit:
                found[index] = f"needs at least {bound / 2**30:,.2f} GiB, the limit is {limit / 2**30:.2f} GiB"
        return found

    def unavailable(self) -> set[int]:
        """Candidates on a device or software that an earlier one did not find."""
        lacking = {self._workers[index] for index, ended in self.ended.items() if ended.outcome == "unavailable"}
        return {index for index, worker in enumerate(self._workers) if worker in lacking}


def _number(text: str) -> float | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    value = sum(value) if isinstance(value, list) else value
    return None if value is None or isinstance(value, bool | str | dict) else float(value)
