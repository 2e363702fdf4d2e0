"""`compare-published`: compare the rate of every measured model with published platforms.

Rates are in examples per second. A platform's rate is the published rate of the same step. If none
was published, it is a prediction with an interval, from published timings. Measured points that
differ in a setting which changes their operations, such as the precision or the compile mode, are
never pooled. Eager runs are omitted if the same model was also measured compiled, since published
platforms ran compiled graphs. A rate in a different precision is used only if the platform has no
rate in the same precision, and it is summarized separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from analysis.columns import split_by_settings
from analysis.format import format_number
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Highlight, Result, pooled_within, require_runs
from analysis.store.frame import aggregate_replicates, is_ok
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.families import FAMILIES

#: Precisions in which a platform may have been published, most likely first.
_PRECISIONS = ("float16", "bfloat16", "float32")
#: Precisions of the same width, whose arithmetic has the same peak on most devices.
_HALF_PRECISIONS = frozenset({"float16", "bfloat16"})
#: Maximum number of points to compare: each prediction takes about 50 ms.
_MAX_POINTS = 40
#: Remedy of errors about missing runs.
_REMEDY = "measure some, about a minute: python -m paradnn.train -m experiment=quick"
#: Column of the compile mode, and its value for eager runs.
_COMPILE = "compile"
_EAGER = "eager"


@dataclass(frozen=True, kw_only=True)
class ComparePublishedOptions(Options):
    """Options of the command `compare-published`: the published platforms to compare with."""

    platform_of: tuple[str, ...] = option(
        ("V100", "TPU v2"),
        "device to compare with, from the published timings (paradnn ask --list shows them); "
        "repeatable",
        metavar="DEVICE",
        several="repeat",
    )


@analysis(
    ComparePublishedOptions,
    summary="this machine and published platforms (V100, TPU v2 and others), model by model",
    example="python -m analysis compare-published --platform-of V100 --figure published.png",
    section="system",
    order=15,
    title="Compared with published platforms",
    reading="Marks further right are faster. Bars are 95% intervals; published steps have none.",
)
def compare_published(frame: pd.DataFrame, options: ComparePublishedOptions) -> Result:
    """Compare the speed of the measured models with published platforms.

    A point is a combination of hyperparameter values. A point with replicates counts once, with the
    median of its replicates.

    Args:
        frame: Runs, one per row.
        options: Names of the platforms.

    Returns:
        The result. Its table has a row for each measured point and platform:

        - `family`, `point`, `settings` (those that vary among the points), and `here_precision`
          (the precision on this machine).
        - `here`, `there`: examples per second on this machine and on the platform, with `_low` and
          `_high`.
        - `device`: the platform.
        - `source`: "published" for the same step, else "predicted".
        - `precision`: the precision on the platform.
        - `is_floor`: whether the predicted step time is a lower bound, so that `there` is an upper
          bound.
        - `ratio`: there / here.
        - `missing`: the reason if the platform has no rate.
        - `notes`: remarks on the rate.

    Raises:
        ConfigError: If there are no published timings of a device.
        InsufficientData: If no model was measured.
        HeterogeneousError: If the runs of a device differ in their environment or timing protocol,
            and the option `pool` is not set.
    """
    from analysis.atlas import load

    require_runs(frame)
    devices = [load().device_name(name, "--platform-of") for name in options.platform_of]
    runs = _local_runs(frame)
    pooled = pooled_within(runs, ["device"], pool=options.pool)
    points = aggregate_replicates(runs)
    compiled = _without_eager_duplicates(points)
    chosen = _sample_points(compiled)
    rows: list[dict[str, Any]] = []
    for settings, part in split_by_settings(chosen, ignore=["precision", "mode", "task"]):
        for point in part.to_dict("records"):
            rows += _point_rows(point, settings, devices)
    if not rows:
        raise InsufficientData("no model with layers was measured here", remedy=_REMEDY)
    table = pd.DataFrame(rows).sort_values(["device", "point"], ignore_index=True)
    here = " and ".join(dict.fromkeys(runs["device"].astype(str)))
    headline = _headline(table)
    picture = None
    if table["there"].notna().any():
        picture = partial(draw_comparison, table, here)
    return Result(
        numbers=table,
        sentences=[*_sentences(table, here, points=points, compiled=compiled)],
        picture=picture,
        answer=_answer(table, headline),
        stands_out=headline,
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _local_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of this machine that have a rate and a model of a known family.

    Published runs are excluded.

    Args:
        frame: Runs, one per row.

    Raises:
        InsufficientData: If there are no such runs.
    """
    if "examples_per_second" not in frame:
        raise InsufficientData("no step was timed on this machine", remedy=_REMEDY)
    is_measured = is_ok(frame) & frame["examples_per_second"].gt(0)
    if "source" in frame:
        is_measured &= frame["source"].ne("published")
    runs = frame[is_measured]
    if runs.empty:
        raise InsufficientData("no model was measured on this machine", remedy=_REMEDY)
    runs = runs[runs["family"].isin(list(FAMILIES))]
    if runs.empty:
        raise InsufficientData("no model with layers was measured here", remedy=_REMEDY)
    return runs


def _without_eager_duplicates(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points without eager points whose model was also measured compiled.

    Args:
        points: Measured points, one per row.
    """
    if _COMPILE not in points:
        return points
    keys = [
        name
        for name in points
        if str(name).startswith("model.")
        or name in ("family", "device", "batch_size", "precision", "mode", "framework.name")
    ]
    is_eager = points[_COMPILE].eq(_EAGER).fillna(False).astype(bool)
    group = points.groupby(keys, dropna=False, sort=False).ngroup()
    has_compiled = (~is_eager).groupby(group).transform("any")
    return points[~(is_eager & has_compiled)]


def _sample_points(points: pd.DataFrame) -> pd.DataFrame:
    """Return at most 40 points, chosen round-robin from the families.

    Args:
        points: Measured points, one per row.
    """
    position = points.groupby("family").cumcount()
    order = position.sort_values(kind="stable").index
    return points.loc[order[:_MAX_POINTS]]


class _PlatformRate(NamedTuple):
    """Examples per second of a step on a published platform.

    Attributes:
        value: The rate in examples per second; NaN if it is unknown.
        low: Lower end of the 95% interval of the rate; NaN for a published rate.
        high: Upper end of the 95% interval of the rate; NaN for a published rate.
        source: "published" or "predicted".
        precision: Precision in which the platform has this rate.
        is_floor: Whether the predicted step time is a lower bound, so that the rate is an upper
            bound.
        missing: Reason why the rate is unknown; empty if it is known.
        notes: Remarks on the rate, as text; may be empty.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    source: str = "predicted"
    precision: str = ""
    is_floor: bool = False
    missing: str = ""
    notes: str = ""


def _point_rows(
    point: Mapping[Any, Any], settings: str, devices: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a measured point in the table of `compare_published`, one per platform.

    Yields nothing for kernels, for communication, and for families whose models have no layers.

    Args:
        point: The measured point, as a mapping from columns to values.
        settings: Settings of the point that vary among the points, as text; empty if none vary.
        devices: Names of the platforms.
    """
    from analysis.atlas.points import format_point, model_from_row

    model = model_from_row(point)
    has_layers = FAMILIES[str(point["family"])].has_layers
    if not has_layers or model.is_kernel or model.is_communication:
        return
    here = float(point["examples_per_second"])
    name = format_point(point, model)
    if settings:
        name += f", {settings}"
    for device in devices:
        there = _find_rate(point, device)
        yield {
            "family": point["family"],
            "point": name,
            "settings": settings,
            "here_precision": str(point["precision"]),
            "here": here,
            "here_low": float(point.get("examples_per_second_low", math.nan)),
            "here_high": float(point.get("examples_per_second_high", math.nan)),
            "device": device,
            "there": there.value,
            "there_low": there.low,
            "there_high": there.high,
            "source": there.source,
            "precision": there.precision,
            "is_floor": there.is_floor,
            "ratio": there.value / here,
            "missing": there.missing,
            "notes": there.notes,
        }


def _find_rate(point: Mapping[Any, Any], device: str) -> _PlatformRate:
    """Find the rate of a step on a device, in the precision most similar to that of the point.

    The precision of the point is tried first, then the precisions of the same width, then all
    others. Within a precision, a published step has precedence over a prediction.

    Args:
        point: The measured point, as a row of a frame.
        device: Name of the platform.

    Returns:
        The first known rate. If the rate is unknown in every precision, the result for the
        precision of the point is returned: `value` is NaN, and `missing` states why that rate is
        unknown.
    """
    measured_precision = str(point["precision"])
    similar = [name for name in _PRECISIONS if _is_similar_precision(measured_precision, name)]
    first = None
    for precision in dict.fromkeys([measured_precision, *similar, *_PRECISIONS]):
        rate = _rate_in_precision({**point, "precision": precision}, device)
        if not math.isnan(rate.value):
            return rate
        first = first or rate
    assert first is not None
    return first


def _is_similar_precision(a: str, b: str) -> bool:
    return a == b or {a, b} <= _HALF_PRECISIONS


def _rate_in_precision(point: Mapping[Any, Any], device: str) -> _PlatformRate:
    from analysis.atlas.estimate import estimate_step_time
    from analysis.atlas.whole_steps import published_overhead_note, published_seconds

    precision = str(point["precision"])
    batch = float(point["batch_size"])
    try:
        seconds = published_seconds(point, device)
        if seconds is not None:
            note = published_overhead_note(point, device)
            return _PlatformRate(
                batch / seconds, source="published", precision=precision, notes=note
            )
        estimate = estimate_step_time(point, device)
    except (ConfigError, InsufficientData) as error:
        return _PlatformRate(precision=precision, missing=str(error))
    if estimate.seconds is None or estimate.low is None or estimate.high is None:
        return _PlatformRate(precision=precision, missing=estimate.why)
    return _PlatformRate(
        value=batch / estimate.seconds,
        low=batch / estimate.high,
        high=batch / estimate.low,
        precision=precision,
        is_floor=estimate.is_dispatch_floor,
        notes="; ".join(estimate.notes),
    )


def _has_similar_precisions(rows: pd.DataFrame) -> pd.Series:
    """Return, for each row, whether this machine and the platform have similar precisions.

    Precisions are similar if they are equal or both have 16 bits.

    Args:
        rows: Rows of the table of `compare_published`.

    Returns:
        A boolean series with the index of `rows`.
    """
    similar = [
        _is_similar_precision(here, there)
        for here, there in zip(rows["here_precision"], rows["precision"], strict=True)
    ]
    return pd.Series(similar, index=rows.index, dtype=bool)


def _answer(table: pd.DataFrame, headline: Highlight | None) -> AnalysisAnswer:
    """State the ratio of each platform to this machine, or that no platform has a rate.

    Args:
        table: The table of `compare_published`.
        headline: The ratios as text; None if no platform has a rate.
    """
    points = table["point"].nunique()
    if headline is not None:
        return AnalysisAnswer(sentence=headline.words, points=points)
    sentence = f"No platform has a rate for any of {counted(points, 'point')} of this machine."
    return AnalysisAnswer(sentence=sentence, points=points)


def _headline(table: pd.DataFrame) -> Highlight | None:
    """State how much faster or slower each platform ran the measured points.

    Ratios to published rates are used for a platform if there are any, else ratios to predictions.
    Rates that are only upper bounds (`is_floor`) are excluded. Ratios between precisions of
    different width are used only for a platform that has no others; the text then names the
    precisions.

    Args:
        table: The table of `compare_published`.

    Returns:
        The text; None if no platform has a rate.
    """
    texts = []
    known = table[table["there"].notna() & ~table["is_floor"]]
    for device, all_rows in known.groupby("device", sort=False):
        is_similar = _has_similar_precisions(all_rows)
        rows = all_rows[is_similar] if is_similar.any() else all_rows
        if (rows["source"] == "published").any():
            rows = rows[rows["source"] == "published"]
            verb = "ran"
            notes = ["published"]
            if rows["notes"].ne("").any():
                notes.append("some limited by input and dispatch, not by the device")
        else:
            verb = "would run"
            notes = ["predicted"]
        if not is_similar.any():
            notes.append(_format_precisions(rows))
        texts.append(
            f"{device} {verb} {counted(len(rows), 'point')} {_format_ratios(rows)} times as fast "
            f"({', '.join(notes)})"
        )
    if not texts:
        return None
    return Highlight("Compared with published platforms", f"{'; '.join(texts)}.")


def _format_ratios(rows: pd.DataFrame) -> str:
    ends = (
        format_number(rows["ratio"].min(), digits=3),
        format_number(rows["ratio"].max(), digits=3),
    )
    return " to ".join(dict.fromkeys(ends))


def _format_precisions(rows: pd.DataFrame) -> str:
    """Return the precisions of a group, such as "float32 here, float16 there".

    Args:
        rows: Rows of the group in the table of `compare_published`.
    """
    here = ", ".join(dict.fromkeys(rows["here_precision"]))
    there = ", ".join(dict.fromkeys(rows["precision"]))
    if here == there:
        return here
    return f"{here} here, {there} there"


def _sentences(
    table: pd.DataFrame, here: str, *, points: pd.DataFrame, compiled: pd.DataFrame
) -> Iterator[str]:
    keys = ["device", "source", "here_precision", "precision", "settings"]
    known = table[table["there"].notna()]
    for _, rows in known[~known["is_floor"]].groupby(keys, sort=False):
        yield _group_sentence(rows, here)
    for _, rows in known[known["is_floor"]].groupby(keys, sort=False):
        yield _floor_sentence(rows, here)
    for device, rows in table[table["there"].isna()].groupby("device", sort=False):
        names = ", ".join(dict.fromkeys(rows["family"]))
        yield f"{device}: no rate for {names}; {rows['missing'].iloc[0]}."
    for device, rows in known[known["notes"].ne("")].groupby("device", sort=False):
        example = rows.sort_values("ratio", ascending=False, kind="stable").iloc[0]
        yield (
            f"{device}: {counted(len(rows), 'rate')} with a remark in the column notes, such as "
            f"{example['point']}: {example['notes']}."
        )
    yield (
        "Published rates come from other software and earlier years: they were reached, but higher "
        "rates may be possible."
    )
    omitted = len(points) - len(compiled)
    if omitted:
        yield (
            f"Omitted: {counted(omitted, 'eager point')} whose model was also measured compiled, "
            "since published platforms ran compiled graphs."
        )
    if len(compiled) > _MAX_POINTS:
        yield (
            f"Of {len(compiled):,} points, {_MAX_POINTS} were compared, chosen round-robin from "
            "the families. Use --where to select points."
        )


def _group_sentence(rows: pd.DataFrame, here: str) -> str:
    """State the range and the geometric mean of the ratios of one group of points.

    Args:
        rows: Rows of the table of `compare_published` that share platform, source, precisions and
            settings.
        here: Name of the measured device.
    """
    first = rows.iloc[0].to_dict()
    if first["source"] == "published":
        source = "published"
    else:
        source = "predicted from published timings of kernels or other models"
    mean = format_number(math.exp(np.log(rows["ratio"]).mean()), digits=3)
    return (
        f"{first['device']} against {_format_side(first, here)} ({_format_precisions(rows)}; "
        f"{source}): {_format_ratios(rows)} times as fast on {counted(len(rows), 'point')}, "
        f"geometric mean {mean}."
    )


def _floor_sentence(rows: pd.DataFrame, here: str) -> str:
    first = rows.iloc[0].to_dict()
    return (
        f"{first['device']} against {_format_side(first, here)} ({_format_precisions(rows)}): at "
        f"most {_format_ratios(rows)} times as fast on {counted(len(rows), 'point')}. The "
        "predicted step time there is a lower bound: the cost of dispatching the operations, which "
        "hardly depends on the sizes of the model."
    )


def _format_side(row: Mapping[Any, Any], here: str) -> str:
    """Return the name of this machine, followed by the settings of a group if it has any.

    Args:
        row: First row of the group in the table of `compare_published`.
        here: Name of the measured device.
    """
    return f"{here}, {row['settings']}" if row["settings"] else here


def draw_comparison(table: pd.DataFrame, here: str) -> drawing.Figure:
    """Draw examples per second: a row for each point, with a mark for each platform.

    Args:
        table: The table of `compare-published`.
        here: Name of the measured device.
    """
    points = sorted(set(table["point"]))
    figure, (axes,) = drawing.panels(1, 6.4, 1.2 + 0.24 * len(points))
    groups = {f"{here}, measured": _ends(table.drop_duplicates("point"), "here")}
    known = table[table["there"].notna()]
    keys = ["device", "source", "precision", "is_floor"]
    for (device, source, precision, is_floor), rows in known.groupby(keys, sort=True):
        how = "at most (dispatch floor)" if is_floor else source
        groups[f"{device} in {precision}, {how}"] = _ends(rows, "there")
    styles = {name: drawing.look(name, [*groups]) | {"capsize": 0} for name in groups}
    drawing.forest(axes, {point: point for point in points}, groups, styles)
    title = "Compared with published platforms"
    drawing.finish(axes, title, "examples/s", logs={"x": format_number})
    drawing.legend(figure)
    return figure


def _ends(rows: pd.DataFrame, side: str) -> pd.DataFrame:
    """Return the rate and its interval for each point, as the function `forest` expects them.

    Args:
        rows: Rows of the table of `compare_published`, at most one per point.
        side: "here" for this machine, or "there" for the platform.

    Returns:
        The columns `value`, `low` and `high` in examples per second, indexed by point.
    """
    names = {side: "value", f"{side}_low": "low", f"{side}_high": "high"}
    return rows.set_index("point")[[*names]].rename(columns=names).dropna(subset="value")
