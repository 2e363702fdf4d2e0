"""Vidur's published times of NCCL as runs, so that one's own channels stand beside those of A40, A100 and H100.

    python -m analysis import-vidur DIR

DIR is a clone of github.com/microsoft/vidur, or its folder data/profiling/network: one folder for each machine, with
`all_reduce.csv` and `send_recv.csv`. Each row becomes one run of `model=channel`. docs/published-data.md says what the
figures mean.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from analysis.published.files import DAMAGED, read_table, read_text, reason
from analysis.published.runs import Imported, Publication, PublishedRun, Transfer, digest, log_publications
from paradnn.errors import DataError
from paradnn.store.runs import VIDUR

__all__ = ["EXPERIMENT", "import_vidur", "read_vidur"]

#: Where the runs go: apart from one's own, which they outnumber.
EXPERIMENT = "vidur"
_PATTERNS = ("all_reduce", "send_recv")
#: Column of a count -> the least that it can be.
_COUNTS = {"num_workers": 2, "size": 1, "devices_per_node": 1}
_DEVICES = {
    "a40_pairwise_nvlink": "NVIDIA A40, pairs joined by NVLink",
    "a100_pairwise_nvlink": "NVIDIA A100, pairs joined by NVLink",
    "a100_dgx": "NVIDIA A100, DGX",
    "h100_pairwise_nvlink": "NVIDIA H100, pairs joined by NVLink",
    "h100_dgx": "NVIDIA H100, DGX",
}
_SOURCE = "github.com/microsoft/vidur, folder data/profiling/network"
#: 28 July 2024, the last change of these files, in Unix milliseconds.
_PUBLISHED = 1_722_124_800_000
#: No message has as many bytes.
_LARGEST = 2**53


def import_vidur(
    folder: Path,
    tracking_uri: str | None = None,
    experiment: str = EXPERIMENT,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the rows that the store does not hold yet, one run each.

    Raises as `read_vidur`, before the first run is logged, and StoreError.
    """
    publications, left_out = read_vidur(folder)
    return log_publications(publications, tracking_uri, experiment, left_out, progress)


def read_vidur(folder: Path) -> tuple[list[Publication], list[str]]:
    """A publication for each file below a folder, in the order of their paths, and the files that are left out.

    Left out is a file that is another machine's, byte for byte. DataError where there is none, or one is damaged.
    """
    paths = sorted(path for pattern in _PATTERNS for path in folder.rglob(f"{pattern}.csv"))
    if not paths:
        raise DataError(f"{folder}: holds no all_reduce.csv or send_recv.csv; they are in {_SOURCE}")
    publications: list[Publication] = []
    left_out: list[str] = []
    seen: dict[str, str] = {}
    for path in paths:
        name, content = f"{path.parent.name}/{path.name}", _content(path)
        if content in seen:
            left_out.append(f"{name} is {seen[content]}, byte for byte")
            continue
        seen[content] = name
        publications.append(_publication(path.parent.name, path.stem, name, content))
    return publications, left_out


def _content(path: Path) -> str:
    try:
        return read_text(path)
    except DAMAGED as error:
        raise DataError(f"{path.parent.name}/{path.name}: {reason(error)}; fetch it again ({_SOURCE})") from None


def _publication(machine: str, pattern: str, name: str, content: str) -> Publication:
    device = _DEVICES.get(machine, machine)
    runs = list(_runs(machine, device, name, _transfers(name, pattern, content)))
    if not runs:
        raise DataError(f"{name}: holds no timing; fetch it again ({_SOURCE})")
    about = f"{len(runs):,} timings of {name} ({_SOURCE}, MIT License); see docs/published-data.md."
    return Publication(f"published, Vidur {device}, {pattern}", about, _PUBLISHED, runs)


def _transfers(name: str, pattern: str, content: str) -> Iterator[tuple[int, Transfer]]:
    """The line of each row, and what it says. DataError where it is damaged."""
    time = f"time_stats.{pattern}.median"
    table = read_table(content)
    try:
        lacking = [each for each in (time, *_COUNTS) if each not in (table.fieldnames or ())]
        rows = [(table.line_num, row) for row in table]
    except csv.Error as error:
        raise DataError(f"{name}: {reason(error)}; fetch it again ({_SOURCE})") from None
    if lacking:
        raise DataError(f"{name}: there is no column {lacking[0]}; fetch it again ({_SOURCE})")
    for line, row in rows:
        where = f"{name}, line {line}: "
        processes, size, of_a_host = (_whole(row[column], where + column, least) for column, least in _COUNTS.items())
        hosts = max(1, processes // of_a_host)
        seconds = _positive(row[time], where + time) / 1e3
        yield line, Transfer("nccl", pattern, size, processes, hosts, "float16", seconds)


def _positive(text: str | None, what: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 1e-12 < value < math.inf:
        raise DataError(f"{what}={(text or '')[:80]!r} is no positive number; fetch it again ({_SOURCE})")
    return value


def _whole(text: str | None, what: str, least: int) -> int:
    value = _positive(text, what)
    if not least <= value < _LARGEST or value != int(value):
        raise DataError(f"{what}={(text or '')[:80]!r} is no whole number from {least} on; fetch it again ({_SOURCE})")
    return int(value)


def _runs(machine: str, device: str, name: str, transfers: Iterator[tuple[int, Transfer]]) -> Iterator[PublishedRun]:
    """A size that a file lists twice was measured twice: the second is a replicate."""
    seen: Counter[str] = Counter()
    for line, transfer in transfers:
        params = {**transfer.params, "framework.name": "torch"}
        known = digest("vidur", name, *(f"{key}={value}" for key, value in sorted(params.items())))
        replicate = str(seen[known])
        seen[known] += 1
        yield PublishedRun(
            point_id=digest(known, replicate),
            name=f"{transfer.name} {device}",
            params={**params, "replicate": replicate},
            tags={
                "device": device,
                "environment_id": digest("vidur", machine),
                "protocol_id": VIDUR,
                "replicate": replicate,
                "archive_label": f"{name}, line {line}",
            },
            metrics=transfer.metrics,
        )
