"""Which columns of a frame an analysis is about: hyperparameters by name, the metric to explain,
and what identifies a point. Users write `nodes` for `model.nodes`; a wrong name is answered with
the nearest right one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from analysis.labels import not_recorded
from analysis.lazy import np, pd
from analysis.prices import PRICE
from analysis.store.frame import families, is_ok, only
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.words import did_you_mean
from paradnn.core.workload import WORKLOADS, choices, key_groups, option_names
from paradnn.families import FAMILIES
from paradnn.statistics.regression import Lacking
from paradnn.store.files import read_json
from paradnn.store.metrics import METRICS

#: What is shown or explained unless a metric is named: the first that the runs have. With one
#: device, peak and precision the first two differ by a constant factor, so what depends on what is
#: the same.
DEFAULT_METRICS = ("flops_utilization", "flops_per_second", "examples_per_second")
#: What is computed, and where and with what, as whole names and as groups of keys. Of the second
#: only what both sides share takes part in a pair's identity.
POINT = (
    "batch_size",
    "precision",
    "compile",
    "mode",
    "devices",
    "transport",
    "hosts",
    "task",
    "scenario",
)
POINT_PREFIXES = ("model.", "optimizer.", "data.", *(f"{group}." for group in key_groups()))
PLACE_PREFIXES = ("platform.", "framework.", "software.")
#: Hyperparameters that are not of the model itself, in the order they are listed in.
_RUN = (
    *POINT[:4],
    *(key for work in key_groups().values() if not work.same_step for key in option_names(work)),
    *("devices", "transport", "hosts", "scenario"),
)
#: Settings that also change what is measured, though they are no hyperparameters.
_SETTINGS = (
    *("optimizer.", "data.", *PLACE_PREFIXES),
    *(f"{group}." for group, work in key_groups().items() if work.same_step),
)

T = TypeVar("T")


@dataclass(frozen=True)
class GroupKey:
    """One model family on one device."""

    family: str
    device: str

    @property
    def name(self) -> str:
        """Such as "fc on TPU v2"."""
        return f"{self.family} on {self.device}"


@dataclass(frozen=True)
class FamilyGroup(GroupKey):
    """The runs of one model family on one device."""

    rows: pd.DataFrame


def groups(frame: pd.DataFrame) -> list[FamilyGroup]:
    """The frame by family, in the paper's order, and device, by name, or that it is not recorded."""
    family, device = (
        frame[name].astype("object").fillna(not_recorded(name)) for name in ("family", "device")
    )
    present = (
        pd.DataFrame({"family": family, "device": device}).value_counts().index
    )  # pairs, each once
    order = [*families(frame), not_recorded("family")]
    ordered = sorted(present, key=lambda pair: (order.index(pair[0]), pair[1]))
    return [FamilyGroup(a, b, only(frame, family.eq(a) & device.eq(b))) for a, b in ordered]


def of_groups(
    frame: pd.DataFrame, judge: Callable[[FamilyGroup], T], problem: str, remedy: str
) -> tuple[list[T], list[Lacking]]:
    """What `judge` finds of each group of a frame's runs, and which groups have not enough data,
    and why.

    NotEnoughData, with `problem` and `remedy`, where none has.
    """
    found = list[T]()
    lacking = list[Lacking]()
    for group in groups(frame):
        try:
            found.append(judge(group))
        except NotEnoughData as error:
            lacking.append(Lacking(group.name, error.problem))
    if not found:
        raise NotEnoughData(problem, lacking, remedy)
    return found, lacking


def hyperparameters(frame: pd.DataFrame) -> list[str]:
    """The columns `model.*` (but the name) and those of the run, such as batch_size, that any of
    these runs has.
    """
    model = [
        name for name in frame.columns if str(name).startswith("model.") and name != "model.name"
    ]
    return [name for name in (*model, *_RUN) if name in frame and frame[name].notna().any()]


def settings(frame: pd.DataFrame) -> list[str]:
    """Columns of the configuration that are no hyperparameters but may change speed, and vary among
    these runs.
    """
    named = [name for name in frame.columns if str(name).startswith(_SETTINGS) and name != PRICE]
    return [name for name in named if frame[name].nunique(dropna=False) > 1]


def find_column(frame: pd.DataFrame, name: str, option: str) -> str:
    """The hyperparameter column that a user means, with or without `model.`; ConfigError if there
    is none.
    """
    for candidate in (name, f"model.{name}"):
        if candidate in frame and frame[candidate].notna().any():
            return candidate
    known = [
        str(column).removeprefix("model.")
        for column in frame.columns
        if frame[column].notna().any()
    ]
    remedy = did_you_mean(name, known).strip() or f"they have {', '.join(hyperparameters(frame))}"
    raise ConfigError(option, name, "these runs have no such hyperparameter", remedy)


def find_metric(frame: pd.DataFrame, name: str) -> str:
    """`name`, if it is a column of numbers that an ok run has a value in; else ConfigError says
    what there is.
    """
    held = frame.loc[is_ok(frame)]
    if name in held and pd.api.types.is_numeric_dtype(held[name]) and held[name].notna().any():
        return name
    known = [column for column in METRICS if column in held and held[column].notna().any()]
    if name in METRICS:
        problem = "none of these runs has a value of it"
    else:
        problem = "is no metric of these runs"
    close = "" if name in METRICS else did_you_mean(name, known).strip()
    raise ConfigError("--metric", name, problem, close or f"they have {', '.join(known[:8])}")


def choose_metric(frame: pd.DataFrame, candidates: Sequence[str] = DEFAULT_METRICS) -> str:
    """The first candidate that at least nine of ten ok runs have, else the one that most of them
    have.

    ConfigError when no ok run has any of them.
    """
    held = frame.loc[is_ok(frame)]
    share = {
        name: float(held[name].notna().mean()) for name in candidates if name in held and len(held)
    }
    if not any(share.values()):
        remedy = "measure first, choose other runs, or name a metric"
        raise ConfigError(
            "--metric", "(none given)", f"no measured run has {', '.join(candidates)}", remedy
        )
    return next(
        (name for name, part in share.items() if part >= 0.9),
        max(share, key=lambda name: share[name]),
    )


def blocks_of(text: object) -> list[int] | None:
    """The counts in a value such as "[3, 4, 6, 3]" of `model.blocks`; None for what is no list of
    numbers.
    """
    try:
        value = read_json(str(text))
    except ValueError:
        return None
    counts = value if isinstance(value, list) else None
    if counts and all(isinstance(count, int) for count in counts):
        return counts
    return None


def as_numbers(column: pd.Series) -> pd.Series | None:
    """A column as float64, lists of blocks as their totals; None if it holds words."""
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column.astype("Float64").astype("float64")
    totals = {value: blocks_of(value) for value in column.dropna().unique()}
    if totals and all(totals.values()):
        return column.map(
            {value: float(sum(counts or ())) for value, counts in totals.items()}
        ).astype("float64")
    return None


def is_number(column: pd.Series) -> bool:
    """Whether a column holds numbers, of which truths are none."""
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


_SCENARIOS = choices("scenario")[1:]
_SCENARIO_PREFIXES = tuple(f"{name}." for name in _SCENARIOS)
_NEVER = ("model.name", "platform.index", PRICE)
#: What else tells the steps of two runs apart.
_STEP = ("family", "device", "seed")
_LOADED = [each for work in WORKLOADS.values() if work.key == "scenario" for each in work.declares]
#: What a run of a scenario says of its queries.
_QUERIES = {
    *(name for name in METRICS if name.startswith("latency_p")),
    *(entry.name for each in _LOADED for entry in each.entries()),
    *("cost_per_million_queries", "limit", "limit_reason"),
}


def join_columns(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The columns that identify a point, and those that set the two sides apart (column -> values
    of A, values of B).

    What is computed identifies a point, and where and with what, as far as both sides share a
    value; left out is what sets the sides apart: a column with one value in A and another one in B,
    or that one side lacks altogether.
    """
    keys = ["family"]
    differ = {}
    for name in [column for column in a.columns if column in b]:
        point = describes(name)
        if not point and name != "device" and not is_platform_column(name):
            continue
        values = values_of(a[name])
        others = values_of(b[name])
        if not values and not others:
            continue
        # Runs that are not there set nothing apart.
        apart = len(a) > 0 and len(b) > 0 and not values & others
        if apart and (not point or not values or not others or len(values) == len(others) == 1):
            differ[name] = (shown(values), shown(others))
        else:
            keys.append(name)
    return keys, differ


def given_columns(
    on: Sequence[str], a: pd.DataFrame, b: pd.DataFrame
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The same for columns that were named; ConfigError for one that a side lacks."""
    for name in on:
        for side, frame in (("A", a), ("B", b)):
            if name not in frame:
                raise ConfigError(
                    "on",
                    name,
                    f"the runs of {side} have no such column",
                    "name columns of both sides",
                )
    keys = list(dict.fromkeys(["family", *on]))
    return keys, {
        name: values for name, values in join_columns(a, b)[1].items() if name not in keys
    }


def describes(name: str) -> bool:
    """Whether a column says what is computed."""
    return name not in _NEVER and (name in POINT or name.startswith(POINT_PREFIXES))


def is_platform_column(name: str) -> bool:
    """Whether a column says where and with what it is computed."""
    return name not in _NEVER and name.startswith(PLACE_PREFIXES)


def as_steps(frame: pd.DataFrame, asked: Collection[str]) -> tuple[pd.DataFrame, int]:
    """Runs of scenarios as replicates of the point whose steps they time, and how many such runs
    there are.

    Runs that differ in the scenario and its keys alone have measured one thing several times: they
    get one `point_id`, and the columns of scenarios are left out. The frame as it is where `asked`,
    words of options, names a scenario, one of its keys or a metric of its queries.
    """
    if "scenario" not in frame or any(word in _QUERIES or _of_scenario(word) for word in asked):
        return frame, 0
    loaded = frame["scenario"].isin(list(_SCENARIOS)).to_numpy(dtype=bool)
    if not loaded.any():
        return frame, 0
    steps = frame.drop(columns=[name for name in frame.columns if _of_scenario(name)])
    keys = [
        name
        for name in steps.columns
        if name in _STEP or describes(name) or is_platform_column(name)
    ]
    if "point_id" in steps and keys:
        group = steps.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
        order = np.argsort(
            loaded, kind="stable"
        )  # closed runs first: all are called what these are
        names = steps["point_id"].iloc[order].groupby(group[order]).first()
        steps["point_id"] = steps["point_id"].where(~loaded, names.reindex(group).to_numpy())
    return steps, int(loaded.sum())


def _of_scenario(name: str) -> bool:
    """Whether a column says who asks, and how."""
    return name == "scenario" or name.startswith(_SCENARIO_PREFIXES)


def values_of(column: pd.Series) -> set[Any]:
    """The values of a column."""
    return set(column.dropna().unique())


def shown(values: set[Any], limit: int = 3) -> str:
    """Some values for a person to read: "0.1, 0.2, 0.3 and 4 more"."""
    texts = [str(value) for value in sorted(values, key=lambda value: (str(type(value)), value))]
    return (
        ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")
        or "(none)"
    )


def computing(rows: pd.DataFrame) -> tuple[str, ...]:
    """The families whose rate is of examples, not of messages, in their order; all where nothing
    else ran.
    """
    there = tuple(families(rows))
    return (
        tuple(name for name in there if name not in FAMILIES or not FAMILIES[name].is_communication)
        or there
    )


def narrowed(rows: pd.DataFrame) -> tuple[str, ...]:
    """The same where that leaves any family out, else nothing."""
    wanted = computing(rows)
    return wanted if len(wanted) < len(families(rows)) else ()
