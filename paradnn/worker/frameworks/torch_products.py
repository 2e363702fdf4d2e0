"""Which types PyTorch's products multiply, as Inductor compiles a graph or as a step's operations are dispatched."""

from __future__ import annotations

import traceback
from collections import defaultdict
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

__all__ = ["GraphProducts", "products"]


class _Products(TorchDispatchMode):  # type: ignore[misc]
    """FLOPs of products by the type of their operands: of calls while it is entered, and of compiled graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: defaultdict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry and func is not torch.ops.prim.device.default:
            with self:  # what a product is hidden in, such as `linear`, in its parts
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        self.count(func, args, kwargs, result)
        return result

    def count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add what one call multiplies; the second tensor is an operand of every product, the first may be a bias."""
        packet = getattr(func, "_overloadpacket", None)
        if packet in flop_registry:
            tensors = [value for value in args if isinstance(value, torch.Tensor)]
            dtype = str(tensors[min(1, len(tensors) - 1)].dtype).removeprefix("torch.")
            self.flops[dtype] += flop_registry[packet](*args, **kwargs, out_val=result)


#: Of this process, which measures one point.
products = _Products()


class GraphProducts(CustomGraphPass):  # type: ignore[misc]
    """Looks at every graph that Inductor compiles, once, and leaves it as it is."""

    def __call__(self, graph: Any) -> None:
        try:
            for node in graph.nodes:
                if node.op == "call_function":
                    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
                    products.count(node.target, args, kwargs, node.meta.get("val"))
        except Exception:  # no graph goes uncompiled because it was looked at
            traceback.print_exc()
            products.flops.clear()

    def uuid(self) -> str:
        return "paradnn products"
