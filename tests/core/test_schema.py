"""Bad values are refused with the key, the value and the remedy."""

import pytest

from paradnn.config.point import read_point, read_settings
from paradnn.core.errors import ConfigError
from paradnn.core.schema import memory_bytes

FC = {"model": {"name": "fc"}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"name": "fc", "nodes": 0}}, "model.nodes=0: must be at least 1; choose a larger value"),
        (
            {"model": {"name": "fc", "nodes": "x"}},
            "model.nodes=x: expects a whole number; write for example model.nodes=64",
        ),
        ({"model": {"name": "fc", "nodes": True}}, "model.nodes=true: expects a whole number"),
        ({"model": {"name": "fc", "nodes": [8, 0], "layers": 2}}, "model.nodes=0: must be at least 1"),
        ({"model": {"name": "fc", "nodes": [8, "x"], "layers": 2}}, "model.nodes=x: expects a whole number"),
        (
            {"model": {"name": "fc", "nodes": [8, 4]}},
            "model.layers=4: model.nodes names 2 of them: [8, 4]; set model.layers=2",
        ),
        ({"model": {"name": "fc", "nods": 3}}, "model.nods=3: no such key; did you mean nodes?"),
        ({"model": {"name": "foo"}}, "model.name=foo: no such family; choose one of fc, residual"),
        ({"model": {"name": "residual", "blocks": [1, 2]}}, "model.blocks=[1, 2]: expects one number, 3 or 4"),
        (
            {"model": {"name": "gpt", "width": 100, "heads": 12}},
            "model.width=100: is no multiple of model.heads=12; write for example 96, or heads that divide it",
        ),
        (
            {"model": {"name": "transformer", "heads": 7}},
            "model.width=512: is no multiple of model.heads=7; write for example 511",
        ),
        (
            {"model": {"name": "vit", "image_size": 225}},
            "model.image_size=225: is no multiple of model.patch=16; write for example 224",
        ),
        ({**FC, "batch_size": -1}, "batch_size=-1: must be at least 1"),
        ({**FC, "batch_size": 2**70}, "batch_size=1180591620717411303424: must be at most"),
        ({**FC, "precision": "nothing"}, "precision=nothing: no such choice; choose one of float32, bfloat16, float16"),
        ({**FC, "measure": {"min_seconds": float("nan")}}, "measure.min_seconds=nan: expects a finite number"),
        ({**FC, "measure": {"memory_limit": "lots"}}, "measure.memory_limit=lots: is not a memory size"),
        ({**FC, "measure": {"predict_oom": "maybe"}}, "measure.predict_oom=maybe: expects true or false"),
        (
            {**FC, "framework": {"env": {"AWS_SECRET": "x"}}},
            "framework.env.AWS_SECRET=x: is not a variable of a framework",
        ),
        ({**FC, "optimizer": 3}, "optimizer=3: expects a group of keys"),
    ],
)
def test_a_wrong_value_names_key_value_and_remedy(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_point(config)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_one_number_of_blocks_stands_for_four() -> None:
    one = read_point({"model": {"name": "residual", "blocks": 3}})
    four = read_point({"model": {"name": "residual", "blocks": [3, 3, 3, 3]}})
    assert one == four


def test_an_unknown_top_level_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="speed=3: no such key"):
        read_settings({"speed": 3})


@pytest.mark.parametrize(
    ("text", "count"), [("8GiB", 8 * 2**30), ("500 MB", 500_000_000), ("1.5kib", 1536), (1000, 1000), ("auto", None)]
)
def test_memory_sizes(text: str | int, count: int | None) -> None:
    assert memory_bytes(text, "key") == count
