"""Who asks for inference: the keys of every scenario, and what they make of a point's identity."""

import dataclasses
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from paradnn.config.groups import store_options
from paradnn.config.identity import point_id, request_of, texts
from paradnn.config.paths import CONFIG
from paradnn.config.point import Point, read_point
from paradnn.config.space import plain
from paradnn.core.errors import ConfigError
from paradnn.core.workload import WORKLOADS
from paradnn.session.record import run_name
from paradnn.workloads.serve import Server

SCENARIOS = {name: type(work) for name, work in WORKLOADS.items() if work.key == "scenario"}


def point(scenario: str = "server", mode: str = "inference", timeout: int = 1800, **others: Any) -> Point:
    keys = others.pop("keys", {})
    config = {"model": {"name": "fc"}, "mode": mode, "scenario": scenario, "measure": {"timeout": timeout}}
    return read_point({**config, scenario: keys, **others})


def test_every_scenario_has_a_file_with_the_defaults_of_its_keys() -> None:
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (CONFIG / "scenario").glob("*.yaml")}
    assert set(files) == {"closed", *SCENARIOS}
    for name, load in SCENARIOS.items():
        assert files[name]["scenario"] == name
        assert files[name][name] == {entry.name: entry.default for entry in dataclasses.fields(load)}


def test_a_closed_point_is_the_one_of_before() -> None:
    assert point_id(read_point({"model": {"name": "fc"}})) == "57f7f9f40bab5f25"
    assert point_id(point("closed")) == point_id(read_point({"model": {"name": "fc"}, "mode": "inference"}))


def test_every_key_makes_another_point() -> None:
    changes = {
        "rate": 50.0,
        "latency_ms": 1.0,
        "percentile": 90.0,
        "confidence": 0.9,
        "min_seconds": 1.0,
        "min_queries": 5,
        "delay_ms": 2.0,
        "precision": 0.1,
        "seed": 1,
    }
    assert {*changes, "batch"} == {entry.name for entry in dataclasses.fields(Server)}
    points = [point(), *(point(keys={key: value}) for key, value in changes.items()), point("offline"), point("closed")]
    assert len({point_id(entry) for entry in points}) == len(points)


def test_the_largest_batch_is_the_batch_of_the_timed_step() -> None:
    given = point(batch_size=8)
    assert given.workload.batch == 8
    assert point_id(given) == point_id(point(batch_size=8, keys={"batch": 8}))


def test_a_run_names_its_scenario_as_the_command_line_does() -> None:
    params = texts(request_of(point(batch_size=4, keys={"rate": 200})))
    assert (params["scenario"], params["server.rate"], params["server.batch"]) == ("server", "200.0", "4")
    assert not {key for key in texts(request_of(point("closed"))) if key.startswith(("load", *SCENARIOS))}
    assert run_name(point(keys={"rate": 200})).endswith("inference server 200/s")
    assert run_name(point()).endswith("server peak")
    assert run_name(point(keys={"rate": 200, "delay_ms": 2})).endswith("server 200/s delay 2 ms")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "train"}, "mode=train: scenario=server is for inference; set mode=inference"),
        ({"devices": 2}, "devices=2: scenario=server is for one device; set devices=1"),
        ({"scenario": "sever"}, "scenario=sever: no such choice; did you mean server? choose one of closed, "),
        ({"keys": {"rate": "fast"}}, "server.rate=fast: no such choice; choose one of peak, a number"),
        ({"keys": {"rate": None}}, "server.rate=null: no such choice; choose one of peak, a number"),
        ({"keys": {"batch": 8}}, "server.batch=8: is what batch_size=256 says; leave it out, and set batch_size=8"),
        ({"keys": {"rate": 0}}, "server.rate=0.0: must be at least 0.001"),
        ({"keys": {"speed": 1}}, "server.speed=1: no such key; did you mean seed? keys of server: rate, latency_ms"),
        (
            {"keys": {"min_seconds": 60}, "timeout": 60},
            "server.min_seconds=60.0: is not less than measure.timeout=60; ask for less, or raise measure.timeout",
        ),
        (
            {"keys": {"rate": 0.01}},
            "server.rate=0.01: makes server.min_queries=100 take 10,000 s; ask for more, or raise measure.timeout=1800",
        ),
        ({"model": {"name": "gemm"}}, "scenario=server: model=gemm is one operation, which is not queried"),
        ({"model": {"name": "residual"}, "data": {"name": "images"}}, "data=images: scenario=server takes queries"),
    ],
)
def test_what_no_scenario_can_be_is_told_in_a_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        point(**given)
    assert str(error.value).startswith(message)


def test_a_quick_measurement_of_a_scenario_is_short() -> None:
    with initialize_config_dir(str(CONFIG), version_base=None):
        store_options()
        for words, seconds in ((["measure=quick"], 15), (["measure=quick", "server.min_seconds=40"], 40), ([], 600)):
            config = plain(compose("config", ["scenario=server", "mode=inference", *words]))
            assert read_point(config).workload.min_seconds == seconds
