"""A comparison of commands as one screen and as JSON."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from rich.table import Column

from paradnn.cli.console import fitting_table, standard_output
from paradnn.compare.commands import Turns, in_seconds
from paradnn.compare.text import describe_estimate, ends_of
from paradnn.compare.verdict import FEWEST, Estimate, Verdict
from paradnn.core.words import counted
from paradnn.store.files import whole_file

#: Verdicts as they stand in a file.
WORDS = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.EQUIVALENT: "equal",
    Verdict.NOT_SETTLED: "undecided",
}
#: Minutes for which a comparison of a side with itself says what could be seen.
_OUTLOOK = (1, 5, 20)


def verdict_word(found: Estimate | None, margin: float) -> str:
    """`faster`, `slower` (the first side), `equal` within the margin, or `undecided`."""
    return WORDS[found.verdict(margin)] if found else WORDS[Verdict.NOT_SETTLED]


def describe_commands(turns: Turns, null: bool) -> None:
    """The verdict, a table of both sides, and what could have been seen."""
    console = standard_output()
    console.print(verdict_sentence(turns), soft_wrap=True, markup=False, highlight=False)
    console.print()
    rows = [[name, *cells] for name, cells in _rows(turns)]
    columns = [Column(""), *(Column(side.label, justify="right") for side in turns.sides)]
    console.print(fitting_table(console, columns, rows, ()))
    for line in _closing(turns, null):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def verdict_sentence(turns: Turns) -> str:
    """Which is faster, by how much and how sure that is; or why there is no verdict."""
    labels = turns.sides[0].label, turns.sides[1].label
    if turns.problem:
        return f"no verdict: {turns.problem}"
    found = turns.estimate
    if found is None:
        return f"undecided: {counted(len(turns.rounds), 'round')}, and fewer than {FEWEST} carry no interval"
    return describe_estimate(found, labels, turns.rule.margin).replace("not settled:", "undecided:")


def _rows(turns: Turns) -> list[tuple[str, list[str]]]:
    sides = (0, 1)
    values = [turns.values(side) for side in sides]
    show = in_seconds if turns.metric.pattern is None else "{:,.6g}".format
    name = "time" if turns.metric.pattern is None else "metric"
    rows = [
        (f"{name}, median", [show(statistics.median(found)) if found else "" for found in values]),
        ("smallest .. largest", [f"{show(min(found))} .. {show(max(found))}" if found else "" for found in values]),
    ]
    runs = [[run for visit in turns.visits[side] for run in visit.runs if not run.failure] for side in sides]
    if all(runs):
        times = [in_seconds(statistics.median(run.cpu_seconds for run in one)) for one in runs]
        rows.append(("processor time, median", times))
        peaks = [[run.peak_memory_bytes for run in one if run.peak_memory_bytes] for one in runs]
        if any(peaks):
            known = [f"{max(one) / 2**20:,.0f} MiB" if one else "not known" for one in peaks]
            rows.append(("peak memory", known))
    rows.append(("runs", [f"{len(one):,}" for one in runs]))
    if any(turns.failures(side) for side in sides):
        rows.append(("failed visits", [f"{turns.failures(side)} of {len(turns.visits[side])}" for side in sides]))
    return rows


def _closing(turns: Turns, null: bool) -> list[str]:
    lines = []
    for side in (0, 1):
        last = next((visit.failure for visit in reversed(turns.visits[side]) if visit.failure), None)
        if last and not turns.problem:
            lines.append(
                f"{turns.sides[side].label} failed in {turns.failures(side)} of {len(turns.visits[side])} rounds "
                f"({last}); the verdict is about rounds in which both succeeded."
            )
    found = turns.estimate
    took = f"{counted(len(turns.rounds), 'round')} by turns in {in_seconds(turns.seconds)}"
    if found is None:
        return [*lines, f"{took}."]
    share = _percent(found.visible)
    lines.append(f"{took}; a side {share} faster would be found in four of five such comparisons.")
    if null:
        seen = ", ".join(f"{_percent(share)} in {minutes} min" for minutes, share in outlook(turns))
        lines.append(f"What this machine can tell apart, in four of five comparisons of such a command: {seen}.")
        lines.append("What hurts most is named by: paradnn check")
    return lines


def outlook(turns: Turns) -> list[tuple[int, float]]:
    """Minutes, and the share by which a side must then be faster to be found in four of five comparisons.

    The interval narrows as the root of the rounds, which the time buys in proportion.
    """
    found = turns.estimate
    if found is None or not turns.seconds:
        return []
    rows = []
    for minutes in _OUTLOOK:
        rounds = max(FEWEST, found.rounds * 60 * minutes / turns.seconds)
        rows.append((minutes, math.expm1(math.log1p(found.visible) * math.sqrt(found.rounds / rounds))))
    return rows


def document(turns: Turns, null: bool = False, interrupted: bool = False) -> dict[str, Any]:
    """What --json holds: the first side's speed over the second's, its 95% interval, a verdict, and every run."""
    found = turns.estimate
    content: dict[str, Any] = {
        **ends_of(found),
        "verdict": "undecided" if turns.problem else verdict_word(found, turns.rule.margin),
        "rounds": len(turns.rounds),
        "seconds": turns.seconds,
        "visible_difference": found.visible if found else None,
        "equivalence": turns.rule.margin,
        "problem": turns.problem,
        "interrupted": interrupted,
        "metric": turns.metric.pattern or "seconds",
        "log_ratios": turns.rounds,
        "sides": [
            {
                "label": side.label,
                "command": side.text,
                "failed_visits": turns.failures(number),
                "values": turns.values(number),
                "cpu_seconds": [run.cpu_seconds for visit in turns.visits[number] for run in visit.runs],
            }
            for number, side in enumerate(turns.sides)
        ],
    }
    return content | ({"visible_after_minutes": dict(outlook(turns))} if null else {})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write --json whole or not at all; ConfigError where it cannot be written."""
    write_text(path, "--json", json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, flag: str, text: str) -> None:
    """Write a file whole or not at all; ConfigError, naming the flag, where it cannot be written."""
    with whole_file(path, flag) as making:
        making.write_text(text)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
