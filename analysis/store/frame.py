"""The tidy frame every method starts from: one row a run, columns typed, units beside them.

A reader fills `Records` with the store's text and numbers; `build` makes the frame, so that a run reads the same
whichever way it came. `require_homogeneous` refuses to pool heterogeneous runs, `aggregate_replicates` brings
repetitions of a point down to one row with their spread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from paradnn.config.families import FAMILIES
from paradnn.config.words import counted
from paradnn.errors import HeterogeneousError, SchemaError
from paradnn.store.metrics import metric
from paradnn.store.protocols import protocol_name
from paradnn.store.records import Records
from paradnn.store.schema import LATER_PARAMS

__all__ = [
    "CORE",
    "IDENTITY",
    "aggregate_replicates",
    "build",
    "families",
    "is_ok",
    "require_homogeneous",
    "typed",
    "units",
]

#: Columns that every frame has, whatever the store holds; they stand first.
CORE = (
    "run_id",
    "run_name",
    "experiment",
    "status",
    "start_time",
    "end_time",
    "parent_run_id",
    "artifact_uri",
    "family",
    "device",
    "outcome",
)

#: What runs must share to be one population: hardware and software, how they were timed, and what a run holds.
IDENTITY = ("environment_id", "protocol_id", "schema_version")

#: Tags that are not text.
_TYPED_TAGS = ("replicate", "steady", "contended")

#: Columns that may explain a difference, by the identity they belong to.
_EXPLAIN = {
    "environment_id": ("device", "host", "version.", "platform.name", "platform.threads", "framework.", "software."),
    "protocol_id": ("measure.", "source"),
}

_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,18})")
_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.IGNORECASE)


def build(records: Records) -> pd.DataFrame:
    """The frame of some records, sorted by start time and run id, with `attrs["units"]` (column -> unit).

    Columns: CORE, then params, metrics and tags, each in alphabetical order. Where names meet, the first of these
    wins; a tag fills in for runs that lack the param of its name. Params are Int64, float64, boolean or text as all
    their values allow, "null" is missing; metrics are float64; tags are text but for `replicate`, `steady` and
    `contended`, and `mlflow.*` tags are left out but for the parent run. `protocol` is the name of
    `protocol_id`.
    """
    runs = records.runs
    empty: list[str | None] = [None] * len(runs)
    columns: dict[str, object] = {
        "run_id": _text([run.run_id for run in runs]),
        "run_name": _text([run.run_name for run in runs]),
        "experiment": _text([run.experiment for run in runs]),
        "status": _text([run.status for run in runs]),
        "start_time": _time([run.start_ms for run in runs]),
        "end_time": _time([run.end_ms for run in runs]),
        "parent_run_id": _text(records.tags.get("mlflow.parentRunId", empty)),
        "artifact_uri": _text([run.artifact_uri for run in runs]),
    }
    columns["family"] = _text(records.params.get("model.name", empty))
    columns["device"] = _text(records.tags.get("device", empty))
    # Other kinds of runs, of earlier versions, say how they ended as points do.
    ended = zip(records.tags.get("outcome", empty), records.tags.get("kind", empty), strict=True)
    columns["outcome"] = _text([outcome if kind in (None, "point") else None for outcome, kind in ended])
    measured = [source == "measured" for source in records.tags.get("source", empty)]
    for name in sorted(records.params):
        values = records.params[name]
        if name in LATER_PARAMS:
            filled = zip(values, measured, records.params.get("model.name", empty), strict=True)
            values = [
                LATER_PARAMS[name] if value is None and ours and model else value for value, ours, model in filled
            ]
        if name in records.tags:
            values = [tag if param is None else param for param, tag in zip(values, records.tags[name], strict=True)]
        columns.setdefault(name, typed(values))
    for name in sorted(records.metrics):
        columns.setdefault(name, records.numbers(name))
    for name in sorted(records.tags):
        if not name.startswith("mlflow.") and name not in columns:
            values = records.tags[name]
            columns[name] = typed(values) if name in _TYPED_TAGS else _text(values)
    if "protocol_id" in records.tags:
        columns.setdefault("protocol", _text([name and protocol_name(name) for name in records.tags["protocol_id"]]))
    frame = pd.DataFrame(columns, copy=False).sort_values(["start_time", "run_id"], kind="stable", ignore_index=True)
    frame = frame.copy()  # one block for each type: pandas warns of frames made of a hundred columns one by one
    frame.attrs["units"] = units(frame.columns)
    return frame


def units(names: Iterable[str]) -> dict[str, str]:
    """Column -> unit, for the columns that are registered metrics."""
    found = {}
    for name in names:
        try:
            found[name] = metric(name).unit
        except KeyError:
            continue
    return found


def is_ok(frame: pd.DataFrame) -> pd.Series:
    """Which runs ended `ok` (bool); a run without an outcome did not."""
    return frame["outcome"].eq("ok").fillna(False).astype(bool)


def families(frame: pd.DataFrame) -> list[str]:
    """The model families in a frame: the paper's first, in the paper's order, then real models by name."""
    present = set(frame["family"].dropna())
    generated = [name for name, family in FAMILIES.items() if name in present and not family.is_real]
    return generated + sorted(present.difference(generated))


def require_homogeneous(frame: pd.DataFrame, keys: Sequence[str] = IDENTITY, pool: bool = False) -> pd.DataFrame:
    """The frame, if all its rows agree in `keys`; else HeterogeneousError says which differ and how.

    With `pool` heterogeneous rows pass, and `attrs["pooled"]` says how they differ. A key that the frame lacks is
    passed over; a missing value is a value of its own.
    """
    different = [key for key in keys if key in frame and frame[key].nunique(dropna=False) > 1]
    if not different:
        return frame
    text = "; ".join(_difference(frame, key) for key in different)
    if not pool:
        choice = " ".join(_option(key) for key in different)
        remedy = f"choose with {choice}, or pool them with --pool"
        raise HeterogeneousError(f"these runs are heterogeneous: {text}; {remedy}")
    pooled = frame.copy(deep=False)
    pooled.attrs["pooled"] = text
    return pooled


def _option(key: str) -> str:
    return "--protocol ..." if key == "protocol_id" else f"--tag {key}=..."


def _difference(frame: pd.DataFrame, key: str) -> str:
    """How many values a key has, over how many runs each, and what else goes with it."""
    named = "protocol" if key == "protocol_id" and "protocol" in frame else key
    values = frame[named].astype("str").fillna("(none)")
    counts = values.value_counts()
    shown = ", ".join(f"{value} ({counted(count, 'run')})" for value, count in counts.head(3).items())
    more = f" and {len(counts) - 3} more" if len(counts) > 3 else ""
    causes = []
    for name in frame.columns:
        if name in (key, named) or not str(name).startswith(_EXPLAIN.get(key, ())):
            continue
        text = frame[name].astype("str").fillna("(none)")
        # An explanation is constant within each group and not the same in all of them.
        if text.nunique() > 1 and text.groupby(values).nunique().max() == 1:
            causes.append(f"{name} ({_listed(text.unique())})")
    return f"{named} = {shown}{more}" + (f", differing in {', '.join(causes)}" if causes else "")


def _listed(values: Iterable[str], limit: int = 3) -> str:
    found = list(values)
    return " / ".join(found[:limit]) + (f" / {len(found) - limit} more" if len(found) > limit else "")


def aggregate_replicates(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each point in each environment: medians over its replicates, with their count and spread.

    Rows are grouped by `point_id` and IDENTITY. Every metric becomes the median of the replicates whose outcome is
    ok, and gains `<metric>_spread`: their sample standard deviation / absolute mean, the between-process spread, NaN
    below two of them. `replicates` counts the ok ones, `replicates_failed` the rest. The outcome is ok when any
    replicate is, else the commonest. All other columns are those of the first row that has the group's outcome.
    """
    if "point_id" not in frame:
        raise SchemaError("point_id: (none): these runs have no identity, so their replicates are not known")
    keys = ["point_id", *(key for key in IDENTITY if key in frame)]
    measured = [name for name in frame.columns if name in units([name])]
    group = frame.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    ok = is_ok(frame).to_numpy()
    table = pd.DataFrame({"group": group, "ok": ok, "outcome": frame["outcome"].astype("object")})
    ending = table["group"].map(_endings(table))
    chosen = table["outcome"].eq(ending) | ending.isna()
    first = table[chosen].drop_duplicates("group").sort_values("group").index
    result = frame.loc[first].reset_index(drop=True)
    values = frame.loc[ok, measured].astype("float64").groupby(group[ok])
    middle = values.median().reindex(range(len(result)))
    spread = (values.std() / values.mean().abs()).reindex(range(len(result))).add_suffix("_spread")
    result[measured] = middle.where(middle.notna(), result[measured].astype("float64"))
    counted = table.groupby("group")["ok"]
    extra = pd.DataFrame({"replicates": counted.sum(), "replicates_failed": counted.size() - counted.sum()})
    result = pd.concat([result, extra, spread], axis=1)
    result.attrs = dict(frame.attrs)
    result.attrs["units"] = frame.attrs.get("units", {}) | {f"{name}_spread": "1" for name in measured}
    return result


def _endings(table: pd.DataFrame) -> pd.Series[str]:
    """Group -> ok where any of its rows is ok, else its commonest outcome; groups without an outcome are absent."""
    counts = table.groupby(["group", "outcome"]).size().reset_index(name="count")
    counts["ok"] = counts["outcome"] == "ok"
    best = counts.sort_values(["ok", "count", "outcome"], ascending=[False, False, True]).drop_duplicates("group")
    return best.set_index("group")["outcome"]


def _text(values: Sequence[str | None]) -> pd.Series:
    return pd.Series(values, dtype="str")


def _time(milliseconds: Sequence[int | None]) -> pd.Series:
    """UTC timestamps; a run that has not ended has none."""
    stamps = np.array([np.iinfo(np.int64).min if ms is None else ms for ms in milliseconds], dtype="int64")
    return pd.Series(stamps.view("datetime64[ms]")).dt.tz_localize("UTC")


def typed(values: Sequence[str | None]) -> pd.Series:
    """Params as the narrowest of Int64, float64, boolean and text that holds them all; "null" is missing."""
    distinct = {value for value in values if value is not None and value != "null"}
    lacking = np.array([value is None or value == "null" for value in values], dtype=bool)
    if distinct and distinct <= {"true", "false"}:
        truth = np.array([value == "true" for value in values], dtype=bool)
        return pd.Series(pd.arrays.BooleanArray(truth, lacking))
    if distinct and all(_INTEGER.fullmatch(value) and abs(int(value)) < 2**63 for value in distinct):
        whole = {value: int(value) for value in distinct}
        integers = np.array([0 if value is None else whole.get(value, 0) for value in values], dtype="int64")
        return pd.Series(pd.arrays.IntegerArray(integers, lacking))
    if distinct and all(_NUMBER.fullmatch(value) for value in distinct):
        real = {value: float(value) for value in distinct}
        return pd.Series(
            [math.nan if value is None else real.get(value, math.nan) for value in values], dtype="float64"
        )
    return _text([None if value == "null" else value for value in values])
