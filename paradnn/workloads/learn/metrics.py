"""The metrics of training to a target accuracy."""

from paradnn.core.metric import Metric

METRICS = (
    Metric(
        "heldout_accuracy", "1", "higher", "learn.metric over the held-out examples after the epoch"
    ),
    Metric("heldout_loss", "1", "lower", "mean cross entropy over the held-out examples"),
    Metric("train_loss", "1", "lower", "loss of the epoch's last batch"),
    Metric(
        "learning_seconds", "s", None, "time that counts, from the first step to the epoch's end"
    ),
    Metric(
        "seconds_to_target",
        "s",
        "lower",
        "the same, to the end of the first epoch with learn.target",
    ),
    Metric("epochs_to_target", "1", "lower", "epochs until then"),
    Metric("steps_to_target", "1", "lower", "steps until then"),
    Metric("examples_to_target", "1", "lower", "examples trained with until then"),
    Metric("energy_to_target_joules", "J", "lower", "energy of the package or board until then"),
    Metric("best_accuracy", "1", "higher", "the best of all epochs"),
    Metric("epochs", "1", None, "epochs of the whole training"),
    Metric("epochs_below_target", "1", "lower", "epochs below learn.target after it was reached"),
    Metric("evaluation_seconds", "s", "lower", "what all evaluations took"),
)
