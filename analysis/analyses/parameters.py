"""`parameters`: the range of trainable parameters of each family, the paper's Figure 1.

Parameter ranges (the paper's Figure 1): how wide each family reaches, and where real models stand in it.

Counts of models, not of runs: a model that ran with ten batch sizes on two devices is one.

The paper's Figure 1: each family's range of trainable parameters, real models as labelled points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.lazy import drawing, np, pd, ticker
from analysis.options import Options, Selection, option
from analysis.registry import analysis
from analysis.result import Paragraph, Result, require_runs
from analysis.store.conditions import select
from paradnn.errors import ConfigError
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ParametersOptions(Options):
    """Models that stand in files, in place of those of runs."""

    command = "parameters"

    table: tuple[str, ...] = option(
        (),
        "CSV files of models instead of runs: columns family or model.name, parameters, model.*; --family and --where "
        "choose among them",
        metavar="FILE",
        several="words",
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ParametersResult(Result):
    """Ranges of the parametric families, and the real models."""

    ranges: ParameterRanges

    @property
    def table(self) -> pd.DataFrame:
        real = self.ranges.real.groupby("family", as_index=False, sort=False)["parameters"].agg(
            models="size", minimum="min", median="median", maximum="max"
        )
        real = real.assign(span=real["maximum"] / real["minimum"])
        parts = [part for part in (self.ranges.ranges, real) if len(part)]
        return pd.concat(parts, ignore_index=True) if parts else self.ranges.ranges

    def _figure(self) -> Figure:
        return draw_parameters(self.ranges)

    def _paragraphs(self) -> Iterator[Paragraph]:
        return map(Paragraph, _sentences(self.ranges))


def _models(options: ParametersOptions, selection: Selection, output: Any) -> pd.DataFrame | None:
    """The models of --table; None without it."""
    if not options.table:
        return None
    if output.log:
        raise ConfigError("--log", "with --table", "a result in the store names the runs it rests on", "leave one out")
    frame = read_models(options.table)
    return select(frame[frame["family"].isin(selection.family)] if selection.family else frame, selection.where)


@analysis(
    ParametersOptions,
    summary="the range of trainable parameters of each family, with real models as points",
    description="Trainable parameters of the distinct models of each family, whatever the outcome of their runs.\n"
    "Real models, such as resnet50, stand as points where there are runs of them.\n"
    "Parameters need no measurement: --table reads a list of models instead of the store's runs.",
    example="python -m analysis parameters --figure parameters.png",
    read=_models,
    gate="untimed",
    section="system",
    order=110,
    title="Sizes of the models",
    reading=("Trainable parameters of the distinct models of each family."),
)
def parameters(frame: pd.DataFrame, options: ParametersOptions) -> ParametersResult:
    """Trainable parameters of the distinct models of each family, whatever the outcome of their runs.

    `frame` holds runs, or models as `read_models` gives them. NotEnoughData where it is empty.
    """
    del options  # nothing to choose: models are not pooled
    require_runs(frame)
    known = frame.get("run_id", ())
    return ParametersResult(ranges=parameter_ranges(frame), sources=tuple(known))


def read_models(paths: Sequence[str]) -> pd.DataFrame:
    """The models of CSV files: columns family (or model.name), parameters and, to distinguish models, model.*.

    ConfigError for a file that cannot be read or lacks a column.
    """
    return pd.concat([_read(path) for path in paths], ignore_index=True)


def _read(path: str) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, low_memory=False)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ConfigError("--table", path, f"cannot be read: {error}", "name a CSV file") from None
    if "family" not in frame and "model.name" in frame:
        frame = frame.assign(family=frame["model.name"])
    for column in ("family", "parameters"):
        if column not in frame:
            known = ", ".join(map(str, frame.columns[:8]))
            raise ConfigError("--table", path, f"has no column {column}", f"its columns are {known}")
    return frame.assign(parameters=pd.to_numeric(frame["parameters"], errors="coerce"))


def _sentences(of: ParameterRanges) -> Iterator[str]:
    yield from map(_range, of.ranges.to_dict("records"))
    if len(of.ranges) > 1:
        low, high = of.ranges["minimum"].min(), of.ranges["maximum"].max()
        yield f"All families together reach from {_short(low)} to {_short(high)}."
    for row in of.real.to_dict("records"):
        around = of.ranges[(of.ranges["minimum"] <= row["parameters"]) & (of.ranges["maximum"] >= row["parameters"])]
        place = f"within the range of {', '.join(around['family'])}" if len(around) else "outside every family's range"
        yield f"{row['family']}: {_short(row['parameters'])}, {place}."
    if not len(of.real):
        yield "No real models, such as resnet50, are among these."
    if of.unknown:
        yield f"{of.unknown} runs do not report their parameters."


def _range(row: Mapping[Any, Any]) -> str:
    """One family's range; a single model is no range."""
    if row["models"] == 1:
        return f"{row['family']}: 1 model of {_short(row['minimum'])} trainable parameters."
    ends = f"{_short(row['minimum'])} to {_short(row['maximum'])}"
    return (
        f"{row['family']}: {row['models']} models from {ends} trainable parameters, "
        f"a factor of {_short(row['span'])}; half of them between {_short(row['q25'])} and {_short(row['q75'])}, "
        f"median {_short(row['median'])}."
    )


def _short(value: float) -> str:
    return short(value, digits=3)


#: The families that ParaDnn generates; every other model name is a real model.
PARAMETRIC = tuple(name for name, family in FAMILIES.items() if not family.is_real)


@dataclass(frozen=True)
class ParameterRanges:
    """The ranges of trainable parameters.

    `ranges` has one row a parametric family, in the paper's order: family, models, minimum, q25, median, q75, maximum,
    span (maximum / minimum). `real` has one row a real model and size: family, parameters; `values` one row a
    parametric model: family, parameters. `unknown` counts runs that do not report their parameters, such as published
    ones that were out of memory.
    """

    ranges: pd.DataFrame
    real: pd.DataFrame
    values: pd.DataFrame
    unknown: int


def parameter_ranges(frame: pd.DataFrame) -> ParameterRanges:
    """The range of `parameters` of each family in a frame, over distinct models (columns `model.*`), any outcome."""
    if "parameters" not in frame:
        frame = frame.assign(parameters=np.nan)
    known = frame[frame["family"].notna() & (frame["parameters"] > 0) & np.isfinite(frame["parameters"])]
    identity = [name for name in known.columns if str(name).startswith("model.")]
    # Runs of one model on several devices may print its count with more or fewer digits: one of them is enough.
    models = known.drop_duplicates(["family", *(identity or ["parameters"])])
    parametric = models["family"].isin(PARAMETRIC)
    real = models.loc[~parametric, ["family", "parameters"]].drop_duplicates()
    values = models.loc[parametric, ["family", "parameters"]]
    rows = []
    for family in PARAMETRIC:
        counts = values.loc[values["family"] == family, "parameters"].to_numpy(dtype="float64")
        if len(counts):
            low, quarter, middle, three, high = np.percentile(counts, [0, 25, 50, 75, 100])
            rows.append(
                {
                    "family": family,
                    "models": len(counts),
                    "minimum": low,
                    "q25": quarter,
                    "median": middle,
                    "q75": three,
                    "maximum": high,
                    "span": high / low,
                }
            )
    columns = ["family", "models", "minimum", "q25", "median", "q75", "maximum", "span"]
    return ParameterRanges(
        ranges=pd.DataFrame(rows, columns=columns),
        real=real.sort_values(["parameters", "family"]).reset_index(drop=True),
        values=values.sort_values(["family", "parameters"]).reset_index(drop=True),
        unknown=len(frame) - len(known),
    )


def draw_parameters(result: ParameterRanges) -> Figure:
    """A bar from the smallest to the largest model of each family with every model as a tick and its median marked;
    real models below, a row each, so that their labels never meet."""
    families, real = list(result.ranges["family"]), result.real
    names = list(dict.fromkeys(real["family"]))
    count = len(families) + len(names)
    drawn, axes = drawing.figure(7.5, 1.6 + 0.5 * count)
    for place, row in enumerate(result.ranges.to_dict("records")):
        colour = drawing.colour_of(row["family"])
        axes.plot(
            [row["minimum"], row["maximum"]],
            [place, place],
            color=colour,
            linewidth=9,
            alpha=0.35,
            solid_capstyle="butt",
        )
        values = result.values.loc[result.values["family"] == row["family"], "parameters"].to_numpy()
        axes.plot(values, np.full(len(values), place), "|", color=colour, markersize=8, alpha=0.6)
        axes.plot(
            row["median"], place, drawing.marker_of(row["family"]), color=colour, markeredgecolor="white", markersize=8
        )
        ends = f"{short(row['minimum'], digits=3)} to {short(row['maximum'], digits=3)}"
        axes.annotate(ends, (row["minimum"], place), (0, 8), textcoords="offset points", fontsize=8, color="#333333")
    for place, name in enumerate(names, start=len(families)):
        values = real.loc[real["family"] == name, "parameters"].to_numpy()
        axes.plot(values, np.full(len(values), place), "*", color=drawing.COLOURS[-1], markersize=10, linestyle="none")
        sizes = ", ".join(short(value, digits=3) for value in values)
        axes.annotate(
            sizes, (values.max(), place), (8, 0), textcoords="offset points", fontsize=8, va="center", color="#333333"
        )
    counts = dict(zip(families, result.ranges["models"], strict=True))
    axes.set_yticks(range(count), [*(f"{name} ({counts[name]})" for name in families), *names])
    axes.set_ylim(count - 0.4, -0.8)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=" "))
    marks = "tick: a model, marker: median" + (", star: real model" if names else "")
    drawing.finish(axes, "Trainable parameters by family (models)", f"trainable parameters ({marks})")
    axes.yaxis.grid(False)
    return drawn
