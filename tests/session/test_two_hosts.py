"""Points on two hosts by one command, whatever the kind of address that they know each other by."""

from __future__ import annotations

import re

import pytest

from paradnn.core.errors import ConfigError, WorkerError
from paradnn.session.environments import HOSTS, other_hosts, require_answers
from paradnn.worker.process_group import KEY
from tests.conftest import Store, run
from tests.processes import wait_for
from tests.worker.two_hosts import ADDRESSES, QUICK, second_host

pytestmark = pytest.mark.framework

COMMANDS = [
    ["model=channel", "model.transport=tcp,grpc", *QUICK],
    ["model=channel", "model.transport=tensorflow", "model.pattern=all_reduce", "model.bytes=64", *QUICK],
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_points_are_measured_on_two_hosts(address: str, store: Store) -> None:
    with second_host(address) as variables:
        assert variables[HOSTS].startswith("[::1]:" if ":" in address else f"{address}:")
        for command in COMMANDS:
            done = run(["paradnn.train", "-m", *command], store, **variables)
            assert done.returncode == 0, done.stdout + done.stderr
    points = store.runs()
    assert {(point["outcome"], point.get("reason")) for point in points} == {("ok", None)}
    assert len(points) == 3


@pytest.mark.parametrize("wrong", ["node2", "::1:5000", "[::1]", "node2:0", "node2:65536", "[fe80::2%eth0]:5000", ""])
def test_what_is_no_address_is_named(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "what both know")
    monkeypatch.setenv(HOSTS, f"10.0.0.2:5000,{wrong}")
    message = f"{HOSTS}=10.0.0.2:5000,{wrong}: {wrong!r} is no host:port; write what each server says"
    with pytest.raises(ConfigError, match=re.escape(message)):
        other_hosts(2, {})
    monkeypatch.setenv(HOSTS, "node-2.example:65535,[2001:db8::3]:5000")
    assert other_hosts(3, {})["addresses"] == ["node-2.example:65535", "[2001:db8::3]:5000"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_host_that_is_gone_is_no_outcome_of_a_point(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with second_host(address) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        require_answers()
    said: list[str] = []

    def is_gone() -> bool:
        try:
            require_answers()
        except WorkerError as error:
            said.append(str(error))
        return bool(said)

    # What it forked for the last connection, perhaps only now, holds its port for a moment longer.
    assert wait_for(is_gone)
    remedy = "start python -m paradnn.worker.host there (docs/clusters.md), then the same command again"
    assert said == [f"no server answers at {variables[HOSTS]}; {remedy}"]
