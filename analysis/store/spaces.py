"""A space as a user names it: axes of a sweep, expanded as the driver would and not measured, or a file of points."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.store.frame import typed
from analysis.store.past import is_key
from paradnn.core.words import did_you_mean
from paradnn.errors import ConfigError, ParadnnError
from paradnn.families import FAMILIES

__all__ = ["read_points", "read_space"]

#: What a column of families may be called in a file.
_FAMILY = ("family", "model", "model.name")


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
