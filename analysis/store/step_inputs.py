"""Points as the model of step time takes them: of a frame's runs, and of those that a user names.

The frame holds typed values; the model reads keys as the store keeps them, so they are written back
that way. Costs are the analytic ones for measured and unmeasured points: what is learned of one
then holds for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.store.frame import typed
from paradnn.config.point import Optimizer
from paradnn.core.errors import ParadnnError
from paradnn.families import Model
from paradnn.forecast.table import NOISE_METRICS, Table, of_model, stated_noise
from paradnn.platform.specifications import find_hardware
from paradnn.store.runs import ADDED_PARAMS

#: Keys of a point that identify what is computed, where and with what; how it is timed is none of
#: it.
_KEYS = ("batch_size", "precision", "compile", "mode", "devices", "transport", "hosts")
_GROUPS = ("model.", "generate.", "optimizer.", "platform.", "framework.", "data.", "software.")

#: What arithmetic says of a point, as metrics of runs.
WORK_METRICS = ("parameters", "flops_per_step", "bytes_per_step", "memory_lower_bound_bytes")
#: Shares of its peaks that the best step reaches, where no peak is known.
_BEST = (0.6, 0.5)


def is_point_key(name: str) -> bool:
    """Whether a column is a key of the configuration that says what a point is."""
    return name in _KEYS or (name.startswith(_GROUPS) and name != "model.name")


def analytic_costs(points: pd.DataFrame) -> pd.DataFrame:
    """The analytic work of points (rows with `family` and keys): columns `WORK_METRICS`, NaN where no such
    model can be built.

    A key that the points lack counts as what the original suite had: training, float32, RMSprop,
    one device.
    """
    names = [
        name
        for name in map(str, points)
        if name.startswith(("model.", "generate.", "optimizer.")) or name in _KEYS
    ]
    given = (
        tuple(item for item in row.items() if item[1] != "null") for row in _texts(points, names)
    )
    found = [of_model(items, _work, (np.nan,) * len(WORK_METRICS)) for items in given]
    return pd.DataFrame(found, columns=list(WORK_METRICS), index=points.index, dtype="float64")


def make_step_table(points: pd.DataFrame, rates: tuple[float, float]) -> Table:
    """Points (rows with `family`, `environment_id` and keys) as a table; `rates` are FLOP/s and B/s
    of one device.

    Columns of `WORK_METRICS` count where a model is of another version; points without any of the two count
    as one FLOP.
    """
    rows = [
        {**ADDED_PARAMS, **row}
        for row in _texts(points, [str(name) for name in points if is_point_key(str(name))])
    ]
    environments, sweeps = (
        points[name].astype("str").fillna("").tolist() if name in points else [""] * len(points)
        for name in ("environment_id", "sweep_id")
    )
    work = analytic_costs(points).fillna(
        points.reindex(columns=list(WORK_METRICS)).astype("float64")
    )
    costs = (
        work[["flops_per_step", "bytes_per_step", "parameters"]]
        .fillna(1.0)
        .clip(lower=1.0)
        .to_numpy()
    )
    peaks = np.tile((*rates, 1.0), (len(points), 1))
    load = np.full(len(points), np.nan)
    return Table(rows, environments, sweeps, costs, peaks, load)


def stated_run_noise(runs: pd.DataFrame) -> np.ndarray:
    """(n,) what measured runs say of the noise of their own step time
    (`paradnn.forecast.table.stated_noise`).
    """
    return stated_noise(
        *runs.reindex(columns=list(NOISE_METRICS)).to_numpy(dtype="float64", na_value=np.nan).T
    )


def device_rates(runs: pd.DataFrame, seconds: np.ndarray) -> tuple[float, float]:
    """FLOP/s and B/s of a device of measured runs: ceilings, else the specification, else what the
    best implies.
    """
    work = analytic_costs(runs)
    part = find_hardware(str(runs["device"].iloc[0]))
    if "precision" in runs:
        precision = str(runs["precision"].iloc[0])
    else:
        precision = "float32"
    if part:
        flops = part.peak_flops.get(precision) or part.peak_flops.get("float32")
    else:
        flops = None
    specified = (flops, part.bandwidth if part else None)
    found = []
    for kind, share, known in zip(("flops", "bytes"), _BEST, specified, strict=True):
        ceiling = f"peak_{kind}_per_second"
        if ceiling in runs:
            measured = float(runs[ceiling].median())
        else:
            measured = np.nan
        best = (
            float(np.nanmax(np.append((work[f"{kind}_per_step"] / seconds).to_numpy(), 1.0)))
            / share
        )
        found.append(measured if measured > 0 else known or best)
    return found[0], found[1]


def _texts(points: pd.DataFrame, names: Sequence[str]) -> list[dict[str, str]]:
    """Each row's keys as the store writes them, and its family; a missing value is "null"."""
    columns = {name: [_text(value) for value in points[name].astype("object")] for name in names}
    columns["model.name"] = points["family"].astype("str").tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _text(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return "null"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    return str(value)


def _work(model: Model, **row: Any) -> tuple[float, ...]:
    if model.is_counted:  # once it was measured, which predicts nothing
        return (1.0,) * len(WORK_METRICS)
    costs = model.costs(
        batch_size=row["batch_size"],
        precision=row.get("precision", "float32"),
        mode=row.get("mode", "train"),
        optimizer=row.get("optimizer.name", "rmsprop"),
        momentum=row.get("optimizer.momentum", Optimizer().momentum),
        devices=row.get("devices", 1),
        prompt=row.get("generate.prompt", 0),
        tokens=row.get("generate.tokens", 0),
    )
    return tuple(float(getattr(costs, name)) for name in WORK_METRICS)


def points_from_words(words: Sequence[str]) -> pd.DataFrame:
    """The points (rows of keys, with `family`) that words of a command line name by the driver's
    own grammar, presets and checks: `model=fc model.nodes=32,64`, or `experiment=paper_fc`. Raises
    ParadnnError.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from paradnn.cli.help import help_text
    from paradnn.cli.overrides import as_axes, check_arguments, is_input_error, one_line
    from paradnn.config.paths import CONFIG
    from paradnn.config.reading import read_point
    from paradnn.config.space import expand
    from paradnn.forecast.table import row_of

    OmegaConf.register_new_resolver("paradnn_help", help_text, replace=True)
    try:
        check_arguments(words)
        axes = as_axes(["--multirun", *words])[1:]
        parsed = OverridesParser.create().parse_overrides(axes)
        fixed = [
            word
            for word, override in zip(axes, parsed, strict=True)
            if not override.is_sweep_override()
        ]
        with initialize_config_dir(str(CONFIG), version_base="1.3"):
            master = compose("config", overrides=fixed, return_hydra_config=True)
            plan = expand(GlobalHydra.instance().config_loader(), master, axes, {})
            rows = [row_of(read_point(config)) for config in plan.configs()]
    except Exception as error:
        if is_input_error(error):
            raise ParadnnError(f"ask: {one_line(error, words)}") from None
        raise
    names = [
        name for name in dict.fromkeys(name for row in rows for name in row) if is_point_key(name)
    ]
    columns = {name: typed([row.get(name) for row in rows]) for name in names}
    return pd.DataFrame({"family": [row["model.name"] for row in rows], **columns}).drop_duplicates(
        ignore_index=True
    )
