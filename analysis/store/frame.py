"""The tidy frame every method starts from: one row a run, columns typed, units beside them.

A reader fills `Records` with the store's text and numbers; `build` makes the frame, so that a run
reads the same whichever way it came. `require_homogeneous` refuses to pool heterogeneous runs,
`aggregate_replicates` brings repetitions of a point down to one row with their spread.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import get_args, get_type_hints

from analysis.lazy import np, pd, stored
from paradnn.config.point import Measure, Optimizer, Platform
from paradnn.core.errors import HeterogeneousError, SchemaError
from paradnn.core.words import counted
from paradnn.families import FAMILIES
from paradnn.store.metrics import metric
from paradnn.store.runs import ADDED_PARAMS, protocol_name

#: What runs must share to be one population: hardware and software, how they were timed, what a run
#: holds, and whether it times a step or a training, whose steps wait for real batches.
IDENTITY = ("environment_id", "protocol_id", "schema_version", "task")

#: Its tag is the number of a launched task, its param what a run does, and older: the number has a
#: column of its own.
_TASK = "task"
_TASK_NUMBER = "launched_task"
#: What the store says of each run in words.
_OF_RUNS = ("run_id", "run_name", "experiment", "status", "artifact_uri")
#: Tags that are not text.
_TYPED_TAGS = ("replicate", "steady", "contended")

#: Columns that may explain a difference, by the identity they belong to.
_EXPLAIN = {
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

_LONGEST = 40  # characters of a number
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,18})")
_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.IGNORECASE)


def build_frame(records: stored.Records) -> pd.DataFrame:
    """The frame of some records, sorted by start time and run id.

    Columns: what every run has, then params, metrics and tags, each in alphabetical order. Where
    names meet, the first of these wins, and a tag fills in for runs that lack the param of its name
    (but `task`, whose tag is `launched_task`). Params are Int64, float64, boolean or text as all
    their values allow, "null" is missing; metrics are float64, tags text but for `replicate`,
    `steady` and `contended`; of `mlflow.*` tags parent and commit.
    """
    # of a key beside them every run lacks the value
    params = dict(records.params)
    tags = dict(records.tags)
    runs = {
        name: pd.Series([getattr(run, name) for run in records.runs], dtype="str")
        for name in _OF_RUNS
    }
    kinds = records.tags["kind"]
    outcomes = records.tags["outcome"]
    # Other kinds of runs, of earlier versions, say how they ended as points do.
    of_points = np.where((kinds.codes < 0) | kinds.are("point"), outcomes.codes, -1)
    columns: dict[str, object] = {
        **{name: runs[name] for name in _OF_RUNS[:4]},
        "start_time": _time(run.start_ms for run in records.runs),
        "end_time": _time(run.end_ms for run in records.runs),
        "parent_run_id": _text(records.tags["mlflow.parentRunId"]),
        "artifact_uri": runs["artifact_uri"],
        "family": _text(records.params["model.name"]),
        "device": _text(records.tags["device"]),
        "outcome": _text(stored.Texts(of_points, outcomes.places)),
    }
    models = records.tags["source"].are("measured") & (records.params["model.name"].codes >= 0)
    for name in sorted({*params, *({_TASK} & tags.keys())}):
        values = records.params[name]
        if name in ADDED_PARAMS:  # what it meant by default where a measured run is older than it
            values = values.filled(
                stored.Texts(np.where(models, 0, -1).astype("int32"), {ADDED_PARAMS[name]: 0})
            )
        if name in tags and name != _TASK:
            values = values.filled(tags[name])
        columns.setdefault(name, _typed(values, _kinds().get(name)))
    for name in sorted(records.metrics):
        columns.setdefault(name, records.numbers(name))
    if _TASK in tags:
        columns[_TASK_NUMBER] = _text(tags[_TASK])
    told = {
        name
        for name in tags
        if not name.startswith("mlflow.") or name == "mlflow.source.git.commit"
    }
    for name in sorted(told.difference(columns)):
        columns[name] = (
            _typed(tags[name], _kinds().get(name)) if name in _TYPED_TAGS else _text(tags[name])
        )
    known = tags.get("protocol_id")
    if known and "protocol" not in columns:
        names = [*(text and protocol_name(text) for text in known.places), None]
        columns["protocol"] = pd.Series(pd.array(names, dtype="str")[known.codes])
    frame = pd.DataFrame(columns)
    in_order = (
        frame["start_time"].is_monotonic_increasing and frame["start_time"].is_unique
    )  # as most stores are
    if in_order:
        return frame
    return frame.sort_values(["start_time", "run_id"], kind="stable", ignore_index=True)


def units(names: Iterable[str]) -> dict[str, str]:
    """Column -> unit, for the columns that are registered metrics."""
    found: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(KeyError):
            found[name] = metric(name).unit
    return found


def is_ok(frame: pd.DataFrame) -> pd.Series:
    """Which runs ended `ok` (bool); a run without an outcome did not."""
    return frame["outcome"].eq("ok").fillna(False).astype(bool)


def select_rows(frame: pd.DataFrame, which: pd.Series) -> pd.DataFrame:
    """The rows that are true in `which`; where all are, the frame itself: to copy a million rows
    takes a second.
    """
    return frame if which.all() else frame[which]


def families(frame: pd.DataFrame) -> list[str]:
    """The model families in a frame: the paper's first, in the paper's order, then real models by
    name.
    """
    present = set(frame["family"].dropna().unique())
    generated = [
        name for name, family in FAMILIES.items() if name in present and not family.is_real
    ]
    return generated + sorted(present.difference(generated))


def require_homogeneous(
    frame: pd.DataFrame, keys: Sequence[str] = IDENTITY, pool: bool = False
) -> pd.DataFrame:
    """The frame, if all its rows agree in `keys`; else HeterogeneousError says which differ and
    how.

    With `pool` heterogeneous rows pass, and `attrs["pooled"]` says how they differ. A key that the
    frame lacks is passed over; a missing value is a value of its own.
    """
    different = [key for key in keys if key in frame and frame[key].nunique(dropna=False) > 1]
    if not different:
        return frame
    text = "; ".join(_difference(frame, key) for key in different)
    if not pool:
        flags = {"task": "--where task=...", "protocol_id": "--protocol ..."}
        choice = " ".join(flags.get(key, f"--tag {key}=...") for key in different)
        raise HeterogeneousError(
            f"these runs are heterogeneous: {text}; choose with {choice}, or pool them with --pool"
        )
    pooled = frame.copy(deep=False)
    pooled.attrs["pooled"] = text
    return pooled


def _difference(frame: pd.DataFrame, key: str) -> str:
    """How many values a key has, over how many runs each, and what else goes with it."""
    if key == "protocol_id" and "protocol" in frame:
        named = "protocol"
    else:
        named = key
    values = frame[named].astype("str").fillna("(none)")
    counts = values.value_counts()
    causes = []
    shown = ", ".join(
        f"{value} ({counted(count, 'run')})" for value, count in counts.head(3).items()
    )
    more = f" and {len(counts) - 3} more" if len(counts) > 3 else ""
    for name in (
        name
        for name in frame
        if str(name).startswith(_EXPLAIN.get(key, ())) and name not in (key, named)
    ):
        text = frame[name].astype("str").fillna("(none)")
        held = text.unique()
        # An explanation is constant within each group and not the same in all of them.
        if len(held) > 1 and text.groupby(values).nunique().max() == 1:
            causes.append(
                f"{name} ({' / '.join(held[:3])}{f' / {len(held) - 3} more' if len(held) > 3 else ''})"
            )
    return f"{named} = {shown}{more}" + (f", differing in {', '.join(causes)}" if causes else "")


def aggregate_replicates(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each point (`point_id` and IDENTITY): medians over its replicates, with their
    count and spread.

    Every metric becomes the median of the ok replicates, and gains `<metric>_spread`: their sample
    standard deviation / absolute mean, NaN below two. `replicates` counts the ok ones,
    `replicates_failed` the rest. The outcome is ok when any replicate is, else the commonest; other
    columns are those of the first row that has it.
    """
    if "point_id" not in frame:
        raise SchemaError(
            "point_id: (none): these runs have no identity, so their replicates are not known"
        )
    keys = ["point_id", *(key for key in IDENTITY if key in frame)]
    measured = list(units(frame.columns))
    group = frame.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    # a run that stands alone is what it is
    ok = is_ok(frame).to_numpy()
    several = np.bincount(group)[group] > 1
    table = pd.DataFrame({"group": group, "ok": ok, "outcome": frame["outcome"].astype("object")})
    counts = table[several].groupby(["group", "ok", "outcome"]).size().reset_index(name="count")
    order = counts.sort_values(
        ["ok", "count", "outcome"], ascending=[False, False, True]
    ).drop_duplicates("group")
    ending = table["group"].map(order.set_index("group")["outcome"])
    chosen = table["outcome"].eq(ending) | ending.isna()
    first = table[chosen].drop_duplicates("group").sort_values("group").index
    result: pd.DataFrame = (frame if len(first) == len(frame) else frame.loc[first]).reset_index(
        drop=True
    )
    values = frame.loc[several & ok, measured].astype("float64").groupby(group[several & ok])
    middle = values.median()
    spread = (values.std() / values.mean().abs()).reindex(range(len(result))).add_suffix("_spread")
    result[measured] = result[measured].astype("float64")
    result.loc[middle.index, measured] = middle.where(
        middle.notna(), result.loc[middle.index, measured]
    )
    ran = np.bincount(group, ok).astype("int64")
    extra = pd.DataFrame({"replicates": ran, "replicates_failed": np.bincount(group) - ran})
    result = pd.concat([result, extra, spread], axis=1)
    result.attrs = dict(frame.attrs)
    return result


def _text(column: stored.Texts) -> pd.Series:
    return pd.Series(pd.array([*column.places, None], dtype="str")[column.codes])


def _time(milliseconds: Iterable[int | None]) -> pd.Series:
    """UTC timestamps; a run that has not ended has none, and no time is after the year 9999."""
    never = np.iinfo(np.int64).min
    latest = 253_402_300_799_999
    stamps = np.array(
        [never if ms is None or not 0 <= ms <= latest else ms for ms in milliseconds], dtype="int64"
    )
    return pd.Series(stamps.view("datetime64[ms]")).dt.tz_localize("UTC")


def typed(values: Sequence[str | None]) -> pd.Series:
    """Texts, as the store holds params, as the column that a frame has of them."""
    return _typed(stored.Texts.of(values))


@cache
def _kinds() -> dict[str, type]:
    """Params and tags that are numbers (float) or truth values (bool) by the types of the options."""
    classes: list[tuple[str, type]] = [
        ("measure.", Measure),
        ("optimizer.", Optimizer),
        ("platform.", Platform),
    ]
    classes += [("model.", family.options) for family in FAMILIES.values()]
    kinds: dict[str, set[object]] = {
        name: {int} for name in ("batch_size", "devices", "hosts", "seed", "replicate")
    }
    kinds |= {"steady": {bool}, "contended": {bool}}
    for prefix, options in classes:
        for name, hint in get_type_hints(options).items():
            kinds.setdefault(f"{prefix}{name}", set()).update(get_args(hint) or {hint})
    known = {name: held - {type(None)} for name, held in kinds.items()}
    found: dict[str, type] = {name: float for name, held in known.items() if held <= {int, float}}
    return found | {name: bool for name, held in known.items() if held == {bool}}


def _typed(column: stored.Texts, kind: type | None = None) -> pd.Series:
    """Params as the narrowest of Int64, float64, boolean and text that holds them all; "null" is
    missing, and what is not of the `kind` that is asked: a truth value, or a finite number.
    """

    def fits(text: str) -> bool:
        if kind is bool:
            return text in ("true", "false")
        is_number = len(text) < _LONGEST and bool(_NUMBER.fullmatch(text))
        return kind is None or (is_number and math.isfinite(float(text)))

    codes = column.codes
    held = np.bincount(codes + 1, minlength=len(column.places) + 1)[1:] > 0
    distinct = [
        text if there and text != "null" and fits(text) else None
        for text, there in zip(column.places, held, strict=True)
    ]
    values = [text for text in distinct if text is not None]
    lacking = np.array([*(text is None for text in distinct), True])[codes]
    if values and set(values) <= {"true", "false"}:
        truth = np.array([*(text == "true" for text in distinct), False])[codes]
        return pd.Series(pd.arrays.BooleanArray(truth, lacking))
    if values and all(_INTEGER.fullmatch(value) and abs(int(value)) < 2**63 for value in values):
        whole = np.array([*(int(text or 0) for text in distinct), 0], dtype="int64")[codes]
        return pd.Series(pd.arrays.IntegerArray(whole, lacking))
    if values and all(_NUMBER.fullmatch(value) for value in values):
        return pd.Series(
            np.array([*(float(text or "nan") for text in distinct), math.nan], dtype="float64")[
                codes
            ]
        )
    return pd.Series(pd.array([*distinct, None], dtype="str")[codes])
