"""`software`: what versions, precisions and compile modes bring, family by family.

The paper's Figure 12 shows, for each model family, the speedup of every TensorFlow and CUDA version
over the first, and of 16-bit types over 32-bit ones, by its 90th percentile. Here each bar also has
its median, and both have intervals; baselines are the oldest version, float32 and graph. A 90th
percentile has an upper end from 36 points on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.format import format_distinct
from analysis.labels import label, not_recorded
from analysis.lazy import drawing, pd
from analysis.options import Options, column_option, option, unit_option
from analysis.pairing import pair
from analysis.registry import analysis
from analysis.result import Result, joined
from analysis.store.frame import families, is_ok, require_homogeneous
from analysis.versions import sort_versions, version_key
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.words import counted
from paradnn.statistics.contrast import MARGIN, Contrast, Verdict, judge
from paradnn.statistics.dependence import Unit
from paradnn.statistics.regression import Lacking


@dataclass(frozen=True, kw_only=True)
class SoftwareOptions(Options):
    """What is compared with which baseline."""

    by: tuple[str, ...] | None = column_option(
        None, "what to compare, such as precision (default: what varies)", "COLUMNS"
    )
    baseline: str | None = option(None, "what the others are compared with", metavar="VALUE")
    metric: str = column_option("examples_per_second", "any metric with a direction", "M")
    unit: Literal["crossed", "model", "point"] = unit_option()


@analysis(
    SoftwareOptions,
    summary="speedup of software versions, precisions and compile modes, with 90th percentiles",
    example="python -m analysis software --by version.tensorflow --baseline 2.18.0",
    section="system",
    order=100,
    title="Precision, compilation and versions",
    reading=("Speedup over the baseline, point by point: median and 90th percentile."),
)
def software(frame: pd.DataFrame, options: SoftwareOptions) -> Result:
    """What each version, precision or compile mode brings over its baseline, on each device and
    family by itself.

    The table has a row for each device, column, value and family, and where there are several one
    for all of them (family `all`): `over` (the baseline: the one asked for, float32, graph, current
    or the oldest version), `pairs`, `mean` (geometric), `median` and `p90` of the speedups with
    their intervals (`_low`, `_high`), `faster`, the share of points above 1, `missing_a` and
    `missing_b`, points that one side alone ran, `comparable`, whether the sides' sessions allow a
    verdict, `why` they do not, and the `verdict` with its `basis` (`contrast.judge`, all rows one
    page). ConfigError for a column or baseline that is not there, NotEnoughData where nothing can
    be paired, SchemaError for heterogeneous runs of a side.
    """
    if options.baseline is not None and len(options.by or ()) != 1:
        raise ConfigError(
            "--baseline", options.baseline, "is of one column", "name it: --by version.tensorflow"
        )
    measured = frame[is_ok(frame)]
    if measured.empty:
        raise NotEnoughData(
            "software: no measured run to compare; measure a point with two versions or precisions"
        )
    problems = _columns(measured, options.by)
    lacking = [Lacking(name, problem) for name, problem in problems.items() if problem]
    rows: list[dict[str, Any]] = []
    pooled: set[str] = set()
    for name in (name for name, problem in problems.items() if not problem):
        for place, runs in _places(measured, name):
            for pairs in _compare(runs, name, place, options, lacking):
                rows += _rows(pairs, options.unit)
                pooled.add(pairs.attrs["pooled"])
    if not rows:
        raise NotEnoughData(
            "not enough data",
            lacking,
            "measure the same points with two versions, precisions or compile modes",
        )
    table = judge(pd.DataFrame(rows)).rename(columns=_NAMES)[_COLUMNS_OF_TABLE]
    return Result(
        numbers=table,
        sentences=[
            *map(_describe, table.to_dict("records")),
            *(f"Not compared: {one}." for one in lacking),
            *(f"No verdict: {why}." for why in dict.fromkeys(filter(None, table["why"]))),
            f"Speedups are in {options.metric}, point by point; intervals are 95%, over models and batch sizes as a "
            "sample of their design space; verdicts are on the geometric mean.",
        ],
        picture=lambda: _draw(table),
        sources=tuple(measured["run_id"]),
        pooled=joined(sorted(pooled)),
    )


#: What is said of a value over its baseline, and of what takes a verdict away.
_WORDS = {
    Verdict.A_BETTER: "faster",
    Verdict.B_BETTER: "slower",
    Verdict.SAME: f"the same within {MARGIN:.0%}",
    Verdict.NOT_ENOUGH: Verdict.NOT_SHOWN.value,
}
_UNSURE = {
    "page": ", not with all of this page at once (Holm)",
    "missing": ", since points that ran on one side alone could turn it",
}


def _describe(row: Mapping[Any, Any]) -> str:
    both = " that both ran" if row["missing_a"] + row["missing_b"] else ""
    mean, median, p90 = (_times(row, name) for name in ("mean", "median", "p90"))
    return (
        f"{row['family']} on {row['device']}, {row['column']} {row['value']} over {row['over']}: "
        f"{_WORDS.get(row['verdict'], row['verdict'])}{_UNSURE.get(row['basis'], '')}. "
        f"Geometric mean {mean}, median {median}, 90th percentile {p90}; faster in {row['faster']:.0%} of "
        f"{row['pairs']} points{both} ({row['faster_low']:.0%} to {row['faster_high']:.0%})."
    )


def _times(row: Mapping[Any, Any], name: str) -> str:
    ends = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
    value, low, high = (
        text if math.isfinite(end) else "unknown"
        for text, end in zip(format_distinct(*ends), ends, strict=True)
    )
    return f"{value}x ({'too few points for an interval' if low == high == 'unknown' else f'{low} to {high}'})"


#: What is compared unless other columns are named: of the first two, the first that varies.
COLUMNS = ("software.name", "version.tensorflow", "precision", "compile")
#: The baseline of a column where it is among the values; versions start from the oldest.
PREFERRED = {
    "precision": ("float32",),
    "compile": ("graph", "eager"),
    "software.name": ("current",),
}


def _columns(frame: pd.DataFrame, columns: Sequence[str] | None) -> dict[str, str]:
    """Column -> why it cannot be compared, empty where it can."""
    problems = {}
    for name in columns or COLUMNS:
        if columns and name not in frame:
            raise ConfigError(
                "--by", name, "these runs have no such column", f"choose of {', '.join(COLUMNS)}"
            )
        if name in frame:
            values = set(frame[name].dropna().astype("str").unique())
        else:
            values = set()
        if values:
            known = f"all runs have {', '.join(values)}"
        else:
            known = "no run says it"
        problems[name] = "" if len(values) > 1 else known
    if columns is None and not problems["software.name"]:
        # An interpreter's name stands for its versions.
        problems.pop("version.tensorflow")
    return problems


def _places(frame: pd.DataFrame, name: str) -> list[tuple[str, pd.DataFrame]]:
    """Where a column is compared: on each device, and in each environment there unless it is what
    sets these apart.
    """
    apart = "environment_id" in frame and frame.groupby("environment_id")[name].nunique().max() > 1
    found = []
    for device, rows in frame.groupby(frame["device"].fillna(not_recorded("device"))):
        if apart:
            parts = [part for _, part in rows.groupby("environment_id", dropna=False, sort=False)]
        else:
            parts = [rows]
        for part in parts:
            said = [
                str(part[each].iloc[0])
                for each in COLUMNS[:2]
                if each in part and part[each].nunique() == 1
            ]
            found.append(
                (f"{device}, {said[-1]}" if len(parts) > 1 and said else str(device), part)
            )
    return sorted(found, key=lambda place: version_key(place[0]))


def _compare(
    rows: pd.DataFrame, name: str, device: str, options: SoftwareOptions, lacking: list[Lacking]
) -> Iterator[pd.DataFrame]:
    """The pairs of each value with the baseline, on one device; what could not be compared is added
    to `lacking`.
    """
    about = f"{name} on {device}"
    text = rows[name].astype("string").astype("object")
    values = sort_versions(list(text.dropna().unique()))
    if len(values) < 2:
        lacking.append(Lacking(about, f"all runs have {', '.join(values) or 'none'}"))
        return
    base = next((value for value in PREFERRED.get(name, ()) if value in values), values[0])
    if options.baseline is not None:
        base = options.baseline
        if base not in values:
            raise ConfigError(
                "--baseline", base, f"is no value of {name}", f"choose one of {', '.join(values)}"
            )
    for value in (value for value in values if value != base):
        sides = [
            require_homogeneous(rows[text == wanted], pool=options.pool) for wanted in (value, base)
        ]
        pairs = pair(sides[0], sides[1], options.metric)
        paired = set(pairs["family"])
        attrs = pairs.attrs
        told = []
        rest = [family for family in families(pd.concat(sides)) if family not in paired]
        if rest:
            of = f" of {', '.join(rest)}" if paired else ""
            told.append(f"no point{of} was measured with both {value} and {base}")
        first = attrs["unpaired_a"]
        second = attrs["unpaired_b"]
        if paired and (first or second):
            told.append(
                f"{counted(first, 'point')} of {value} and {second} of {base} have no counterpart"
            )
        for column, count in attrs["mixed"].items() if paired else ():
            told.append(
                f"{counted(count, 'point')} of both with runs that differ in {column} on one side alone"
            )
        lacking += [Lacking(about, words) for words in told]
        if paired:
            found = pairs.assign(on_device=device, column=name, value=value, over=base)
            found.attrs = attrs | {"pooled": joined(side.attrs.get("pooled", "") for side in sides)}
            yield found


_NAMES = {
    "points": "pairs",
    "share": "faster",
    "share_low": "faster_low",
    "share_high": "faster_high",
} | {f"geometric_mean{end}": f"mean{end}" for end in ("", "_low", "_high")}
_COLUMNS_OF_TABLE = (
    ["device", "column", "value", "over", "family", "pairs"]
    + [
        f"{name}{end}"
        for name in ("mean", "median", "p90", "faster")
        for end in ("", "_low", "_high")
    ]
    + ["missing_a", "missing_b", "comparable", "why", "verdict", "basis"]
)


def _rows(pairs: pd.DataFrame, unit: Unit) -> Iterator[dict[str, Any]]:
    """The rows of the table, without a verdict, of one value over the baseline on one device."""
    first = pairs.iloc[0]
    named = {"device": first["on_device"], **first[["column", "value", "over"]]}
    present = families(pairs)
    for family in [*present, *(["all"] if len(present) > 1 else [])]:
        one = Contrast.of(pairs, family, unit)
        quantiles = {
            f"{name}{end}": number
            for name, found in (("median", one.quantile()), ("p90", one.quantile(0.9)))
            for end, number in zip(("", "_low", "_high"), found, strict=True)
        }
        why = "" if one.comparable else one.sampling.design.text()
        yield named | {"family": family} | one.row() | quantiles | {"why": why}


def _draw(table: pd.DataFrame) -> drawing.Figure:
    """A panel for each column on each device, a row for each value of it in each family: the median
    speedup over the baseline and the 90th percentile, with their intervals; an end that the points
    are too few for has no bar.
    """
    parts = list(table.groupby(["device", "column", "over"], sort=False))
    drawn, every = drawing.panels(len(parts), 7.0, 1.3 + 0.5 * max(len(rows) for _, rows in parts))
    looks = {
        name: drawing.look(name, ("median", "90th percentile"))
        for name in ("median", "90th percentile")
    }
    for axes, ((device, column, over), rows) in zip(every, parts, strict=True):
        keys = {
            f"{row.family} {row.value}": f"{row.family}, {row.value}\nn = {row.pairs}"
            for row in rows.itertuples()
        }
        named = rows.set_axis(list(keys))
        groups = {
            word: drawing.ends_of(named, name)
            for word, name in zip(looks, ("median", "p90"), strict=True)
        }
        axes.axvline(1, color="#333333", linewidth=1, linestyle="--")
        axes.set_xscale("log")
        drawing.forest(axes, keys, groups, looks)
        title = f"{label(str(column))} on {device}, over {over}"
        drawing.finish(axes, title, "speedup", logs={"x": drawing.times}, grid="x")
    drawing.legend(drawn)
    return drawn
