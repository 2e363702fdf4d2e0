"""Messages of a training from worker to driver: one per epoch, at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.messages import WorkloadMessage


@dataclass(frozen=True)
class Epoch(WorkloadMessage):
    """One epoch of a training.

    Attributes:
        number: Its number, from 1.
        steps: Number of steps.
        ended: When it ended, in Unix seconds.
        train_seconds: Duration of the steps.
        evaluation_seconds: Duration of the evaluation after them.
        train_loss: Loss of the last batch.
        heldout_loss: Mean loss over all held-out examples.
        accuracy: Accuracy over all held-out examples.
        joules: Energy of what counts; None if nothing counts it.
        resumed: Whether it is the first epoch after an interruption.
        start: The weights with which the training began; empty if they were random.
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
    start: str = ""


def last_epoch(epochs: Sequence[Epoch], target: float, max_epochs: int, epochs_after: int) -> int:
    """Return the number of the epoch with which a training ends.

    Args:
        epochs: The epochs so far.
        target: Accuracy to reach.
        max_epochs: The last epoch if no epoch has reached the target.
        epochs_after: Epochs after the first that reached it.
    """
    for epoch in epochs:
        if epoch.accuracy >= target:
            return epoch.number + epochs_after
    return max_epochs
