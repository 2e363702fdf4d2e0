"""A SQLite store that was moved or copied, though its tables name the folder where its artifacts were before.

MLflow stores absolute addresses: a copied checkout would write its artifacts into the original. A store of this suite
has them in the folder `artifacts` beside the database, so one whose tables name such a folder elsewhere was moved.
Readers see the addresses as they should be; who writes sets them right in the tables first.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from paradnn.errors import StoreError
from paradnn.store.address import StoreAddress

__all__ = ["Move", "artifact_folder", "is_local", "local_folder", "moves_of", "settle"]

#: Folders, joined as those of PATH, whose artifacts are read though they are not below the store that names them.
_TRUSTED = "PARADNN_ARTIFACTS"

_FOLDER = "artifacts"
_PLACES = "UPDATE experiments SET artifact_location = ? WHERE rtrim(artifact_location, '/') = ?"
_RUNS = "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) WHERE artifact_uri LIKE ? ESCAPE '!'"


@dataclass(frozen=True)
class Move:
    """Addresses that begin with `old` are meant to begin with `new`; `runs`: those of recorded runs too."""

    old: str
    new: str
    runs: bool

    def applied(self, address: str | None) -> str | None:
        """The address of a run's artifacts as it should be."""
        if address is None or not self.runs or not (address == self.old or address.startswith(f"{self.old}/")):
            return address
        return self.new + address[len(self.old) :]


def local_folder(address: str | None) -> Path | None:
    """The folder of an artifact address; None where it is no local one."""
    if not address:
        return None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    path = unquote(parts.path) if parts.scheme == "file" else "" if parts.scheme else address
    return Path(path) if path and "\0" not in path else None


def is_local(address: str | None) -> bool:
    """Whether an artifact address is of files that this machine sees."""
    return local_folder(address) is not None


def artifact_folder(address: str | None, run_id: str, stores: Iterable[StoreAddress]) -> Path | None:
    """The folder of a run's artifacts, as one of these stores names it; None where it is no local one.

    What a store says is believed below its own folder, and below those that the user names in PARADNN_ARTIFACTS; of
    stores without a folder, where MLflow puts a run's files: LOCATION/RUN_ID/artifacts. StoreError elsewhere.
    """
    folder, homes = local_folder(address), [store.folder for store in stores]
    if folder is None:
        return None
    trusted = [Path(place).expanduser() for place in os.environ.get(_TRUSTED, "").split(os.pathsep) if place]
    trusted += [home for home in homes if home]
    real = Path(os.path.realpath(folder))
    usual = real.parts[-2:] == (run_id, _FOLDER)
    if (usual and None in homes) or any(real.is_relative_to(os.path.realpath(place)) for place in trusted):
        return real
    raise StoreError(
        f"run {run_id}: its files are said to be in {folder}, outside {homes[0]}, the folder of its store; "
        f"where you trust this store, set {_TRUSTED}={real.parents[1] if usual else real}"
    )


def moves_of(
    address: StoreAddress, locations: Iterable[str | None], sample: Callable[[], Sequence[str | None]]
) -> list[Move]:
    """What of a store's artifact locations is to be read otherwise; nothing for a store that is where it was.

    `sample` gives artifact addresses of some of its runs: where their folders are beside the database, they came along.
    It is asked only of a store that may have been moved.
    """
    new = address.artifact_location
    if address.database is None or new is None:
        return []
    here = address.database.parent / _FOLDER
    moves = []
    for location in dict.fromkeys(locations):
        old = local_folder(location)
        if location is None or old is None or old.name != _FOLDER or location.rstrip("/") == new:
            continue
        if old.exists() and here.exists() and old.samefile(here):
            continue  # two ways to one folder
        begin = location.rstrip("/") + "/"
        along = any((here / uri[len(begin) :]).is_dir() for uri in sample() if uri and uri.startswith(begin))
        # Artifacts in a place of one's own choice, or on a disk that is not there now, are left where they are.
        if along or (old.parent / address.database.name).is_file():
            moves.append(Move(location.rstrip("/"), new, runs=along))
    return moves


def settle(address: StoreAddress) -> None:
    """Set the artifact addresses of a store right that was moved; what cannot be read or written is left to MLflow."""
    if address.database is None or not address.database.is_file():
        return
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(address.database, timeout=60)) as tables,
    ):
        locations = [row[0] for row in tables.execute("SELECT artifact_location FROM experiments")]
        newest = "SELECT artifact_uri FROM runs ORDER BY start_time DESC LIMIT 100"
        moves = moves_of(address, locations, lambda: [row[0] for row in tables.execute(newest)])
        with tables if moves else contextlib.nullcontext():
            for move in moves:
                tables.execute(_PLACES, (move.new, move.old))
                if move.runs:
                    tables.execute(_RUNS, (move.new, len(move.old) + 1, f"{_escaped(move.old)}/%"))


def _escaped(text: str) -> str:
    """Text in which LIKE finds no sign of its own, with ! before what would be one."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
