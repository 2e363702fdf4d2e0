"""Where the tracking store is: its address, whether it can be used, and its address without secrets.

The default is `sqlite:///mlruns/mlflow.db` in this checkout with artifacts beside it, since MLflow's plain-file store
is gone. `MLFLOW_TRACKING_URI` is honoured, `tracking.uri` comes before it. Driver and analysis open the same stores, so
both read addresses here; nothing but the standard library is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from paradnn.config.paths import HOME
from paradnn.errors import StoreError

__all__ = ["BUNDLE", "StoreAddress", "address_of", "locate", "without_credentials", "without_secrets"]

_SQLITE = "sqlite:///"
_SQL = ("sqlite", "postgresql", "mysql", "mssql")
_SHOWN = 200
_HTTP = ("http://", "https://", "databricks")
#: How the address of a file of results begins.
BUNDLE = "bundle"


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
        return self.scheme in _SQL

    @property
    def scheme(self) -> str:
        """What kind of store it is, without the database's driver."""
        return self.uri.partition(":")[0].partition("+")[0]

    @property
    def is_bundle(self) -> bool:
        """Whether it is a file of results (`paradnn.store.bundle`), which can only be read."""
        return self.scheme == BUNDLE

    @property
    def is_server(self) -> bool:
        """Whether MLflow is asked over the network."""
        return self.uri.startswith(_HTTP)

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

    A plain path is that of a database, of a folder that holds mlflow.db, or of a .zip of results. Paths are made
    absolute and without `~`. StoreError for what can be no address.
    """
    uri = uri or _from_environment() or f"{_SQLITE}{HOME / 'mlruns' / 'mlflow.db'}"
    try:
        return _address_of(uri)
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~ of no user, no port
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise StoreError(f"no tracking store can be at {without_secrets(uri)[:_SHOWN]}: {reason[:_SHOWN]}") from None


def _address_of(uri: str) -> StoreAddress:
    if ":" not in uri and uri != "databricks":
        uri = _of_path(Path(uri).expanduser().absolute()) or uri
    uri = re.sub(r"^postgres(?=[:+])", "postgresql", uri)
    if not uri.startswith(_SQLITE) or "?" in uri:
        urlsplit(uri).port  # noqa: B018  ValueError where there is no number
        return StoreAddress(uri, None)
    path = Path(uri.removeprefix(_SQLITE)).expanduser().absolute()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        path.stat()
    return StoreAddress(f"{_SQLITE}{path}", path)


def _of_path(path: Path) -> str | None:
    """The address of the store that a path names; None where it names none."""
    if path.suffix == ".zip":
        return f"{BUNDLE}:{path}"
    if path.is_dir():
        within = path / "mlruns" / "mlflow.db"
        return f"{_SQLITE}{within if within.is_file() else path / 'mlflow.db'}"
    return f"{_SQLITE}{path}" if path.suffix == ".db" else None


def _from_environment() -> str | None:
    """MLFLOW_TRACKING_URI; None where it is mlflow.db in the project's folder, which `mlflow run` sets by itself."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri and "MLFLOW_EXPERIMENT_ID" in os.environ and uri.startswith(_SQLITE):
        path = Path(unquote(uri.removeprefix(_SQLITE)))
        if path.resolve() == (HOME / "mlflow.db").resolve():
            return None
    return uri


def locate(uri: str | None) -> StoreAddress:
    """The store as `address_of` finds it, its folder made; raises StoreError where it cannot be."""
    address = address_of(uri)
    if address.database:
        _prepare_folder(address.database, uri or address.uri)
    elif not address.is_sql and not address.is_server:
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


#: User and password, as SQLAlchemy divides an address: a password may hold / and blanks, and no other address.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s]*@|[^:/@\s]*:(?:(?!\w+://)[^@\n])*@)")


def without_secrets(text: str) -> str:
    """An address, or a text with some, with user, password and query cut out, since they may be credentials."""
    return re.sub(r"\?[^\s]*", "?***", _LOGIN.sub("***@", text))


def without_credentials(uri: str) -> str:
    """The address without user and password: usable where they come from the environment."""
    return _LOGIN.sub("", uri)
