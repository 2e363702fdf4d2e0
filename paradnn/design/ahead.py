"""How long an adaptive sweep would take until which error: said before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence

from paradnn.cli.console import standard_output
from paradnn.config.point import Point, Settings
from paradnn.core.words import counted
from paradnn.design.course import open_design
from paradnn.forecast.text import duration, table_of
from paradnn.sweep.tasks import SweepInfo

__all__ = ["describe_ahead"]

#: As many further points are looked at, and no more than the first share of the space where that is more.
_MOST, _SHARE = 300, 0.1


def describe_ahead(points: Sequence[Point], settings: Settings) -> None:
    """Print the expected error after some further points, with the time until then on one host."""
    design = open_design(points, settings, SweepInfo("", "", ""), time.monotonic(), anywhere=False)
    rule, space = design.rule, len(design.knowledge.candidates)
    ahead = design.ahead(rule.points or max(_MOST, int(_SHARE * space)))
    console = standard_output()
    known = design.knowledge.tried
    console.print(
        f"\nAdaptive, until {' or '.join(rule.words)}; {known:,} of {counted(space, 'point')} measured so far."
    )
    shown = table_of("further points", "of the space", "expected error", "expected time")
    for count, error, seconds in zip(ahead.counts, ahead.errors, ahead.seconds, strict=True):
        shown.add_row(f"{count:,}", f"{(known + count) / space:.1%}", f"{error:.1%}", duration(seconds))
        if (rule.error and error <= rule.error) or (rule.minutes and seconds / 60 >= rule.minutes):
            break
    console.print(shown)
    if rule.error and min(ahead.errors) > rule.error:
        needed = min(ahead.needed(rule.error, known), space - known)
        console.print(f"An error of {rule.error:.1%} is expected after about {counted(needed, 'further point')}.")
    console.print("Errors are those that the model expects of itself; measuring corrects it.", style="dim")
