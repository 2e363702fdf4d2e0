"""The commands of the suite: what is typed after `paradnn`."""

#: Command -> its module, which `python -m` runs too, and what it does.
COMMANDS = {
    "train": ("paradnn.train", "measure a point, or with -m a sweep"),
    "watch": ("paradnn.watch", "a sweep in progress: points, speeds, expected end"),
    "plan": ("paradnn.plan", "how long a sweep would take; measures nothing"),
    "compare": ("paradnn.compare.__main__", "which of two settings, stacks, commands or commits is faster"),
    "gate": ("paradnn.compare.gate", "whether this checkout is slower than a commit, for continuous integration"),
    "ask": ("analysis.atlas.ask", "how long a model would take on devices that one does not have"),
    "normal": ("analysis.atlas.normal", "whether a measured number is what is to be expected of its device"),
    "check": ("paradnn.check", "what of this machine will hurt measurements"),
    "ceilings": ("paradnn.ceilings", "measure what this machine can do at most"),
    "stacks": ("paradnn.stacks", "list, install and remove software stacks"),
    "sync": ("paradnn.sync", "upload results that were kept as files"),
    "analysis": ("analysis.cli", "analyse the runs in a tracking store, make a report"),
    "ui": ("paradnn.ui", "the MLflow UI of the store, with links to views of it"),
    "list": ("paradnn.listing", "models, presets, metrics, keys: what there is, with a word in it"),
    "completion": ("paradnn.completion", "complete words in the shell"),
}
