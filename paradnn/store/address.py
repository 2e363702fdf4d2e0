"""Where the tracking store is: its address, whether it can be used, and its address without secrets.

The default is `sqlite:///mlruns/mlflow.db` in this checkout with artifacts beside it, since MLflow's plain-file store
is gone. `MLFLOW_TRACKING_URI` is honoured, `tracking.uri` comes before it. Driver and analysis open the same stores, so
both read addresses here; nothing but the standard library is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paradnn.config.paths import HOME
from paradnn.errors import StoreError

__all__ = [
    "StoreAddress",
    "address_of",
    "locate",
    "locked",
    "use_write_ahead_log",
    "without_credentials",
    "without_secrets",
]

_SQLITE = "sqlite:///"
#: Any number, as long as it is the same for every driver.
_LOCK_KEY = 7_275_672
_SQL = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True)
class StoreAddress:
    """A tracking URI; `database` is the file of a SQLite store, else None."""

    uri: str
    database: Path | None

    @property
    def folder(self) -> Path | None:
        """Where a SQLite store has its database and its artifacts, else None."""
        return self.database.parent if self.database else None

    @property
    def is_sql(self) -> bool:
        """Whether the tables can be read directly."""
        return self.uri.startswith(_SQL)

    @property
    def artifact_location(self) -> str | None:
        """Where a new experiment keeps artifacts; None leaves it to the server."""
        return (self.folder / "artifacts").as_uri() if self.folder else None

    @property
    def public(self) -> str:
        """The address as it may be shown and stored."""
        return without_secrets(self.uri)


def address_of(uri: str | None = None) -> StoreAddress:
    """The store of `uri`, of MLFLOW_TRACKING_URI, or the default, whether it is there or not.

    The path of a SQLite store is made absolute and without `~`.
    """
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{HOME / 'mlruns' / 'mlflow.db'}"
    if not uri.startswith(_SQLITE) or "?" in uri:
        return StoreAddress(uri, None)
    path = Path(uri.removeprefix(_SQLITE)).expanduser().absolute()
    return StoreAddress(f"{_SQLITE}{path}", path)


def locate(uri: str | None) -> StoreAddress:
    """The store as `address_of` finds it, its folder made; raises StoreError where it cannot be."""
    address = address_of(uri)
    if address.database:
        _prepare_folder(address.database, uri or address.uri)
    elif not address.uri.startswith((*_SQL, "http://", "https://", "databricks")):
        raise StoreError(
            f"tracking.uri={address.public}: no tracking store; give sqlite:///path/of/mlflow.db, "
            "a database or the http address of an mlflow server"
        )
    return address


def _prepare_folder(path: Path, uri: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"tracking.uri={uri}: {path.parent} cannot be made ({error.strerror}); give a writable path"
        ) from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise StoreError(f"tracking.uri={uri}: {path} cannot be written; give a writable path")


def without_secrets(uri: str) -> str:
    """The address with user, password and query cut out, since they may be credentials."""
    uri = re.sub(r"(?<=://)[^/@\s]*@", "***@", uri)
    return re.sub(r"\?[^\s]*", "?***", uri)


def without_credentials(uri: str) -> str:
    """The address without user and password: usable where they come from the environment."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", uri)


@contextlib.contextmanager
def locked(address: StoreAddress) -> Iterator[None]:
    """Hold the store's lock: two processes that first open a database at once would both make its tables."""
    if address.folder is None:
        with _locked_database(address):
            yield
        return
    import fcntl

    with (address.folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _locked_database(address: StoreAddress) -> Iterator[None]:
    """Hold an advisory lock of a PostgreSQL database; other databases, and servers, see to themselves."""
    if not address.uri.startswith("postgresql"):
        yield
        return
    import sqlalchemy as sa

    engine = sa.create_engine(address.uri, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:  # the lock ends with the connection
        connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
        yield


def use_write_ahead_log(address: StoreAddress) -> None:
    """Let readers and several writers work on a SQLite store at once; left as it is where the disk cannot."""
    if address.database is None:
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address.database)) as database:
        database.execute("PRAGMA journal_mode=WAL")
