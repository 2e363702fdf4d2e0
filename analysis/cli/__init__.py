"""The command line `python -m analysis`: a sub-command per analysis, and commands for the store.

Dataclasses of options define the arguments of each command, including the output options such as
--csv and --figure.
"""

import gc
import sys
import warnings
from collections.abc import Sequence

from analysis.cli.commands import COMMANDS, RENAMED_COMMANDS
from paradnn.cli.console import say
from paradnn.cli.parser import Parser
from paradnn.cli.program import program

__all__ = ["COMMANDS", "main", "make_parser"]


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command of `python -m analysis`.

    Args:
        argv: The arguments; None for the command line of the process.

    Returns:
        The exit code. An error that the user can fix is one line on standard error and code 2.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in RENAMED_COMMANDS:
        present = RENAMED_COMMANDS[arguments[0]]
        say(f"warning: the command {arguments[0]} is now {present}", sys.stderr)
        arguments[0] = present
    parsed = make_parser().parse_args(arguments)
    command_line = ["analysis", *arguments]
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}", sys.stderr)
        # A frame with over 100 columns of text has over 100 blocks, which pandas warns about.
        warnings.filterwarnings("ignore", message="DataFrame is highly fragmented")
        # While runs are read, a garbage collection visits all of them and frees nothing.
        gc.set_threshold(100_000)
        parsed.sub_command.execute(parsed, command_line)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line.

    It stores the chosen command as `sub_command` in the parsed arguments.
    """
    parser = Parser(
        "python -m analysis",
        description="Analyze the runs in a tracking store.",
        epilog="python -m analysis COMMAND --help describes a command and its options.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        child = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"example: {command.example}",
        )
        command.configure(child)
        child.set_defaults(sub_command=command)
    return parser
