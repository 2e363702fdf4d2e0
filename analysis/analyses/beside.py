"""`beside`: this machine beside the published platforms of the atlas, model by model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import Headline, Result, pooled_within, require_runs
from paradnn.core.errors import NotEnoughData
from paradnn.core.words import counted
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Precisions in which a platform may have been published where the run's own is not there, the likeliest first.
_PRECISIONS = ("float16", "bfloat16", "float32")
#: Models that are looked at: each prediction takes some 50 ms.
_MOST = 40


@dataclass(frozen=True, kw_only=True)
class BesideOptions(Options):
    """Which platforms."""

    command = "beside"

    platform_of: tuple[str, ...] = option(
        ("V100", "TPU v2"),
        "a device of the atlas, repeatable: paradnn ask --list (default: those of the paper, V100 and TPU v2)",
        metavar="DEVICE",
    )


@analysis(
    BesideOptions,
    summary="this machine beside published platforms (V100, TPU v2 and others), model by model",
    description="Examples per second of every measured model beside what was published of other platforms: the\n"
    "very step where it was, else a prediction with its interval; and what is not known of them.",
    example="python -m analysis beside --platform-of V100 --platform-of H200 --figure beside.png",
    section="system",
    order=15,
    title="Beside published platforms",
    reading="Marks further right are faster. Bars are 95% intervals; of published steps there is none.",
)
def beside(frame: pd.DataFrame, options: BesideOptions) -> Result:
    """Measured models of a frame beside devices of the atlas, a row for each model and platform.

    Columns: family, point, device, here and there (examples per second) with _low and _high, source (published: that
    very step; predicted), precision (of the platform), ratio (there / here), missing (why there is no number).
    NotEnoughData without a measured run of a model, ConfigError for a device that the atlas lacks, HeterogeneousError
    for heterogeneous runs.
    """
    from analysis.atlas import load

    require_runs(frame)
    for name in options.platform_of:
        load().device(name)
    if "examples_per_second" not in frame:
        raise NotEnoughData("no step was measured here")
    own = frame["source"].ne("published") if "source" in frame else True
    runs = frame[frame["outcome"].eq("ok") & own & frame["examples_per_second"].gt(0)]
    if runs.empty:
        raise NotEnoughData("no model was measured here; every run is published")
    runs = runs[runs["family"].isin(list(FAMILIES))]
    pooled = pooled_within(runs, ["device"], options.pool)
    points = runs.drop_duplicates("point_id", keep="last")
    chosen = points.loc[points.groupby("family").cumcount().sort_values(kind="stable").index[:_MOST]]
    rows = [row for run in chosen.to_dict("records") for row in _rows(run, options)]
    if not rows:
        raise NotEnoughData("no model with layers was measured here, such as model=fc")
    table = pd.DataFrame(rows).sort_values(["device", "point"], ignore_index=True)
    here = " and ".join(dict.fromkeys(runs["device"].astype(str)))
    return Result(
        numbers=table,
        sentences=[*_sentences(table, here), *_of_many(len(points))],
        picture=(lambda: draw_beside(table, here)) if table["there"].notna().any() else None,
        stands_out=_headline(table),
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _headline(table: pd.DataFrame) -> Headline | None:
    """Of each platform what was published of it, else what is predicted."""
    found = []
    for device, rows in table[table["there"].notna()].groupby("device", sort=False):
        source = min(rows["source"], key=("published", "predicted").index)
        known = rows[rows["source"].eq(source)]
        ends = [short(end, digits=2) for end in (known["ratio"].min(), known["ratio"].max())]
        what = f"{counted(len(known), 'model')} {' to '.join(dict.fromkeys(ends))} times as fast"
        found.append(f"{device} ran {what} ({source})" if source == "published" else f"{device} would run {what}")
    return Headline("Beside published platforms", f"{'; '.join(found)}.") if found else None


def _sentences(table: pd.DataFrame, here: str) -> Iterator[str]:
    for device, rows in table.groupby("device", sort=False):
        for source, known in rows[rows["there"].notna()].groupby("source", sort=True):
            span = [short(end, digits=3) for end in (known["ratio"].min(), known["ratio"].max())]
            mean = short(math.exp(np.log(known["ratio"]).mean()), digits=3)
            how = (
                "published" if source == "published" else "predicted from published timings of kernels or other models"
            )
            numbers, ends = ", ".join(dict.fromkeys(known["precision"])), " to ".join(dict.fromkeys(span))
            yield (
                f"{device} ({numbers}) runs {counted(len(known), 'model')} {ends} times as fast as "
                f"{here}, {mean} times in the geometric mean; {how}."
            )
        lacking = rows[rows["there"].isna()]
        if len(lacking):
            names = ", ".join(dict.fromkeys(lacking["family"]))
            yield f"Not known of {device}: {names}; {lacking['missing'].iloc[0]}."
    yield "Published numbers are of other software and years: they say what was reached, not what is possible."


def _of_many(points: int) -> Iterator[str]:
    if points > _MOST:
        yield f"Of {points:,} models {_MOST} were looked at, of every family as many; --where narrows the choice."


def draw_beside(table: pd.DataFrame, here: str) -> Figure:
    """Examples per second, a row for each model, a mark for each platform."""
    points = sorted(set(table["point"]), reverse=True)
    places = {point: place for place, point in enumerate(points)}
    drawn, (axes,) = drawing.panels(1, 6.4, 1.2 + 0.24 * len(points))
    sides: list[tuple[str, str, pd.DataFrame]] = [(here, "here", table.drop_duplicates("point"))]
    sides += [(str(name), "there", rows) for name, rows in table.groupby("device", sort=False)]
    for number, (name, side, rows) in enumerate(sides):
        known = rows[rows[side].notna()]
        values = known[[side, f"{side}_low", f"{side}_high"]].to_numpy(dtype="float64")
        ends = np.nan_to_num(np.abs(values[:, 1:] - values[:, :1]).T)
        label = f"{name}, {'measured' if side == 'here' else 'published or predicted'}"
        mark, colour = drawing.MARKERS[number % len(drawing.MARKERS)], drawing.COLOURS[number % 7]
        y = known["point"].map(places)
        axes.errorbar(values[:, 0], y, xerr=ends, fmt=mark, color=colour, markersize=5, elinewidth=0.8, label=label)
    axes.set_xscale("log")
    drawing.log_ticks(axes.xaxis, short)
    axes.set_xlabel("examples/s")
    drawing.names(axes.yaxis, points)
    drawing.legend(drawn)
    return drawn


def _rows(run: Mapping[Any, Any], options: BesideOptions) -> Iterator[dict[str, Any]]:
    from analysis.atlas import load
    from analysis.atlas.expect import expect, model_in, published, words_of

    model = model_in(run)
    if not FAMILIES[str(run["family"])].has_layers or model.is_kernel or model.is_communication:
        return
    own, batch = float(run["examples_per_second"]), float(run["batch_size"])
    ends = [float(run.get(f"examples_per_second_{end}", math.nan)) for end in ("low", "high")]
    about = {
        "family": run["family"],
        "point": words_of(run, model),
        "here": own,
        "here_low": ends[0],
        "here_high": ends[1],
    }
    for name in options.platform_of:
        device = load().device(name)
        numbers = dict.fromkeys((str(run["precision"]), *_PRECISIONS))
        if run["family"] == "fc":  # whole steps come first
            numbers = dict.fromkeys(sorted(numbers, key=lambda name: load().find(device, "fc", name) is None))
        tries = [{**run, "precision": precision} for precision in numbers]
        exact = next(((row, seconds) for row in tries if (seconds := published(row, device))), None)
        if exact:
            rate = batch / exact[1]
            found = {"there": rate, "there_low": math.nan, "there_high": math.nan, "source": "published",
                     "precision": exact[0]["precision"], "ratio": rate / own, "missing": ""}  # fmt: skip
        else:
            answers = [(tries[0], expect(tries[0], device))]
            while answers[-1][1].seconds is None and len(answers) < len(tries):
                answers.append((tries[len(answers)], expect(tries[len(answers)], device)))
            row, answer = answers[-1 if answers[-1][1].seconds else 0]
            there = [
                math.nan if value is None else batch / value for value in (answer.seconds, answer.high, answer.low)
            ]
            found = dict(zip(("there", "there_low", "there_high"), there, strict=True))
            found |= {
                "source": "predicted",
                "precision": row["precision"],
                "ratio": there[0] / own,
                "missing": answer.why,
            }
        yield {**about, "device": device, **found}
