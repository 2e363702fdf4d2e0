"""`paradnn COMMAND ...`, or `python -m paradnn COMMAND ...`: every command of the suite behind one
name.
"""

import importlib
import sys

from paradnn.cli.commands import COMMANDS
from paradnn.cli.program import program
from paradnn.core.errors import ParadnnError
from paradnn.core.words import did_you_mean


@program
def main() -> int:
    """Run the command named first; the process' exit code. A word that is none lists them."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name == "help" and sys.argv[2:3] and sys.argv[2] in COMMANDS:
        sys.argv[1:] = [name := sys.argv[2], "--help"]
    if name in ("-h", "--help", "help"):
        print(
            "usage: paradnn COMMAND ...; paradnn COMMAND --help says what it takes; paradnn --version\n"
        )
        print("\n".join(f"  {command:<12}{text}" for command, (_, text) in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        raise ParadnnError(
            f"{name or 'no command'}: {hint}choose one of {', '.join(COMMANDS)}; each has --help"
        )
    del sys.argv[1]
    return int(importlib.import_module(COMMANDS[name][0]).main())


if __name__ == "__main__":
    sys.exit(main())
