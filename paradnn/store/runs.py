"""Model of a stored run, shared by the driver and the analysis.

A run is one MLflow run, in most cases of one point: a configuration that was measured. The module
defines the schema version, the outcome tags, claims (reservations of points) and the rules by which
stored runs replace measurements. It also defines the query and row types of every store reader, and
the defaults of params added by later versions.
"""

import json
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

#: Version of the contents of a run.
#:   1  first version.
SCHEMA_VERSION = "1"

#: Tags of a claim: its owner and its expiry. The UI hides tags that begin with "mlflow.". Runs
#: recorded by earlier versions have both tags without that prefix.
OWNER = "mlflow.paradnn.owner"
EXPIRES = "mlflow.paradnn.claim_expires"
#: Tag of a claim: the lease of its driver, as the id of the sweep's run and the driver, separated
#: by a space.
LEASE = "mlflow.paradnn.lease"
#: Prefix of the tags of a sweep's run that hold the leases of its drivers.
DRIVER_LEASE = "mlflow.paradnn.driver."

#: Params added by later versions, with the value that applies to every earlier run, formatted as
#: in the store.
ADDED_PARAMS: Mapping[str, str] = as_params(added_defaults())

#: Artifact of a sweep's run: table of the runs of earlier sweeps that replaced measurements.
EARLIER_POINTS = "earlier_points.json"
#: Tag that names the tables among a run's artifacts, for MLflow.
LOGGED_TABLES = "mlflow.loggedArtifacts"


def tables_tag(names: Iterable[str]) -> str:
    """Return the value of the tag `LOGGED_TABLES`, which names a run's tables for MLflow.

    Args:
        names: File names of the tables among the run's artifacts.
    """
    return json.dumps([{"path": name, "type": "table"} for name in names])


#: Outcome tags of runs that are not points. Their names differ from `outcome`, so that a query for
#: `outcome` finds only points.
CEILINGS_OUTCOME = "ceilings_outcome"
ANALYSIS_OUTCOME = "analysis_outcome"
#: Outcome tags; a finished run has one of them. Runs recorded by earlier versions use `outcome`
#: for every kind of run.
OUTCOME_TAGS = ("outcome", CEILINGS_OUTCOME, ANALYSIS_OUTCOME)


def outcome_of(tags: Mapping[str, str]) -> str | None:
    """Return the outcome of a run of any kind, such as "ok" or "timeout".

    Args:
        tags: Tags of the run.

    Returns:
        The outcome; None while the run is unfinished.
    """
    return next((tags[name] for name in OUTCOME_TAGS if name in tags), None)


#: Returns whether a stored run with the given tags replaces the measurement of a point.
AcceptsRun = Callable[[Mapping[str, str]], bool]
#: Returns the metrics of the recording itself; called as late as possible.
RecordingMetrics = Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Claim:
    """Reservation of a point (configuration), so that no other process measures it.

    Attributes:
        run_id: Id of the run that was created for the measurement.
        identity: The measurement: point, environment and number of the repetition.
        start_time: Start of the run in Unix milliseconds.
        repeats: Whether the point is recorded even if the store already holds a result of it.
        files: Address of the run's artifacts; None if unknown.
        tags: Tags that the run is known to have.
    """

    run_id: str
    identity: Identity
    start_time: int
    repeats: bool = False
    files: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Finished:
    """A run whose outcome is in the store.

    Attributes:
        run_id: Id of the run.
        tags: Tags of the run. Runs from a `RunIndex` have only the tags that the index reads.
    """

    run_id: str
    tags: Mapping[str, str]


#: Result of an attempt to claim a point; None if another driver is measuring it.
Claimed = Claim | Finished | None


@dataclass(frozen=True)
class SweepRun:
    """The parent run of a sweep, below which the runs of the sweep's points are stored.

    Attributes:
        status: MLflow status of the run: "RUNNING", "FINISHED", "FAILED" or "KILLED".
        description: Text that MLflow's UI shows.
        metrics: Metrics of the sweep.
        artifacts: File name -> content, as in `Record`.
        tags: Tags of the run; when a sweep is closed, the tags to add.
        name: Name of the run; may be empty when a sweep is closed.
    """

    status: str
    description: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Record:
    """The complete content of one run.

    Attributes:
        name: Name of the run.
        outcome: Outcome of the measurement, such as "ok" or "timeout".
        reason: Why the run ended with this outcome; None if the outcome needs no reason.
        params: Param name -> text.
        metrics: Metric name -> final value.
        tags: Tag name -> text.
        artifacts: File name -> content, as in `paradnn.store.files.file_content`.
        start_time: Start in Unix milliseconds.
        end_time: End in Unix milliseconds.
        description: Text that MLflow's UI shows.
        history: Metrics with several values: one per block of steps, time window, epoch or sample.
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

    def is_redundant_with(self, known: Mapping[str, str]) -> bool:
        """Return whether a stored run makes this record of the same point redundant.

        A stored run does not replace the record if one of these is true:

        - it has no outcome;
        - it failed, and the record is a success;
        - a limit ended it, and the limits of the record differ;
        - it lacks the record's profile or trace.

        Args:
            known: Tags of the stored run, which has the same point, environment and replicate.
        """
        outcome = outcome_of(known)
        if outcome is None or (outcome != "ok" and outcome_of(self.tags) == "ok"):
            return False
        if outcome in LIMIT_OUTCOMES and known.get("limits_id") != self.tags.get("limits_id"):
            return False
        return set(self.tags.get("extras", "").split()) <= set(known.get("extras", "").split())


def wanted_extras(point: Point) -> set[str]:
    """Return which of "profile" and "keep_trace" a point requests in addition to its timing.

    A kept trace implies a profile.
    """
    wanted = {key for key in EXTRA_KEYS if getattr(point.measure, key)}
    return wanted and wanted | {"profile"}


@dataclass(frozen=True)
class ResumePolicy:
    """Rules for accepting stored runs instead of measuring a point again.

    Attributes:
        resume: True accepts stored outcomes, False accepts none. "retry" accepts all except those
            in `retry`.
        retry: Outcomes that resume="retry" does not accept, such as "timeout".
        sweep_id: Id of a sweep that several drivers share. Finished runs of this sweep are always
            accepted. None if the sweep is not shared.
    """

    resume: bool | str
    retry: Collection[str]
    sweep_id: str | None = None

    @property
    def queries_store(self) -> bool:
        """Whether stored runs can be accepted, so that the store must be queried."""
        return self.resume is not False or self.sweep_id is not None

    def is_of_sweep(self, tags: Mapping[str, str]) -> bool:
        """Return whether a driver of the shared sweep measured a run with these tags."""
        return self.sweep_id is not None and tags.get("sweep_id") == self.sweep_id

    def accepts(self, point: Point, tags: Mapping[str, str]) -> bool:
        """Return whether a stored run is accepted as the measurement of a point.

        A time or memory limit may have caused the outcome or the absence of a requested profile.
        Such a run is accepted only if the point has the same limits. If a profile or its trace is
        requested, a successful run without it is rejected.

        Args:
            point: The requested configuration.
            tags: Tags of a run with the same point, environment and replicate.
        """
        outcome = tags.get("outcome")
        if outcome is not None and self.is_of_sweep(tags):
            return True
        if self.resume is False:
            return False
        extras = tags.get("extras", "").split()
        wanted = wanted_extras(point)
        if outcome is None or (self.resume == "retry" and outcome in self.retry):
            return False
        limited = outcome in LIMIT_OUTCOMES or (wanted and "limited" in extras)
        if limited and tags.get("limits_id") != limits_id(point.measure):
            return False
        return outcome != "ok" or wanted <= set(extras)

    def first(self, point: Point, runs: Iterable[Finished]) -> Finished | None:
        """Return the first run that `accepts` accepts; None if it accepts no run.

        Args:
            point: The requested configuration.
            runs: Runs with the same point, environment and replicate.
        """
        return next((run for run in runs if self.accepts(point, run.tags)), None)


#: `protocol_id` of published measurements, a hash of the description of their protocol. The paper
#: reports the "best logged rate". DeepBench reports the "mean of many calls after one". Vidur
#: reports the "median of the kernels of three repetitions".
PUBLISHED = "b5307f819546707b"
DEEPBENCH = "6a1314096f27918a"
VIDUR = "ee900f105392ae85"


@cache
def protocol_names() -> Mapping[str, str]:
    """Return the names of timing protocols by `protocol_id`, the hash of their settings.

    The mapping contains every protocol in `conf/measure`, such as quick and standard, and the
    protocols of published runs.
    """
    import yaml

    named = {PUBLISHED: "published", DEEPBENCH: "deepbench", VIDUR: "vidur"}
    for path in sorted((CONFIG / "measure").glob("*.yaml")):
        measure = read(Measure, yaml.safe_load(path.read_text(encoding="utf-8")), "measure")
        named.setdefault(protocol_id(measure), path.stem)
    return {**named, protocol_id(replace(Measure(), **FORMER_STANDARD)): "standard-1s"}


def protocol_name(identity: str) -> str:
    """Return the name of a timing protocol, such as "standard".

    Args:
        identity: The `protocol_id`: a hash of the protocol's settings.

    Returns:
        The name; for an unknown `protocol_id`, its first eight characters.
    """
    return protocol_names().get(identity, identity[:8])


#: The largest float, which MLflow's SQL stores write for infinity.
LARGEST = 1.7976931348623157e308
#: Kinds of values of a run: "params" and "tags" are text, "metrics" are numbers.
Values = Literal["params", "tags", "metrics"]


def number(value: float) -> float:
    """Return a stored metric value, with the largest float converted back to infinity."""
    if abs(value) >= LARGEST:
        return math.copysign(math.inf, value)
    return value


class Run(NamedTuple):
    """Fields of a stored run other than params, metrics and tags.

    Attributes:
        run_id: Id of the run.
        run_name: Name of the run; None if it has no name.
        experiment: Name of the run's experiment.
        status: MLflow status of the run, such as "FINISHED"; None if it has none.
        start_ms: Start in Unix milliseconds; None if unknown.
        end_ms: End in Unix milliseconds; None if the run has not ended.
        artifact_uri: Address of the run's artifacts; None if unknown.
    """

    run_id: str
    run_name: str | None
    experiment: str
    status: str | None
    start_ms: int | None
    end_ms: int | None
    artifact_uri: str | None


class Row(NamedTuple):
    """A run with those of its params, tags and metrics that a query requested.

    Attributes:
        run: Fields of the run.
        params: Param name -> text.
        tags: Tag name -> text.
        metrics: Metric name -> value. NaN is omitted.
    """

    run: Run
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Query:
    """Conditions that select runs of a store, and the values to read of each run.

    A run must satisfy every given condition. A field that is None sets no condition. Deleted runs
    are never selected.

    Attributes:
        experiments: Names of the experiments of the runs.
        params: Param name -> allowed values.
        tags: Tag name -> allowed values.
        run_id: Id of a single run.
        status: An MLflow run status, such as "RUNNING".
        since_ms: Earliest start, inclusive, in Unix milliseconds.
        until_ms: Upper bound of the start, exclusive, in Unix milliseconds.
        unfinished: Whether to include runs without a recorded outcome.
        newest: Maximum number of runs; those that started last are selected. None means no limit.
        columns: Kind of values ("params", "tags" or "metrics") -> keys to read. All keys of a kind
            that is not listed are read.
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
        """Whether runs without an outcome must be excluded, beyond the filters in `tags`."""
        return not self.unfinished and "outcome" not in self.tags

    def accepts(self, run: Run, params: Mapping[str, str], tags: Mapping[str, str]) -> bool:
        """Return whether a run satisfies the query, apart from `experiments` and `newest`.

        Args:
            run: Fields of the run.
            params: Params of the run.
            tags: Tags of the run.
        """
        if self.needs_outcome and not any(name in tags for name in OUTCOME_TAGS):
            return False
        is_bounded = self.since_ms is not None or self.until_ms is not None
        earliest = self.since_ms or 0
        end = math.inf if self.until_ms is None else self.until_ms
        filters = ((params, self.params), (tags, self.tags))
        return (
            (self.run_id in (None, run.run_id) and self.status in (None, run.status))
            and (not is_bounded or (run.start_ms is not None and earliest <= run.start_ms < end))
            and all(
                values.get(key) in allowed
                for values, keys in filters
                for key, allowed in keys.items()
            )
        )

    def narrowed(self, row: Row) -> Row:
        """Return a row with only the params, tags and metrics that `columns` requests."""

        def requested(kind: Values, values: dict[str, Any]) -> dict[str, Any]:
            keys = self.columns.get(kind)
            return {
                sys.intern(key): value
                for key, value in values.items()
                if keys is None or key in keys
            }

        return Row(
            row.run,
            requested("params", row.params),
            requested("tags", row.tags),
            requested("metrics", row.metrics),
        )
