"""What training gave, as it crosses the pipe: an epoch, when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.messages import WorkloadMessage


@dataclass(frozen=True)
class Epoch(WorkloadMessage):
    """An epoch of so many steps, the first is number 1; `ended` is in Unix seconds. `train_loss` is
    that of its last batch, `accuracy` and `heldout_loss` are over all held-out examples; `joules`
    were taken in what counts, None where nothing counts them; `resumed`: it is the first since the
    training was interrupted.
    """

    wire_name: ClassVar[str] = "epoch"

    number: int
    steps: int
    ended: float
    train_seconds: float
    evaluation_seconds: float
    train_loss: float
    heldout_loss: float
    accuracy: float
    joules: float | None
    resumed: bool = False


def last_epoch(epochs: Sequence[Epoch], target: float, most: int, after: int) -> int:
    """The number of the epoch that a training ends with, as far as `epochs` tell: `after` epochs
    beyond the first whose accuracy is `target`; `most` where there is none yet.
    """
    reached = next((epoch.number for epoch in epochs if epoch.accuracy >= target), None)
    return most if reached is None else reached + after
