"""A private PostgreSQL and a real `mlflow server` on loopback, which tests start and stop.

Debian's package installs the binaries outside of the path. PostgreSQL does not run as root, so
tests that run as root start it as the package's user. The password of the database is passed in
the environment, because `ps` shows arguments.
"""

import contextlib
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.conftest import ROOT, environment
from tests.processes import wait_for

#: Time limit of a start in seconds. A start takes 16 to 60 s on two busy cores.
START_SECONDS = 180.0


def free_port() -> int:
    """Return a free port below the ephemeral range, which outgoing connections do not use."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def is_well(uri: str) -> bool:
    """Return whether the MLflow server at an address reports that it is healthy."""
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def binary(name: str) -> str:
    """Return the path of a program of the newest installed PostgreSQL."""
    found = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3])
    )
    path = str(found[-1]) if found else shutil.which(name)
    assert path, f"{name} is missing: apt-get install postgresql"
    return path


@dataclass
class Postgres:
    """A PostgreSQL cluster with its own data folder, socket and port."""

    folder: Path
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(12))
    process: subprocess.Popen[bytes] | None = None

    @property
    def user(self) -> dict[str, Any]:
        """Return arguments of `subprocess` that select the user; empty unless this user is root."""
        if os.geteuid() == 0:
            return {"user": "postgres", "group": "postgres", "extra_groups": []}
        return {}

    def uri(self, database: str) -> str:
        return f"postgresql+psycopg://paradnn:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        """Create the data folder; clients need the password, even over the socket."""
        password_file = self.folder / "password"
        password_file.write_text(self.password)
        if self.user:
            entry = pwd.getpwnam("postgres")
            os.chown(password_file, entry.pw_uid, entry.pw_gid)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        subprocess.run(
            [binary("initdb"), "-D", str(self.folder / "data"), "-U", "paradnn", "-A", "scram-sha-256", "-E", "UTF8",
             "--pwfile", str(password_file)],
            cwd=self.folder, check=True, capture_output=True, **self.user)  # fmt: skip
        password_file.unlink()

    def start(self) -> None:
        command = [binary("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder),
                   "-c", "listen_addresses=127.0.0.1"]  # fmt: skip
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self.user,
        )
        assert wait_for(self.answers, START_SECONDS), "PostgreSQL does not start"

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the cluster with SIGINT (orderly shutdown) or SIGQUIT (like a crash)."""
        if self.process:
            self.process.send_signal(number)
            self.process.wait(START_SECONDS)
            self.process = None

    def answers(self) -> bool:
        try:
            self.rows("postgres", "SELECT 1")
            return True
        except sa.exc.OperationalError:
            return False

    def rows(self, database: str, sql: str, **values: object) -> list[tuple]:
        """Return the rows of a plain SQL query, which shares no code with the package."""
        engine = sa.create_engine(self.uri(database), poolclass=sa.pool.NullPool)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            answer = connection.execute(sa.text(sql), values)
            return [tuple(row) for row in answer] if answer.returns_rows else []

    def new_database(self) -> str:
        name = f"db{secrets.token_hex(4)}"
        self.rows("postgres", f"CREATE DATABASE {name}")
        return name

    def runs(self, database: str, kind: str = "point") -> list[dict[str, str]]:
        """Return the active runs of a kind.

        Each run has its run_id, status, artifact address (`place`) and tags.
        """
        found: dict[str, dict[str, str]] = {}
        rows = self.rows(
            database,
            "SELECT r.run_uuid, r.status, r.artifact_uri, t.key, t.value FROM runs r JOIN tags t USING (run_uuid) "
            "WHERE r.lifecycle_stage = 'active'",
        )
        for run_id, status, place, key, value in rows:
            found.setdefault(run_id, {"run_id": run_id, "status": status, "place": place})[key] = (
                value
            )
        return [run for run in found.values() if run.get("kind") == kind]


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Yield a running PostgreSQL in a temporary folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        cluster = Postgres(Path(name))
        cluster.create()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop(signal.SIGQUIT)


@dataclass
class Server:
    """`mlflow server` with proxied artifacts."""

    backend: str
    files: Path
    log: Path
    options: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
                   "--workers", "2", "--serve-artifacts", "--artifacts-destination", str(self.files),
                   *self.options]  # fmt: skip
        variables = {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_BACKEND_STORE_URI": self.backend,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment() | variables | self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert wait_for(lambda: is_well(self.uri), START_SECONDS), self.log.read_text()[-3000:]

    def kill(self) -> None:
        """Kill the server and all its workers at once."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def server(backend: str, folder: Path, *options: str, **environ: str) -> Iterator[Server]:
    """Yield a running server with further options and environment variables."""
    running = Server(backend, folder / "files", folder / "server.log", options, environ)
    try:
        running.start()
        yield running
    finally:
        running.kill()
