"""What training gave, as it crosses the pipe: an epoch, when it ends."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Epoch", "EpochEnded"]


@dataclass(frozen=True)
class Epoch:
    """An epoch of so many steps, the first is number 1.

    `ended` is in Unix seconds; seconds are those of its steps, and of the evaluation after them.
    `train_loss` is that of its last batch; `accuracy` and `heldout_loss` are over all held-out examples; `joules` were
    taken in what counts, None where nothing counts them.
    """

    number: int
    steps: int
    ended: float
    train_seconds: float
    evaluation_seconds: float
    train_loss: float
    heldout_loss: float
    accuracy: float
    joules: float | None


@dataclass(frozen=True)
class EpochEnded:
    """An epoch has ended."""

    epoch: Epoch
