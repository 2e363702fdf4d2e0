"""What is said of a training while it runs: a word on the terminal, and its curve in the store."""

from __future__ import annotations

import time

from paradnn.config.point import Point
from paradnn.record.learning import Moment, curve
from paradnn.tracking.base import Claim, Tracker
from paradnn.worker.learning.messages import Epoch

__all__ = ["EpochsSaid"]

#: Seconds between two of either: terminal and store stand on the machine that is measured, mostly.
_PAUSE = 2.0


class EpochsSaid:
    """Epochs of one point, as they end."""

    def __init__(self, point: Point, claim: Claim, tracker: Tracker) -> None:
        self._point, self._claim, self._tracker = point, claim, tracker
        self._epochs: list[Epoch] = []
        self._written = 0
        self._last = 0.0

    def say(self, epoch: Epoch) -> str | None:
        """Take in an epoch; what the terminal is to show, where it is time for that.

        What the store was not told by the end comes with the record.
        """
        assert self._point.learn
        self._epochs.append(epoch)
        now = time.monotonic()
        if now - self._last < _PAUSE:
            return None
        moments: list[Moment] = curve(self._point.learn, self._epochs)
        self._tracker.tell(self._claim, moments[self._written :])
        self._written, self._last = len(moments), now
        return f"epoch {epoch.number}, {self._point.learn.metric} {epoch.accuracy:.4f} of {self._point.learn.target:g}"
