"""FLOPs of the matrix products and convolutions that PyTorch calls or compiles.

PyTorch's registry (`torch.utils.flop_counter.flop_registry`) covers matrix products. This module
adds operators that the registry lacks or miscounts: attention on a CPU, gradients of grouped
convolutions, fused recurrent and Transformer layers, products with vectors, and the bodies of
higher-order operators such as `scan`. As in `attention_flops`, the scores of an attention
count once, even if a kernel computes them twice.

A formula is a function of the arguments of an operator that returns its FLOPs.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from paradnn.worker.profile.shapes import Cost

_aten = torch.ops.aten


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _vector_product(matrix: torch.Tensor, *_: Any) -> float:
    """Return the FLOPs of mv(matrix, vector), dot(vector, vector) or vdot(vector, vector)."""
    return float(2.0 * matrix.numel())


def _biased_vector_product(bias: torch.Tensor, matrix: torch.Tensor, *_: Any) -> float:
    """Return the FLOPs of addmv(bias, matrix, vector)."""
    return float(2.0 * matrix.numel())


def _matrix_product(left: torch.Tensor, right: torch.Tensor, *_: Any) -> float:
    """Return the FLOPs of _int_mm(left, right); `right` has the shape (inner, columns)."""
    return float(2.0 * left.numel() * right.shape[-1])


def _summed_batch_product(
    bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *_: Any
) -> float:
    """Return the FLOPs of addbmm(bias, left, right)."""
    return _matrix_product(left, right)


def _grouped_product(left: torch.Tensor, right: torch.Tensor, *_: Any) -> float:
    """Return the FLOPs of _grouped_mm(left, right, offsets).

    The offsets divide the rows, the columns or the inner axis into groups. Each row, column or
    inner index belongs to one group, and is multiplied only with the matrix of that group.
    """
    if left.ndim == 3 and right.ndim == 2:
        return float(2.0 * left.shape[-2] * left.shape[-1] * right.shape[-1])
    return _matrix_product(left, right)


def _packed_product(values: torch.Tensor, *_: Any, result: torch.Tensor) -> float:
    """Return the FLOPs of a product with a packed weight, whose layout hides its shape.

    Args:
        values: The left operand (..., inner).
        result: The result of the product.
    """
    return float(2.0 * result.numel() * values.shape[-1])


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> float:
    """Return the FLOPs of an attention's scores and weighted sum.

    Tensors have the shape (batch, heads, tokens, head width).
    """
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return float(2.0 * pairs * (query.shape[-1] + value.shape[-1]))


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> float:
    """Return the FLOPs of the gradients of an attention.

    The gradients need two products for each of the two products of the forward pass.
    """
    return float(2.0 * _attention(query, key, value))


def _convolution(inputs: torch.Tensor, weight: torch.Tensor, *settings: Any) -> float:
    """Return the FLOPs of convolution(inputs, weight, bias, stride, padding, dilation, ...).

    The weight has the shape (outputs, inputs / groups, *kernel), or (inputs, outputs / groups,
    *kernel) if transposed. Each element of the weight is used in one multiply-accumulate per
    position of the output, or per position of the input if transposed.
    """
    is_transposed = settings[4]
    if is_transposed:
        positions = inputs.numel() // inputs.shape[1]
    else:
        positions = _output_positions(inputs, weight, *settings[1:4])
    return float(2.0 * positions * weight.numel())


def _output_positions(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
) -> int:
    """Return the number of examples times the number of output positions of a convolution.

    Args:
        inputs: Images (examples, channels, *sizes).
        weight: Weight (outputs, inputs / groups, *kernel).
        strides: Strides per spatial axis, or one for all axes.
        paddings: Padding on each side, per spatial axis or for all axes.
        dilations: Dilations per spatial axis, or one for all axes.
    """
    axes = len(weight.shape) - 2
    settings = [list(values) * (axes // len(values)) for values in (strides, paddings, dilations)]
    positions = inputs.shape[0]
    sizes = zip(inputs.shape[2:], weight.shape[2:], *settings, strict=True)
    for size, kernel, stride, padding, dilation in sizes:
        positions *= (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return int(positions)


def _convolution_backward(
    gradient: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, *settings: Any
) -> float:
    """Return the FLOPs of convolution_backward(gradient, inputs, weight, bias sizes, ..., mask).

    The mask selects the gradients of inputs, weight and bias. The gradient of the inputs costs as
    much as the forward pass, and so does the gradient of the weight.
    """
    is_transposed = settings[4]
    output_mask = settings[7]
    positions_tensor = inputs if is_transposed else gradient
    positions = positions_tensor.numel() // positions_tensor.shape[1]
    return float(2.0 * positions * weight.numel() * sum(output_mask[:2]))


def _recurrent_layer(inputs: torch.Tensor, *rest: Any) -> float:
    """Return the FLOPs of mkldnn_rnn_layer(inputs, weights, recurrent weights, ...).

    The operator computes one direction of a layer.
    """
    weights = rest[0].numel() + rest[1].numel()
    return float(2.0 * math.prod(inputs.shape[:-1]) * weights)


def _recurrent_layer_backward(inputs: torch.Tensor, *rest: Any) -> float:
    return float(2.0 * _recurrent_layer(inputs, *rest))


def _recurrent_network(inputs: torch.Tensor, weights: Sequence[torch.Tensor], *_: Any) -> float:
    """Return the FLOPs of _cudnn_rnn(inputs, weights, ...): all layers and directions.

    Weights that are vectors are biases and do not count.
    """
    matrices = sum(weight.numel() for weight in weights if weight.ndim > 1)
    return float(2.0 * math.prod(inputs.shape[:-1]) * matrices)


def _recurrent_network_backward(
    inputs: torch.Tensor, weights: Sequence[torch.Tensor], *_: Any
) -> float:
    return float(2.0 * _recurrent_network(inputs, weights))


def _multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    joint_weight: torch.Tensor,
    joint_bias: Any,
    output_weight: torch.Tensor,
    *_: Any,
) -> float:
    """Return the FLOPs of _native_multi_head_attention: projections and attention.

    Args:
        query: Input for the queries (batch, tokens, width).
        key: Input for the keys (batch, tokens, width).
        value: Input for the values (batch, tokens, width).
        width: Number of features per token.
        heads: Number of heads, which does not change the FLOPs.
        joint_weight: Weight of the projections of query, key and value.
        joint_bias: Bias of these projections.
        output_weight: Weight of the output projection (outputs, width).
    """
    projections = 2.0 * width * width * (query.numel() + key.numel() + value.numel()) / width
    mixing = 2.0 * 2.0 * query.numel() * key.shape[-2]
    output = 2.0 * query.numel() * output_weight.shape[0]
    return float(projections + mixing + output)


def _encoder_layer(inputs: torch.Tensor, width: int, heads: int, *weights: Any) -> float:
    """Return the FLOPs of _transformer_encoder_layer_fwd.

    The layer consists of self-attention and two feed-forward products.

    Args:
        inputs: Input (batch, tokens, width).
        width: Number of features per token.
        heads: Number of heads, which does not change the FLOPs.
        *weights: The other arguments of the operator: weight and bias of the joint projection,
            weight of the output projection, and so on.
    """
    joint_weight, joint_bias, output_weight = weights[:3]
    matrices = [value for value in weights[3:] if _is_tensor(value) and value.ndim == 2]
    first, second = matrices[:2]
    attention = _multi_head_attention(
        inputs, inputs, inputs, width, heads, joint_weight, joint_bias, output_weight
    )
    tokens = inputs.numel() / width
    return float(attention + 2.0 * tokens * (first.numel() + second.numel()))


def _packets(formula: Callable[..., float], namespace: Any, *names: str) -> dict[Any, Any]:
    """Return a dictionary that maps each operator that PyTorch has to the same formula.

    Args:
        formula: The function that returns the FLOPs of each of the operators.
        namespace: A namespace of `torch.ops`.
        *names: Names of operators. Names that this PyTorch version lacks are ignored.
    """
    return {getattr(namespace, name): formula for name in names if hasattr(namespace, name)}


_ATTENTION_KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
#: Formulas by operator: functions of its arguments that return FLOPs.
_FORMULAS: dict[Any, Callable[..., float]] = {
    **_packets(_attention, _aten, *_ATTENTION_KERNELS),
    **_packets(_attention_backward, _aten, *(f"{name}_backward" for name in _ATTENTION_KERNELS)),
    **_packets(_convolution, _aten, "convolution", "_convolution", "convolution_overrideable"),
    **_packets(_convolution_backward, _aten, "convolution_backward"),
    **_packets(_vector_product, _aten, "mv", "dot", "vdot"),
    **_packets(_biased_vector_product, _aten, "addmv"),
    **_packets(_summed_batch_product, _aten, "addbmm"),
    **_packets(_matrix_product, _aten, "_int_mm"),
    **_packets(_grouped_product, _aten, "_grouped_mm", "_scaled_grouped_mm"),
    **_packets(_recurrent_layer, _aten, "mkldnn_rnn_layer"),
    **_packets(_recurrent_layer_backward, _aten, "mkldnn_rnn_layer_backward"),
    **_packets(_recurrent_network, _aten, "_cudnn_rnn", "miopen_rnn"),
    **_packets(_recurrent_network_backward, _aten, "_cudnn_rnn_backward", "miopen_rnn_backward"),
    **_packets(_multi_head_attention, _aten, "_native_multi_head_attention"),
    **_packets(_encoder_layer, _aten, "_transformer_encoder_layer_fwd"),
}
#: Operators whose formula needs the shape of the result.
_PACKED = {
    **_packets(_packed_product, _aten, "_weight_int8pack_mm", "_weight_int4pack_mm"),
    **_packets(_packed_product, _aten, "_weight_int4pack_mm_for_cpu", "_dyn_quant_matmul_4bit"),
    **_packets(_packed_product, torch.ops.quantized, "linear", "linear_relu", "linear_dynamic"),
    **_packets(_packed_product, torch.ops.quantized, "linear_relu_dynamic"),
}
#: Formulas of whole layers, which consist of several products.
_COMPOUND = (
    _recurrent_layer,
    _recurrent_layer_backward,
    _recurrent_network,
    _recurrent_network_backward,
    _multi_head_attention,
    _encoder_layer,
)


def _operator(function: Any) -> Any:
    """Return the operator (overload packet) of an operator overload, or else `function` itself."""
    return getattr(function, "_overloadpacket", function)


def is_product(function: Any) -> bool:
    """Return whether `function` computes matrix products or convolutions with a known FLOP count.

    Args:
        function: An operator of PyTorch, an overload of an operator, or any other function.
    """
    operator = _operator(function)
    return operator in _FORMULAS or operator in _PACKED or operator in flop_registry


def product_cost(function: Any, args: Any, kwargs: Any, result: Any) -> Cost:
    """Return FLOPs and operand sizes of one call of an operator for which `is_product` is true.

    Args:
        function: The operator or operator overload that was called.
        args: Positional arguments of the call; tensors may be fake tensors.
        kwargs: Keyword arguments of the call.
        result: The result of the call.
    """
    operator = _operator(function)
    formula = _FORMULAS.get(operator)
    if formula:
        flops = float(formula(*args))
    elif operator in _PACKED:
        flops = float(_PACKED[operator](*args, result=result))
    else:
        flops = float(flop_registry[operator](*args, **kwargs, out_val=result))
    kind = str(operator)
    if "convolution" in kind or "conv2d" in kind:
        category = "convolution"
    else:
        category = "matmul"
    tensors = [value for value in (*args, result) if _is_tensor(value)]
    # The second tensor is an operand of every product; the first may be a bias.
    dtype = str(tensors[min(1, len(tensors) - 1)].dtype).removeprefix("torch.")
    operands: tuple[int, ...] = ()
    # Gradients, attentions and whole layers consist of several products, so their sizes are not
    # the operands of one product.
    if _is_tensor(result) and formula not in _COMPOUND:
        # Omit vectors, which are biases.
        operands = tuple(int(tensor.numel()) for tensor in tensors if tensor.ndim > 1)[-3:]
    return Cost(kind, category, flops, None, flops, dtype, operands)


class ProductCounter(TorchDispatchMode):  # type: ignore[misc]
    """PyTorch dispatch mode that collects FLOPs and sizes of matrix products and convolutions.

    It counts the products that run while this mode is active. `GraphProducts` adds the products of
    compiled graphs.

    Attributes:
        costs: The cost of each product so far.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[Cost] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_product(func):
            result = func(*args, **kwargs)
            self.costs.append(product_cost(func, args, kwargs, result))
            return result
        if isinstance(func, HigherOrderOperator):
            # Enter this mode in the body of the operator, which runs once per iteration of a loop.
            counted_args = [self._counted(value) if callable(value) else value for value in args]
            return func(*counted_args, **kwargs)
        if func is not torch.ops.prim.device.default:
            with self:  # the parts of an operator such as `linear` may be products
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return call


#: The counter of this process, which measures one point.
products = ProductCounter()


class GraphProducts(CustomGraphPass):  # type: ignore[misc]
    """Inductor pass that counts the matrix products and convolutions of every compiled graph.

    The pass adds the costs to `products.costs`, and leaves the graph unchanged. Inductor calls this
    pass with the body of a higher-order operator before the graph that contains the operator. The
    products of a body count once per iteration of a `scan` or `map`, and once if the number of
    iterations is unknown.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Costs of each graph compiled so far, by the `id` of the module that owns the graph.
        self._costs_by_module: dict[int, list[Cost]] = {}

    def __call__(self, graph: Any) -> None:
        try:
            costs = self._graph_costs(graph)
        except Exception:  # a failure to count must not keep the graph from compiling
            traceback.print_exc()
            products.costs.clear()
            return
        self._costs_by_module[id(graph.owning_module)] = costs
        products.costs.extend(costs)

    def _graph_costs(self, graph: Any) -> list[Cost]:
        costs: list[Cost] = []
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            args, kwargs = torch.fx.node.map_arg(
                (node.args, node.kwargs), lambda argument: argument.meta.get("val")
            )
            if is_product(node.target):
                costs.append(product_cost(node.target, args, kwargs, node.meta.get("val")))
            elif isinstance(node.target, HigherOrderOperator):
                # The body was counted once, when Inductor called this pass with it.
                for body in self._bodies(graph, node):
                    costs += self._costs_by_module.get(id(body), []) * (_iterations(node) - 1)
        return costs

    def _bodies(self, graph: Any, node: Any) -> list[Any]:
        return [
            getattr(graph.owning_module, argument.target)
            for argument in node.args
            if isinstance(argument, torch.fx.Node) and argument.op == "get_attr"
        ]

    def uuid(self) -> str:
        return "paradnn products"


def _iterations(node: Any) -> int:
    """Return how often a higher-order operator, such as `scan`, runs its body; 1 if unknown.

    Args:
        node: The node of the operator in a `torch.fx` graph.
    """
    # Position of the argument with the sequences over which the operator iterates.
    positions: Mapping[str, int] = {"scan": 2, "map_impl": 1}
    position = positions.get(node.target.__name__)
    if position is None or not node.args[position]:
        return 1
    return int(node.args[position][0].meta["val"].shape[0])
