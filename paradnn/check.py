"""`python -m paradnn.check`: what of this machine will hurt measurements, and what to do.

A verdict, and a table of what was found. With --speed the ceilings are measured again, in about
half a minute: is the machine as a whole slower than at its best? Nothing is changed: python -m
pyperf system tune sets what it says.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Column, Table
from rich.text import Text

from paradnn.cli.console import SafeConsole
from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.platform.findings import Finding, gpu_findings, host_findings, load_findings
from paradnn.platform.load import LoadMonitor

#: The load is watched for so many seconds.
_SECONDS = 1.0


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser("python -m paradnn.check", __doc__)
    parser.add_argument(
        "--speed", action="store_true", help="measure the ceilings, too: is the machine slow?"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where something will hurt measurements"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0; 1 where something harms with --strict; 2 for bad input."""
    given = make_parser().parse_args(arguments)
    found = [*_look(), *([_speed()] if given.speed else [])]
    if given.json:
        print(
            json.dumps(
                {"verdict": verdict(found), "findings": [asdict(finding) for finding in found]},
                indent=1,
            )
        )
    else:
        _show(found)
    return int(given.strict and any(finding.harms for finding in found))


def verdict(findings: Sequence[Finding]) -> str:
    """How many of the findings harm, in one sentence."""
    count = sum(finding.harms for finding in findings)
    if not count:
        return "Nothing here that is known to widen intervals."
    return f"{count} thing{' here will widen' if count == 1 else 's here will widen'} intervals."


def _look() -> list[Finding]:
    watch = LoadMonitor()
    time.sleep(_SECONDS)
    return [*load_findings(watch.look()), *host_findings(), *gpu_findings()]


def _speed() -> Finding:
    """Of the CPU in the framework that is the default, whose ceilings are measured again."""
    from paradnn.config.reading import read_point
    from paradnn.config.settings import read_settings
    from paradnn.session.session import measure_ceilings

    ceilings, _ = measure_ceilings(read_point({"model": {"name": "fc"}}), read_settings({}))
    if ceilings:
        slow = ceilings.contended
    else:
        slow = "not known: the ceilings could not be measured"
    why = "a lower clock, or neighbours of a virtual machine, slow all that is measured and show in no counter"
    return Finding(
        "speed",
        "speed",
        slow or "near its best",
        slow is not None,
        why,
        "measure later" if slow else "",
    )


def _show(findings: Sequence[Finding]) -> None:
    """The verdict; what harms, with why and what to do; and a table of all."""
    console = SafeConsole()
    if not console.is_terminal:
        console = SafeConsole(width=140)
    console.print(f"{verdict(findings)}\n", soft_wrap=True, markup=False)
    headings = "", Column("what", no_wrap=True), "now", "why it matters"
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for finding in sorted(findings, key=lambda entry: not entry.harms):
        mark = Text("harms", "red") if finding.harms else Text("")
        table.add_row(mark, finding.what, Text(finding.value), Text(finding.why))
    console.print(table, end="\n\n")
    for finding in findings:
        if finding.remedy:
            console.print(f"{finding.what}\n  {finding.remedy}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
