"""FLOPs of the matrix products and convolutions that PyTorch calls or compiles.

PyTorch's registry (`torch.utils.flop_counter.flop_registry`) covers matrix products. This module
adds what the registry lacks or miscounts: attention on a CPU, gradients of grouped convolutions,
fused recurrent layers, fused Transformer layers, products with vectors, and the bodies of
higher-order operators such as `scan`. Attention follows `attention_flops`: a kernel that computes
its scores twice counts them once.
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
    """mv(matrix, vector), dot(vector, vector) and vdot: one multiply-accumulate per element."""
    return float(2.0 * matrix.numel())


def _biased_vector_product(bias: torch.Tensor, matrix: torch.Tensor, *_: Any) -> float:
    """addmv(bias, matrix, vector)."""
    return float(2.0 * matrix.numel())


def _matrix_product(left: torch.Tensor, right: torch.Tensor, *_: Any) -> float:
    """_int_mm(left, right), with right of shape (inner, columns)."""
    return float(2.0 * left.numel() * right.shape[-1])


def _summed_batch_product(
    bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *_: Any
) -> float:
    """addbmm(bias, left, right)."""
    return _matrix_product(left, right)


def _grouped_product(left: torch.Tensor, right: torch.Tensor, *_: Any) -> float:
    """_grouped_mm(left, right, offsets): each row, or slice of the inner axis, has one group."""
    if left.ndim == 3 and right.ndim == 2:
        return float(2.0 * left.shape[-2] * left.shape[-1] * right.shape[-1])
    return _matrix_product(left, right)


def _packed_product(values: torch.Tensor, *_: Any, result: torch.Tensor) -> float:
    """A product with weights in a packed layout, which hides their shape."""
    return float(2.0 * result.numel() * values.shape[-1])


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> float:
    """Scores and weighted sum; tensors are (batch, heads, tokens, head width)."""
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return float(2.0 * pairs * (query.shape[-1] + value.shape[-1]))


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> float:
    """Gradients of scores, weights, query, key and value: two products for each forward one."""
    return float(2.0 * _attention(query, key, value))


def _convolution(inputs: torch.Tensor, weight: torch.Tensor, *settings: Any) -> float:
    """convolution(inputs, weight, bias, stride, padding, dilation, transposed, ...).

    The weight is (outputs, inputs / groups, *kernel), of a transposed convolution
    (inputs, outputs / groups, *kernel). Each of its elements multiplies one channel of every
    position: of the output, or of the input of a transposed convolution.
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
    """Examples times the places of the output."""
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
    """convolution_backward(gradient, inputs, weight, bias sizes, ..., transposed, ..., mask).

    Each requested gradient, of inputs and of weights, costs as much as the forward pass.
    """
    is_transposed = settings[4]
    output_mask = settings[7]
    spread = inputs if is_transposed else gradient
    positions = spread.numel() // spread.shape[1]
    return float(2.0 * positions * weight.numel() * sum(output_mask[:2]))


def _recurrent_layer(inputs: torch.Tensor, *rest: Any) -> float:
    """One direction of a layer: mkldnn_rnn_layer(inputs, weights, recurrent weights, ...)."""
    weights = rest[0].numel() + rest[1].numel()
    return float(2.0 * math.prod(inputs.shape[:-1]) * weights)


def _recurrent_layer_backward(inputs: torch.Tensor, *rest: Any) -> float:
    return float(2.0 * _recurrent_layer(inputs, *rest))


def _recurrent_network(inputs: torch.Tensor, weights: Sequence[torch.Tensor], *_: Any) -> float:
    """All layers and directions: _cudnn_rnn(inputs, weights, ...). Vectors are biases."""
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
    """All projections and the attention; tensors are (batch, tokens, width)."""
    projections = 2.0 * width * width * (query.numel() + key.numel() + value.numel()) / width
    mixing = 2.0 * 2.0 * query.numel() * key.shape[-2]
    output = 2.0 * query.numel() * output_weight.shape[0]
    return float(projections + mixing + output)


def _encoder_layer(inputs: torch.Tensor, width: int, heads: int, *weights: Any) -> float:
    """_transformer_encoder_layer_fwd: attention of the inputs to themselves, then feed-forward."""
    joint_weight, joint_bias, output_weight = weights[:3]
    matrices = [value for value in weights[3:] if _is_tensor(value) and value.ndim == 2]
    first, second = matrices[:2]
    attention = _multi_head_attention(
        inputs, inputs, inputs, width, heads, joint_weight, joint_bias, output_weight
    )
    tokens = inputs.numel() / width
    return float(attention + 2.0 * tokens * (first.numel() + second.numel()))


def _packets(formula: Callable[..., float], namespace: Any, *names: str) -> dict[Any, Any]:
    """The formula for the operators that this version of PyTorch has."""
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
#: Recurrent and Transformer layers, which are several products.
_COMPOUND = (
    _recurrent_layer,
    _recurrent_layer_backward,
    _recurrent_network,
    _recurrent_network_backward,
    _multi_head_attention,
    _encoder_layer,
)


def _operator(function: Any) -> Any:
    """The operator of an overload; a higher-order operator is its own."""
    return getattr(function, "_overloadpacket", function)


def is_product(function: Any) -> bool:
    """Whether the FLOPs of a call of `function` are known."""
    operator = _operator(function)
    return operator in _FORMULAS or operator in _PACKED or operator in flop_registry


def product_cost(function: Any, args: Any, kwargs: Any, result: Any) -> Cost:
    """The cost of one call of an operator for which `is_product` is true."""
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
    # Attention, gradients and whole layers are several products, which have no single operands.
    if _is_tensor(result) and formula not in _COMPOUND:
        # Vectors are biases.
        operands = tuple(int(tensor.numel()) for tensor in tensors if tensor.ndim > 1)[-3:]
    return Cost(kind, category, flops, None, flops, dtype, operands)


class ProductCounter(TorchDispatchMode):  # type: ignore[misc]
    """Collects the costs of products: of calls while it is entered, and of compiled graphs."""

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
            # Its body runs under this mode, once per iteration of a loop.
            counted_args = [self._counted(value) if callable(value) else value for value in args]
            return func(*counted_args, **kwargs)
        if func is not torch.ops.prim.device.default:
            with self:  # an operator such as `linear` hides a product in its parts
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
    """Counts the products of every graph that Inductor compiles, and leaves the graph unchanged.

    Inductor passes the bodies of higher-order operators before the graph that calls them. A body
    counts once per iteration of a `scan` or `map`, and once where the number is not known.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Costs of the graphs passed so far, by the `id` of the module that owns each.
        self._costs_by_module: dict[int, list[Cost]] = {}

    def __call__(self, graph: Any) -> None:
        try:
            costs = self._graph_costs(graph)
        except Exception:  # a graph compiles even where it cannot be counted
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
    """Return how often a higher-order operator runs its body; 1 if the graph does not say."""
    sequences: Mapping[str, int] = {"scan": 2, "map_impl": 1}
    position = sequences.get(node.target.__name__)
    if position is None or not node.args[position]:
        return 1
    return int(node.args[position][0].meta["val"].shape[0])
