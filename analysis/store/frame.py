"""The tidy frame that every analysis starts from: one row per run, typed columns, known units.

A reader of a store fills `Records` with texts and numbers. `build_frame` builds the frame from
them, so every reader gives the same frame. `require_homogeneous` rejects runs of several
environments or timing protocols. `aggregate_replicates` reduces the replicates of a point
(configuration to measure) to one row with their spread.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import get_args, get_type_hints

from analysis.lazy import np, pd, stored
from paradnn.config.point import Measure, Optimizer, Platform
from paradnn.core.errors import HeterogeneousError, SchemaError
from paradnn.core.words import counted
from paradnn.families import FAMILIES
from paradnn.store.metrics import metric
from paradnn.store.runs import ADDED_PARAMS, protocol_name

#: Columns in which the runs of a population agree: hardware and software, the timing protocol, the
#: schema, and the task, since the steps of a training also wait for real batches.
IDENTITY = ("environment_id", "protocol_id", "schema_version", "task")

#: Keys that identify the computation of a step and belong to no group such as `model.`.
STEP_KEYS = (
    "batch_size",
    "precision",
    "compile",
    "mode",
    "devices",
    "parallel",
    "transport",
    "hosts",
)

#: The param `task` states what a run does. Older runs have a tag of the same name with the number
#: of a launched task, which becomes a separate column.
_TASK = "task"
_TASK_NUMBER = "launched_task"
#: Columns of text that every run has.
_RUN_FIELDS = ("run_id", "run_name", "experiment", "status", "artifact_uri")
#: Tags that are not text.
_TYPED_TAGS = ("replicate", "steady", "contended")
_COMMIT_TAG = "mlflow.source.git.commit"

#: Columns, or their prefixes, that may explain a difference in a column of the identity.
_EXPLAINING_COLUMNS = {
    "environment_id": (
        "device",
        "host",
        "version.",
        "platform.name",
        "platform.threads",
        "framework.",
        "software.",
    ),
    "protocol_id": ("measure.", "source"),
}
#: Options that select a value of a column of the identity; all other columns use --tag.
_CHOOSING_OPTIONS = {"task": "--where task=...", "protocol_id": "--protocol ..."}
_MAX_VALUES_SHOWN = 3

_MAX_NUMBER_LENGTH = 40
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,18})")
_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.IGNORECASE)
_LAST_MILLISECOND = 253_402_300_799_999  # last Unix millisecond of the year 9999


def build_frame(records: stored.Records) -> pd.DataFrame:
    """Build the frame of runs from the records of a store.

    For a run without a param, the tag of the same name is used; the exception is `task`, whose tag
    becomes `launched_task`. A param becomes Int64, float64, boolean or text, the narrowest type
    that fits all values; "null" is a missing value. Metrics are float64. Tags are text, except for
    `replicate`, `steady` and `contended`. Of the `mlflow.*` tags, the frame has only the parent and
    the commit.

    Args:
        records: Runs with their params, metrics and tags.

    Returns:
        A row per run, sorted by start time and run id. The columns are those that every run has,
        then params, metrics and tags, each in alphabetical order. If names collide, the first of
        these kinds wins.
    """
    # Looking up a key in `records` adds it, so the copies contain only keys that are present.
    params = dict(records.params)
    tags = dict(records.tags)
    columns = _run_columns(records)
    names = set(params)
    if _TASK in tags:
        names.add(_TASK)
    for name in sorted(names):
        columns.setdefault(name, _param_column(records, name, tags))
    for name in sorted(records.metrics):
        columns.setdefault(name, records.numbers(name))
    if _TASK in tags:
        columns[_TASK_NUMBER] = _text_column(tags[_TASK])
    for name in sorted(tags):
        is_kept = not name.startswith("mlflow.") or name == _COMMIT_TAG
        if not is_kept or name in columns:
            continue
        if name in _TYPED_TAGS:
            columns[name] = _typed_column(tags[name], _option_types().get(name))
        else:
            columns[name] = _text_column(tags[name])
    if tags.get("protocol_id") and "protocol" not in columns:
        columns["protocol"] = _protocol_column(tags["protocol_id"])
    frame = pd.DataFrame(columns)
    # Most stores hold their runs in this order, and a sort of a million rows takes a second.
    is_sorted = frame["start_time"].is_monotonic_increasing and frame["start_time"].is_unique
    if is_sorted:
        return frame
    return frame.sort_values(["start_time", "run_id"], kind="stable", ignore_index=True)


def _run_columns(records: stored.Records) -> dict[str, object]:
    """Return the columns that every run has, such as `run_id` and `outcome`, by name."""
    fields = {name: pd.Series(records.texts(name), dtype="str") for name in _RUN_FIELDS}
    kinds = records.tags["kind"]
    outcomes = records.tags["outcome"]
    # In earlier versions, runs of other kinds have outcomes as well, which are ignored.
    is_point = (kinds.codes < 0) | kinds.equals("point")
    point_outcomes = stored.Texts(np.where(is_point, outcomes.codes, -1), outcomes.code_of)
    return {
        "run_id": fields["run_id"],
        "run_name": fields["run_name"],
        "experiment": fields["experiment"],
        "status": fields["status"],
        "start_time": _time_column(records.times("start_ms")),
        "end_time": _time_column(records.times("end_ms")),
        "parent_run_id": _text_column(records.tags["mlflow.parentRunId"]),
        "artifact_uri": fields["artifact_uri"],
        "family": _text_column(records.params["model.name"]),
        "device": _text_column(records.tags["device"]),
        "outcome": _text_column(point_outcomes),
    }


def _param_column(
    records: stored.Records, name: str, tags: Mapping[str, stored.Texts]
) -> pd.Series:
    """Return the column of a param.

    A missing value is replaced by the tag of the same name. For a run that is older than the param,
    it is replaced by the value with which the run was measured.

    Args:
        records: Runs with their params, metrics and tags.
        name: Name of the param.
        tags: Values of each tag, by name of the tag.
    """
    values = records.params[name]
    if name in ADDED_PARAMS:
        # Runs that were measured before the param existed had this value.
        is_measured_model = records.tags["source"].equals("measured") & (
            records.params["model.name"].codes >= 0
        )
        codes = np.where(is_measured_model, 0, -1).astype("int32")
        values = values.filled(stored.Texts(codes, {ADDED_PARAMS[name]: 0}))
    if name in tags and name != _TASK:
        values = values.filled(tags[name])
    return _typed_column(values, _option_types().get(name))


def _protocol_column(protocol_ids: stored.Texts) -> pd.Series:
    names = [protocol_name(text) if text else text for text in protocol_ids.code_of]
    return pd.Series(pd.array([*names, None], dtype="str")[protocol_ids.codes])


def units(names: Iterable[str]) -> dict[str, str]:
    """Return the units of metrics, such as "FLOP/s", by name of the metric.

    Args:
        names: Names of columns. Those that are not registered metrics are omitted.
    """
    known: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(KeyError):
            known[name] = metric(name).unit
    return known


def is_ok(frame: pd.DataFrame) -> pd.Series:
    """Return whether each run succeeded, that is, has the outcome "ok".

    Args:
        frame: One row per run.

    Returns:
        A boolean series; False for a run without an outcome.
    """
    return frame["outcome"].eq("ok").fillna(False).astype(bool)


def profiling_remedy(runs: pd.DataFrame) -> str:
    """Return advice, for an error message, on how to obtain the profiles that some runs lack.

    Args:
        runs: The runs, one row each.
    """
    if "source" in runs and runs["source"].eq("published").all():
        return (
            "published measurements have no profiles; measure the points on your machine with "
            "measure.profile=true"
        )
    return "measure the points again with measure.profile=true"


def select_rows(frame: pd.DataFrame, mask: pd.Series) -> pd.DataFrame:
    """Return the rows for which the mask is true.

    If it is true for all rows, return the frame itself: copying a million rows takes a second.
    """
    if mask.all():
        return frame
    return frame[mask]


def families(frame: pd.DataFrame) -> list[str]:
    """Return the model families in a frame, in display order.

    Generated models come first, in the order of the ParaDnn paper. Others follow alphabetically.

    Args:
        frame: One row per run.
    """
    present = set(frame["family"].dropna().unique())
    generated = [
        name for name, family in FAMILIES.items() if name in present and not family.is_real
    ]
    return generated + sorted(present.difference(generated))


def sort_by_family(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Sort the rows of a frame by some columns, with model families in display order.

    Args:
        frame: The frame, with a column `family`.
        columns: Columns to sort by, the most significant first. Families are sorted in the order
            that `families` returns; other columns are sorted in ascending order.
    """
    positions = {name: position for position, name in enumerate(families(frame))}

    def sort_key(column: pd.Series) -> pd.Series:
        if column.name == "family":
            return column.map(positions)
        return column

    return frame.sort_values(list(columns), key=sort_key, ignore_index=True)


def require_homogeneous(
    frame: pd.DataFrame, keys: Sequence[str] = IDENTITY, *, pool: bool = False
) -> pd.DataFrame:
    """Require that all runs have the same value in each of some columns.

    Args:
        frame: The runs.
        keys: The columns. Columns that the frame lacks are ignored. A missing value differs from
            every other value.
        pool: Whether runs with different values are accepted. In that case, the text
            `attrs["pooled"]` of the returned frame states how they differ.

    Returns:
        The frame, or a shallow copy with `attrs["pooled"]` if runs that differ were accepted.

    Raises:
        HeterogeneousError: If the runs differ and `pool` is false.
    """
    differing = [key for key in keys if key in frame and frame[key].nunique(dropna=False) > 1]
    if not differing:
        return frame
    description = "; ".join(_describe_difference(frame, key) for key in differing)
    if not pool:
        options = " ".join(_CHOOSING_OPTIONS.get(key, f"--tag {key}=...") for key in differing)
        raise HeterogeneousError(
            f"these runs are heterogeneous: {description}; "
            f"choose runs with {options}, or pool them with --pool"
        )
    pooled = frame.copy(deep=False)
    pooled.attrs["pooled"] = description
    return pooled


def _describe_difference(frame: pd.DataFrame, key: str) -> str:
    """Describe how runs differ in a column: its values, run counts and possible causes.

    An example is "environment_id = a1 (3 runs), b2 (1 run), differing in host (node1 / node2)".

    Args:
        frame: The runs.
        key: The column in which the runs differ.
    """
    column = key
    if key == "protocol_id" and "protocol" in frame:
        column = "protocol"
    values = _as_text(frame[column])
    counts = values.value_counts()
    shown = [
        f"{value} ({counted(count, 'run')})"
        for value, count in counts.head(_MAX_VALUES_SHOWN).items()
    ]
    text = f"{column} = {', '.join(shown)}"
    if len(counts) > _MAX_VALUES_SHOWN:
        text += f" and {len(counts) - _MAX_VALUES_SHOWN} more"
    causes = list(_explanations(frame, key, values))
    if causes:
        text += f", differing in {', '.join(causes)}"
    return text


def _explanations(frame: pd.DataFrame, key: str, values: pd.Series) -> Iterator[str]:
    """Yield the columns that may explain why the runs differ in a given column.

    A column may be an explanation if it has several values in total. In addition, it must have only
    one value among the runs that share a value of the given column.

    Args:
        frame: The runs.
        key: Name of the column to explain, such as "environment_id".
        values: Values of the column to explain, as text (n,).

    Yields:
        The name of an explaining column with its values, such as "host (node1 / node2)".
    """
    for name in frame:
        is_candidate = str(name).startswith(_EXPLAINING_COLUMNS.get(key, ()))
        if not is_candidate or name in (key, values.name):
            continue
        text = _as_text(frame[name])
        distinct = text.unique()
        if len(distinct) > 1 and text.groupby(values).nunique().max() == 1:
            shown = list(distinct[:_MAX_VALUES_SHOWN])
            if len(distinct) > _MAX_VALUES_SHOWN:
                shown.append(f"{len(distinct) - _MAX_VALUES_SHOWN} more")
            yield f"{name} ({' / '.join(shown)})"


def _as_text(column: pd.Series) -> pd.Series:
    return column.astype("str").fillna("(none)")


def aggregate_replicates(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per point, aggregated over its replicates.

    A point is one configuration to measure. Replicates of a point agree in `point_id` and IDENTITY.

    Args:
        frame: One row per run.

    Returns:
        A row per point. Every metric is the median of the ok replicates. A further column
        `<metric>_spread` has their sample standard deviation / absolute mean, NaN for fewer than
        two replicates. `replicates` counts the ok replicates, `replicates_failed` the others. The
        outcome is "ok" if any replicate is ok, else the most frequent outcome. All other columns
        are those of the first replicate with that outcome.

    Raises:
        SchemaError: If the runs have no `point_id`.
    """
    if "point_id" not in frame:
        raise SchemaError(
            "these runs have no point_id, so their replicates cannot be found; choose other runs"
        )
    keys = ["point_id", *(key for key in IDENTITY if key in frame)]
    metrics = list(units(frame.columns))
    group = frame.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    ok = is_ok(frame).to_numpy()
    has_replicates = np.bincount(group)[group] > 1
    first = _representative_rows(frame, group, ok, has_replicates)
    result: pd.DataFrame = frame if len(first) == len(frame) else frame.loc[first]
    result = result.reset_index(drop=True)

    # A single run of a point keeps its values: only replicated points are aggregated.
    replicated = has_replicates & ok
    values = frame.loc[replicated, metrics].astype("float64").groupby(group[replicated])
    medians = values.median()
    spreads = (values.std() / values.mean().abs()).reindex(range(len(result)))
    result[metrics] = result[metrics].astype("float64")
    result.loc[medians.index, metrics] = medians.where(
        medians.notna(), result.loc[medians.index, metrics]
    )
    ok_counts = np.bincount(group, ok).astype("int64")
    counts = pd.DataFrame(
        {"replicates": ok_counts, "replicates_failed": np.bincount(group) - ok_counts}
    )
    result = pd.concat([result, counts, spreads.add_suffix("_spread")], axis=1)
    result.attrs = dict(frame.attrs)
    return result


def _representative_rows(
    frame: pd.DataFrame, group: np.ndarray, ok: np.ndarray, has_replicates: np.ndarray
) -> pd.Index:
    """Return the index of the row that represents each point: the first with the point's outcome.

    A point is one configuration to measure. Its outcome is "ok" if any replicate is ok, else the
    most frequent outcome.

    Args:
        frame: The n runs.
        group: (n,) number of the point of each run.
        ok: (n,) whether the outcome of each run is "ok".
        has_replicates: (n,) whether the point of each run has several runs.
    """
    table = pd.DataFrame({"group": group, "ok": ok, "outcome": frame["outcome"].astype("object")})
    counts = (
        table[has_replicates].groupby(["group", "ok", "outcome"]).size().reset_index(name="count")
    )
    preferred = counts.sort_values(
        ["ok", "count", "outcome"], ascending=[False, False, True]
    ).drop_duplicates("group")
    outcome = table["group"].map(preferred.set_index("group")["outcome"])
    has_outcome = table["outcome"].eq(outcome) | outcome.isna()
    return table[has_outcome].drop_duplicates("group").sort_values("group").index


def _text_column(column: stored.Texts) -> pd.Series:
    return pd.Series(pd.array([*column.code_of, None], dtype="str")[column.codes])


def _time_column(milliseconds: np.ndarray) -> pd.Series:
    """Convert Unix milliseconds (n,) to UTC timestamps.

    Negative times and times after the year 9999 become missing values.
    """
    is_valid = (milliseconds >= 0) & (milliseconds <= _LAST_MILLISECOND)
    array = np.where(is_valid, milliseconds, np.iinfo(np.int64).min)
    return pd.Series(array.view("datetime64[ms]")).dt.tz_localize("UTC")


def typed(values: Sequence[str | None]) -> pd.Series:
    """Return a column of params with the narrowest type that fits their texts.

    The types, from narrow to wide, are boolean, Int64, float64 and text.

    Args:
        values: The params as the store contains them; None for a missing value.
    """
    return _typed_column(stored.Texts.of(values))


@cache
def _option_types() -> dict[str, type]:
    """Return the types of params and tags that must be numbers or booleans.

    Returns:
        Name of the param or tag -> `float` or `bool`.
    """
    types: dict[str, set[object]] = {
        name: {int} for name in ("batch_size", "devices", "hosts", "seed", "replicate")
    }
    types |= {"steady": {bool}, "contended": {bool}}
    classes: list[tuple[str, type]] = [
        ("measure.", Measure),
        ("optimizer.", Optimizer),
        ("platform.", Platform),
    ]
    classes += [("model.", family.options) for family in FAMILIES.values()]
    for prefix, options in classes:
        for name, hint in get_type_hints(options).items():
            types.setdefault(f"{prefix}{name}", set()).update(get_args(hint) or {hint})
    known: dict[str, type] = {}
    for name, alternatives in types.items():
        possible = alternatives - {type(None)}
        if possible == {bool}:
            known[name] = bool
        elif possible <= {int, float}:
            known[name] = float
    return known


def _typed_column(column: stored.Texts, option_type: type | None = None) -> pd.Series:
    """Return a column with the narrowest type that fits all values.

    The types, from narrow to wide, are boolean, Int64, float64 and text.

    Args:
        column: The values as texts. "null" is always a missing value.
        option_type: `bool` if values must be booleans, or `float` if they must be finite numbers;
            any other text is then a missing value. None to accept every text.
    """
    codes = column.codes
    occurs = np.bincount(codes + 1, minlength=len(column.code_of) + 1)[1:] > 0
    # Missing values have code -1, which selects the last entry of each list below.
    distinct: list[str | None] = []
    for text, is_used in zip(column.code_of, occurs, strict=True):
        is_valid = is_used and text != "null" and _has_type(text, option_type)
        distinct.append(text if is_valid else None)
    distinct.append(None)
    values = [text for text in distinct if text is not None]
    is_missing = np.array([text is None for text in distinct])[codes]
    if values and set(values) <= {"true", "false"}:
        booleans = np.array([text == "true" for text in distinct])[codes]
        return pd.Series(pd.arrays.BooleanArray(booleans, is_missing))
    if values and all(_INTEGER.fullmatch(value) and abs(int(value)) < 2**63 for value in values):
        integers = np.array([int(text or 0) for text in distinct], dtype="int64")[codes]
        return pd.Series(pd.arrays.IntegerArray(integers, is_missing))
    if values and all(_NUMBER.fullmatch(value) for value in values):
        numbers = np.array([float(text or "nan") for text in distinct], dtype="float64")
        return pd.Series(numbers[codes])
    return pd.Series(pd.array(distinct, dtype="str")[codes])


def _has_type(text: str, option_type: type | None) -> bool:
    """Return whether a text is a valid value of an option.

    Args:
        text: The text.
        option_type: `bool` for "true" or "false", `float` for a finite number, None for any text.
    """
    if option_type is None:
        return True
    if option_type is bool:
        return text in ("true", "false")
    is_number = len(text) < _MAX_NUMBER_LENGTH and bool(_NUMBER.fullmatch(text))
    return is_number and math.isfinite(float(text))
