"""The metrics of training to a target accuracy."""

from paradnn.core.metric import Metric, in_section

METRICS = (
    Metric(
        "heldout_accuracy", "1", "higher", "learn.metric over the held-out examples after an epoch"
    ),
    Metric("heldout_loss", "1", "lower", "mean cross entropy over the held-out examples"),
    Metric("train_loss", "1", "lower", "loss of the last batch of an epoch"),
    Metric(
        "seconds_to_target",
        "s",
        "lower",
        "learning_seconds at the end of the first epoch that reached learn.target",
    ),
    Metric("best_accuracy", "1", "higher", "highest heldout_accuracy of all epochs"),
    *in_section(
        "learning",
        Metric(
            "learning_seconds",
            "s",
            None,
            "time of all steps so far, including evaluations if learn.evaluate_inside=true",
        ),
        Metric("epochs_to_target", "1", "lower", "epochs until learn.target was reached"),
        Metric("steps_to_target", "1", "lower", "training steps until learn.target was reached"),
        Metric(
            "examples_to_target",
            "1",
            "lower",
            "training examples processed until learn.target was reached",
        ),
        Metric("epochs", "1", None, "epochs of the whole training"),
        Metric(
            "epochs_below_target",
            "1",
            "lower",
            "number of later epochs below learn.target after an epoch reached it",
        ),
        Metric("evaluation_seconds", "s", "lower", "time of all evaluations"),
    ),
    *in_section(
        "energy",
        Metric(
            "energy_to_target_joules",
            "J",
            "lower",
            "energy of the package or board until learn.target was reached",
        ),
    ),
)
