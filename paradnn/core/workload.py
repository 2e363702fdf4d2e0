"""Kinds of work that a point does with its model, such as a training step or an MLPerf scenario.

Each kind is one file or folder in `paradnn/workloads`, or a module of another package that the
entry-point group `paradnn.workloads` names. The module defines one instance of a frozen dataclass,
whose fields are the options of the kind:

    @dataclass(frozen=True)
    class Idle(Workload, WorkerSide):
        name, key, group = "idle", "task", "idle"  # selected by task=idle; keys: idle.seconds
        seconds: float = option(1.0, "seconds to do nothing", low=0.0)

        def measure(self, run: PointRun) -> None: ...

    IDLE = Idle()

`Workload` identifies a kind and holds its options. Everything else is a role: a base class whose
methods have defaults. A kind inherits a role only if it overrides a method of the role:

- `paradnn.config.rules.PointRules`: which points are valid, and their canonical form.
- `paradnn.worker.workload.WorkerSide`: what the worker measures.
- `paradnn.session.run_records.RunRecords`: the metrics, tags and files of a run.
- `paradnn.core.results.ResultDescription`: the metrics that a run may have, and the result as text.
- `paradnn.forecast.workload.PhaseForecast`: how long the phases of a planned point take.

Driver and worker both import the module of a kind. At its top level it must import only the
standard library and ParaDnn, and other packages only within functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from paradnn.core.errors import ConfigError
from paradnn.core.messages import WorkloadMessage
from paradnn.core.registry import Registry
from paradnn.core.schema import read

#: The keys that select a kind of work, with their defaults.
DEFAULT_KEYS: Mapping[str, str] = {"mode": "train", "task": "step", "scenario": "closed"}
#: The keys that select a kind of work, in order of precedence. Some model families imply a kind.
_SELECTORS = ("scenario", "task", "model", "mode")

Role = TypeVar("Role")


class Workload:
    """One kind of work that is measured with a model, such as a training step, and its options.

    The defaults of the attributes are those of a timed step.

    Attributes:
        name: The value of `key` that selects this kind.
        order: Number by which kinds are sorted in lists.
        key: The key that selects this kind: mode, task, scenario or model.
        group: Prefix of the option keys of this kind; empty if it has no options.
        conflict_reason: Predicate of the error message if another key contradicts this kind, such
            as "is for inference" in "scenario=server is for inference".
        message_types: The types of messages that only this kind sends from worker to driver.
        added_defaults: Dotted keys that were added after the first version -> the value that
            applies to runs recorded without the key.
        quick_defaults: Option -> its default with measure=quick.
        step_ignores_keys: Whether the timed steps are independent of the options.
    """

    name: ClassVar[str]
    order: ClassVar[int] = 100
    key: ClassVar[str]
    group: ClassVar[str] = ""
    conflict_reason: ClassVar[str] = "does not support this value"
    message_types: ClassVar[tuple[type[WorkloadMessage], ...]] = ()
    added_defaults: ClassVar[Mapping[str, Any]] = {}
    quick_defaults: ClassVar[Mapping[str, Any]] = {}
    step_ignores_keys: ClassVar[bool] = True

    @property
    def mode(self) -> str:
        """How the model is used: train, inference, or a word that the kind of work defines."""
        return "inference"

    @property
    def unit(self) -> str:
        """Name of the work of one timed step, such as "forward pass"."""
        return "forward pass"

    @property
    def selector_values(self) -> tuple[str, ...]:
        """Values of the configuration key named by `key` that select this kind."""
        return (self.name,)

    def stored_keys(self) -> dict[str, Any]:
        """Return the keys that identify this kind of work and its options in a stored run.

        Returns:
            Key -> value; the options are a nested mapping.
        """
        keys: dict[str, Any] = {**DEFAULT_KEYS, "mode": self.mode}
        if self.key in ("task", "scenario"):
            keys[self.key] = self.name
        if self.group:
            keys[self.group] = asdict(self)  # type: ignore[call-overload]
        return keys

    def configured(self, config: Mapping[str, Any]) -> Self:
        """Return this kind of work with the options of a configuration.

        Args:
            config: Composed configuration, or request to the worker, as nested mappings of plain
                values.

        Raises:
            ConfigError: If an option is unknown or out of range.
        """
        if self.group:
            return read(type(self), config.get(self.group, {}), self.group)
        return self

    def for_process(self, replicate: int, process: int) -> Self:
        """Return this kind of work with the options for one process; by default unchanged.

        Args:
            replicate: Number of the replicate, which is a repetition of the measurement, from 0.
            process: Number of the process in the replicate, from 0.
        """
        return self

    def cost_options(self) -> dict[str, int]:
        """Return the options that affect the costs of a step, as arguments of `Model.costs`."""
        return {}

    def role(self, role: type[Role]) -> Role:
        """Return this workload as an instance of a role, a base class for one of its aspects.

        Args:
            role: The class of the role, such as `PointRules`.

        Returns:
            This workload if it inherits from the role. Otherwise, an instance of the role, whose
            methods have their default behavior.

        Raises:
            TypeError: If the class overrides a method of the role without inheriting from the role.
        """
        if isinstance(self, role):
            return self
        # mypy does not accept a dataclass type as a hashable argument of the cached function.
        work_type: Any = type(self)
        role_type: Any = role
        default: Role = _default_role(work_type, role_type)
        return default


@cache
def _default_role(work_type: Any, role: Any) -> Any:
    overridden = [name for name in vars(role) if name[0] != "_" and hasattr(work_type, name)]
    if overridden:
        names = ", ".join(overridden)
        raise TypeError(
            f"{work_type.__name__} defines {names} and must inherit from {role.__name__}"
        )
    return role()


#: Every kind of work by name.
WORKLOADS: Registry[Workload] = Registry(Workload, "paradnn.workloads")


def default_workload() -> Workload:
    """Return the workload task=step, a timed step.

    Every other workload also records the metrics of this workload.
    """
    return WORKLOADS[DEFAULT_KEYS["task"]]


def requested_workload(config: Mapping[str, Any]) -> Workload:
    """Return the kind of work that a configuration selects; its options have default values.

    If a value is unknown, so that no kind matches, return the workload task=step. `check_selectors`
    rejects the value.

    Args:
        config: A composed configuration, a request, or the params of a run. `model` is the name of
            the model, or a mapping with the key `name`.
    """
    model = config.get("model")
    model_name = model.get("name") if isinstance(model, Mapping) else model
    selected = {**config, "model": model_name}
    for work in _by_precedence():
        value = selected.get(work.key, DEFAULT_KEYS.get(work.key))
        if value in work.selector_values:
            return work
    return default_workload()


def check_selectors(work: Workload, config: Mapping[str, Any]) -> None:
    """Check that the keys that select a kind of work agree.

    For example, task=learn contradicts mode=inference.

    Args:
        work: The selected kind of work.
        config: The configuration, as nested mappings.

    Raises:
        ConfigError: If a key contradicts the selected kind.
    """
    for key, value in work.stored_keys().items():
        if key not in DEFAULT_KEYS:
            continue
        requested = config.get(key, value)
        if requested != value:
            reason = f"{work.key}={work.name} {work.conflict_reason}"
            raise ConfigError(key, requested, reason, f"set {key}={value}")


@cache
def _by_precedence() -> list[Workload]:
    """Return all kinds of work, ordered by the precedence of the keys that select them."""
    return [work for key in _SELECTORS for work in WORKLOADS.values() if work.key == key]


def message_type(name: object) -> type[WorkloadMessage] | None:
    """Return the class of a workload message.

    Args:
        name: Its `wire_name` in the JSON.

    Returns:
        The class; None if the name is unknown.
    """
    for work in WORKLOADS.values():
        for message_class in work.message_types:
            if message_class.wire_name == name:
                return message_class
    return None


@cache
def selector_choices(key: str) -> tuple[str, ...]:
    """Return the possible values of a key that selects a kind of work, the default first.

    Args:
        key: A key of `DEFAULT_KEYS`, such as "task".
    """
    choices = [DEFAULT_KEYS[key]]
    for work in WORKLOADS.values():
        if work.key == key:
            choices += work.selector_values
    return tuple(dict.fromkeys(choices))


@cache
def workloads_by_group() -> Mapping[str, Workload]:
    """Return the kinds of work that have options, by the prefix of their option keys."""
    return {work.group: work for work in WORKLOADS.values() if work.group}


def option_keys(work: Workload) -> list[str]:
    """Return the dotted keys of the options of a kind of work, such as "learn.target"."""
    if not work.group:
        return []
    return [f"{work.group}.{field.name}" for field in fields(work)]  # type: ignore[arg-type]
