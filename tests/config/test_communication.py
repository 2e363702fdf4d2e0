"""What a point that communicates may ask for, which points are the same, and what follows from its step time."""

from typing import Any

import pytest

from paradnn.config.identity import point_id
from paradnn.config.point import Point, costs_of, read_point
from paradnn.core.errors import ConfigError
from paradnn.workloads.channel import bus_factor, transfer_metrics


def point(framework: str = "tensorflow", **model: Any) -> Point:
    given = {"name": "channel", **model}
    return read_point({"model": given, "batch_size": 1, "mode": "inference", "framework": {"name": framework}})


def test_what_changes_nothing_makes_no_other_point() -> None:
    assert point_id(point()) == point_id(point(window=8, processes=5))
    assert point_id(point(pattern="bandwidth")) != point_id(point(pattern="bandwidth", window=8))
    assert point_id(point(port=5000)) != point_id(point())
    channel = {"batch_size": 1, "mode": "inference", "model": {"name": "channel"}}
    assert point_id(read_point({**channel, "compile": "xla"})) == point_id(read_point(channel)), "nothing is compiled"


def test_a_transport_of_a_framework_brings_it() -> None:
    assert point(transport="gloo").framework.name == "torch"
    assert point("torch", transport="tcp").framework.name == "torch"
    assert point(transport="tcp").model.size == "tcp latency 1024 B"


def test_it_costs_bytes_and_no_work() -> None:
    costs = costs_of(point(bytes=12345))
    assert (costs.flops_per_step, costs.parameters, costs.memory_lower_bound_bytes) == (0, 0, 12345)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transport": "rdma"}, "model.transport=rdma: no such choice; choose one of tcp, grpc"),
        (
            {"transport": "tcp", "pattern": "all_reduce"},
            "model.pattern=all_reduce: model.transport=tcp has no such pattern; choose one of latency, bandwidth",
        ),
        ({"transport": "gloo", "bytes": 1023}, "model.bytes=1023: model.transport=gloo sends one tensor of float32"),
        ({"bytes": 0}, "model.bytes=0: must be at least 1"),
        (
            {"transport": "tensorflow", "pattern": "all_reduce", "processes": 4, "port": 65533},
            "model.port=65533: leaves no 4 ports",
        ),
        ({"framework": "jax", "transport": "gloo"}, "framework=jax: model.transport=gloo is of framework=torch"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        point(**given)


def test_what_messages_have_not_is_refused() -> None:
    for more, key in (
        ({"batch_size": 2}, "batch_size=2: model=channel has no batch; leave it out, and set model.bytes"),
        ({"precision": "bfloat16"}, "precision=bfloat16: model=channel sends bytes"),
        ({"mode": "train"}, "mode=train"),
        ({"devices": 2}, "devices=2"),
    ):
        with pytest.raises(ConfigError, match=key):
            read_point({"model": {"name": "channel"}, "batch_size": 1, "mode": "inference", **more})
    channel = {"model": {"name": "channel"}, "batch_size": 1, "mode": "inference"}
    with pytest.raises(ConfigError, match=r"measure\.keep_trace=true: model=channel has no operations to profile"):
        read_point({**channel, "measure": {"keep_trace": True}})
    assert not read_point({**channel, "measure": {"profile": True}}).measure.profile, "as measure=quick asks"


def test_metrics_follow_from_the_step_time() -> None:
    """By hand: a step of 2 ms, between 1.6 and 2.5."""
    times = {"step_time_ms": 2.0, "step_time_low_ms": 1.6, "step_time_high_ms": 2.5}
    latency = transfer_metrics(point(bytes=1000).model, times)
    assert (latency["round_trip_us"], latency["transfer_us"], latency["transfer_high_us"]) == (2000, 1000, 1250)
    assert latency["sent_bytes_per_second"] == pytest.approx(1e6)
    window = transfer_metrics(point(pattern="bandwidth", bytes=1000, window=50).model, times)
    assert window["messages_per_second"] == pytest.approx(25_000)
    assert (window["messages_per_second_low"], window["messages_per_second_high"]) == pytest.approx((20_000, 31_250))
    reduced = transfer_metrics(
        point(transport="gloo", pattern="all_reduce", bytes=4000, processes=4).model, {"step_time_ms": 2.0}
    )
    assert reduced == pytest.approx(
        {"transfer_us": 2000, "messages_per_second": 500, "sent_bytes_per_second": 2e6, "bus_bytes_per_second": 3e6}
    )
    assert bus_factor("broadcast", 4) == 1.0
