"""`python -m paradnn.check`: find out what disturbs measurements on this machine, and what to do.

The command prints a verdict and a table of findings. With --speed, it measures the peak performance
again, for about half a minute, to see whether the whole machine is slower than at its best. It
changes no settings of the host. To change them, run python -m pyperf system tune.
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

#: Seconds for which the load is observed.
_LOAD_SECONDS = 1.0
#: Width in characters of a table that is not printed to a terminal.
_FILE_WIDTH = 140


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn check`."""
    parser = Parser("python -m paradnn.check", __doc__)
    parser.add_argument(
        "--speed",
        action="store_true",
        help="measure the peak performance as well, to see whether the machine is slow",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if something disturbs measurements"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the settings and processes that disturb measurements on this machine.

    Args:
        arguments: The words of the command line; None for those of this process.

    Returns:
        The exit code: 1 if --strict is given and a finding harms measurements, else 0.
    """
    options = make_parser().parse_args(arguments)
    findings = _findings()
    if options.speed:
        findings.append(_speed())
    if options.json:
        content = {
            "verdict": verdict(findings),
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(content, indent=1))
    else:
        _print(findings)
    return int(options.strict and any(finding.harms for finding in findings))


def verdict(findings: Sequence[Finding]) -> str:
    """Return a sentence with the number of findings that harm measurements.

    Args:
        findings: Settings and facts of the host. Not all of them harm measurements.
    """
    count = sum(finding.harms for finding in findings)
    if not count:
        return "No known noise sources found."
    if count == 1:
        return "1 noise source found: it will widen intervals."
    return f"{count} noise sources found: they will widen intervals."


def _findings() -> list[Finding]:
    monitor = LoadMonitor()
    time.sleep(_LOAD_SECONDS)
    return [*load_findings(monitor.look()), *host_findings(), *gpu_findings()]


def _speed() -> Finding:
    """Measure whether the CPU reaches its best known speed, and return a finding about it.

    The default framework runs the measurement.
    """
    from paradnn.config.reading import read_point
    from paradnn.config.settings import read_settings
    from paradnn.session.session import measure_ceilings

    ceilings, _ = measure_ceilings(read_point({"model": {"name": "fc"}}), read_settings({}))
    if ceilings is None:
        problem: str | None = "unknown: the peak performance could not be measured"
    else:
        problem = ceilings.contended
    return Finding(
        name="speed",
        what="speed",
        value=problem or "near its best",
        harms=problem is not None,
        why="a lower clock or other virtual machines on the same host slow everything down, and no "
        "counter shows it",
        remedy="measure later" if problem else "",
    )


def _print(findings: Sequence[Finding]) -> None:
    """Print the verdict, a table of all findings with harmful ones first, and the remedies."""
    console = SafeConsole()
    if not console.is_terminal:
        console = SafeConsole(width=_FILE_WIDTH)
    console.print(f"{verdict(findings)}\n", soft_wrap=True, markup=False)
    table = Table(
        "",
        Column("what", no_wrap=True),
        "now",
        "why it matters",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for finding in sorted(findings, key=lambda finding: not finding.harms):
        mark = Text("harms", "red") if finding.harms else Text("")
        table.add_row(mark, finding.what, Text(finding.value), Text(finding.why))
    console.print(table, end="\n\n")
    for finding in findings:
        if finding.remedy:
            console.print(f"{finding.what}\n  {finding.remedy}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
