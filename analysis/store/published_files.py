"""Reading the published files: their parallel lists, and what may be wrong with an entry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paradnn.errors import DataError

__all__ = ["CAPTURES", "read_columns", "wrong_captures", "wrong_number"]

#: The lists that hold a value for each capture of a trace: FLOP rate and infeed, in percent.
CAPTURES = ("flops_trace", "infeed_trace")


def read_columns(path: Path, measured: Sequence[str], failed: Sequence[str] = ()) -> dict[str, list[Any]]:
    """A file's parallel lists; DataError unless it has them all, and of equal lengths within each group."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} is damaged: {' '.join(str(error).split())}; fetch it again") from error
    for group in (measured, failed):
        for name in group:
            if not isinstance(value, dict) or not isinstance(value.get(name), list):
                raise DataError(f"{path.name} is not the published file: it has no list {name!r}")
            if len(value[name]) != len(value[group[0]]):
                raise DataError(
                    f"{path.name} is damaged: {name!r} has {len(value[name])} entries, "
                    f"{group[0]!r} has {len(value[group[0]])}; fetch it again"
                )
    return {name: value[name] for name in (*measured, *failed)}


def wrong_number(entry: Mapping[str, Any], zero: bool) -> str | None:
    """What is wrong with the numbers of an entry; `zero` allows zeros."""
    for name, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{name}={value!r} is not a number"
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            return f"{name}={value} is not {'zero or ' if zero else ''}positive"
    return None


def wrong_captures(entry: Mapping[str, Any]) -> str | None:
    """What is wrong with the lists of a trace's captures; the best of them must be the one that the archive kept."""
    rates, waits = (entry[name] for name in CAPTURES)
    if not all(isinstance(values, list) for values in (rates, waits)) or not rates or len(rates) != len(waits):
        return f"{' and '.join(CAPTURES)} are not two lists of equal length"
    for values, name in ((rates, CAPTURES[0]), (waits, CAPTURES[1])):
        for value in values:
            if wrong := wrong_number({name: value}, zero=True):
                return wrong
            if value > 100:
                return f"{name}={value} is over 100%"
    if not math.isclose(max(rates), entry["flops_perc"], rel_tol=1e-9):
        return f"flops_perc={entry['flops_perc']} is not the highest of flops_trace"
    return None
