"""The commands of the suite, by the word that follows `paradnn` on the command line."""

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """Entry of a command in the list of `paradnn --help`.

    Attributes:
        module: The module that contains the `main` of the command. `python -m` can also run it.
        summary: Description of the command in one line.
    """

    module: str
    summary: str


COMMANDS = {
    "train": CommandEntry("paradnn.train", "measure a point, or with -m a sweep"),
    "watch": CommandEntry(
        "paradnn.watch", "show a sweep in progress: points, speeds, expected end"
    ),
    "plan": CommandEntry("paradnn.plan", "predict how long a sweep takes, without measuring"),
    "compare": CommandEntry(
        "paradnn.compare.__main__",
        "find out which of two settings, stacks, commands or commits is faster",
    ),
    "best": CommandEntry(
        "paradnn.best.__main__", "find the best settings for a model on this machine"
    ),
    "gate": CommandEntry(
        "paradnn.compare.gate",
        "check whether this checkout is slower than a commit, in continuous integration",
    ),
    "ask": CommandEntry(
        "analysis.atlas.ask", "predict how long a model takes on devices that you do not have"
    ),
    "normal": CommandEntry(
        "analysis.atlas.normal", "check whether a measured number is normal for its device"
    ),
    "check": CommandEntry("paradnn.check", "find out what disturbs measurements on this machine"),
    "ceilings": CommandEntry("paradnn.ceilings", "measure the peak performance of this machine"),
    "stacks": CommandEntry("paradnn.stacks", "list, install and remove software stacks"),
    "sync": CommandEntry("paradnn.sync", "upload results that were kept as files"),
    "analysis": CommandEntry(
        "analysis.cli", "analyze the runs in a tracking store, or write a report of all analyses"
    ),
    "ui": CommandEntry("paradnn.ui", "start the MLflow UI of the store, with links to views of it"),
    "list": CommandEntry(
        "paradnn.listing", "list models, presets, metrics or keys, or search them"
    ),
    "completion": CommandEntry(
        "paradnn.completion", "print a script that completes words in your shell"
    ),
}
