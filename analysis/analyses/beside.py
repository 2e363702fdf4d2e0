"""`beside`: examples per second of every measured model beside published platforms: what was
published of the very step, else a prediction with its interval; and what is not known of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import Highlight, Result, pooled_within, require_runs
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted
from paradnn.families import FAMILIES

#: Precisions in which a platform may have been published where the run's own is not there, the
#: likeliest first.
_PRECISIONS = ("float16", "bfloat16", "float32")
#: Models that are looked at: each prediction takes some 50 ms.
_MOST = 40


@dataclass(frozen=True, kw_only=True)
class BesideOptions(Options):
    """Which platforms."""

    platform_of: tuple[str, ...] = option(
        ("V100", "TPU v2"),
        "a device of the atlas, repeatable: paradnn ask --list (default: those of the paper, V100 and TPU v2)",
        metavar="DEVICE",
    )


@analysis(
    BesideOptions,
    summary="this machine beside published platforms (V100, TPU v2 and others), model by model",
    example="python -m analysis beside --platform-of V100 --platform-of H200 --figure beside.png",
    section="system",
    order=15,
    title="Beside published platforms",
    reading="Marks further right are faster. Bars are 95% intervals; of published steps there is none.",
)
def beside(frame: pd.DataFrame, options: BesideOptions) -> Result:
    """A row for each measured model and platform.

    Columns: family, point, device, here and there (examples per second) with _low and _high, source
    (published: that very step; predicted), precision (of the platform), ratio (there / here),
    missing (why there is no number). NotEnoughData without a measured run of a model, ConfigError
    for a device that the atlas lacks, HeterogeneousError for heterogeneous runs.
    """
    from analysis.atlas import load

    require_runs(frame)
    for name in options.platform_of:
        load().device_name(name)
    if "examples_per_second" not in frame:
        raise NotEnoughData("no step was measured here")
    own = frame["source"].ne("published") if "source" in frame else True
    runs = frame[frame["outcome"].eq("ok") & own & frame["examples_per_second"].gt(0)]
    if runs.empty:
        raise NotEnoughData("no model was measured here; every run is published")
    runs = runs[runs["family"].isin(list(FAMILIES))]
    pooled = pooled_within(runs, ["device"], options.pool)
    points = runs.drop_duplicates("point_id", keep="last")
    chosen = points.loc[
        points.groupby("family").cumcount().sort_values(kind="stable").index[:_MOST]
    ]
    rows = [row for run in chosen.to_dict("records") for row in _rows(run, options)]
    if not rows:
        raise NotEnoughData("no model with layers was measured here, such as model=fc")
    table = pd.DataFrame(rows).sort_values(["device", "point"], ignore_index=True)
    here = " and ".join(runs["device"].astype(str).unique())
    return Result(
        numbers=table,
        sentences=[*_sentences(table, here, len(points))],
        picture=(lambda: draw_beside(table, here)) if table["there"].notna().any() else None,
        stands_out=_headline(table),
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _headline(table: pd.DataFrame) -> Highlight | None:
    """Of each platform what was published of it, else what is predicted."""
    found = []
    for device, rows in table[table["there"].notna()].groupby("device", sort=False):
        source = min(rows["source"], key=("published", "predicted").index)
        ratios = rows.loc[rows["source"].eq(source), "ratio"]
        ends = dict.fromkeys(short(end, digits=2) for end in (ratios.min(), ratios.max()))
        verb, note = ("ran", " (published)") if source == "published" else ("would run", "")
        found.append(
            f"{device} {verb} {counted(len(ratios), 'model')} {' to '.join(ends)} times as fast{note}"
        )
    if found:
        return Highlight("Beside published platforms", f"{'; '.join(found)}.")
    return None


def _sentences(table: pd.DataFrame, here: str, points: int) -> Iterator[str]:
    for device, rows in table.groupby("device", sort=False):
        for source, known in rows[rows["there"].notna()].groupby("source", sort=True):
            span = [short(end, digits=3) for end in (known["ratio"].min(), known["ratio"].max())]
            mean = short(math.exp(np.log(known["ratio"]).mean()), digits=3)
            if source == "predicted":
                how = "predicted from published timings of kernels or other models"
            else:
                how = "published"
            numbers = ", ".join(dict.fromkeys(known["precision"]))
            ends = " to ".join(dict.fromkeys(span))
            yield (
                f"{device} ({numbers}) runs {counted(len(known), 'model')} {ends} times as fast as "
                f"{here}, {mean} times in the geometric mean; {how}."
            )
        lacking = rows[rows["there"].isna()]
        if len(lacking):
            names = ", ".join(dict.fromkeys(lacking["family"]))
            yield f"Not known of {device}: {names}; {lacking['missing'].iloc[0]}."
    yield "Published numbers are of other software and years: they say what was reached, not what is possible."
    if points > _MOST:
        yield f"Of {points:,} models {_MOST} were looked at, of every family as many; --where narrows the choice."


def draw_beside(table: pd.DataFrame, here: str) -> drawing.Figure:
    """Examples per second, a row for each model, a mark for each platform."""
    points = sorted(set(table["point"]))
    drawn, (axes,) = drawing.panels(1, 6.4, 1.2 + 0.24 * len(points))
    parts = {f"{here}, measured": table.drop_duplicates("point")}
    parts |= {
        f"{name}, published or predicted": table[table["device"] == name]
        for name in table["device"].unique()
    }
    groups = {}
    for side, (name, rows) in zip(["here", *["there"] * len(parts)], parts.items(), strict=False):
        named = {side: "value", f"{side}_low": "low", f"{side}_high": "high"}
        groups[name] = (
            rows.set_index("point")[[*named]].rename(columns=named).dropna(subset="value")
        )
    looks = {name: drawing.look(name, [*groups]) | {"capsize": 0} for name in groups}
    drawing.forest(axes, {point: point for point in points}, groups, looks)
    drawing.finish(axes, "Beside published platforms", "examples/s", logs={"x": short})
    drawing.legend(drawn)
    return drawn


def _rows(run: Mapping[Any, Any], options: BesideOptions) -> Iterator[dict[str, Any]]:
    """The rows of a measured run; none of what is no model with layers."""
    from analysis.atlas import load
    from analysis.atlas.points import format_point, model_from_row

    model = model_from_row(run)
    if not FAMILIES[str(run["family"])].has_layers or model.is_kernel or model.is_communication:
        return
    here = {
        f"here{end}": float(run.get(f"examples_per_second{end}", math.nan))
        for end in ("", "_low", "_high")
    }
    for device in map(load().device_name, options.platform_of):
        there = _there(run, device)
        ratio = there["there"] / here["here"]
        last = {"ratio": ratio, "missing": there.pop("missing")}
        yield {
            "family": run["family"],
            "point": format_point(run, model),
            **here,
            "device": device,
            **there,
            **last,
        }


def _there(run: Mapping[Any, Any], device: str) -> dict[str, Any]:
    """What is known of a run's step on a device: published, else predicted, in the first precision
    that it has.
    """
    from analysis.atlas import load
    from analysis.atlas.estimate import estimate_step_time
    from analysis.atlas.whole_steps import published_seconds

    numbers = list(dict.fromkeys((str(run["precision"]), *_PRECISIONS)))
    if run["family"] == "fc":  # whole steps come first
        numbers.sort(key=lambda name: load().find_group(device, "fc", name) is None)
    row, *others = [{**run, "precision": precision} for precision in numbers]
    batch = float(run["batch_size"])
    source = "published"
    missing = ""
    times = (math.nan,) * 3
    exact = next(
        (
            (each, seconds)
            for each in (row, *others)
            if (seconds := published_seconds(each, device))
        ),
        None,
    )
    if exact:
        row = exact[0]
        times = (exact[1], math.nan, math.nan)
    else:
        answer = estimate_step_time(row, device)
        for other in others:
            if (
                answer.seconds is None
                and (found := estimate_step_time(other, device)).seconds is not None
            ):
                row = other
                answer = found
        source = "predicted"
        missing = answer.why
        times = (answer.seconds or math.nan, answer.high or math.nan, answer.low or math.nan)
    rates = dict(
        zip(("there", "there_low", "there_high"), (batch / each for each in times), strict=True)
    )
    return rates | {"source": source, "precision": row["precision"], "missing": missing}
