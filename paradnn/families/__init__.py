"""Model families: their options, layers, analytic costs and Keras models.

A module of this package, or of a plug-in (see `paradnn.core.registry`), defines a dataclass of
options that derives from `Model`, and a `Family` that names the dataclass. Help, checks,
completion, plans, records and analyses are derived from these two objects:

    @dataclass(frozen=True)
    class FullyConnected(Model):
        size_template: ClassVar[str] = "{nodes}"     # distinguishes the models in lists
        name: str = "fc"
        nodes: int = option(1024, "units of each hidden layer", low=1)

        def layer_list(self) -> list[Layer]: ...     # analytic costs of a step
        def build(self) -> BuiltModel: ...           # the model in Keras

    FAMILY = Family("fc", FullyConnected, "vectors", ("nodes",), "model.nodes=64,256,1024", order=0)

The driver, the worker and the analysis import these modules. Keras and the frameworks are therefore
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
    model: Model, precision: str, mode: str, optimizer_variables: int
) -> list[tuple[int, int]] | None:
    """Express the costs of a training or inference step as affine functions of the batch size.

    Args:
        model: The model.
        precision: Type of matrix products and activations.
        mode: `train` or `inference`.
        optimizer_variables: Number of optimizer variables per weight.

    Returns:
        For each field of `Costs`: (value at batch size 0, increment per example). None if the costs
        are not affine. An embedding, for example, never reads more than its whole table.
    """
    layers = model.layer_list()
    if any(layer.rows is not None or layer.added for layer in layers):
        return None
    empty = vars(sum_costs(layers, 0, precision, mode, slots=optimizer_variables))
    single = vars(sum_costs(layers, 1, precision, mode, slots=optimizer_variables))
    return [(empty[name], single[name] - empty[name]) for name in empty]


@dataclass(frozen=True)
class Model:
    """Base class for the options of a family; its methods derive costs and the Keras model.

    A subclass checks constraints between its options in `__post_init__`.

    Attributes:
        is_kernel: Whether a step is a single operation.
        is_communication: Whether a step consists of messages between processes, without arithmetic.
        generates: Whether the model can generate tokens one by one.
        predicts_tokens: Whether the outputs predict a token at each position of the input.
        is_counted: Whether the worker counts the costs of the built model, because ParaDnn has no
            formula for them.
        convolves: Whether the model has convolutions. Profilers may count the FLOPs of
            convolutions, depthwise convolutions and sparse products differently.
        is_depthwise: Whether the model has depthwise convolutions.
        is_sparse: Whether the model has sparse products.
        size_template: Format of `size`, with the names of options in braces: "{layers}x{width}".
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
        """Create the model from the `model` keys of a configuration.

        Args:
            keys: Name of the option -> value, without the prefix `model.`.

        Raises:
            ConfigError: If a key is unknown or a value is invalid.
        """
        return read(cls, keys, "model")

    @classmethod
    def stored_options(cls, keys: Mapping[str, Any]) -> type[Model]:
        """Return the class of options that can read the keys of a stored run.

        A family that accepts keys other than its options returns a class to which these keys are
        added as options.

        Args:
            keys: The run's `model` keys, without the prefix, and their values.
        """
        return cls

    @property
    def size(self) -> str:
        """Text that distinguishes this model from others of its family, such as "4x1024"."""
        return self.size_template.format_map(vars(self))

    def layer_list(self) -> Sequence[Layer]:
        """Return the layers in forward order, with their analytic costs.

        Raises:
            ValueError: If the model has no layers, such as a kernel.
        """
        raise ValueError(f"{self.name} has no layers")

    def build(self) -> BuiltModel:
        """Build the model in Keras, or a kernel in its framework.

        The caller sets the dtype policy of Keras first. Logits are float32 under every policy.
        """
        raise NotImplementedError

    def built_model(self) -> BuiltModel:
        """Build the model, by calling `build`.

        Callers use this method. A subclass that has an option named `build` cannot define a method
        with this name, so it overrides `built_model` instead of `build`.
        """
        return self.build()

    def canonical_point(self, point: Any) -> Any:
        """Return a point of this model in canonical form: equal points then have equal fields.

        Args:
            point: A `Point`, one configuration to measure, whose model is this one.

        Raises:
            ConfigError: If the model does not support a setting of the point, such as its mode.
        """
        return point

    def check_measurable(self, point: Any) -> None:
        """Check that ParaDnn can measure a point of this model, and not only predict its costs.

        Args:
            point: A `Point`, one configuration to measure, whose model is this one.

        Raises:
            ConfigError: If the point cannot be measured.
        """

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
        """Return the costs of one step, summed over all devices, without all-reduce traffic.

        Args:
            batch_size: Number of examples over all devices.
            precision: Type of matrix products and activations.
            mode: `train`, `inference` or `generate`. A step of `generate` generates one token per
                example.
            optimizer: Name of the optimizer, whose variables count as memory and traffic.
            momentum: Momentum of the optimizer. If it is 0, the optimizers `rmsprop` and `momentum`
                need one variable less per weight.
            devices: Number of devices. Each has a copy of the weights and of the optimizer's
                variables. Ignored in mode `generate`.
            prompt: Tokens per prompt. In mode `generate`, the memory bound includes the prefill.
            tokens: Number of tokens generated after each prompt.

        Returns:
            The costs; `UNKNOWN` if only the worker can count them (`is_counted`).

        Raises:
            ValueError: If the mode is `generate` and the family generates no tokens.
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
        """Return the costs of the last decode step.

        The memory bound is the larger of the bounds of this step and of the prefill.

        Args:
            batch_size: Number of prompts.
            precision: Type of matrix products and activations.
            prompt: Tokens per prompt.
            tokens: Number of tokens generated after each prompt.
        """
        layers = self.decode_layers(prompt + tokens)
        step = sum_costs(layers, batch_size, precision, "generate", slots=0)
        prefill = self.prefill_costs(
            batch_size=batch_size, precision=precision, prompt=prompt, tokens=tokens
        )
        memory = max(step.memory_lower_bound_bytes, prefill.memory_lower_bound_bytes)
        return replace(step, memory_lower_bound_bytes=memory)

    def prefill_costs(self, *, batch_size: int, precision: str, prompt: int, tokens: int) -> Costs:
        """Return the costs of reading a batch of prompts and generating the first token after each.

        The cache of keys and values has `prompt` + `tokens` positions.

        Args:
            batch_size: Number of prompts.
            precision: Type of matrix products and activations.
            prompt: Tokens per prompt.
            tokens: Number of tokens that are generated after each prompt in total.

        Raises:
            ValueError: If the model cannot generate tokens.
        """
        layers = self.prefill_layers(prompt, prompt + tokens)
        return sum_costs(layers, batch_size, precision, "generate", slots=0)

    def prefill_layers(self, prompt: int, length: int) -> Sequence[Layer]:
        """Return the layers that read a prompt and predict the token after it.

        Args:
            prompt: Number of tokens of the prompt.
            length: Number of positions of the cache of keys and values.

        Raises:
            ValueError: If the model cannot generate tokens.
        """
        raise ValueError(f"{self.name} cannot generate tokens")

    def decode_layers(self, length: int) -> Sequence[Layer]:
        """Return the layers of one decode step: one new token, which attends to a cache.

        Args:
            length: Number of positions of the cache of keys and values.

        Raises:
            ValueError: If the model cannot generate tokens.
        """
        raise ValueError(f"{self.name} cannot generate tokens")

    def product_list(
        self, *, batch_size: int, precision: str, mode: str
    ) -> list[RepeatedOperation]:
        """Return the matrix products and convolutions of one step, in the order of the layers.

        Args:
            batch_size: Number of examples.
            precision: Type of operands and results.
            mode: `train` or `inference`.

        Raises:
            ValueError: If the mode is `generate`, or the model has no layers.
        """
        if mode == "generate":
            raise ValueError("mode=generate has no list of operations")
        return product_operations(self.layer_list(), batch_size, precision, mode)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """Return this kernel as an `Operation`.

        Args:
            batch_size: Number of examples; ignored if the kernel has no batch.
            precision: Type of operands and results.

        Raises:
            ValueError: If the model is not a kernel.
        """
        raise ValueError(f"model={self.name} is not a kernel with a single operation")

    def layer_count(self) -> int:
        """Return the number of layers, on which build and compile times depend."""
        return len(self.layer_list())

    def example_sizes(self) -> tuple[int, int]:
        """Count the input values of one example, and the output values per target value.

        Returns:
            The number of input values, and the number of output values per target value. For a
            classifier, the latter is the number of classes. Several output layers are summed.
        """
        layers = self.layer_list()
        inputs = sum(layer.read for layer in layers if layer.is_first)
        classes = sum(layer.written // max(layer.targets, 1) for layer in layers if layer.is_last)
        return inputs, classes


def optimizer_slots(optimizer: str, momentum: float) -> int:
    """Return the number of optimizer variables per weight.

    Args:
        optimizer: `rmsprop`, `momentum`, `sgd` or `adam`.
        momentum: Momentum of the optimizer. If it is 0, the optimizers `rmsprop` and `momentum`
            need one variable less.
    """
    slots = _SLOTS[optimizer]
    if momentum == 0 and optimizer in ("rmsprop", "momentum"):
        return slots - 1
    return slots


@dataclass(frozen=True)
class Family:
    """A family of models, which `model=NAME` selects.

    Attributes:
        name: The value of `model`.
        options: Dataclass of the options of its models.
        data: Content of a batch: vectors, images, tokens, or any.
        swept: Options that sweeps vary and analyses compare, the most informative first.
        sweep: Overrides of an example sweep.
        is_real: Whether it is a published architecture.
        is_open: Whether its models accept keys other than their options.
        order: Position in figures and tables, in ascending order. By default, the family is last.
        summary: Its text in `paradnn list models`; by default the docstring of `options`.
        defaults: Default values of this family that replace the general ones. `step` has keys of
            the point, such as `mode`. `learning` has keys of the optimizer, such as
            `learning_rate`.
        files: File extension -> overrides that measure a file of this type. ParaDnn
            replaces `{path}` by the path of the file.
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

        False for kernels, messages, served models and models that users supply.
        """
        model = self.options
        return not (model.is_kernel or model.is_counted or model.is_communication)


#: Families by name, in the order of figures and tables.
FAMILIES = Registry(Family, "paradnn.families", "paradnn.workloads")


def message_families() -> tuple[str, ...]:
    """Return the names of the families whose steps are messages between processes."""
    return tuple(name for name, family in FAMILIES.items() if family.is_communication)


def make_model(options: Mapping[str, Any]) -> Model:
    """Make a model from the name of its family and its options, as stored runs record them.

    The types and ranges of the options are not checked; constraints between options are. Unknown
    keys, which another version of ParaDnn may have stored, are ignored.

    Args:
        options: Option -> value, including `name`, the name of the family.

    Raises:
        ValueError: If no family has this name. The message lists the families.
        ConfigError: If options contradict each other.
    """
    name = options["name"]
    if name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"model.name={name}: no such family; choose one of {known}")
    options_class = FAMILIES[name].options.stored_options(options)
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key in options_class.__dataclass_fields__:
            # JSON and YAML have lists where options are tuples.
            values[key] = tuple(value) if isinstance(value, list) else value
    return options_class(**values)


def build(options: Mapping[str, Any]) -> BuiltModel:
    """Build the model with the given name and options.

    Args:
        options: Option -> value, including `name`, as in `make_model`.

    Raises:
        ValueError: If no family has this name.
        ConfigError: If options contradict each other.
    """
    return make_model(options).built_model()
