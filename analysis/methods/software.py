"""What software and number formats bring: versions over a baseline, 16 bits over 32, one compilation over another.

The paper's Figure 12 shows, for each model family, the speedup of every TensorFlow and CUDA version over the first,
and of 16-bit types over 32-bit ones, by its 90th percentile. Here each bar also has its median, and both have
intervals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from analysis.labels import not_recorded
from analysis.methods.dependence import Unit, crossed_quantile, crossed_share, levels_of
from analysis.methods.pairing import pair, sampling
from analysis.methods.regression import Lacking
from analysis.store.frame import families, is_ok, require_homogeneous
from paradnn.core.words import counted
from paradnn.errors import ConfigError, NotEnoughData

__all__ = ["COLUMNS", "EVERY", "PREFERRED", "Software", "Verdict", "order", "software", "verdict"]

#: What is compared unless other columns are named: of the first two, the first that varies.
COLUMNS = ("software.name", "version.tensorflow", "precision", "compile")
#: The baseline of a column where it is among the values; versions start from the oldest.
PREFERRED = {"precision": ("float32",), "compile": ("graph", "eager"), "software.name": ("current",)}
#: Stands for the points of all families together.
EVERY = "all"


class Verdict(StrEnum):
    """What a value brings over its baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_SHOWN = "no difference shown"
    WITHHELD = "no verdict"


@dataclass(frozen=True)
class Software:
    """`table` has a row for each device, column, value and family, and where there are several one for all of them
    (family `all`): `over` (the baseline), `pairs`, `median` and `p90` of the speedups with their intervals (`_low`,
    `_high`), `faster`, the share of points above 1, `comparable`, whether the sides' sessions allow a verdict, and
    `why` they do not.

    `pairs` are the points behind it. `lacking` says in words what could not be compared and why, `pooled` what
    differed among runs that were pooled, `run_ids` are the measured runs.
    """

    metric: str
    table: pd.DataFrame
    pairs: pd.DataFrame
    lacking: tuple[Lacking, ...]
    pooled: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()


def software(
    frame: pd.DataFrame,
    columns: Sequence[str] | None = None,
    baseline: str | None = None,
    metric: str = "examples_per_second",
    pool: bool = False,
    unit: Unit = "crossed",
) -> Software:
    """Pair every value of a column with its baseline, on each device and family by itself.

    `baseline` is a value of one named column; else float32, graph, current, or the oldest version. Median and 90th
    percentile have distribution-free 95% intervals of order statistics, `faster` Clopper and Pearson's, both over the
    models and batch sizes that points share (`analysis.methods.dependence`). Runs of a side must be homogeneous. Raises
    ConfigError for a column or a baseline that is not there, NotEnoughData where nothing can be paired.
    """
    measured = frame[is_ok(frame)]
    if measured.empty:
        raise NotEnoughData("software: no measured run to compare; measure a point with two versions or precisions")
    chosen = _columns(measured, columns)
    lacking = [Lacking(name, problem) for name, problem in chosen.items() if problem]
    parts: list[pd.DataFrame] = []
    pooled: set[str] = set()
    for name in (name for name, problem in chosen.items() if not problem):
        for place, rows in _places(measured, name):
            parts += _compare(rows, name, place, baseline, metric, pool, lacking, pooled)
    if not parts:
        raise NotEnoughData(
            "not enough data", lacking, "measure the same points with two versions, precisions or compile modes"
        )
    pairs = pd.concat(parts, ignore_index=True)
    return Software(
        metric, _table(pairs, unit), pairs, tuple(lacking), tuple(sorted(pooled)), tuple(measured["run_id"])
    )


def verdict(low: float, high: float, comparable: bool = True) -> Verdict:
    """The verdict that the interval of a median speedup allows, and the sessions of the sides."""
    if not comparable:
        return Verdict.WITHHELD
    return Verdict.FASTER if low > 1 else Verdict.SLOWER if high < 1 else Verdict.NOT_SHOWN


def order(values: Sequence[str]) -> list[str]:
    """Values as versions are counted: 2.9 before 2.16; words by name."""
    return sorted(values, key=_counted)


def _counted(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", text)]


def _columns(frame: pd.DataFrame, columns: Sequence[str] | None) -> dict[str, str]:
    """Column -> why it cannot be compared, empty where it can."""
    for name in columns or ():
        if name not in frame:
            raise ConfigError("--by", name, "these runs have no such column", f"choose of {', '.join(COLUMNS)}")
    problems = {}
    for name in columns or COLUMNS:
        values = set(frame[name].dropna().astype("str")) if name in frame else set()
        known = ", ".join(values)
        problems[name] = "" if len(values) > 1 else f"all runs have {known}" if values else "no run says it"
    if columns is None and not problems["software.name"]:
        # An interpreter's name stands for its versions.
        problems.pop("version.tensorflow")
    return problems


def _places(frame: pd.DataFrame, name: str) -> list[tuple[str, pd.DataFrame]]:
    """Where a column is compared: on each device, and in each environment there unless it is what sets these apart."""
    devices = [(str(device), rows) for device, rows in frame.groupby(frame["device"].fillna(not_recorded("device")))]
    if "environment_id" not in frame or frame.groupby("environment_id")[name].nunique().max() <= 1:
        return devices
    found = []
    for device, rows in devices:
        environments = [part for _, part in rows.groupby("environment_id", dropna=False, sort=False)]
        for part in environments:
            software = [
                part[column].iloc[0] for column in COLUMNS[:2] if column in part and part[column].nunique() == 1
            ]
            label = f"{device}, {software[-1]}" if len(environments) > 1 and software else device
            found.append((label, part))
    return sorted(found, key=lambda place: _counted(place[0]))


def _compare(
    rows: pd.DataFrame,
    name: str,
    device: str,
    baseline: str | None,
    metric: str,
    pool: bool,
    lacking: list[Lacking],
    pooled: set[str],
) -> list[pd.DataFrame]:
    """The pairs of each value with the baseline, on one device."""
    text = rows[name].astype("string").astype("object")
    values = order(list(text.dropna().unique()))
    if len(values) < 2:
        lacking.append(Lacking(f"{name} on {device}", f"all runs have {', '.join(values) or 'none'}"))
        return []
    base = _baseline(name, values, baseline)
    found = []
    for value in values:
        if value == base:
            continue
        sides = [require_homogeneous(rows[text == wanted], pool=pool) for wanted in (value, base)]
        pooled.update(side.attrs["pooled"] for side in sides if side.attrs.get("pooled"))
        pairs = pair(sides[0], sides[1], metric)
        if pairs.empty:
            lacking.append(Lacking(f"{name} on {device}", f"no point was measured with both {value} and {base}"))
            continue
        if rest := [family for family in families(pd.concat(sides)) if family not in set(pairs["family"])]:
            problem = f"no point of {', '.join(rest)} was measured with both {value} and {base}"
            lacking.append(Lacking(f"{name} on {device}", problem))
        lacking += [Lacking(f"{name} on {device}", problem) for problem in _without_counterpart(pairs, value, base)]
        why = {family: sampling(pairs, family).design.text() for family in pairs["family"].unique()}
        told = pairs["family"].map(why).where(~pairs["comparable"], "")
        found.append(pairs.assign(on_device=device, column=name, value=value, over=base, why=told))
    return found


def _without_counterpart(pairs: pd.DataFrame, value: str, base: str) -> Iterator[str]:
    """How many points were measured on one side alone, or are left out since their runs are no replicates."""
    first, second = pairs.attrs["unpaired_a"], pairs.attrs["unpaired_b"]
    if first or second:
        yield f"{counted(first, 'point')} of {value} and {second} of {base} have no counterpart"
    for column, count in pairs.attrs["mixed"].items():
        yield f"{counted(count, 'point')} of both with runs that differ in {column} on one side alone"


def _baseline(name: str, values: list[str], asked: str | None) -> str:
    if asked is not None:
        if asked not in values:
            raise ConfigError("--baseline", asked, f"is no value of {name}", f"choose one of {', '.join(values)}")
        return asked
    return next((value for value in PREFERRED.get(name, ()) if value in values), values[0])


def _table(pairs: pd.DataFrame, unit: Unit) -> pd.DataFrame:
    rows = []
    for (device, column, value, over), group in pairs.groupby(["on_device", "column", "value", "over"], sort=False):
        present = families(group)
        for family in [*present, *([EVERY] if len(present) > 1 else [])]:
            chosen = group[(group["family"] == family) | (family == EVERY)]
            speedups, levels = chosen["speedup"], levels_of(chosen, unit)
            middle, upper = crossed_quantile(speedups, levels), crossed_quantile(speedups, levels, 0.9)
            faster = crossed_share(speedups > 1, levels)
            rows.append(
                {
                    "device": device,
                    "column": column,
                    "value": value,
                    "over": over,
                    "family": family,
                    "pairs": len(speedups),
                    "median": middle.value,
                    "median_low": middle.low,
                    "median_high": middle.high,
                    "p90": upper.value,
                    "p90_low": upper.low,
                    "p90_high": upper.high,
                    "faster": faster.value,
                    "faster_low": faster.low,
                    "faster_high": faster.high,
                    "comparable": bool(chosen["comparable"].all()),
                    "why": next(iter(chosen.loc[~chosen["comparable"], "why"]), ""),
                }
            )
    return pd.DataFrame(rows)
