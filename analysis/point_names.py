"""Names of points (configurations), as `paradnn.train` prints them: "lstm 1x100 t10 b32"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from analysis.columns import format_setting, is_configuration_column
from analysis.lazy import np, pd
from paradnn.core.errors import ParadnnError
from paradnn.families import FAMILIES
from paradnn.store.files import read_json

#: The column of a table that holds the names of its points.
POINT = "point"
Row = Mapping[Any, Any]


def point_names(points: pd.DataFrame, differing: Collection[str] = ()) -> list[str]:
    """Return a name for each point: model family, size, batch size, and the settings that vary.

    A point is one configuration to measure. Names of models omit some sizes, such as the input
    size. Such a size is added if points would otherwise share a name.

    Args:
        points: One row per point, with all columns of the configuration.
        differing: Configuration columns in which the two sides of a comparison differ, and which
            `points` therefore lacks. If a size of the model is among them, a name consists of the
            family, the batch size and the columns of `points` that vary.
    """
    is_model_known = not any(name.startswith("model.") for name in differing)
    sizes = [name for name in map(str, points) if _is_size(name)]
    settings = [
        name
        for name in map(str, points)
        if is_configuration_column(name)
        and name != "batch_size"
        and (name not in sizes or not is_model_known)
        and points[name].nunique(dropna=False) > 1
    ]
    names = _names(points, sizes, settings, is_model_known=is_model_known)
    if is_model_known:
        groups = points.groupby(np.asarray(names, dtype=object), sort=False)
        hidden = [
            name
            for name in sizes
            if points[name].nunique() > 1 and (groups[name].nunique() > 1).any()
        ]
        if hidden:
            names = _names(points, sizes, [*hidden, *settings], is_model_known=True)
    return names


def _names(
    points: pd.DataFrame, sizes: Sequence[str], settings: Sequence[str], *, is_model_known: bool
) -> list[str]:
    """Return the names of points (configurations to measure).

    Args:
        points: One row per point.
        sizes: Columns of the sizes of models.
        settings: Columns whose values are written after the batch size.
        is_model_known: Whether the rows have every size of their models.
    """

    def name_point(row: Row) -> str:
        if is_model_known:
            name = model_name(row, " b{:.0f}")
        else:
            name = str(row["family"])
            if is_known(row.get("batch_size")):
                name += f" b{row['batch_size']:.0f}"
        words = [format_setting(column, row[column]) for column in settings]
        return " ".join([name, *words])

    return describe_rows(points, ["family", "batch_size", *sizes, *settings], name_point)


def with_point_names(
    table: pd.DataFrame, points: pd.DataFrame, differing: Collection[str] = ()
) -> pd.DataFrame:
    """Return a table of points (configurations to measure) with their names as the first column.

    Args:
        table: The table.
        points: The points of its rows in the same order, with all columns of the configuration.
        differing: Configuration columns in which the two sides of a comparison differ, and which
            `points` therefore lacks; see `point_names`.
    """
    named = table.copy(deep=False)
    named.insert(0, POINT, point_names(points, differing))
    return named


def _is_size(column: str) -> bool:
    return column.startswith(("model.", "generate."))


def describe_rows(
    points: pd.DataFrame, names: Sequence[str], describe: Callable[[Row], str]
) -> list[str]:
    """Return a text for every row of a frame.

    Args:
        points: The frame, with one row per point (configuration to measure).
        names: The columns that a text depends on. `describe` is called once for all rows with the
            same values in them.
        describe: Returns the text for a row.
    """
    rows = points[[name for name in dict.fromkeys(names) if name in points]]
    group = rows.groupby(list(rows), dropna=False, sort=False).ngroup()
    descriptions = [describe(row) for row in rows[~group.duplicated()].to_dict("records")]
    return [descriptions[number] for number in group]


def model_name(values: Row, batch: str = "") -> str:
    """Return family and size of a model, such as "fc 4x1024".

    If this version does not know the family or one of its options, the size is omitted.

    Args:
        values: A row of a frame of runs: column -> value.
        batch: Format of the batch size, such as " b{:.0f}". It is appended if the batch size is
            known; empty to omit it.
    """
    family = str(values["family"])
    name = family
    size = _model_size(family, values)
    if size is not None:
        name = f"{family} {size}".strip()
        prompt = values.get("generate.prompt")
        tokens = values.get("generate.tokens")
        if is_known(prompt) and is_known(tokens):
            name += f" generate {prompt:.0f}+{tokens:.0f}"
    batch_size: Any = values.get("batch_size")
    if not is_known(batch_size):
        return name
    return name + batch.format(float(batch_size))


def is_known(value: Any) -> bool:
    """Return whether a cell of a frame has a value."""
    if value is None:
        return False
    return not (pd.api.types.is_scalar(value) and pd.isna(value))


def _model_size(family: str, values: Row) -> str | None:
    """Return the size of a model as text; None if this version does not know the options."""
    if family not in FAMILIES:
        return None
    options_class = FAMILIES[family].options
    try:
        options = {}
        for entry in dataclasses.fields(options_class):
            value = values.get(f"model.{entry.name}")
            if is_known(value):
                options[entry.name] = _option_value(value)
        options["name"] = family
        return str(options_class(**options).size)
    except (ParadnnError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _option_value(value: Any) -> Any:
    """Return an option's value; a list, which the store holds as JSON text, becomes a tuple."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return tuple(read_json(value))
    return value
