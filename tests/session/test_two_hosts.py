"""Points on two hosts by one command, whatever the kind of address that they know each other by."""

import pytest

from paradnn.core.errors import WorkerError
from paradnn.session.environments import HOSTS, require_answers
from tests.conftest import Store, run
from tests.processes import wait_for
from tests.worker.two_hosts import ADDRESSES, QUICK, second_host

pytestmark = pytest.mark.framework

PLAIN = ["model=channel", "model.transport=tcp,grpc", *QUICK]
TENSORFLOW = ["model=channel", "model.transport=tensorflow", "model.pattern=all_reduce", "model.bytes=64", *QUICK]


@pytest.mark.parametrize("address", ADDRESSES)
def test_points_are_measured_on_two_hosts(address: str, store: Store) -> None:
    """Without a framework's own transport the other address is in tests/worker/test_remote.py."""
    commands = [PLAIN, TENSORFLOW] if ":" in address else [TENSORFLOW]
    with second_host(address) as variables:
        assert variables[HOSTS].startswith("[::1]:" if ":" in address else f"{address}:")
        for command in commands:
            done = run(["paradnn.train", "-m", *command], store, **variables)
            assert done.returncode == 0, done.stdout + done.stderr
    points = store.runs()
    assert {(point["outcome"], point.get("reason")) for point in points} == {("ok", None)}
    assert len(points) == 2 * len(commands) - 1


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
