"""`paradnn COMMAND ...`, or `python -m paradnn COMMAND ...`: every command of the suite behind one name."""

from __future__ import annotations

import importlib
import sys

__all__ = ["main"]

#: Command -> its module, which `python -m` runs too, and what it does.
COMMANDS = {
    "train": ("paradnn.train", "measure a point, or with -m a sweep"),
    "plan": ("paradnn.plan", "how long a sweep would take; measures nothing"),
    "compare": ("paradnn.compare.command", "which of two settings, stacks or frameworks is faster"),
    "check": ("paradnn.check", "what of this machine will hurt measurements; --tune, --restore"),
    "ceilings": ("paradnn.ceilings", "measure what this machine can do at most"),
    "stacks": ("paradnn.stacks", "list, install and remove software stacks"),
    "sync": ("paradnn.sync", "upload results that were kept as files"),
    "ui": ("paradnn.ui", "the MLflow UI of the store, with links to views of it"),
    "analysis": ("analysis.cli", "analyse the runs in a tracking store, make a report"),
}


def main() -> int:
    """Run the command named first; the process' exit code. A word that is none lists them."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print("usage: paradnn COMMAND ...; each command has --help\n")
        print("\n".join(f"  {command:<10}{text}" for command, (_, text) in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        print(f"error: {name or 'no command'}: choose one of {', '.join(COMMANDS)}; each has --help", file=sys.stderr)
        return 2
    del sys.argv[1]
    return int(importlib.import_module(COMMANDS[name][0]).main())


if __name__ == "__main__":
    sys.exit(main())
