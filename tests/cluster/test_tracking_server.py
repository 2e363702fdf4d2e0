"""Concurrent drivers on one `mlflow server` with PostgreSQL: races, crashes and credentials.

Tests read results with plain SQL from the database and over plain HTTP from the server.
"""

import base64
import json
import secrets
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from analysis.store.load import load, load_tables
from paradnn.core.errors import StoreError
from tests.cluster.postgres import Postgres, Server, postgres, server
from tests.conftest import ROOT, TINY, environment, process, run, succeeded
from tests.processes import PATIENCE, started, wait_for

AXES = [entry for entry in TINY if "nodes" not in entry]


def as_host(number: int) -> list[str]:
    """Return words that run a command with its own host name and process namespace.

    They are empty if this user cannot create namespaces.
    """
    command = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    script = f'hostname node{number} && exec "$@"'
    words = [*command, "sh", "-c", script, "sh"]
    trial = shutil.which("unshare") and subprocess.run(
        [*words, "true"], capture_output=True, check=False
    )
    return words if trial and trial.returncode == 0 else []


@contextmanager
def driver(number: int, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver as a separate host, and kill it with its children in the end."""
    command = [*as_host(number), sys.executable, "-m", "paradnn.train", *arguments]
    with (
        log.open("wb") as out,
        started(command, cwd=ROOT, env=environment(), stdout=out, stderr=out) as process,
    ):
        yield process


def run_recorders(commands: list[list[str]]) -> list[int]:
    """Start several recorders together, and return the number of points that each recorded."""
    options = {
        "cwd": ROOT,
        "env": environment(),
        "text": True,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
    }
    with ExitStack() as stack:
        recorders = [stack.enter_context(started(command, **options)) for command in commands]
        for recorder in recorders:
            assert recorder.stdout.readline() == "ready\n"
        for recorder in recorders:
            recorder.stdin.write("go\n")
            recorder.stdin.flush()
        return [int(recorder.communicate(timeout=PATIENCE)[0]) for recorder in recorders]


def read_artifact(server: Server, run: dict[str, str], name: str) -> bytes:
    """Read a file of a run over plain HTTP."""
    path = run["place"].removeprefix("mlflow-artifacts:/")
    with urllib.request.urlopen(
        f"{server.uri}/api/2.0/mlflow-artifacts/artifacts/{path}/{name}", timeout=60
    ) as answer:
        return bytes(answer.read())


def test_four_concurrent_drivers_record_each_point_once(
    tracking: tuple[Server, str], database: Postgres
) -> None:
    one, name = tracking
    points = 12
    for attempt in range(4):
        experiment = f"race {attempt}"
        command = [sys.executable, "-m", "tests.cluster.recorder", one.uri, experiment, str(points)]
        assert sum(run_recorders([command] * 4)) == points
        rows = database.rows(
            name,
            "SELECT t.value, r.status, (SELECT value FROM tags o WHERE o.run_uuid = r.run_uuid AND o.key = 'outcome'), "
            "(SELECT count(*) FROM latest_metrics m WHERE m.run_uuid = r.run_uuid) "
            "FROM runs r JOIN experiments e USING (experiment_id) JOIN tags t USING (run_uuid) "
            "WHERE e.name = :name AND r.lifecycle_stage = 'active' AND t.key = 'point_id'",
            name=experiment,
        )
        assert sorted(rows) == sorted(
            (str(number), "FINISHED", "ok", 40) for number in range(points)
        )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["server", "database"])
def test_a_crash_of_server_or_database_loses_and_duplicates_no_point(
    victim: str, tmp_path: Path
) -> None:
    """Four hosts sweep the same points while the server or its database crashes and restarts."""
    with postgres() as database, ExitStack() as stack:
        name = database.new_database()
        one = stack.enter_context(server(database.uri(name), tmp_path))
        sweep = [
            "-m",
            f"tracking.uri={one.uri}",
            "model.nodes=range(8,32)",
            *AXES,
            "measure.min_seconds=0.5",
        ]
        logs = [tmp_path / f"driver-{number}.log" for number in range(4)]
        drivers = [
            stack.enter_context(
                driver(number, log, *sweep, f"tracking.folder={tmp_path / str(number)}")
            )
            for number, log in enumerate(logs)
        ]
        assert wait_for(lambda: sum("outcome" in entry for entry in database.runs(name)) >= 3, 240)
        if victim == "server":
            one.kill()
        else:
            database.stop(signal.SIGQUIT)
        # The outage is longer than the retries of MLflow's client.
        assert wait_for(lambda: any("the store does not answer" in log.read_text() for log in logs))
        if victim == "server":
            one.start()
        else:
            database.start()
        codes = [process.wait(400) for process in drivers]
        outputs = [log.read_text() for log in logs]
        assert codes == [0] * 4, outputs
        points = database.runs(name)
        assert Counter(point.get("outcome") for point in points) == {"ok": 24}, outputs
        assert len({point["point_id"] for point in points}) == 24
        assert {point["status"] for point in points} == {"FINISHED"}
        assert {entry["status"] for entry in database.runs(name, "sweep")} == {"FINISHED"}
        assert not list(tmp_path.glob("[0-9]/*.json"))
        for point in points:
            assert json.loads(read_artifact(one, point, "files.json"))["blocks.json"]["unit"] == "s"


def test_the_tables_and_the_server_give_the_same_frame(
    tracking: tuple[Server, str], database: Postgres
) -> None:
    one, name = tracking
    succeeded(["paradnn.train", "-m", f"tracking.uri={one.uri}", "model.nodes=8,9", *AXES])
    by_api = load(one.uri)
    by_tables = load(database.uri(name))

    assert len(by_tables) == 2
    assert by_tables.drop(columns="artifact_uri").equals(by_api.drop(columns="artifact_uri"))
    with pytest.raises(StoreError, match="these files are on a tracking server"):
        load_tables(by_tables, "operations.json", database.uri(name))

    repeated = run(["paradnn.train", "-m", f"tracking.uri={one.uri}", "model.nodes=8,9", *AXES])
    assert "2 skipped" in repeated.stdout

    direct = run(["paradnn.train", f"tracking.uri={database.uri(name)}", *TINY])
    assert direct.returncode == 2
    assert "a server stores the artifacts of experiment paradnn" in direct.stderr
    assert database.password not in direct.stderr


@dataclass
class ProtectedServer:
    """A server with users, its database, and passwords that must not appear anywhere.

    Attributes:
        server: The server.
        database: PostgreSQL of the server.
        name: Name of the tracking database.
        admin: Password of the administrator.
        passwords: Password of each user.
    """

    server: Server
    database: Postgres
    name: str
    admin: str
    passwords: dict[str, str]

    def add_user(self, user: str) -> None:
        """Create a user as docs/how-to/tracking-server.md describes."""
        self.passwords[user] = secrets.token_hex(12)
        body = json.dumps({"username": user, "password": self.passwords[user]}).encode()
        credentials = base64.b64encode(f"admin:{self.admin}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {credentials}"}
        request = urllib.request.Request(
            f"{self.server.uri}/api/2.0/mlflow/users/create", body, headers
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    def train(
        self, user: str | None, password: str | None, *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `paradnn.train` with credentials in environment variables, if there are any."""
        variables = {"MLFLOW_TRACKING_URI": self.server.uri}
        if user and password:
            variables |= {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}
        return process(["paradnn.train", *arguments], **variables)


@pytest.fixture(scope="module")
def protected(
    database: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProtectedServer]:
    """Yield a server with the users bench, who may write, and guest, who may read."""
    folder = tmp_path_factory.mktemp("protected")
    name = database.new_database()
    users = database.new_database()
    admin = secrets.token_hex(12)
    config = folder / "auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = READ\nadmin_username = admin\nauth_cache_ttl_seconds = 60\n"
        f"database_uri = {database.uri(users)}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    variables = {"MLFLOW_AUTH_CONFIG_PATH": str(config), "MLFLOW_AUTH_ADMIN_PASSWORD": admin}
    variables |= {"MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32)}
    with server(database.uri(name), folder, "--app-name", "basic-auth", **variables) as one:
        found = ProtectedServer(one, database, name, admin, {})
        found.add_user("bench")
        found.add_user("guest")
        yield found


def test_a_sweep_with_credentials_does_not_store_them(
    protected: ProtectedServer, tmp_path: Path
) -> None:
    password = protected.passwords["bench"]
    folder = tmp_path / "results"
    sweep = [
        "-m",
        "model.nodes=8,9",
        *AXES,
        f"tracking.folder={folder}",
        f"hydra.sweep.dir={tmp_path / 'hydra'}",
    ]
    done = protected.train("bench", password, *sweep, "measure.profile=true")

    assert done.returncode == 0, done.stderr

    # A password in the address must also be hidden wherever the address is shown or stored.
    address = protected.server.uri.replace("://", f"://bench:{password}@")
    by_address = protected.train(
        None, None, "-m", "model.nodes=10,11", *AXES, f"tracking.uri={address}"
    )

    assert by_address.returncode == 0, by_address.stderr
    assert [point["outcome"] for point in protected.database.runs(protected.name)] == ["ok"] * 4

    texts = [
        done.stdout,
        done.stderr,
        by_address.stdout,
        by_address.stderr,
        *stored_rows(protected),
    ]
    texts += [
        path.read_bytes().decode(errors="replace")
        for path in protected.server.log.parent.rglob("*")
        if path.is_file()
    ]
    texts += [
        path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    ]

    assert len(texts) > 20

    for secret in (
        password,
        base64.b64encode(f"bench:{password}".encode()).decode(),
        protected.database.password,
    ):
        # The configuration file of the server contains the password of its database.
        assert not [text for text in texts if secret in text and not text.startswith("[mlflow]")]


def test_wrong_credentials_print_one_line_and_exit_with_code_2(protected: ProtectedServer) -> None:
    for user, password in (("bench", "wrong"), ("nobody", "wrong"), (None, None)):
        done = protected.train(user, password, *TINY)
        assert done.returncode == 2, done.stderr
        [line] = done.stderr.splitlines()
        assert line.startswith(
            f"error: tracking.uri={protected.server.uri}: the login is missing or wrong"
        )
        assert "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in line
        assert done.stdout == ""


def test_a_user_without_write_permission_gets_an_error(
    protected: ProtectedServer, tmp_path: Path
) -> None:
    done = protected.train("bench", protected.passwords["bench"], *TINY)
    assert done.returncode == 0, done.stderr

    for arguments in (["-m", "model.nodes=20,21", *AXES], ["model.nodes=20", *AXES]):
        done = protected.train(
            "guest", protected.passwords["guest"], *arguments, f"tracking.folder={tmp_path}"
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1].startswith(
            f"error: {protected.server.uri}: the server denies access (HTTP 403"
        )
    assert not list(tmp_path.iterdir())


def stored_rows(protected: ProtectedServer) -> list[str]:
    """Return every row of every table of the tracking database as text."""
    tables = protected.database.rows(
        protected.name,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
    )
    rows = " UNION ALL ".join(
        f'SELECT CAST(row_to_json(t) AS text) FROM "{table}" t' for [table] in tables
    )
    return [row for [row] in protected.database.rows(protected.name, rows)]
