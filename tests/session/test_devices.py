"""Several devices as the driver sees them: what is asked for, what it costs, what it is held against."""

from dataclasses import replace
from typing import Any

from paradnn.config.identity import Identity, request_of
from paradnn.config.point import Point, read_point
from paradnn.families import model_of
from paradnn.platform.environment import Environment
from paradnn.session.hardware_peaks import Ceilings, ceilings_identity, device_peaks, single_device
from paradnn.store.runs import Claim

MODEL = {"name": "fc", "layers": 1, "nodes": 8}
HERE, CLAIM = Environment("some processor", {}, {}, {}), Claim("run", Identity("p", "e", 0), 0)


def point(**changes: Any) -> Point:
    return read_point({"model": MODEL, "batch_size": 4} | changes)


def environment(cores: int) -> Environment:
    return Environment("some processor", {"cores": cores}, {}, {})


def costs(point: Point, devices: int) -> Any:
    return model_of(request_of(point)["model"]).costs(
        batch_size=point.batch_size, precision="float32", mode="train", optimizer="rmsprop", devices=devices
    )


def test_costs_are_those_of_all_replicas() -> None:
    big = point(batch_size=64)
    whole, half, both = costs(big, 1), costs(replace(big, batch_size=32), 1), costs(big, 2)
    assert (both.flops_per_step, both.parameters) == (whole.flops_per_step, whole.parameters)
    assert both.bytes_per_step == 2 * half.bytes_per_step > whole.bytes_per_step
    # A second set of weights, mean squares and velocities; the batch and what it makes are only divided.
    more = both.memory_lower_bound_bytes - whole.memory_lower_bound_bytes
    assert more == 3 * 4 * (whole.parameters + whole.non_trainable_parameters)


def test_devices_are_held_against_what_they_can_do_together() -> None:
    ceilings = Ceilings("run", {"float32": 1e12}, 1e11)
    gpus = point(devices=2, platform={"name": "gpu"})
    assert device_peaks(gpus, environment(8), ceilings) == {
        "peak_flops_per_second": 2e12,
        "peak_bytes_per_second": 2e11,
    }
    assert ceilings_identity(gpus, environment(8)) == ceilings_identity(point(platform={"name": "gpu"}), environment(8))
    cores = point(devices=2, platform={"name": "cpu", "threads": 2})
    assert device_peaks(cores, environment(8), ceilings)["peak_flops_per_second"] == 1e12
    assert single_device(cores, environment(8)).platform.threads == 4
    # All cores of a machine are its default.
    assert ceilings_identity(cores, environment(4)) == ceilings_identity(point(), environment(4))
