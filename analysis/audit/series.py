"""The data model of `audit`: series of measurements, and reports of a harness about them."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Direction = Literal["lower", "higher", "unknown"]

#: Seconds per unit of time, by the names that harnesses use.
SECONDS_PER_UNIT = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
}

#: Keys of a summary for its center, in order of preference, with the statistic of each.
_CENTERS = {"median": "median", "p50": "median", "mean": "mean", "avg": "mean"}
_STANDARD_DEVIATIONS = ("stddev", "std_dev", "std")
_COUNTS = ("count", "rounds")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One measured quantity of one session, such as the time of a benchmark.

    Attributes:
        name: Description of the quantity, with the parameters that distinguish it within the file.
        unit: "s" for every time, "B" for sizes, "1/s" or the harness's own unit for rates, "" if
            the file does not state it.
        center: Median of the measurements, or their mean if the file has no median.
        statistic: Whether `center` is a "median" or a "mean".
        stddev: Standard deviation of the measurements; NaN if the file does not state it.
        count: Number of measurements behind `center`; 1 if the file does not state it.
        values: The measurements in order of time; empty if they are not in the file.
        better: Whether lower or higher values are better, or "unknown".
        observation: Noun for one measurement: a "run" of a benchmark, a "request" of a load test.
        version: Version of the benchmark's code; empty if the harness does not record it.
        command: Shell command that was timed; empty if the harness does not time commands.
    """

    name: str
    unit: str
    center: float
    statistic: str = "median"
    stddev: float = math.nan
    count: int = 1
    values: tuple[float, ...] = ()
    better: Direction = "lower"
    observation: str = "run"
    version: str = ""
    command: str = ""


class Note(NamedTuple):
    """Report of a harness about failures or about the state of the machine."""

    text: str


class SharedSetting(NamedTuple):
    """A setting or a property of the machine that should be equal on two compared sides."""

    name: str
    value: str


#: Results of a reader for the entries of a document; None for an entry without a positive number.
Reading = Iterator[Series | Note | SharedSetting | None]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The measurements of one session, from a result file of a benchmark harness.

    Attributes:
        file: Path of the file; for a file with several sessions, also the number of the entry.
        harness: Name of the harness.
        series: The measured quantities.
        notes: Reports of the harness about failures or about the state of the machine.
        conditions: Settings and properties of the machine that should be equal on two compared
            sides: name -> value.
    """

    file: str
    harness: str
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)


def finite_number(value: Any) -> float:
    """Return a JSON value as a finite number; NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    if not math.isfinite(number):
        return math.nan
    return number


def child(document: Any, *keys: str) -> Mapping[str, Any]:
    """Return the nested JSON object at a path of keys.

    Args:
        document: A JSON value.
        *keys: The keys, from the outermost object to the innermost; none for the document itself.

    Returns:
        The object; an empty one if the path does not lead to an object.
    """
    for key in keys:
        if not isinstance(document, Mapping):
            return {}
        document = document.get(key)
    if isinstance(document, Mapping):
        return document
    return {}


def children(document: Any, key: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at a key of a JSON object.

    Args:
        document: A JSON value.
        key: The key.

    Returns:
        The objects; an empty list if the key has no list. Other entries of the list are omitted.
    """
    entries = child(document).get(key)
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, Mapping)]


def from_values(name: str, unit: str, values: Any, **attributes: Any) -> Series | None:
    """Create a series from raw measurements.

    Args:
        name: Name of the measured quantity.
        unit: Unit of the values. Times are converted to seconds.
        values: List of measurements. Entries other than positive numbers are dropped.
        **attributes: Other attributes of `Series`.

    Returns:
        The series; None if `values` has no positive number.
    """
    if not isinstance(values, list):
        return None
    scale, unit = _canonical_unit(unit)
    numbers = (scale * finite_number(value) for value in values)
    positive = tuple(number for number in numbers if number > 0)
    if not positive:
        return None
    stddev = math.nan
    if len(positive) > 1:
        stddev = statistics.stdev(positive)
    return Series(
        name=name,
        unit=unit,
        center=statistics.median(positive),
        stddev=stddev,
        count=len(positive),
        values=positive,
        **attributes,
    )


def from_summary(
    name: str,
    unit: str,
    summary: Mapping[str, Any],
    *,
    centers: Sequence[str] = tuple(_CENTERS),
    **attributes: Any,
) -> Series | None:
    """Create a series from summary statistics, for a file without raw measurements.

    Args:
        name: Name of the measured quantity.
        unit: Unit of the summary. Times are converted to seconds.
        summary: Statistics by name, such as median, mean, std and count.
        centers: Keys of the median or mean in the summary, in order of preference.
        **attributes: Other attributes of `Series`.

    Returns:
        The series; None if the summary has no positive median or mean.
    """
    scale, unit = _canonical_unit(unit)
    for key in centers:
        center = scale * finite_number(summary.get(key))
        if math.isfinite(center):
            break
    else:
        return None
    if center <= 0:
        return None
    count = _first_number(summary, _COUNTS)
    return Series(
        name=name,
        unit=unit,
        center=center,
        statistic=_CENTERS[key],
        stddev=scale * _first_number(summary, _STANDARD_DEVIATIONS),
        count=int(count) if count >= 1 else 1,
        **attributes,
    )


def text_conditions(conditions: Mapping[str, Any]) -> Iterator[SharedSetting]:
    """Yield the settings and machine properties that a result file states.

    Args:
        conditions: Name -> JSON value. Values other than texts and numbers, and empty texts, are
            skipped.
    """
    for name, value in conditions.items():
        if isinstance(value, str | int | float) and value != "":
            yield SharedSetting(name, str(value))


def _canonical_unit(unit: str) -> tuple[float, str]:
    """Return the factor that converts a unit to the canonical unit, and the canonical unit.

    The canonical unit is "s" for every time; other units stay as they are.
    """
    if unit in SECONDS_PER_UNIT:
        return SECONDS_PER_UNIT[unit], "s"
    return 1.0, unit


def _first_number(summary: Mapping[str, Any], keys: Sequence[str]) -> float:
    for key in keys:
        number = finite_number(summary.get(key))
        if math.isfinite(number):
            return number
    return math.nan
