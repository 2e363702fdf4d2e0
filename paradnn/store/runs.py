"""What driver and analysis agree on about a stored run: its version, keys that came later, how it
says its end, and what readers of every kind of store are asked for and give.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple

from paradnn.config.identity import (
    EXTRA_KEYS,
    FORMER_STANDARD,
    Identity,
    added_defaults,
    as_params,
    limits_id,
    protocol_id,
)
from paradnn.config.outcome import LIMIT_OUTCOMES
from paradnn.config.paths import CONFIG
from paradnn.config.point import Measure, Point
from paradnn.core.metric import MetricSnapshot
from paradnn.core.schema import read

#: Version of what a run holds.
#:   1  the first.
SCHEMA_VERSION = "1"

#: Tags of a claim: who holds it, and until when it is believed. The UI hides what begins with
#: "mlflow."; runs recorded by earlier versions have both without that beginning.
OWNER = "mlflow.paradnn.owner"
EXPIRES = "mlflow.paradnn.claim_expires"

#: Params that came later, with the value that every run measured before them had, written as the
#: store writes it.
ADDED_PARAMS: Mapping[str, str] = as_params(added_defaults())

#: How runs that are no points say their end: under names of their own, so that who counts outcomes
#: counts points.
CEILINGS_OUTCOME = "ceilings_outcome"
ANALYSIS_OUTCOME = "analysis_outcome"
#: Tags of which a finished run has one. Those recorded by earlier versions say `outcome`, whatever
#: they are.
OUTCOME_TAGS = ("outcome", CEILINGS_OUTCOME, ANALYSIS_OUTCOME)


def outcome_of(tags: Mapping[str, str]) -> str | None:
    """How the run with these tags ended, whatever its kind; None while it has not."""
    return next((tags[name] for name in OUTCOME_TAGS if name in tags), None)


#: Whether a stored run, given its tags, is accepted as the measurement of the point that is to be
#: claimed.
AcceptsRun = Callable[[Mapping[str, str]], bool]
RecordingMetrics = Callable[
    [], Mapping[str, float]
]  # metrics of the recording itself, asked for at the last moment


@dataclass(frozen=True)
class Claim:
    """The right to measure a point. `start_time` is in Unix milliseconds; `repeats`: whatever the
    store holds. `files`, the address of its files, and `tags` that it bears are those that are
    known.
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


Claimed = (
    Claim | Finished | None
)  # what becomes of a point that is to be claimed; None: another driver is measuring it


@dataclass(frozen=True)
class SweepRun:
    """The parent of points, and how it ended: `status` is an MLflow run status, `artifacts` are as
    those of a `Record`. Of one that ends `name` need not be said, and `tags` are those that it gets
    besides.
    """

    status: str
    description: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Record:
    """Everything one run holds; times are in ms. `artifacts` maps a file name to text, to a
    JSON-able value, or to {"base64": ...}: see `paradnn.store.files`. `history` are metrics that
    have a value for each epoch.
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
    history: Sequence[MetricSnapshot] = ()

    def is_held_by(self, known: Mapping[str, str]) -> bool:
        """Whether a stored run with these tags holds all that this one holds, which is of the same
        identity and was made without a claim. A measurement adds something to a failure, so do
        other limits, and a profile.
        """
        outcome = outcome_of(known)
        if outcome is None or (outcome != "ok" and outcome_of(self.tags) == "ok"):
            return False
        if outcome in LIMIT_OUTCOMES and known.get("limits_id") != self.tags.get("limits_id"):
            return False
        return set(self.tags.get("extras", "").split()) <= set(known.get("extras", "").split())


def wanted_extras(point: Point) -> set[str]:
    """What `point` asks for beside its timing: names of settings; a kept trace brings its profile
    along.
    """
    wanted = {key for key in EXTRA_KEYS if getattr(point.measure, key)}
    return wanted and wanted | {"profile"}


@dataclass(frozen=True)
class ResumePolicy:
    """`resume` is True, False or "retry"; `retry` names the outcomes that "retry" measures again."""

    resume: bool | str
    retry: Collection[str]

    @property
    def looks(self) -> bool:
        """Whether the store is asked at all."""
        return self.resume is not False

    def accepts(self, point: Point, tags: Mapping[str, str]) -> bool:
        """Whether a run with these tags is accepted as the measurement of `point`, whose identity
        it shares. An outcome, or the lack of a profile, that a limit caused is accepted under the
        same limits alone; where a profile or its trace is asked for, no measured run without it is.
        """
        outcome = tags.get("outcome")
        extras = tags.get("extras", "").split()
        wanted = wanted_extras(point)
        if outcome is None or (self.resume == "retry" and outcome in self.retry):
            return False
        limited = outcome in LIMIT_OUTCOMES or (wanted and "limited" in extras)
        if limited and tags.get("limits_id") != limits_id(point.measure):
            return False
        return outcome != "ok" or wanted <= set(extras)

    def first(self, point: Point, runs: Iterable[Finished]) -> Finished | None:
        """The first accepted one of runs with the point's identity."""
        return next((run for run in runs if self.accepts(point, run.tags)), None)


#: `protocol_id` of published measurements, a hash of what is known of it: the paper's ("best logged
#: rate"), DeepBench's ("mean of many calls after one"), Vidur's ("median of the kernels of three
#: repetitions").
PUBLISHED = "b5307f819546707b"
DEEPBENCH = "6a1314096f27918a"
VIDUR = "ee900f105392ae85"


@cache
def protocol_names() -> Mapping[str, str]:
    """`protocol_id` -> name: quick, standard and whatever else `conf/measure` holds, and those of
    published runs.
    """
    import yaml

    named = {PUBLISHED: "published", DEEPBENCH: "deepbench", VIDUR: "vidur"}
    for path in sorted((CONFIG / "measure").glob("*.yaml")):
        measure = read(Measure, yaml.safe_load(path.read_text(encoding="utf-8")), "measure")
        named.setdefault(protocol_id(measure), path.stem)
    return {**named, protocol_id(replace(Measure(), **FORMER_STANDARD)): "standard-1s"}


def protocol_name(identity: str) -> str:
    """What a protocol is called, given its `protocol_id`."""
    return protocol_names().get(identity, identity[:8])


LARGEST = 1.7976931348623157e308  # how MLflow's SQL stores write infinity
Values = Literal[
    "params", "tags", "metrics"
]  # what a run holds: "params" and "tags" are text, "metrics" numbers


def number(value: float) -> float:
    """A metric with the infinities that MLflow's SQL stores write as the largest float."""
    if abs(value) >= LARGEST:
        return math.copysign(math.inf, value)
    return value


class Run(NamedTuple):
    """What a store says of a run beside its params, metrics and tags; times are Unix milliseconds."""

    run_id: str
    run_name: str | None
    experiment: str
    status: str | None
    start_ms: int | None
    end_ms: int | None
    artifact_uri: str | None


class Row(NamedTuple):
    """One run with the values that were read of it; metrics that are NaN are left out."""

    run: Run
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Query:
    """Runs of some experiments that are not deleted, narrowed by whatever else is given. `params`
    and `tags` map a key to the values allowed for it; a run must satisfy all of them. Times are
    Unix milliseconds, `since_ms` included, `until_ms` not. Runs that never said how they ended are
    left out unless `unfinished`. `newest` keeps so many of the runs that started last. `columns`:
    keys to read of the kinds it names, of others all.
    """

    experiments: tuple[str, ...]
    params: Mapping[str, Collection[str]] = field(default_factory=dict)
    tags: Mapping[str, Collection[str]] = field(default_factory=dict)
    run_id: str | None = None
    status: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    unfinished: bool = False
    newest: int | None = None
    columns: Mapping[Values, Collection[str]] = field(default_factory=dict)

    @property
    def needs_outcome(self) -> bool:
        """Whether runs without an outcome must be left out, beyond what `tags` asks."""
        return not self.unfinished and "outcome" not in self.tags

    def accepts(self, run: Run, params: Mapping[str, str], tags: Mapping[str, str]) -> bool:
        """Whether a run of these experiments with these values is asked for, but for `newest`."""
        if self.needs_outcome and not any(name in tags for name in OUTCOME_TAGS):
            return False
        bounded = self.since_ms is not None or self.until_ms is not None
        least = self.since_ms or 0
        most = math.inf if self.until_ms is None else self.until_ms
        asked = ((params, self.params), (tags, self.tags))
        return (
            (self.run_id in (None, run.run_id) and self.status in (None, run.status))
            and (not bounded or (run.start_ms is not None and least <= run.start_ms < most))
            and all(
                values.get(key) in allowed
                for values, keys in asked
                for key, allowed in keys.items()
            )
        )

    def narrowed(self, row: Row) -> Row:
        """A run with those of its values that are to be read."""

        def wanted(kind: Values, values: dict[str, Any]) -> dict[str, Any]:
            keys = self.columns.get(kind)
            return {
                sys.intern(key): value
                for key, value in values.items()
                if keys is None or key in keys
            }

        return Row(
            row.run,
            wanted("params", row.params),
            wanted("tags", row.tags),
            wanted("metrics", row.metrics),
        )
