"""Where the tracking store is, and where its artifacts are. `tracking.uri` comes before
MLFLOW_TRACKING_URI, and that before `sqlite:///mlruns/mlflow.db` in this checkout. MLflow stores
absolute addresses of artifacts: of a store that was moved or copied readers look beside it, and who
writes sets them right in the tables first.
"""

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from paradnn.config.paths import HOME
from paradnn.core.errors import DataError, StoreError
from paradnn.core.words import without_secrets
from paradnn.store.files import inside

_SQLITE = "sqlite:///"
_SQL = ("sqlite", "postgresql", "mysql", "mssql")
_HTTP = ("http://", "https://", "databricks")
BUNDLE = "bundle"  # how the address of a file of results begins


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
    def scheme(self) -> str:
        """What kind of store it is, without the database's driver: `BUNDLE` for a file of results."""
        return self.uri.partition(":")[0].partition("+")[0]

    @property
    def is_sql(self) -> bool:
        """Whether the tables can be read directly."""
        return self.scheme in _SQL

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
    """The store of `uri`, of MLFLOW_TRACKING_URI, or the default, whether it is there or not. A
    plain path is that of a database, of a folder that holds mlflow.db, or of a .zip of results.
    Paths are made absolute and without `~`. StoreError for what can be no address.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI", "")
    if chosen.startswith(_SQLITE) and "MLFLOW_EXPERIMENT_ID" in os.environ:
        # What `mlflow run` sets by itself, mlflow.db in the project's folder, is no choice.
        own = (
            Path(unquote(chosen.removeprefix(_SQLITE))).resolve() == (HOME / "mlflow.db").resolve()
        )
        chosen = "" if own else chosen
    uri = uri or chosen or f"{_SQLITE}{HOME / 'mlruns' / 'mlflow.db'}"
    try:
        if ":" not in uri and uri != "databricks":
            path = Path(uri).expanduser().absolute()
            if path.is_dir():
                within = path / "mlruns" / "mlflow.db"
                path = within if within.is_file() else path / "mlflow.db"
            if path.suffix == ".zip":
                uri = f"{BUNDLE}:{path}"
            elif path.suffix == ".db":
                uri = f"{_SQLITE}{path}"
            else:
                uri = uri
        uri = re.sub(r"^postgres(?=[:+])", "postgresql", uri)
        if not uri.startswith(_SQLITE) or "?" in uri:
            urlsplit(uri).port  # noqa: B018  ValueError where there is no number
            return StoreAddress(uri, None)
        path = Path(uri.removeprefix(_SQLITE)).expanduser().absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.stat()
        return StoreAddress(f"{_SQLITE}{path}", path)
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~ of no user, no port
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise StoreError(
            f"no tracking store can be at {without_secrets(uri)[:200]}: {reason[:200]}"
        ) from None


def locate(uri: str | None, *, write: bool = True) -> StoreAddress:
    """The store as `address_of` finds it, to `write` with its folder made; raises StoreError where
    it cannot be.
    """
    address = address_of(uri)
    if not address.is_sql and not address.is_server:
        remedy = (
            "give sqlite:///path/of/mlflow.db, a database or the http address of an mlflow server"
        )
        raise StoreError(f"tracking.uri={address.public}: no tracking store; {remedy}")
    if write and (path := address.database):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            writable = not path.is_dir() and os.access(
                path if path.exists() else path.parent, os.W_OK
            )
            problem = "" if writable else f"{path} cannot be written"
        except OSError as error:
            problem = f"{path.parent} cannot be made ({error.strerror})"
        if problem:
            raise StoreError(f"tracking.uri={uri or address.uri}: {problem}; give a writable path")
    return address


#: Folders, joined as those of PATH, whose artifacts are read though they are not below the store
#: that names them.
_TRUSTED = "PARADNN_ARTIFACTS"

_FOLDER = "artifacts"
#: Of runs whose artifacts are said to be below some place: the newest of them; and that they are
#: below another.
_HELD = "SELECT run_uuid FROM runs WHERE substr(artifact_uri, 1, ?) = ? ORDER BY start_time DESC LIMIT 100"
_MOVE = "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) WHERE substr(artifact_uri, 1, ?) = ?"


def local_folder(address: str | None) -> Path | None:
    """The folder of an artifact address; None where it is no local one."""
    if not address:
        return None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    if parts.scheme == "file":
        path = unquote(parts.path)
    elif parts.scheme:
        path = ""
    else:
        path = address
    return Path(path) if path and "\0" not in path else None


def artifact_folder(
    address: str | None, run_id: str, stores: Iterable[StoreAddress]
) -> Path | None:
    """The folder of a run's artifacts, as one of these stores names it; None where it is no local
    one. A moved store has them beside it. It is believed below its own folder and below those that
    the user names in PARADNN_ARTIFACTS; of stores without a folder, where MLflow puts a run's
    files: LOCATION/RUN_ID/artifacts. StoreError elsewhere.
    """
    folder = local_folder(address)
    homes = [store.folder for store in stores]
    if folder is None:
        return None
    trusted = [
        Path(place).expanduser()
        for place in os.environ.get(_TRUSTED, "").split(os.pathsep)
        if place
    ]
    trusted += [home for home in homes if home]
    real = Path(os.path.realpath(folder))
    usual = real.parts[-2:] == (run_id, _FOLDER)
    if (usual and None in homes) or any(
        real.is_relative_to(os.path.realpath(place)) for place in trusted
    ):
        return real
    for home in filter(None, homes if usual else ()):
        with contextlib.suppress(DataError):
            if (beside := inside(home, f"{_FOLDER}/{run_id}/{_FOLDER}")).is_dir():
                return beside
    raise StoreError(
        f"run {run_id}: its files are said to be in {folder}, outside {homes[0]}, the folder of its store; "
        f"where you trust this store, set {_TRUSTED}={real.parents[1] if usual else real}"
    )


def settle(address: StoreAddress) -> None:
    """Set artifact addresses right of a SQLite store that was moved, as far as it can be written;
    others stay.
    """
    database = address.database
    new = address.artifact_location
    if database is None or new is None or not database.is_file():
        return
    here = database.parent / _FOLDER
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(database, timeout=60)) as tables,
        tables,
    ):
        for (location,) in tables.execute(
            "SELECT DISTINCT artifact_location FROM experiments"
        ).fetchall():
            old = local_folder(location)
            begin = (location or "").rstrip("/")
            if old is None or old.name != _FOLDER or begin == new:
                continue
            if old.exists() and here.exists() and old.samefile(here):
                continue  # two ways to one folder
            below = (len(begin) + 1, f"{begin}/")
            along = any((here / run_id).is_dir() for (run_id,) in tables.execute(_HELD, below))
            if along or (old.parent / database.name).is_file():
                change = "UPDATE experiments SET artifact_location = ? WHERE artifact_location = ?"
                tables.execute(change, (new, location))
            if along:
                tables.execute(_MOVE, (new, len(begin) + 1, *below))
