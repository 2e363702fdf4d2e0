"""What a run was measured on, as its artifact environment.json says: processor, cores, memory, accelerators, system."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.store.load import local_folder
from paradnn.errors import StoreError
from paradnn.store.address import address_of
from paradnn.store.errors import store_errors

__all__ = ["read_environment"]

_FILE = "environment.json"


def read_environment(run_id: str, artifact_uri: object, tracking_uri: str | None = None) -> Mapping[str, Any]:
    """The environment that a run recorded; empty where it has none, as imported runs, or where it cannot be read."""
    folder = local_folder(artifact_uri)
    if not artifact_uri:
        return {}
    try:
        path = folder / _FILE if folder is not None else _download(run_id, tracking_uri)
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, StoreError):
        return {}
    return found if isinstance(found, dict) else {}


def _download(run_id: str, tracking_uri: str | None) -> Path:
    from mlflow.artifacts import download_artifacts

    with store_errors(f"run {run_id} has no {_FILE}"):
        uri = address_of(tracking_uri).uri
        return Path(download_artifacts(run_id=run_id, artifact_path=_FILE, tracking_uri=uri))
