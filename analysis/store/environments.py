"""What a run was measured on, as its artifact environment.json says: processor, cores, memory, accelerators, system."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from analysis.store.load import read_artifact
from paradnn.errors import StoreError

__all__ = ["read_environment"]


def read_environment(run: Mapping[Any, Any], store: str | None) -> Mapping[str, Any]:
    """The environment that a run (a row of the frame) of a store recorded; empty where it has none that can be read."""
    if not run["artifact_uri"]:
        return {}
    try:
        content = read_artifact(str(run["artifact_uri"]), str(run["run_id"]), "environment.json", store)
        found = json.loads(content or b"{}")
    except (OSError, ValueError, StoreError):
        return {}
    return found if isinstance(found, dict) else {}
