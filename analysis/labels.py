"""What columns are called where people read them: quantities in words, with their units apart."""

import re

from paradnn.core.tables import rows
from paradnn.store.metrics import metric

#: Where the words of a key would not say it.
_NAMES = {row["column"]: row["words"] for row in rows(__file__)}
_ENDS = {"_low": ", lower end", "_high": ", upper end", "_spread": ", spread"}
_PERCENTILE = re.compile(r"p(\d\d?)$")
_ORDINALS = {"1": "st", "2": "nd", "3": "rd"}
_UNITS = re.compile(r"_(ms|us|bytes|seconds|joules)$")
_PARTS = (
    "model.",
    "measure.",
    "op_share.",
    "category_share.",
    "platform.",
    "optimizer.",
    "software.",
    "framework.",
)


def label(column: str) -> str:
    """A column's name in words, without its unit: "throughput", "nodes", "step time, upper end"."""
    if column in _NAMES:
        return _NAMES[column]
    for end, words in _ENDS.items():
        if column.endswith(end):
            return label(column.removesuffix(end)) + words
        # A unit may stand behind: step_time_low_ms.
        found = re.fullmatch(rf"(.+){end}(_[a-z]+)", column)
        if found:
            return label(found[1] + found[2]) + words
    found = _PERCENTILE.match(column)
    if found:
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
    """A term of a regression in words, a column or one of its values: "nodes",
    "precision=bfloat16".
    """
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
