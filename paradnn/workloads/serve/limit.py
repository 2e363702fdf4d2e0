"""Whether a percentile of the latency holds a limit: told at the end of a run, or during it as soon as it is sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from paradnn.worker.chance import beta_share, events_factor, fewest_to_pass, passes

#: How often a probe may be looked at; each look has so small a part of the chance of a false verdict.
LOOKS = 10
#: From one look to the next this many times as many queries.
_GROWTH = 1.5
#: A probe lasts so many times the limit, and so many ns, at least.
_LIMITS, _LEAST = 20, 2_000_000_000


@dataclass(frozen=True)
class Limit:
    """A share of all queries, as 0.99, is to take no longer than `latency` ns; `confidence` of the verdict."""

    latency: int
    share: float
    confidence: float

    def verdict(self, latencies: Sequence[int]) -> bool | None:
        """What latencies in the order of their queries show: it is held, it is missed (False), or neither."""
        late = list(accumulate(latency > self.latency for latency in latencies))
        return verdict(late, self.share, 1 - self.confidence)

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
    """Ends a probe once a verdict is sure: looked at when there are 1.5 times as many queries as at the last look.

    The first look is when queries have come for so long that a queue which grows would show: where twice as many come
    as are served the wait exceeds the limit after twice the limit, where 5% more do after 20 times; or two seconds.
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._late: list[int] = []
        self._next = float(limit.fewest)
        self._looks = 0
        self._begin: int | None = None
        self.held: bool | None = None

    def __call__(self, scheduled: Sequence[int], ended: int) -> bool:
        """Note a batch, ns: when its queries were to come, and its end; whether the verdict is sure."""
        late = self._late[-1] if self._late else 0
        for due in scheduled:
            late += ended - due > self._limit.latency
            self._late.append(late)
        self._begin = scheduled[0] if self._begin is None else self._begin
        if scheduled[-1] - self._begin < max(_LEAST, _LIMITS * self._limit.latency) or len(self._late) < self._next:
            return False
        self._next = _GROWTH * len(self._late)
        return self.look() is not None

    def look(self) -> bool | None:
        """The verdict; None where neither is sure, or where it was looked at too often."""
        if self.held is None and self._looks < LOOKS:
            self._looks += 1
            self.held = verdict(self._late, self._limit.share, (1 - self._limit.confidence) / LOOKS)
        return self.held
