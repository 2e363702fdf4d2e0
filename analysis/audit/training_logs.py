"""Readers for MLPerf Training's logs and for the tables of nccl-tests."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.audit.series import (
    Note,
    Reading,
    child,
    finite_number,
    from_summary,
    from_values,
    text_conditions,
)
from paradnn.core.words import counted

_MLLOG_LINE = re.compile(r":::MLLOG (\{.*\})[ \t\r]*$", re.MULTILINE)
#: Settings of a training that the compared sides should share.
_TRAINING_SETTINGS = {
    "submission_benchmark": "benchmark",
    "submission_platform": "platform",
    "global_batch_size": "global batch size",
}


def read_mlperf_training(document: Any) -> Reading:
    """Read the log of an MLPerf Training run: the time from `run_start` to `run_stop`, in ms.

    Only a run whose `run_stop` has the status "success" reached its target. Throughputs are read
    from the events `tracked_stats`. The log of a power meter has readings in watts instead.

    Args:
        document: A mapping whose key `text` holds the log.
    """
    events = list(_mllog_events(str(child(document).get("text", ""))))
    if not events:
        return
    settings = {str(event.get("key")): event.get("value") for event in events}
    yield from text_conditions(
        {name: settings.get(key) for key, name in _TRAINING_SETTINGS.items()}
    )
    if "loadgen_version" in settings:
        yield Note("this is the detail log of LoadGen: give the mlperf_log_summary.txt next to it")
        return
    watts = [event.get("value") for event in events if event.get("key") == "power_reading"]
    if watts:
        yield from_values("power", "W", watts, observation="reading")
        return
    starts = [event for event in events if event.get("key") == "run_start"]
    stops = [event for event in events if event.get("key") == "run_stop"]
    if not starts or not stops:
        missing = "run_start" if not starts else "run_stop"
        yield Note(f"the log has no event {missing}, so the time to train is unknown")
    else:
        status = str(child(stops[-1], "metadata").get("status", "unknown"))
        if status == "success":
            begin = finite_number(starts[0].get("time_ms"))
            end = finite_number(stops[-1].get("time_ms"))
            yield from_summary("time to train", "ms", {"mean": end - begin})
        else:
            yield Note(f"the run ended with the status {status!r}, so it did not reach its target")
    rates = [
        child(event, "value").get("throughput")
        for event in events
        if event.get("key") == "tracked_stats"
    ]
    yield from_values("training throughput", "1/s", rates, better="higher")


def _mllog_events(text: str) -> Iterator[Mapping[str, Any]]:
    for match in _MLLOG_LINE.finditer(text):
        try:
            event = json.loads(match[1])
        except (ValueError, RecursionError):
            continue
        if isinstance(event, Mapping):
            yield event


_NCCL_AVERAGE = re.compile(r"#[ \t]*Avg bus bandwidth[ \t]*:[ \t]*([\d.]+)")
_NCCL_COLLECTIVE = re.compile(r"#[ \t]*Collective test starting:[ \t]*(\S+)")
_NCCL_DEVICE = re.compile(
    r"#[ \t]*Rank[ \t]+(\d+)[ \t].*\bdevice[ \t]+\d+[ \t]+\[[^\]]*\][ \t]*(\S.*?)[ \t]*$"
)
#: Line of a failed process: "host: Test NCCL failure file.cu:1 'message / details'".
_NCCL_FAILURE = re.compile(r"(\S+): Test (?:NCCL|CUDA) failure \S+ '(.*?)(?: / .*)?'?[ \t]*$")
#: Prefix of each line with `mpirun --tag-output`.
_MPI_TAG = re.compile(r"^\[\d+,\d+\]<stdout>: ?", re.MULTILINE)
#: Number of leading columns that every table has: size in bytes, number of elements, their type.
_NCCL_KEYS = 3
#: Columns with the time of a collective: wall time, or with --report_cputime processor time.
_NCCL_TIMES = frozenset({"time", "cputime"})


def read_nccl_tests(document: Any) -> Reading:
    """Read the table of a program of nccl-tests or rccl-tests.

    Times are in microseconds, each a mean over the iterations. The header of a table is

        # size count type redop root time algbw busbw #wrong time algbw busbw #wrong

    The first time is that of the collective out of place, the second that in place. Operation
    (redop) and root may be blank. With --report_cputime the times are processor times, in columns
    named cputime. With --report_timestamps a column timestamp follows. Since version 2.17 the name
    of the collective precedes the table.

    Args:
        document: A mapping whose key `text` holds the output of the program.
    """
    text = _MPI_TAG.sub("", str(child(document).get("text", "")))
    columns: list[str] = []
    collective = ""
    devices: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        start = _NCCL_COLLECTIVE.match(line)
        device = _NCCL_DEVICE.match(line)
        average = _NCCL_AVERAGE.match(line)
        failure = _NCCL_FAILURE.match(line)
        if start:
            collective = start[1]
        elif device:
            devices[device[1]] = device[2]
        elif failure:
            yield Note(f"{collective or 'the test'} failed on {failure[1]}: {failure[2]}")
        elif columns and average:
            mean = {"mean": 1e9 * _cell(average[1])}
            name = f"{collective} average bus bandwidth".lstrip()
            yield from_summary(name, "B/s", mean, better="higher")
        elif line.startswith("#") and "busbw" in words and not _NCCL_TIMES.isdisjoint(words):
            columns = _nccl_columns(words)
        elif columns and len(words) >= _NCCL_KEYS + len(columns) and words[0].isdigit():
            keys = words[: -len(columns)]
            cells = words[-len(columns) :]
            yield from _nccl_row(collective, keys, columns, cells)
    if columns:
        models = Counter(devices.values())
        described = [f"{count} x {model}" for model, count in sorted(models.items())]
        yield from text_conditions({"devices": ", ".join(described)})


def _nccl_columns(header: Sequence[str]) -> list[str]:
    """Return the names of the columns of a table, starting with the first time.

    A column whose value consists of several words occurs once for each of them.

    Args:
        header: The words of the header.
    """
    first = next(index for index, word in enumerate(header) if word in _NCCL_TIMES)
    columns = list(header[first:])
    if columns[-1] == "timestamp":
        columns.append("timestamp")  # its value consists of two words, date and time of day
    return columns


def _nccl_row(
    collective: str, keys: Sequence[str], columns: Sequence[str], cells: Sequence[str]
) -> Reading:
    size, _, *labels = keys  # the labels are type, operation and root
    if labels[-1] == "-1":
        # The collective has no root.
        labels.pop()
    label = " ".join([collective, f"{int(size):,} B", *labels]).lstrip()
    place = ""
    for column, cell in zip(columns, cells, strict=True):
        if column in _NCCL_TIMES:
            place = "in place" if place else "out of place"
            name = f"{label}, {place}"
            if column == "cputime":
                name += ", processor time"
            yield from_summary(name, "us", {"mean": _cell(cell)})
        elif column == "#wrong" and _cell(cell) > 0:
            yield Note(f"{label}, {place}: {counted(round(_cell(cell)), 'value')} were wrong")


def _cell(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
