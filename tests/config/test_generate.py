"""What a point that generates must be: one line for the first thing that is wrong, and identities of before."""

import dataclasses
from typing import Any

import pytest
import yaml

from paradnn.config.identity import point_id, request_of, texts
from paradnn.config.paths import CONFIG
from paradnn.config.point import Point, read_point
from paradnn.core.errors import ConfigError
from paradnn.session.record import run_name
from paradnn.workloads.generate import Generate

GPT = {"name": "gpt", "sequence_length": 100}


def generator(**keys: Any) -> Point:
    config = {"model": GPT, "batch_size": 4, "mode": "generate", "generate": {"prompt": 60, "tokens": 40}}
    return read_point({**config, **keys})


def test_the_usual_modes_have_the_identity_and_the_request_of_before() -> None:
    plain = read_point({"model": {"name": "fc"}, "generate": {"prompt": 64, "tokens": 64}})
    # Written down when there was no generation.
    assert point_id(plain) == point_id(read_point({"model": {"name": "fc"}})) == "57f7f9f40bab5f25"
    assert "generate" not in request_of(plain)


def test_the_configuration_has_the_defaults_of_the_keys() -> None:
    content = yaml.safe_load((CONFIG / "config.yaml").read_text())
    assert content["generate"] == dataclasses.asdict(Generate())


def test_lengths_are_part_of_the_identity_and_of_the_name() -> None:
    point = generator()
    assert texts(request_of(point))["generate.tokens"] == "40"
    others = [generator(generate={"prompt": 50, "tokens": 40}), generator(generate={"prompt": 60, "tokens": 39})]
    assert len({point_id(entry) for entry in (point, *others, generator(mode="inference", generate={}))}) == 4
    assert run_name(point) == "gpt 4x256 h4 t100 b4 float32 cpu generate 60+40"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"generate": {"prompt": 61, "tokens": 40}},
            "generate.tokens=40: with generate.prompt=61 is more than the model's 100 positions; "
            "raise model.sequence_length to 101, or ask for less",
        ),
        ({"generate": {"prompt": 0}}, "generate.prompt=0: must be at least 1; choose a larger value"),
        ({"generate": {"tokens": 0}}, "generate.tokens=0: must be at least 1; choose a larger value"),
        ({"generate": {"token": 1}}, "generate.token=1: no such key; did you mean tokens?"),
        ({"mode": "inference"}, "generate.prompt=60: is for mode=generate; add mode=generate, or leave it out"),
        (
            {"model": {"name": "fc"}},
            "mode=generate: model=fc generates no tokens; choose model=gpt or model=gpt2, or mode=inference",
        ),
        ({"model": {"name": "gemm"}}, "mode=generate: model=gemm trains nothing"),
        ({"devices": 2}, "devices=2: mode=generate is for one device; set devices=1"),
        ({"scenario": "server"}, "mode=generate: scenario=server is for inference; set mode=inference"),
        ({"task": "learn", "data": {"name": "digits"}}, "mode=generate: task=learn trains; set mode=train"),
    ],
)
def test_what_cannot_generate_is_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        generator(**keys)
    assert str(error.value).startswith(message)
