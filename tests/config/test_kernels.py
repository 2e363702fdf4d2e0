"""What a point of a kernel may ask for, and which points are the same."""

from typing import Any

import pytest

from paradnn.config.identity import point_id
from paradnn.config.point import Point, read_point
from paradnn.core.errors import ConfigError


def point(name: str, batch_size: int = 1, mode: str = "inference", **others: Any) -> Point:
    options = others.pop("model", {})
    return read_point({"model": {"name": name, **options}, "batch_size": batch_size, "mode": mode, **others})


def test_a_kernel_has_no_optimizer() -> None:
    same = point_id(point("gemm"))
    assert same == point_id(point("gemm", optimizer={"name": "adam", "learning_rate": 0.5}))
    assert same != point_id(point("gemm", model={"transpose_a": True}))
    assert same != point_id(point("gemm", precision="bfloat16"))


def test_a_list_of_one_width_is_that_width() -> None:
    wide = [point("fc", mode="train", model={"nodes": nodes}) for nodes in (64, [64] * 4, [64, 64, 64, 32])]
    assert point_id(wide[0]) == point_id(wide[1]) != point_id(wide[2])
    # As it was before widths could be listed.
    assert point_id(read_point({"model": {"name": "fc", "nodes": 64}})) == "5996aab90aa670df"
    assert wide[2].model.size == "64-64-64-32"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("gemm", {"mode": "train"}, "mode=train: model=gemm trains nothing; leave it out, or set mode=inference"),
        ("gemm", {"batch_size": 8}, "batch_size=8: model=gemm has no batch; leave it out, and set model.n"),
        ("sparse_gemm", {"batch_size": 8}, "batch_size=8: model=sparse_gemm has no batch"),
        (
            "elementwise",
            {"batch_size": 8},
            "batch_size=8: model=elementwise has no batch; leave it out, and set model.elements",
        ),
        ("conv2d", {"batch_size": 2, "devices": 2}, "devices=2: model=conv2d is for one device; set devices=1"),
        ("gemm", {"data": {"name": "images"}}, "data=images: model=gemm takes no images"),
        ("gemm", {"model": {"m": 0}}, "model.m=0: must be at least 1"),
        ("gemm", {"model": {"n": 2**31}}, f"model.n={2**31}: must be at most {2**31 - 1}"),
        (
            "gemm",
            {"model": {"m": 2**30, "n": 2**30, "k": 4}},
            f"model.m={2**30}: makes 9.22e+18 FLOP with model.n={2**30} model.k=4, more than 64 bits count",
        ),
        ("conv2d", {"model": {"stride": 0}}, "model.stride=0: must be at least 1"),
        (
            "conv2d",
            {"model": {"kernel": [1, 2, 3]}},
            "model.kernel=[1, 2, 3]: expects one number or 2; write for example model.kernel=[3,4]",
        ),
        (
            "conv2d",
            {"model": {"width": 4, "kernel": [3, 7]}},
            "model.kernel=[3, 7]: a filter of width 7 does not fit model.width=4 with padding 1",
        ),
        ("rnn_kernel", {"model": {"steps": 0}}, "model.steps=0: must be at least 1"),
        ("rnn_kernel", {"model": {"cell": "rnn"}}, "model.cell=rnn: no such choice"),
        ("elementwise", {"model": {"operations": 257}}, "model.operations=257: must be at most 256"),
        ("sparse_gemm", {"model": {"density": 1.5}}, "model.density=1.5: must be at most 1.0"),
        ("sparse_gemm", {"model": {"density": -0.1}}, "model.density=-0.1: must be at least 0.0"),
        ("sparse_gemm", {"model": {"density": 0.0}}, "model.density=0.0: leaves none of 19,660,800 elements"),
    ],
)
def test_what_a_kernel_has_not_is_said_in_a_line(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        point(name, **given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
