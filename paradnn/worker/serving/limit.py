"""Whether a percentile of the latency holds a limit: told at the end of a run, or during it as soon as it is sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from paradnn.worker.serving.chance import beta_share, events_factor, fewest_to_pass, passes

__all__ = ["LOOKS", "Limit", "LimitWatch"]

#: How often a probe may be looked at; each look has so small a part of the chance of a false verdict.
LOOKS = 10
#: From one look to the next this many times as many queries.
_GROWTH = 1.5


@dataclass(frozen=True)
class Limit:
    """A share of all queries, as 0.99, is to take no longer than `latency` ns; `confidence` that it is so."""

    latency: int
    share: float
    confidence: float

    def held(self, latencies: Sequence[int]) -> bool:
        """Whether latencies in the order of their queries show it."""
        late = list(accumulate(latency > self.latency for latency in latencies))
        return verdict(late, self.share, 1 - self.confidence) is True

    @property
    def fewest(self) -> int:
        """Queries after which a probe can be told to hold it, if none of them is late."""
        return fewest_to_pass(0, self.share, 1 - (1 - self.confidence) / LOOKS)


def verdict(cumulative: Sequence[int], share: float, error: float) -> bool | None:
    """True: `share` of the queries is in time; False: it is not; None: neither is sure. Each errs with chance `error`.

    `cumulative` counts the late queries up to each. Counts are divided by how much less they say than independent ones.
    """
    if not cumulative:
        return None
    count, late = len(cumulative), cumulative[-1]
    factor = events_factor(cumulative)
    if passes((count - late) / factor, late / factor, share, 1 - error):
        return True
    # P(so many late ones or more), were just as many late as may be.
    unlikely = late > (1 - share) * count and beta_share(1 - share, late / factor, (count - late) / factor + 1) < error
    return False if unlikely else None


class LimitWatch:
    """Ends a probe once a verdict is sure: looked at when there are 1.5 times as many queries as at the last look."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._cumulative: list[int] = []
        self._next = float(limit.fewest)
        self._looks = 0
        self.held: bool | None = None

    def __call__(self, latencies: Sequence[int]) -> bool:
        """Note a batch's latencies, ns; whether the verdict is sure."""
        late = self._cumulative[-1] if self._cumulative else 0
        for latency in latencies:
            late += latency > self._limit.latency
            self._cumulative.append(late)
        if len(self._cumulative) < self._next or self._looks >= LOOKS:
            return False
        self._looks += 1
        self._next *= _GROWTH
        self.held = verdict(self._cumulative, self._limit.share, (1 - self._limit.confidence) / LOOKS)
        return self.held is not None
