"""The families of models that can be measured: options, layers, Keras models.

A file of this folder, or of another package (`paradnn.core.registry`), holds a dataclass of options
below `Model` and a `Family` that names it; help, checks, completion, plans, records and analyses
follow from the two:

    @dataclass(frozen=True)
    class FullyConnected(Model):
        shown: ClassVar[str] = "{nodes}"               # the words that distinguish its models
        name: str = "fc"
        nodes: int = option(1024, "units of each hidden layer", low=1)

        def layer_list(self) -> list[Layer]: ...     # what a step costs, by arithmetic
        def build(self) -> BuiltModel: ...             # the model, in Keras

    FAMILY = Family("fc", FullyConnected, "vectors", ("nodes",), "model.nodes=64,256,1024", order=0)

Driver, worker and analysis import these files, so Keras and frameworks are imported only within
`build`.

FLOPs are the model's own: twice the multiply-accumulates of matrix products and convolutions,
forward and backward, as Chowdhery et al. (PaLM, appendix B) count model FLOPs; docs/reference/metrics.md says
more.
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

#: Optimizer variables of the size of each weight: Keras' RMSprop keeps a mean square and, with
#: momentum, a velocity; Adam a mean and a mean square.
_SLOTS = {"rmsprop": 2, "momentum": 1, "sgd": 0, "adam": 2}


@lru_cache(maxsize=2**14)  # a sweep has a model in many batches
def _per_example_costs(
    model: Model, precision: str, mode: str, slots: int
) -> list[tuple[int, int]] | None:
    """Each field of the costs of no example, with what an example adds; None where that depends on
    how many there are: lookups read no more than their table.
    """
    layers = model.layer_list()
    if any(layer.rows is not None or layer.added for layer in layers):
        return None
    none, one = (vars(sum_costs(layers, count, precision, mode, slots=slots)) for count in (0, 1))
    return [(none[name], one[name] - none[name]) for name in none]


@dataclass(frozen=True)
class Model:
    """The options of a family, and all that follows from them; what its keys must be together is in
    `__post_init__`.

    is_kernel: its step is one operation. is_communication: its step is messages to other
    processes or to a server, and computes nothing here. generates: it makes tokens one after the other. predicts_tokens: it says of each token
    which one comes next. is_counted: its costs are no arithmetic: the worker counts. Of what
    profilers may count otherwise: convolves, is_depthwise, is_sparse.

    shown: the words that distinguish its models in a list, with options in braces:
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
        """That of the keys of a configuration; raises ConfigError."""
        return read(cls, keys, "model")

    @classmethod
    def stored_options(cls, keys: Mapping[str, Any]) -> type[Model]:
        """The options that stored keys are of."""
        return cls

    @property
    def size(self) -> str:
        """The words that distinguish this model in a list."""
        return self.size_template.format_map(vars(self))

    def layer_list(self) -> Sequence[Layer]:
        """Its layers in the order of the forward pass; ValueError for what has none."""
        raise ValueError(f"{self.name} has no layers")

    def build(self) -> BuiltModel:
        """The model in Keras, or a kernel in its framework; the dtype policy is set, and logits are
        float32.
        """
        raise NotImplementedError

    def built_model(self) -> BuiltModel:
        """What `build` gives, which is a key of some families."""
        return self.build()

    def canonical_point(self, point: Any) -> Any:
        """A `Point` of this model in the one way that stands for it; ConfigError where it asks for
        what cannot be.
        """
        return point

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
        """Costs of one step over all `devices`, each with weights and optimizer variables of its
        own, without what the all-reduce moves; `mode` is train, inference or generate: a token of
        each example, after a `prompt` of which the memory counts too. ValueError for a family that
        generates none.
        """
        if mode == "generate":
            step = sum_costs(
                self.decode_layers(prompt + tokens), batch_size, precision, mode, slots=0
            )
            first = self.prefill_costs(
                batch_size=batch_size, precision=precision, prompt=prompt, tokens=tokens
            )
            memory = max(step.memory_lower_bound_bytes, first.memory_lower_bound_bytes)
            return replace(step, memory_lower_bound_bytes=memory)
        if self.is_counted:
            return UNKNOWN
        slots = optimizer_slots(optimizer, momentum)
        each = batch_size // devices
        line = _per_example_costs(self, precision, mode, slots)
        if line:
            costs = Costs(*(none + each * more for none, more in line))
        else:
            costs = sum_costs(self.layer_list(), each, precision, mode, slots=slots)
        return costs.times(devices) if devices > 1 else costs

    def prefill_costs(self, *, batch_size: int, precision: str, prompt: int, tokens: int) -> Costs:
        """Costs of reading a batch of prompts into a cache with room for `tokens` more, and of the
        first of these.
        """
        return sum_costs(
            self.prefill_layers(prompt, prompt + tokens), batch_size, precision, "generate", slots=0
        )

    def prefill_layers(self, prompt: int, length: int) -> Sequence[Layer]:
        """The model that reads a prompt into a cache of `length` places, and says what follows it;
        ValueError for one that generates nothing.
        """
        raise ValueError(f"{self.name} generates no tokens")

    def decode_layers(self, length: int) -> Sequence[Layer]:
        """The model for one token after others, which looks back over a cache of `length` places."""
        raise ValueError(f"{self.name} generates no tokens")

    def product_list(
        self, *, batch_size: int, precision: str, mode: str
    ) -> list[RepeatedOperation]:
        """The matrix products and convolutions of one step, in the order of its layers; ValueError
        for a generation.
        """
        if mode == "generate":
            raise ValueError("a step of a generation is not told as a list of operations")
        return product_operations(self.layer_list(), batch_size, precision, mode)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """A kernel as an operation that steps have too; ValueError for what is none."""
        raise ValueError(f"{self.name} is no operation of a step")

    def layer_count(self) -> int:
        """How many layers it is counted as: what building and compiling it grows with."""
        return len(self.layer_list())

    def example_sizes(self) -> tuple[int, int]:
        """How many numbers an example's input has, and a target with a one for its class among
        zeros.
        """
        layers = self.layer_list()
        classes = sum(layer.written // max(layer.targets, 1) for layer in layers if layer.is_last)
        return sum(layer.read for layer in layers if layer.is_first), classes


def optimizer_slots(optimizer: str, momentum: float) -> int:
    """Variables of an optimizer of the size of each weight."""
    return _SLOTS[optimizer] - (1 if momentum == 0 and optimizer in ("rmsprop", "momentum") else 0)


@dataclass(frozen=True)
class Family:
    """What `model=NAME` can be.

    options: the dataclass of its hyperparameters. data: what a batch holds: vectors, images,
    tokens, or any. is_open: it takes further keys. swept: options in which its models differ most,
    the most telling first; sweep: overrides that sweep them. is_real: a published architecture.
    order: in the order of figures and tables; new families go to the end. words: what `paradnn list
    models` says of it, by default what the options say. chosen: keys of the point (`step`) and of
    the optimizer (`learning`) that come with it unless the command line says otherwise.
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

    is_kernel = property(lambda self: self.options.is_kernel)
    is_communication = property(lambda self: self.options.is_communication)

    @property
    def description(self) -> str:
        """What it is, in a sentence."""
        return self.summary or " ".join((self.options.__doc__ or "").split("\n\n")[0].split())

    @property
    def has_layers(self) -> bool:
        """Whether its layers are known before it is built.

        They are not for a kernel, for messages or a served model, and for a user's own model.
        """
        model = self.options
        return not (model.is_kernel or model.is_counted or model.is_communication)


#: By name, in the order of figures and tables.
FAMILIES = Registry(Family, "paradnn.families", "paradnn.workloads")


def message_families() -> tuple[str, ...]:
    """Families whose steps are messages."""
    return tuple(name for name, family in FAMILIES.items() if family.is_communication)


def make_model(options: Mapping[str, Any]) -> Model:
    """The model of a mapping with its `name`, as requests and stored runs hold it; ValueError names
    the families. Nothing is checked but what the keys must be together. What other versions stored
    beside is left out.
    """
    if options["name"] not in FAMILIES:
        raise ValueError(
            f"model.name={options['name']}: no such family; known are {', '.join(FAMILIES)}"
        )
    known = FAMILIES[options["name"]].options.stored_options(options)
    given: dict[str, Any] = {
        key: value for key, value in options.items() if key in known.__dataclass_fields__
    }
    return known(
        **given | {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    )


def build(options: Mapping[str, Any]) -> BuiltModel:
    """`Model.built` of such a mapping."""
    return make_model(options).built_model()
