"""Which stored outcomes make measuring a point again unnecessary."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from paradnn.config import Point
from paradnn.identity import limits_id
from paradnn.outcome import LIMIT_OUTCOMES

__all__ = ["ResumePolicy"]


@dataclass(frozen=True)
class ResumePolicy:
    """`resume` is True, False or "retry"; `retry` names the outcomes that "retry" measures again."""

    resume: bool | str
    retry: Collection[str]

    @property
    def looks(self) -> bool:
        """Whether the store is asked at all."""
        return self.resume is not False

    def counts(self, point: Point, tags: Mapping[str, str]) -> bool:
        """Whether a run with these tags stands for `point`, whose identity it shares.

        An outcome that a limit caused counts under the same limits alone: with more time or memory the point may end
        otherwise.
        """
        outcome = tags.get("outcome")
        if outcome is None:
            return False
        if outcome in LIMIT_OUTCOMES and tags.get("limits_id") != limits_id(point.measure):
            return False
        return not (self.resume == "retry" and outcome in self.retry)
