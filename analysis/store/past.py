"""Points as the model of step time takes them: of a frame's runs, and of a space that a user names.

The frame holds typed values; the model reads keys as the store keeps them, so they are written back that way. Costs are
the analytic ones for measured and unmeasured points: what is learned of one then holds for the other. A space is
axes of a sweep, expanded as the driver would and not measured, or a file of points.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.store.frame import typed
from paradnn.config.point import Optimizer
from paradnn.core.words import did_you_mean
from paradnn.errors import ConfigError, ParadnnError
from paradnn.families import FAMILIES, model_of
from paradnn.families.layers import Costs
from paradnn.forecast.table import NOISE_METRICS, PastRuns, Table, stated_noise
from paradnn.platform.specifications import find_hardware
from paradnn.store.metrics import PHASES
from paradnn.store.runs import LATER_PARAMS

#: Keys of a point that identify what is computed, where and with what; how it is timed is none of it.
_KEYS = ("batch_size", "precision", "compile", "mode", "devices", "transport", "hosts")
_GROUPS = ("model.", "generate.", "optimizer.", "platform.", "framework.", "data.", "software.")

#: What arithmetic says of a point, as metrics of runs.
WORK = ("parameters", "flops_per_step", "bytes_per_step", "memory_lower_bound_bytes")
#: What a column of families may be called in a file.
_FAMILY = ("family", "model", "model.name")
#: Shares of its peaks that the best step reaches, where no peak is known.
_BEST = (0.6, 0.5)


def is_key(name: str) -> bool:
    """Whether a column is a key of the configuration that says what a point is."""
    return name in _KEYS or (name.startswith(_GROUPS) and name != "model.name")


def costs_of(points: pd.DataFrame) -> pd.DataFrame:
    """The analytic work of points (rows with `family` and keys): columns `WORK`, NaN where no such model can be built.

    A key that the points lack counts as what the original suite had: training, float32, RMSprop, one device.
    """
    names = [name for name in points if str(name).startswith(("model.", "generate.", "optimizer.")) or name in _KEYS]
    texts = _texts(points[names])
    rows = [
        _work(family, frozenset(row.items())) for family, row in zip(points["family"].astype("str"), texts, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(WORK), index=points.index, dtype="float64")


def table_of(points: pd.DataFrame, rates: tuple[float, float]) -> Table:
    """Points (rows with `family`, `environment_id` and keys) as a table; `rates` are FLOP/s and B/s of one device.

    Columns of `WORK` count where a model is of another version; points without any of the two count as one FLOP.
    """
    names = [str(name) for name in points if is_key(str(name))]
    family = points["family"].astype("str")
    rows = [
        {**LATER_PARAMS, **row, "model.name": name} for row, name in zip(_texts(points[names]), family, strict=True)
    ]
    work = costs_of(points)
    for name in (name for name in WORK if name in points):
        work[name] = work[name].fillna(points[name].astype("float64"))
    columns = ["flops_per_step", "bytes_per_step", "parameters"]
    costs = np.maximum(np.nan_to_num(work[columns].to_numpy(dtype="float64"), nan=1.0), 1.0)
    count = len(points)
    return Table(
        rows,
        _words(points, "environment_id"),
        _words(points, "sweep_id"),
        costs=costs,
        peaks=np.tile((*rates, 1.0), (count, 1)),
        load=np.full(count, np.nan),
    )


def past_runs(runs: pd.DataFrame, seconds: np.ndarray, rates: tuple[float, float]) -> PastRuns:
    """Measured runs with the seconds (n,) of their steps; of phases and gaps a frame says nothing here."""
    unknown = np.full(len(runs), np.nan)
    columns = [runs[name].to_numpy(dtype="float64") if name in runs else unknown for name in NOISE_METRICS]
    return PastRuns(
        table_of(runs, rates),
        seconds,
        phases=dict.fromkeys(PHASES, unknown),
        warmup_blocks=unknown,
        steady=unknown,
        gaps=unknown,
        noise=stated_noise(*columns),
    )


def rates_of(runs: pd.DataFrame, seconds: np.ndarray) -> tuple[float, float]:
    """FLOP/s and B/s of one device of measured runs: measured ceilings, else the specification, else what the best of
    the runs implies."""
    work = costs_of(runs)
    part = find_hardware(str(runs["device"].iloc[0]))
    precision = str(runs["precision"].iloc[0]) if "precision" in runs else "float32"
    specified = (
        (part.peak_flops.get(precision) or part.peak_flops.get("float32"), part.bandwidth) if part else (None, None)
    )
    found = []
    for kind, share, known in zip(("flops", "bytes"), _BEST, specified, strict=True):
        ceiling = f"peak_{kind}_per_second"
        measured = float(runs[ceiling].median()) if ceiling in runs else np.nan
        best = float(np.nanmax(np.append((work[f"{kind}_per_step"] / seconds).to_numpy(), 1.0))) / share
        found.append(measured if measured > 0 else known or best)
    return found[0], found[1]


def _words(points: pd.DataFrame, name: str) -> list[str]:
    return points[name].astype("str").fillna("").tolist() if name in points else [""] * len(points)


def _texts(points: pd.DataFrame) -> list[dict[str, str]]:
    """Each row's keys as the store writes them; a missing value is "null"."""
    columns = {str(name): [_text(value) for value in points[name].astype("object")] for name in points}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _text(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return "null"
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


@functools.lru_cache(maxsize=65536)
def _work(family: str, keys: frozenset[tuple[str, str]]) -> tuple[float, ...]:
    row: Mapping[str, Any] = {key: _value(text) for key, text in keys if text != "null"}
    model = {key.removeprefix("model."): value for key, value in row.items() if key.startswith("model.")}
    try:
        found = model_of({"name": family, **model})
        if found.is_counted:  # once it was measured, which predicts nothing
            return (1.0,) * len(WORK)
        costs: Costs = found.costs(
            batch_size=row["batch_size"],
            precision=row.get("precision", "float32"),
            mode=row.get("mode", "train"),
            optimizer=row.get("optimizer.name", "rmsprop"),
            momentum=row.get("optimizer.momentum", Optimizer().momentum),
            devices=row.get("devices", 1),
            prompt=row.get("generate.prompt", 0),
            tokens=row.get("generate.tokens", 0),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # no such model, or one of another version
        return (np.nan,) * len(WORK)
    return tuple(float(getattr(costs, name)) for name in WORK)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_space(text: str, option: str = "--space") -> pd.DataFrame:
    """The points (rows of keys, with `family`) that a text names: `model=fc model.nodes=32,64 batch_size=64,256`,
    `experiment=paper_fc`, or the path of a CSV file with a column for each key.

    ConfigError, of the `option`, for what names none.
    """
    if text.lower().endswith(".csv"):
        return _of_file(Path(text).expanduser(), option)
    try:
        words = [word for word in shlex.split(text) if word not in ("-m", "--multirun")]
    except ValueError as error:
        raise ConfigError(option, text, f"cannot be split ({error})", "close the quotation") from None
    if not words:
        raise ConfigError(option, text, "is empty", "name axes, as in 'model=fc model.nodes=32,64,128'")
    return _frame(_expanded(words, option))


def read_points(text: str, option: str) -> pd.DataFrame:
    """The same as whole points: what a row of a file does not say is what the driver would take."""
    if not text.lower().endswith(".csv"):
        return read_space(text, option)
    path = Path(text).expanduser()
    rows = _rows_of_file(path, option)
    if "model.name" not in rows[0]:
        raise ConfigError(option, str(path), "has no column model", "name the family of each point")
    points = []
    for place, row in enumerate(rows, 1):
        words = [f"{'model' if key == 'model.name' else key}={value}" for key, value in row.items() if value]
        points += _expanded(words, f"{option}={path} row {place}")
    return _frame(points)


def _frame(rows: Sequence[Mapping[str, str | None]]) -> pd.DataFrame:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: typed([row.get(name) for row in rows]) for name in names if name != "model.name"}
    kept = {name: column for name, column in columns.items() if is_key(name)}
    return pd.DataFrame({"family": [row.get("model.name") for row in rows], **kept}).drop_duplicates(ignore_index=True)


def _expanded(words: Sequence[str], where: str) -> list[Mapping[str, str | None]]:
    """The points of a multirun, by the driver's own grammar, presets and checks; `where` the words stand."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from paradnn.cli.checks import check_arguments
    from paradnn.cli.help import help_text
    from paradnn.cli.overrides import as_axes, is_input_error, one_line
    from paradnn.config.paths import CONFIG
    from paradnn.config.point import read_point
    from paradnn.forecast.table import row_of
    from paradnn.sweep.space import expand

    OmegaConf.register_new_resolver("paradnn_help", help_text, replace=True)
    try:
        check_arguments(words)
        axes = as_axes(["--multirun", *words])[1:]
        parsed = OverridesParser.create().parse_overrides(axes)
        fixed = [word for word, override in zip(axes, parsed, strict=True) if not override.is_sweep_override()]
        with initialize_config_dir(str(CONFIG), version_base="1.3"):
            master = compose("config", overrides=fixed, return_hydra_config=True)
            plan = expand(GlobalHydra.instance().config_loader(), master, axes, {})
            return [dict(row_of(read_point(config))) for config in plan.configs()]
    except Exception as error:
        if is_input_error(error):
            raise ParadnnError(f"{where}: {one_line(error, words)}") from None
        raise


def _of_file(path: Path, option: str) -> pd.DataFrame:
    rows = _rows_of_file(path, option)
    frame = _frame(rows)
    return frame if "model.name" in rows[0] else frame.drop(columns="family")


def _rows_of_file(path: Path, option: str) -> list[dict[str, str | None]]:
    """Key -> text for each row of a CSV file; None where it says nothing."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(
            option, str(path), f"cannot be read ({problem})", "name a CSV file with a column a key"
        ) from None
    named = {name: _key(str(name).strip(), path, option) for name in table}
    rows = [
        {key: None if row[name].strip() in ("", "null") else row[name].strip() for name, key in named.items()}
        for row in table.to_dict("records")
    ]
    if not rows:
        raise ConfigError(option, str(path), "holds no point", "write a row for each point")
    return rows


def _key(name: str, path: Path, option: str) -> str:
    options = [field.name for family in FAMILIES.values() for field in dataclasses.fields(family.options)]
    if name in _FAMILY:
        return "model.name"
    if is_key(name):
        return name
    if name in options:
        return f"model.{name}"
    hint = did_you_mean(name, ["batch_size", "precision", "compile", "mode", "devices", *options])
    raise ConfigError(
        option, str(path), f"its column {name} is no key of a point", f"{hint}name columns as in model.nodes"
    )
