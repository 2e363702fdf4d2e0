"""The command line: one sub-command for each analysis, all with the same options for choosing runs
and for output.

Arguments, printing, --csv, --figure, --width and --log are made for each from its dataclass of
options.
"""

import gc
import sys
import warnings
from collections.abc import Sequence

from analysis.cli.commands import COMMANDS
from paradnn.cli.console import say
from paradnn.cli.parser import Parser
from paradnn.cli.program import program

__all__ = ["COMMANDS", "main", "make_parser"]


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; returns the exit code. What a user can mend is one line on standard
    error and code 2.
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    command_line = ["analysis", *(sys.argv[1:] if argv is None else argv)]
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}", sys.stderr)
        # Text columns are a block each: pandas warns where one is added to a hundred.
        warnings.filterwarnings("ignore", message="DataFrame is highly fragmented")
        gc.set_threshold(
            100_000
        )  # each time it looks at the runs that are being read, of which none is garbage
        args.sub_command.execute(args, command_line)
    return 0


def make_parser() -> Parser:
    """The parser of the whole command line; what it gives has the chosen command as `sub_command`."""
    parser = Parser(
        "python -m analysis",
        description="Analyse the runs in a tracking store.",
        epilog="python -m analysis COMMAND --help says what a command does and takes.",
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
