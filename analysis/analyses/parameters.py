"""`parameters`: summarize the number of trainable parameters of the models of each family.

This is the paper's Figure 1, with real models as points. Distinct models are counted, not runs: a
model that ran with ten batch sizes on two devices counts once. Runs of every outcome are included.
With --space, the models of a design space are summarized without any run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.format import format_number
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Result, require_runs
from analysis.store.lazy_step_inputs import step_inputs
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted
from paradnn.families import FAMILIES


@dataclass(frozen=True, kw_only=True)
class ParametersOptions(Options):
    """Options of the command `parameters`.

    `space` lists overrides of `paradnn.train` that describe models. If it is empty, the command
    summarizes the models of the selected runs; otherwise it summarizes the described models.
    """

    space: tuple[str, ...] = option(
        (),
        "summarize the models of a design space instead of runs: overrides of paradnn.train, such "
        "as experiment=paper_fc or 'model=gpt model.layers=2,4'; repeatable",
        metavar="OVERRIDES",
        several="repeat",
    )


def _read_space(options: ParametersOptions) -> pd.DataFrame | None:
    """Return the models that the option --space describes; None if the option is absent.

    Args:
        options: The options of the command.

    Returns:
        A row per distinct model, with its number of trainable parameters in the column
        `parameters`.

    Raises:
        ConfigError: If a value of --space cannot be split into words, or describes no model with
            trainable parameters.
        ParadnnError: If the overrides are invalid.
    """
    if not options.space:
        return None
    parts = [_read_models(overrides) for overrides in options.space]
    return pd.concat(parts, ignore_index=True)


def _read_models(overrides: str) -> pd.DataFrame:
    """Return the distinct models that overrides of `paradnn.train` describe.

    Args:
        overrides: One value of --space, such as "model=gpt model.layers=2,4".

    Returns:
        A row per distinct model, with its number of trainable parameters in the column
        `parameters`.

    Raises:
        ConfigError: If the value cannot be split into words, or describes no model with trainable
            parameters.
    """
    try:
        words = shlex.split(overrides)
    except ValueError as error:
        remedy = "quote it as a whole, such as --space 'model=fc model.layers=4,8'"
        raise ConfigError("--space", overrides, str(error).lower(), remedy) from None
    if not words:
        remedy = "give overrides, such as --space experiment=paper_fc"
        raise ConfigError("--space", overrides, "is empty", remedy)
    points = step_inputs.points_from_words(words, "--space")
    identity = [str(name) for name in points if str(name).startswith("model.")]
    models = points.drop_duplicates(["family", *identity])
    counts = step_inputs.analytic_costs(models)["parameters"]
    if not (counts > 0).any():
        remedy = "choose models with layers, such as model=fc"
        raise ConfigError("--space", overrides, "has no model with trainable parameters", remedy)
    return models.assign(parameters=counts)


@analysis(
    ParametersOptions,
    summary="the range of trainable parameters of each family, with real models as points",
    example="python -m analysis parameters --space experiment=paper_fc --figure parameters.png",
    gate="untimed",
    load_frame=_read_space,
    section="system",
    order=110,
    title="Sizes of the models",
    reading="Trainable parameters of the distinct models of each family.",
)
def parameters(frame: pd.DataFrame, options: ParametersOptions) -> Result:
    """Summarize the trainable parameters of the models of each family.

    Args:
        frame: Runs, one per row, or the models that the option `space` describes.
        options: Not used; `frame` already contains the models of `space`.

    Returns:
        The result. Its table has a row for each parametric family, in the paper's order, and then
        for each real model: family, models (their number), minimum, q25, median, q75, maximum, and
        span (maximum / minimum).

    Raises:
        InsufficientData: If there are no runs.
    """
    del options  # the frame already contains the models of --space
    require_runs(frame)
    models = _distinct_models(frame)
    ranges = _ranges(pd.concat([models.generated, models.real]))
    is_real = ranges["family"].isin(models.real["family"])
    # A real model has a single size, so its quartiles say nothing.
    table = ranges.assign(q25=ranges["q25"].mask(is_real), q75=ranges["q75"].mask(is_real))
    return Result(
        numbers=table,
        answer=_answer(ranges),
        sentences=[*_sentences(ranges[~is_real], models)],
        picture=lambda: _draw(ranges[~is_real], models),
        sources=tuple(frame.get("run_id", ())),
    )


class _Models(NamedTuple):
    """Distinct models with their numbers of trainable parameters.

    Attributes:
        generated: A row per model of a parametric family, whose sizes ParaDnn sets, with the
            columns `family` and `parameters`.
        real: A row per published architecture, such as resnet50, with the same columns.
        unknown_runs: Number of runs that do not report parameters.
    """

    generated: pd.DataFrame
    real: pd.DataFrame
    unknown_runs: int


def _distinct_models(frame: pd.DataFrame) -> _Models:
    if "parameters" in frame:
        counts = frame["parameters"]
    else:
        counts = pd.Series(np.nan, frame.index)
    is_known = frame["family"].notna() & (counts > 0) & np.isfinite(counts)
    known = frame.assign(parameters=counts)[is_known]
    # Runs of one model on several devices may report its parameters with different precision. If
    # the runs have a configuration, it identifies the model instead.
    identity = [str(name) for name in known if str(name).startswith("model.")]
    models = known.drop_duplicates(["family", *(identity or ["parameters"])])
    models = models[["family", "parameters"]]
    order = [name for name, family in FAMILIES.items() if not family.is_real]
    positions = {name: position for position, name in enumerate(order)}
    models = models.assign(position=models["family"].map(positions))
    is_generated = models["position"].notna()
    generated = models[is_generated].sort_values(["position", "parameters"])
    real = models[~is_generated].drop_duplicates().sort_values(["parameters", "family"])
    return _Models(
        generated=generated.drop(columns="position"),
        real=real.drop(columns="position"),
        unknown_runs=len(frame) - len(known),
    )


def _ranges(models: pd.DataFrame) -> pd.DataFrame:
    """Return a row per family: the number of models, and a summary of their parameter counts.

    The summary is minimum, quartiles, maximum, and `span`, the maximum divided by the minimum.

    Args:
        models: A row per model, with the columns `family` and `parameters`.
    """
    names = {
        "count": "models",
        "min": "minimum",
        "25%": "q25",
        "50%": "median",
        "75%": "q75",
        "max": "maximum",
    }
    table = models.groupby("family", sort=False)["parameters"].describe()
    table = table.reindex(columns=list(names)).rename(columns=names).astype({"models": int})
    table["span"] = table["maximum"] / table["minimum"]
    return table.rename_axis("family").reset_index()


def _answer(ranges: pd.DataFrame) -> AnalysisAnswer:
    """State the number of models, and the smallest and the largest model.

    Args:
        ranges: The table that `_ranges` returns.
    """
    models = int(ranges["models"].sum())
    if not models:
        return AnalysisAnswer(sentence="No run reports trainable parameters.", points=0)
    smallest = ranges.sort_values("minimum").iloc[0]
    largest = ranges.sort_values("maximum").iloc[-1]
    low = f"{_format_count(smallest['minimum'])} ({smallest['family']})"
    high = f"{_format_count(largest['maximum'])} ({largest['family']})"
    if models == 1:
        text = f"1 model has {low} trainable parameters"
    else:
        factor = _format_count(largest["maximum"] / smallest["minimum"])
        text = (
            f"{models:,} models have from {low} to {high} trainable parameters, a factor of "
            f"{factor}"
        )
    return AnalysisAnswer(sentence=f"{text}.", points=models)


def _sentences(ranges: pd.DataFrame, models: _Models) -> Iterator[str]:
    for row in ranges.to_dict("records"):
        smallest = _format_count(row["minimum"])
        if row["models"] == 1:
            yield f"{row['family']}: 1 model with {smallest} trainable parameters."
            continue
        yield (
            f"{row['family']}: {row['models']} models from {smallest} to "
            f"{_format_count(row['maximum'])} trainable parameters, a factor of "
            f"{_format_count(row['span'])}; half of them between {_format_count(row['q25'])} and "
            f"{_format_count(row['q75'])}, median {_format_count(row['median'])}."
        )
    for family, count in models.real.itertuples(index=False):
        is_within = (ranges["minimum"] <= count) & (ranges["maximum"] >= count)
        if is_within.any():
            position = f"within the range of {', '.join(ranges.loc[is_within, 'family'])}"
        else:
            position = "outside every family's range"
        yield f"{family}: {_format_count(count)}, {position}."
    if models.unknown_runs:
        verb = "does" if models.unknown_runs == 1 else "do"
        yield f"{counted(models.unknown_runs, 'run')} {verb} not report parameters."


def _draw(ranges: pd.DataFrame, models: _Models) -> drawing.Figure:
    """Draw a bar from the smallest to the largest model of each family.

    Every model is a tick, and the median is marked. Each real model has a separate row below, so
    that labels do not overlap.

    Args:
        ranges: Rows of the parametric families in the table that `_ranges` returns.
        models: The distinct models with their numbers of parameters.
    """
    real_models = models.real.groupby("family", sort=False)["parameters"]
    rows = len(ranges) + real_models.ngroups
    figure, (axes,) = drawing.panels(1, 7.5, 1.4 + 0.5 * rows)
    names = []
    for position, row in enumerate(ranges.to_dict("records")):
        names.append(f"{row['family']} ({row['models']})")
        is_family = models.generated["family"] == row["family"]
        values = models.generated.loc[is_family, "parameters"]
        _draw_range(axes, row, values, position)
    for family, values in real_models:
        positions = [len(names)] * len(values)
        axes.plot(values, positions, "*", color=drawing.COLORS[-1], markersize=10)
        names.append(f"{family}: {', '.join(map(_format_count, values))}")
    drawing.names(axes.yaxis, names)
    axes.set_xscale("log")
    axes.set_ylim(rows - 0.4, -0.8)
    axes.margins(x=0.12)
    marks = "tick: a model, marker: median"
    if real_models.ngroups:
        marks += ", star: real model"
    title = "Trainable parameters by family (models)"
    x_label = f"trainable parameters ({marks})"
    drawing.finish(axes, title, x_label, logs={"x": format_number}, grid="x")
    return figure


def _draw_range(axes: drawing.Axes, row: dict[Any, Any], values: pd.Series, position: int) -> None:
    """Draw one family as a row of the figure: range, ticks, median, and the ends as text.

    Args:
        axes: Axes of the figure.
        row: Row of the family in the table that `_ranges` returns.
        values: Numbers of parameters of the models of the family.
        position: Vertical position of the row.
    """
    style = drawing.look(str(row["family"]))
    color = style["color"]
    ends = [row["minimum"], row["maximum"]]
    axes.plot(ends, [position] * 2, color=color, linewidth=9, alpha=0.35, solid_capstyle="butt")
    axes.plot(values, [position] * len(values), "|", color=color, markersize=8, alpha=0.6)
    axes.plot(row["median"], position, markeredgecolor="white", markersize=8, **style)
    text = " to ".join(dict.fromkeys(_format_count(end) for end in ends))
    axes.annotate(
        text,
        (ends[0], position),
        (0, 8),
        textcoords="offset points",
        fontsize="small",
        color="#333333",
    )


def _format_count(value: float) -> str:
    return format_number(value, digits=3)
