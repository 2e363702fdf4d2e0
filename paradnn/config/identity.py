"""What makes two runs the same measurement: hashes of the point, of its protocol and of its limits."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from paradnn.config.point import Measure, Point
from paradnn.core.workload import WORKLOADS

#: Keys of `measure` that bound a point without changing what is measured.
LIMIT_KEYS = ("timeout", "memory_limit", "predict_oom")
#: Keys of `measure` that ask for more than the timing, and leave that as it is.
EXTRA_KEYS = ("profile", "keep_trace")
#: All that leave the times of the blocks as they are, and so are no part of a protocol: reference
#: kernels run between the blocks and bias no step (docs/explanation/method.md), so that runs from before they
#: did are runs of the same protocol.
UNTIMED_KEYS = (*LIMIT_KEYS, *EXTRA_KEYS, "reference")
#: What `measure=standard` said before it took half of the time.
FORMER_STANDARD: Mapping[str, Any] = {"min_seconds": 1.0, "block_seconds": 0.1}
#: Keys of a point that came later, dotted, with the value that says what was always meant: a point
#: that was stored before them is still the same, and its run is read as if it held them
#: (`paradnn.store.runs`). The transport was local while there was another: devices of processes
#: that met over grpc.
_LATER_KEYS: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("later_keys.json").read_text(encoding="utf-8")
)
#: What `_written` wrote, by the key and the object's id.
_seen: dict[tuple[str, int], tuple[str, Any]] = {}
_MOST_SEEN = 2**14


@dataclass(frozen=True, slots=True)  # a plan has a million
class Identity:
    """A measurement as resume knows it: what and how, on what, which repetition."""

    point_id: str
    environment_id: str
    replicate: int


def digest(value: Any, length: int = 16) -> str:
    """A short hash of a JSON-able value, the same for equal values whatever the order of their
    keys.
    """
    return _hash(_json(value), length)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _hash(text: str, length: int = 16) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def point_id(point: Point) -> str:
    """Hash of what is measured and how; software and hardware are the environment's, limits and
    prices no part.
    """
    parts = vars(point) | point.workload.stored_keys()
    names = sorted(parts.keys() - {"replicate", "software", "measure", "workload"})
    texts = ",".join(text for name in names if (text := _written(name, parts[name])))
    return _hash(f"[{{{texts}}},{_protocol(point.measure)}]")


def _written(name: str, part: Any) -> str:
    """A part of a point as JSON, of an object that was seen before as it was: points of a sweep
    share their parts.
    """
    known = _seen.get((name, id(part)))
    if known is None:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        values = {name: dict(vars(part)) if is_dataclass(part) else part}
        if name == "platform":
            values[name]["price_per_hour"] = None
        known = _seen[name, id(part)] = (
            _json(told(values))[1:-1],
            part,
        )  # kept, so that no other gets its id
    return known[0]


def unpriced(point: Point) -> Point:
    """The point without its price, which changes nothing that is measured."""
    return replace(point, platform=replace(point.platform, price_per_hour=None))


def protocol_id(measure: Measure) -> str:
    """Hash of how a point is measured."""
    return _hash(_protocol(measure))


def limits_id(measure: Measure) -> str:
    """Hash of what bounds a point: under other limits a timeout or an out of memory may end
    otherwise.
    """
    return digest([getattr(measure, key) for key in LIMIT_KEYS])


def request_of(point: Point) -> dict[str, Any]:
    """The point as the worker receives it: plain nested mappings and lists."""
    parts = vars(point) | point.workload.stored_keys()
    del parts["workload"]
    request: dict[str, Any] = {
        key: dict(vars(part)) if is_dataclass(part) else part for key, part in parts.items()
    }
    model = request["model"] or {}
    request["model"] = {
        key: list(value) if isinstance(value, tuple) else value for key, value in model.items()
    }
    request["software"]["requirements"] = list(request["software"]["requirements"])
    return request


@cache
def later_keys() -> Mapping[str, Any]:
    """Keys of a point that came later, dotted, with what was always meant."""
    return {
        **_LATER_KEYS,
        **{key: value for work in WORKLOADS.values() for key, value in work.added_defaults.items()},
    }


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
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


@lru_cache
def _protocol(measure: Measure) -> str:
    values = {key: value for key, value in vars(measure).items() if key not in UNTIMED_KEYS}
    return _json(told(values, "measure."))


def told(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings without the keys that came later and say what was always meant; these stand
    below `prefix`.
    """
    later = later_keys()
    found = {}
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        if dotted not in later or value != later[dotted]:
            found[key] = told(value, f"{dotted}.") if isinstance(value, dict) else value
    return found
