"""A tracking server that asks for a password: a sweep with it, one line without it, and the password nowhere."""

import base64
import json
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.postgres import Postgres, Server, postgres, server
from tests.conftest import TINY, process

AXES = [entry for entry in TINY if "nodes" not in entry]


@dataclass
class Guarded:
    """A server with users, its database, and every password that must appear nowhere."""

    server: Server
    database: Postgres
    name: str
    admin: str
    passwords: dict[str, str]

    def add(self, user: str) -> None:
        """Make a user, as docs/tracking-server.md says."""
        self.passwords[user] = secrets.token_hex(12)
        body = json.dumps({"username": user, "password": self.passwords[user]}).encode()
        word = base64.b64encode(f"admin:{self.admin}".encode()).decode()
        request = urllib.request.Request(
            f"{self.server.uri}/api/2.0/mlflow/users/create",
            body,
            {"Content-Type": "application/json", "Authorization": f"Basic {word}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    def train(self, user: str | None, password: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`paradnn.train` with credentials in the environment."""
        given = {"MLFLOW_TRACKING_URI": self.server.uri}
        if user and password:
            given |= {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}
        return process(["paradnn.train", *arguments], **given)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with postgres() as database:
        name, users = database.new_database(), database.new_database()
        admin = secrets.token_hex(12)
        config = folder / "auth.ini"
        config.write_text(
            "[mlflow]\ndefault_permission = READ\nadmin_username = admin\nauth_cache_ttl_seconds = 60\n"
            f"database_uri = {database.uri(users)}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        variables = {
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_AUTH_ADMIN_PASSWORD": admin,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32),
        }
        with server(database.uri(name), folder, "--app-name", "basic-auth", **variables) as one:
            found = Guarded(one, database, name, admin, {})
            found.add("bench")
            found.add("guest")
            yield found


def test_a_sweep_with_credentials_and_none_of_them_anywhere(guarded: Guarded, tmp_path: Path) -> None:
    password = guarded.passwords["bench"]
    folder = tmp_path / "results"
    sweep = ["-m", "model.nodes=8,9", *AXES, f"tracking.folder={folder}", f"hydra.sweep.dir={tmp_path / 'hydra'}"]
    done = guarded.train("bench", password, *sweep, "measure.profile=true")
    assert done.returncode == 0, done.stderr
    # In the address too: it is hidden wherever it is shown or stored.
    address = guarded.server.uri.replace("://", f"://bench:{password}@")
    other = guarded.train(None, None, "-m", "model.nodes=10,11", *AXES, f"tracking.uri={address}")
    assert other.returncode == 0, other.stderr
    assert [point["outcome"] for point in guarded.database.runs(guarded.name)] == ["ok"] * 4
    texts = [done.stdout, done.stderr, other.stdout, other.stderr, *stored(guarded)]
    texts += [
        path.read_bytes().decode(errors="replace") for path in guarded.server.log.parent.rglob("*") if path.is_file()
    ]
    texts += [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(texts) > 20
    for secret in (password, base64.b64encode(f"bench:{password}".encode()).decode(), guarded.database.password):
        # The server's own configuration file names its database.
        assert not [text for text in texts if secret in text and not text.startswith("[mlflow]")]


def test_wrong_credentials_are_one_line_and_exit_code_2(guarded: Guarded) -> None:
    for user, password in (("bench", "wrong"), ("nobody", "wrong"), (None, None)):
        done = guarded.train(user, password, *TINY)
        assert done.returncode == 2, done.stderr
        [line] = done.stderr.splitlines()
        assert line.startswith(f"error: tracking.uri={guarded.server.uri}: not logged in, or a wrong user or password")
        assert "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in line
        assert done.stdout == ""


def test_a_user_who_may_only_read_is_told_so(guarded: Guarded, tmp_path: Path) -> None:
    made = guarded.train("bench", guarded.passwords["bench"], *TINY)
    assert made.returncode == 0, made.stderr
    for arguments in (["-m", "model.nodes=20,21", *AXES], ["model.nodes=20", *AXES]):
        done = guarded.train("guest", guarded.passwords["guest"], *arguments, f"tracking.folder={tmp_path}")
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1].startswith(f"error: {guarded.server.uri}: the server forbids it (HTTP 403")
    assert not list(tmp_path.iterdir())


def stored(guarded: Guarded) -> list[str]:
    """Every row of every table of the tracking database, as text."""
    tables = guarded.database.rows(
        guarded.name, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    )
    rows = " UNION ALL ".join(f'SELECT CAST(row_to_json(t) AS text) FROM "{table}" t' for [table] in tables)
    return [row for [row] in guarded.database.rows(guarded.name, rows)]
