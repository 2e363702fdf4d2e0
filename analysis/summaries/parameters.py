"""`parameters`: the range of trainable parameters of each family, the paper's Figure 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.options import Options
from analysis.result import Paragraph, Result, require_runs
from analysis.summaries.gate import gated_untimed
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.parameters import ParameterRanges

__all__ = ["ParametersOptions", "ParametersResult", "parameters", "read_models"]


@dataclass(frozen=True, kw_only=True)
class ParametersOptions(Options):
    """Only what every analysis takes."""

    command = "parameters"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ParametersResult(Result):
    """Ranges of the parametric families, and the real models."""

    ranges: ParameterRanges

    @property
    def table(self) -> pd.DataFrame:
        import pandas as pd

        real = self.ranges.real.groupby("family", as_index=False, sort=False)["parameters"].agg(
            models="size", minimum="min", median="median", maximum="max"
        )
        real = real.assign(span=real["maximum"] / real["minimum"])
        parts = [part for part in (self.ranges.ranges, real) if len(part)]
        return pd.concat(parts, ignore_index=True) if parts else self.ranges.ranges

    def _figure(self) -> Figure:
        from analysis.figures.parameters import draw_parameters

        return draw_parameters(self.ranges)

    def _paragraphs(self) -> Iterator[Paragraph]:
        return map(Paragraph, _sentences(self.ranges))


@gated_untimed
def parameters(frame: pd.DataFrame, options: ParametersOptions | None = None) -> ParametersResult:
    """Trainable parameters of the distinct models of each family, whatever the outcome of their runs.

    `frame` holds runs, or models as `read_models` gives them. NotEnoughData where it is empty.
    """
    from analysis.methods.parameters import parameter_ranges

    del options  # nothing to choose: models are not pooled
    require_runs(frame)
    known = frame.get("run_id", ())
    return ParametersResult(ranges=parameter_ranges(frame), sources=tuple(known))


def read_models(paths: Sequence[str]) -> pd.DataFrame:
    """The models of CSV files: columns family (or model.name), parameters and, to distinguish models, model.*.

    ConfigError for a file that cannot be read or lacks a column.
    """
    import pandas as pd

    return pd.concat([_read(path) for path in paths], ignore_index=True)


def _read(path: str) -> pd.DataFrame:
    import pandas as pd

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
