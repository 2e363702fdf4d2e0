"""`software`: the speedup of software versions, precisions and compile modes, family by family.

The paper's Figure 12 shows two kinds of speedups for each model family: every TensorFlow and CUDA
version over the first, and 16-bit over 32-bit types. Each bar is a 90th percentile over the models.
This analysis adds the median, and intervals of the median and the 90th percentile. The default
baselines are the oldest version, float32 and graph. The interval of a 90th percentile has an upper
end if there are at least 36 independent points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from analysis.format import format_distinct
from analysis.labels import label, not_recorded
from analysis.lazy import drawing, np, pd
from analysis.options import Options, column_option, option, unit_option
from analysis.pairing import pair
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, AnswerVerdict, Result, joined
from analysis.sides import describe_basis, describe_confounding, format_ratio, speed_word
from analysis.store.frame import families, is_ok, require_homogeneous
from analysis.versions import sort_versions, version_key
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast, judge
from paradnn.statistics.decision import MARGIN
from paradnn.statistics.dependence import Unit
from paradnn.statistics.verdict import Verdict

#: Columns that are compared by default. If software.name varies, version.tensorflow is not compared
#: separately, since the name implies the version.
COLUMNS = ("software.name", "version.tensorflow", "precision", "compile")
#: Preferred baselines of a column. Without any of them the baseline is the oldest version.
PREFERRED_BASELINES = {
    "precision": ("float32",),
    "compile": ("graph", "eager"),
    "software.name": ("current",),
}

_VERDICT_TEXTS = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.EQUAL: f"equal within {MARGIN:.0%}",
    Verdict.UNDECIDED: "undecided",
}
_ENDS = ("", "_low", "_high")
#: Column of `Contrast.row` and `judge` -> its name in the table.
_RENAMED_COLUMNS = {
    "points": "pairs",
    "share": "faster",
    "share_low": "faster_low",
    "share_high": "faster_high",
    "geometric_mean": "mean",
    "geometric_mean_low": "mean_low",
    "geometric_mean_high": "mean_high",
}
_TABLE_COLUMNS = [
    "device",
    "column",
    "value",
    "over",
    "family",
    "pairs",
    *(f"{name}{end}" for name in ("mean", "median", "p90", "faster") for end in _ENDS),
    "missing_a",
    "missing_b",
    "basis",
    "verdict",
    "by_itself",
]


@dataclass(frozen=True, kw_only=True)
class SoftwareOptions(Options):
    """Options of the command `software`: the columns to compare, and their baseline."""

    by: tuple[str, ...] | None = column_option(
        None, "columns to compare, such as precision (default: those that vary)", "COLUMNS"
    )
    baseline: str | None = option(
        None, "value that the other values are compared with", metavar="VALUE"
    )
    metric: str = column_option(
        "examples_per_second", "metric to compare, which must have a better direction", "M"
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


@analysis(
    SoftwareOptions,
    summary="speedup of software versions, precisions and compile modes, with 90th percentiles",
    example="python -m analysis software --by version.tensorflow --baseline 2.18.0",
    section="system",
    order=100,
    title="Precision, compilation and versions",
    reading="Speedup over the baseline, point by point: median and 90th percentile.",
)
def software(frame: pd.DataFrame, options: SoftwareOptions) -> Result:
    """Compare each version, precision or compile mode with its baseline, per device and family.

    The two sides of a comparison are the runs with a value, such as bfloat16, and the runs with the
    baseline, such as float32. They are compared at the points (combinations of hyperparameter
    values) that both sides measured.

    Args:
        frame: Runs, one per row.
        options: The columns to compare (None for those that vary), the baseline (None for the
            default), and the metric.

    Returns:
        The result. Its table has a row per device, column, value and family, and a row for all
        families (`all`) if there are several:

        - `over`: the baseline: the requested value, else "float32", "graph", "current" or the
          oldest version.
        - `pairs`: the number of points that both sides ran.
        - `mean` (geometric), `median` and `p90` of the speedups with 95% intervals (`_low`,
          `_high`).
        - `faster`: the share of points with a speedup above 1, with its interval.
        - `missing_a`, `missing_b`: numbers of points that only one side ran.
        - `basis`: the scatter that the interval of the mean allows for.
        - `verdict`, `by_itself`: see `paradnn.statistics.contrast.judge`. All rows are judged
          together.

    Raises:
        ConfigError: If a column or the baseline is not among the runs.
        InsufficientData: If no runs can be paired.
        SchemaError: If the runs of a side differ in their environment or timing protocol, and the
            option `pool` is not set.
    """
    if options.baseline is not None and len(options.by or ()) != 1:
        raise ConfigError(
            "--baseline",
            options.baseline,
            "needs --by with exactly one column",
            "for example, write --by version.tensorflow",
        )
    measured = frame[is_ok(frame)]
    if measured.empty:
        raise InsufficientData(
            "there is no measured run to compare; measure a point with two versions or precisions"
        )
    problems = _column_problems(measured, options.by)
    omitted = [
        InsufficientData(problem, group=name) for name, problem in problems.items() if problem
    ]
    rows: list[dict[str, Any]] = []
    pooled: set[str] = set()
    for column, problem in problems.items():
        if problem:
            continue
        for platform, runs in _split_platforms(measured, column):
            for pairs in _pairs_with_baseline(runs, column, platform, options, omitted):
                rows.extend(_rows(pairs, options.unit))
                pooled.add(pairs.attrs["pooled"])
    if not rows:
        raise InsufficientData(
            "no point was measured with two versions or settings of its software",
            groups=omitted,
            remedy="measure the same points with two versions, precisions or compile modes, about "
            "10 seconds each: python -m paradnn.train -m model=fc compile=graph,eager measure=quick",
        )
    table = judge(pd.DataFrame(rows)).rename(columns=_RENAMED_COLUMNS)[_TABLE_COLUMNS]
    limits = dict.fromkeys(limit for row in rows for limit in row["limits"])
    return Result(
        numbers=table,
        answer=_answer(table, options.metric),
        sentences=[
            *map(_describe, table.to_dict("records")),
            *(f"Not compared: {group}." for group in omitted),
            *limits,
            f"Speedups are ratios of {options.metric} at the points that both sides ran. Intervals "
            "are 95%. Verdicts are about the geometric mean.",
        ],
        picture=lambda: _draw(table),
        sources=tuple(measured["run_id"]),
        pooled=joined(sorted(pooled)),
    )


def _answer(table: pd.DataFrame, metric: str) -> AnalysisAnswer:
    """State the result of the comparison with the largest effect, over all families.

    Decided comparisons have precedence over undecided ones.

    Args:
        table: The table of `software`.
        metric: The compared metric, which determines words such as "faster".
    """
    comparison = ["device", "column", "value", "over"]
    # The last row of each comparison is about all of its families.
    whole = table.groupby(comparison, sort=False).tail(1)
    sizes = np.abs(np.log(whole["mean"].to_numpy(dtype="float64")))
    is_decided = (whole["by_itself"] != Verdict.UNDECIDED).to_numpy()
    row = whole.iloc[int(np.lexsort((sizes, is_decided))[-1])].to_dict()
    mean, low, high = (row[f"mean{end}"] for end in _ENDS)
    name = f"{row['column']}={row['value']}"
    over = f"{row['column']}={row['over']}"
    wins = round(row["faster"] * row["pairs"])
    verdict = row["by_itself"]
    points = counted(row["pairs"], "point")
    word = speed_word(metric)
    ratio, interval = format_ratio(mean, low, high)
    if verdict == Verdict.FASTER:
        text = f"{name} is {ratio} {word} than {over} ({interval}), ahead on {wins} of {points}"
    elif verdict == Verdict.SLOWER:
        ratio, interval = format_ratio(1 / mean, 1 / high, 1 / low)
        text = (
            f"{over} is {ratio} {word} than {name} ({interval}), ahead on "
            f"{row['pairs'] - wins} of {points}"
        )
    elif verdict == Verdict.EQUAL:
        text = f"{name} and {over} are equal within {MARGIN:.0%}: {ratio} ({interval}) on {points}"
    else:
        text = f"undecided: {name} over {over} is {ratio} ({interval}) on {points}"
    text += f" on {row['device']}"
    if len(whole) > 1:
        text += f"; the largest of {len(whole)} comparisons"
    return AnalysisAnswer(
        sentence=f"{text}.",
        verdict=cast(AnswerVerdict, str(verdict)),
        ratio=float(mean),
        low=float(low),
        high=float(high),
        ahead=wins,
        points=int(row["pairs"]),
        basis=row["basis"],
    )


def _describe(row: Mapping[Any, Any]) -> str:
    verdict = _VERDICT_TEXTS[row["verdict"]]
    if row["verdict"] != row["by_itself"]:
        verdict += " after a correction for the number of comparisons (Holm)"
    mean, median, p90 = (_format_speedup(row, name) for name in ("mean", "median", "p90"))
    wins = round(row["faster"] * row["pairs"])
    points = counted(row["pairs"], "point")
    if row["missing_a"] + row["missing_b"]:
        points += " that both sides ran"
    return (
        f"{row['family']} on {row['device']}, {row['column']} {row['value']} over {row['over']}: "
        f"{verdict}. "
        f"Geometric mean {mean}, median {median}, 90th percentile {p90}; "
        f"faster at {wins} of {points} "
        f"({row['faster']:.0%}, interval {row['faster_low']:.0%} to {row['faster_high']:.0%})."
    )


def _format_speedup(row: Mapping[Any, Any], name: str) -> str:
    """Return a speedup with its interval as text, such as "1.21x (1.1 to 1.34)".

    Args:
        row: Row of the table of `software`.
        name: Column of the speedup: "mean", "median" or "p90".
    """
    numbers = [row[f"{name}{end}"] for end in _ENDS]
    texts = list(format_distinct(*numbers))
    for position, number in enumerate(numbers):
        if not math.isfinite(number):
            texts[position] = "unknown"
    value, low, high = texts
    if low == high == "unknown":
        return f"{value}x (too few points for an interval)"
    return f"{value}x ({low} to {high})"


def _column_problems(frame: pd.DataFrame, columns: Sequence[str] | None) -> dict[str, str]:
    """Find the columns that can be compared, and the reasons why others cannot.

    Args:
        frame: Measured runs, one per row.
        columns: The columns that the user requested; None for the default columns.

    Returns:
        Reason, by column, why the column cannot be compared; an empty text if it can.

    Raises:
        ConfigError: If the runs lack a column in `columns`.
    """
    problems = {}
    for name in columns or COLUMNS:
        if columns and name not in frame:
            present = [column for column in COLUMNS if column in frame]
            raise ConfigError(
                "--by",
                name,
                "these runs have no such column",
                f"choose one of {', '.join(present or COLUMNS)}",
            )
        values: set[str] = set()
        if name in frame:
            values = set(frame[name].dropna().astype("str").unique())
        if len(values) > 1:
            problems[name] = ""
        elif values:
            problems[name] = f"all runs have {', '.join(values)}"
        else:
            problems[name] = "no run records it"
    if columns is None and not problems["software.name"]:
        problems.pop("version.tensorflow")
    return problems


def _split_platforms(frame: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """Split runs into the platforms on which a column is compared.

    A platform is a device in one environment if several values of the column occur in the same
    environment, as precisions do. Otherwise, as for versions, a platform is a device.

    Args:
        frame: Measured runs, one per row.
        column: The column to compare.

    Returns:
        Pairs of the name of a platform and its runs.
    """
    splits_environments = False
    if "environment_id" in frame:
        values_per_environment = frame.groupby("environment_id")[column].nunique()
        splits_environments = values_per_environment.max() > 1
    platforms = []
    for device, rows in frame.groupby(frame["device"].fillna(not_recorded("device"))):
        parts = [rows]
        if splits_environments:
            parts = [part for _, part in rows.groupby("environment_id", dropna=False, sort=False)]
        for part in parts:
            name = str(device)
            software_names = [
                str(part[other].iloc[0])
                for other in COLUMNS[:2]
                if other in part and part[other].nunique() == 1
            ]
            if len(parts) > 1 and software_names:
                name += f", {software_names[-1]}"
            platforms.append((name, part))
    return sorted(platforms, key=lambda platform: version_key(platform[0]))


def _pairs_with_baseline(
    rows: pd.DataFrame,
    column: str,
    platform: str,
    options: SoftwareOptions,
    omitted: list[InsufficientData],
) -> Iterator[pd.DataFrame]:
    """Yield the pairs of points of each value and the baseline on one platform.

    Args:
        rows: The runs of the platform.
        column: The column to compare.
        platform: Name of the platform.
        options: The options of the analysis.
        omitted: List to which the function adds the reasons why points or values cannot be
            compared.
    """
    group = f"{column} on {platform}"
    texts = rows[column].astype("string").astype("object")
    values = sort_versions(list(texts.dropna().unique()))
    if len(values) < 2:
        omitted.append(
            InsufficientData(f"all runs have {', '.join(values) or 'no value'}", group=group)
        )
        return
    baseline = _baseline(column, values, options.baseline)
    for value in values:
        if value == baseline:
            continue
        sides = [
            require_homogeneous(rows[texts == wanted], pool=options.pool)
            for wanted in (value, baseline)
        ]
        pairs = pair(sides[0], sides[1], options.metric)
        attrs = pairs.attrs
        all_families = families(pd.concat(sides))
        omitted.extend(
            InsufficientData(problem, group=group)
            for problem in _unpaired(pairs, value, baseline, all_families)
        )
        if len(pairs):
            labeled = pairs.assign(on_device=platform, column=column, value=value, over=baseline)
            pooled = joined(side.attrs.get("pooled", "") for side in sides)
            labeled.attrs = attrs | {"pooled": pooled}
            yield labeled


def _baseline(column: str, values: Sequence[str], requested: str | None) -> str:
    """Return the baseline: the requested value, a preferred one, or the first (oldest) value.

    Args:
        column: Name of the column.
        values: Values of the column in ascending order.
        requested: The requested value; None for the default.

    Raises:
        ConfigError: If the requested value is not among the values.
    """
    if requested is None:
        preferred = PREFERRED_BASELINES.get(column, ())
        return next((value for value in preferred if value in values), values[0])
    if requested not in values:
        raise ConfigError(
            "--baseline",
            requested,
            f"is not a value of {column}",
            f"choose one of {', '.join(values)}",
        )
    return requested


def _unpaired(
    pairs: pd.DataFrame, value: str, baseline: str, all_families: Sequence[str]
) -> Iterator[str]:
    """Yield texts with the numbers of points that could not be paired, and the reasons.

    Args:
        pairs: The pairs, as `pair` returns them.
        value: The compared value.
        baseline: Value of the baseline.
        all_families: The families of both sides.
    """
    paired_families = set(pairs["family"])
    missing_families = [family for family in all_families if family not in paired_families]
    if missing_families:
        families_text = ""
        if paired_families:
            families_text = f" of {', '.join(missing_families)}"
        yield f"no point{families_text} was measured with both {value} and {baseline}"
    if not paired_families:
        return
    value_count = pairs.attrs["unpaired_a"]
    baseline_count = pairs.attrs["unpaired_b"]
    if value_count or baseline_count:
        yield (
            f"{counted(value_count, 'point')} of {value} and {baseline_count} of {baseline} "
            "have no counterpart"
        )
    for column, count in pairs.attrs["mixed"].items():
        yield f"{counted(count, 'point')} with runs of one side that differ in {column}"


def _rows(pairs: pd.DataFrame, unit: Unit) -> Iterator[dict[str, Any]]:
    """Yield the rows of one value on one platform: a row per family, without verdicts.

    Args:
        pairs: The pairs of the value and the baseline, from `_pairs_with_baseline`.
        unit: Sampling unit of the confidence intervals: "crossed", "model" or "point".
    """
    first = pairs.iloc[0]
    names = {
        "device": first["on_device"],
        "column": first["column"],
        "value": first["value"],
        "over": first["over"],
    }
    present = families(pairs)
    groups = [*present, "all"] if len(present) > 1 else present
    for family in groups:
        contrast = Contrast.of(pairs, family, unit)
        row = names | {"family": family} | contrast.row()
        for name, quantile in (("median", contrast.quantile()), ("p90", contrast.quantile(0.9))):
            for end, number in zip(_ENDS, quantile, strict=True):
                row[f"{name}{end}"] = number
        row["basis"] = describe_basis(contrast)
        row["limits"] = list(describe_confounding(contrast))
        yield row


def _draw(table: pd.DataFrame) -> drawing.Figure:
    """Draw median and 90th percentile of the speedups with their intervals.

    The figure has a panel per column and platform, with a row per value and family. If too few
    points leave an end of an interval unknown, its bar is omitted.

    Args:
        table: The table of `software`.
    """
    parts = list(table.groupby(["device", "column", "over"], sort=False))
    height = 1.3 + 0.5 * max(len(rows) for _, rows in parts)
    figure, panels = drawing.panels(len(parts), 7.0, height)
    columns = {"median": "median", "90th percentile": "p90"}
    styles = {name: drawing.look(name, tuple(columns)) for name in columns}
    for axes, ((device, column, over), rows) in zip(panels, parts, strict=True):
        labels = {
            f"{row.family} {row.value}": f"{row.family}, {row.value}\nn = {row.pairs}"
            for row in rows.itertuples()
        }
        named = rows.set_axis(list(labels))
        groups = {text: drawing.ends_of(named, name) for text, name in columns.items()}
        axes.axvline(1, color="#333333", linewidth=1, linestyle="--")
        axes.set_xscale("log")
        drawing.forest(axes, labels, groups, styles)
        title = f"{label(str(column))} on {device}, over {over}"
        drawing.finish(axes, title, "speedup", logs={"x": drawing.times}, grid="x")
    drawing.legend(figure)
    return figure
