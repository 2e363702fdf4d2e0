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
from tests.worker.kernel_oracle import convolution, gradient, recurrent_layer

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
    """Return a layer's inputs, weights and first state, and for an LSTM its first memory."""
    memory = [STATES["memory"]] if name == "lstm" else []
    return [STATES["inputs"], CELL_WEIGHTS[name], STATES["state"], *memory]


def expected_layer(name: str) -> Values:
    return recurrent_layer(name, *arguments(name))


def backward_operands(name: str) -> list[np.ndarray]:
    kept = expected_layer(name)
    keys = {
        "vanilla": ["outputs"],
        "lstm": ["gates", "memories"],
        "gru": ["gates", "states", "products"],
    }[name]
    return [STATES["cotangent"], CELL_WEIGHTS[name], *(kept[key] for key in keys)]


def cases() -> dict[str, tuple[dict[str, Any], list[np.ndarray]]]:
    """Return each kernel's options, and its operands in the kernel's own layout."""
    kernel_cases: dict[str, tuple[dict[str, Any], list[np.ndarray]]] = {}
    for a in (False, True):
        for b in (False, True):
            left = normal(5, 7)
            right = normal(7, 6)
            options = {"name": "gemm", "m": 5, "n": 6, "k": 7, "transpose_a": a, "transpose_b": b}
            kernel_cases[f"gemm {a} {b}"] = (
                options,
                [left.T if a else left, right.T if b else right],
            )
    for layout in ("NHWC", "NCHW"):
        images, cotangent = (
            results_by_mode if layout == "NHWC" else results_by_mode.transpose(0, 3, 1, 2)
            for results_by_mode in (IMAGES, COTANGENT)
        )
        operands_by_direction = ([images, WEIGHTS], [cotangent, WEIGHTS], [images, cotangent])
        for direction, operands in zip(DIRECTIONS, operands_by_direction, strict=True):
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
            kernel_cases[f"conv2d {layout} {direction}"] = options, operands
    for name in CELLS:
        gates = normal(4, 2, CELL_WEIGHTS[name].shape[1])
        operands_by_direction = (
            arguments(name),
            backward_operands(name),
            [STATES["inputs"], gates],
        )
        for direction, operands in zip(DIRECTIONS, operands_by_direction, strict=True):
            options = {
                "name": "rnn_kernel",
                "cell": name,
                "hidden": 3,
                "steps": 4,
                "direction": direction,
            }
            kernel_cases[f"rnn {name} {direction}"] = options, operands
    counts = np.array([2, 0, 1], np.int32)
    columns = np.array([1, 3, 0], np.int32)
    sparse = {"name": "sparse_gemm", "m": 3, "n": 2, "k": 4, "density": 0.25}
    operands = [counts, columns, normal(3), normal(4, 2)]
    kernel_cases["sparse"] = sparse, operands
    kernel_cases["sparse csr"] = {**sparse, "storage": "csr"}, operands
    kernel_cases["chain"] = (
        {"name": "elementwise", "elements": 5, "operations": 3},
        [normal(5), normal(5)],
    )
    return kernel_cases


CASES = cases()


@pytest.fixture(scope="module", params=NAMES)
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Values]:
    """Return a framework and its results for all cases in all compile modes.

    A separate process computes the results.
    """
    folder = tmp_path_factory.mktemp(request.param)
    inputs_by_name: dict[str, Any] = {}
    for case, (options, operands) in CASES.items():
        inputs_by_name[f"{case}/model"] = json.dumps(options)
        for index, operand in enumerate(operands):
            inputs_by_name[f"{case}/{index}"] = (
                operand.astype(np.float32) if operand.dtype == np.float64 else operand
            )
    np.savez(folder / "in.npz", **inputs_by_name)
    run_module(
        "kernel_results",
        request.param,
        [request.param, MODES[request.param], "in.npz", "out.npz"],
        folder,
    )
    with np.load(folder / "out.npz") as values:
        return request.param, dict(values)


def results_by_mode(answers: tuple[str, Values], case: str) -> list[tuple[str, list[np.ndarray]]]:
    """Return pairs of a compile mode and the results of a case in it.

    Unsupported combinations are omitted: on a CPU, TensorFlow's own convolutions support only
    channels last. XLA supports both layouts, but not TensorFlow's sparse product.
    """
    name, values = answers
    results = []
    for mode in MODES[name].split(","):
        error = values.get(f"{mode}/{case}/error")
        if error:
            unsupported = "sparse" if mode == "xla" else "NCHW"
            assert name == "tensorflow", f"{name} {mode} {case}: {error}"
            assert unsupported in case, f"{mode} {case}: {error}"
            continue
        keys = [key for key in values if key.startswith(f"{mode}/{case}/") and key[-1].isdigit()]
        results.append((mode, [values[key] for key in keys]))
    return results


def assert_close(result: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("gemm")])
def test_matrix_products_agree_with_numpy_in_each_storage_order(
    answers: tuple[str, Values], case: str
) -> None:
    options, (left, right) = CASES[case]
    left = left.T if options["transpose_a"] else left
    right = right.T if options["transpose_b"] else right
    for _, (result,) in results_by_mode(answers, case):
        assert_close(result, left @ right)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_convolutions_and_their_gradients_agree_with_numpy(
    answers: tuple[str, Values], layout: str
) -> None:
    def product(images: np.ndarray, weights: np.ndarray) -> float:
        return float((convolution(images, weights, STRIDE, PADDING) * COTANGENT).sum())

    expected = (
        OUTPUT,
        gradient(lambda images: product(images, WEIGHTS), IMAGES),
        gradient(lambda weights: product(IMAGES, weights), WEIGHTS),
    )
    for direction, wanted in zip(DIRECTIONS, expected, strict=True):
        for _, (found,) in results_by_mode(answers, f"conv2d {layout} {direction}"):
            is_torch = answers[0] == "torch"
            if direction == "backward_weights":
                # PyTorch's filters have the axes (filters, channels, height, width).
                result = found.transpose(2, 3, 1, 0) if is_torch else found
            else:
                is_channels_first = layout == "NCHW" or is_torch
                result = found.transpose(0, 2, 3, 1) if is_channels_first else found
            assert_close(result, wanted)


@pytest.mark.parametrize("name", CELLS)
def test_recurrent_layers_agree_with_numpy(answers: tuple[str, Values], name: str) -> None:
    for _, results in results_by_mode(answers, f"rnn {name} forward"):
        assert_close(results[0], expected_layer(name)["outputs"])
        if name == "lstm":
            assert_close(results[1], expected_layer(name)["memory"])


@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_recurrent_layers_agree_with_numpy(
    answers: tuple[str, Values], name: str
) -> None:
    def loss(position: int, value: np.ndarray) -> float:
        layer_arguments = arguments(name)
        layer_arguments[position] = value
        return float(
            (recurrent_layer(name, *layer_arguments)["outputs"] * STATES["cotangent"]).sum()
        )

    _, weights, state, *memory = (
        gradient(lambda value, place=position: loss(place, value), argument)  # type: ignore[misc]
        for position, argument in enumerate(arguments(name))
    )
    for _, (before, *first) in results_by_mode(answers, f"rnn {name} backward_input"):
        assert_close(np.einsum("tbh,tbg->hg", expected_layer(name)["states"], before), weights)
        assert_close(first[0], state)
        for result, expected in zip(first[1:], memory, strict=True):
            assert_close(result, expected)
    states, gates = CASES[f"rnn {name} backward_weights"][1]
    for _, (result,) in results_by_mode(answers, f"rnn {name} backward_weights"):
        assert_close(result, np.einsum("tbh,tbg->hg", states, gates))


@pytest.mark.parametrize("case", ["sparse", "sparse csr"])
def test_sparse_products_equal_those_of_the_dense_matrix(
    answers: tuple[str, Values], case: str
) -> None:
    counts, columns, values, right = CASES[case][1]
    dense = np.zeros((3, 4))
    dense[np.repeat(np.arange(3), counts), columns] = values
    results = results_by_mode(answers, case)
    assert results
    for _, (result,) in results:
        assert_close(result, dense @ right)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.startswith(("gemm", "conv2d NHWC"))]
)
def test_the_compiled_program_contains_the_whole_product(
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
    lower_bound = 0.8 * flops if "backward_input" in case else flops
    assert all(lower_bound <= count <= flops for count in stated.values()), (stated, flops)
