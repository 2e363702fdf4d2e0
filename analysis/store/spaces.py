"""A space as a user names it: axes of a sweep, expanded as the driver would and not measured, or a file of points."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.store.frame import typed
from analysis.store.past import is_key
from paradnn.config.families import FAMILIES
from paradnn.config.words import did_you_mean
from paradnn.errors import ConfigError, ParadnnError

__all__ = ["read_space"]

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


def _frame(rows: Sequence[Mapping[str, str | None]]) -> pd.DataFrame:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: typed([row.get(name) for row in rows]) for name in names if name != "model.name"}
    kept = {name: column for name, column in columns.items() if is_key(name)}
    return pd.DataFrame({"family": [row.get("model.name") for row in rows], **kept}).drop_duplicates(ignore_index=True)


def _expanded(words: Sequence[str], option: str) -> list[Mapping[str, str | None]]:
    """The points of a multirun, by the driver's own grammar, presets and checks."""
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
            raise ParadnnError(f"{option}: {one_line(error)}") from None
        raise


def _of_file(path: Path, option: str) -> pd.DataFrame:
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
    frame = _frame(rows)
    return frame if "model.name" in named.values() else frame.drop(columns="family")


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
