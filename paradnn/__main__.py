"""`paradnn COMMAND ...`, or `python -m paradnn COMMAND ...`: every command of the suite behind one name."""

from __future__ import annotations

import importlib
import sys

__all__ = ["main"]

#: Each is also a module of its own: `python -m paradnn.train`, `python -m analysis`.
COMMANDS = {
    "train": "paradnn.train",
    "plan": "paradnn.plan",
    "ceilings": "paradnn.ceilings",
    "stacks": "paradnn.stacks",
    "sync": "paradnn.sync",
    "analysis": "analysis.cli",
}


def main() -> int:
    """Run the command named first; the process' exit code. A word that is none lists them."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print(f"paradnn COMMAND ...; commands: {', '.join(COMMANDS)}; each has --help")
        return 0
    if name not in COMMANDS:
        print(f"error: {name or 'no command'}: choose one of {', '.join(COMMANDS)}; each has --help", file=sys.stderr)
        return 2
    del sys.argv[1]
    return int(importlib.import_module(COMMANDS[name]).main())


if __name__ == "__main__":
    sys.exit(main())
