"""`paradnn COMMAND ...`, or `python -m paradnn COMMAND ...`: every command of the suite behind one name."""

from __future__ import annotations

import runpy
import sys

__all__ = ["main"]

#: Each is also a module of its own: `python -m paradnn.train`, `python -m analysis`.
COMMANDS = {
    "train": "paradnn.train",
    "plan": "paradnn.plan",
    "ceilings": "paradnn.ceilings",
    "stacks": "paradnn.stacks",
    "sync": "paradnn.sync",
    "analysis": "analysis",
}


def main() -> None:
    """Run the command named first as if its module had been; a word that is none lists them and exits with 2."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print(f"paradnn COMMAND ...; commands: {', '.join(COMMANDS)}; each has --help")
        return
    if name not in COMMANDS:
        sys.exit(f"error: {name or 'no command'}: choose one of {', '.join(COMMANDS)}; each has --help")
    del sys.argv[1]
    runpy.run_module(COMMANDS[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
