"""Which stored outcomes make measuring a point again unnecessary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from paradnn.config.identity import EXTRA_KEYS, Identity, limits_id
from paradnn.config.outcome import LIMIT_OUTCOMES
from paradnn.config.point import Point
from paradnn.store.runs import Finished
from paradnn.store.schema import outcome_of

__all__ = ["PointStatus", "ResumePolicy", "first_accepted", "point_statuses", "supersedes", "wanted_extras"]


def wanted_extras(point: Point) -> set[str]:
    """What `point` asks for beside its timing: names of settings; a kept trace brings its profile along."""
    wanted = {key for key in EXTRA_KEYS if getattr(point.measure, key)}
    return wanted | {"profile"} if wanted else wanted


@dataclass(frozen=True)
class ResumePolicy:
    """`resume` is True, False or "retry"; `retry` names the outcomes that "retry" measures again."""

    resume: bool | str
    retry: Collection[str]

    @property
    def looks(self) -> bool:
        """Whether the store is asked at all."""
        return self.resume is not False

    def accepts(self, point: Point, tags: Mapping[str, str]) -> bool:
        """Whether a run with these tags is accepted as the measurement of `point`, whose identity it shares.

        An outcome that a limit caused is accepted under the same limits alone: with more time or memory the point may
        end otherwise. Where a profile or its trace is asked for, a measured run without it is not accepted; nor, under
        other limits, one whose profile a limit ended.
        """
        outcome = tags.get("outcome")
        if outcome is None:
            return False
        wanted, extras = wanted_extras(point), tags.get("extras", "").split()
        limited = outcome in LIMIT_OUTCOMES or (wanted and "limited" in extras)
        if limited and tags.get("limits_id") != limits_id(point.measure):
            return False
        if outcome == "ok" and wanted - set(extras):
            return False
        return not (self.resume == "retry" and outcome in self.retry)


def supersedes(known: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether a stored run holds all that a new one of the same identity holds, which was made without a claim.

    Both are tags. A measurement beside a failure adds something, so does an outcome under other limits, and one with a
    profile beside one without.
    """
    outcome = outcome_of(known)
    if outcome is None or (outcome != "ok" and outcome_of(new) == "ok"):
        return False
    if outcome in LIMIT_OUTCOMES and known.get("limits_id") != new.get("limits_id"):
        return False
    return not set(new.get("extras", "").split()) - set(known.get("extras", "").split())


@dataclass(frozen=True)
class PointStatus:
    """A point of a plan before it begins: `done` is the accepted run, `repeated` says that it was named before."""

    point: Point
    identity: Identity
    done: Finished | None
    repeated: bool


def first_accepted(point: Point, runs: Iterable[Finished], policy: ResumePolicy) -> Finished | None:
    """The first accepted one of runs with a point's identity."""
    return next((run for run in runs if policy.accepts(point, run.tags)), None)


def point_statuses(
    points: Iterable[Point],
    identity_of: Callable[[Point], Identity],
    done_of: Callable[[Point, Identity], Finished | None],
) -> Iterator[PointStatus]:
    """Every point with what the store knows of it; what has no run and is not repeated is to be measured."""
    seen: set[Identity] = set()
    for point in points:
        identity = identity_of(point)
        done = done_of(point, identity)
        yield PointStatus(point, identity, done, done is None and identity in seen)
        seen.add(identity)
