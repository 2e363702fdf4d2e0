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
            "time of all steps so far, and of the evaluations if learn.evaluate_inside=true",
        ),
        Metric("epochs_to_target", "1", "lower", "epochs until the target"),
        Metric("steps_to_target", "1", "lower", "steps until the target"),
        Metric("examples_to_target", "1", "lower", "examples trained with until the target"),
        Metric("epochs", "1", None, "epochs of the whole training"),
        Metric(
            "epochs_below_target", "1", "lower", "epochs below learn.target after it was reached"
        ),
        Metric("evaluation_seconds", "s", "lower", "time of all evaluations"),
    ),
    *in_section(
        "energy",
        Metric(
            "energy_to_target_joules",
            "J",
            "lower",
            "energy of the package or board until the target",
        ),
    ),
)
