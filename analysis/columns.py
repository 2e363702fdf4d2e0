"""Columns of runs: hyperparameters by name, metrics, and the columns that identify a point.

A point is one combination of settings to measure. Users may write `nodes` for `model.nodes`. The
error for an unknown name suggests the closest known name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from analysis.labels import label, not_recorded
from analysis.lazy import np, pd
from analysis.prices import PRICE
from analysis.store.frame import STEP_KEYS, families, is_ok, select_rows
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.results import ResultDescription
from paradnn.core.words import did_you_mean
from paradnn.core.workload import WORKLOADS, option_keys, selector_choices, workloads_by_group
from paradnn.families import FAMILIES
from paradnn.store.files import read_json
from paradnn.store.metrics import METRICS

#: Default metrics; `choose_metric` uses the first that enough runs have. On one device at one
#: precision the first two differ by a constant factor, the peak, so relative effects on both are
#: the same.
DEFAULT_METRICS = ("flops_utilization", "flops_per_second", "examples_per_second")

#: Columns of the configuration of a point, apart from those that start with a prefix below.
CONFIGURATION_COLUMNS = (*STEP_KEYS, "task", "scenario")
CONFIGURATION_PREFIXES = (
    "model.",
    "optimizer.",
    "data.",
    *(f"{group}." for group in workloads_by_group()),
)
#: Prefixes of the columns of the platform: hardware, framework and software stack. Such a column
#: identifies a pair only if both sides of a comparison share a value in it.
PLATFORM_PREFIXES = ("platform.", "framework.", "software.")

#: Settings that change which operations a step runs, or how a device runs them. Runs with different
#: values are shown separately, never pooled.
OPERATION_SETTINGS = (
    "device",
    "devices",
    "parallel",
    "framework.name",
    "software.name",
    "compile",
    "precision",
    "mode",
    "task",
    "optimizer.name",
)
#: Settings of `OPERATION_SETTINGS` whose values are clear without their names.
_SELF_EXPLANATORY = (
    "device",
    "framework.name",
    "software.name",
    "compile",
    "precision",
    "mode",
    "optimizer.name",
)

#: Outcomes of points that ran out of memory when they were measured. MEMORY_OUTCOMES also includes
#: points that were only predicted to run out of memory.
OUT_OF_MEMORY = ("oom_device", "oom_host")
MEMORY_OUTCOMES = (*OUT_OF_MEMORY, "oom_predicted")

#: Hyperparameters that do not belong to the model, in display order. They include the options of
#: those kinds of work whose options change the step.
_RUN_HYPERPARAMETERS = (
    *STEP_KEYS,
    *(
        key
        for work in workloads_by_group().values()
        if not work.step_ignores_keys
        for key in option_keys(work)
    ),
    "scenario",
)
#: Prefixes of settings that may change the measured speed without being hyperparameters.
_SETTING_PREFIXES = (
    "optimizer.",
    "data.",
    *PLATFORM_PREFIXES,
    *(f"{group}." for group, work in workloads_by_group().items() if work.step_ignores_keys),
)

_SCENARIOS = selector_choices("scenario")[1:]
_SCENARIO_PREFIXES = tuple(f"{name}." for name in _SCENARIOS)
#: Columns that do not identify a point, despite a configuration or platform prefix.
_NOT_IDENTIFYING = ("model.name", "platform.index", PRICE)
#: Further columns in which the steps of two runs may differ.
_STEP_COLUMNS = ("family", "device", "seed")
_SCENARIO_DECLARATIONS = [
    declaration
    for work in WORKLOADS.values()
    if work.key == "scenario"
    for declaration in work.role(ResultDescription).declared_metrics
]
#: Metrics of the queries of a scenario.
_QUERY_METRICS = {
    *(name for name in METRICS if name.startswith("latency_p")),
    *(
        entry.name
        for declaration in _SCENARIO_DECLARATIONS
        for entry in declaration.with_interval_ends()
    ),
    "cost_per_million_queries",
    "limit",
    "limit_reason",
}

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class GroupKey:
    """Key of a group of runs: one model family, such as "fc", on one device, such as "TPU v2"."""

    family: str
    device: str

    @property
    def name(self) -> str:
        """The name for sentences, such as "fc on TPU v2"."""
        return f"{self.family} on {self.device}"


@dataclass(frozen=True)
class FamilyGroup(GroupKey):
    """The runs of one model family on one device.

    `rows` has one row per run.
    """

    rows: pd.DataFrame


def family_groups(frame: pd.DataFrame) -> list[FamilyGroup]:
    """Split runs by model family, in the order of the ParaDnn paper, and then by device.

    Devices are in alphabetical order. Runs without a family or device form groups named "family not
    recorded" and "device not recorded".

    Args:
        frame: One row per run.
    """
    family = frame["family"].astype("object").fillna(not_recorded("family"))
    device = frame["device"].astype("object").fillna(not_recorded("device"))
    pairs = pd.DataFrame({"family": family, "device": device}).value_counts().index
    order = [*families(frame), not_recorded("family")]
    ordered = sorted(pairs, key=lambda pair: (order.index(pair[0]), pair[1]))
    return [
        FamilyGroup(name, where, select_rows(frame, family.eq(name) & device.eq(where)))
        for name, where in ordered
    ]


def analyze_groups(
    frame: pd.DataFrame, analyze: Callable[[FamilyGroup], ResultT], problem: str, remedy: str
) -> tuple[list[ResultT], list[InsufficientData]]:
    """Apply a function to the runs of each model family on each device.

    Args:
        frame: One row per run.
        analyze: Function of the runs of one family on one device. It raises InsufficientData for a
            group that it cannot analyze.
        problem: Start of the error message if no group has enough data.
        remedy: End of this error message: what the user can do.

    Returns:
        The results of the function, and an InsufficientData with the reason for each group without
        enough data.

    Raises:
        InsufficientData: If no group has enough data.
    """
    results: list[ResultT] = []
    omitted: list[InsufficientData] = []
    for group in family_groups(frame):
        try:
            results.append(analyze(group))
        except InsufficientData as error:
            omitted.append(InsufficientData(error.problem, group=group.name))
    if not results:
        raise InsufficientData(problem, groups=omitted, remedy=remedy)
    return results, omitted


def hyperparameters(frame: pd.DataFrame) -> list[str]:
    """Return the hyperparameter columns in which at least one run has a value.

    Hyperparameters are all columns `model.*` except `model.name`, and the columns of the step, such
    as `batch_size` and `precision`, which have no prefix `model.`.

    Args:
        frame: One row per run.

    Returns:
        Names of columns: first those with the prefix `model.`, then the others.
    """
    model = [
        name for name in frame.columns if str(name).startswith("model.") and name != "model.name"
    ]
    candidates = (*model, *_RUN_HYPERPARAMETERS)
    return [name for name in candidates if name in frame and frame[name].notna().any()]


def settings(frame: pd.DataFrame) -> list[str]:
    """Return the columns, except hyperparameters, that vary and may change the speed of a run.

    Examples are `optimizer.name` and columns of the platform. A column that a varying name
    determines is omitted. For example, if `data.name` varies and each value of `data.name` has one
    value of `data.width`, only `data.name` is returned.

    Args:
        frame: One row per run.
    """
    names = [name for name in map(str, frame) if name.startswith(_SETTING_PREFIXES)]
    varying = [name for name in names if name != PRICE and frame[name].nunique(dropna=False) > 1]
    return [name for name in varying if not _follows_from_group(frame, name, varying)]


def _follows_from_group(frame: pd.DataFrame, name: str, varying: Sequence[str]) -> bool:
    """Return whether a varying `.name` column determines a column of the same group.

    The columns of a group have a common prefix, such as `data.`. For example, `data.name`
    determines `data.width` if each value of `data.name` has one value of `data.width`.

    Args:
        frame: One row per run.
        name: The column that may be determined, such as `data.width`.
        varying: Columns that have several values.
    """
    group_name = f"{name.partition('.')[0]}.name"
    if name == group_name or group_name not in varying:
        return False
    values = frame[name].groupby(frame[group_name], dropna=False).nunique(dropna=False)
    return bool(values.max() <= 1)


def split_by_settings(
    rows: pd.DataFrame, ignore: Collection[str] = ()
) -> list[tuple[str, pd.DataFrame]]:
    """Split runs by the settings that change the operations of a step, such as the precision.

    Args:
        rows: One row per run or point (configuration to measure).
        ignore: Settings by which the rows are not split.

    Returns:
        For each combination of the settings that vary: the values of these settings as text, such
        as "eager, float32", and the rows with these values. If no setting varies, there is one
        entry with an empty text.
    """
    varying = [
        name
        for name in OPERATION_SETTINGS
        if name not in ignore and name in rows and rows[name].nunique(dropna=False) > 1
    ]
    if not varying:
        return [("", rows)]
    parts = []
    for values, part in rows.groupby(varying, dropna=False, sort=True):
        texts = [format_setting(name, value) for name, value in zip(varying, values, strict=True)]
        parts.append((", ".join(texts), part))
    return parts


def format_setting(name: str, value: Any) -> str:
    """Return a setting as text, such as "eager" or "threads 2".

    Args:
        name: Name of its column, such as "compile" or "platform.threads".
        value: Its value.
    """
    if pd.isna(value):
        return not_recorded(name)
    if name in _SELF_EXPLANATORY:
        return str(value)
    return f"{label(name)} {value}"


def find_column(frame: pd.DataFrame, name: str, option: str) -> str:
    """Return the column that a user named, with or without the prefix `model.`.

    Args:
        frame: One row per run.
        name: The name, such as "nodes" for `model.nodes`.
        option: The option with which the user gave the name, such as "--x", for the message.

    Returns:
        The full name of the column.

    Raises:
        ConfigError: If no run has a value in such a column.
    """
    for candidate in (name, f"model.{name}"):
        if candidate in frame and frame[candidate].notna().any():
            return candidate
    known = [str(column).removeprefix("model.") for column in frame if frame[column].notna().any()]
    suggestion = did_you_mean(name, known).strip()
    available = hyperparameters(frame)
    if suggestion:
        remedy = suggestion
    elif available:
        remedy = f"choose from {', '.join(available)}"
    else:
        remedy = "they have no hyperparameter; choose other runs"
    raise ConfigError(option, name, "these runs have no such hyperparameter", remedy)


def find_metric(frame: pd.DataFrame, name: str) -> str:
    """Return `name` if it is a column with a number for at least one successful run.

    Args:
        frame: One row per run. A run is successful if its `outcome` is "ok".
        name: Name of a metric.

    Raises:
        ConfigError: If no successful run has a number in that column. The message lists up to eight
            metrics that successful runs have.
    """
    ok_runs = frame.loc[is_ok(frame)]
    if name in ok_runs and is_number(ok_runs[name]) and ok_runs[name].notna().any():
        return name
    known = [column for column in METRICS if column in ok_runs and ok_runs[column].notna().any()]
    if name in METRICS:
        problem = "has no value in the chosen runs"
        remedy = ""
    else:
        problem = "is not a metric of these runs"
        remedy = did_you_mean(name, known).strip()
    if not remedy and known:
        remedy = f"choose a metric that they have, such as {', '.join(known[:8])}"
    elif not remedy:
        remedy = "choose other runs, since no measured run has any metric"
    raise ConfigError("--metric", name, problem, remedy)


def choose_metric(frame: pd.DataFrame, candidates: Sequence[str] = DEFAULT_METRICS) -> str:
    """Return the first candidate that at least 90% of the successful runs have.

    If no candidate is that common, return the one that the largest number of successful runs has.

    Args:
        frame: One row per run. A run is successful if its `outcome` is "ok".
        candidates: Names of metrics, in order of preference.

    Raises:
        ConfigError: If no successful run has any of the candidates.
    """
    ok_runs = frame.loc[is_ok(frame)]
    shares = {name: float(ok_runs[name].notna().mean()) for name in candidates if name in ok_runs}
    if ok_runs.empty or not any(shares.values()):
        problem = f"no measured run has {', '.join(candidates)}"
        remedy = "measure some points, choose other runs, or give another metric"
        raise ConfigError("--metric", "(not given)", problem, remedy)
    for name, share in shares.items():
        if share >= 0.9:
            return name
    return max(shares, key=lambda name: shares[name])


def parse_blocks(text: object) -> list[int] | None:
    """Parse a list of block counts, the value of `model.blocks`, such as "[3, 4, 6, 3]".

    Returns:
        The counts; None if the value is not a list of integers.
    """
    try:
        value = read_json(str(text))
    except ValueError:
        return None
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(count, int) for count in value):
        return None
    return value


def as_numbers(column: pd.Series) -> pd.Series | None:
    """Return a column as float64; None if it holds text.

    A list of block counts, such as "[3, 4, 6, 3]", becomes its total. Booleans become 0 or 1.
    """
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column.astype("Float64").astype("float64")
    counts = {value: parse_blocks(value) for value in column.dropna().unique()}
    if not counts or not all(counts.values()):
        return None
    totals = {value: float(sum(blocks or ())) for value, blocks in counts.items()}
    return column.map(totals).astype("float64")


def as_sizes(column: pd.Series) -> pd.Series | None:
    """Return a column of sizes as float64; None if a value is missing or is not a size.

    A size is a number above zero, or a list of block counts, such as "[3, 4, 6, 3]". A list becomes
    its total.
    """
    if pd.api.types.is_bool_dtype(column) or column.isna().any():
        return None
    sizes = as_numbers(column)
    if sizes is None or not (sizes > 0).all():
        return None
    return sizes


def is_number(column: pd.Series) -> bool:
    """Return whether a column holds numbers; booleans are not numbers."""
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def join_columns(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Find the columns that identify a point on both sides, A and B, of a comparison.

    A point is one combination of settings to measure. The columns are those of the configuration,
    the device and the platform, with two exceptions:

    - a configuration column in which each side has at most one value, and the values differ;
    - a device or platform column in which the sides share no value.

    A column in which only one side has values is excluded in both cases.

    Args:
        a: Runs of A, one row each.
        b: Runs of B, one row each.

    Returns:
        The columns, and for each excluded column the values of A and of B, as text.
    """
    keys = ["family"]
    differing = {}
    for name in [column for column in a.columns if column in b]:
        is_configuration = is_configuration_column(name)
        if not is_configuration and name != "device" and not is_platform_column(name):
            continue
        of_a = distinct_values(a[name])
        of_b = distinct_values(b[name])
        if not of_a and not of_b:
            continue
        # If a side has no runs, no column is excluded.
        is_disjoint = len(a) > 0 and len(b) > 0 and not of_a & of_b
        is_constant = len(of_a) <= 1 and len(of_b) <= 1
        is_missing = not of_a or not of_b
        if is_disjoint and (not is_configuration or is_missing or is_constant):
            differing[name] = (format_values(of_a), format_values(of_b))
        else:
            keys.append(name)
    return keys, differing


def named_join_columns(
    on: Sequence[str], a: pd.DataFrame, b: pd.DataFrame
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return the columns that identify a point in a comparison, if the user named them.

    A point is one combination of settings to measure.

    Args:
        on: The columns that the user named. `family` is always added.
        a: Runs of A, one row each.
        b: Runs of B, one row each.

    Returns:
        The columns; and for each column that `join_columns` excludes and the user did not name, the
        values of A and of B as text.

    Raises:
        ConfigError: If the runs of A or of B lack one of the columns.
    """
    for name in on:
        for side, frame in (("A", a), ("B", b)):
            if name not in frame:
                problem = f"the runs of {side} have no such column"
                raise ConfigError("on", name, problem, "name columns that both sides have")
    keys = list(dict.fromkeys(["family", *on]))
    _, differing = join_columns(a, b)
    return keys, {name: values for name, values in differing.items() if name not in keys}


def is_configuration_column(name: str) -> bool:
    """Return whether a column is part of the configuration that a user sets for a run."""
    is_configuration = name in CONFIGURATION_COLUMNS or name.startswith(CONFIGURATION_PREFIXES)
    return is_configuration and name not in _NOT_IDENTIFYING


def is_platform_column(name: str) -> bool:
    """Return whether a column describes hardware, framework or software stack."""
    return name.startswith(PLATFORM_PREFIXES) and name not in _NOT_IDENTIFYING


def scenario_runs_as_steps(frame: pd.DataFrame, named: Collection[str]) -> tuple[pd.DataFrame, int]:
    """Turn runs that serve queries into replicates of runs that only time the same step.

    In a scenario, inference queries arrive in a given pattern. Runs that differ only in the
    scenario and its keys measure the same step. They get the same `point_id`, and the columns of
    scenarios are dropped.

    Args:
        frame: One row per run.
        named: Columns that the options of the analysis name. The frame is returned unchanged if
            they name a scenario, one of its keys, or a metric of its queries.

    Returns:
        The frame, and the number of scenario runs that were turned into replicates.
    """
    is_about_queries = any(name in _QUERY_METRICS or _is_scenario_column(name) for name in named)
    if "scenario" not in frame or is_about_queries:
        return frame, 0
    is_scenario_run = frame["scenario"].isin(list(_SCENARIOS)).to_numpy(dtype=bool)
    if not is_scenario_run.any():
        return frame, 0
    steps = frame.drop(columns=[name for name in frame.columns if _is_scenario_column(name)])
    keys = [
        name
        for name in steps.columns
        if name in _STEP_COLUMNS or is_configuration_column(name) or is_platform_column(name)
    ]
    if "point_id" in steps and keys:
        group = steps.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
        # Runs without a scenario come first, so that scenario runs get the `point_id` of such a
        # run if there is one.
        order = np.argsort(is_scenario_run, kind="stable")
        point_ids = steps["point_id"].iloc[order].groupby(group[order]).first()
        replacement = point_ids.reindex(group).to_numpy()
        steps["point_id"] = steps["point_id"].where(~is_scenario_run, replacement)
    return steps, int(is_scenario_run.sum())


def _is_scenario_column(name: str) -> bool:
    return name == "scenario" or name.startswith(_SCENARIO_PREFIXES)


def distinct_values(column: pd.Series) -> set[Any]:
    """Return the set of values of a column, without missing values."""
    return set(column.dropna().unique())


def format_values(values: set[Any], limit: int = 3) -> str:
    """Format some values for a sentence, such as "0.1, 0.2, 0.3 and 4 more".

    Args:
        values: The values.
        limit: Largest number of values to state. The others are only counted.

    Returns:
        The text; "(none)" if there is no value.
    """
    ordered = sorted(values, key=lambda value: (str(type(value)), value))
    if not ordered:
        return "(none)"
    text = ", ".join(str(value) for value in ordered[:limit])
    if len(ordered) > limit:
        text += f" and {len(ordered) - limit} more"
    return text


def families_of_examples(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the model families that process examples rather than send messages.

    Families that send messages time the communication between processes.

    Args:
        rows: One row per run.

    Returns:
        The families in display order. If all families send messages, all of them.
    """
    present = tuple(families(rows))
    selected = tuple(
        name for name in present if name not in FAMILIES or not FAMILIES[name].is_communication
    )
    return selected or present


def families_of_examples_if_mixed(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the families that process examples, if families that send messages ran as well.

    Args:
        rows: One row per run.

    Returns:
        The result of `families_of_examples`; an empty tuple if it contains all families of the
        runs.
    """
    selected = families_of_examples(rows)
    if len(selected) == len(families(rows)):
        return ()
    return selected
