"""Helpers of the readers of published files: names of platforms, repetitions and transfers."""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from analysis.published.source import PublishedRun, digest
from paradnn.store.runs import PUBLISHED
from paradnn.workloads.channel import COLLECTIVES, bus_factor


@cache
def device_called(name: str) -> str:
    """Return the name of a platform in this project, for files with several spellings."""
    with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as table:
        return {row["name"]: row["device"] for row in csv.DictReader(table)}.get(name, name)


def repeated(runs: Iterable[PublishedRun], *source: str) -> list[PublishedRun]:
    """Make the second occurrence of a problem in a file a replicate with its own identity."""
    seen: Counter[str] = Counter()
    found = []
    for run in runs:
        known = digest(*source, *(f"{key}={value}" for key, value in sorted(run.params.items())))
        number = {"replicate": str(seen[known])}
        seen[known] += 1
        params = {**run.params, **number}
        tags = {**run.tags, **number}
        found.append(
            replace(run, point_id=digest(known, number["replicate"]), params=params, tags=tags)
        )
    return found


def transfer(
    transport: str,
    pattern: str,
    size: int,
    processes: int,
    hosts: int,
    precision: str,
    seconds: float,
) -> tuple[str, dict[str, str], dict[str, float]]:
    """Return name, params and metrics of a timed message or collective.

    They match measured runs of `model=channel` (docs/how-to/communication.md), which have no
    `model.hosts`: all their processes share a host.
    """
    fixed = {
        "model.name": "channel",
        "batch_size": "1",
        "mode": "inference",
        "platform.name": "gpu",
    }
    ends = {
        "transport": transport,
        "pattern": pattern,
        "bytes": size,
        "processes": processes,
        "hosts": hosts,
    }
    params = {
        **fixed,
        **{f"model.{name}": str(value) for name, value in ends.items()},
        "precision": precision,
    }
    metrics = {
        "step_time_ms": 1e3 * seconds,
        "transfer_us": 1e6 * seconds,
        "messages_per_second": 1 / seconds,
    }
    metrics["sent_bytes_per_second"] = rate = size / seconds
    if pattern in COLLECTIVES:
        metrics["bus_bytes_per_second"] = rate * bus_factor(pattern, processes)
    on = f" on {hosts} hosts" if hosts > 1 else ""
    return f"{transport} {pattern} x{processes}{on} {size} B", params, metrics


def published_run(
    point: Sequence[str],
    environment: Sequence[str],
    device: str,
    note: str,
    name: str,
    params: Mapping[str, str],
    metrics: Mapping[str, float],
) -> PublishedRun:
    """Return a run with the common tags: identities of `point` and `environment`, replicate, and
    a note.
    """
    tags = {
        "environment_id": digest(*environment),
        "protocol_id": PUBLISHED,
        "replicate": "0",
        "device": device,
    }
    return PublishedRun(
        digest(*point), name, dict(params), {**tags, "mlflow.note.content": note}, dict(metrics)
    )
