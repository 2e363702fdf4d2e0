"""Results of kernels in each framework compared with NumPy.

`make test-frameworks` includes JAX and PyTorch.
"""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from paradnn.families import FAMILIES, make_model
from tests.worker.families import run_module
from tests.worker.kernel_oracle import cell, convolution, gradient

MODES = {"tensorflow": "graph,xla,eager", "jax": "graph,eager", "torch": "eager,graph"}
NAMES = [name for name in MODES if importlib.util.find_spec(name)]
CELLS = ("vanilla", "lstm", "gru")
DIRECTIONS = ("forward", "backward_input", "backward_weights")
BATCH = 2
SIZE = (9, 8)
STRIDE = (2, 1)
PADDING = (1, 2)
FILTERS = (3, 5, 4, 6)
RANDOM = np.random.default_rng(0)

Values = Mapping[str, Any]


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


IMAGES = normal(BATCH, *SIZE, 4)
WEIGHTS = normal(*FILTERS)
OUTPUT = convolution(IMAGES, WEIGHTS, STRIDE, PADDING)
COTANGENT = normal(*OUTPUT.shape)
STATES = {name: normal(4, 2, 3) for name in ("inputs", "cotangent")} | {
    "state": normal(2, 3),
    "memory": normal(2, 3),
}
CELL_WEIGHTS = {"vanilla": normal(3, 3), "lstm": normal(3, 12), "gru": normal(3, 9)}


def arguments(name: str) -> list[np.ndarray]:
    """Return inputs, weights and the first state, and for LSTM the first memory."""
    memory = [STATES["memory"]] if name == "lstm" else []
    return [STATES["inputs"], CELL_WEIGHTS[name], STATES["state"], *memory]


def known(name: str) -> Values:
    return cell(name, *arguments(name))


def backward_operands(name: str) -> list[np.ndarray]:
    kept = known(name)
    keys = {
        "vanilla": ["outputs"],
        "lstm": ["gates", "memories"],
        "gru": ["gates", "states", "products"],
    }[name]
    return [STATES["cotangent"], CELL_WEIGHTS[name], *(kept[key] for key in keys)]


def cases() -> dict[str, tuple[dict[str, Any], list[np.ndarray]]]:
    """Return options of each kernel, and its operands as the kernel draws them."""
    found: dict[str, tuple[dict[str, Any], list[np.ndarray]]] = {}
    for a in (False, True):
        for b in (False, True):
            left = normal(5, 7)
            right = normal(7, 6)
            options = {"name": "gemm", "m": 5, "n": 6, "k": 7, "transpose_a": a, "transpose_b": b}
            found[f"gemm {a} {b}"] = options, [left.T if a else left, right.T if b else right]
    for layout in ("NHWC", "NCHW"):
        images, cotangent = (
            each if layout == "NHWC" else each.transpose(0, 3, 1, 2) for each in (IMAGES, COTANGENT)
        )
        given = ([images, WEIGHTS], [cotangent, WEIGHTS], [images, cotangent])
        for direction, operands in zip(DIRECTIONS, given, strict=True):
            options = {
                "name": "conv2d",
                "channels": 4,
                "height": 9,
                "width": 8,
                "filters": 6,
                "kernel": [3, 5],
            }
            options |= {
                "stride": STRIDE,
                "padding": PADDING,
                "layout": layout,
                "direction": direction,
            }
            found[f"conv2d {layout} {direction}"] = options, operands
    for name in CELLS:
        gates = normal(4, 2, CELL_WEIGHTS[name].shape[1])
        given = (arguments(name), backward_operands(name), [STATES["inputs"], gates])
        for direction, operands in zip(DIRECTIONS, given, strict=True):
            options = {
                "name": "rnn_kernel",
                "cell": name,
                "hidden": 3,
                "steps": 4,
                "direction": direction,
            }
            found[f"rnn {name} {direction}"] = options, operands
    counts = np.array([2, 0, 1], np.int32)
    columns = np.array([1, 3, 0], np.int32)
    sparse = {"name": "sparse_gemm", "m": 3, "n": 2, "k": 4, "density": 0.25}
    operands = [counts, columns, normal(3), normal(4, 2)]
    found["sparse"] = sparse, operands
    found["sparse csr"] = {**sparse, "storage": "csr"}, operands
    found["chain"] = {"name": "elementwise", "elements": 5, "operations": 3}, [normal(5), normal(5)]
    return found


CASES = cases()


@pytest.fixture(scope="module", params=NAMES)
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Values]:
    """Return a framework and its results of all cases in all compile modes.

    A separate process computes them.
    """
    folder = tmp_path_factory.mktemp(request.param)
    given: dict[str, Any] = {}
    for case, (options, operands) in CASES.items():
        given[f"{case}/model"] = json.dumps(options)
        for index, operand in enumerate(operands):
            given[f"{case}/{index}"] = (
                operand.astype(np.float32) if operand.dtype == np.float64 else operand
            )
    np.savez(folder / "in.npz", **given)
    run_module(
        "kernel_results",
        request.param,
        [request.param, MODES[request.param], "in.npz", "out.npz"],
        folder,
    )
    with np.load(folder / "out.npz") as values:
        return request.param, dict(values)


def each(answers: tuple[str, Values], case: str) -> list[tuple[str, list[np.ndarray]]]:
    """Return the results of a case by compile mode.

    On a CPU, TensorFlow's own convolutions support only channels last, and XLA's support both
    layouts. XLA does not support TensorFlow's sparse product.
    """
    name, values = answers
    found = []
    for mode in MODES[name].split(","):
        error = values.get(f"{mode}/{case}/error")
        if error:
            lacking = "sparse" if mode == "xla" else "NCHW"
            assert name == "tensorflow", f"{name} {mode} {case}: {error}"
            assert lacking in case, f"{mode} {case}: {error}"
            continue
        keys = [key for key in values if key.startswith(f"{mode}/{case}/") and key[-1].isdigit()]
        found.append((mode, [values[key] for key in keys]))
    return found


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("gemm")])
def test_a_product_of_matrices_in_each_storage_order(
    answers: tuple[str, Values], case: str
) -> None:
    options, (left, right) = CASES[case]
    left = left.T if options["transpose_a"] else left
    right = right.T if options["transpose_b"] else right
    for _, (found,) in each(answers, case):
        close(found, left @ right)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_convolution_and_its_gradients(answers: tuple[str, Values], layout: str) -> None:
    def product(images: np.ndarray, weights: np.ndarray) -> float:
        return float((convolution(images, weights, STRIDE, PADDING) * COTANGENT).sum())

    expected = (
        OUTPUT,
        gradient(lambda images: product(images, WEIGHTS), IMAGES),
        gradient(lambda weights: product(IMAGES, weights), WEIGHTS),
    )
    for direction, wanted in zip(DIRECTIONS, expected, strict=True):
        for _, (found,) in each(answers, f"conv2d {layout} {direction}"):
            if direction == "backward_weights":  # PyTorch's are (filters, channels, height, width)
                close(found.transpose(2, 3, 1, 0) if answers[0] == "torch" else found, wanted)
            else:
                first = layout == "NCHW" or answers[0] == "torch"
                close(found.transpose(0, 2, 3, 1) if first else found, wanted)


@pytest.mark.parametrize("name", CELLS)
def test_a_recurrent_layer(answers: tuple[str, Values], name: str) -> None:
    for _, found in each(answers, f"rnn {name} forward"):
        close(found[0], known(name)["outputs"])
        if name == "lstm":
            close(found[1], known(name)["memory"])


@pytest.mark.parametrize("name", CELLS)
def test_the_gradients_of_a_recurrent_layer(answers: tuple[str, Values], name: str) -> None:
    def loss(place: int, value: np.ndarray) -> float:
        given = arguments(name)
        given[place] = value
        return float((cell(name, *given)["outputs"] * STATES["cotangent"]).sum())

    _, weights, state, *memory = (
        gradient(lambda value, place=place: loss(place, value), argument)  # type: ignore[misc]
        for place, argument in enumerate(arguments(name))
    )
    for _, (before, *first) in each(answers, f"rnn {name} backward_input"):
        close(np.einsum("tbh,tbg->hg", known(name)["states"], before), weights)
        close(first[0], state)
        for found, wanted in zip(first[1:], memory, strict=True):
            close(found, wanted)
    states, gates = CASES[f"rnn {name} backward_weights"][1]
    for _, (found,) in each(answers, f"rnn {name} backward_weights"):
        close(found, np.einsum("tbh,tbg->hg", states, gates))


@pytest.mark.parametrize("case", ["sparse", "sparse csr"])
def test_a_sparse_product_is_that_of_the_dense_matrix(
    answers: tuple[str, Values], case: str
) -> None:
    counts, columns, values, right = CASES[case][1]
    dense = np.zeros((3, 4))
    dense[np.repeat(np.arange(3), counts), columns] = values
    results = each(answers, case)
    assert results
    for _, (found,) in results:
        close(found, dense @ right)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.startswith(("gemm", "conv2d NHWC"))]
)
def test_the_program_that_runs_has_the_whole_product_in_it(
    answers: tuple[str, Values], case: str
) -> None:
    name, values = answers
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in CASES[case][0].items()
    }
    model = asdict(FAMILIES[options["name"]].options(**options))
    batch = BATCH if options["name"] == "conv2d" else 1
    flops = (
        make_model(model)
        .costs(batch_size=batch, precision="float32", mode="inference", optimizer="sgd")
        .flops_per_step
    )
    counted = {mode: float(values[f"{mode}/{case}/flops"]) for mode in MODES[name].split(",")}
    stated = {mode: count for mode, count in counted.items() if count}
    assert stated, f"{name} states the FLOPs of no compile mode"
    # XLA omits the padding's share of the input's gradient.
    least = 0.8 * flops if "backward_input" in case else flops
    assert all(least <= count <= flops for count in stated.values()), (stated, flops)
