"""`paradnn COMMAND ...`, or `python -m paradnn COMMAND ...`: every command of the suite behind one name."""

from __future__ import annotations

import importlib
import sys

from paradnn.cli.commands import COMMANDS

__all__ = ["main"]


def main() -> int:
    """Run the command named first; the process' exit code. A word that is none lists them."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print("usage: paradnn COMMAND ...; each command has --help\n")
        print("\n".join(f"  {command:<12}{text}" for command, (_, text) in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        print(f"error: {name or 'no command'}: choose one of {', '.join(COMMANDS)}; each has --help", file=sys.stderr)
        return 2
    del sys.argv[1]
    return int(importlib.import_module(COMMANDS[name][0]).main())


if __name__ == "__main__":
    sys.exit(main())
