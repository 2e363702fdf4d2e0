"""Reader of Vidur's published times of NCCL on A40, A100 and H100, which become runs.

    python -m benchmarks.published vidur=DIR

DIR is a clone of github.com/microsoft/vidur, or its folder data/profiling/network: one folder per
machine with `all_reduce.csv` and `send_recv.csv`. Each row becomes one run of `model=channel`.
docs/validation/published-data.md explains the figures.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from analysis.published.source import ImportedFolder, Publication, PublishedRun, digest, read_text
from benchmarks.published.common import device_called, repeated, transfer
from paradnn.store.runs import VIDUR

_PATTERNS = ("all_reduce", "send_recv")
_SOURCE = "github.com/microsoft/vidur, folder data/profiling/network"
#: 28 July 2024, the last change of these files, in Unix milliseconds.
_PUBLISHED = 1_722_124_800_000


def read_vidur(folder: Path) -> ImportedFolder:
    """Return a publication per file below a folder, ordered by path; identical copies are
    omitted.

    Raises:
        ValueError: If a table has another format.
        KeyError: If a column is missing.
    """
    publications: list[Publication] = []
    left_out: list[str] = []
    seen: dict[str, str] = {}
    for path in sorted(path for pattern in _PATTERNS for path in folder.rglob(f"{pattern}.csv")):
        name = f"{path.parent.name}/{path.name}"
        machine = path.parent.name
        content = read_text(path)
        if content in seen:
            left_out.append(f"{name} is {seen[content]}, byte for byte")
            continue
        seen[content] = name
        device = device_called(machine)
        runs = repeated(_runs(machine, device, name, path.stem, content), "vidur", name)
        origin = f"{name} ({_SOURCE}, MIT License)"
        about = f"{len(runs):,} timings of {origin}; see docs/validation/published-data.md."
        publications.append(
            Publication(f"published, Vidur {device}, {path.stem}", about, _PUBLISHED, runs)
        )
    return ImportedFolder(publications, left_out)


def _runs(
    machine: str, device: str, name: str, pattern: str, content: str
) -> Iterator[PublishedRun]:
    """Yield a run per row."""
    table = csv.DictReader(content.splitlines())
    for row in table:
        processes, size, of_a_host = (
            int(row[column]) for column in ("num_workers", "size", "devices_per_node")
        )
        seconds = float(row[f"time_stats.{pattern}.median"]) / 1e3
        if seconds <= 0:
            raise ValueError(f"{name}, line {table.line_num}: took no time")
        hosts = max(1, processes // of_a_host)
        called, params, metrics = transfer(
            "nccl", pattern, size, processes, hosts, "float16", seconds
        )
        tags = {
            "device": device,
            "environment_id": digest("vidur", machine),
            "protocol_id": VIDUR,
            "archive_label": f"{name}, line {table.line_num}",
        }
        yield PublishedRun(
            "", f"{called} {device}", {**params, "framework.name": "torch"}, tags, metrics
        )
