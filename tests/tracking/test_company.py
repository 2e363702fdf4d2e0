"""Drivers of one server that save the look for other claims: no point is ever held by two."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping

import pytest

from paradnn.store.runs import EXPIRES, OWNER, Claim, ClaimedElsewhere, Finished
from tests.cluster.recorder import record_of
from tests.conftest import ROOT, environment
from tests.tracking.remote import Remote, begin


def test_who_comes_later_and_who_was_alone_see_each_others_claims(remote: Remote) -> None:
    first = remote.driver("two")
    before = begin(first, 1)
    assert isinstance(before, Claim)
    second = remote.driver("two", "another")
    assert begin(second, 1) == ClaimedElsewhere(before.run_id)
    after = begin(second, 2)
    assert isinstance(after, Claim)
    assert begin(first, 2) == ClaimedElsewhere(after.run_id)
    assert remote.runs("two") == 2


def test_what_a_driver_recorded_that_came_and_ended_is_known_to_one_that_was_alone(remote: Remote) -> None:
    first = remote.driver("passing")
    assert isinstance(begin(first, 9), Claim)
    record_elsewhere(remote, "passing", 3)
    assert all(isinstance(begin(first, number), Finished) for number in range(3))


def test_the_entry_of_a_driver_that_ended_goes_when_another_takes_its_place(remote: Remote) -> None:
    first = remote.driver("ended")
    record_elsewhere(remote, "ended", 1)
    assert len(entries(remote, "ended")) == 2
    remote.driver("ended", "another")
    assert len(entries(remote, "ended")) == 2
    assert isinstance(begin(first, 0), Finished), "who has not looked since sees the other's"


def test_a_point_that_the_same_driver_recorded_is_known(remote: Remote) -> None:
    tracker = remote.driver("twice")
    claim = begin(tracker, 1)
    assert isinstance(claim, Claim)
    tracker.record(claim, record_of(claim), dict)
    again = begin(tracker, 1)
    assert isinstance(again, Finished)
    assert again.run_id == claim.run_id


@pytest.mark.parametrize(("hours", "requests"), [(1, ["create", "search"]), (-1, ["create"])])
def test_an_entry_of_another_host_is_believed_until_it_expires(remote: Remote, hours: int, requests: list[str]) -> None:
    experiment = f"far {hours}"
    remote.driver(experiment)
    owner = json.dumps({"host": "node9", "boot": "b/pid:[1]", "pid": 1, "started": 1.0})
    value = json.dumps({OWNER: owner, EXPIRES: f"{time.time() + 3600 * hours:.0f}"})
    [[number]] = remote.rows("SELECT experiment_id FROM experiments WHERE name = ?", experiment)
    post(
        remote,
        "experiments/set-experiment-tag",
        {"experiment_id": str(number), "key": "mlflow.paradnn.driver.9", "value": value},
    )
    tracker = remote.driver(experiment)
    assert isinstance(begin(tracker, 1), Claim)
    assert remote.asked() == requests


def record_elsewhere(remote: Remote, experiment: str, points: int) -> None:
    """A driver of its own records the first points, and ends."""
    command = [sys.executable, "-m", "tests.cluster.recorder", remote.counted.uri, experiment, str(points)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), text=True, input="", capture_output=True, check=False)
    assert done.stdout == f"ready\n{points}\n", done.stderr


def entries(remote: Remote, experiment: str) -> list[str]:
    """The tags of an experiment that name drivers."""
    rows = remote.rows(
        "SELECT t.key FROM experiment_tags t JOIN experiments USING (experiment_id) "
        "WHERE experiments.name = ? AND t.key LIKE 'mlflow.paradnn.driver.%'",
        experiment,
    )
    return [key for (key,) in rows]


def post(remote: Remote, path: str, body: Mapping[str, str]) -> None:
    """One request as any client would make it."""
    request = urllib.request.Request(
        f"{remote.counted.uri}/api/2.0/mlflow/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).close()
