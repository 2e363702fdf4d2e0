"""What every comparison of two sides adds to its numbers: selection, power, sessions, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analysis.format import short

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["more_replicates", "no_verdict", "rare", "selection", "smallest"]

_RARE = 0.01  # share of points below which it is not said that what is rarer may be missing
_TRIED = (3, 5, 10, 20, 30)  # replicates that --power tells of


def selection(row: dict[Any, Any], names: tuple[str, str] = ("A", "B")) -> str:
    """What the points that ran on one side alone leave open, such as "57 points ran on A alone, so ..."."""
    sides = zip("ab", names, strict=True)
    missing = [f"{row[f'missing_{side}']} on {name} alone" for side, name in sides if row[f"missing_{side}"]]
    if not missing:
        return ""
    words = (
        f"Of the points that both sides tried, {' and '.join(missing)} ran: over all of them the share of points in "
        f"which {names[0]} is ahead lies between {row['share_least']:.1%} and {row['share_most']:.1%}"
    )
    if "median_least" in row:
        words += (
            f", the median between {_ratio(row['median_least'])} and {_ratio(row['median_most'])}, the geometric mean "
            f"between {_ratio(row['mean_least'])} and {_ratio(row['mean_most'])} if no ratio is more extreme than "
            "those measured"
        )
    return f"{words}."


def rare(points: int) -> Iterator[str]:
    """What so few points may not contain: with a chance of 5% all n miss what occurs in 1 - 0.05^(1/n) of points."""
    share = 1 - 0.05 ** (1 / points) if points else 1.0
    if share >= _RARE:
        yield (
            "No interval holds what did not happen: waits that occur in fewer than "
            f"{short(share, share=True)} of the points may be missing from {points} of them (95%)."
        )


def smallest(difference: float) -> str:
    """Such as "a difference of 3.1% or more would have been found in four of five cases"."""
    if not math.isfinite(difference):
        return "no difference of any size could have been found"
    return f"a difference of {_percent(difference)} would have been found in four of five cases"


def no_verdict(pairs: pd.DataFrame) -> Iterator[str]:
    """Why the sides of some families carry no verdict and what to run, each reason once."""
    from analysis.methods.pairing import sampling

    reasons: dict[str, list[str]] = {}
    for family in pairs.loc[~pairs["comparable"], "family"].unique() if len(pairs) else ():
        reasons.setdefault(sampling(pairs, str(family)).design.text(), []).append(str(family))
    for reason, names in reasons.items():
        yield f"No verdict for {', '.join(names)}: {reason}."


def more_replicates(spread: float, rate: float, tests: int, margin: float) -> str:
    """The smallest differences of one point that several numbers of replicates find, and how many `margin` takes."""
    from analysis.methods.power import detectable, replicates_for

    if not math.isfinite(spread):
        return "Power: unknown, since no point has two independent measurements on both sides."
    listed = ", ".join(f"{count}: {_percent(detectable(spread, count, rate, tests))}" for count in _TRIED)
    needed = replicates_for(margin, spread, rate, tests)
    takes = f"{needed} replicates" if needed else "over a thousand replicates"
    one = "one point" if tests <= 1 else f"one of {tests} points"
    return (
        f"Power: measurements of a point scatter by {spread:.2%}. A difference in {one} that is found in four of five "
        f"cases, by replicates a side: {listed}. {_percent(margin)} takes {takes}."
    )


def _percent(difference: float) -> str:
    return f"{100 * difference:.2g}%" if difference < 1 else f"a factor of {1 + difference:.2g}"


def _ratio(value: float) -> str:
    return "0" if value == 0 else "any" if math.isinf(value) else f"{value:.3g}"
