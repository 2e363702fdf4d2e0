"""Parameter ranges (the paper's Figure 1): how wide each family reaches, and where real models stand in it.

Counts of models, not of runs: a model that ran with ten batch sizes on two devices is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from paradnn.families import FAMILIES

__all__ = ["PARAMETRIC", "ParameterRanges", "parameter_ranges"]

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
