"""`paradnn COMMAND ...` or `python -m paradnn COMMAND ...`: run any command of the suite."""

import importlib
import sys

from paradnn.cli.commands import COMMANDS
from paradnn.cli.program import program
from paradnn.core.errors import ParadnnError
from paradnn.core.words import did_you_mean

_USAGE = "usage: paradnn COMMAND ...\n       paradnn COMMAND --help\n       paradnn --version\n"


@program
def main() -> int:
    """Run the command that the first argument names, and return its exit code."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else ""
    if name == "help" and arguments[1:2] and arguments[1] in COMMANDS:
        name = arguments[1]
        sys.argv[1:] = [name, "--help"]
    if name in ("-h", "--help", "help"):
        print(_USAGE)
        for known, command in COMMANDS.items():
            print(f"  {known:<12}{command.summary}")
        return 0
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        problem = f"{name}: unknown command" if name else "no command"
        raise ParadnnError(
            f"{problem}; {hint}choose one of {', '.join(COMMANDS)}; every command has --help"
        )
    del sys.argv[1]
    return int(importlib.import_module(COMMANDS[name].module).main())


if __name__ == "__main__":
    sys.exit(main())
