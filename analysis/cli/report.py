"""`report`: everything that the chosen runs can carry, as one HTML page."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.cli.selection import load_chosen
from analysis.options import Options, Selection, command_line, option
from analysis.prices import price_option, read_prices
from paradnn.core.words import counted
from paradnn.errors import StoreError

if TYPE_CHECKING:
    pass

__all__ = ["ReportOptions", "report"]


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Where the page goes, and for whom it is."""

    command = "report"

    audience: Literal["both", "manager", "engineer"] = option(
        "both",
        "verdict, results and systems (manager), every analysis (engineer), or both parts (default)",
        flag="--for",
        group="page",
    )
    price: tuple[str, ...] = price_option("adds the cost of a million examples", group="page")
    out: str = option("report.html", "the page to write (default: report.html)", metavar="FILE")


def report(options: ReportOptions, selection: Selection) -> None:
    """Read the runs, make the page, say where it is. StoreError where there is no run to report."""
    from analysis.report import check_target, make_report, write_page
    from paradnn.store.address import address_of

    target = check_target(options.out)
    frame = load_chosen(selection, may_be_empty=True)
    if frame.empty:
        narrowing = command_line(dataclasses.replace(selection, store=(), experiment=()))
        why = (
            f"the options choose none of its runs: {shlex.join(narrowing)}"
            if narrowing
            else "it holds no finished run: measure first, with python -m paradnn.train -m experiment=quick"
        )
        where = ", ".join(address_of(uri).public for uri in selection.store or (None,))
        raise StoreError(f"nothing to report from {where}, {why}")
    page = make_report(
        frame,
        selection,
        pool=options.pool,
        audience=options.audience,
        prices=read_prices(options.price, frame),
        progress=_show if sys.stderr.isatty() else None,
    )
    write_page(page, target)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{target} ({len(page.encode(errors='replace')) / 1e6:.1f} MB, {counted(len(frame), 'run')})")
    print(f"Open it in a browser: {_opener()} {shlex.quote(str(target))}")


def _show(what: str) -> None:
    print(f"\r\033[K{what[:70]} ...", end="", file=sys.stderr, flush=True)


def _opener() -> str:
    return {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
