"""A point: all settings that determine a measurement, as frozen dataclasses.

Hydra composes nested mappings, and `paradnn.config.reading` converts them to a `Point`. Every field
has a help text and bounds, so that the checks, `--help` and the documentation agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any

from paradnn.config.data import Input, Synthetic
from paradnn.core.layers import COMPUTE_BYTES, Costs
from paradnn.core.schema import option
from paradnn.core.versions import FRAMEWORKS
from paradnn.core.workload import (
    DEFAULT_KEYS,
    WORKLOADS,
    Workload,
    selector_choices,
    workloads_by_group,
)
from paradnn.families import Model

#: Prefixes of the environment variables that `framework.env` may set. This is an allow-list, because
#: the values are recorded.
ENV_PREFIXES = (
    "TF_",
    "XLA_",
    "OMP_",
    "KMP_",
    "ONEDNN_",
    "DNNL_",
    "MKL_",
    "OPENBLAS_",
    "CUDA_",
    "NVIDIA_TF32",
    "JAX_",
    "TORCH",
    "PYTORCH_",
    "MALLOC_",
    "GLIBC_TUNABLES",
)

#: Pattern of a requirement: name, extras, versions and a marker. Options of the installer and URLs
#: are not allowed, because requirements are recorded, and a URL may contain a password.
REQUIREMENT = r"[A-Za-z0-9][\w.-]*(\[[\w,. -]+\])? *([<>=!~]=?[^@/;]+)?(;[^@/]+)?"
_CORES = (
    r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*",
    "write numbers and ranges of them, as in '0-3,6'",
)
_DAY = 86_400.0


@dataclass(frozen=True)
class Optimizer:
    """The optimizer. The defaults are the constants in the published programs of the paper."""

    name: str = option("rmsprop", "the update rule", choices=("rmsprop", "momentum", "sgd", "adam"))
    learning_rate: float = option(0.1, "step size", low=0.0)
    decay: float = option(0.9, "decay of the mean square (rmsprop, adam)", low=0.0, high=1.0)
    momentum: float = option(
        0.9, "momentum (rmsprop, momentum), decay of the mean (adam)", low=0.0, high=1.0
    )
    epsilon: float = option(
        1.0, "added to the mean square (rmsprop) or to its root (adam)", low=0.0
    )


@dataclass(frozen=True)
class Platform:
    """The device on which the model runs."""

    name: str = option("cpu", "kind of device", choices=("cpu", "gpu", "tpu"))
    threads: int | None = option(
        None,
        "threads within an operation, per device; null: all cores, shared by the devices",
        low=1,
        high=4096,
    )
    index: int = option(0, "index of the device among those of its kind", low=0, high=1023)
    cores: str | int | None = option(
        None,
        "cores to which a point on one device is pinned, as in '0-3,6'; null: all cores",
        low=0,
        pattern=_CORES,
    )
    price_per_hour: float | None = option(
        None,
        "price of an hour, which is recorded but not part of the point; null: from price=",
        low=1e-9,
        high=1e9,
    )


@dataclass(frozen=True)
class FrameworkOptions:
    """The framework below Keras, with the environment variables of the worker."""

    name: str = option(
        "tensorflow",
        "Keras backend, or an engine (docs/how-to/engines.md)",
        choices=tuple(FRAMEWORKS),
    )
    env: Mapping[str, str] = option(
        {},
        "environment variables of the worker, such as TF_ENABLE_ONEDNN_OPTS",
        prefixes=ENV_PREFIXES,
    )
    compile: str = option(
        "default",
        "effort of torch.compile (framework=torch compile=graph)",
        choices=("default", "reduce-overhead", "max-autotune"),
    )


@dataclass(frozen=True)
class Software:
    """The interpreter under test: the driver's, a given one, or a stack installed on first use."""

    name: str = option("current", "name of the software stack")
    python: str | None = option(
        None, "path of an interpreter that has the framework; null: the driver's interpreter"
    )
    requirements: tuple[str, ...] = option(
        (),
        "packages of a software stack to install on first use, such as tensorflow-cpu==2.16.2",
        pattern=(REQUIREMENT, "write a package with its version, as in tensorflow-cpu==2.16.2"),
    )
    python_version: str | None = option(
        None,
        "Python version of the stack given by requirements; null: the driver's version",
        pattern=(r"3\.\d+", "for example, write '3.11', in quotes"),
    )


@dataclass(frozen=True)
class Measure:
    """The timing protocol, limits and extras of one measurement.

    Limits (`timeout`, `memory_limit`, `predict_oom`) and extras (`profile`, `keep_trace`) do not
    affect the timing.
    """

    min_seconds: float = option(0.5, "minimum measured time in seconds", low=0.0, high=_DAY)
    min_blocks: int = option(10, "minimum number of measured blocks", low=1, high=100_000)
    max_seconds: float = option(
        120.0,
        "maximum measured time in seconds, even with fewer than min_blocks",
        low=0.0,
        high=10 * _DAY,
    )
    block_seconds: float = option(
        0.05,
        "minimum duration in seconds of a block, the steps between two synchronizations",
        low=0.0,
        high=3600.0,
    )
    warmup_seconds: float = option(
        10.0,
        "maximum warm-up in seconds; measuring then starts even without a steady state",
        low=0.0,
        high=_DAY,
    )
    relative_interval: float | None = option(
        None,
        "continue until the half width of the 95% interval is below this share of the value, within "
        "max_seconds or max_processes; null: do not continue",
        low=0.0001,
        high=1.0,
    )
    reference: bool | float = option(
        False,
        "share of the time for reference kernels, which track the speed of the machine; true: 0.2",
        low=0.0,
        high=0.2,
    )
    cache: str = option(
        "warm",
        "state of the caches when a step begins; cold: other data fills the caches before each "
        "step, and each step is timed separately",
        choices=("warm", "cold"),
    )
    processes: int = option(
        1, "processes per point; the interval covers their scatter", low=1, high=1000
    )
    max_processes: int = option(
        30, "maximum number of processes with relative_interval", low=1, high=1000
    )
    timeout: float = option(
        600.0, "time limit of a process in seconds (outcome timeout)", low=0.001, high=10 * _DAY
    )
    memory_limit: str | int = option(
        "auto", "host memory of a point: 8GiB, 500MB, or auto (90% of the free memory)"
    )
    predict_oom: bool = option(
        True, "skip a point whose analytic memory bound alone exceeds the limit"
    )
    profile: bool = option(
        False, "profile some steps after timing; the run then has a table and figure of operations"
    )
    keep_trace: bool = option(
        False, "profile, and store the trace with the run, for TensorBoard's profiler"
    )


@dataclass(frozen=True)
class Point:
    """One configuration to measure: a model, a kind of work, and all settings that affect it."""

    model: Model
    workload: Workload = field(default_factory=lambda: next(iter(WORKLOADS.values())))
    batch_size: int = option(
        256,
        "examples per step (paper: fc 64..16384, cnn 64..1024, rnn 16..1024); largest: search for "
        "the largest batch within the limits of memory and largest.*",
        low=1,
        high=2**40,
    )
    precision: str = option(
        "float32",
        "type of the computation; 16-bit types are mixed-precision policies of Keras, int8 types "
        "need an engine",
        choices=tuple(COMPUTE_BYTES),
    )
    compile: str = option(
        "graph",
        "how the step is compiled: graph (tf.function, jax.jit, torch.compile), xla (jit_compile; "
        "jax.jit), or eager (not compiled)",
        choices=("graph", "xla", "eager"),
    )
    devices: int = option(
        1,
        "number of devices of each host that share each step (docs/how-to/devices.md)",
        low=1,
        high=4096,
    )
    parallel: str = option(
        "data",
        "division among the devices: the examples of a step (data), or the weights (model)",
        choices=("data", "model", "pipeline"),
        shown=("data", "model"),
    )
    hosts: int = option(
        1,
        "number of hosts that share each training step, each with `devices` devices, or that share "
        "the processes of model=channel",
        low=1,
        high=4096,
    )
    optimizer: Optimizer = field(default_factory=Optimizer)
    platform: Platform = field(default_factory=Platform)
    framework: FrameworkOptions = field(default_factory=FrameworkOptions)
    software: Software = field(default_factory=Software)
    data: Input = field(default_factory=Synthetic)
    measure: Measure = field(default_factory=Measure)
    replicate: int = option(0, "number of this repetition of the point", low=0, high=2**31)
    seed: int = option(0, "random seed of weights and data", low=0, high=2**31 - 1)

    @property
    def device_count(self) -> int:
        """Total number of devices on all hosts that share each step."""
        if self.model.is_communication:
            return self.devices
        return self.devices * self.hosts

    @property
    def replicas(self) -> int:
        """Number of copies of the model. Each copy processes an equal share of the batch."""
        if self.parallel == "model":
            return 1
        return self.device_count


_SELECTOR_HELP = {
    "mode": (
        "a training step, only the forward pass, or tokens one after another "
        "(docs/how-to/generation.md)"
    ),
    "task": (
        "measured work: a step, training to a target accuracy, "
        "or the accuracy of a trained model (docs/how-to/engines.md)"
    ),
    "scenario": ("how inference requests arrive, as MLPerf defines it (docs/how-to/serving.md)"),
}


@cache
def selector_keys() -> type[Any]:
    """Return a dataclass whose fields are the keys that select a kind of work, such as `mode`."""
    fields = [
        (key, str, option(DEFAULT_KEYS[key], text, choices=selector_choices(key)))
        for key, text in _SELECTOR_HELP.items()
    ]
    return make_dataclass("Selectors", fields, frozen=True)


@cache
def point_keys() -> tuple[str, ...]:
    """Return the first component of every dotted key of a configuration, such as "model"."""
    fields = [name for name in Point.__dataclass_fields__ if name != "workload"]
    return (*fields, *DEFAULT_KEYS, *workloads_by_group())


def step_costs(point: Point) -> Costs:
    """Return the analytic costs of one step of a configuration, summed over all devices.

    The costs, such as FLOPs and bytes, are computed without running the model.

    Args:
        point: The configuration.
    """
    return point.model.costs(
        batch_size=point.batch_size,
        precision=point.precision,
        mode=point.workload.mode,
        optimizer=point.optimizer.name,
        momentum=point.optimizer.momentum,
        devices=point.replicas,
        **point.workload.cost_options(),
    )


def prefill_costs(point: Point) -> Costs:
    """Return the analytic costs of reading the prompts (prefill).

    Args:
        point: A configuration with mode=generate.
    """
    return point.model.prefill_costs(
        batch_size=point.batch_size,
        precision=point.precision,
        **point.workload.cost_options(),
    )
