"""Several drivers on one `mlflow server` on PostgreSQL; servers and databases that are killed under them.

What counts is read with plain SQL from the database and over plain HTTP from the server.
"""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from analysis.store.load import load, load_tables
from paradnn.core.errors import StoreError
from tests.cluster.postgres import Postgres, Server, postgres, server
from tests.conftest import ROOT, TINY, environment, run
from tests.processes import started, wait_for

AXES = [entry for entry in TINY if "nodes" not in entry]


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tracking(database: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that no test kills, and its database."""
    name = database.new_database()
    with server(database.uri(name), tmp_path_factory.mktemp("tracking")) as one:
        yield one, name


def as_host(number: int) -> list[str]:
    """What makes a command believe that it runs on a host of its own: a host name and process numbers of its own."""
    command = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    script = f'hostname node{number} && exec "$@"'
    whole = [*command, "sh", "-c", script, "sh"]
    possible = shutil.which("unshare") and subprocess.run([*whole, "true"], capture_output=True, check=False)
    return whole if possible and possible.returncode == 0 else []


@contextmanager
def driver(number: int, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running driver on a host of its own; killed with all it started when the test is done."""
    command = [*as_host(number), sys.executable, "-m", "paradnn.train", *arguments]
    with log.open("wb") as out, started(command, cwd=ROOT, env=environment(), stdout=out, stderr=out) as process:
        yield process


def recorded_together(commands: list[list[str]]) -> list[int]:
    """What each of several recorders recorded, which begin together once the last is ready."""
    options = {"cwd": ROOT, "env": environment(), "text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        racers = [stack.enter_context(started(command, **options)) for command in commands]
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return [int(racer.communicate(timeout=200)[0]) for racer in racers]


def artifact(one: Server, run: dict[str, str], name: str) -> bytes:
    """A file of a run over plain HTTP."""
    path = run["place"].removeprefix("mlflow-artifacts:/")
    with urllib.request.urlopen(f"{one.uri}/api/2.0/mlflow-artifacts/artifacts/{path}/{name}", timeout=60) as answer:
        return bytes(answer.read())


def test_four_drivers_racing_for_the_same_points_record_each_once(
    tracking: tuple[Server, str], database: Postgres
) -> None:
    one, name = tracking
    points = 12
    for attempt in range(4):
        experiment = f"race {attempt}"
        command = [sys.executable, "-m", "tests.cluster.recorder", one.uri, experiment, str(points)]
        assert sum(recorded_together([command] * 4)) == points
        rows = database.rows(
            name,
            "SELECT t.value, r.status, (SELECT value FROM tags o WHERE o.run_uuid = r.run_uuid AND o.key = 'outcome'), "
            "(SELECT count(*) FROM latest_metrics m WHERE m.run_uuid = r.run_uuid) "
            "FROM runs r JOIN experiments e USING (experiment_id) JOIN tags t USING (run_uuid) "
            "WHERE e.name = :name AND r.lifecycle_stage = 'active' AND t.key = 'point_id'",
            name=experiment,
        )
        assert sorted(rows) == sorted((str(number), "FINISHED", "ok", 40) for number in range(points))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["server", "database"])
def test_what_is_killed_in_the_middle_loses_and_doubles_nothing(victim: str, tmp_path: Path) -> None:
    """Four hosts sweep the same points; the server, or its database, dies under them and comes back."""
    with postgres() as database, ExitStack() as stack:
        name = database.new_database()
        one = stack.enter_context(server(database.uri(name), tmp_path))
        sweep = ["-m", f"tracking.uri={one.uri}", "model.nodes=range(8,32)", *AXES, "measure.min_seconds=0.5"]
        logs = [tmp_path / f"driver-{number}.log" for number in range(4)]
        drivers = [
            stack.enter_context(driver(number, log, *sweep, f"tracking.folder={tmp_path / str(number)}"))
            for number, log in enumerate(logs)
        ]
        assert wait_for(lambda: sum("outcome" in entry for entry in database.runs(name)) >= 3, 240)
        one.kill() if victim == "server" else database.stop(signal.SIGQUIT)
        # Away for longer than MLflow's client tries again by itself.
        assert wait_for(lambda: any("the store does not answer" in log.read_text() for log in logs))
        one.start() if victim == "server" else database.start()
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
            assert json.loads(artifact(one, point, "files.json"))["blocks.json"]["unit"] == "s"


def test_the_tables_and_the_server_give_the_same_frame(tracking: tuple[Server, str], database: Postgres) -> None:
    one, name = tracking
    done = run(["paradnn.train", "-m", f"tracking.uri={one.uri}", "model.nodes=8,9", *AXES])
    assert done.returncode == 0, done.stderr
    by_api, by_tables = load(one.uri), load(database.uri(name))
    assert len(by_tables) == 2
    assert by_tables.drop(columns="artifact_uri").equals(by_api.drop(columns="artifact_uri"))
    with pytest.raises(StoreError, match="a tracking server keeps these files"):
        load_tables(by_tables, "operations.json", database.uri(name))
    again = run(["paradnn.train", "-m", f"tracking.uri={one.uri}", "model.nodes=8,9", *AXES])
    assert "2 skipped" in again.stdout
    direct = run(["paradnn.train", f"tracking.uri={database.uri(name)}", *TINY])
    assert direct.returncode == 2
    assert "a server keeps the files of paradnn; record through it" in direct.stderr
    assert database.password not in direct.stderr
