"""FLOPs and bytes of operations from shapes, graphs and compiled programs, against hand counts."""

import math
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.worker.profile import protos
from paradnn.worker.profile.hlo import HloCosts
from paradnn.worker.profile.run import make_profile
from paradnn.worker.profile.shapes import spatial_pairs
from paradnn.worker.profile.tf_graph import GraphCosts
from paradnn.worker.profile.trace import read_trace


@pytest.mark.parametrize(
    ("size", "stride", "padding", "outputs", "dilation"),
    [
        pytest.param(3, 1, 1, 16, 2, id="dilation of 2"),
        pytest.param(5, 1, 2, 9, 3, id="dilation of 3"),
    ],
)
def test_holes_of_a_dilation_count_as_no_work(
    size: int, stride: int, padding: int, outputs: int, dilation: int
) -> None:
    """Compare with a count of positions; every `dilation`-th position holds a number.

    This pattern continues beyond the edges.
    """
    positions = [index * stride + tap - padding for index in range(outputs) for tap in range(size)]
    assert spatial_pairs(outputs, size, stride, padding, 1, dilation) == sum(
        position % dilation == 0 for position in positions
    )


def _branches(a: tf.Tensor, b: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
    """Run one of two branches whose products have the same name."""
    return tf.cond(
        flag > 0, lambda: tf.reduce_sum(tf.matmul(a, b)), lambda: tf.reduce_sum(tf.matmul(b, a))
    )


def _functions(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Call two functions whose products have the same name."""
    first, second = (tf.function(lambda x, y: tf.matmul(x, y, name="product")) for _ in range(2))
    return first(a, b), second(b, a)


ONES = (tf.ones([16, 48]), tf.ones([48, 16]))
PROGRAMS = {
    "then": (_branches, (*ONES, tf.constant(1)), 2 * 16 * 16 * 48),
    "else": (_branches, (*ONES, tf.constant(-1)), 2 * 48 * 48 * 16),
    "functions": (_functions, ONES, 2 * 16 * 16 * 48 + 2 * 48 * 48 * 16),
    "transpose": (lambda a, b: tf.einsum("ij->ji", a), ONES, 0),
    "einsum": (
        lambda a, b: tf.einsum("abc,cd->abd", a, b),
        (tf.ones([4, 5, 6]), tf.ones([6, 7])),
        2 * 4 * 5 * 6 * 7,
    ),
    "einsum with an ellipsis": (
        lambda a, b: tf.einsum("...qd,...kd->...qk", a, b),
        (tf.ones([2, 3, 4, 5]), tf.ones([3, 6, 5])),
        2 * 2 * 3 * 4 * 6 * 5,
    ),
    "einsum that sums before it multiplies": (
        lambda a, b: tf.einsum("abc,cd->ad", a, b),
        (tf.ones([4, 5, 6]), tf.ones([6, 7])),
        2 * 4 * 6 * 7,
    ),
    "transposed convolution": (
        lambda x, k: tf.nn.conv2d_transpose(x, k, [4, 33, 33, 8], 2, "VALID"),
        (tf.ones([4, 16, 16, 3]), tf.ones([3, 3, 8, 3])),
        2 * 4 * 16 * 16 * 3 * 9 * 8,
    ),
    "depthwise convolution": (
        lambda x, k: tf.nn.depthwise_conv2d(x, k, [1] * 4, "SAME"),
        (tf.ones([2, 8, 8, 6]), tf.ones([3, 3, 6, 2])),
        2 * 2 * 8 * 8 * 12 * 9,
    ),
    "conv3d": (
        lambda x, k: tf.nn.conv3d(x, k, [1] * 5, "SAME"),
        (tf.ones([2, 4, 4, 4, 3]), tf.ones([3, 3, 3, 3, 5])),
        2 * 2 * 64 * 5 * 27 * 3,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_flops_of_small_programs_agree_with_hand_counts(name: str, tmp_path: Path) -> None:
    body, arguments, flops = PROGRAMS[name]
    function = tf.function(body)
    function(*arguments)
    with TensorFlow().trace(tmp_path) as marked, marked():
        tf.nest.map_structure(lambda tensor: tensor.numpy(), function(*arguments))
    graph = function.get_concrete_function(*arguments).graph.as_graph_def(add_shapes=True)
    profile = make_profile(read_trace(tmp_path), 1, 1.0, GraphCosts(graph).cost)
    assert profile.product_flops == flops


def test_the_gradient_of_a_depthwise_filter_counts_batch_groups_once() -> None:
    """Compare the gradient of a depthwise filter with the FLOPs of the forward pass.

    The program is not optimized, since the compiler would rewrite the batch groups.
    """

    @tf.function(jit_compile=True)
    def gradient(x: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(k)
            y = tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME")
        return tape.gradient(y, k, output_gradients=x)

    module = protos.HloProto().hlo_module
    arguments = tf.ones([2, 8, 8, 4]), tf.ones([3, 3, 4, 1])
    module.ParseFromString(
        gradient.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")
    )
    costs = HloCosts([module])
    [name] = [
        instruction.name
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.batch_group_count > 1
    ]
    assert costs.cost(name, module.name).product_flops == 2 * 2 * 8 * 8 * 4 * 9


def _convolution_flops(module: Any) -> float:
    """Return the total FLOPs of a module's convolutions."""
    costs = HloCosts([module])
    names = [
        instruction.name
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode == "convolution"
    ]
    return sum(costs.cost(name, module.name).product_flops for name in names)


def test_a_fusion_has_the_bytes_of_its_operands_and_the_flops_of_its_contents() -> None:
    """Fuse four elementwise operations: 4 FLOPs, one read and one write per element."""

    @tf.function(jit_compile=True)
    def chain(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.abs(x) * x) + 1.0

    array = tf.ones([1000])
    module = _optimized_module(chain, array)
    costs = HloCosts([module])
    [fusion] = [
        instruction
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode == "fusion"
    ]
    cost = costs.cost(fusion.name, module.name)
    assert cost.category == "elementwise"
    assert cost.bytes == 2 * 4 * 1000
    assert cost.flops == 4 * 1000
    assert costs.cost("nothing", module.name).flops is None


def _optimized_module(function: Any, *arguments: Any) -> Any:
    proto = protos.HloProto()
    proto.ParseFromString(
        function.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo_proto_serialized")
    )
    return proto.hlo_module


def test_fused_attention_on_a_gpu_has_the_flops_of_its_products() -> None:
    """Compare cuDNN's calls in a compiled program with hand counts.

    There are 2 x 8 queries, 16 keys, and 4 heads of width 32. The forward pass has two products,
    and the backward pass four.
    """
    module = protos.HloProto().hlo_module
    module.name = "step"
    computation = module.computations.add(id=1)
    for number, tokens in ((1, 8), (2, 16), (3, 16)):
        entry = computation.instructions.add(
            name=f"operand.{number}", opcode="parameter", id=number
        )
        entry.shape.element_type = 16
        entry.shape.dimensions.extend([2, tokens, 4, 32])
    for number, target in ((4, "__cudnn$fmhaSoftmax"), (5, "__cudnn$fmhaSoftmaxBackward")):
        entry = computation.instructions.add(name=f"call.{number}", opcode="custom-call", id=number)
        entry.custom_call_target = target
        entry.operand_ids.extend([1, 2, 3])
    forward, backward = (HloCosts([module]).cost(f"call.{number}", "step") for number in (4, 5))
    assert forward.product_flops == 2 * (2 * 2 * 8 * 16 * 4 * 32)
    assert backward.product_flops == 2 * forward.product_flops
    assert (forward.category, forward.dtype) == ("matmul", "bfloat16")


def test_a_filter_gradient_with_a_fused_bias_has_the_flops_of_the_filter() -> None:
    """Plant the name of oneDNN's kernel on some processors; `WithBias` is not in the graph."""
    with tf.Graph().as_default() as graph:
        image = tf.ones([8, 32, 32, 3])
        gradient = tf.ones([8, 4, 4, 32])
        tf.raw_ops.Conv2DBackpropFilter(
            input=image,
            filter_sizes=[8, 8, 3, 32],
            out_backprop=gradient,
            strides=[1, 8, 8, 1],
            padding="VALID",
            name="g",
        )
    costs = GraphCosts(graph.as_graph_def(add_shapes=True))
    for kind in ("Conv2DBackpropFilter", "_MklNativeConv2DBackpropFilterWithBias"):
        cost = costs.cost("g", kind)
        assert (cost.category, cost.product_flops) == (
            "convolution",
            2 * 8 * 4 * 4 * 32 * 8 * 8 * 3,
        )


def test_operations_of_unknown_size_have_no_cost() -> None:
    with tf.Graph().as_default() as graph:
        images, rows = (
            tf.compat.v1.placeholder(tf.float32, [None, *sizes]) for sizes in ((8, 8, 3), (4,))
        )
        tf.raw_ops.Conv2D(
            input=images,
            filter=tf.ones([3, 3, 3, 4]),
            strides=[1] * 4,
            padding="SAME",
            name="forward",
        )
        tf.raw_ops.MatMul(a=rows, b=rows, transpose_a=True, name="gradient")
    costs = GraphCosts(graph.as_graph_def(add_shapes=True))
    for name, kind in (("forward", "Conv2D"), ("gradient", "MatMul")):
        cost = costs.cost(name, kind)
        assert (cost.flops, cost.bytes, cost.product_flops) == (None, None, 0.0)


def test_xla_multiplies_no_padding_if_the_kernel_exceeds_the_image() -> None:
    """XLA swaps image and kernel, so 4 of 9 pairs of positions remain per output."""
    convolve = tf.function(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), jit_compile=True)
    module = _optimized_module(convolve, tf.ones([4, 2, 2, 32]), tf.ones([3, 3, 32, 16]))
    assert _convolution_flops(module) == 2 * 4 * (2 * 2) * 16 * 32 * 4


@pytest.mark.parametrize(
    ("left", "right", "output"),
    [
        pytest.param([8, 5], [5, 3], [8, 3], id="plain"),
        pytest.param([5, 8], [5, 3], [8, 3], id="transposed-left"),
        pytest.param([8, 5], [3, 5], [8, 3], id="transposed-right"),
        pytest.param([2, 8, 5], [2, 5, 3], [2, 8, 3], id="batch"),
        pytest.param([2, 8, 5], [5, 3], [2, 8, 3], id="one-matrix-for-all"),
    ],
)
def test_the_flops_of_a_library_call_do_not_depend_on_transposition(
    left: list[int], right: list[int], output: list[int]
) -> None:
    module = protos.HloProto().hlo_module
    module.name = "step"
    computation = module.computations.add(id=1)
    for number, dimensions in ((1, left), (2, right)):
        entry = computation.instructions.add(name=f"p.{number}", opcode="parameter", id=number)
        entry.shape.element_type = 11
        entry.shape.dimensions.extend(dimensions)
    call = computation.instructions.add(name="call.3", opcode="custom-call", id=3)
    call.custom_call_target = "__cublas$gemm"
    call.operand_ids.extend([1, 2])
    call.shape.element_type = 11
    call.shape.dimensions.extend(output)

    cost = HloCosts([module]).cost("call.3", "step")

    assert cost.product_flops == 2 * math.prod(output) * 5


def test_an_embedding_bag_sums_the_rows_of_its_indices() -> None:
    with tf.Graph().as_default() as graph:
        tf.raw_ops.SparseSegmentSum(
            data=tf.ones([100, 16]),
            indices=tf.zeros([40], tf.int32),
            segment_ids=tf.zeros([40], tf.int32),
            name="bag",
        )
        tf.raw_ops.SparseTensorDenseMatMul(
            a_indices=tf.zeros([7, 2], tf.int64),
            a_values=tf.ones([7]),
            a_shape=tf.constant([16, 16], tf.int64),
            b=tf.ones([16, 5]),
            name="sparse",
        )
    costs = GraphCosts(graph.as_graph_def(add_shapes=True))

    bag = costs.cost("bag", "SparseSegmentSum")
    sparse = costs.cost("sparse", "SparseTensorDenseMatMul")

    assert (bag.category, bag.flops) == ("reduction", 40 * 16)
    assert (sparse.category, sparse.product_flops) == ("matmul", 2 * 7 * 5)
