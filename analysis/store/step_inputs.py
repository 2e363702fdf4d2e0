"""Inputs of the step time model, from the runs of a frame or from the words of a command line.

A frame has typed values. The model reads configuration keys as texts in the form of the store, so
values are converted back. The FLOPs and bytes of a step are computed from formulas for both
measured and unmeasured configurations. A fit to measured configurations thus applies to unmeasured
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.store.frame import STEP_KEYS, typed
from paradnn.config.point import Optimizer
from paradnn.core.errors import ParadnnError
from paradnn.families import Model
from paradnn.forecast.table import NOISE_METRICS, Table, call_with_model, stated_noise
from paradnn.platform.specifications import find_hardware
from paradnn.store.runs import ADDED_PARAMS

#: Groups of keys that identify, together with `STEP_KEYS`, the computation, its device and its
#: software, but not the timing protocol.
_POINT_GROUPS = (
    "model.",
    "generate.",
    "optimizer.",
    "platform.",
    "framework.",
    "data.",
    "software.",
)
#: Groups of keys that determine the work of a point.
_WORK_GROUPS = ("model.", "generate.", "optimizer.")

#: Analytic work of a point, as metrics of runs.
WORK_METRICS = ("parameters", "flops_per_step", "bytes_per_step", "memory_lower_bound_bytes")

#: Shares of the peak rates that the fastest step is assumed to reach if the peaks are unknown.
_BEST_FLOPS_SHARE = 0.6
_BEST_BANDWIDTH_SHARE = 0.5


def is_point_key(name: str) -> bool:
    """Return whether a column is a key of the configuration to measure, such as `batch_size`."""
    if name == "model.name":
        return False
    return name in STEP_KEYS or name.startswith(_POINT_GROUPS)


def analytic_costs(points: pd.DataFrame) -> pd.DataFrame:
    """Compute the FLOPs, bytes, parameters and memory of configurations from formulas.

    Args:
        points: One row per configuration, with `family` and its keys. A missing key has the value
            of the original suite: training, float32, RMSprop, one device.

    Returns:
        The columns `WORK_METRICS`, NaN for models that cannot be built.
    """
    names = [
        name for name in map(str, points) if name.startswith(_WORK_GROUPS) or name in STEP_KEYS
    ]
    unknown = (np.nan,) * len(WORK_METRICS)
    costs = []
    for row in _stored_texts(points, names):
        items = tuple(item for item in row.items() if item[1] != "null")
        costs.append(call_with_model(items, _work_metrics, unknown))
    return pd.DataFrame(costs, columns=list(WORK_METRICS), index=points.index, dtype="float64")


def make_step_table(points: pd.DataFrame, rates: tuple[float, float]) -> Table:
    """Return configurations as a table for the step time model.

    Args:
        points: One row per configuration, with `family`, `environment_id` and keys. If this version
            cannot build a model, the recorded columns `WORK_METRICS` are used; if they are missing,
            the work is 1.
        rates: Peak FLOP/s and B/s of the device.
    """
    names = [str(name) for name in points if is_point_key(str(name))]
    rows = [{**ADDED_PARAMS, **row} for row in _stored_texts(points, names)]
    recorded = points.reindex(columns=list(WORK_METRICS)).astype("float64")
    work = analytic_costs(points).fillna(recorded)
    costs = work[["flops_per_step", "bytes_per_step", "parameters"]].fillna(1.0).clip(lower=1.0)
    peaks = np.tile((*rates, 1.0), (len(points), 1))
    load = np.full(len(points), np.nan)
    return Table(
        rows,
        _text_list(points, "environment_id"),
        _text_list(points, "sweep_id"),
        costs.to_numpy(),
        peaks,
        load,
    )


def _text_list(points: pd.DataFrame, name: str) -> list[str]:
    """Return a column as texts; an empty text replaces a missing value or column."""
    if name not in points:
        return [""] * len(points)
    return list(points[name].astype("str").fillna(""))


def stated_run_noise(runs: pd.DataFrame) -> np.ndarray:
    """Return the noise of the step time (n,) that each of n runs recorded.

    `paradnn.forecast.table.stated_noise` defines this noise.

    Args:
        runs: The runs, one row each.
    """
    metrics = runs.reindex(columns=list(NOISE_METRICS))
    return stated_noise(*metrics.to_numpy(dtype="float64", na_value=np.nan).T)


def device_rates(runs: pd.DataFrame, seconds: np.ndarray) -> tuple[float, float]:
    """Return the peak FLOP/s and B/s of the device on which runs were measured.

    They are measured ones if known, else those of the specification, else estimates from the
    fastest step of the runs.

    Args:
        runs: Runs on one device.
        seconds: Step times of the runs (n,).
    """
    work = analytic_costs(runs)
    specified_flops = None
    specified_bandwidth = None
    hardware = find_hardware(str(runs["device"].iloc[0]))
    if hardware is not None:
        precision = "float32"
        if "precision" in runs:
            precision = str(runs["precision"].iloc[0])
        peaks = hardware.peak_flops
        specified_flops = peaks.get(precision) or peaks.get("float32")
        specified_bandwidth = hardware.bandwidth
    flops = _first_known_rate(
        _measured_ceiling(runs, "peak_flops_per_second"),
        specified_flops,
        work["flops_per_step"] / seconds / _BEST_FLOPS_SHARE,
    )
    bandwidth = _first_known_rate(
        _measured_ceiling(runs, "peak_bytes_per_second"),
        specified_bandwidth,
        work["bytes_per_step"] / seconds / _BEST_BANDWIDTH_SHARE,
    )
    return flops, bandwidth


def _measured_ceiling(runs: pd.DataFrame, name: str) -> float:
    if name in runs:
        return float(runs[name].median())
    return float("nan")


def _first_known_rate(measured: float, specified: float | None, implied: pd.Series) -> float:
    if measured > 0:
        return measured
    if specified:
        return specified
    return float(np.nanmax(np.append(implied.to_numpy(), 1.0)))


def _stored_texts(points: pd.DataFrame, names: Sequence[str]) -> list[dict[str, str]]:
    """Return family and keys of each configuration as texts, in the form of the store.

    Args:
        points: One row per configuration.
        names: Columns of the keys.

    Returns:
        A mapping from key to text for each row; "null" for a missing value.
    """
    columns = {
        name: [_stored_text(value) for value in points[name].astype("object")] for name in names
    }
    columns["model.name"] = points["family"].astype("str").tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _stored_text(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return "null"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    return str(value)


def _work_metrics(model: Model, **row: Any) -> tuple[float, ...]:
    """Return the `WORK_METRICS` of a model with a given configuration.

    Args:
        model: The model.
        **row: Keys of the configuration, such as `batch_size`.
    """
    if model.is_counted:
        # The work of such a model is known only after a measurement: predictions cannot use it.
        return (1.0,) * len(WORK_METRICS)
    # Devices that share the weights (parallel=model) hold one copy of them together.
    copies = row.get("devices", 1) if row.get("parallel", "data") == "data" else 1
    costs = model.costs(
        batch_size=row["batch_size"],
        precision=row.get("precision", "float32"),
        mode=row.get("mode", "train"),
        optimizer=row.get("optimizer.name", "rmsprop"),
        momentum=row.get("optimizer.momentum", Optimizer().momentum),
        devices=copies,
        prompt=row.get("generate.prompt", 0),
        tokens=row.get("generate.tokens", 0),
    )
    return tuple(float(getattr(costs, name)) for name in WORK_METRICS)


def points_from_words(
    words: Sequence[str], source: str = "ask", *, is_measured: bool = True
) -> pd.DataFrame:
    """Return the configurations that the words of a command line define.

    For example, `model=fc model.nodes=32,64` defines two. The grammar, presets and checks of the
    driver (the process that runs a sweep) apply, so `experiment=paper_fc` works as well.

    Args:
        words: The overrides, such as "model.nodes=32,64".
        source: The command or option that an error names.
        is_measured: Whether to reject configurations that ParaDnn can only predict, not measure.

    Returns:
        A row of keys per configuration, with `family`.

    Raises:
        ParadnnError: If the driver would reject the words.
    """
    from paradnn.cli.overrides import is_input_error, one_line

    try:
        rows = _compose_rows(words, is_measured=is_measured)
    except Exception as error:
        if is_input_error(error):
            raise ParadnnError(f"{source}: {one_line(error, words)}") from None
        raise
    names = dict.fromkeys(name for row in rows for name in row if is_point_key(name))
    columns = {name: typed([row.get(name) for row in rows]) for name in names}
    families = [row["model.name"] for row in rows]
    points = pd.DataFrame({"family": families, **columns})
    return points.drop_duplicates(ignore_index=True)


def _compose_rows(words: Sequence[str], *, is_measured: bool) -> list[dict[str, str]]:
    """Return the keys of each configuration that a command line of a sweep defines.

    Args:
        words: The overrides.
        is_measured: Whether to reject configurations that can only be predicted.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from paradnn.cli.help import help_text
    from paradnn.cli.overrides import as_axes, check_arguments
    from paradnn.config.hydra_releases import VERSION_BASE, register_resolver
    from paradnn.config.paths import CONFIG
    from paradnn.config.reading import read_point
    from paradnn.config.space import expand
    from paradnn.forecast.table import point_params

    register_resolver("paradnn_help", help_text)
    check_arguments(words)
    axes = as_axes(["--multirun", *words])[1:]
    overrides = OverridesParser.create().parse_overrides(axes)
    fixed = [
        word
        for word, override in zip(axes, overrides, strict=True)
        if not override.is_sweep_override()
    ]
    with initialize_config_dir(str(CONFIG), **VERSION_BASE):
        master = compose("config", overrides=fixed, return_hydra_config=True)
        plan = expand(GlobalHydra.instance().config_loader(), master, axes, {})
        points = [read_point(config, is_measured=is_measured) for config in plan.configs()]
        return [point_params(point) for point in points]
