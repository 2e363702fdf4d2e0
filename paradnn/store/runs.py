"""What is kept of one measurement: its record before it is stored, and the run that it is, or another's, in a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradnn.config.identity import Identity
from paradnn.core.workload import Moment

__all__ = ["AcceptsRun", "Claim", "ClaimedElsewhere", "Finished", "Record", "RecordingMetrics"]

#: Whether a stored run, given its tags, is accepted as the measurement of the point that is to be claimed.
AcceptsRun = Callable[[Mapping[str, str]], bool]
#: Metrics of the recording itself, asked for at the last moment.
RecordingMetrics = Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Claim:
    """The right to measure a point. `start_time` is in Unix milliseconds; `repeats`: whatever the store holds.

    `files` is the address of its files and `tags` are those that it bears, as far as they are known.
    """

    run_id: str
    identity: Identity
    start_time: int
    repeats: bool = False
    files: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Finished:
    """The store holds an outcome of the point; `tags` are those that `RunIndex` reads."""

    run_id: str
    tags: Mapping[str, str]


@dataclass(frozen=True)
class ClaimedElsewhere:
    """Another driver is measuring the point."""

    run_id: str


@dataclass(frozen=True)
class Record:
    """Everything one run holds; times are in ms.

    `artifacts` maps a file name to text, to a JSON-able value, or to {"base64": ...}: see `paradnn.store.files`.
    `history` are metrics that have a value for each epoch.
    """

    name: str
    outcome: str
    reason: str | None
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    artifacts: Mapping[str, Any]
    start_time: int
    end_time: int
    description: str = ""
    history: Sequence[Moment] = ()
