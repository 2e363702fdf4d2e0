"""A model as a list of layers, and what a list of layers costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

#: The type of a batch, of the logits, and of weights and optimizer variables in every precision.
_FULL_BYTES = 4
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int8_dynamic": 4}


@dataclass(frozen=True)
class Multiply:
    """A matrix product of a layer's forward pass: for each example `rows` x `inputs` by `inputs` x
    `outputs`, `times` one after the other, of which `constant` have inputs without a gradient; own:
    pairs of matrices that an example has of its own, as of attention's heads, 0 where the right
    matrix is every example's.
    """

    rows: int
    inputs: int
    outputs: int
    times: int = 1
    constant: int = 0
    own: int = 0


@dataclass(frozen=True)
class Convolve:
    """A convolution of one image; pairs are downwards and to the right, `padding` is on each side."""

    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the output."""
        sizes = zip((self.height, self.width), self.kernel, self.stride, self.padding, strict=True)
        height, width = (
            (size + 2 * padding - kernel) // stride + 1 for size, kernel, stride, padding in sizes
        )
        return height, width

    @property
    def weights(self) -> int:
        return self.filters * self.channels * self.kernel[0] * self.kernel[1]

    def macs(self, batch_size: int) -> int:
        """Multiply-accumulates, in any direction."""
        return batch_size * self.output[0] * self.output[1] * self.weights

    def elements(self, batch_size: int) -> int:
        """Of input, filters and output: any direction reads two of them, or their gradients, and
        writes the third.
        """
        images = (
            self.channels * self.height * self.width
            + self.filters * self.output[0] * self.output[1]
        )
        return batch_size * images + self.weights


@dataclass(frozen=True)
class Layer:
    """One layer with its bias, rectifier and addition; counts are elements per example, of
    parameters in all.

    macs: multiply-accumulates of the forward pass; input_macs: those of the gradient of its inputs,
    by default as many. parameters: trained; fixed_parameters: moving statistics; weights: what the
    gradient of the inputs is made with; rows: parameters that one example's lookup reads, by
    default all; borrowed: those of another layer that it reads too; added: of a shared table's
    gradient, what a lookup adds to.

    read, written: inputs and outputs. inner: what forward writes for the backward pass alone, such
    as gates; reread: its own outputs that the backward pass reads; again: inputs that this reads
    again, by default all. kept: what must exist when the forward pass is over. held: what stays
    from one step to the next, such as a cache.

    is_first: reads the batch, whose gradient is not needed. is_last: writes the logits. targets:
    numbers of the batch that the loss compares its outputs with. products: what does the
    multiply-accumulates, but for depthwise convolutions, which are no matrix product.
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
    inner: int = 0
    reread: int = 0
    again: int | None = None
    kept: int = 0
    held: int = 0
    is_first: bool = False
    is_last: bool = False
    targets: int = 0
    products: tuple[Multiply | Convolve, ...] = ()


@lru_cache(maxsize=4096)  # the points of a sweep have the same ones
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
    """A dense layer over `tokens` positions; its outputs are kept for the gradient of what follows."""
    return Layer(
        name,
        macs=tokens * inputs * outputs,
        input_macs=0 if is_first else None,
        parameters=(inputs + bias) * outputs,
        weights=0 if is_first else inputs * outputs,
        read=tokens * inputs,
        written=tokens * outputs,
        kept=tokens * outputs,
        is_first=is_first,
        is_last=is_last,
        targets=tokens if is_last else 0,
        products=(Multiply(tokens, inputs, outputs),),
    )


def embedding(tokens: int, width: int, vocabulary: int) -> Layer:
    """Rows of a table."""
    rows = tokens * width
    parameters = vocabulary * width
    return Layer(
        "embedding",
        parameters=parameters,
        rows=rows,
        read=tokens,
        written=rows,
        kept=rows,
        is_first=True,
    )


@dataclass(frozen=True)
class Costs:
    """Costs of one step: counts, FLOP and bytes; `flops_per_step` is forward and, in training,
    backward; cache_bytes: what stays from one step of a generation to the next, part of the memory.
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
        """Of so many devices with a step like this each; the parameters stay those of one model."""
        names = (
            "forward_flops",
            "backward_flops",
            "flops_per_step",
            "bytes_per_step",
            "memory_lower_bound_bytes",
        )
        return replace(self, **{name: devices * getattr(self, name) for name in names})


#: Of what only the worker can count.
UNKNOWN = Costs(0, 0, 0, 0, 0, 0, 0)


def sum_costs(
    layers: Sequence[Layer], batch_size: int, precision: str, mode: str, *, slots: int
) -> Costs:
    """Costs of one step over all layers; `slots` is the number of optimizer variables of the size
    of each weight.

    bytes_per_step is compulsory traffic: a tensor crosses the memory bus once for each of its uses,
    which are a layer's forward pass, its backward pass, the loss and the update.
    memory_lower_bound_bytes is what must exist at one moment: in training the end of the forward
    pass, in inference the largest of inputs and outputs of one product, with weights and batch.
    docs/reference/metrics.md says which tensors these are, and how wide.
    """
    training = mode == "train"
    width = COMPUTE_BYTES[precision]
    forward = 2 * batch_size * sum(layer.macs for layer in layers)
    inputs = sum(layer.macs if layer.input_macs is None else layer.input_macs for layer in layers)
    backward = forward + 2 * batch_size * inputs if training else 0
    parameters = sum(layer.parameters for layer in layers)
    fixed = sum(layer.fixed_parameters for layer in layers)
    batch = _FULL_BYTES * batch_size * sum(layer.read for layer in layers if layer.is_first)
    traffic = sum(_forward_bytes(layer, batch_size, width) for layer in layers)
    cache = width * batch_size * sum(layer.held for layer in layers)
    memory = (width if mode == "generate" else _FULL_BYTES) * (parameters + fixed) + batch + cache
    if training:
        classes = _FULL_BYTES * batch_size * sum(layer.targets for layer in layers)
        traffic += classes + sum(
            _training_bytes(layer, batch_size, width, slots) for layer in layers
        )
        memory += (
            _FULL_BYTES * slots * parameters
            + classes
            + width * batch_size * sum(layer.kept for layer in layers)
        )
    else:
        traffic += _FULL_BYTES * fixed
        memory += batch_size * max(_live_bytes(layer, width) for layer in layers)
    return Costs(parameters, fixed, forward, backward, forward + backward, traffic, memory, cache)


def _forward_bytes(layer: Layer, batch_size: int, width: int) -> int:
    """Weights (of an embedding the rows looked up, at most the table) and inputs read, outputs
    written.
    """
    weights = layer.parameters + layer.borrowed
    if layer.rows is not None:
        weights = min(weights, batch_size * layer.rows)
    moved = layer.read * (_FULL_BYTES if layer.is_first else width)
    moved += layer.written * (_FULL_BYTES if layer.is_last else width)
    return weights * width + batch_size * moved


def _training_bytes(layer: Layer, batch_size: int, width: int, slots: int) -> int:
    """What training adds for `layer`; a gradient between two layers is written by one and read by
    one: both are charged to the reader of the activation, and the logits' to the last layer, with
    the loss that reads them.
    """
    moved = (layer.read if layer.again is None else layer.again) * (
        _FULL_BYTES if layer.is_first else width
    )
    moved += 0 if layer.is_first else 2 * layer.read * width  # a gradient written and read
    moved += (2 * layer.inner + layer.reread) * width
    if layer.is_last:
        moved += 3 * layer.written * _FULL_BYTES
    gradients = layer.weights * width + layer.parameters * 2 * width
    gradients += 2 * min(layer.parameters + layer.borrowed, batch_size * layer.added) * width
    update = (
        layer.parameters * _FULL_BYTES * (2 + 2 * slots) + layer.fixed_parameters * _FULL_BYTES * 2
    )
    return batch_size * moved + gradients + update


def _live_bytes(layer: Layer, width: int) -> int:
    """Bytes per example that exist beside the batch while `layer` runs: a product writes over none
    of its inputs.
    """
    if layer.is_first or not layer.macs:
        inputs = 0
    else:
        inputs = max(0, layer.read - layer.held)
    return max(
        (inputs + layer.written) * width, layer.written * _FULL_BYTES if layer.is_last else 0
    )
