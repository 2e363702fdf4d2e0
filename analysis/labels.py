"""Labels of columns for readers, such as "throughput", and the units of columns."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from paradnn.store.metrics import metric

#: Labels that do not follow from the name of the column.
_LABELS = {
    "examples_per_second": "throughput",
    "flops_per_second": "FLOP rate",
    "flops_per_step": "work of a step",
    "bytes_per_step": "memory traffic of a step",
    "flops_utilization": "utilization of the measured peak",
    "flops_utilization_spec": "utilization of the specified peak",
    "roofline_fraction": "share of the roof",
    "peak_flops_per_second": "measured peak rate",
    "peak_bytes_per_second": "measured bandwidth",
    "spec_flops_per_second": "specified peak rate",
    "spec_bytes_per_second": "specified bandwidth",
    "step_time_cv": "variation within a process",
    "between_process_cv": "variation between processes",
    "process_cv": "variation of processes",
    "infeed_fraction": "share of the step waiting for input",
    "oom_device": "out of memory (device)",
    "oom_host": "out of memory (host)",
    "oom_predicted": "out of memory (predicted)",
    "compile_error": "does not compile",
    "nan": "not a number",
    "p50": "median",
    "q25": "lower quartile",
    "q75": "upper quartile",
    "p_value": "p",
    "p_adjusted": "p, adjusted",
    "vif": "variance inflation",
    "r2": "R²",
    "software.name": "software stack",
    "data.name": "input data",
}
_SUFFIX_LABELS = {"_low": ", lower end", "_high": ", upper end", "_spread": ", spread"}
_LOW_END = re.compile(r"(^|_)low$")
_QUANTILE = re.compile(r"[pq]\d\d?")
#: Column of the value, by the base name of the columns of the interval, where the names differ.
_VALUES_OF_ENDS = {"median": "p50", "rate": "flops_per_second"}
_PERCENTILE = re.compile(r"p(\d\d?)")
_ORDINAL_SUFFIXES = {"1": "st", "2": "nd", "3": "rd"}
_UNIT_SUFFIX = re.compile(r"_(ms|us|bytes|seconds|joules)$")
_DROPPED_PREFIXES = (
    "model.",
    "measure.",
    "op_share.",
    "category_share.",
    "platform.",
    "optimizer.",
    "software.",
    "framework.",
)


class IntervalEnds(NamedTuple):
    """Columns of an interval, apart from that of its lower end.

    Attributes:
        high: Column of the upper end.
        value: Column of the value that the interval belongs to; empty if there is no such column.
    """

    high: str
    value: str


def interval_ends(names: Sequence[str]) -> dict[str, IntervalEnds]:
    """Find the columns of a table that form intervals.

    The value of "speedup_low" is in "speedup". If there is no such column, the value is in the
    closest preceding column that is neither an end of an interval nor a percentile.

    Args:
        names: The columns of the table, in order.

    Returns:
        Column of the lower end -> the columns of the upper end and of the value.
    """
    ends_by_low: dict[str, IntervalEnds] = {}
    highs = {name: f"{name.removesuffix('low')}high" for name in names if _LOW_END.search(name)}
    ends = {*highs, *highs.values()}
    closest = ""
    for name in names:
        if name in highs and highs[name] in names:
            base = name.removesuffix("low").removesuffix("_")
            if base not in names:
                base = _VALUES_OF_ENDS.get(base, base)
            value = base if base in names else closest
            ends_by_low[name] = IntervalEnds(highs[name], value)
        elif name not in ends and not _QUANTILE.fullmatch(name):
            closest = name
    return ends_by_low


def label(column: str) -> str:
    """Return the name of a column for readers, without its unit, such as "throughput".

    Args:
        column: Name of the column, such as "examples_per_second" or "model.nodes".
    """
    if column in _LABELS:
        return _LABELS[column]
    for suffix, text in _SUFFIX_LABELS.items():
        # A unit may follow the suffix, as in step_time_low_ms.
        match = re.fullmatch(rf"(.+){suffix}(_[a-z]+)?", column)
        if match:
            return label(match[1] + (match[2] or "")) + text
    percentile = _PERCENTILE.fullmatch(column)
    if percentile:
        number = percentile[1]
        return f"{number}{_ORDINAL_SUFFIXES.get(number[-1], 'th')} percentile"
    if column.startswith("version."):
        return f"{column.removeprefix('version.')} version"
    name = column.removesuffix(".name")
    for prefix in _DROPPED_PREFIXES:
        name = name.removeprefix(prefix)
    return _UNIT_SUFFIX.sub("", name).replace("_", " ")


def not_recorded(column: str) -> str:
    """Return the text that replaces a missing value of a column, such as "device not recorded"."""
    return f"{label(column)} not recorded"


def term_label(term: str) -> str:
    """Return the label of a term of a regression: a column, or one of its values.

    Examples are "nodes" and "precision=bfloat16".
    """
    column, sign, value = term.partition("=")
    return f"{label(column)}{sign}{value}"


def column_unit(column: str) -> str:
    """Return the unit of a column as text; empty if it has none."""
    try:
        unit = metric(column).unit
    except KeyError:
        return ""
    if unit == "1/s" and "examples_per_second" in column:
        return "examples/s"
    return "" if unit == "1" else unit


def label_with_unit(column: str) -> str:
    """Return the label of a column with its unit, such as "throughput (examples/s)"."""
    unit = column_unit(column)
    return f"{label(column)} ({unit})" if unit else label(column)
