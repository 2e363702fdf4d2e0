"""`python -m paradnn.stacks`: list, install and remove the software stacks of this machine.

python -m paradnn.stacks                 list stacks
python -m paradnn.stacks make NAME       install a stack now
python -m paradnn.stacks remove NAME     remove all installations of a stack
"""

import sys
import time

from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.core.words import counted
from paradnn.platform.stack import list_stacks, named_stack, open_stack, remove_stacks


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn stacks`."""
    parser = Parser("python -m paradnn.stacks", __doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="list installed stacks, and those that conf/software names")
    make = commands.add_parser("make", help="install a stack now")
    make.add_argument("name")
    remove = commands.add_parser("remove", help="remove all installations of a stack")
    remove.add_argument("name")
    return parser


@program
def main() -> int:
    """List, install or remove software stacks, and return the exit code."""
    options = make_parser().parse_args()
    if options.command == "make":
        _make(options.name)
    elif options.command == "remove":
        for line in remove_stacks(options.name):
            print(line)
    else:
        for line in list_stacks():
            print(line)
    return 0


def _make(name: str) -> None:
    begin = time.perf_counter()
    stack = named_stack(name)
    with open_stack(stack, print) as packages:
        seconds = time.perf_counter() - begin
        print(f"ready after {seconds:.1f} s: {stack.python}, {counted(len(packages), 'package')}")


if __name__ == "__main__":
    sys.exit(main())
