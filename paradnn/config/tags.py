"""Tags of the user, `tracking.tags.NAME=VALUE`, and the names that are reserved for ParaDnn."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paradnn.core.errors import ConfigError

#: The key of the user's tags in the configuration.
KEY = "tracking.tags"
#: Tags that ParaDnn writes, and columns that an analysis has for every run.
RESERVED = frozenset(
    {
        "analysis",
        "analysis_outcome",
        "answer_lengths",
        "artifact_uri",
        "best",
        "candidate",
        "ceilings_contended",
        "ceilings_note",
        "ceilings_outcome",
        "ceilings_remedy",
        "ceilings_run",
        "checks",
        "claim_expires",
        "command",
        "comparison",
        "compile_note",
        "contended",
        "contended_reason",
        "data_digest",
        "design",
        "design_end",
        "device",
        "driver",
        "emulation_note",
        "end_time",
        "energy_source",
        "environment_id",
        "epochs",
        "experiment",
        "extras",
        "family",
        "git_commit",
        "host",
        "idle_power_note",
        "idle_power_source",
        "interval_reason",
        "job_id",
        "kind",
        "launched_task",
        "launcher",
        "limit",
        "limit_reason",
        "limits_id",
        "matmul_types",
        "node",
        "offline_id",
        "outcome",
        "owner",
        "parent_run_id",
        "planned_points",
        "point_id",
        "precision_note",
        "prefill_steady",
        "prefill_steady_reason",
        "price_currency",
        "price_source",
        "profile",
        "profile_note",
        "protocol",
        "protocol_id",
        "race",
        "reason",
        "reference_kernel",
        "replicate",
        "request_problem",
        "token_counts",
        "tokens_at_once",
        "run_id",
        "run_name",
        "schema_version",
        "session_id",
        "side",
        "source",
        "source_sweeps",
        "sources",
        "start_time",
        "status",
        "steady",
        "steady_reason",
        "store",
        "sweep_id",
        "sweep_order",
    }
)
_PREFIXES = ("mlflow.", "version.")
_NAME = re.compile(r"[\w./ -]{1,250}")  # names that MLflow accepts on every platform
_MAX_VALUE_CHARS = 5000  # an MLflow server rejects longer values


def read_tags(tags: Any, parameters: tuple[str, ...]) -> dict[str, str]:
    """Return the user's tags with values as text, after checking names and values.

    Args:
        tags: Content of `tracking.tags` in the configuration; null values are dropped.
        parameters: First components of the dotted keys that a run records as params, such as
            "model". A tag's name must not begin with such a component.

    Raises:
        ConfigError: If `tags` is not a mapping, a name is invalid or reserved for ParaDnn, or a
            value is a list or too long.
    """
    if not isinstance(tags, Mapping):
        raise ConfigError(KEY, tags, "expects names with values", f"write {KEY}.team=vision")
    return dict(_checked_tag(name, value, parameters) for name, value in _flatten(tags))


def _flatten(tags: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each tag; null values are skipped.

    Hydra reads `tracking.tags.a.b=1` as nested mappings.

    Args:
        tags: Name -> value or mapping.
        prefix: Prefix of the names, with a dot at the end; empty at the top level.
    """
    for key, value in tags.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.")
        elif value is not None:
            yield name, value


def _checked_tag(name: str, value: Any, parameters: tuple[str, ...]) -> tuple[str, str]:
    key = f"{KEY}.{name}"
    if isinstance(value, list):
        raise ConfigError(key, value, "expects one value", f"write {key}=text")
    if not _NAME.fullmatch(name):
        remedy = "use letters, digits, and . _ - / or spaces"
        raise ConfigError(key, value, "is not a valid name of a tag", remedy)
    is_reserved = name in RESERVED or name.startswith(_PREFIXES)
    if is_reserved or name.split(".")[0] in parameters:
        remedy = f"choose another name, such as {KEY}.my_{name}"
        raise ConfigError(key, value, "is a name that is reserved for ParaDnn", remedy)
    text = str(value)
    if isinstance(value, bool):
        text = text.lower()
    if len(text) > _MAX_VALUE_CHARS:
        remedy = f"give at most {_MAX_VALUE_CHARS:,} characters"
        raise ConfigError(key, f"{text[:40]}...", "is too long", remedy)
    return name, text
