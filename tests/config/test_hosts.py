"""Which points can be on several hosts, and that those on one are what they were."""

from typing import Any

import pytest

from paradnn.config.identity import point_id
from paradnn.config.point import Point, read_point
from paradnn.core.errors import ConfigError
from paradnn.session.record import run_name

CHANNEL = {"batch_size": 1, "mode": "inference"}


def channel(hosts: int = 2, **model: Any) -> Point:
    return read_point({**CHANNEL, "hosts": hosts, "model": {"name": "channel", **model}})


def devices(count: int, hosts: int) -> Point:
    return read_point({"model": {"name": "fc"}, "devices": count, "hosts": hosts})


def test_on_how_many_hosts_is_part_of_a_point() -> None:
    assert point_id(channel(hosts=1)) == point_id(read_point({**CHANNEL, "model": {"name": "channel"}}))
    assert point_id(channel(hosts=2)) != point_id(channel(hosts=1))
    assert run_name(channel()).endswith("2 hosts")


@pytest.mark.parametrize(
    ("given", "hosts"), [({}, 2), ({"transport": "gloo", "pattern": "all_reduce", "processes": 6}, 3)]
)
def test_messages_cross_hosts(given: dict[str, Any], hosts: int) -> None:
    assert channel(hosts, **given).hosts == hosts


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: channel(3), "hosts=3: does not divide the 2 processes of model=channel; give each host as many"),
        (
            lambda: channel(2, transport="gloo", pattern="broadcast", processes=3),
            "hosts=2: does not divide the 3 processes of model=channel",
        ),
        (lambda: devices(4, 2), "hosts=2: is for messages between processes: .* set hosts=1, or model=channel"),
        (
            lambda: read_point(
                {**CHANNEL, "hosts": 2, "model": {"name": "channel"}, "software": {"name": "mine", "python": "/bin/py"}}
            ),
            "hosts=2: is not for software=mine: the other hosts have the interpreter of this command",
        ),
    ],
)
def test_what_is_on_one_host_is_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
