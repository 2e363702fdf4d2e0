"""What makes two runs the same measurement: hashes of the point, of its protocol and of its limits."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, lru_cache
from typing import Any

from paradnn.config.point import Measure, Point
from paradnn.core.workload import WORKLOADS

#: Keys of `measure` that bound a point without changing what is measured.
LIMIT_KEYS = ("timeout", "memory_limit", "predict_oom")
#: Keys of `measure` that ask for more than the timing, and leave that as it is.
EXTRA_KEYS = ("profile", "keep_trace")
#: Keys of a point that came later, dotted, with the value that says what was always meant: a point that was stored
#: before them is still the same, and its run is read as if it held them (`paradnn.store.runs`).
_LATER_KEYS: Mapping[str, Any] = {
    "devices": 1,
    "transport": "local",  # while there was another: devices of processes that met over grpc
    "hosts": 1,
    "measure.relative_interval": None,
    "measure.reference": False,
    "measure.processes": 1,
    "measure.max_processes": 30,
    "platform.cores": None,
    "platform.price_per_hour": None,
    "scenario": "closed",
    "task": "step",
}


@dataclass(frozen=True)
class Identity:
    """A measurement as resume knows it: what and how, on what, which repetition."""

    point_id: str
    environment_id: str
    replicate: int


def digest(value: Any, length: int = 16) -> str:
    """A short hash of a JSON-able value, the same for equal values whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def point_id(point: Point) -> str:
    """Hash of what is measured and how; software and hardware are the environment's, limits and prices no part."""
    values = _named(point, "replicate", "software", "measure")
    values["platform"]["price_per_hour"] = None
    return digest([told(values), _protocol(point.measure)])


def unpriced(point: Point) -> Point:
    """The point without its price, which changes nothing that is measured."""
    return replace(point, platform=replace(point.platform, price_per_hour=None))


def protocol_id(measure: Measure) -> str:
    """Hash of how a point is measured."""
    return digest(_protocol(measure))


def limits_id(measure: Measure) -> str:
    """Hash of what bounds a point: under other limits a timeout or an out of memory may end otherwise."""
    return digest([getattr(measure, key) for key in LIMIT_KEYS])


def request_of(point: Point) -> dict[str, Any]:
    """The point as the worker receives it: plain nested mappings and lists."""
    request = _named(point)
    model = request["model"] or {}
    request["model"] = {key: list(value) if isinstance(value, tuple) else value for key, value in model.items()}
    request["software"]["requirements"] = list(request["software"]["requirements"])
    return request


def _named(point: Point, *without: str) -> dict[str, Any]:
    """The point as plain values, its work as the keys that ask for it and those of its own."""
    parts = {entry.name: getattr(point, entry.name) for entry in fields(point) if entry.name not in without}
    keys: dict[str, Any] = parts.pop("workload").keys()
    return {key: dict(vars(part)) if is_dataclass(part) else part for key, part in parts.items()} | keys


@cache
def later_keys() -> Mapping[str, Any]:
    """Keys of a point that came later, dotted, with what was always meant."""
    return {**_LATER_KEYS, **{key: value for work in WORKLOADS.values() for key, value in work.later.items()}}


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys; lists stay values."""
    if not isinstance(values, dict):
        return {prefix: values}
    found: dict[str, Any] = {}
    for key, value in values.items():
        found.update(_flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return found


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested mappings as a run's params: dotted keys, and values as Hydra writes them."""
    return {key: _text(value) for key, value in _flatten(values).items()}


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache
def _protocol(measure: Measure) -> dict[str, Any]:
    values = {key: value for key, value in vars(measure).items() if key not in LIMIT_KEYS + EXTRA_KEYS}
    return told(values, "measure.")


def told(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings without the keys that came later and say what was always meant; these stand below `prefix`."""
    later, found = later_keys(), {}
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        if dotted not in later or value != later[dotted]:
            found[key] = told(value, f"{dotted}.") if isinstance(value, dict) else value
    return found
