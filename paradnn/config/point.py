"""The configuration, typed and checked once.

Hydra composes plain nested mappings; here they become frozen dataclasses. Every field carries its
help text and its bounds, so that the checks, `--help` and the documentation speak of the same
thing. An error names the dotted key, the value and the remedy (`paradnn.core.errors.ConfigError`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from typing import Any

from paradnn.config.data import Input, Synthetic, check_input, inputs, with_whole_path
from paradnn.config.outcome import OUTCOMES
from paradnn.config.price import Prices, check_prices
from paradnn.core.errors import ConfigError
from paradnn.core.layers import COMPUTE_BYTES, Costs
from paradnn.core.schema import memory_bytes, option, read
from paradnn.core.versions import FRAMEWORKS
from paradnn.core.words import core_list, core_text
from paradnn.core.workload import DEFAULT_KEYS, WORKLOADS, Workload, asked_for, choices, key_groups
from paradnn.families import FAMILIES, Model

# Variables that frameworks read when they are imported. An allow-list, since what is set here is
# also recorded.
ENV_PREFIXES = (
    *(
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
    ),
    *("TORCH", "PYTORCH_", "MALLOC_", "GLIBC_TUNABLES"),
)

# What a requirement may be: a name, extras, versions, a marker. Never an option of the installer or
# an address, which may hold a password, and what is written here is recorded.
REQUIREMENT = r"[A-Za-z0-9][\w.-]*(\[[\w,. -]+\])? *([<>=!~]=?[^@/;]+)?(;[^@/]+)?"
_CORES = (
    r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*",
    "write numbers and ranges of them, as in '0-3,6'",
)
_DAY = 86_400.0


@dataclass(frozen=True)
class Optimizer:
    """The optimizer, by default with the constants of the paper's published programs."""

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
    """The device the model runs on."""

    name: str = option("cpu", "kind of device", choices=("cpu", "gpu", "tpu"))
    threads: int | None = option(
        None,
        "threads within an operation, of each device; null: every core, shared by the devices",
        low=1,
        high=4096,
    )
    index: int = option(0, "which device of that kind", low=0, high=1023)
    cores: str | int | None = option(
        None,
        "cores that a point on one device is bound to, as in '0-3,6'; null: all",
        low=0,
        pattern=_CORES,
    )
    price_per_hour: float | None = option(
        None,
        "what an hour of it costs, recorded and no part of the point; null: as price= says",
        low=1e-9,
        high=1e9,
    )


@dataclass(frozen=True)
class FrameworkOptions:
    """The framework below Keras, with the variables it reads when it is imported."""

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
        "how hard torch.compile works (framework=torch compile=graph)",
        choices=("default", "reduce-overhead", "max-autotune"),
    )


@dataclass(frozen=True)
class Software:
    """The interpreter under test: this one, one that the user made, or a stack that is made on
    first use.
    """

    name: str = option("current", "name of the software stack")
    python: str | None = option(
        None, "path of the interpreter that has the framework; null: this one"
    )
    requirements: tuple[str, ...] = option(
        (),
        "packages of a stack that is made on first use, such as tensorflow-cpu==2.16.2",
        pattern=(REQUIREMENT, "write a package with its version, as in tensorflow-cpu==2.16.2"),
    )
    python_version: str | None = option(
        None,
        "Python of such a stack; null: the driver's",
        pattern=(r"3\.\d+", "write for example '3.11', in quotes"),
    )


@dataclass(frozen=True)
class Measure:
    """The protocol of one point.

    Limits (`timeout`, `memory_limit`, `predict_oom`) and extras (`profile`, `keep_trace`) do not
    change what is timed.
    """

    min_seconds: float = option(0.5, "measure at least this long", low=0.0, high=_DAY)
    min_blocks: int = option(10, "and at least so many blocks", low=1, high=100_000)
    max_seconds: float = option(
        120.0, "measure no longer than this, however few the blocks", low=0.0, high=10 * _DAY
    )
    block_seconds: float = option(
        0.05, "shortest block of steps between two synchronisations", low=0.0, high=3600.0
    )
    warmup_seconds: float = option(
        10.0, "stop warming up after this long, steady or not", low=0.0, high=_DAY
    )
    relative_interval: float | None = option(
        None,
        "measure on until half the 95% interval is below this share, within max_seconds or max_processes; null: do not",
        low=0.0001,
        high=1.0,
    )
    reference: bool | float = option(
        False,
        "share of the time in which fixed kernels tell the machine's speed; true: a fifth",
        low=0.0,
        high=0.2,
    )
    processes: int = option(
        1, "processes of a point, whose spread the interval holds", low=1, high=1000
    )
    max_processes: int = option(
        30, "with relative_interval: in up to so many processes", low=1, high=1000
    )
    timeout: float = option(
        600.0, "seconds for a process; longer is outcome timeout", low=0.001, high=10 * _DAY
    )
    memory_limit: str | int = option(
        "auto", "host memory of a point: 8GiB, 500MB, or auto (90% of what is free)"
    )
    predict_oom: bool = option(
        True, "skip a point whose analytic memory bound alone exceeds the limit"
    )
    profile: bool = option(
        False, "after timing, profile some steps: a table of operations and a figure on the run"
    )
    keep_trace: bool = option(
        False, "profile, and keep the trace with the run (TensorBoard's profiler opens it)"
    )


@dataclass(frozen=True)
class Point:
    """One model at one kind of work, measured once in one way: everything that decides what a run
    measures.
    """

    model: Model
    workload: Workload = field(default_factory=lambda: next(iter(WORKLOADS.values())))
    batch_size: int = option(
        256,
        "examples of a step (paper: fc 64..16384, cnn 64..1024, rnn 16..1024); largest: search",
        low=1,
        high=2**40,
    )
    precision: str = option(
        "float32",
        "16-bit types are Keras mixed policies; int8 types are engines'",
        choices=tuple(COMPUTE_BYTES),
    )
    compile: str = option(
        "graph",
        "graph (tf.function, jax.jit, torch.compile), xla (jit_compile; jax.jit) or eager",
        choices=("graph", "xla", "eager"),
    )
    devices: int = option(
        1, "devices that share each step's examples, data parallel", low=1, high=4096
    )
    hosts: int = option(
        1, "hosts with as many of its processes each, of model=channel", low=1, high=4096
    )
    optimizer: Optimizer = field(default_factory=Optimizer)
    platform: Platform = field(default_factory=Platform)
    framework: FrameworkOptions = field(default_factory=FrameworkOptions)
    software: Software = field(default_factory=Software)
    data: Input = field(default_factory=Synthetic)
    measure: Measure = field(default_factory=Measure)
    replicate: int = option(0, "repetition of the same point", low=0, high=2**31)
    seed: int = option(0, "random seed of weights and data", low=0, high=2**31 - 1)


@dataclass(frozen=True)
class Tracking:
    """Where runs are recorded."""

    name: str = option(
        "mlflow",
        "mlflow: a tracking store; offline: one file a point",
        choices=("mlflow", "offline"),
    )
    uri: str | None = option(
        None, "tracking URI; null: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db"
    )
    experiment: str = option("paradnn", "MLflow experiment")
    folder: str | None = option(None, "files of points that no store took; null: mlruns/offline")
    patience: float = option(
        120.0, "seconds to wait for a store that went away", low=0.0, high=_DAY
    )


@dataclass(frozen=True)
class Sweep:
    """How a multirun is laid out."""

    grids: tuple[Mapping[str, Any], ...] = option(
        (), "axes of a preset: a list of grids, their union is swept"
    )
    design: str = option(
        "grid",
        "grid: every point; adaptive: those that teach most for their time, the others predicted (docs/how-to/adaptive.md)",
        choices=("grid", "adaptive"),
    )
    points: int | None = option(None, "adaptive: end once so many points are measured", low=1)
    minutes: float | None = option(
        None, "adaptive: end after so many minutes", low=0.01, high=525_600.0
    )
    error: float | None = option(
        None,
        "adaptive: end at such a median relative error expected of unmeasured step times; 0.05 where no end is given",
        low=0.001,
        high=10.0,
    )
    zip: tuple[tuple[str, ...], ...] = option(
        (),
        "axes that go together, value by value: [model.nodes,batch_size], or several such groups [[a,b],[c,d]]",
    )
    order: str = option(
        "random",
        "random: drift does not look like an effect; given: as written",
        choices=("random", "given"),
    )
    seed: int = option(0, "of the random order and of the sample", low=0, high=2**31 - 1)
    sample: int | None = option(
        None, "measure only so many points, drawn evenly over the space; null: all", low=1
    )
    name: str | None = option(None, "name of the parent run; null: the date and the families")
    plan: str | None = option(None, "internal: the id of a planned sweep")


@dataclass(frozen=True)
class Largest:
    """What `batch_size=largest` searches, or `largest.of=model.nodes`."""

    of: str = option(
        "batch_size",
        "batch_size, or a size of the model, such as model.nodes, from the point's own up",
    )
    step_ms: float | None = option(
        None,
        "the largest of such a step time; null: the largest that fits the memory",
        low=1e-6,
        high=1e9,
    )
    latency_ms: float | None = option(
        None,
        "the largest whose latency is such in nine of ten cases, with its 95% interval",
        low=1e-6,
        high=1e9,
    )
    within: float = option(
        0.05, "share by which what does not fit may be larger", low=1e-6, high=1.0
    )

    @property
    def limited(self) -> bool:
        """Whether a time ends the search, and not the memory alone."""
        return self.step_ms is not None or self.latency_ms is not None

    def fits(self, metrics: Mapping[str, float]) -> bool:
        """Whether what was measured is within the limits."""
        p90 = metrics.get("latency_p90_high_ms", metrics.get("latency_p90_ms", math.inf))
        found = ((self.step_ms, metrics.get("step_time_ms", 0.0)), (self.latency_ms, p90))
        return all(limit is None or value <= limit for limit, value in found)


@dataclass(frozen=True)
class Settings:
    """What the driver needs beside the points themselves."""

    resume: bool | str = option(
        True,
        "skip what has an outcome; re-measure everything; or re-measure the outcomes named in retry",
        choices=("retry",),
    )
    ceilings: bool = option(
        True,
        "state utilisation against this machine's measured ceilings; measured once where there are none",
    )
    retry: tuple[str, ...] = option(
        ("crash", "timeout", "unavailable"),
        "outcomes that resume=retry measures again",
        choices=tuple(OUTCOMES),
    )
    tracking: Tracking = field(default_factory=Tracking)
    sweep: Sweep = field(default_factory=Sweep)
    largest: Largest = field(default_factory=Largest)
    price: Prices = field(default_factory=Prices)
    elsewhere: str | None = option(
        None, "a folder to make, that measures on a machine with an engine alone"
    )


#: What `batch_size` may be instead of a number where it is searched for.
LARGEST = "largest"
SETTINGS_KEYS = tuple(Settings.__dataclass_fields__)
_ASKED = {
    "mode": "a training step, a forward pass alone, or tokens one after the other (docs/how-to/generation.md)",
    "task": "what is measured: a step, learning to an accuracy, or the accuracy of what was trained (docs/how-to/engines.md)",
    "scenario": "who asks for inference, as MLPerf defines it (docs/how-to/serving.md)",
}


@cache
def asked_keys() -> type[Any]:
    """The keys that ask for a kind of work, as a dataclass."""
    entries = [
        (key, str, option(DEFAULT_KEYS[key], text, choices=choices(key)))
        for key, text in _ASKED.items()
    ]
    return make_dataclass("Asked", entries, frozen=True)


@cache
def point_keys() -> tuple[str, ...]:
    """The first words of all keys of a point."""
    own = (key for key in Point.__dataclass_fields__ if key != "workload")
    return (*own, *DEFAULT_KEYS, *key_groups())


def read_point(config: Mapping[str, Any]) -> Point:
    """The point in a composed configuration; raises ConfigError for the first value that is wrong."""
    return checked(asked_point(config))


def asked_point(config: Mapping[str, Any]) -> Point:
    """The point that a configuration asks for, each value checked, not what they are together; or
    ConfigError.
    """
    name, model = _chosen(config.get("model"), "model.name", "family", FAMILIES)
    kind, data = _chosen(config.get("data", {"name": "synthetic"}), "data.name", "choice", inputs())
    source = with_whole_path(read(inputs()[kind], data, "data"))
    given = {"model": FAMILIES[name].options.configured(model), "data": source}
    others = (*given, "workload")
    rest = {
        key: config[key]
        for key in Point.__dataclass_fields__
        if key not in others and key in config
    }
    if rest.get("batch_size") == LARGEST:
        raise ConfigError(
            "batch_size",
            LARGEST,
            "is what python -m paradnn.train searches for",
            "give numbers here",
        )
    point: Point = read(Point, rest, "", given={**given, "workload": _read_workload(config)})
    point.workload.check_model(point.model)
    point.workload.check_keys(config)
    return point


def checked(point: Point) -> Point:
    """What is asked for, in the one way that stands for it; raises ConfigError where it contradicts
    itself.
    """
    point = point.model.in_point(point.workload.fitted(point))
    check_input(point.data, point.workload, point.model, point.devices)
    memory_bytes(point.measure.memory_limit, "measure.memory_limit")
    if point.batch_size % point.devices:
        remedy = "choose a batch_size that is a multiple of devices: each gets as many examples"
        raise ConfigError(
            "devices", point.devices, f"does not divide batch_size={point.batch_size}", remedy
        )
    point.workload.check(point)
    _check_parts(point)
    _check_hosts(point)
    if point.platform.cores is not None:
        point = replace(point, platform=_with_cores(point))
    return point


def _chosen(
    keys: Any, key: str, what: str, known: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """The name in a group of keys, of those that are known, and the group."""
    name = keys.get("name") if isinstance(keys, Mapping) else keys
    if not isinstance(keys, Mapping) or not isinstance(name, str) or name not in known:
        raise ConfigError(key, name, f"no such {what}", f"choose one of {', '.join(known)}")
    return name, keys


def _read_workload(config: Mapping[str, Any]) -> Workload:
    read(asked_keys(), {key: config[key] for key in DEFAULT_KEYS if key in config}, "")
    asked = asked_for(config)
    for other in WORKLOADS.values():
        if other is not asked:
            other.left_out(config)
    return asked.of(config)


def read_settings(config: Mapping[str, Any]) -> Settings:
    """What is no part of a point; raises ConfigError, for a key that is neither one's nor the
    other's too.
    """
    unknown = [key for key in config if key not in point_keys() + SETTINGS_KEYS]
    if unknown:
        raise ConfigError(
            unknown[0], config[unknown[0]], "no such key", "see python -m paradnn.train --help"
        )
    settings = read(Settings, {key: config[key] for key in SETTINGS_KEYS if key in config}, "")
    check_prices(settings.price)
    if settings.sweep.design == "grid":
        for key in ("points", "minutes", "error"):
            value = getattr(settings.sweep, key)
            if value:
                remedy = "add sweep.design=adaptive" + (
                    ", or use sweep.sample" if key == "points" else ""
                )
                raise ConfigError(
                    f"sweep.{key}",
                    value,
                    "ends an adaptive sweep, and this one measures all",
                    remedy,
                )
    return settings


def _check_parts(point: Point) -> None:
    """ConfigError where software, protocol and platform contradict themselves or each other."""
    software = point.software
    measure = point.measure
    if software.python and software.requirements:
        reason = f"software={software.name} has requirements of its own"
        raise ConfigError("software.python", software.python, reason, "give one")
    if software.python_version and not software.requirements:
        remedy = "give software.requirements too"
        raise ConfigError(
            "software.python_version", software.python_version, "is for a stack", remedy
        )
    if point.framework.compile != "default" and (point.framework.name, point.compile) != (
        "torch",
        "graph",
    ):
        remedy = "set framework=torch compile=graph, or leave it out"
        raise ConfigError(
            "framework.compile", point.framework.compile, "is a mode of torch.compile", remedy
        )
    if measure.relative_interval is not None and measure.max_processes < measure.processes:
        reason = f"is less than measure.processes={measure.processes}"
        raise ConfigError("measure.max_processes", measure.max_processes, reason, "raise it")


def _check_hosts(point: Point) -> None:
    """What is on several hosts has processes for each, and runs in an interpreter that is on all."""
    hosts = point.hosts
    if hosts == 1:
        return
    key, processes = point.workload.meeting(point)
    if processes % hosts:
        reason = f"does not divide the {processes} processes of {key}"
        raise ConfigError("hosts", hosts, reason, "give each host as many of them")
    if point.software.name != "current" or point.software.python:
        reason = f"is not for software={point.software.name}: the other hosts have the interpreter of this command"
        raise ConfigError("hosts", hosts, reason, "start this command with that interpreter")


def _with_cores(point: Point) -> Platform:
    """The platform with `cores` written in the one way that stands for them: 0,1,2,6 as 0-2,6."""
    given = point.platform.cores
    cores = core_list(str(given))
    if not cores:
        raise ConfigError(
            "platform.cores", given, "names no core", "write the smaller number first, as in '0-3'"
        )
    if point.devices > 1:
        reason = f"is for one device, not for devices={point.devices}"
        raise ConfigError("platform.cores", given, reason, "leave one of them out")
    return replace(point.platform, cores=core_text(cores))


def costs_of(point: Point) -> Costs:
    """The analytic costs of one step."""
    return point.model.costs(
        batch_size=point.batch_size,
        precision=point.precision,
        mode=point.workload.mode,
        optimizer=point.optimizer.name,
        momentum=point.optimizer.momentum,
        devices=point.devices,
        **point.workload.cost_keys(),
    )


def prefill_costs_of(point: Point) -> Costs:
    """The analytic costs of reading the prompts of a point that generates."""
    return point.model.prefill_costs(
        batch_size=point.batch_size, precision=point.precision, **point.workload.cost_keys()
    )
