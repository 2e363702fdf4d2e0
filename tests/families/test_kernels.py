"""Costs of kernels, compared with DeepBench's spreadsheets and its lists of problems."""

import csv
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from paradnn.core.layers import Costs
from paradnn.families import FAMILIES, make_model
from tests.conftest import ROOT

#: Number of rows in DeepBench's lists, with duplicates.
PROBLEMS = {
    "train": {"gemm": 160, "conv2d": 94, "rnn_kernel": 53},
    "server": {"gemm": 75, "conv2d": 107, "rnn_kernel": 69, "sparse_gemm": 24},
    "device": {"gemm": 13, "conv2d": 16, "rnn_kernel": 3, "sparse_gemm": 8},
}
#: Number of distinct convolutions.
CONVOLUTIONS = {"train": 90, "server": 103, "device": 15}

Problem = tuple[tuple[str, Any], ...]


def costs(name: str, batch_size: int = 1, precision: str = "float32", **options: Any) -> Costs:
    model = asdict(FAMILIES[name].options(name=name, **options))
    return make_model(model).costs(
        batch_size=batch_size, precision=precision, mode="inference", optimizer="rmsprop"
    )


def problems(preset: str) -> list[Problem]:
    """Return the problems of a preset with the keys of its grids, without their directions."""
    path = ROOT / "conf" / "experiment" / f"deepbench_{preset}.yaml"
    grids = yaml.safe_load(path.read_text())["sweep"]["grids"]
    entries = []
    for grid in grids:
        grid.pop("model.direction", None)
        if FAMILIES[grid["model"]].options.has_batch:
            swept = "batch_size"
        else:
            swept = "model.n"
        entries += [
            tuple(sorted({**grid, swept: int(size)}.items()))
            for size in str(grid[swept]).split(",")
        ]
    return entries


@pytest.mark.parametrize("preset", PROBLEMS)
def test_presets_have_the_same_numbers_of_problems_as_deepbench(preset: str) -> None:
    entries = problems(preset)

    assert Counter(dict(problem)["model"] for problem in entries) == PROBLEMS[preset]
    convolutions = {problem for problem in entries if ("model", "conv2d") in problem}
    assert len(convolutions) == CONVOLUTIONS[preset]
    if preset == "server":
        # Eight lines of DeepBench's header have M=7860, but its spreadsheets measure M=7680.
        sparse = [dict(problem) for problem in entries if ("model", "sparse_gemm") in problem]
        assert {problem["model.m"] for problem in sparse} == {7680, 10752}


def test_the_preset_of_eie_has_the_layers_of_its_paper() -> None:
    """Compare with Han et al. 2016, table III: inputs, outputs and percentage of kept weights."""
    grids = yaml.safe_load((ROOT / "conf/experiment/eie.yaml").read_text())["sweep"]["grids"]
    layers = [(grid["model.k"], grid["model.m"], 100 * grid["model.density"]) for grid in grids]
    assert layers == [
        (9216, 4096, 9),
        (4096, 4096, 9),
        (4096, 1000, 25),
        (25088, 4096, 4),
        (4096, 4096, 4),
        (4096, 1000, 23),
        (4096, 600, 10),
        (600, 8791, 11),
        (1201, 2400, 10),
    ]
    assert {(grid["model.n"], grid["model.storage"]) for grid in grids} == {
        ("1,64", "dense,sparse,csr")
    }


def stated() -> list[tuple[str, int, Mapping[str, Any], int]]:
    """Return model, batch size, options and FLOPs of each row of DeepBench's spreadsheet."""
    lines = Path(__file__).with_name("deepbench_flops.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return [
        (
            row["model"],
            int(row["batch_size"]),
            dict(map(option, row["options"].split())),
            int(row["flop"]),
        )
        for row in rows
    ]


def option(text: str) -> tuple[str, Any]:
    """Return key and value of an option such as `m=1760`, `kernel=5x20` or `cell=lstm`."""
    key, _, value = text.partition("=")
    if not re.fullmatch(r"[\dx]+", value):
        return key, value
    return key, tuple(map(int, value.split("x"))) if "x" in value else int(value)


def test_flops_equal_those_of_the_spreadsheet() -> None:
    rows = stated()
    assert Counter(name for name, *_ in rows) == PROBLEMS["train"]
    for name, batch_size, options, flops in rows:
        # For a vanilla cell, the spreadsheet also counts the addition of the inputs.
        if options.get("cell") == "vanilla":
            additions = options["steps"] * batch_size * options["hidden"]
        else:
            additions = 0
        assert costs(name, batch_size, **options).flops_per_step == flops - additions, (
            name,
            options,
        )


def test_the_training_preset_equals_the_spreadsheet() -> None:
    """Compare all problems except for a known difference.

    Eight products have K=1536 in DeepBench's header and in AMD's spreadsheets, and K=1530 in this
    spreadsheet.
    """

    def sizes(name: str, batch_size: int, options: Mapping[str, Any]) -> tuple[Any, ...]:
        if options.get("k") == 1530:
            options = {**options, "k": 1536}
        return (
            name,
            batch_size,
            *sorted((key, str(value).replace(" ", "")) for key, value in options.items()),
        )

    expected = Counter(
        sizes(name, batch_size, options) for name, batch_size, options, _ in stated()
    )
    entries = []
    for problem in map(dict, problems("train")):
        options = {
            key.removeprefix("model."): value
            for key, value in problem.items()
            if key.startswith("model.")
        }
        for key in ("transpose_a", "transpose_b"):
            options.pop(key, None)
        for key in {"kernel", "stride", "padding"} & options.keys():
            pair = yaml.safe_load(str(options[key]))
            options[key] = tuple(pair) if isinstance(pair, list) else (pair, pair)
        entries.append(sizes(str(problem["model"]), problem.get("batch_size", 1), options))
    assert Counter(entries) == expected


every_width = pytest.mark.parametrize(
    ("precision", "width"),
    [("float32", 4), ("bfloat16", 2), ("float16", 2), ("int8", 1), ("int8_dynamic", 4)],
)


@every_width
def test_a_product_moves_operands_and_result_once(precision: str, width: int) -> None:
    kernel_costs = costs("gemm", precision=precision, m=3, n=5, k=7)

    assert kernel_costs == Costs(
        0, 0, 2 * 3 * 5 * 7, 0, 210, width * (21 + 35 + 15), width * (21 + 35 + 15)
    )


@every_width
@pytest.mark.parametrize("direction", ["forward", "backward_input", "backward_weights"])
def test_a_convolution_moves_operands_and_result_once(
    direction: str, precision: str, width: int
) -> None:
    """Use 2 images of 3 x 9 x 8, filters of 3 x 5, stride 2 x 1 and padding 1 x 2.

    The output has 5 x 8 pixels.
    """
    options = {
        "channels": 3,
        "height": 9,
        "width": 8,
        "filters": 6,
        "kernel": (3, 5),
        "stride": (2, 1),
    }
    elements = 2 * 3 * 9 * 8 + 6 * 3 * 3 * 5 + 2 * 6 * 5 * 8
    flops = 2 * 2 * 5 * 8 * 6 * 3 * 3 * 5

    kernel_costs = costs("conv2d", 2, precision, padding=(1, 2), direction=direction, **options)

    assert kernel_costs.bytes_per_step == kernel_costs.memory_lower_bound_bytes == width * elements
    if direction == "forward":
        assert (kernel_costs.forward_flops, kernel_costs.backward_flops) == (flops, 0)
    else:
        assert (kernel_costs.forward_flops, kernel_costs.backward_flops) == (0, flops)


@pytest.mark.parametrize(
    ("cell", "direction", "shapes"),
    [
        pytest.param(
            "vanilla", "forward", [(4, 2, 3), (3, 3), (2, 3), (4, 2, 3)], id="vanilla-forward"
        ),
        pytest.param(
            "lstm",
            "forward",
            [(4, 2, 3), (3, 12), (2, 3), (2, 3), (4, 2, 3), (2, 3)],
            id="lstm-forward",
        ),
        pytest.param(
            "gru",
            "backward_input",
            [(4, 2, 3), (3, 9), (4, 2, 9), (4, 2, 3), (4, 2, 3), (4, 2, 9), (2, 3)],
            id="gru-backward-input",
        ),
        pytest.param(
            "lstm",
            "backward_input",
            [(4, 2, 3), (3, 12), (4, 2, 12), (4, 2, 3), (4, 2, 12), (2, 3), (2, 3)],
            id="lstm-backward-input",
        ),
        pytest.param(
            "lstm",
            "backward_weights",
            [(4, 2, 3), (4, 2, 12), (3, 12)],
            id="lstm-backward-weights",
        ),
    ],
)
def test_a_recurrent_kernel_moves_its_inputs_weights_states_and_outputs(
    cell: str, direction: str, shapes: list[tuple[int, ...]]
) -> None:
    """Compare with the total size of all arrays, for 4 steps of 2 examples and 3 units.

    `shapes` are those of inputs, weights, states and outputs.
    """
    kernel = costs("rnn_kernel", 2, cell=cell, hidden=3, steps=4, direction=direction)
    assert kernel.bytes_per_step == 4 * sum(map(prod, shapes))
    assert kernel.flops_per_step == 2 * 4 * 2 * 3 * {"vanilla": 3, "lstm": 12, "gru": 9}[cell]


def test_a_sparse_product_counts_only_stored_elements() -> None:
    sparse = costs("sparse_gemm", m=10, n=3, k=8, density=0.05)
    assert sparse.flops_per_step == 2 * 4 * 3
    # 4 values with their columns, the 11 bounds of the 10 rows, and 4 of the 8 rows of the dense
    # matrix.
    assert sparse.bytes_per_step == 4 * (4 + 4 + 11 + 4 * 3 + 10 * 3)
    dense = costs("sparse_gemm", m=10, n=3, k=8, density=1.0)
    assert dense.flops_per_step == costs("gemm", m=10, n=3, k=8).flops_per_step
    stored_zeros = costs("sparse_gemm", m=10, n=3, k=8, density=0.05, storage="dense")
    assert stored_zeros == costs("gemm", m=10, n=3, k=8)
    assert make_model({"name": "gemm"}).layer_count() == 1
