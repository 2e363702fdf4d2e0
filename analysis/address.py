"""Where the tracking store is, and its address as it may be shown."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["default_uri", "public", "resolve", "sqlite_path"]


def default_uri() -> str:
    """MLFLOW_TRACKING_URI, else the store embedded in this checkout."""
    root = Path(__file__).resolve().parents[1]
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlruns' / 'mlflow.db'}"


def resolve(uri: str | None) -> str:
    """The address given, or the default; the path of a SQLite store absolute and without `~`."""
    uri = uri or default_uri()
    path = sqlite_path(uri)
    return f"sqlite:///{path}" if path else uri


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store named by path alone; None for every other address."""
    if not uri.startswith("sqlite:///") or "?" in uri:
        return None
    return Path(uri.removeprefix("sqlite:///")).expanduser().absolute()


def public(uri: str) -> str:
    """The address without user, password and query, since they may be credentials."""
    return re.sub(r"\?\S*", "?***", re.sub(r"(?<=://)[^/@\s]*@", "***@", uri))
