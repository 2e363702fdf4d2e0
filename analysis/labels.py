"""What columns are called where people read them: quantities in words, with their units apart."""

from __future__ import annotations

import re

from paradnn.store.metrics import metric

#: Where the words of a key would not say it.
_NAMES = {
    "examples_per_second": "throughput",
    "flops_per_second": "FLOP rate",
    "flops_per_step": "work of a step",
    "bytes_per_step": "memory traffic of a step",
    "flops_utilization": "utilisation of the measured peak",
    "flops_utilization_spec": "utilisation of the specified peak",
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
_ENDS = {"_low": ", lower end", "_high": ", upper end", "_spread": ", spread"}
_PERCENTILE = re.compile(r"p(\d\d?)$")
_ORDINALS = {"1": "st", "2": "nd", "3": "rd"}
_UNITS = re.compile(r"_(ms|us|bytes|seconds|joules)$")
_PARTS = ("model.", "measure.", "op_share.", "category_share.", "platform.", "optimizer.", "software.", "framework.")


def label(column: str) -> str:
    """A column's name in words, without its unit: "throughput", "nodes", "step time, upper end"."""
    if column in _NAMES:
        return _NAMES[column]
    for end, words in _ENDS.items():
        if column.endswith(end):
            return label(column.removesuffix(end)) + words
        # A unit may stand behind: step_time_low_ms.
        if found := re.fullmatch(rf"(.+){end}(_[a-z]+)", column):
            return label(found[1] + found[2]) + words
    if found := _PERCENTILE.match(column):
        return f"{found[1]}{_ORDINALS.get(found[1][-1], 'th')} percentile"
    if column.startswith("version."):
        return f"{column.removeprefix('version.')} version"
    column = column.removesuffix(".name")
    for prefix in _PARTS:
        column = column.removeprefix(prefix)
    return _UNITS.sub("", column).replace("_", " ")


def not_recorded(column: str) -> str:
    """What stands for a value that runs lack: "device not recorded"."""
    return f"{label(column)} not recorded"


def term_label(term: str) -> str:
    """A term of a regression in words, a column or one of its values: "nodes", "precision=bfloat16"."""
    column, sign, value = term.partition("=")
    return f"{label(column)}{sign}{value}"


def unit_of(column: str) -> str:
    """The unit of a column as it is written; empty where it has none."""
    try:
        unit = metric(column).unit
    except KeyError:
        return ""
    if unit == "1/s" and "examples_per_second" in column:
        return "examples/s"
    return "" if unit == "1" else unit


def labelled(column: str) -> str:
    """The label with its unit: "throughput (examples/s)"."""
    unit = unit_of(column)
    return f"{label(column)} ({unit})" if unit else label(column)
