"""`python -m paradnn.stacks`: the software stacks of this machine.

python -m paradnn.stacks                 what there is
python -m paradnn.stacks make NAME       make it now
python -m paradnn.stacks remove NAME     remove it, under whatever requirements it was made
"""

import sys
import time

from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.core.words import counted
from paradnn.platform.stack import list_stacks, named_stack, open_stack, remove_stacks


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser("python -m paradnn.stacks", __doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="what there is, and what conf/software names")
    for command, text in (
        ("make", "make it now"),
        ("remove", "remove it, under whatever requirements"),
    ):
        commands.add_parser(command, help=text).add_argument("name")
    return parser


@program
def main() -> int:
    """`python -m paradnn.stacks [list | make NAME | remove NAME]`; the process' exit code."""
    arguments = make_parser().parse_args()
    if arguments.command == "make":
        begin = time.perf_counter()
        stack = named_stack(arguments.name)
        with open_stack(stack, print) as packages:
            seconds = time.perf_counter() - begin
            print(
                f"ready after {seconds:.1f} s: {stack.python}, {counted(len(packages), 'package')}"
            )
    else:
        for line in (
            remove_stacks(arguments.name) if arguments.command == "remove" else list_stacks()
        ):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
