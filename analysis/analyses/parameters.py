"""`parameters`: the range of trainable parameters of each family, real models as points (the paper's Figure 1).

Counts of models, not of runs: a model that ran with ten batch sizes on two devices is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.options import Options, Selection, option
from analysis.registry import analysis
from analysis.result import Result, require_runs
from analysis.store.conditions import select
from paradnn.core.errors import ConfigError
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The families that ParaDnn generates; every other model name is a real model.
PARAMETRIC = [name for name, family in FAMILIES.items() if not family.is_real]


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
    """`models` has a row for each model of a parametric family, in the paper's order, `real` one for each real model
    and size, both family and parameters. `unknown` counts runs that do not report their parameters, such as published
    ones that were out of memory."""

    models: pd.DataFrame
    real: pd.DataFrame
    unknown: int

    @property
    def ranges(self) -> pd.DataFrame:
        """A row for each parametric family: how many models, quantiles of their parameters, and maximum / minimum."""
        counts = self.models.groupby("family", sort=False)["parameters"]
        columns = ("minimum", "q25", "median", "q75", "maximum")
        quantiles = {family: np.percentile(values, [0, 25, 50, 75, 100]) for family, values in counts}
        found = pd.DataFrame(quantiles, index=columns, dtype="float64").T
        found.insert(0, "models", counts.size())
        return found.assign(span=found["maximum"] / found["minimum"]).rename_axis("family").reset_index()

    @property
    def table(self) -> pd.DataFrame:
        real = self.real.groupby("family", as_index=False, sort=False)["parameters"].agg(
            models="size", minimum="min", median="median", maximum="max"
        )
        real = real.assign(span=real["maximum"] / real["minimum"])
        parts = [part for part in (self.ranges, real) if len(part)]
        return pd.concat(parts, ignore_index=True) if parts else self.ranges

    def _paragraphs(self) -> Iterator[str]:
        ranges = self.ranges
        for row in ranges.to_dict("records"):
            if row["models"] == 1:
                yield f"{row['family']}: 1 model of {_short(row['minimum'])} trainable parameters."
                continue
            ends = f"{_short(row['minimum'])} to {_short(row['maximum'])}"
            yield (
                f"{row['family']}: {row['models']} models from {ends} trainable parameters, a factor of "
                f"{_short(row['span'])}; half of them between {_short(row['q25'])} and {_short(row['q75'])}, median "
                f"{_short(row['median'])}."
            )
        for family, count in zip(self.real["family"], self.real["parameters"], strict=True):
            around = ranges.loc[(ranges["minimum"] <= count) & (ranges["maximum"] >= count), "family"]
            place = f"within the range of {', '.join(around)}" if len(around) else "outside every family's range"
            yield f"{family}: {_short(count)}, {place}."
        if self.unknown:
            yield f"{self.unknown} runs do not report their parameters."

    def _figure(self) -> Figure:
        """A bar from the smallest to the largest model of each family with every model as a tick and its median marked;
        real models below, a row each, so that their labels never meet."""
        ranges, real = self.ranges, self.real.groupby("family", sort=False)["parameters"]
        drawn, (axes,) = drawing.panels(1, 7.5, 1.4 + 0.5 * (len(ranges) + real.ngroups))
        rows = [f"{family} ({count})" for family, count in zip(ranges["family"], ranges["models"], strict=True)]
        said: dict[str, Any] = {"textcoords": "offset points", "fontsize": "small", "color": "#333333"}
        for place, row in enumerate(ranges.to_dict("records")):
            look, ends = drawing.look(row["family"]), [row["minimum"], row["maximum"]]
            axes.plot(ends, [place] * 2, color=look["color"], linewidth=9, alpha=0.35, solid_capstyle="butt")
            values = self.models.loc[self.models["family"] == row["family"], "parameters"]
            axes.plot(values, [place] * len(values), "|", color=look["color"], markersize=8, alpha=0.6)
            axes.plot(row["median"], place, markeredgecolor="white", markersize=8, **look)
            axes.annotate(" to ".join(map(_short, ends)), (ends[0], place), (0, 8), **said)
        for name, values in real:
            axes.plot(values, [len(rows)] * len(values), "*", color=drawing.COLOURS[-1], markersize=10)
            rows.append(f"{name}: {', '.join(map(_short, values))}")
        drawing.names(axes.yaxis, rows)
        axes.set_ylim(len(rows) - 0.4, -0.8)
        axes.set_xscale("log")
        axes.margins(x=0.12)
        marks = "tick: a model, marker: median" + ", star: real model" * bool(real.ngroups)
        drawing.finish(axes, "Trainable parameters by family (models)", f"trainable parameters ({marks})")
        drawing.log_ticks(axes.xaxis, short)
        axes.yaxis.grid(False)
        return drawn


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
    """Trainable parameters of the distinct models (columns `model.*`) of each family, whatever became of their runs.

    `frame` holds runs, or models as `read_models` gives them. NotEnoughData where it is empty.
    """
    del options  # nothing to choose: models are not pooled
    require_runs(frame)
    counts = frame["parameters"] if "parameters" in frame else pd.Series(np.nan, frame.index)
    known = frame.assign(parameters=counts)[frame["family"].notna() & (counts > 0) & np.isfinite(counts)]
    identity = [str(name) for name in known if str(name).startswith("model.")]
    # Runs of one model on several devices may print its count with more or fewer digits: one of them is enough.
    models = known.drop_duplicates(["family", *(identity or ["parameters"])])[["family", "parameters"]]
    parametric = models["family"].isin(PARAMETRIC)
    order = models["family"].map({name: place for place, name in enumerate(PARAMETRIC)})
    return ParametersResult(
        models=models[parametric].assign(_order=order).sort_values(["_order", "parameters"]).drop(columns="_order"),
        real=models[~parametric].drop_duplicates().sort_values(["parameters", "family"]),
        unknown=len(frame) - len(known),
        sources=tuple(frame.get("run_id", ())),
    )


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


def _short(value: float) -> str:
    return short(value, digits=3)
