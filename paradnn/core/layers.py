"""A model as a list of layers, and the analytic costs of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

#: Bytes of an element in full precision. Inputs and targets of a batch, logits, weights and
#: optimizer variables have this size in every precision.
_FULL_BYTES = 4
#: Bytes of an element of an activation, by precision.
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int8_dynamic": 4}


@dataclass(frozen=True)
class Multiply:
    """A matrix product in the forward pass of a layer.

    Each example multiplies a `rows` x `inputs` matrix by an `inputs` x `outputs` matrix.

    Attributes:
        rows: Rows of the left matrix.
        inputs: Columns of the left matrix.
        outputs: Columns of the right matrix.
        times: Number of products of this shape, computed one after another.
        constant: Number of these products whose left matrix needs no gradient.
        pairs: Number of separate pairs of matrices per example, such as the attention heads; 0 if
            all examples share the right matrix.
    """

    rows: int
    inputs: int
    outputs: int
    times: int = 1
    constant: int = 0
    pairs: int = 0


@dataclass(frozen=True)
class Convolve:
    """A convolution of one image.

    Attributes:
        channels: Channels of the input.
        height: Height of the input in pixels.
        width: Width of the input in pixels.
        filters: Channels of the output.
        kernel: Height and width of a filter in pixels.
        stride: Vertical and horizontal stride in pixels.
        padding: Padded rows at the top and at the bottom, and padded columns on the left and on the
            right.
    """

    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the output in pixels."""
        height, width = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip(
                (self.height, self.width), self.kernel, self.stride, self.padding, strict=True
            )
        )
        return height, width

    @property
    def weights(self) -> int:
        """Number of elements of all filters."""
        return self.filters * self.channels * self.kernel[0] * self.kernel[1]

    def macs(self, batch_size: int) -> int:
        """Return the multiply-accumulates of the forward pass.

        Each of the two gradients (of the inputs and of the filters) has the same number.

        Args:
            batch_size: Number of images.
        """
        height, width = self.output
        return batch_size * height * width * self.weights

    def elements(self, batch_size: int) -> int:
        """Return the total number of elements of input, filters and output.

        The forward pass and each of the two gradients access all three tensors or their gradients:
        they read two and write the third.

        Args:
            batch_size: Number of images.
        """
        height, width = self.output
        image_elements = self.channels * self.height * self.width + self.filters * height * width
        return batch_size * image_elements + self.weights


@dataclass(frozen=True)
class Layer:
    """One layer with its bias, activation function and residual addition.

    Operation and element counts are per example. Parameter counts are totals.

    Attributes:
        name: Name of the layer in tables of results.
        macs: Multiply-accumulates of the forward pass.
        input_macs: Multiply-accumulates of the gradient of the inputs; None if they equal `macs`.
        parameters: Trained parameters.
        fixed_parameters: Parameters that are not trained, such as moving statistics.
        weights: Parameters that the gradient of the inputs reads.
        rows: Parameters that a lookup reads per example; None if the layer reads all parameters.
        borrowed: Parameters of another layer that this layer also reads.
        added: Elements per example that a lookup adds to the gradient of a table that it shares
            with another layer.
        read: Input elements.
        written: Output elements.
        backward_only: Elements that the forward pass writes only for the backward pass, such as
            gates.
        reread_outputs: Output elements that the backward pass of this layer reads.
        reread_inputs: Input elements that the backward pass of this layer reads; None if it reads
            all of them.
        kept: Elements that remain in memory until the end of the forward pass, for the backward
            pass.
        cached: Elements that remain in memory from one step to the next, such as keys and values.
        is_first: Whether the layer reads the batch; then the gradient of its inputs is not needed.
        is_last: Whether the layer writes the logits.
        targets: Number of target values with which the loss compares the outputs.
        products: The operations that perform the multiply-accumulates, without depthwise
            convolutions, which are not matrix products.
    """

    name: str
    macs: int = 0
    input_macs: int | None = None
    parameters: int = 0
    fixed_parameters: int = 0
    weights: int = 0
    rows: int | None = None
    borrowed: int = 0
    added: int = 0
    read: int = 0
    written: int = 0
    backward_only: int = 0
    reread_outputs: int = 0
    reread_inputs: int | None = None
    kept: int = 0
    cached: int = 0
    is_first: bool = False
    is_last: bool = False
    targets: int = 0
    products: tuple[Multiply | Convolve, ...] = ()


@lru_cache(maxsize=4096)  # the points of a sweep share their layers
def dense(
    name: str,
    inputs: int,
    outputs: int,
    *,
    tokens: int = 1,
    bias: bool = True,
    is_first: bool = False,
    is_last: bool = False,
) -> Layer:
    """Return the costs of a dense layer that is applied to each position of an example.

    The outputs count as kept in memory, because the gradient of the next layer reads them.

    Args:
        name: The name of the layer in tables of results.
        inputs: Width of the input.
        outputs: Width of the output.
        tokens: Positions per example.
        bias: Whether the layer has a bias.
        is_first: Whether the layer reads the batch, so that its inputs need no gradient.
        is_last: Whether the layer writes the logits.
    """
    weights = inputs * outputs
    parameters = weights
    if bias:
        parameters += outputs
    targets = 0
    if is_last:
        targets = tokens
    return Layer(
        name,
        macs=tokens * weights,
        input_macs=0 if is_first else None,
        parameters=parameters,
        weights=0 if is_first else weights,
        read=tokens * inputs,
        written=tokens * outputs,
        kept=tokens * outputs,
        is_first=is_first,
        is_last=is_last,
        targets=targets,
        products=(Multiply(tokens, inputs, outputs),),
    )


def embedding(tokens: int, width: int, vocabulary: int) -> Layer:
    """Return the costs of an embedding layer, which looks up one vector per token.

    Args:
        tokens: Tokens per example. Each token reads one row of the table.
        width: Number of elements of a row.
        vocabulary: Number of rows of the table.
    """
    rows = tokens * width
    return Layer(
        "embedding",
        parameters=vocabulary * width,
        rows=rows,
        read=tokens,
        written=rows,
        kept=rows,
        is_first=True,
    )


@dataclass(frozen=True)
class Costs:
    """The costs of one step.

    Attributes:
        parameters: Trained parameters of one copy of the model.
        non_trainable_parameters: Other parameters of one copy of the model.
        forward_flops: FLOPs of the forward pass.
        backward_flops: FLOPs of the backward pass; 0 in inference.
        flops_per_step: FLOPs of both passes.
        bytes_per_step: Compulsory memory traffic in bytes (see `sum_costs`).
        memory_lower_bound_bytes: Lower bound of the required memory in bytes (see `sum_costs`).
        cache_bytes: Bytes of this memory that hold the key-value cache of a generation.
    """

    parameters: int
    non_trainable_parameters: int
    forward_flops: int
    backward_flops: int
    flops_per_step: int
    bytes_per_step: int
    memory_lower_bound_bytes: int
    cache_bytes: int = 0

    def times(self, devices: int) -> Self:
        """Return the total costs of several devices that each perform this step.

        Parameters and the cache are not multiplied.

        Args:
            devices: Number of devices.
        """
        return replace(
            self,
            forward_flops=devices * self.forward_flops,
            backward_flops=devices * self.backward_flops,
            flops_per_step=devices * self.flops_per_step,
            bytes_per_step=devices * self.bytes_per_step,
            memory_lower_bound_bytes=devices * self.memory_lower_bound_bytes,
        )


#: Costs of a model whose layers the driver does not know: all fields are 0.
UNKNOWN = Costs(
    parameters=0,
    non_trainable_parameters=0,
    forward_flops=0,
    backward_flops=0,
    flops_per_step=0,
    bytes_per_step=0,
    memory_lower_bound_bytes=0,
)


def sum_costs(
    layers: Sequence[Layer], batch_size: int, precision: str, mode: str, *, slots: int
) -> Costs:
    """Return the costs of one step over all layers.

    `bytes_per_step` is compulsory traffic: a tensor crosses the memory bus once per use. A use is
    the forward pass of a layer, the backward pass of a layer, the loss, or the weight update.

    `memory_lower_bound_bytes` is the total size of the tensors that must exist at the same time. In
    training, these are all tensors that exist at the end of the forward pass. In inference and
    generation, they are the weights, the batch, the cache, and the inputs and outputs of the layer
    that needs most. docs/reference/metrics.md lists the tensors and their element sizes.

    Args:
        layers: The layers in the order of the forward pass.
        batch_size: Examples per step.
        precision: The type of the activations, a key of `COMPUTE_BYTES`.
        mode: `train`, `inference` or `generate`.
        slots: Number of optimizer variables per trained parameter.
    """
    width = COMPUTE_BYTES[precision]
    is_training = mode == "train"
    macs = sum(layer.macs for layer in layers)
    parameters = sum(layer.parameters for layer in layers)
    fixed_parameters = sum(layer.fixed_parameters for layer in layers)
    forward_flops = 2 * batch_size * macs
    backward_flops = 0
    traffic = sum(_forward_bytes(layer, batch_size, width) for layer in layers)
    batch_bytes = _FULL_BYTES * batch_size * sum(layer.read for layer in layers if layer.is_first)
    cache_bytes = width * batch_size * sum(layer.cached for layer in layers)
    # A generating model stores its weights in the type of its matrix products.
    weight_bytes = width if mode == "generate" else _FULL_BYTES
    memory = weight_bytes * (parameters + fixed_parameters) + batch_bytes + cache_bytes
    if is_training:
        target_bytes = _FULL_BYTES * batch_size * sum(layer.targets for layer in layers)
        slot_bytes = _FULL_BYTES * slots * parameters
        kept_bytes = width * batch_size * sum(layer.kept for layer in layers)
        backward_flops = forward_flops + 2 * batch_size * sum(map(_input_macs, layers))
        traffic += target_bytes
        traffic += sum(_training_bytes(layer, batch_size, width, slots) for layer in layers)
        memory += slot_bytes + target_bytes + kept_bytes
    else:
        traffic += _FULL_BYTES * fixed_parameters
        memory += batch_size * max(_live_bytes(layer, width) for layer in layers)
    return Costs(
        parameters=parameters,
        non_trainable_parameters=fixed_parameters,
        forward_flops=forward_flops,
        backward_flops=backward_flops,
        flops_per_step=forward_flops + backward_flops,
        bytes_per_step=traffic,
        memory_lower_bound_bytes=memory,
        cache_bytes=cache_bytes,
    )


def _input_macs(layer: Layer) -> int:
    """Return the number of multiply-accumulates in the gradient of a layer's inputs."""
    return layer.macs if layer.input_macs is None else layer.input_macs


def _forward_bytes(layer: Layer, batch_size: int, width: int) -> int:
    """Return the bytes that the forward pass of a layer moves for a batch.

    It reads weights and inputs, and writes outputs. An embedding reads one row per token of the
    batch, but counts at most the whole table.

    Args:
        layer: The layer.
        batch_size: Number of examples.
        width: Bytes per element of an activation.
    """
    weights = layer.parameters + layer.borrowed
    if layer.rows is not None:
        weights = min(weights, batch_size * layer.rows)
    input_width = _FULL_BYTES if layer.is_first else width
    output_width = _FULL_BYTES if layer.is_last else width
    example_bytes = layer.read * input_width + layer.written * output_width
    return weights * width + batch_size * example_bytes


def _training_bytes(layer: Layer, batch_size: int, width: int, slots: int) -> int:
    """Return the bytes that a training step of a layer moves in addition to its forward pass.

    The gradient of the activation between two layers is written once and read once. Both transfers
    count for the layer that reads the activation. The last layer counts the loss, which reads the
    logits, and the transfers of the gradient of the logits.

    Args:
        layer: The layer.
        batch_size: Number of examples.
        width: Bytes per element of an activation.
        slots: Number of optimizer variables per trained parameter.
    """
    reread_inputs = layer.read if layer.reread_inputs is None else layer.reread_inputs
    if layer.is_first:
        example_bytes = reread_inputs * _FULL_BYTES
    else:
        example_bytes = reread_inputs * width
        example_bytes += 2 * layer.read * width  # the gradient of the inputs: written and read
    example_bytes += (2 * layer.backward_only + layer.reread_outputs) * width
    if layer.is_last:
        example_bytes += 3 * layer.written * _FULL_BYTES
    gradient_bytes = (layer.weights + 2 * layer.parameters) * width
    table = layer.parameters + layer.borrowed
    gradient_bytes += 2 * min(table, batch_size * layer.added) * width
    # The update reads and writes each parameter and each of its optimizer variables.
    update_bytes = layer.parameters * _FULL_BYTES * (2 + 2 * slots)
    update_bytes += layer.fixed_parameters * _FULL_BYTES * 2
    return batch_size * example_bytes + gradient_bytes + update_bytes


def _live_bytes(layer: Layer, width: int) -> int:
    """Return the bytes per example of the activations that must exist while a layer runs.

    These are the outputs. A layer with matrix products also needs its inputs, because it cannot
    overwrite them. Inputs from the batch or the cache are counted elsewhere.

    Args:
        layer: The layer.
        width: Bytes per element of an activation.
    """
    inputs = 0
    if layer.macs and not layer.is_first:
        inputs = max(0, layer.read - layer.cached)
    live = (inputs + layer.written) * width
    if layer.is_last:
        return max(live, layer.written * _FULL_BYTES)
    return live
