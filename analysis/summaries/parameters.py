"""The sub-command `parameters`: the range of trainable parameters of each family, the paper's Figure 1."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.store.conditions import select
from analysis.summaries.command import Command, argument
from analysis.summaries.result import Result
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.methods.parameters import ParameterRanges

__all__ = ["COMMANDS"]


def parameters(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """Ranges of the parametric families, and the real models."""
    import pandas as pd

    from analysis.methods.parameters import parameter_ranges

    if frame.empty:
        return Result(frame[["family"]], "no such runs in the store")
    found = parameter_ranges(frame)
    real = found.real.groupby("family", as_index=False, sort=False)["parameters"].agg(
        models="size", minimum="min", median="median", maximum="max"
    )
    tables = [part for part in (found.ranges, real.assign(span=real["maximum"] / real["minimum"])) if len(part)]
    table = pd.concat(tables, ignore_index=True) if tables else found.ranges

    def draw() -> Any:
        from analysis.figures.parameters import draw_parameters

        return draw_parameters(found)

    return Result(table, "\n".join(_lines(found)), draw if len(table) else None)


def _tables(args: argparse.Namespace) -> pd.DataFrame | None:
    """The models of --table: columns family (or model.name), parameters and, to tell models apart, model.*."""
    import pandas as pd

    if not args.table:
        return None
    if args.log:
        raise ConfigError("--log", "with --table", "a result in the store names the runs it rests on", "leave one out")
    frame = pd.concat([_read(path) for path in args.table], ignore_index=True)
    return select(frame[frame["family"].isin(args.family)] if args.family else frame, args.where)


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


def _lines(found: ParameterRanges) -> list[str]:
    lines = [_range(row) for row in found.ranges.to_dict("records")]
    if len(found.ranges) > 1:
        low, high = found.ranges["minimum"].min(), found.ranges["maximum"].max()
        lines.append(f"All families together reach from {_short(low)} to {_short(high)}.")
    for row in found.real.to_dict("records"):
        around = found.ranges[
            (found.ranges["minimum"] <= row["parameters"]) & (found.ranges["maximum"] >= row["parameters"])
        ]
        place = f"within the range of {', '.join(around['family'])}" if len(around) else "outside every family's range"
        lines.append(f"{row['family']}: {_short(row['parameters'])}, {place}.")
    if not len(found.real):
        lines.append("No real models, such as resnet50, are among these.")
    if found.unknown:
        lines.append(f"{found.unknown} runs do not tell their parameters.")
    return lines


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


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="parameters",
        summary="the range of trainable parameters of each family, with real models as points",
        description="Trainable parameters of the distinct models of each family, whatever became of their runs.\n"
        "Real models, such as resnet50, stand as points where there are runs of them.\n"
        "Parameters need no measurement: --table reads a list of models instead of the store's runs.",
        example="python -m analysis parameters --png parameters.png",
        analyse=parameters,
        draws=True,
        read=_tables,
        arguments=(
            argument(
                "--table",
                metavar="FILE",
                nargs="+",
                help="CSV files of models instead of runs: columns "
                "family or model.name, parameters, model.*; --family and --where choose among them",
            ),
        ),
    ),
)
