"""`parameters`: the range of trainable parameters of each family, real models as points (the
paper's Figure 1).

Counts of models, not of runs, whatever became of them: a model that ran with ten batch sizes on two
devices is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis.format import format_number
from analysis.lazy import drawing, np, pd
from analysis.options import Options
from analysis.registry import analysis
from analysis.result import Result, require_runs
from paradnn.families import FAMILIES


@analysis(
    Options,
    summary="the range of trainable parameters of each family, with real models as points",
    example="python -m analysis parameters --figure parameters.png",
    gate="untimed",
    section="system",
    order=110,
    title="Sizes of the models",
    reading=("Trainable parameters of the distinct models of each family."),
)
def parameters(frame: pd.DataFrame, options: Options) -> Result:
    """A row for each parametric family, in the paper's order, then for each real model.
    NotEnoughData without runs.
    """
    del options  # nothing to choose: models are not pooled
    require_runs(frame)
    if "parameters" in frame:
        counts = frame["parameters"]
    else:
        counts = pd.Series(np.nan, frame.index)
    known = frame.assign(parameters=counts)[
        frame["family"].notna() & (counts > 0) & np.isfinite(counts)
    ]
    identity = [str(name) for name in known if str(name).startswith("model.")]
    # Runs of one model on several devices may print its count with more or fewer digits: one of
    # them is enough.
    models = known.drop_duplicates(["family", *(identity or ["parameters"])])[
        ["family", "parameters"]
    ]
    # The families that ParaDnn generates; every other name is a real model.
    generated = [name for name, family in FAMILIES.items() if not family.is_real]
    place = models["family"].map({name: place for place, name in enumerate(generated)})
    real = models[place.isna()].drop_duplicates().sort_values(["parameters", "family"])
    models = models[place.notna()].assign(place=place).sort_values(["place", "parameters"])
    ranges = _ranges(pd.concat([models, real]))
    is_real = ranges["family"].isin(real["family"])
    return Result(
        numbers=ranges.assign(**{name: ranges[name].mask(is_real) for name in ("q25", "q75")}),
        sentences=[*_sentences(ranges[~is_real], real, len(frame) - len(known))],
        picture=lambda: _draw(ranges[~is_real], models, real),
        sources=tuple(frame.get("run_id", ())),
    )


def _ranges(models: pd.DataFrame) -> pd.DataFrame:
    """A row for each family: how many models, quantiles of their parameters, and maximum / minimum."""
    found = models.groupby("family", sort=False)["parameters"].describe()
    names = {
        "count": "models",
        "min": "minimum",
        "25%": "q25",
        "50%": "median",
        "75%": "q75",
        "max": "maximum",
    }
    found = found.reindex(columns=list(names)).rename(columns=names).astype({"models": int})
    return (
        found.assign(span=found["maximum"] / found["minimum"]).rename_axis("family").reset_index()
    )


def _sentences(ranges: pd.DataFrame, real: pd.DataFrame, unknown: int) -> Iterator[str]:
    for row in ranges.to_dict("records"):
        words = {
            name: _short(row[name])
            for name in ("minimum", "q25", "median", "q75", "maximum", "span")
        }
        if row["models"] == 1:
            yield f"{row['family']}: 1 model of {words['minimum']} trainable parameters."
            continue
        yield (
            f"{row['family']}: {row['models']} models from {words['minimum']} to {words['maximum']} trainable "
            f"parameters, a factor of {words['span']}; half of them between {words['q25']} and {words['q75']}, median "
            f"{words['median']}."
        )
    for family, count in real[["family", "parameters"]].itertuples(index=False):
        around = ranges.loc[(ranges["minimum"] <= count) & (ranges["maximum"] >= count), "family"]
        if len(around):
            place = f"within the range of {', '.join(around)}"
        else:
            place = "outside every family's range"
        yield f"{family}: {_short(count)}, {place}."
    if unknown:
        yield f"{unknown} runs do not report their parameters."


def _draw(ranges: pd.DataFrame, models: pd.DataFrame, real: pd.DataFrame) -> drawing.Figure:
    """A bar from the smallest to the largest model of each family with every model as a tick and
    its median marked; real models below, a row each, so that their labels never meet.
    """
    stars = real.groupby("family", sort=False)["parameters"]
    drawn, (axes,) = drawing.panels(1, 7.5, 1.4 + 0.5 * (len(ranges) + stars.ngroups))
    rows = [
        f"{family} ({count})"
        for family, count in zip(ranges["family"], ranges["models"], strict=True)
    ]
    said: dict[str, Any] = {"textcoords": "offset points", "fontsize": "small", "color": "#333333"}
    for place, row in enumerate(ranges.to_dict("records")):
        look = drawing.look(row["family"])
        ends = [row["minimum"], row["maximum"]]
        axes.plot(
            ends, [place] * 2, color=look["color"], linewidth=9, alpha=0.35, solid_capstyle="butt"
        )
        values = models.loc[models["family"] == row["family"], "parameters"]
        axes.plot(values, [place] * len(values), "|", color=look["color"], markersize=8, alpha=0.6)
        axes.plot(row["median"], place, markeredgecolor="white", markersize=8, **look)
        axes.annotate(
            " to ".join(dict.fromkeys(map(_short, ends))), (ends[0], place), (0, 8), **said
        )
    for name, values in stars:
        axes.plot(values, [len(rows)] * len(values), "*", color=drawing.COLOURS[-1], markersize=10)
        rows.append(f"{name}: {', '.join(map(_short, values))}")
    drawing.names(axes.yaxis, rows)
    axes.set_xscale("log")
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.margins(x=0.12)
    marks = "tick: a model, marker: median" + ", star: real model" * bool(stars.ngroups)
    title = "Trainable parameters by family (models)"
    x = f"trainable parameters ({marks})"
    drawing.finish(axes, title, x, logs={"x": format_number}, grid="x")
    return drawn


def _short(value: float) -> str:
    return format_number(value, digits=3)
