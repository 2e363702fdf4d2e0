"""The scenarios of inference, typed: who asks for it, and how. Definitions and defaults are MLPerf Inference's.

Sources: mlperf.conf and test_settings.h of LoadGen 6.0. What has no default there is chosen here: the policy of the
server, and the search of the highest rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from paradnn.core.schema import option, read
from paradnn.errors import ConfigError
from paradnn.worker.serving.schedule import LOADGEN_SEED

__all__ = ["CLOSED", "SCENARIOS", "Load", "Server", "as_scenario", "read_load"]

CLOSED = "closed"
_PERCENTILE = "percentile of the latency that the scenario is about"
_SECONDS = "ask for at least so many seconds"
_QUERIES = "and for at least so many queries"


@dataclass(frozen=True)
class SingleStream:
    """A query of batch_size examples as soon as the one before it is answered."""

    percentile: float = option(90.0, _PERCENTILE, low=1.0, high=99.999)
    min_seconds: float = option(600.0, _SECONDS, low=0.0, high=86_400.0)
    min_queries: int = option(100, _QUERIES, low=1, high=10_000_000)


@dataclass(frozen=True)
class MultiStream(SingleStream):
    """The same of eight examples, for the 99th percentile."""

    percentile: float = option(99.0, _PERCENTILE, low=1.0, high=99.999)
    min_queries: int = option(662, _QUERIES, low=1, high=10_000_000)


@dataclass(frozen=True)
class Offline:
    """All examples at once, served in batches of batch_size."""

    min_seconds: float = option(600.0, "as many examples as are to take so many seconds", low=0.0, high=86_400.0)
    min_queries: int = option(24_576, "and at least so many examples", low=1, high=10_000_000)


@dataclass(frozen=True)
class Server:
    """Queries of one example that come at random, whether or not the ones before them are answered."""

    rate: float | str = option(
        "peak",
        "queries a second, in the mean; peak: the highest rate that holds the limit",
        low=1e-3,
        high=1e6,
        choices=("peak",),
        shown=("peak", "a number"),
    )
    latency_ms: float = option(10.0, "the limit: no query is to take longer than so many ms", low=1e-3, high=3.6e6)
    percentile: float = option(
        99.0, "share of the queries, in percent, that are to hold the limit", low=1.0, high=99.999
    )
    confidence: float = option(0.99, "with which a run is to hold it", low=0.5, high=0.9999)
    min_seconds: float = option(600.0, _SECONDS, low=0.0, high=86_400.0)
    min_queries: int = option(100, _QUERIES, low=1, high=10_000_000)
    batch: int | None = option(None, "queries that are served at once, at most; null: batch_size", low=1, high=2**20)
    delay_ms: float = option(0.0, "wait so long for more queries, once one has come, at most", low=0.0, high=3.6e6)
    instances: int = option(1, "threads that each serve a batch at a time, with one model", low=1, high=1024)
    precision: float = option(
        0.05, "rate=peak: how near, as a share, a rate that failed must be to the one that held", low=1e-3, high=1.0
    )
    seed: int = option(
        LOADGEN_SEED,
        "of the arrivals of the first process; the default is LoadGen's, others' follow from it",
        low=0,
        high=2**32 - 1,
    )

    def of_process(self, replicate: int, process: int) -> Server:
        """With the arrivals of a process, from 0, of a replicate: processes that served the same ones would agree in
        what is their luck. The steps are odd and far apart, so that neighbouring seeds of an axis share no arrivals."""
        return replace(self, seed=(self.seed + replicate * _REPLICATE_STEP + process * _PROCESS_STEP) % 2**32)


Load = SingleStream | MultiStream | Offline | Server
SCENARIOS: Mapping[str, type[Load]] = {
    "single_stream": SingleStream,
    "multi_stream": MultiStream,
    "offline": Offline,
    "server": Server,
}

PointT = TypeVar("PointT")
_PROCESS_STEP, _REPLICATE_STEP = 0x9E3779B1, 0x85EBCA77


def read_load(config: Mapping[str, Any]) -> Load | None:
    """The keys of the scenario that a composed configuration names; None for one that has none."""
    name = config.get("scenario", CLOSED)
    return read(SCENARIOS[name], config.get(name, {}), name) if isinstance(name, str) and name in SCENARIOS else None


def as_scenario(point: PointT) -> PointT:
    """A `Point` whose timed step has the scenario's largest batch; raises ConfigError for what no scenario can be."""
    given: Any = point
    load, name = given.load, given.scenario
    if load is None:
        return point
    name_of_model = given.model.name
    if given.model.is_kernel:
        reason = f"model={name_of_model} is one operation, which is not queried"
        raise ConfigError("scenario", name, reason, "choose another model")
    for key, value, usual, why in (
        ("mode", given.mode, "inference", "is for inference"),
        ("devices", given.devices, 1, "is for one device"),
        ("data", given.data.name, "synthetic", "takes queries whose input is on the device"),
        ("measure.cold_caches", given.measure.cold_caches, False, "measures latencies of its own"),
    ):
        if value != usual:
            raise ConfigError(key, value, f"scenario={name} {why}", f"set {key}={str(usual).lower()}")
    _check_time(name, load, given.measure.timeout)
    if isinstance(load, Server):
        batch = load.batch or given.batch_size
        given = replace(given, batch_size=batch, load=replace(load, batch=batch))
    same: PointT = given
    return same


def _check_time(name: str, load: Load, timeout: float) -> None:
    """No scenario asks for longer than its point may take."""
    if load.min_seconds >= timeout:
        reason = f"is not less than measure.timeout={timeout:g}"
        raise ConfigError(f"{name}.min_seconds", load.min_seconds, reason, "ask for less, or raise measure.timeout")
    if isinstance(load, Server) and not isinstance(load.rate, str) and load.min_queries / load.rate >= timeout:
        reason = f"makes {name}.min_queries={load.min_queries} take {load.min_queries / load.rate:,.0f} s"
        remedy = f"ask for more, or raise measure.timeout={timeout:g}"
        raise ConfigError(f"{name}.rate", load.rate, reason, remedy)
