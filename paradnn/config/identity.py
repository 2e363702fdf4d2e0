"""Identity of a measurement: hashes of the point, its protocol and its limits."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, lru_cache
from typing import Any

from paradnn.config.point import Measure, Point
from paradnn.core.workload import WORKLOADS

#: Keys of `measure` that limit a point without changing the measurement.
LIMIT_KEYS = ("timeout", "memory_limit", "predict_oom")
#: Keys of `measure` that add work after the timing without changing the timing.
EXTRA_KEYS = ("profile", "keep_trace")
#: Keys of `measure` that do not affect the times of the blocks, and are therefore not part of a
#: protocol. Reference kernels run between the blocks and do not bias step times
#: (docs/explanation/method.md), so runs with and without them have the same protocol.
UNTIMED_KEYS = (*LIMIT_KEYS, *EXTRA_KEYS, "reference")
#: Values of `measure=standard` in earlier versions, in which it lasted twice as long.
FORMER_STANDARD: Mapping[str, Any] = {"min_seconds": 1.0, "block_seconds": 0.1}
#: Dotted keys of a point that later versions added, with the value that earlier versions implied. A
#: point that was stored without these keys keeps its identity, and its run is read as if it had the
#: keys (`paradnn.store.runs`). The key `transport` no longer exists. Its value was "local", unless
#: the devices belonged to several processes that communicated over gRPC.
_ADDED_DEFAULTS: Mapping[str, Any] = {
    "devices": 1,
    "parallel": "data",
    "transport": "local",
    "hosts": 1,
    "framework.compile": "default",
    "model.experts": 1,
    "model.active_experts": 2,
    "model.capacity": 1.25,
    "model.head_width": None,
    "model.query_key_norm": False,
    "model.tied": False,
    "model.storage": "sparse",
    "measure.relative_interval": None,
    "measure.reference": False,
    "measure.cache": "warm",
    "measure.processes": 1,
    "measure.max_processes": 30,
    "platform.cores": None,
    "platform.price_per_hour": None,
    "scenario": "closed",
    "task": "step",
}
#: (key, id of the object) of a part of a point -> JSON of the part, and the object.
_json_by_object: dict[tuple[str, int], tuple[str, Any]] = {}
_MAX_CACHED_PARTS = 2**14


@dataclass(frozen=True, slots=True)  # slots: a plan has up to a million identities
class Identity:
    """Key by which a resumed sweep recognizes points (configurations) that are already measured.

    Attributes:
        point_id: Hash of the point and its timing protocol.
        environment_id: Hash of hardware and software.
        replicate: Number of the repetition, from 0.
    """

    point_id: str
    environment_id: str
    replicate: int


def digest(value: Any, length: int = 16) -> str:
    """Return a short hash of a JSON value, independent of the order of keys in mappings.

    Args:
        value: The value: nested mappings and lists of scalars.
        length: Number of hexadecimal digits of the hash.
    """
    return _hash(_as_json(value), length)


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _hash(text: str, length: int = 16) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def point_id(point: Point) -> str:
    """Return the hash of a point (one configuration to measure) and its timing protocol.

    The hash excludes software and hardware, which belong to the environment. It also excludes the
    replicate, prices, and the keys of `measure` that do not affect the timing (limits and extras).

    Args:
        point: The point in canonical form.
    """
    parts = vars(point) | point.workload.stored_keys()
    names = sorted(parts.keys() - {"replicate", "software", "measure", "workload"})
    texts = [_part_as_json(name, parts[name]) for name in names]
    present = ",".join(text for text in texts if text)
    return _hash(f"[{{{present}}},{_protocol_as_json(point.measure)}]")


def _part_as_json(name: str, part: Any) -> str:
    """Return a field of a point (configuration) as JSON without the outer braces.

    Keys whose value equals their default in `added_defaults` are omitted. Without any keys, the
    result is empty. The points of a sweep share their parts, so the JSON of an object is cached.

    Args:
        name: Name of the field, such as "model".
        part: Value of the field.
    """
    known = _json_by_object.get((name, id(part)))
    if known is not None:
        return known[0]
    if len(_json_by_object) >= _MAX_CACHED_PARTS:
        _json_by_object.clear()
    if is_dataclass(part):
        part = dict(vars(part))
    values = {name: part}
    if name == "platform":
        values[name]["price_per_hour"] = None
    text = _as_json(without_added_defaults(values))[1:-1]
    # Keep a reference to the object, so that Python cannot reuse its id for another object.
    _json_by_object[name, id(part)] = (text, part)
    return text


def without_price(point: Point) -> Point:
    """Return a copy of the point without the price of its device.

    The price does not affect the measurement.

    Args:
        point: A configuration to measure.
    """
    return replace(point, platform=replace(point.platform, price_per_hour=None))


def protocol_id(measure: Measure) -> str:
    """Return the hash of the timing protocol: the settings that affect how steps are timed.

    Args:
        measure: Settings of the measurement, including limits and extras, which the hash excludes.
    """
    return _hash(_protocol_as_json(measure))


def limits_id(measure: Measure) -> str:
    """Return the hash of the limits of time and memory.

    With other limits, a measurement that ended with a timeout or out of memory may have a different
    outcome.

    Args:
        measure: Settings of the measurement, which include the limits.
    """
    return digest([getattr(measure, key) for key in LIMIT_KEYS])


def point_request(point: Point) -> dict[str, Any]:
    """Return a point (one configuration to measure) as the worker receives it.

    Args:
        point: The point.

    Returns:
        Nested mappings and lists of plain values.
    """
    parts = vars(point) | point.workload.stored_keys()
    del parts["workload"]
    request: dict[str, Any] = {}
    for key, part in parts.items():
        request[key] = dict(vars(part)) if is_dataclass(part) else part
    model = request["model"] or {}
    request["model"] = {
        key: list(value) if isinstance(value, tuple) else value for key, value in model.items()
    }
    request["software"]["requirements"] = list(request["software"]["requirements"])
    return request


@cache
def added_defaults() -> Mapping[str, Any]:
    """Return the keys that later versions of ParaDnn added, with the values of earlier versions.

    A run that was recorded without such a key is read as if it had this value.

    Returns:
        Dotted key -> value that earlier versions implied.
    """
    defaults = dict(_ADDED_DEFAULTS)
    for work in WORKLOADS.values():
        defaults.update(work.added_defaults)
    return defaults


def without_added_defaults(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings without the keys whose value equals that of `added_defaults`.

    Args:
        values: Key -> value or mapping, as in a recorded configuration.
        prefix: Prefix of the keys of `values` in `added_defaults`, such as "measure.".
    """
    defaults = added_defaults()
    kept: dict[str, Any] = {}
    for key, value in values.items():
        dotted_key = f"{prefix}{key}"
        if dotted_key in defaults and value == defaults[dotted_key]:
            continue
        if isinstance(value, dict):
            kept[key] = without_added_defaults(value, f"{dotted_key}.")
        else:
            kept[key] = value
    return kept


def as_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Return nested mappings as the params of an MLflow run.

    Args:
        values: Key -> value or mapping.

    Returns:
        Dotted key -> value in Hydra's notation, such as "null" for None.
    """
    return {key: _as_param(value) for key, value in _flatten(values).items()}


def _as_param(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one flat mapping with dotted keys; lists are not flattened.

    Args:
        values: The mappings, or a single value.
        prefix: Dotted key of `values`; empty at the top level.
    """
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        dotted_key = f"{prefix}.{key}" if prefix else str(key)
        flat.update(_flatten(value, dotted_key))
    return flat


@lru_cache
def _protocol_as_json(measure: Measure) -> str:
    values = {key: value for key, value in vars(measure).items() if key not in UNTIMED_KEYS}
    return _as_json(without_added_defaults(values, "measure."))
