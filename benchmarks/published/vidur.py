"""Vidur's published times of NCCL, so that one's own channels stand beside those of A40, A100 and H100.

    python -m benchmarks.published vidur=DIR

DIR is a clone of github.com/microsoft/vidur, or its folder data/profiling/network: one folder for each machine, with
`all_reduce.csv` and `send_recv.csv`. Each row becomes one run of `model=channel`. docs/published-data.md says what the
figures mean.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from analysis.published.source import DAMAGED, Found, Publication, PublishedRun, digest, read_text, reason
from benchmarks.published.common import device_called, repeated, transfer
from paradnn.core.errors import DataError
from paradnn.store.runs import VIDUR

_PATTERNS = ("all_reduce", "send_recv")
#: Column of a count -> the least that it can be.
_COUNTS = {"num_workers": 2, "size": 1, "devices_per_node": 1}
_SOURCE = "github.com/microsoft/vidur, folder data/profiling/network"
_AGAIN = f"fetch it again ({_SOURCE})"
#: 28 July 2024, the last change of these files, in Unix milliseconds.
_PUBLISHED = 1_722_124_800_000
#: No message has as many bytes.
_LARGEST = 2**53


def read_vidur(folder: Path) -> Found:
    """A publication for each file below a folder, in the order of their paths; left out is what is another machine's,
    byte for byte. DataError where there is none, or one is damaged."""
    paths = sorted(path for pattern in _PATTERNS for path in folder.rglob(f"{pattern}.csv"))
    if not paths:
        raise DataError(f"{folder}: holds no all_reduce.csv or send_recv.csv; they are in {_SOURCE}")
    publications: list[Publication] = []
    left_out: list[str] = []
    seen: dict[str, str] = {}
    for path in paths:
        name, machine, pattern = f"{path.parent.name}/{path.name}", path.parent.name, path.stem
        device = device_called(machine)
        try:
            content = read_text(path)
            if content in seen:
                left_out.append(f"{name} is {seen[content]}, byte for byte")
                continue
            runs = repeated(_runs(machine, device, name, pattern, content), "vidur", name)
        except DAMAGED as error:
            raise DataError(f"{name}: {reason(error)}; {_AGAIN}") from None
        if not runs:
            raise DataError(f"{name}: holds no timing; {_AGAIN}")
        seen[content] = name
        about = f"{len(runs):,} timings of {name} ({_SOURCE}, MIT License); see docs/published-data.md."
        publications.append(Publication(f"published, Vidur {device}, {pattern}", about, _PUBLISHED, runs))
    return Found(publications, left_out)


def _runs(machine: str, device: str, name: str, pattern: str, content: str) -> Iterator[PublishedRun]:
    """A run for each row."""
    time, table = f"time_stats.{pattern}.median", csv.DictReader(content.splitlines())
    for column in (time, *_COUNTS):
        if column not in (table.fieldnames or ()):
            raise DataError(f"{name}: there is no column {column}; {_AGAIN}")
    for row in table:
        where = f"{name}, line {table.line_num}"
        processes, size, of_a_host = (int(_number(row, column, where, least)) for column, least in _COUNTS.items())
        hosts, seconds = max(1, processes // of_a_host), _number(row, time, where) / 1e3
        called, params, metrics = transfer("nccl", pattern, size, processes, hosts, "float16", seconds)
        tags = {
            "device": device,
            "environment_id": digest("vidur", machine),
            "protocol_id": VIDUR,
            "archive_label": where,
        }
        yield PublishedRun("", f"{called} {device}", {**params, "framework.name": "torch"}, tags, metrics)


def _number(row: Mapping[str, str | None], column: str, where: str, least: int = 0) -> float:
    """A number above zero, of a count a whole one from `least` on. DataError for another."""
    text = row[column] or ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1e-12 < value < (_LARGEST if least else math.inf) or (
        least and not (value >= least and value == int(value))
    ):
        kind = f"whole number from {least} on" if least else "positive number"
        raise DataError(f"{where}: {column}={text[:80]!r} is no {kind}; {_AGAIN}")
    return value
