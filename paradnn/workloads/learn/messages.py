"""The message that the worker sends to the driver at the end of each epoch of a training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.messages import WorkloadMessage


@dataclass(frozen=True)
class Epoch(WorkloadMessage):
    """One epoch of a training.

    Attributes:
        number: Number of the epoch, from 1.
        steps: Number of training steps in this epoch.
        ended: When the epoch ended, in Unix seconds.
        train_seconds: Duration of the steps, in seconds.
        evaluation_seconds: Duration of the evaluation after the steps, in seconds.
        train_loss: Loss of the last batch.
        heldout_loss: Mean cross entropy over all held-out examples.
        accuracy: Value of learn.metric (0..1) over all held-out examples.
        joules: Energy of the steps in J, including the evaluation if learn.evaluate_inside=true;
            None if it is not measured.
        resumed: Whether this is the first epoch after an interruption.
        start: Source of the initial weights as text; empty if they were random.
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
    """Return the number of the epoch after which a training ends, given the epochs so far.

    Args:
        epochs: The epochs so far.
        target: Accuracy (0..1) to reach.
        max_epochs: Maximum number of epochs: the result if no epoch has reached the target.
        epochs_after: Number of epochs to train after the first epoch that reached the target.
    """
    for epoch in epochs:
        if epoch.accuracy >= target:
            return epoch.number + epochs_after
    return max_epochs
