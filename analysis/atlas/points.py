"""Conversion of rows of a frame, with sizes as text or numbers, to models with typed sizes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

from analysis.lazy import np, pd
from paradnn.config.paths import CONFIG
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.families import FAMILIES, Model, make_model
from paradnn.store.files import read_json


def model_from_row(row: Mapping[Any, Any], option: str = "family") -> Model:
    """Return the model that a row of a frame of runs describes.

    Args:
        row: Mapping from columns to values, with `family` and the sizes of the model (`model.*`).
        option: The option or key that chose the row, for error messages.

    Raises:
        ConfigError: If this version lacks the family or does not accept its sizes.
    """
    family = str(row.get("family"))
    if family not in FAMILIES:
        raise ConfigError(
            option,
            family,
            "is not a model family of this version",
            f"choose one of {', '.join(FAMILIES)}",
        )
    sizes = {
        str(key).removeprefix("model."): _plain_value(value)
        for key, value in row.items()
        if str(key).startswith("model.") and not is_missing(value)
    }
    return make_model({**sizes, "name": family})


def get_text(row: Mapping[Any, Any], name: str, default: str) -> str:
    """Return a value of a row as text.

    Args:
        row: Mapping from columns to values.
        name: The column.
        default: Text to return if the value is missing.
    """
    if is_missing(row.get(name)):
        return default
    return str(row[name])


def is_missing(value: Any) -> bool:
    """Return whether a cell of a frame is None, NaN or NA. A list or tuple is never missing."""
    if isinstance(value, list | tuple):
        return False
    return value is None or bool(pd.isna(value))


def _plain_value(value: Any) -> Any:
    """Return a cell of a frame as a plain Python value.

    Text that is valid JSON is parsed. A whole number of type float becomes an integer, since
    missing values turn a column of integers into floats.

    Args:
        value: Text, a Python value or a NumPy scalar.
    """
    if isinstance(value, str):
        try:
            return read_json(value)
        except ValueError:
            return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def format_point(row: Mapping[Any, Any], model: Model) -> str:
    """Return a configuration as text, such as "gpt 4x256 h4 t128 b8 bfloat16 inference".

    The text has the model with its sizes, the batch size, the precision, and the mode unless it is
    training.

    Args:
        row: The configuration, as a mapping from keys to values.
        model: The model of the configuration.
    """
    parts = [model.name, model.size, f"b{row['batch_size']}", str(row["precision"])]
    mode = get_text(row, "mode", "train")
    if mode != "train":
        parts.append(mode)
    return " ".join(parts)


def model_label(model: Model) -> str:
    """Return a short name of a model: the name of the preset that it equals, such as "llama3-8b".

    If only the sequence length differs from a preset, the label states it: "llama3-8b t2048". Any
    other model is named by family and size, such as "gpt 4x256 h4 t128".
    """
    length = getattr(model, "sequence_length", None)
    for name, preset in _presets().items():
        if preset == model:
            return name
        if length and _with_length(preset, length) == model:
            return f"{name} t{length}"
    return f"{model.name} {model.size}".strip()


def _with_length(preset: Model, length: int) -> Model | None:
    if not hasattr(preset, "sequence_length"):
        return None
    return make_model({**vars(preset), "sequence_length": length})


@functools.cache
def _presets() -> dict[str, Model]:
    """Return the models of the valid files in conf/model, by file name without suffix."""
    import yaml

    presets = {}
    for path in sorted((CONFIG / "model").glob("*.yaml")):
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(keys, dict) and keys.get("name") in FAMILIES:
            with contextlib.suppress(ParadnnError, TypeError):
                presets[path.stem] = make_model(keys)
    return presets
