"""PyTorch's trace: a planted trace whose times and costs are calculated by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paradnn.worker.profile.categories import categorize
from paradnn.worker.profile.kineto import FILE, aten_cost, read_kineto
from paradnn.worker.profile.run import make_profile
from paradnn.worker.profile.shapes import Cost

#: Begin of the trace in microseconds since boot, as large as in practice.
BEGIN = 4_393_164_472_468.0


def call_event(
    name: str,
    start: float,
    length: float,
    number: int,
    dims: Any = (),
    types: Any = (),
    values: Any = (),
) -> Any:
    arguments = {
        "External id": number,
        "Input Dims": dims,
        "Input type": types,
        "Concrete Inputs": values,
    }
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "tid": 1,
        "ts": BEGIN + start,
        "dur": length,
        "args": arguments,
    }


def kernel_event(name: str, start: float, length: float, number: int) -> Any:
    arguments = {"External id": number, "stream": 7}
    return call_event(name, start, length, number) | {"cat": "kernel", "tid": 7, "args": arguments}


WINDOW = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "paradnn_steps",
    "tid": 1,
    "ts": BEGIN,
    "dur": 100.0,
    "args": {},
}
FLOAT = "float"
CALLS = [
    call_event("aten::matmul", 0, 40, 1, [[8, 5], [5, 3]], [FLOAT, FLOAT], ["", ""]),
    call_event("aten::mm", 10, 30, 2, [[8, 5], [5, 3]], [FLOAT, FLOAT], ["", ""]),
    call_event(
        "aten::copy_", 15, 5, 3, [[8, 5], [8, 5]], [FLOAT, FLOAT], ["", ""]
    ),  # a part within the product
    call_event("aten::add", 50, 20, 4, [[8, 3], [3], []], [FLOAT, FLOAT, "Scalar"], ["", "", "1"]),
]
#: Types of the inputs of aten::convolution_backward.
BACKWARD_TYPES = [
    FLOAT,
    FLOAT,
    FLOAT,
    *["ScalarList"] * 4,
    "Scalar",
    "ScalarList",
    "Scalar",
    "ScalarList",
]


def write(folder: Path, events: list[Any]) -> Path:
    with gzip.open(folder / FILE, "wt") as handle:
        json.dump({"traceEvents": events}, handle)
    return folder


def profile_rows(folder: Path, on_device: bool = False) -> dict[str, dict[str, Any]]:
    trace = read_kineto(folder, on_device=on_device)
    table = make_profile(trace, 1, 1.0, lambda name, kind: Cost(kind, "other"))
    return {entry["operation"]: entry for entry in table.operations.rows()}


def test_the_time_of_a_product_includes_its_callees(tmp_path: Path) -> None:
    table = profile_rows(write(tmp_path, [WINDOW, *CALLS]))
    assert set(table) == {
        "aten::matmul",
        "aten::mm(8x5, 5x3)",
        "aten::add(8x3, 3)",
        "(no operation)",
    }
    product = table["aten::mm(8x5, 5x3)"]
    assert product["self_seconds"] == pytest.approx(30e-6)
    assert (product["category"], product["flops"], product["bytes"]) == (
        "matmul",
        2 * 8 * 5 * 3,
        4 * (40 + 15 + 24),
    )
    caller = table["aten::matmul"]
    assert (caller["category"], caller["flops"]) == ("control", 0)
    assert caller["self_seconds"] == pytest.approx(10e-6)
    addition = table["aten::add(8x3, 3)"]
    assert (addition["category"], addition["flops"], addition["bytes"]) == (
        "elementwise",
        24,
        4 * (24 + 3 + 24),
    )
    assert table["(no operation)"]["wall_seconds"] == pytest.approx(40e-6)


def test_kernels_belong_to_the_call_that_launched_them(tmp_path: Path) -> None:
    """All kernels of a call form one execution; a kernel without a call has its own row."""
    kernels = [
        kernel_event("transform", 20, 5, 3),
        kernel_event("void gemm<float>(int)", 25, 30, 2),
        kernel_event("add_kernel", 60, 10, 4),
        kernel_event("void triton_red_fused_sum_0(float*)", 80, 10, 99),
    ]
    table = profile_rows(write(tmp_path, [WINDOW, *CALLS, *kernels]), on_device=True)
    assert set(table) == {
        "aten::mm(8x5, 5x3)",
        "aten::add(8x3, 3)",
        "triton_red_fused_sum_0",
        "(no operation)",
    }
    assert table["aten::mm(8x5, 5x3)"]["flops"] == 2 * 8 * 5 * 3
    assert table["aten::mm(8x5, 5x3)"]["self_seconds"] == pytest.approx(35e-6)
    assert table["aten::mm(8x5, 5x3)"]["count"] == 1
    assert table["triton_red_fused_sum_0"]["flops"] is None
    assert table["(no operation)"]["wall_seconds"] == pytest.approx(45e-6)


def arguments(dims: Any, types: Any, values: Any) -> Any:
    return {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}


def test_costs_of_calls_agree_with_hand_calculations() -> None:
    half = "c10::BFloat16"
    batched = aten_cost("aten::bmm", arguments([[4, 8, 5], [4, 5, 3]], [half, half], ["", ""]))
    assert (batched.flops, batched.product_flops, batched.dtype) == (
        2 * 4 * 8 * 5 * 3,
        2 * 4 * 8 * 5 * 3,
        "bfloat16",
    )
    assert batched.bytes == 2 * (160 + 60 + 96)
    biased = aten_cost(
        "aten::addmm",
        arguments(
            [[3], [8, 5], [5, 3], [], []], [FLOAT, FLOAT, FLOAT, "Scalar", "Scalar"], [""] * 5
        ),
    )
    assert biased.product_flops == 2 * 8 * 5 * 3
    lists = ["TensorList", "TensorList", "Scalar"]
    shapes = [[5, 3], [3]]
    several = aten_cost(
        "aten::_foreach_add_", arguments([shapes, shapes, []], lists, ["", "", "1"])
    )
    assert (several.flops, several.bytes) == (18, 4 * 3 * 18)
    assert aten_cost("aten::sum", arguments([[8, 3]], [FLOAT], [""])).flops == 24
    assert aten_cost("aten::view", arguments([[8, 3]], [FLOAT], [""])).bytes == 0
    assert aten_cost("MmBackward0", arguments([[8, 3]], [FLOAT], [""])).category == "control"


def test_flops_of_convolutions_agree_with_hand_calculations() -> None:
    """Convolve 69 x 69 pixels with a kernel of 7 and a stride of 2, which gives 32 x 32 pixels.

    The backward pass computes only the gradients that its mask requests.
    """
    types = [
        FLOAT,
        FLOAT,
        "",
        "ScalarList",
        "ScalarList",
        "ScalarList",
        "Scalar",
        "ScalarList",
        "Scalar",
    ]
    values = ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    shapes = [[4, 3, 69, 69], [8, 3, 7, 7], [], [], [], [], [], [], []]
    forward = 2 * 4 * 8 * 32 * 32 * 49 * 3
    assert aten_cost("aten::convolution", arguments(shapes, types, values)).product_flops == forward
    padded = [*values[:4], "[1]", *values[5:]]
    assert (
        aten_cost("aten::convolution", arguments(shapes, types, padded)).product_flops
        == forward * 33**2 / 32**2
    )
    shapes = [[4, 8, 32, 32], [4, 3, 69, 69], [8, 3, 7, 7], [], [], [], [], [], [], [], []]
    for mask, times in (("[False, True, False]", 1), ("[True, True, False]", 2)):
        values = ["", "", "", "[0]", "[2, 2]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", mask]
        cost = aten_cost("aten::convolution_backward", arguments(shapes, BACKWARD_TYPES, values))
        assert cost.product_flops == times * forward


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("implicit_convolve_sgemm", "convolution"),
        ("wrapped_convert", "data movement"),
        ("convert_reduce", "reduction"),
    ],
)
def test_a_kernel_that_converts_types_is_no_convolution(name: str, category: str) -> None:
    assert categorize("kernel", name) == category


TRANSPOSED = ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]


@pytest.mark.parametrize(
    ("weight", "flops"),
    [
        pytest.param([6, 8, 3, 3], 2 * 4 * 6 * 16 * 16 * 8 * 9, id="one-group"),
        pytest.param([6, 4, 3, 3], 2 * 4 * 6 * 16 * 16 * 4 * 9, id="two-groups"),
    ],
)
def test_a_transposed_convolution_multiplies_every_input_by_the_filter(
    weight: list[int], flops: int
) -> None:
    shapes = [[4, 6, 16, 16], weight, *[[]] * 7]
    types = [FLOAT, FLOAT, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]

    cost = aten_cost("aten::convolution", arguments(shapes, types, TRANSPOSED))

    assert cost.product_flops == flops


def test_gradients_of_a_transposed_convolution_cost_twice_the_forward_pass() -> None:
    shapes = [[4, 8, 33, 33], [4, 3, 16, 16], [3, 8, 3, 3], *[[]] * 8]
    values = ["", "", "", "[0]", *TRANSPOSED[3:], "[True, True, False]"]

    cost = aten_cost("aten::convolution_backward", arguments(shapes, BACKWARD_TYPES, values))

    assert cost.product_flops == 2 * (2 * 4 * 3 * 16 * 16 * 8 * 9)


@pytest.mark.parametrize(
    ("kind", "shapes", "flops"),
    [
        pytest.param(
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            [[1, 12, 64, 64]] * 3,
            12_582_912,
            id="attention",
        ),
        pytest.param(
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            [[1, 12, 64, 64], [1, 4, 32, 64], [1, 4, 32, 16]],
            2 * 12 * 64 * 32 * (64 + 16),
            id="attention-with-other-value-width",
        ),
        pytest.param(
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            [[1, 12, 64, 64]] * 5,
            2 * 12_582_912,
            id="attention-backward",
        ),
        pytest.param(
            "aten::_efficient_attention_forward",
            [[2, 10, 4, 16], [2, 20, 4, 16], [2, 20, 4, 16]],
            2 * 2 * 4 * 10 * 20 * 32,
            id="attention-with-tokens-first",
        ),
        pytest.param(
            "aten::mkldnn_rnn_layer",
            [[7, 4, 10], [80, 10], [80, 20], [80], [80]],
            2 * 28 * 80 * 30,
            id="recurrence",
        ),
        pytest.param(
            "aten::addbmm", [[4, 6], [3, 4, 5], [3, 5, 6]], 2 * 3 * 4 * 5 * 6, id="addbmm"
        ),
        pytest.param("aten::_int_mm", [[32, 16], [16, 8]], 2 * 32 * 16 * 8, id="int8"),
    ],
)
def test_flops_of_products_agree_with_hand_calculations(
    kind: str, shapes: list[list[int]], flops: int
) -> None:
    cost = aten_cost(kind, arguments(shapes, [FLOAT] * len(shapes), [""] * len(shapes)))

    assert (cost.category, cost.product_flops) == ("matmul", flops)


def test_a_fused_recurrence_multiplies_the_matrices_of_its_list() -> None:
    weights = [[80, 10], [80, 20], [80], [80]]
    recorded = arguments([[7, 4, 10], weights, []], [FLOAT, "TensorList", ""], ["", "", ""])

    forward_cost = aten_cost("aten::_cudnn_rnn", recorded)
    backward_cost = aten_cost("aten::_cudnn_rnn_backward", recorded)

    assert forward_cost.product_flops == 2 * 28 * 80 * 30
    assert backward_cost.product_flops == 2 * forward_cost.product_flops


def test_an_embedding_bag_sums_the_rows_of_its_indices() -> None:
    recorded = arguments([[100, 16], [40], [8]], [FLOAT, "long int", "long int"], ["", "", ""])

    cost = aten_cost("aten::_embedding_bag", recorded)

    assert (cost.category, cost.flops) == ("reduction", 40 * 16)
    assert cost.bytes == 4 * 16 * (40 + 8) + 8 * (40 + 8)
