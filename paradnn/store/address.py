"""Addresses of the tracking store and of its artifacts.

`tracking.uri` has precedence over MLFLOW_TRACKING_URI, which has precedence over the default
`sqlite:///mlruns/mlflow.db` in this checkout.

MLflow stores absolute addresses of artifacts. If a store was moved or copied, readers look for
artifacts next to its database, and writers first correct the addresses in the tables.
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
BUNDLE = "bundle"  # scheme of the address of a file of results
PARQUET = "parquet"  # scheme of the address of a Parquet store
MARKER = "_paradnn.json"  # file in the folder of a Parquet store
_FOLDER = "artifacts"
#: Environment variable with trusted artifact folders outside the store, in the syntax of PATH.
_TRUSTED = "PARADNN_ARTIFACTS"
#: Selects the newest runs whose artifact address has a given prefix.
_SELECT_BY_PREFIX = """
    SELECT run_uuid FROM runs WHERE substr(artifact_uri, 1, ?) = ?
    ORDER BY start_time DESC LIMIT 100
"""
#: Replaces the prefix of the artifact addresses of runs.
_REPLACE_PREFIX = """
    UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?)
    WHERE substr(artifact_uri, 1, ?) = ?
"""


@dataclass(frozen=True)
class StoreAddress:
    """Address of a store of runs: a database, an MLflow server, a bundle or a Parquet store.

    Attributes:
        uri: The tracking URI, which may contain credentials.
        database: The file of a SQLite store; None for other stores.
    """

    uri: str
    database: Path | None

    @property
    def folder(self) -> Path | None:
        """Folder with the database and the artifacts of a SQLite store; None for other stores."""
        if self.database is None:
            return None
        return self.database.parent

    @property
    def scheme(self) -> str:
        """Kind of store, such as "sqlite", "https", "bundle" or "parquet"."""
        return self.uri.partition(":")[0].partition("+")[0]

    @property
    def is_sql(self) -> bool:
        """Whether the store is an SQL database, whose tables can be read directly."""
        return self.scheme in _SQL

    @property
    def is_bundle(self) -> bool:
        """Whether the store is a bundle: a read-only .zip of results (`paradnn.store.bundle`)."""
        return self.scheme == BUNDLE

    @property
    def is_parquet(self) -> bool:
        """Whether the store is a folder of Parquet files (`paradnn.store.parquet`)."""
        return self.scheme == PARQUET

    @property
    def is_read_only(self) -> bool:
        """Whether the store is a bundle or a Parquet store, in which drivers cannot record runs."""
        return self.is_bundle or self.is_parquet

    @property
    def is_server(self) -> bool:
        """Whether the store is accessed through an MLflow server."""
        return self.uri.startswith(_HTTP)

    @property
    def artifact_location(self) -> str | None:
        """URI of the folder for artifacts of new experiments; None if MLflow chooses it."""
        if self.folder is None:
            return None
        return (self.folder / _FOLDER).as_uri()

    @property
    def public(self) -> str:
        """The URI without credentials, for display and storage."""
        return without_secrets(self.uri)


def address_of(uri: str | None = None) -> StoreAddress:
    """Parse the address of a store, which need not exist.

    Args:
        uri: A tracking URI, or a path: a database, a folder that contains mlflow.db, a Parquet
            store, or a .zip of results. Paths become absolute, with `~` expanded. If it is None or
            empty, MLFLOW_TRACKING_URI or the default applies.

    Raises:
        StoreError: If the text is not a valid address.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI", "")
    if chosen.startswith(_SQLITE) and "MLFLOW_EXPERIMENT_ID" in os.environ:
        # `mlflow run` sets mlflow.db in the project folder by default. Ignore it, because the user
        # did not choose it.
        database = Path(unquote(chosen.removeprefix(_SQLITE)))
        if database.resolve() == (HOME / "mlflow.db").resolve():
            chosen = ""
    uri = uri or chosen or f"{_SQLITE}{HOME / 'mlruns' / 'mlflow.db'}"
    try:
        if ":" not in uri and uri != "databricks":
            path = Path(uri).expanduser().absolute()
            is_parquet = (path / MARKER).is_file()
            if path.is_dir() and not is_parquet:
                in_subfolder = path / "mlruns" / "mlflow.db"
                if in_subfolder.is_file():
                    path = in_subfolder
                else:
                    path = path / "mlflow.db"
            if is_parquet:
                uri = f"{PARQUET}:{path}"
            elif path.suffix == ".zip":
                uri = f"{BUNDLE}:{path}"
            elif path.suffix == ".db":
                uri = f"{_SQLITE}{path}"
        uri = re.sub(r"^postgres(?=[:+])", "postgresql", uri)
        if not uri.startswith(_SQLITE) or "?" in uri:
            urlsplit(uri).port  # noqa: B018  ValueError if the port is not a number
            return StoreAddress(uri, None)
        path = Path(uri.removeprefix(_SQLITE)).expanduser().absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.stat()
        return StoreAddress(f"{_SQLITE}{path}", path)
    except (OSError, RuntimeError, ValueError) as error:  # too long, unknown ~user, invalid port
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise StoreError(
            f"{without_secrets(uri)[:200]} cannot be a tracking store: {reason[:200]}"
        ) from None


def migration_remedy(address: StoreAddress) -> str:
    """Return advice on converting MLflow's file store (runs as files) to a database.

    Args:
        address: An address at which no database exists.

    Returns:
        A sentence with the command; empty if the address does not point to such a folder.
    """
    if address.database is not None:
        folder: Path | None = address.database.parent
    else:
        folder = local_folder(address.uri)
    try:
        is_file_store = folder is not None and any(folder.glob("*/meta.yaml"))
    except OSError:
        return ""
    if not is_file_store or folder is None:
        return ""
    source = folder.absolute()
    # MLflow looks for the store in a folder "mlruns" of the source, or in the source itself.
    command = f"mlflow migrate-filestore --source {source} --target sqlite:///{source}/mlflow.db"
    return f"the folder is a file store of MLflow; {command} converts it to a database"


def locate(uri: str | None, *, write: bool = True) -> StoreAddress:
    """Parse the address of a store, and check that runs can be recorded in it.

    Args:
        uri: As in `address_of`.
        write: Whether to create the folder of a SQLite store and check that it is writable.

    Raises:
        StoreError: If the address is neither a database nor an MLflow server, or if `write` is set
            and the database cannot be written.
    """
    address = address_of(uri)
    if not address.is_sql and not address.is_server:
        remedy = migration_remedy(address) or (
            "give a database, such as sqlite:///path/of/mlflow.db, or the http address of an "
            "mlflow server"
        )
        raise StoreError(f"tracking.uri={address.public}: is not a tracking store; {remedy}")
    if write and address.database:
        problem = _make_writable(address.database)
        if problem:
            raise StoreError(f"tracking.uri={uri or address.uri}: {problem}; give a writable path")
    return address


def _make_writable(path: Path) -> str:
    """Create the folder of a database file, and check that the file can be written.

    Returns:
        Why the file cannot be written; empty if it can be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        existing = path
        if not path.exists():
            existing = path.parent
        is_writable = not path.is_dir() and os.access(existing, os.W_OK)
    except OSError as error:
        return f"{path.parent} cannot be created ({error.strerror})"
    if not is_writable:
        return f"{path} cannot be written"
    return ""


def local_folder(address: str | None) -> Path | None:
    """Return the folder to which an artifact address points; None if it is not a local path.

    Args:
        address: A path, or a URI such as "file:///path"; None means no address.
    """
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
    if not path or "\0" in path:
        return None
    return Path(path)


def artifact_folder(
    address: str | None, run_id: str, stores: Iterable[StoreAddress]
) -> Path | None:
    """Return the local folder of a run's artifacts, if it is trusted.

    A folder is trusted if it is inside the folder of its store or inside a folder in
    PARADNN_ARTIFACTS. If the store has no folder, an artifact folder with MLflow's usual layout
    LOCATION/RUN_ID/artifacts is trusted. If a store was moved, its artifacts are looked up next to
    its database.

    Args:
        address: Address of the run's artifacts as stored; None if the run has none.
        run_id: Id of the run.
        stores: Addresses of the stores that hold the run; at least one.

    Returns:
        The folder; None if the address is not local.

    Raises:
        StoreError: If the folder is not trusted.
    """
    folder = local_folder(address)
    store_folders = [store.folder for store in stores]
    if folder is None:
        return None
    trusted = [
        Path(trusted_folder).expanduser()
        for trusted_folder in os.environ.get(_TRUSTED, "").split(os.pathsep)
        if trusted_folder
    ]
    trusted += [store_folder for store_folder in store_folders if store_folder]
    real = Path(os.path.realpath(folder))
    has_usual_layout = real.parts[-2:] == (run_id, _FOLDER)
    if has_usual_layout and None in store_folders:
        return real
    if any(real.is_relative_to(os.path.realpath(trusted_folder)) for trusted_folder in trusted):
        return real
    to_trust = real
    if has_usual_layout:
        to_trust = real.parents[1]
        for store_folder in filter(None, store_folders):
            with contextlib.suppress(DataError):
                moved = inside(store_folder, f"{_FOLDER}/{run_id}/{_FOLDER}")
                if moved.is_dir():
                    return moved
    raise StoreError(
        f"run {run_id}: its recorded artifact folder {folder} is outside {store_folders[0]}, "
        f"the folder of its store; if you trust this store, set {_TRUSTED}={to_trust}"
    )


def relocate_artifacts(address: StoreAddress) -> None:
    """Correct the artifact addresses in the tables of a SQLite store that was moved.

    The new address of an experiment's artifacts is the folder next to the database. It replaces the
    old address in two cases:

    - The new folder has the artifacts of the experiment's runs.
    - The old folder is next to a database of the same name.

    Errors are ignored, since a store may be read-only.

    Args:
        address: Address of the store. Stores other than SQLite are left unchanged.
    """
    database = address.database
    new_location = address.artifact_location
    if database is None or new_location is None or not database.is_file():
        return
    new_folder = database.parent / _FOLDER
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(database, timeout=60)) as tables,
        tables,
    ):
        for (location,) in tables.execute(
            "SELECT DISTINCT artifact_location FROM experiments"
        ).fetchall():
            old_folder = local_folder(location)
            old_prefix = (location or "").rstrip("/")
            if old_folder is None or old_folder.name != _FOLDER or old_prefix == new_location:
                continue
            if old_folder.exists() and new_folder.exists() and old_folder.samefile(new_folder):
                continue
            prefix = (len(old_prefix) + 1, f"{old_prefix}/")
            run_ids = tables.execute(_SELECT_BY_PREFIX, prefix)
            has_moved_artifacts = any((new_folder / run_id).is_dir() for (run_id,) in run_ids)
            if has_moved_artifacts or (old_folder.parent / database.name).is_file():
                change = "UPDATE experiments SET artifact_location = ? WHERE artifact_location = ?"
                tables.execute(change, (new_location, location))
            if has_moved_artifacts:
                tables.execute(_REPLACE_PREFIX, (new_location, len(old_prefix) + 1, *prefix))
