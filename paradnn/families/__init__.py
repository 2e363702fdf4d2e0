"""Model families: their options, layers, analytic costs and Keras models.

A file of this folder, or of another package (`paradnn.core.registry`), holds a dataclass of options
that derives from `Model`, and a `Family` that names it. Help, checks, completion, plans, records
and analyses follow from these two:

    @dataclass(frozen=True)
    class FullyConnected(Model):
        size_template: ClassVar[str] = "{nodes}"     # distinguishes its models in lists
        name: str = "fc"
        nodes: int = option(1024, "units of each hidden layer", low=1)

        def layer_list(self) -> list[Layer]: ...     # analytic costs of a step
        def build(self) -> BuiltModel: ...           # the model in Keras

    FAMILY = Family("fc", FullyConnected, "vectors", ("nodes",), "model.nodes=64,256,1024", order=0)

The driver, the worker and the analysis import these files. Keras and the frameworks are therefore
imported only within `build`.

FLOPs are model FLOPs as Chowdhery et al. define them (PaLM, 2022, appendix B): two per
multiply-accumulate of matrix products and convolutions, in the forward and the backward pass. See
docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from paradnn.core.layers import UNKNOWN, Costs, Layer, sum_costs
from paradnn.core.registry import Registry
from paradnn.core.schema import read
from paradnn.families.built import BuiltModel
from paradnn.families.operations import Operation, RepeatedOperation, product_operations

#: Optimizer variables per weight. Keras' RMSprop keeps a mean square and, with momentum, a
#: velocity. Adam keeps a mean and a mean square.
_SLOTS = {"rmsprop": 2, "momentum": 1, "sgd": 0, "adam": 2}


@lru_cache(maxsize=2**14)  # a sweep measures each model with many batch sizes
def _affine_costs(
    model: Model, precision: str, mode: str, slots: int
) -> list[tuple[int, int]] | None:
    """Each field of `Costs` as a constant and an increment per example.

    None if the costs are not affine in the batch size: lookups read no more than their table.
    """
    layers = model.layer_list()
    if any(layer.rows is not None or layer.added for layer in layers):
        return None
    empty = vars(sum_costs(layers, 0, precision, mode, slots=slots))
    single = vars(sum_costs(layers, 1, precision, mode, slots=slots))
    return [(empty[name], single[name] - empty[name]) for name in empty]


@dataclass(frozen=True)
class Model:
    """The options of a family, and what follows from them.

    A subclass checks constraints between its options in `__post_init__`.

    Attributes:
        is_kernel: A step is a single operation.
        is_communication: A step is messages between processes, without arithmetic.
        generates: The model generates tokens one by one.
        predicts_tokens: The outputs predict a token at each position of the input.
        is_counted: The costs have no formula, so the worker counts them.
        convolves, is_depthwise, is_sparse: Operations that profilers may count differently.
        size_template: Distinguishes the models of the family in a list, with options in braces:
            "{layers}x{width}".
    """

    is_kernel: ClassVar[bool] = False
    is_communication: ClassVar[bool] = False
    generates: ClassVar[bool] = False
    predicts_tokens: ClassVar[bool] = False
    convolves: ClassVar[bool] = False
    is_depthwise: ClassVar[bool] = False
    is_sparse: ClassVar[bool] = False
    is_counted: ClassVar[bool] = False
    size_template: ClassVar[str] = ""

    name: str = ""

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        """Read the model from the keys of a configuration. Raises ConfigError."""
        return read(cls, keys, "model")

    @classmethod
    def stored_options(cls, keys: Mapping[str, Any]) -> type[Model]:
        """The options class for keys of a stored run, which may have further keys."""
        return cls

    @property
    def size(self) -> str:
        """The text that distinguishes this model in a list."""
        return self.size_template.format_map(vars(self))

    def layer_list(self) -> Sequence[Layer]:
        """The layers in forward order. Raises ValueError for a model without layers."""
        raise ValueError(f"{self.name} has no layers")

    def build(self) -> BuiltModel:
        """Build the model in Keras, or a kernel in its framework.

        The caller sets the dtype policy. Logits are float32 whatever the policy.
        """
        raise NotImplementedError

    def built_model(self) -> BuiltModel:
        """Call `build`, which some families shadow with an option of that name."""
        return self.build()

    def canonical_point(self, point: Any) -> Any:
        """The `Point` of this model in canonical form. Raises ConfigError if it is invalid."""
        return point

    def check_measurable(self, point: Any) -> None:
        """Raise ConfigError if ParaDnn cannot measure a point of this model, only predict it."""

    def costs(
        self,
        *,
        batch_size: int,
        precision: str,
        mode: str,
        optimizer: str,
        momentum: float = 0.9,
        devices: int = 1,
        prompt: int = 0,
        tokens: int = 0,
    ) -> Costs:
        """Costs of one step over all devices, without the traffic of the all-reduce.

        Args:
            batch_size: Examples over all devices.
            precision: Type of products and activations.
            mode: `train`, `inference` or `generate`. A step of `generate` makes one token per
                example.
            optimizer: Name of the optimizer, whose variables count as memory and traffic.
            momentum: That of the optimizer.
            devices: Each has a copy of the weights and of the optimizer's variables.
            prompt: Tokens of a prompt. In mode generate the memory bound includes reading it.
            tokens: Tokens generated after the prompt.

        Raises:
            ValueError: If the mode is generate and the family generates no tokens.
        """
        if mode == "generate":
            return self._generation_costs(batch_size, precision, prompt, tokens)
        if self.is_counted:
            return UNKNOWN
        slots = optimizer_slots(optimizer, momentum)
        examples = batch_size // devices
        affine = _affine_costs(self, precision, mode, slots)
        if affine:
            costs = Costs(*(constant + examples * increment for constant, increment in affine))
        else:
            costs = sum_costs(self.layer_list(), examples, precision, mode, slots=slots)
        if devices > 1:
            return costs.times(devices)
        return costs

    def _generation_costs(self, batch_size: int, precision: str, prompt: int, tokens: int) -> Costs:
        """Costs of the last decoding step, with the larger memory bound of it and the prefill."""
        layers = self.decode_layers(prompt + tokens)
        step = sum_costs(layers, batch_size, precision, "generate", slots=0)
        prefill = self.prefill_costs(
            batch_size=batch_size, precision=precision, prompt=prompt, tokens=tokens
        )
        memory = max(step.memory_lower_bound_bytes, prefill.memory_lower_bound_bytes)
        return replace(step, memory_lower_bound_bytes=memory)

    def prefill_costs(self, *, batch_size: int, precision: str, prompt: int, tokens: int) -> Costs:
        """Costs of reading a batch of prompts and of generating the first token after each.

        The cache has room for the prompt and `tokens` more.
        """
        layers = self.prefill_layers(prompt, prompt + tokens)
        return sum_costs(layers, batch_size, precision, "generate", slots=0)

    def prefill_layers(self, prompt: int, length: int) -> Sequence[Layer]:
        """Layers that read a prompt into a cache of `length` positions and predict the next token.

        Raises ValueError for a model that generates no tokens.
        """
        raise ValueError(f"{self.name} cannot generate tokens")

    def decode_layers(self, length: int) -> Sequence[Layer]:
        """Layers for one token that attends to a cache of `length` positions.

        Raises ValueError for a model that generates no tokens.
        """
        raise ValueError(f"{self.name} cannot generate tokens")

    def product_list(
        self, *, batch_size: int, precision: str, mode: str
    ) -> list[RepeatedOperation]:
        """The matrix products and convolutions of one step, in the order of the layers.

        Raises ValueError for mode=generate.
        """
        if mode == "generate":
            raise ValueError("mode=generate has no list of operations")
        return product_operations(self.layer_list(), batch_size, precision, mode)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """A kernel as an operation of a step. Raises ValueError for other models."""
        raise ValueError(f"{self.name} is not an operation of a step")

    def layer_count(self) -> int:
        """The number of layers, with which build and compile times grow."""
        return len(self.layer_list())

    def example_sizes(self) -> tuple[int, int]:
        """Numbers of an example's inputs, and of its target in one-hot form."""
        layers = self.layer_list()
        inputs = sum(layer.read for layer in layers if layer.is_first)
        classes = sum(layer.written // max(layer.targets, 1) for layer in layers if layer.is_last)
        return inputs, classes


def optimizer_slots(optimizer: str, momentum: float) -> int:
    """The number of optimizer variables per weight."""
    slots = _SLOTS[optimizer]
    if momentum == 0 and optimizer in ("rmsprop", "momentum"):
        return slots - 1
    return slots


@dataclass(frozen=True)
class Family:
    """A family of models, which `model=NAME` selects.

    Attributes:
        name: The value of `model`.
        options: Dataclass of its hyperparameters.
        data: Content of a batch: vectors, images, tokens, or any.
        swept: Options in which its models differ, the most informative first.
        sweep: Overrides that sweep these options.
        is_real: Whether it is a published architecture.
        is_open: Whether it accepts keys beyond its options.
        order: Position in figures and tables. New families go to the end.
        summary: Its text in `paradnn list models`; by default the docstring of `options`.
        defaults: Defaults of other groups that it replaces: keys of the point (`step`) and of the
            optimizer (`learning`).
        files: Ending of a file -> overrides that measure such a file, with its path as `{path}`.
    """

    name: str
    options: type[Model]
    data: str
    swept: tuple[str, ...] = ()
    sweep: str = ""
    is_real: bool = False
    is_open: bool = False
    order: int = 1000
    summary: str = ""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    is_kernel = property(lambda self: self.options.is_kernel)
    is_communication = property(lambda self: self.options.is_communication)

    @property
    def description(self) -> str:
        """Description of the family in one sentence."""
        if self.summary:
            return self.summary
        first_paragraph = (self.options.__doc__ or "").split("\n\n")[0]
        return " ".join(first_paragraph.split())

    @property
    def has_layers(self) -> bool:
        """Whether the layers are known before the model is built.

        They are not for a kernel, for messages, for a served model and for a user's model.
        """
        model = self.options
        return not (model.is_kernel or model.is_counted or model.is_communication)


#: Families by name, in the order of figures and tables.
FAMILIES = Registry(Family, "paradnn.families", "paradnn.workloads")


def message_families() -> tuple[str, ...]:
    """Names of the families whose steps are messages."""
    return tuple(name for name, family in FAMILIES.items() if family.is_communication)


def make_model(options: Mapping[str, Any]) -> Model:
    """Make a model from its options and `name`, as requests and stored runs hold them.

    Only the constraints between options are checked. Keys that other versions stored are ignored.

    Raises:
        ValueError: If there is no such family. The message lists the families.
    """
    name = options["name"]
    if name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"model.name={name}: no such family; known are {known}")
    options_class = FAMILIES[name].options.stored_options(options)
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key in options_class.__dataclass_fields__:
            # JSON and YAML have lists where options are tuples.
            values[key] = tuple(value) if isinstance(value, list) else value
    return options_class(**values)


def build(options: Mapping[str, Any]) -> BuiltModel:
    """Build the model that `make_model` makes from these options."""
    return make_model(options).built_model()
