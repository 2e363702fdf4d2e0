"""Training over several hosts: identity, limits and records."""

from dataclasses import replace

import pytest

from paradnn.config.identity import point_id
from paradnn.config.point import Point, step_costs
from paradnn.config.reading import read_point
from paradnn.platform.environment import HOSTS, exceeds_memory, separate_hosts
from paradnn.session.environments import current_environments, require_possible
from paradnn.session.hardware_peaks import ceilings_identity, single_device
from tests.conftest import SHORT, TINY, Store, succeeded

OTHER = "10.0.0.2:5000"


def point(hosts: int = 1, **changes: object) -> Point:
    return read_point({"model": {"name": "fc"}, "batch_size": 64, "hosts": hosts, **changes})


@pytest.fixture
def one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOSTS, raising=False)


@pytest.mark.usefixtures("one_machine")
def test_processes_of_one_machine_are_a_separate_environment() -> None:
    points = [point(), point(hosts=2)]
    require_possible(points[1:])

    on_one_process, on_two_processes = current_environments(points).values()

    assert on_one_process is not None
    assert on_two_processes is not None
    assert on_one_process.environment_id != on_two_processes.environment_id
    assert on_two_processes.as_one_host().environment_id == on_one_process.environment_id
    # Ceilings belong to the machine, not to its processes.
    assert ceilings_identity(points[1], on_two_processes) == ceilings_identity(
        points[0], on_one_process
    )


def test_the_number_of_hosts_is_part_of_a_point() -> None:
    assert point_id(point()) != point_id(point(hosts=2))


@pytest.mark.usefixtures("one_machine")
def test_separate_hosts_have_the_environment_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [point(), point(hosts=2)]
    on_one_process, _ = current_environments(points).values()

    monkeypatch.setenv(HOSTS, OTHER)
    [on_hosts] = current_environments(points).values()

    assert on_one_process is not None
    assert on_hosts is not None
    assert on_hosts.environment_id == on_one_process.environment_id


@pytest.mark.usefixtures("one_machine")
def test_processes_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    four_hosts = point(hosts=4)
    costs = step_costs(four_hosts)
    limit = costs.memory_lower_bound_bytes // 2

    assert costs.flops_per_step == step_costs(point()).flops_per_step
    assert separate_hosts(four_hosts) == 1
    assert exceeds_memory(four_hosts, costs, limit)
    monkeypatch.setenv(HOSTS, ",".join([OTHER] * 3))
    assert separate_hosts(four_hosts) == 4
    assert exceeds_memory(four_hosts, costs, limit) is None


@pytest.mark.usefixtures("one_machine")
def test_the_devices_of_a_machine_divide_its_cores_for_ceilings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_devices = point(hosts=2, devices=2, platform={"name": "cpu", "threads": 1})
    environment = current_environments([two_devices]).popitem()[1]
    assert environment is not None
    eight_cores = replace(environment, hardware={**environment.hardware, "cores": 8})

    assert single_device(two_devices, eight_cores).platform.threads == 4
    monkeypatch.setenv(HOSTS, OTHER)
    assert single_device(two_devices, eight_cores).platform.threads == 2


@pytest.mark.framework
@pytest.mark.usefixtures("one_machine")
def test_a_run_over_two_processes_is_recorded(store: Store) -> None:
    succeeded(
        ["paradnn.train", "model=fc", *TINY, *SHORT, "hosts=2", "measure.profile=true"], store
    )

    [run] = store.runs()
    metrics = store.values("latest_metrics", run["run_id"])
    assert (run["outcome"], run["checks"]) == ("ok", "passed")
    assert run["mlflow.runName"].endswith("2 hosts")
    assert store.values("params", run["run_id"])["hosts"] == "2"
    # 16 x 8 + 8 and 8 x 4 + 4 parameters of four bytes.
    assert metrics["gradient_bytes"] == 4 * (136 + 36)
    assert metrics["batch_size_per_device"] == 2
    assert metrics["profile_flops_ratio"] == pytest.approx(1, rel=0.01)
    assert 0 < metrics["fastest_alone_step_time_ms"] <= metrics["alone_step_time_ms"]
    assert metrics["communication_share"] == pytest.approx(
        metrics["communication_ms"] / metrics["step_time_ms"], rel=0.2
    )
