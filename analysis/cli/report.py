"""`report`: everything that the chosen runs can carry, as one HTML page."""

from __future__ import annotations

import argparse
import shlex
import sys

from analysis.cli.options import load_chosen
from analysis.summaries.command import Command, argument
from paradnn.errors import StoreError

__all__ = ["COMMANDS"]

_SELECTION = ("family", "platform", "device", "outcome", "since", "until")


def report(args: argparse.Namespace) -> None:
    """Read the runs, make the page, say where it is. StoreError where there is no run to report."""
    from analysis.report import check_target, make_report, write_page
    from paradnn.store.address import address_of

    target = check_target(args.out)
    options = _chosen(args)
    frame = load_chosen(args)
    if frame.empty:
        narrowing = shlex.join(_narrowing(args))
        why = (
            f"the options choose none of its runs: {narrowing}"
            if narrowing
            else ("it holds no finished run: measure first, with python -m paradnn.train -m experiment=quick")
        )
        raise StoreError(f"nothing to report from {address_of(args.store).public}, {why}")
    page = make_report(frame, args, options, progress=_show if sys.stderr.isatty() else None)
    write_page(page, target)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{target} ({len(page.encode(errors='replace')) / 1e6:.1f} MB, {len(frame):,} runs)")
    print(f"Open it in a browser: {_opener()} {shlex.quote(str(target))}")


def _show(what: str) -> None:
    print(f"\r\033[K{what[:70]} ...", end="", file=sys.stderr, flush=True)


def _opener() -> str:
    return {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")


def _chosen(args: argparse.Namespace) -> list[str]:
    """The shared options as they were given, for commands that choose the same runs; no credentials."""
    from paradnn.store.address import without_secrets

    options = ["--store", without_secrets(args.store)] if args.store else []
    for name in args.experiment or []:
        options += ["--experiment", name]
    return options + _narrowing(args) + (["--pool"] if args.pool else [])


def _narrowing(args: argparse.Namespace) -> list[str]:
    options: list[str] = []
    for name in _SELECTION:
        value = getattr(args, name)
        if value:
            options += [f"--{name}", value if isinstance(value, str) else ",".join(value)]
    for key, value in args.tag:
        options += ["--tag", f"{key}={value}"]
    for condition in args.where:
        options += ["--where", condition]
    return options + (["--unfinished"] if args.unfinished else [])


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="report",
        summary="all that the runs can carry as one HTML page: figures, numbers, what is missing",
        description="Write one self-contained HTML page: what was measured where, every analysis that the runs can\n"
        "carry with its figure, its numbers in words and its table, comparisons, claims, and what is\n"
        "missing. Runs of unlike environments or protocols are parts of their own. Opens without network.",
        example="python -m analysis report --out report.html",
        act=report,
        arguments=(
            argument("--out", metavar="FILE", default="report.html", help="the page to write (default: report.html)"),
        ),
    ),
)
