"""ONNX files: measurable inputs and outputs, parameters, calibration and FLOPs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradnn.core.errors import UnavailableError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from paradnn.families.own import content_of  # noqa: E402
from paradnn.families.parts.onnx_file import onnx_workload  # noqa: E402

FLOAT = TensorProto.FLOAT


def random_weights(*shape: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    return (generator.standard_normal(shape) / 10).astype("float32")


def describe_tensor(name: str, *shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def save_model(
    path: Path,
    nodes: Sequence[Any],
    *,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    initializers: Mapping[str, np.ndarray] | None = None,
    ir_version: int = 9,
    opset: int = 18,
) -> Path:
    """Save a graph as `net.onnx` in folder `path`; its output is "y" unless `outputs` is given."""
    graph = helper.make_graph(
        nodes,
        "graph",
        inputs,
        outputs or [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in (initializers or {}).items()],
    )
    versions = [
        helper.make_opsetid("", opset),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    model = helper.make_model(graph, opset_imports=versions, ir_version=ir_version)
    file = path / "net.onnx"
    onnx.save(model, file)
    return file


def save_perceptron(path: Path, *, lists_weights: bool) -> Path:
    """Save a perceptron of 40, 30 and 10 units.

    If `lists_weights`, the graph's inputs include every weight, as in old files.
    """
    initializers = {
        "w1": random_weights(40, 30),
        "b1": random_weights(30),
        "w2": random_weights(30, 10),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    inputs = [describe_tensor("x", "batch", 40)]
    if lists_weights:
        inputs = [*(describe_tensor(name, *w.shape) for name, w in initializers.items()), *inputs]
    return save_model(
        path,
        nodes,
        inputs=inputs,
        outputs=[describe_tensor("y", "batch", 10)],
        initializers=initializers,
        ir_version=3 if lists_weights else 9,
        opset=13,
    )


ADD = [helper.make_node("Add", ["x", "s"], ["y"])]
IDENTITY = [helper.make_node("Identity", ["x"], ["y"])]


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        pytest.param(
            [describe_tensor("x", "batch", 4), describe_tensor("s")],
            "input 's' of net.onnx is a scalar, without a batch axis",
            id="scalar",
        ),
        pytest.param(
            [describe_tensor("x", "batch", 4), describe_tensor("s", 2, "batch", 4)],
            "input 's' of net.onnx has the batch axis 'batch' as axis 1",
            id="batch-in-second-axis",
        ),
        pytest.param(
            [describe_tensor("x", 1, 4), describe_tensor("s", 2, 1, 4)],
            "input 's' of net.onnx has size 2 in its first axis, input 'x' of net.onnx has size 1",
            id="different-first-axes",
        ),
        pytest.param(
            [describe_tensor("x", "batch", "length"), describe_tensor("s", "batch", 4)],
            r"input 'x' of net.onnx has the shape \[batch, length\]: fix the open sizes",
            id="open-sizes-of-two-inputs",
        ),
        pytest.param(
            [
                describe_tensor("x", "batch", 4, kind=TensorProto.STRING),
                describe_tensor("s", "batch", 4),
            ],
            "input 'x' of net.onnx has the type string, but ParaDnn draws only real numbers",
            id="strings",
        ),
        pytest.param(
            [
                describe_tensor("x", "batch", 4, kind=TensorProto.UNDEFINED),
                describe_tensor("s", "batch", 4),
            ],
            "input 'x' of net.onnx has the unknown element type 0",
            id="undefined-type",
        ),
        pytest.param(
            [
                helper.make_tensor_sequence_value_info("x", FLOAT, ["batch", 4]),
                describe_tensor("s", "batch", 4),
            ],
            "input 'x' of net.onnx is a sequence of tensors",
            id="sequence",
        ),
    ],
)
def test_the_error_names_an_unsupported_input(
    inputs: list[Any], reason: str, tmp_path: Path
) -> None:
    file = save_model(tmp_path, ADD, inputs=inputs)
    with pytest.raises(UnavailableError, match=reason):
        onnx_workload(file, ())


def test_the_error_names_a_sequence_of_maps(tmp_path: Path) -> None:
    """Plant an output as that of scikit-learn's classifiers."""
    element = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, [])
    )
    output = helper.make_value_info("y", helper.make_sequence_type_proto(element))
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    file = save_model(tmp_path, [node], inputs=[describe_tensor("x", "batch", 2)], outputs=[output])
    with pytest.raises(UnavailableError, match=r"output 'y' of net\.onnx is a sequence of maps"):
        onnx_workload(file, ())


def test_strings_as_outputs_are_named(tmp_path: Path) -> None:
    output = describe_tensor("y", "batch", 2, kind=TensorProto.STRING)
    file = save_model(
        tmp_path, IDENTITY, inputs=[describe_tensor("x", "batch", 2)], outputs=[output]
    )
    with pytest.raises(UnavailableError, match=r"output 'y' of net\.onnx contains strings"):
        onnx_workload(file, ())


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    """Return a model with three channels and open sizes of the batch and the picture."""
    return save_model(
        tmp_path, IDENTITY, inputs=[describe_tensor("x", "batch", 3, "height", "width")]
    )


def test_the_given_shape_fills_open_sizes(open_model: Path) -> None:
    workload = onnx_workload(open_model, (3, 8, 9))

    assert workload.inputs[0].shape == (3, 8, 9)
    assert workload.batch_size is None


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        pytest.param(
            (1, 8, 9), r"model.input_shape=\[1, 8, 9\] does not match", id="other channels"
        ),
        pytest.param((), r"set model\.input_shape", id="no shape"),
    ],
)
def test_a_shape_that_does_not_fit_the_file_is_rejected(
    open_model: Path, shape: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(UnavailableError, match=reason):
        onnx_workload(open_model, shape)


def test_a_fixed_batch_size_is_reported(tmp_path: Path) -> None:
    file = save_model(
        tmp_path, ADD, inputs=[describe_tensor("x", "batch", 4), describe_tensor("s", 3, 4)]
    )
    assert onnx_workload(file, ()).batch_size == 3


@pytest.mark.parametrize("lists_weights", [False, True], ids=["new-file", "weights-among-inputs"])
def test_weights_are_parameters_and_not_inputs(lists_weights: bool, tmp_path: Path) -> None:
    workload = onnx_workload(save_perceptron(tmp_path, lists_weights=lists_weights), ())
    assert [spec.shape for spec in workload.inputs] == [(40,)]
    assert count_parameters(workload) == (40 * 30 + 30 + 30 * 10, 0)


def count_parameters(workload: Any) -> tuple[int, int]:
    """Return the numbers of trainable weights and of moving statistics."""
    model = workload.model
    [trainable] = model.trainable_variables
    [fixed] = model.non_trainable_variables
    return trainable.shape[0], fixed.shape[0]


def make_constant_of_shape(name: str, *shape: int) -> list[Any]:
    values = np.array(shape, "int64")
    sizes = helper.make_node(
        "Constant", [], [f"{name}_shape"], value=numpy_helper.from_array(values)
    )
    return [sizes, helper.make_node("ConstantOfShape", [f"{name}_shape"], [name])]


@pytest.mark.parametrize(
    ("nodes", "initializers", "expected"),
    [
        pytest.param(
            [helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"])],
            {name: random_weights(4) for name in "gbmv"},
            (8, 8),
            id="moving-statistics",
        ),
        pytest.param(
            [*make_constant_of_shape("w", 4, 6), helper.make_node("MatMul", ["x", "w"], ["y"])],
            {},
            (24, 0),
            id="constant-of-shape",
        ),
        pytest.param(
            [
                helper.make_node(
                    "Constant", [], ["w"], value=numpy_helper.from_array(random_weights(4, 6))
                ),
                helper.make_node("MatMul", ["x", "w"], ["y"]),
            ],
            {},
            (24, 0),
            id="constant-node",
        ),
        pytest.param(
            [
                helper.make_node("Cast", ["w"], ["w32"], to=FLOAT),
                helper.make_node("MatMul", ["x", "w32"], ["y"]),
            ],
            {"w": random_weights(4, 6).astype("float16")},
            (24, 0),
            id="half-precision",
        ),
        pytest.param(
            [
                helper.make_node("DequantizeLinear", ["w", "scale"], ["w32"], axis=0),
                helper.make_node("MatMul", ["x", "w32"], ["y"]),
            ],
            {"w": np.ones((4, 6), "int8"), "scale": random_weights(4)},
            (24, 0),
            id="quantized",
        ),
        pytest.param(
            [helper.make_node("Mul", ["x", "factor"], ["y"])],
            {"factor": np.float32(2.0), "unused": random_weights(9)},
            (0, 0),
            id="scalars-and-unused",
        ),
    ],
)
def test_parameters_are_counted(
    nodes: list[Any],
    initializers: dict[str, np.ndarray],
    expected: tuple[int, int],
    tmp_path: Path,
) -> None:
    file = save_model(
        tmp_path, nodes, inputs=[describe_tensor("x", "batch", 4)], initializers=initializers
    )
    assert count_parameters(onnx_workload(file, ())) == expected


def test_parameters_of_a_branch_are_counted(tmp_path: Path) -> None:
    def make_branch(name: str, width: int) -> Any:
        return helper.make_graph(
            [
                helper.make_node("MatMul", ["x", f"w_{name}"], [f"h_{name}"]),
                helper.make_node("ReduceSum", [f"h_{name}"], [f"y_{name}"]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"y_{name}", FLOAT, None)],
            [numpy_helper.from_array(random_weights(4, width), f"w_{name}")],
        )

    condition = helper.make_node(
        "Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))
    )
    choice = helper.make_node(
        "If", ["c"], ["y"], then_branch=make_branch("a", 5), else_branch=make_branch("b", 7)
    )
    file = save_model(tmp_path, [condition, choice], inputs=[describe_tensor("x", "batch", 4)])
    assert count_parameters(onnx_workload(file, ())) == (4 * 5 + 4 * 7, 0)


def onnxruntime_step(file: Path, *, batch_size: int, precision: str = "float32") -> Any:
    pytest.importorskip("onnxruntime")
    from paradnn.worker.frameworks.onnxruntime import OnnxRuntime
    from paradnn.worker.step import prepare_step

    engine = OnnxRuntime()
    model = {"name": "onnx", "path": str(file), "source": content_of(file)[1], "input_shape": []}
    point = {
        "mode": "inference",
        "compile": "graph",
        "precision": precision,
        "batch_size": batch_size,
        "seed": 1,
        "framework": {"name": "onnxruntime"},
        "model": model,
    }
    return prepare_step(point, engine)[1]


def test_an_old_file_is_calibrated_on_its_true_inputs(tmp_path: Path) -> None:
    errors = []
    for lists_weights in (False, True):
        file = save_perceptron(tmp_path, lists_weights=lists_weights)
        step = onnxruntime_step(file, batch_size=4, precision="int8")
        step.run(1)
        errors.append(step.conversion().conversion_error)
    assert 1e-5 < errors[0] < 0.2
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_a_batch_size_that_differs_from_the_fixed_one_is_unavailable(tmp_path: Path) -> None:
    file = save_model(tmp_path, IDENTITY, inputs=[describe_tensor("x", 3, 4)])
    with pytest.raises(UnavailableError, match="only batches of 3: set batch_size=3"):
        onnxruntime_step(file, batch_size=4)


def test_a_model_that_fails_on_random_inputs_is_unavailable(tmp_path: Path) -> None:
    """Split a tensor into parts whose random sizes never add up to its size."""
    node = helper.make_node("Split", ["x", "s"], ["y", "z"], axis=1)
    inputs = [describe_tensor("x", 2, 4), describe_tensor("s", 2, kind=TensorProto.INT64)]
    file = save_model(tmp_path, [node], inputs=inputs)
    with pytest.raises(UnavailableError, match=r"ONNX Runtime cannot run this model: .*Split"):
        onnxruntime_step(file, batch_size=2).run(1)


def make_scan() -> list[Any]:
    """Return a Scan node for seven consecutive products of (2, 16) with (16, 16)."""
    state = describe_tensor("state", 2, 16)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"]),
            helper.make_node("Add", ["product", "element"], ["next"]),
            helper.make_node("Identity", ["next"], ["output"]),
        ],
        "body",
        [state, describe_tensor("element", 2, 16)],
        [describe_tensor("next", 2, 16), describe_tensor("output", 2, 16)],
    )
    return [helper.make_node("Scan", ["first", "x"], ["last", "y"], body=body, num_scan_inputs=1)]


@pytest.mark.parametrize(
    ("nodes", "shape", "initializers", "flops"),
    [
        pytest.param(
            [helper.make_node("Gemm", ["x", "w"], ["y"], transA=1)],
            (2, 40),
            {"w": random_weights(2, 30)},
            2 * 2 * 40 * 30,
            id="transposed-gemm",
        ),
        pytest.param(
            [helper.make_node("Einsum", ["x", "w"], ["y"], equation="bij,ik->bkj")],
            (2, 5, 40),
            {"w": random_weights(5, 30)},
            2 * 2 * 40 * 5 * 30,
            id="einsum",
        ),
        pytest.param(
            [helper.make_node("Conv", ["x", "w"], ["y"], group=4)],
            (2, 16, 10, 10),
            {"w": random_weights(32, 4, 3, 3)},
            2 * 2 * 64 * 32 * 4 * 9,
            id="grouped-convolution",
        ),
        pytest.param(
            [helper.make_node("Conv", ["x", "w"], ["y"], group=16)],
            (2, 16, 10, 10),
            {"w": random_weights(16, 1, 3, 3)},
            2 * 2 * 64 * 16 * 9,
            id="depthwise-convolution",
        ),
        pytest.param(
            [
                helper.make_node("Conv", ["x", "w"], ["first"]),
                helper.make_node("Relu", ["first"], ["active"]),
                helper.make_node("Conv", ["active", "d"], ["second"], group=20),
                helper.make_node("Clip", ["second", "low", "high"], ["clipped"]),
                helper.make_node("Conv", ["clipped", "p"], ["y"]),
            ],
            (2, 3, 10, 10),
            {
                "w": random_weights(20, 3, 3, 3),
                "d": random_weights(20, 1, 3, 3),
                "p": random_weights(36, 20, 1, 1),
                "low": np.array(0, np.float32),
                "high": np.array(6, np.float32),
            },
            # ONNX Runtime pads channels to a multiple of 8 or 16; padding is no work of the model.
            2 * 2 * (64 * 20 * 27 + 36 * 20 * 9 + 36 * 36 * 20),
            id="channels-that-are-padded",
        ),
        pytest.param(
            [helper.make_node("Einsum", ["x", "w"], ["y"], equation="...ij,...jk->...ik")],
            (2, 4, 5, 7),
            {"w": random_weights(2, 4, 7, 3)},
            2 * 2 * 4 * 5 * 7 * 3,
            id="einsum-with-ellipsis",
        ),
        pytest.param(
            [
                helper.make_node(
                    "Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=2
                )
            ],
            (2, 6, 8),
            {"w": random_weights(8, 24), "b": random_weights(24)},
            2 * (2 * 6 * 8 * 24 + 4 * 6 * 6 * 8),
            id="attention-with-projection",
        ),
        pytest.param(
            [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
            (2, 16, 5, 5),
            {"w": random_weights(16, 32, 3, 3)},
            2 * 2 * 25 * 16 * 32 * 9,
            id="transposed-convolution",
        ),
        pytest.param(
            [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], group=4)],
            (2, 16, 5, 5),
            {"w": random_weights(16, 8, 3, 3)},
            2 * 2 * 25 * 16 * 8 * 9,
            id="transposed-grouped-convolution",
        ),
        pytest.param(
            [
                helper.make_node(
                    "LSTM", ["x", "w", "r"], ["y"], hidden_size=24, direction="bidirectional"
                )
            ],
            (5, 3, 16),
            {"w": random_weights(2, 96, 16), "r": random_weights(2, 96, 24)},
            2 * 2 * 5 * 3 * 96 * (16 + 24),
            id="bidirectional-lstm",
        ),
        pytest.param(
            make_scan(),
            (7, 2, 16),
            {"first": random_weights(2, 16), "w": random_weights(16, 16)},
            7 * 2 * 2 * 16 * 16,
            id="scan",
        ),
    ],
)
def test_a_profile_reports_the_flops_of_products(
    nodes: list[Any],
    shape: tuple[int, ...],
    initializers: dict[str, np.ndarray],
    flops: int,
    tmp_path: Path,
) -> None:
    from paradnn.core.messages import Profile
    from paradnn.worker.profile.run import profile_steps

    file = save_model(
        tmp_path, nodes, inputs=[describe_tensor("x", *shape)], initializers=initializers
    )
    step = onnxruntime_step(file, batch_size=shape[0])
    step.run(1)
    profile = profile_steps(step._engine, step, 0.001, keep_trace=False)
    assert isinstance(profile, Profile), profile
    assert profile.product_flops == flops
